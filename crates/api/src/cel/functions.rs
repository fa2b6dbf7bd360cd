//! Functions of the language: sizes, texts, lists, conversions, times.
//!
//! [`SIGNATURES`] says which functions there are and what they answer; the check of an expression
//! reads it, and so does whoever wants to know.

use std::cmp::Ordering;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::SignedDuration;

use super::eval::{Error, Machine};
use super::operators::{compare, contains, equal, text_cost};
use super::value::{List, Map, Value};
use super::{library, operators, time};
use crate::structural::pattern::Pattern;

type Found<'a> = Result<Value<'a>, Error>;

/// A function: its name, whether it may stand alone or follow its first argument, what that first
/// argument is, and what it answers. `dyn` is anything.
pub(super) struct Signature {
    pub(super) name: &'static str,
    pub(super) style: Style,
    /// The types of the first argument, separated by `|`.
    pub(super) of: &'static str,
    pub(super) answers: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    Function,
    Method,
    Either,
}

const fn row(
    name: &'static str,
    style: Style,
    of: &'static str,
    answers: &'static str,
) -> Signature {
    Signature { name, style, of, answers }
}

use Style::{Either, Function, Method};

/// Every function there is.
#[rustfmt::skip]
pub(super) const SIGNATURES: &[Signature] = &[
    row("size", Either, "string|bytes|list|map", "int"),
    row("contains", Method, "string", "bool"),
    row("startsWith", Method, "string", "bool"),
    row("endsWith", Method, "string", "bool"),
    row("matches", Either, "string", "bool"),
    row("type", Function, "dyn", "type"),
    row("dyn", Function, "dyn", "dyn"),
    row("int", Function, "dyn", "int"),
    row("uint", Function, "dyn", "uint"),
    row("double", Function, "dyn", "double"),
    row("string", Function, "dyn", "string"),
    row("bytes", Function, "dyn", "bytes"),
    row("bool", Function, "dyn", "bool"),
    row("duration", Function, "string|google.protobuf.Duration|int", "google.protobuf.Duration"),
    row("timestamp", Function, "string|google.protobuf.Timestamp|int", "google.protobuf.Timestamp"),
    row("getFullYear", Method, "google.protobuf.Timestamp", "int"),
    row("getMonth", Method, "google.protobuf.Timestamp", "int"),
    row("getDate", Method, "google.protobuf.Timestamp", "int"),
    row("getDayOfMonth", Method, "google.protobuf.Timestamp", "int"),
    row("getDayOfWeek", Method, "google.protobuf.Timestamp", "int"),
    row("getDayOfYear", Method, "google.protobuf.Timestamp", "int"),
    row("getHours", Method, "google.protobuf.Timestamp|google.protobuf.Duration", "int"),
    row("getMinutes", Method, "google.protobuf.Timestamp|google.protobuf.Duration", "int"),
    row("getSeconds", Method, "google.protobuf.Timestamp|google.protobuf.Duration", "int"),
    row("getMilliseconds", Method, "google.protobuf.Timestamp|google.protobuf.Duration", "int"),
    // Texts.
    row("charAt", Method, "string", "string"),
    row("indexOf", Method, "string|list", "int"),
    row("lastIndexOf", Method, "string|list", "int"),
    row("lowerAscii", Method, "string", "string"),
    row("upperAscii", Method, "string", "string"),
    row("replace", Method, "string", "string"),
    row("split", Method, "string", "list"),
    row("substring", Method, "string", "string"),
    row("trim", Method, "string", "string"),
    row("join", Method, "list", "string"),
    row("format", Method, "string", "string"),
    row("find", Method, "string", "string"),
    row("findAll", Method, "string", "list"),
    row("strings.quote", Function, "string", "string"),
    // Lists and sets.
    row("reverse", Method, "string|list", "dyn"),
    row("isSorted", Method, "list", "bool"),
    row("sum", Method, "list", "dyn"),
    row("min", Method, "list", "dyn"),
    row("max", Method, "list", "dyn"),
    row("distinct", Method, "list", "list"),
    row("flatten", Method, "list", "list"),
    row("slice", Method, "list", "list"),
    row("sort", Method, "list", "list"),
    row("first", Method, "list", "optional_type"),
    row("last", Method, "list", "optional_type"),
    row("lists.range", Function, "int", "list"),
    row("sets.contains", Function, "list", "bool"),
    row("sets.equivalent", Function, "list", "bool"),
    row("sets.intersects", Function, "list", "bool"),
    // Numbers.
    row("math.greatest", Function, "dyn", "dyn"),
    row("math.least", Function, "dyn", "dyn"),
    row("math.abs", Function, "int|uint|double", "dyn"),
    row("math.sign", Function, "int|uint|double", "dyn"),
    row("math.ceil", Function, "double", "double"),
    row("math.floor", Function, "double", "double"),
    row("math.round", Function, "double", "double"),
    row("math.trunc", Function, "double", "double"),
    row("math.isNaN", Function, "double", "bool"),
    row("math.isInf", Function, "double", "bool"),
    row("math.isFinite", Function, "double", "bool"),
    row("base64.encode", Function, "bytes", "string"),
    row("base64.decode", Function, "string", "bytes"),
    // What may not be there.
    row("optional.of", Function, "dyn", "optional_type"),
    row("optional.none", Function, "dyn", "optional_type"),
    row("optional.ofNonZeroValue", Function, "dyn", "optional_type"),
    row("hasValue", Method, "optional_type", "bool"),
    row("value", Method, "optional_type", "dyn"),
    row("or", Method, "optional_type", "optional_type"),
    row("orValue", Method, "optional_type", "dyn"),
    // Kubernetes.
    row("quantity", Function, "string", "kubernetes.Quantity"),
    row("isQuantity", Function, "string", "bool"),
    row("isInteger", Method, "kubernetes.Quantity", "bool"),
    row("asInteger", Method, "kubernetes.Quantity", "int"),
    row("asApproximateFloat", Method, "kubernetes.Quantity", "double"),
    row("sign", Method, "kubernetes.Quantity", "int"),
    row("add", Method, "kubernetes.Quantity", "kubernetes.Quantity"),
    row("sub", Method, "kubernetes.Quantity", "kubernetes.Quantity"),
    row("compareTo", Method, "kubernetes.Quantity|kubernetes.Semver", "int"),
    row("isLessThan", Method, "kubernetes.Quantity|kubernetes.Semver", "bool"),
    row("isGreaterThan", Method, "kubernetes.Quantity|kubernetes.Semver", "bool"),
    row("url", Function, "string", "kubernetes.URL"),
    row("isURL", Function, "string", "bool"),
    row("getScheme", Method, "kubernetes.URL", "string"),
    row("getHost", Method, "kubernetes.URL", "string"),
    row("getHostname", Method, "kubernetes.URL", "string"),
    row("getPort", Method, "kubernetes.URL", "string"),
    row("getEscapedPath", Method, "kubernetes.URL", "string"),
    row("getQuery", Method, "kubernetes.URL", "map"),
    row("ip", Either, "string|net.CIDR", "net.IP"),
    row("isIP", Function, "string", "bool"),
    row("ip.isCanonical", Function, "string", "bool"),
    row("family", Method, "net.IP", "int"),
    row("isUnspecified", Method, "net.IP", "bool"),
    row("isLoopback", Method, "net.IP", "bool"),
    row("isLinkLocalMulticast", Method, "net.IP", "bool"),
    row("isLinkLocalUnicast", Method, "net.IP", "bool"),
    row("isGlobalUnicast", Method, "net.IP", "bool"),
    row("cidr", Function, "string", "net.CIDR"),
    row("isCIDR", Function, "string", "bool"),
    row("containsIP", Method, "net.CIDR", "bool"),
    row("containsCIDR", Method, "net.CIDR", "bool"),
    row("masked", Method, "net.CIDR", "net.CIDR"),
    row("prefixLength", Method, "net.CIDR", "int"),
    row("semver", Function, "string", "kubernetes.Semver"),
    row("isSemver", Function, "string", "bool"),
    row("major", Method, "kubernetes.Semver", "int"),
    row("minor", Method, "kubernetes.Semver", "int"),
    row("patch", Method, "kubernetes.Semver", "int"),
    row("jsonpatch.escapeKey", Function, "string", "string"),
    row("format.named", Function, "string", "optional_type"),
    row("format.dns1123Label", Function, "", "kubernetes.NamedFormat"),
    row("format.dns1123Subdomain", Function, "", "kubernetes.NamedFormat"),
    row("format.dns1035Label", Function, "", "kubernetes.NamedFormat"),
    row("format.qualifiedName", Function, "", "kubernetes.NamedFormat"),
    row("format.dns1123LabelPrefix", Function, "", "kubernetes.NamedFormat"),
    row("format.dns1123SubdomainPrefix", Function, "", "kubernetes.NamedFormat"),
    row("format.dns1035LabelPrefix", Function, "", "kubernetes.NamedFormat"),
    row("format.labelValue", Function, "", "kubernetes.NamedFormat"),
    row("format.uri", Function, "", "kubernetes.NamedFormat"),
    row("format.uuid", Function, "", "kubernetes.NamedFormat"),
    row("format.byte", Function, "", "kubernetes.NamedFormat"),
    row("format.date", Function, "", "kubernetes.NamedFormat"),
    row("format.datetime", Function, "", "kubernetes.NamedFormat"),
    row("validate", Method, "kubernetes.NamedFormat", "optional_type"),
];

/// A name that stands for a type.
pub(super) fn type_named(name: &str) -> Option<&'static str> {
    #[rustfmt::skip]
    const TYPES: [&str; 12] = [
        "int", "uint", "double", "bool", "string", "bytes", "list", "map", "null_type", "type",
        "google.protobuf.Timestamp", "google.protobuf.Duration",
    ];
    TYPES.into_iter().find(|known| *known == name)
}

pub(super) fn call<'a>(
    machine: &mut Machine<'a, '_>,
    name: &str,
    is_method: bool,
    args: &[Value<'a>],
) -> Found<'a> {
    let fits = |style: Style| match style {
        Function => !is_method,
        Method => is_method,
        Either => true,
    };
    if !SIGNATURES.iter().any(|known| known.name == name && fits(known.style)) {
        return Err(Error::NoSuchOverload);
    }
    match args {
        [Value::Text(text), rest @ ..] => {
            machine.budget.spend(text_cost(text.len()))?;
            let text = text.clone();
            match self::text(machine, name, &text, rest) {
                Err(Error::NoSuchOverload) => {}
                found => return found,
            }
        }
        [Value::List(list), rest @ ..] => {
            machine.budget.spend(list.len() as u64)?;
            match self::list(machine, name, list, rest) {
                Err(Error::NoSuchOverload) => {}
                found => return found,
            }
        }
        _ => {}
    }
    match general(machine, name, args) {
        Err(Error::NoSuchOverload) => library::call(machine, name, args),
        found => found,
    }
}

fn size<'a>(len: usize) -> Found<'a> {
    Ok(Value::Int(len as i64))
}

/// What is asked of a text.
fn text<'a>(
    machine: &mut Machine<'a, '_>,
    name: &str,
    text: &str,
    rest: &[Value<'a>],
) -> Found<'a> {
    let other = rest.first().and_then(Value::as_text);
    Ok(match (name, other, rest) {
        ("size", _, []) => return size(text.chars().count()),
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
        ("reverse", _, []) => text.chars().rev().collect::<String>().into(),
        ("strings.quote", _, []) => library::quote(text).into(),
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
        ("format", _, [Value::List(values)]) => return library::format(machine, text, values),
        ("duration", _, []) => match time::parse_duration(text) {
            Some(span) => Value::Duration(span),
            None => return Err(Error::other(format!("time: invalid duration {text:?}"))),
        },
        ("timestamp", _, []) => match time::parse_timestamp(text) {
            Some(time) => Value::Timestamp(time),
            None => return Err(Error::other(format!("parsing time {text:?}: invalid format"))),
        },
        ("int", _, []) => match text.parse() {
            Ok(value) => Value::Int(value),
            Err(_) => return Err(conversion()),
        },
        ("uint", _, []) => match text.parse() {
            Ok(value) => Value::Uint(value),
            Err(_) => return Err(conversion()),
        },
        ("double", _, []) => match text.parse() {
            Ok(value) => Value::Double(value),
            Err(_) => return Err(conversion()),
        },
        ("bool", _, []) => match text {
            "1" | "t" | "true" | "TRUE" | "True" => Value::Bool(true),
            "0" | "f" | "false" | "FALSE" | "False" => Value::Bool(false),
            _ => return Err(conversion()),
        },
        ("bytes", _, []) => Value::Bytes(text.as_bytes().into()),
        ("base64.decode", _, []) => match STANDARD.decode(text) {
            Ok(bytes) => Value::Bytes(bytes.into()),
            Err(_) => return Err(Error::other("illegal base64 data")),
        },
        _ => return Err(Error::NoSuchOverload),
    })
}

fn conversion() -> Error {
    Error::other("type conversion error")
}

/// Matches a text with a pattern: one of the program's, or one that was computed.
fn with_pattern<'a>(
    machine: &mut Machine<'a, '_>,
    text: &str,
    subject: &str,
    look: impl FnOnce(&regex::Regex) -> Value<'a>,
) -> Found<'a> {
    // The cost is that of the reference: a tenth of the text times a quarter of the pattern.
    let cost = (text.len() as u64).div_ceil(4) * text_cost(subject.len());
    machine.budget.spend(cost)?;
    if let Some(known) = machine.program.patterns.get(text) {
        return Ok(look(known.regex()));
    }
    // Compiling is far dearer than matching.
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

/// What is asked of a list.
fn list<'a>(
    machine: &mut Machine<'a, '_>,
    name: &str,
    list: &List<'a>,
    rest: &[Value<'a>],
) -> Found<'a> {
    Ok(match (name, rest) {
        ("size", []) => return size(list.len()),
        ("isSorted", []) => {
            let elements: Vec<_> = list.iter().collect();
            let orders = elements.windows(2).map(|pair| compare(&pair[0], &pair[1]));
            let orders = orders.collect::<Option<Vec<_>>>().ok_or(Error::NoSuchOverload)?;
            orders.into_iter().all(Ordering::is_le).into()
        }
        ("sum", []) => return sum(machine, list),
        ("min" | "max", []) => return extreme(name == "max", list.iter(), name),
        ("math.greatest" | "math.least", []) => {
            return extreme(name == "math.greatest", list.iter(), name);
        }
        ("indexOf" | "lastIndexOf", [wanted]) => {
            let mut found = -1;
            for (at, element) in list.iter().enumerate() {
                if equal(&element, wanted, machine.budget)? {
                    found = at as i64;
                    if name == "indexOf" {
                        break;
                    }
                }
            }
            found.into()
        }
        ("join", []) => return join(machine, list, ""),
        ("join", [Value::Text(by)]) => return join(machine, list, by),
        ("reverse", []) => {
            let mut elements: Vec<_> = list.iter().collect();
            elements.reverse();
            elements.into()
        }
        ("sort", []) => {
            machine.budget.spend(list.len() as u64 * 16)?;
            let mut elements: Vec<_> = list.iter().collect();
            let mut failed = false;
            elements.sort_by(|a, b| {
                compare(a, b).unwrap_or_else(|| {
                    failed = true;
                    Ordering::Equal
                })
            });
            if failed {
                return Err(Error::NoSuchOverload);
            }
            elements.into()
        }
        ("distinct", []) => {
            let mut kept: Vec<Value<'a>> = Vec::new();
            'elements: for element in list.iter() {
                for known in &kept {
                    if equal(known, &element, machine.budget)? {
                        continue 'elements;
                    }
                }
                kept.push(element);
            }
            kept.into()
        }
        ("flatten", [] | [Value::Int(_)]) => {
            let depth = match rest {
                [Value::Int(depth)] => *depth,
                _ => 1,
            };
            let mut made = Vec::new();
            flatten(machine, list, depth, &mut made)?;
            made.into()
        }
        ("slice", [Value::Int(start), Value::Int(end)]) => {
            let range = usize::try_from(*start).ok().zip(usize::try_from(*end).ok());
            match range.filter(|(start, end)| start <= end && *end <= list.len()) {
                Some((start, end)) => {
                    list.iter().skip(start).take(end - start).collect::<Vec<_>>().into()
                }
                None => {
                    let why =
                        format!("cannot slice({start}, {end}), list is length {}", list.len());
                    return Err(Error::other(why));
                }
            }
        }
        ("first", []) => list.get(0).map_or(Value::NONE, Value::some),
        ("last", []) => {
            list.len().checked_sub(1).and_then(|at| list.get(at)).map_or(Value::NONE, Value::some)
        }
        ("sets.contains", [Value::List(other)]) => all_in(machine, other, list)?.into(),
        ("sets.equivalent", [Value::List(other)]) => {
            (all_in(machine, other, list)? && all_in(machine, list, other)?).into()
        }
        ("sets.intersects", [Value::List(other)]) => {
            let holder = Value::List(other.clone());
            for element in list.iter() {
                if contains(&holder, &element, machine.budget)? {
                    return Ok(Value::Bool(true));
                }
            }
            Value::Bool(false)
        }
        _ => return Err(Error::NoSuchOverload),
    })
}

fn all_in<'a>(
    machine: &mut Machine<'a, '_>,
    some: &List<'a>,
    all: &List<'a>,
) -> Result<bool, Error> {
    let holder = Value::List(all.clone());
    for element in some.iter() {
        if !contains(&holder, &element, machine.budget)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn sum<'a>(machine: &mut Machine<'a, '_>, list: &List<'a>) -> Found<'a> {
    let mut elements = list.iter();
    let Some(mut total) = elements.next() else { return Ok(Value::Int(0)) };
    for element in elements {
        total = operators::binary(super::parse::Op::Add, &total, &element, machine.budget)?;
    }
    Ok(total)
}

fn extreme<'a>(largest: bool, values: impl Iterator<Item = Value<'a>>, name: &str) -> Found<'a> {
    let mut found: Option<Value<'a>> = None;
    for value in values {
        let replaces = match &found {
            None => true,
            Some(best) => {
                let order = compare(&value, best).ok_or(Error::NoSuchOverload)?;
                if largest { order.is_gt() } else { order.is_lt() }
            }
        };
        if replaces {
            found = Some(value);
        }
    }
    found.ok_or_else(|| Error::other(format!("{name} called on empty list")))
}

fn join<'a>(machine: &mut Machine<'a, '_>, list: &List<'a>, by: &str) -> Found<'a> {
    let mut made = String::new();
    for (at, element) in list.iter().enumerate() {
        let part = element.as_text().ok_or(Error::NoSuchOverload)?;
        machine.budget.spend(text_cost(part.len() + by.len()))?;
        if at > 0 {
            made.push_str(by);
        }
        made.push_str(part);
    }
    Ok(made.into())
}

fn flatten<'a>(
    machine: &mut Machine<'a, '_>,
    list: &List<'a>,
    depth: i64,
    made: &mut Vec<Value<'a>>,
) -> Result<(), Error> {
    machine.budget.spend(list.len() as u64)?;
    for element in list.iter() {
        match element {
            Value::List(inner) if depth > 0 => flatten(machine, &inner, depth - 1, made)?,
            element => made.push(element),
        }
    }
    Ok(())
}

/// Everything else of the language itself.
fn general<'a>(machine: &mut Machine<'a, '_>, name: &str, args: &[Value<'a>]) -> Found<'a> {
    Ok(match (name, args) {
        ("size", [Value::Bytes(bytes)]) => return size(bytes.len()),
        ("size", [Value::Map(map)]) => return size(map.len()),
        ("type", [value]) => Value::Type(value.type_name()),
        ("dyn", [value]) => value.clone(),
        ("int", [value]) => return int(value),
        ("uint", [value]) => return uint(value),
        ("double", [Value::Int(value)]) => Value::Double(*value as f64),
        ("double", [Value::Uint(value)]) => Value::Double(*value as f64),
        ("double", [Value::Double(value)]) => Value::Double(*value),
        ("bool", [Value::Bool(value)]) => Value::Bool(*value),
        ("bytes", [Value::Bytes(bytes)]) => Value::Bytes(bytes.clone()),
        ("string", [value]) => return string(value),
        ("duration", [Value::Duration(span)]) => Value::Duration(*span),
        ("timestamp", [Value::Timestamp(time)]) => Value::Timestamp(*time),
        ("timestamp", [Value::Int(seconds)]) => match jiff::Timestamp::from_second(*seconds) {
            Ok(time) => Value::Timestamp(time),
            Err(_) => return Err(Error::other("timestamp out of range")),
        },
        (name, [Value::Timestamp(time), zone @ ..]) if name.starts_with("get") => {
            let zone = match zone {
                [] => None,
                [Value::Text(zone)] => Some(&**zone),
                _ => return Err(Error::NoSuchOverload),
            };
            match time::part(name, *time, zone) {
                Some(part) => Value::Int(part),
                None => return Err(Error::other("unknown time zone")),
            }
        }
        (name, [Value::Duration(span)]) => return part_of(name, *span),
        ("lists.range", [Value::Int(end)]) => {
            let end = u64::try_from(*end).unwrap_or(0);
            machine.budget.spend(end)?;
            (0..end as i64).map(Value::Int).collect::<Vec<_>>().into()
        }
        ("math.greatest" | "math.least", values) => {
            return extreme(name == "math.greatest", values.iter().cloned(), name);
        }
        (name, [value]) if name.starts_with("math.") => return math(name, value),
        ("base64.encode", [Value::Bytes(bytes)]) => {
            machine.budget.spend(text_cost(bytes.len()))?;
            STANDARD.encode(bytes).into()
        }
        ("optional.of", [value]) => Value::some(value.clone()),
        ("optional.none", []) => Value::NONE,
        ("optional.ofNonZeroValue", [value]) if is_zero(value) => Value::NONE,
        ("optional.ofNonZeroValue", [value]) => Value::some(value.clone()),
        ("hasValue", [Value::Optional(inner)]) => inner.is_some().into(),
        ("value", [Value::Optional(Some(inner))]) => (**inner).clone(),
        ("value", [Value::Optional(None)]) => {
            return Err(Error::other("optional.none() dereference"));
        }
        _ => return Err(Error::NoSuchOverload),
    })
}

fn is_zero(value: &Value<'_>) -> bool {
    match value {
        Value::Null | Value::Bool(false) | Value::Int(0) | Value::Uint(0) => true,
        Value::Double(value) => *value == 0.0,
        Value::Text(text) => text.is_empty(),
        Value::Bytes(bytes) => bytes.is_empty(),
        Value::List(list) => list.len() == 0,
        Value::Map(map) => map.len() == 0,
        Value::Duration(span) => span.is_zero(),
        Value::Optional(inner) => inner.is_none(),
        _ => false,
    }
}

fn int<'a>(value: &Value<'_>) -> Found<'a> {
    let range = || Error::other("integer overflow");
    match value {
        Value::Int(value) => Ok(Value::Int(*value)),
        Value::Uint(value) => i64::try_from(*value).map(Value::Int).map_err(|_| range()),
        Value::Double(value) if value.abs() < 9.2e18 => Ok(Value::Int(*value as i64)),
        Value::Double(_) => Err(range()),
        Value::Timestamp(time) => Ok(Value::Int(time.as_second())),
        _ => Err(Error::NoSuchOverload),
    }
}

fn uint<'a>(value: &Value<'_>) -> Found<'a> {
    let range = || Error::other("unsigned integer overflow");
    match value {
        Value::Uint(value) => Ok(Value::Uint(*value)),
        Value::Int(value) => u64::try_from(*value).map(Value::Uint).map_err(|_| range()),
        Value::Double(value) if (0.0..1.8e19).contains(value) => Ok(Value::Uint(*value as u64)),
        Value::Double(_) => Err(range()),
        _ => Err(Error::NoSuchOverload),
    }
}

pub(super) fn string<'a>(value: &Value<'a>) -> Found<'a> {
    Ok(match value {
        Value::Text(text) => Value::Text(text.clone()),
        Value::Bool(value) => value.to_string().into(),
        Value::Int(value) => value.to_string().into(),
        Value::Uint(value) => value.to_string().into(),
        Value::Double(value) => library::show_double(*value).into(),
        Value::Bytes(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => text.into(),
            Err(_) => return Err(Error::other("invalid UTF-8")),
        },
        Value::Duration(span) => time::show_duration(*span).into(),
        Value::Timestamp(time) => time::show_timestamp(*time).into(),
        Value::Other(other) => match library::show(other) {
            Some(text) => text.into(),
            None => return Err(Error::NoSuchOverload),
        },
        _ => return Err(Error::NoSuchOverload),
    })
}

/// A whole span in other units.
fn part_of<'a>(name: &str, span: SignedDuration) -> Found<'a> {
    Ok(Value::Int(match name {
        "getHours" => span.as_secs() / 3600,
        "getMinutes" => span.as_secs() / 60,
        "getSeconds" => span.as_secs(),
        "getMilliseconds" => i64::try_from(span.as_millis()).unwrap_or(i64::MAX),
        _ => return Err(Error::NoSuchOverload),
    }))
}

fn math<'a>(name: &str, value: &Value<'_>) -> Found<'a> {
    Ok(match (name, value) {
        ("math.abs", Value::Int(value)) => match value.checked_abs() {
            Some(value) => Value::Int(value),
            None => return Err(Error::other("integer overflow")),
        },
        ("math.abs", Value::Uint(value)) => Value::Uint(*value),
        ("math.abs", Value::Double(value)) => Value::Double(value.abs()),
        ("math.sign", Value::Int(value)) => Value::Int(value.signum()),
        ("math.sign", Value::Uint(value)) => Value::Uint(u64::from(*value > 0)),
        ("math.sign", Value::Double(value)) if *value == 0.0 => Value::Double(0.0),
        ("math.sign", Value::Double(value)) => Value::Double(value.signum()),
        ("math.ceil", Value::Double(value)) => Value::Double(value.ceil()),
        ("math.floor", Value::Double(value)) => Value::Double(value.floor()),
        ("math.round", Value::Double(value)) => Value::Double(value.round()),
        ("math.trunc", Value::Double(value)) => Value::Double(value.trunc()),
        ("math.isNaN", Value::Double(value)) => value.is_nan().into(),
        ("math.isInf", Value::Double(value)) => value.is_infinite().into(),
        ("math.isFinite", Value::Double(value)) => value.is_finite().into(),
        _ => return Err(Error::NoSuchOverload),
    })
}

/// The members of a map as pairs, for whoever prints them.
pub(super) fn pairs<'a>(map: &Map<'a>) -> Vec<(Value<'a>, Value<'a>)> {
    map.keys().into_iter().filter_map(|key| map.get(&key).map(|value| (key, value))).collect()
}
