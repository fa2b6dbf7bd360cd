//! Functions of semantic versions.

use super::Found;
use crate::budget::Error;
use crate::value::semver::Semver;
use crate::value::{Other, Value};

pub(super) fn of_semver<'a>(name: &str, version: &Semver, rest: &[Value<'_>]) -> Found<'a> {
    let order = match rest {
        [Value::Other(value)] => match &**value {
            Other::Semver(other) => Some(version.compare(other)),
            _ => return Err(Error::NoSuchOverload),
        },
        [] => None,
        _ => return Err(Error::NoSuchOverload),
    };
    let [major, minor, patch] = version.numbers.map(|number| number as i64);
    Ok(match (name, order) {
        ("major", None) => Value::Int(major),
        ("minor", None) => Value::Int(minor),
        ("patch", None) => Value::Int(patch),
        ("compareTo", Some(order)) => Value::Int(order as i64),
        ("isLessThan", Some(order)) => order.is_lt().into(),
        ("isGreaterThan", Some(order)) => order.is_gt().into(),
        _ => return Err(Error::NoSuchOverload),
    })
}
