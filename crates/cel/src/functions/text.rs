//! Functions of strings.

use super::{list, print};
use crate::budget::{Error, Machine, text_cost};
use crate::estimate::rule;
use crate::pattern::Pattern;
use crate::value::Value;

rows! {
    "size(string) -> int" "string.size() -> int", rule::ONE,
        |_, text: text| text.chars().count() as i64;
    "string.contains(string) -> bool", rule::CONTAINS, |m, text: text, part: text| {
        search(m, text, part)?;
        text.contains(part)
    };
    "string.startsWith(string) -> bool", rule::READ_SECOND,
        |_, text: text, part: text| text.starts_with(part);
    "string.endsWith(string) -> bool", rule::READ_SECOND,
        |_, text: text, part: text| text.ends_with(part);
    "string.matches(string) -> bool", rule::MATCHED,
        |m, text: text, pattern: text| is_match(m, text, pattern)?;
    "matches(string,string) -> bool", rule::ONE,
        |m, text: text, pattern: text| is_match(m, text, pattern)?;
    "string.find(string) -> string", rule::FOUND, |m, text: text, pattern: text| {
        with_pattern(m, pattern, text, |pattern| {
            pattern.find(text).map_or("", |found| found.as_str()).into()
        })?
    };
    "string.findAll(string,int?) -> list(string)", rule::FOUND,
        |m, text: text, pattern: text, limit: opt_int| find_all(m, text, pattern, count(limit))?;
    "string.charAt(int) -> string", rule::ONE, |_, text: text, at: int| char_at(text, at)?;
    "string.indexOf(string,int?) -> int", rule::SEARCHED,
        |m, text: text, part: text, from: opt_int| index_of(m, text, part, from)?;
    "string.lastIndexOf(string,int?) -> int", rule::SEARCHED,
        |m, text: text, part: text, from: opt_int| last_index_of(m, text, part, from)?;
    "string.lowerAscii() -> string", rule::COPIED, |_, text: text| text.to_ascii_lowercase();
    "string.upperAscii() -> string", rule::COPIED, |_, text: text| text.to_ascii_uppercase();
    "string.trim() -> string", rule::COPIED, |_, text: text| text.trim();
    "string.substring(int,int?) -> string", rule::COPIED,
        |_, text: text, start: int, end: opt_int| substring(text, start, end)?;
    "string.replace(string,string,int?) -> string", rule::REPLACED,
        |m, text: text, from: text, to: text, limit: opt_int| {
            let times = text.matches(from).take(count(limit)).count();
            m.spend(text_cost(text.len() + times.saturating_mul(to.len())))?;
            text.replacen(from, to, count(limit))
        };
    "string.split(string,int?) -> list(string)", rule::SPLIT,
        |m, text: text, by: text, limit: opt_int| split(m, text, by, count(limit))?;
    "list(string).join(string?) -> string", rule::JOINED,
        |m, list: list, by: opt_text| list::join(m, list, by.unwrap_or_default())?;
    "string.format(list(dyn)) -> string", rule::READ,
        |m, text: text, values: list| print::format(m, text, values)?;
    "strings.quote(string) -> string", rule::QUOTED, |_, text: text| print::quote(text);
    "jsonpatch.escapeKey(string) -> string", rule::COPIED,
        |_, text: text| text.replace('~', "~0").replace('/', "~1");
}

/// Charges the search of one text in another.
fn search(m: &mut Machine<'_, '_>, text: &str, part: &str) -> Result<(), Error> {
    m.spend(text_cost(text.len()) * text_cost(part.len()))
}

/// A limit that may be absent or negative.
fn count(limit: Option<i64>) -> usize {
    limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}

fn out_of_range(at: i64) -> Error {
    Error::other(format!("index out of range: {at}"))
}

/// Matches a string with a pattern: a literal one or a computed one.
fn with_pattern<'a>(
    m: &mut Machine<'a, '_>,
    text: &str,
    subject: &str,
    look: impl FnOnce(&regex::Regex) -> Value<'a>,
) -> Result<Value<'a>, Error> {
    // Kubernetes' cost: a tenth of the text times a quarter of the pattern.
    m.spend((text.len() as u64).div_ceil(4) * text_cost(subject.len()))?;
    if let Some(known) = m.patterns.get(text) {
        return known.with_regex(subject, look).map_err(|_| Error::CostExceeded);
    }
    // Compiling costs far more than matching.
    m.spend(5000 + 50 * text.len() as u64)?;
    let compiled = Pattern::compile_small(text);
    let compiled = compiled.map_err(|why| Error::other(format!("error parsing regexp: {why}")))?;
    compiled.with_regex(subject, look).map_err(|_| Error::CostExceeded)
}

fn is_match<'a>(m: &mut Machine<'a, '_>, text: &str, pattern: &str) -> Result<Value<'a>, Error> {
    with_pattern(m, pattern, text, |found| found.is_match(text).into())
}

fn find_all<'a>(
    m: &mut Machine<'a, '_>,
    text: &str,
    pattern: &str,
    most: usize,
) -> Result<Value<'a>, Error> {
    m.spend(text.len() as u64)?;
    with_pattern(m, pattern, text, |found| {
        let all = found.find_iter(text).take(most).map(|found| found.as_str().into());
        all.collect::<Vec<Value<'a>>>().into()
    })
}

fn char_at(text: &str, at: i64) -> Result<String, Error> {
    let index = usize::try_from(at).map_err(|_| out_of_range(at))?;
    match text.chars().nth(index) {
        Some(c) => Ok(c.to_string()),
        None if index == text.chars().count() => Ok(String::new()),
        None => Err(out_of_range(at)),
    }
}

/// The position in bytes of a position in characters.
fn byte(text: &str, at: i64) -> Result<usize, Error> {
    match usize::try_from(at) {
        Ok(index) if index <= text.chars().count() => {
            Ok(text.char_indices().nth(index).map_or(text.len(), |(at, _)| at))
        }
        _ => Err(out_of_range(at)),
    }
}

/// The position in characters of a position in bytes.
fn position(text: &str, found: Option<usize>) -> i64 {
    found.map_or(-1, |at| text[..at].chars().count() as i64)
}

fn index_of(
    m: &mut Machine<'_, '_>,
    text: &str,
    part: &str,
    from: Option<i64>,
) -> Result<i64, Error> {
    search(m, text, part)?;
    let start = byte(text, from.unwrap_or(0))?;
    Ok(position(text, text[start..].find(part).map(|at| start + at)))
}

fn last_index_of(
    m: &mut Machine<'_, '_>,
    text: &str,
    part: &str,
    from: Option<i64>,
) -> Result<i64, Error> {
    search(m, text, part)?;
    let Some(last) = from else { return Ok(position(text, text.rfind(part))) };
    let last = byte(text, last)?;
    let found = text.match_indices(part).map(|(at, _)| at).take_while(|at| *at <= last).last();
    Ok(position(text, found))
}

fn substring(text: &str, start: i64, end: Option<i64>) -> Result<String, Error> {
    let length = text.chars().count() as i64;
    let end = end.unwrap_or(length);
    if let Some(at) = [start, end].into_iter().find(|at| !(0..=length).contains(at)) {
        return Err(out_of_range(at));
    }
    if start > end {
        let why = format!("invalid substring range. start: {start}, end: {end}");
        return Err(Error::other(why));
    }
    Ok(text.chars().skip(start as usize).take((end - start) as usize).collect())
}

fn split<'a>(
    m: &mut Machine<'a, '_>,
    text: &str,
    by: &str,
    limit: usize,
) -> Result<Vec<Value<'a>>, Error> {
    m.spend(text.len() as u64)?;
    Ok(match (by, limit) {
        (_, 0) => Vec::new(),
        ("", _) => {
            let mut parts: Vec<String> = text.chars().map(String::from).collect();
            if parts.len() > limit {
                let rest = parts.split_off(limit - 1).concat();
                parts.push(rest);
            }
            parts.into_iter().map(Value::from).collect()
        }
        _ => text.splitn(limit, by).map(Value::from).collect(),
    })
}
