//! Operators: comparison and arithmetic.

use std::cmp::Ordering;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::budget::{Budget, Error, text_cost};
use super::decl_type::Same;
use super::time;
use super::tree::Op;
use super::value::{ListValue, MapValue, Other, Value, compare_numbers};

type Found<'a> = Result<Value<'a>, Error>;

pub(super) fn negate<'a>(value: &Value<'_>) -> Found<'a> {
    match value {
        Value::Int(value) => value.checked_neg().map(Value::Int).ok_or_else(overflow),
        Value::Double(value) => Ok(Value::Double(-value)),
        _ => Err(Error::NoSuchOverload),
    }
}

fn overflow() -> Error {
    Error::other("integer overflow")
}

fn overflow_of(what: &str) -> Error {
    Error::other(format!("{what} overflow"))
}

pub(super) fn binary<'a>(
    op: Op,
    left: &Value<'a>,
    right: &Value<'a>,
    budget: &mut Budget,
) -> Found<'a> {
    let ordered = |is: fn(Ordering) -> bool| match compare(left, right) {
        Some(order) => Ok(Value::Bool(is(order))),
        // NaN is not ordered.
        None if is_number(left) && is_number(right) => Ok(Value::Bool(false)),
        None => Err(Error::NoSuchOverload),
    };
    match op {
        Op::Equal => equal(left, right, budget).map(Value::Bool),
        Op::NotEqual => equal(left, right, budget).map(|same| Value::Bool(!same)),
        Op::Less => ordered(Ordering::is_lt),
        Op::LessEqual => ordered(Ordering::is_le),
        Op::Greater => ordered(Ordering::is_gt),
        Op::GreaterEqual => ordered(Ordering::is_ge),
        Op::In => contains(right, left, budget).map(Value::Bool),
        Op::Add => add(left, right, budget),
        Op::Subtract => subtract(left, right),
        Op::Multiply | Op::Divide | Op::Modulo => multiply(op, left, right),
    }
}

fn is_number(value: &Value<'_>) -> bool {
    matches!(value, Value::Int(_) | Value::Uint(_) | Value::Double(_))
}

/// Whether two values are equal. Values of different types are not.
pub(super) fn equal(a: &Value<'_>, b: &Value<'_>, budget: &mut Budget) -> Result<bool, Error> {
    budget.spend(1)?;
    Ok(match (a, b) {
        (Value::Null, Value::Null) => true,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::Text(a), Value::Text(b)) => {
            budget.spend(text_cost(a.len().min(b.len())))?;
            **a == **b
        }
        (Value::Bytes(a), Value::Bytes(b)) => {
            budget.spend(text_cost(a.len().min(b.len())))?;
            a == b
        }
        (Value::List(a), Value::List(b)) => return equal_lists(a, b, budget),
        (Value::Map(a), Value::Map(b)) => return equal_maps(a, b, budget),
        (Value::Duration(a), Value::Duration(b)) => a == b,
        (Value::Timestamp(a), Value::Timestamp(b)) => a == b,
        (Value::Type(a), Value::Type(b)) => a == b,
        (Value::Optional(None), Value::Optional(None)) => true,
        (Value::Optional(Some(a)), Value::Optional(Some(b))) => return equal(a, b, budget),
        (Value::Other(a), Value::Other(b)) => equal_others(a, b),
        _ => compare_numbers(a, b) == Some(Ordering::Equal),
    })
}

fn equal_others(a: &Arc<Other>, b: &Arc<Other>) -> bool {
    match (&**a, &**b) {
        (Other::Quantity(a), Other::Quantity(b)) => a == b,
        (Other::Url(a), Other::Url(b)) => a.text == b.text,
        (Other::Ip(a), Other::Ip(b)) => a == b,
        (Other::Cidr(a, m), Other::Cidr(b, n)) => a == b && m == n,
        (Other::Semver(a), Other::Semver(b)) => a.compare(b).is_eq(),
        (Other::Format(a), Other::Format(b)) => a == b,
        _ => false,
    }
}

fn equal_lists(a: &ListValue<'_>, b: &ListValue<'_>, budget: &mut Budget) -> Result<bool, Error> {
    if a.len() != b.len() {
        return Ok(false);
    }
    if let (Same::Set | Same::Map(_), _) | (_, Same::Set | Same::Map(_)) = (a.same(), b.same()) {
        return all_in(a, b, budget);
    }
    for (a, b) in a.iter().zip(b.iter()) {
        if !equal(&a, &b, budget)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether every element of a list is in another.
pub(super) fn all_in(
    some: &ListValue<'_>,
    all: &ListValue<'_>,
    budget: &mut Budget,
) -> Result<bool, Error> {
    for element in some.iter() {
        if !has_element(all, &element, budget)? {
            return Ok(false);
        }
    }
    Ok(true)
}

pub(super) fn has_element(
    list: &ListValue<'_>,
    value: &Value<'_>,
    budget: &mut Budget,
) -> Result<bool, Error> {
    for element in list.iter() {
        if equal(&element, value, budget)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn equal_maps(a: &MapValue<'_>, b: &MapValue<'_>, budget: &mut Budget) -> Result<bool, Error> {
    if a.len() != b.len() {
        return Ok(false);
    }
    for key in a.keys() {
        let (Some(a), Some(b)) = (a.get(&key), b.get(&key)) else { return Ok(false) };
        if !equal(&a, &b, budget)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Compares two values, if they are ordered.
pub(super) fn compare(a: &Value<'_>, b: &Value<'_>) -> Option<Ordering> {
    match (a, b) {
        (Value::Bool(a), Value::Bool(b)) => Some(a.cmp(b)),
        (Value::Text(a), Value::Text(b)) => Some((**a).cmp(&**b)),
        (Value::Bytes(a), Value::Bytes(b)) => Some(a.cmp(b)),
        (Value::Duration(a), Value::Duration(b)) => Some(a.cmp(b)),
        (Value::Timestamp(a), Value::Timestamp(b)) => Some(a.cmp(b)),
        (Value::Other(a), Value::Other(b)) => match (&**a, &**b) {
            (Other::Quantity(a), Other::Quantity(b)) => Some(a.cmp(b)),
            (Other::Semver(a), Other::Semver(b)) => Some(a.compare(b)),
            _ => None,
        },
        _ => compare_numbers(a, b),
    }
}

/// Sorts elements by their keys, which must be ordered.
pub(super) fn sort<'a, T>(elements: &mut [T], key: fn(&T) -> &Value<'a>) -> Result<(), Error> {
    let mut failed = false;
    elements.sort_by(|a, b| {
        compare(key(a), key(b)).unwrap_or_else(|| {
            failed = true;
            Ordering::Equal
        })
    });
    if failed { Err(Error::NoSuchOverload) } else { Ok(()) }
}

/// `value in holder`.
fn contains(holder: &Value<'_>, value: &Value<'_>, budget: &mut Budget) -> Result<bool, Error> {
    match holder {
        Value::List(list) => has_element(list, value, budget),
        Value::Map(map) => Ok(map.get(value).is_some()),
        _ => Err(Error::NoSuchOverload),
    }
}

fn add<'a>(left: &Value<'a>, right: &Value<'a>, budget: &mut Budget) -> Found<'a> {
    match (left, right) {
        (Value::Int(a), Value::Int(b)) => a.checked_add(*b).map(Value::Int).ok_or_else(overflow),
        (Value::Uint(a), Value::Uint(b)) => {
            let made = a.checked_add(*b).map(Value::Uint);
            made.ok_or_else(|| overflow_of("unsigned integer"))
        }
        (Value::Double(a), Value::Double(b)) => Ok(Value::Double(a + b)),
        (Value::Text(a), Value::Text(b)) => {
            budget.spend(text_cost(a.len() + b.len()))?;
            Ok(format!("{}{}", &**a, &**b).into())
        }
        (Value::Bytes(a), Value::Bytes(b)) => {
            budget.spend(text_cost(a.len() + b.len()))?;
            Ok(Value::Bytes([&**a, &**b].concat().into()))
        }
        (Value::List(a), Value::List(b)) => join(a, b, budget),
        (Value::Duration(a), Value::Duration(b)) => span(a.checked_add(*b)),
        (Value::Timestamp(time), Value::Duration(span))
        | (Value::Duration(span), Value::Timestamp(time)) => {
            self::time(time.checked_add(*span).ok())
        }
        _ => Err(Error::NoSuchOverload),
    }
}

fn span<'a>(made: Option<SignedDuration>) -> Found<'a> {
    let made = made.and_then(time::span_in_range);
    made.map(Value::Duration).ok_or_else(|| overflow_of("duration"))
}

fn time<'a>(made: Option<Timestamp>) -> Found<'a> {
    let made = made.and_then(time::in_range);
    made.map(Value::Timestamp).ok_or_else(|| overflow_of("timestamp"))
}

/// Concatenates lists; set and map lists of a schema are merged, and the right one wins.
fn join<'a>(a: &ListValue<'a>, b: &ListValue<'a>, budget: &mut Budget) -> Found<'a> {
    budget.spend((a.len() + b.len()) as u64)?;
    let mut made: Vec<Value<'a>> = a.iter().collect();
    match a.same() {
        Same::Atomic => made.extend(b.iter()),
        Same::Set => {
            for element in b.iter() {
                if !has_element(a, &element, budget)? {
                    made.push(element);
                }
            }
        }
        Same::Map(keys) => {
            for element in b.iter() {
                let mut place = None;
                for (at, known) in made.iter().enumerate() {
                    if same_keys(keys, known, &element, budget)? {
                        place = Some(at);
                        break;
                    }
                }
                match place {
                    Some(at) => made[at] = element,
                    None => made.push(element),
                }
            }
        }
    }
    Ok(made.into())
}

fn same_keys(
    keys: &[Box<str>],
    a: &Value<'_>,
    b: &Value<'_>,
    budget: &mut Budget,
) -> Result<bool, Error> {
    let (Value::Map(a), Value::Map(b)) = (a, b) else { return Ok(false) };
    for key in keys {
        let key = Value::from(&**key);
        let same = match (a.get(&key), b.get(&key)) {
            (Some(a), Some(b)) => equal(&a, &b, budget)?,
            (None, None) => true,
            _ => false,
        };
        if !same {
            return Ok(false);
        }
    }
    Ok(true)
}

fn subtract<'a>(left: &Value<'_>, right: &Value<'_>) -> Found<'a> {
    match (left, right) {
        (Value::Int(a), Value::Int(b)) => a.checked_sub(*b).map(Value::Int).ok_or_else(overflow),
        (Value::Uint(a), Value::Uint(b)) => {
            let made = a.checked_sub(*b).map(Value::Uint);
            made.ok_or_else(|| overflow_of("unsigned integer"))
        }
        (Value::Double(a), Value::Double(b)) => Ok(Value::Double(a - b)),
        (Value::Duration(a), Value::Duration(b)) => span(a.checked_sub(*b)),
        (Value::Timestamp(a), Value::Timestamp(b)) => span(Some(a.duration_since(*b))),
        (Value::Timestamp(time), Value::Duration(span)) => self::time(time.checked_sub(*span).ok()),
        _ => Err(Error::NoSuchOverload),
    }
}

fn multiply<'a>(op: Op, left: &Value<'_>, right: &Value<'_>) -> Found<'a> {
    let by_zero =
        || Error::other(if op == Op::Modulo { "modulus by zero" } else { "division by zero" });
    match (op, left, right) {
        (Op::Multiply, Value::Int(a), Value::Int(b)) => {
            a.checked_mul(*b).map(Value::Int).ok_or_else(overflow)
        }
        (Op::Multiply, Value::Uint(a), Value::Uint(b)) => {
            a.checked_mul(*b).map(Value::Uint).ok_or_else(|| overflow_of("unsigned integer"))
        }
        (Op::Multiply, Value::Double(a), Value::Double(b)) => Ok(Value::Double(a * b)),
        (Op::Divide, Value::Double(a), Value::Double(b)) => Ok(Value::Double(a / b)),
        (_, Value::Int(_), Value::Int(0)) | (_, Value::Uint(_), Value::Uint(0)) => Err(by_zero()),
        (Op::Divide, Value::Int(a), Value::Int(b)) => {
            a.checked_div(*b).map(Value::Int).ok_or_else(overflow)
        }
        (Op::Divide, Value::Uint(a), Value::Uint(b)) => Ok(Value::Uint(a / b)),
        (Op::Modulo, Value::Int(a), Value::Int(b)) => {
            a.checked_rem(*b).map(Value::Int).ok_or_else(overflow)
        }
        (Op::Modulo, Value::Uint(a), Value::Uint(b)) => Ok(Value::Uint(a % b)),
        _ => Err(Error::NoSuchOverload),
    }
}
