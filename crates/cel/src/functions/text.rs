//! Functions of strings.

use super::{Found, print};
use crate::budget::Error;
use crate::eval::Machine;
use crate::operators::text_cost;
use crate::pattern::Pattern;
use crate::value::Value;

/// Evaluates a function of a string.
pub(super) fn call<'a>(
    machine: &mut Machine<'a, '_>,
    name: &str,
    text: &str,
    rest: &[Value<'a>],
) -> Found<'a> {
    let other = rest.first().and_then(Value::as_text);
    Ok(match (name, other, rest) {
        ("size", _, []) => return super::size(text.chars().count()),
        ("contains", Some(part), [_]) => {
            machine.budget.spend(text_cost(text.len()) * text_cost(part.len()))?;
            text.contains(part).into()
        }
        ("startsWith", Some(part), [_]) => text.starts_with(part).into(),
        ("endsWith", Some(part), [_]) => text.ends_with(part).into(),
        ("matches", Some(pattern), [_]) => {
            with_pattern(machine, pattern, text, |found| found.is_match(text).into())?
        }
        ("find", Some(pattern), [_]) => with_pattern(machine, pattern, text, |found| {
            found.find(text).map_or("", |found| found.as_str()).into()
        })?,
        ("findAll", Some(pattern), [_] | [_, Value::Int(_)]) => {
            let most = match rest {
                [_, Value::Int(most)] => usize::try_from(*most).unwrap_or(usize::MAX),
                _ => usize::MAX,
            };
            machine.budget.spend(text.len() as u64)?;
            with_pattern(machine, pattern, text, |found| {
                let all = found.find_iter(text).take(most).map(|found| found.as_str().into());
                all.collect::<Vec<Value<'a>>>().into()
            })?
        }
        ("lowerAscii", _, []) => text.to_ascii_lowercase().into(),
        ("upperAscii", _, []) => text.to_ascii_uppercase().into(),
        ("trim", _, []) => text.trim().into(),
        ("strings.quote", _, []) => print::quote(text).into(),
        ("charAt", _, [Value::Int(at)]) => match usize::try_from(*at) {
            Ok(at) if at == text.chars().count() => "".into(),
            Ok(at) => match text.chars().nth(at) {
                Some(c) => c.to_string().into(),
                None => return Err(Error::other(format!("index out of range: {at}"))),
            },
            Err(_) => return Err(Error::other(format!("index out of range: {at}"))),
        },
        ("indexOf" | "lastIndexOf", Some(part), [_] | [_, Value::Int(_)]) => {
            machine.budget.spend(text_cost(text.len()) * text_cost(part.len()))?;
            return index_of_text(name, text, part, rest.get(1));
        }
        ("substring", _, [Value::Int(_)] | [Value::Int(_), Value::Int(_)]) => {
            return substring(text, rest);
        }
        ("replace", Some(from), [_, Value::Text(to), limit @ ..]) => {
            return replace(machine, text, from, to, limit);
        }
        ("split", Some(by), [_, limit @ ..]) => return split(machine, text, by, limit),
        ("format", _, [Value::List(values)]) => return print::format(machine, text, values),
        _ => return Err(Error::NoSuchOverload),
    })
}

/// Matches a string with a pattern: a literal one or a computed one.
fn with_pattern<'a>(
    machine: &mut Machine<'a, '_>,
    text: &str,
    subject: &str,
    look: impl FnOnce(&regex::Regex) -> Value<'a>,
) -> Found<'a> {
    // Kubernetes' cost: a tenth of the text times a quarter of the pattern.
    let cost = (text.len() as u64).div_ceil(4) * text_cost(subject.len());
    machine.budget.spend(cost)?;
    if let Some(known) = machine.program.patterns.get(text) {
        return Ok(look(known.regex()));
    }
    // Compiling costs far more than matching.
    machine.budget.spend(5000 + 50 * text.len() as u64)?;
    let compiled = Pattern::compile_small(text);
    let compiled = compiled.map_err(|why| Error::other(format!("error parsing regexp: {why}")))?;
    Ok(look(compiled.regex()))
}

fn index_of_text<'a>(name: &str, text: &str, part: &str, from: Option<&Value<'a>>) -> Found<'a> {
    let count = |at: usize| text[..at].chars().count() as i64;
    let offset = match from {
        Some(Value::Int(at)) => match usize::try_from(*at) {
            Ok(at) if at <= text.chars().count() => Some(at),
            _ => return Err(Error::other(format!("index out of range: {at}"))),
        },
        _ => None,
    };
    let byte = |at: usize| text.char_indices().nth(at).map_or(text.len(), |(at, _)| at);
    let found = match (name, offset) {
        ("indexOf", offset) => {
            let start = byte(offset.unwrap_or(0));
            text[start..].find(part).map(|at| start + at)
        }
        (_, Some(last)) => {
            text.match_indices(part).map(|(at, _)| at).take_while(|at| *at <= byte(last)).last()
        }
        (_, None) => text.rfind(part),
    };
    Ok(Value::Int(found.map_or(-1, count)))
}

fn substring<'a>(text: &str, range: &[Value<'_>]) -> Found<'a> {
    let length = text.chars().count() as i64;
    let (start, end) = match range {
        [Value::Int(start)] => (*start, length),
        [Value::Int(start), Value::Int(end)] => (*start, *end),
        _ => return Err(Error::NoSuchOverload),
    };
    if start < 0 || start > length {
        return Err(Error::other(format!("index out of range: {start}")));
    }
    if end < 0 || end > length {
        return Err(Error::other(format!("index out of range: {end}")));
    }
    if start > end {
        let why = format!("invalid substring range. start: {start}, end: {end}");
        return Err(Error::other(why));
    }
    let part = text.chars().skip(start as usize).take((end - start) as usize);
    Ok(part.collect::<String>().into())
}

fn replace<'a>(
    machine: &mut Machine<'a, '_>,
    text: &str,
    from: &str,
    to: &str,
    limit: &[Value<'a>],
) -> Found<'a> {
    let limit = match limit {
        [] => usize::MAX,
        [Value::Int(limit)] => usize::try_from(*limit).unwrap_or(usize::MAX),
        _ => return Err(Error::NoSuchOverload),
    };
    let times = text.matches(from).take(limit).count();
    machine.budget.spend(text_cost(text.len() + times.saturating_mul(to.len())))?;
    Ok(text.replacen(from, to, limit).into())
}

fn split<'a>(
    machine: &mut Machine<'a, '_>,
    text: &str,
    by: &str,
    limit: &[Value<'a>],
) -> Found<'a> {
    let limit = match limit {
        [] => usize::MAX,
        [Value::Int(limit)] => usize::try_from(*limit).unwrap_or(usize::MAX),
        _ => return Err(Error::NoSuchOverload),
    };
    machine.budget.spend(text.len() as u64)?;
    let parts: Vec<Value<'a>> = match (by, limit) {
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
    };
    Ok(parts.into())
}
