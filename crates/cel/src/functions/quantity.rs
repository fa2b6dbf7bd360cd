//! Quantities.

use super::{Found, other};
use crate::budget::Error;
use crate::value::{Other, Value};

const NANO: i128 = 1_000_000_000;

pub(super) fn of_quantity<'a>(name: &str, nano: i128, rest: &[Value<'_>]) -> Found<'a> {
    let argument = match rest {
        [] => None,
        [Value::Int(value)] => Some(i128::from(*value) * NANO),
        [Value::Other(value)] => match &**value {
            Other::Quantity(nano) => Some(*nano),
            _ => return Err(Error::NoSuchOverload),
        },
        _ => return Err(Error::NoSuchOverload),
    };
    let made = |nano: Option<i128>| match nano {
        Some(nano) => Ok(other(Other::Quantity(nano))),
        None => Err(Error::other("quantity overflow")),
    };
    Ok(match (name, argument) {
        ("isInteger", None) => (nano % NANO == 0 && i64::try_from(nano / NANO).is_ok()).into(),
        ("asInteger", None) => match i64::try_from(nano / NANO) {
            Ok(value) if nano % NANO == 0 => Value::Int(value),
            _ => return Err(Error::other("cannot convert value to integer")),
        },
        ("asApproximateFloat", None) => Value::Double(nano as f64 / NANO as f64),
        ("sign", None) => Value::Int(nano.signum() as i64),
        ("add", Some(by)) => return made(nano.checked_add(by)),
        ("sub", Some(by)) => return made(nano.checked_sub(by)),
        ("compareTo", Some(by)) => Value::Int(nano.cmp(&by) as i64),
        ("isLessThan", Some(by)) => (nano < by).into(),
        ("isGreaterThan", Some(by)) => (nano > by).into(),
        _ => return Err(Error::NoSuchOverload),
    })
}
