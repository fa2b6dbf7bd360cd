//! The evaluation of function calls; `functions.txt` lists the functions.
//!
//! Promise: work proportional to a size is charged to the budget before it is done.

pub(super) mod authorizer;
pub(super) mod convert;
mod formats;
mod kubernetes;
mod list;
mod net;
mod print;
mod quantity;
mod semver;
mod text;
mod url;

use std::sync::Arc;

use super::budget::Error;
use super::eval::Machine;
use super::operators::text_cost;
use super::time;
use super::value::{Other, Value};

type Found<'a> = Result<Value<'a>, Error>;

pub(super) fn call<'a>(machine: &mut Machine<'a, '_>, name: &str, args: &[Value<'a>]) -> Found<'a> {
    let found = match args {
        [Value::Text(text), rest @ ..] => {
            machine.budget.spend(text_cost(text.len()))?;
            text::call(machine, name, text, rest)
        }
        [Value::List(list), rest @ ..] => {
            machine.budget.spend(list.len() as u64)?;
            list::call(machine, name, list, rest)
        }
        _ => Err(Error::NoSuchOverload),
    };
    match found {
        Err(Error::NoSuchOverload) => {}
        found => return found,
    }
    match general(machine, name, args) {
        Err(Error::NoSuchOverload) => kubernetes::call(machine, name, args),
        found => found,
    }
}

fn size<'a>(len: usize) -> Found<'a> {
    Ok(Value::Int(len as i64))
}

fn other<'a>(value: Other) -> Value<'a> {
    Value::Other(Arc::new(value))
}

/// Functions other than those of strings and lists.
fn general<'a>(machine: &mut Machine<'a, '_>, name: &str, args: &[Value<'a>]) -> Found<'a> {
    Ok(match (name, args) {
        ("size", [Value::Bytes(bytes)]) => return size(bytes.len()),
        ("size", [Value::Map(map)]) => return size(map.len()),
        ("type", [value]) => Value::Type(value.type_name()),
        ("dyn", [value]) => value.clone(),
        ("int", [value]) => return convert::int(value),
        ("uint", [value]) => return convert::uint(value),
        ("double", [value]) => return convert::double(value),
        ("bool", [value]) => return convert::bool(value),
        ("string", [value]) => return convert::string(value),
        ("bytes", [Value::Bytes(bytes)]) => Value::Bytes(bytes.clone()),
        ("bytes", [Value::Text(text)]) => Value::Bytes(text.as_bytes().into()),
        ("duration", [value]) => return convert::duration(value),
        ("timestamp", [value]) => return convert::timestamp(value),
        (name, [Value::Timestamp(time), zone @ ..]) if name.starts_with("get") => {
            let zone = match zone {
                [] => None,
                [Value::Text(zone)] => Some(&**zone),
                _ => return Err(Error::NoSuchOverload),
            };
            let part = time::part(name, *time, zone);
            Value::Int(part.ok_or_else(|| {
                Error::other(format!("unknown time zone {}", zone.unwrap_or_default()))
            })?)
        }
        (name, [Value::Duration(span)]) if name.starts_with("get") => {
            return convert::part_of(name, *span);
        }
        ("lists.range", [Value::Int(end)]) => {
            let end = u64::try_from(*end).unwrap_or(0);
            machine.budget.spend(end)?;
            (0..end as i64).map(Value::Int).collect::<Vec<_>>().into()
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
        // The first moment of the first year.
        Value::Timestamp(time) => time.as_nanosecond() == -62_135_596_800_000_000_000,
        Value::Optional(inner) => inner.is_none(),
        _ => false,
    }
}
