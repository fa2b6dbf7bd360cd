//! Functions of optionals.

use crate::budget::Error;
use crate::estimate::rule;
use crate::overload::{FunctionRow, Run};
use crate::value::{ListValue, Value};

rows! {
    "optional.of(T) -> optional(T)", rule::ONE, |_, value: any| Some(value.clone());
    "optional.ofNonZeroValue(T) -> optional(T)", rule::ONE,
        |_, value: any| (!is_zero(value)).then(|| value.clone());
    "optional.none() -> optional(dyn)", rule::ONE, |_| Value::NONE;
    "optional.unwrap(list(optional(T))) -> list(T)" "list(optional(T)).unwrapOpt() -> list(T)",
        rule::ONE, |_, list: list| unwrap(list)?;
    "optional(T).hasValue() -> bool", rule::ONE, |_, of: optional| of.is_some();
    "optional(T).value() -> T", rule::ONE,
        |_, of: optional| of.cloned().ok_or_else(|| Error::other("optional.none() dereference"))?;
}

pub(super) const LAZY: &[FunctionRow] = &[
    FunctionRow {
        signatures: &["optional(T).or(optional(T)) -> optional(T)"],
        rule: rule::ONE,
        run: Run::Lazy(|of| match of {
            Value::Optional(inner) => Ok(inner.is_some().then(|| of.clone())),
            _ => Err(Error::NoSuchOverload),
        }),
    },
    FunctionRow {
        signatures: &["optional(T).orValue(T) -> T"],
        rule: rule::ONE,
        run: Run::Lazy(|of| match of {
            Value::Optional(inner) => Ok(inner.as_deref().cloned()),
            _ => Err(Error::NoSuchOverload),
        }),
    },
];

/// The values of the non-empty optionals of a list.
fn unwrap<'a>(list: &ListValue<'a>) -> Result<Vec<Value<'a>>, Error> {
    let mut made = Vec::new();
    for element in list.iter() {
        match element {
            Value::Optional(inner) => made.extend(inner.as_deref().cloned()),
            _ => return Err(Error::NoSuchOverload),
        }
    }
    Ok(made)
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
