//! Functions of lists and sets.

use std::cmp::Ordering;

use jiff::SignedDuration;

use super::Found;
use crate::DeclType;
use crate::budget::Error;
use crate::eval::Machine;
use crate::operators::{self, compare, contains, equal, text_cost};
use crate::tree::Op;
use crate::value::{ListValue, Value};

/// Evaluates a function of a list.
pub(super) fn call<'a>(
    machine: &mut Machine<'a, '_>,
    name: &str,
    list: &ListValue<'a>,
    rest: &[Value<'a>],
) -> Found<'a> {
    Ok(match (name, rest) {
        ("size", []) => return super::size(list.len()),
        ("isSorted", []) => {
            let elements: Vec<_> = list.iter().collect();
            let orders = elements.windows(2).map(|pair| compare(&pair[0], &pair[1]));
            let orders = orders.collect::<Option<Vec<_>>>().ok_or(Error::NoSuchOverload)?;
            orders.into_iter().all(Ordering::is_le).into()
        }
        ("sum", []) => return sum(machine, list),
        ("min" | "max", []) => return extreme(name == "max", list.iter(), name),
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
        ("optional.unwrap" | "unwrapOpt", []) => return unwrap(list),
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
            if depth < 0 {
                return Err(Error::other("level must be non-negative"));
            }
            let mut made = Vec::new();
            flatten(machine, list, depth, &mut made)?;
            made.into()
        }
        ("slice", [Value::Int(start), Value::Int(end)]) => {
            return slice(list, *start, *end);
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
    some: &ListValue<'a>,
    all: &ListValue<'a>,
) -> Result<bool, Error> {
    let holder = Value::List(all.clone());
    for element in some.iter() {
        if !contains(&holder, &element, machine.budget)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn slice<'a>(list: &ListValue<'a>, start: i64, end: i64) -> Found<'a> {
    let why = match (usize::try_from(start), usize::try_from(end)) {
        (Ok(start), Ok(end)) if start <= end && end <= list.len() => {
            return Ok(list.iter().skip(start).take(end - start).collect::<Vec<_>>().into());
        }
        (Ok(start), Ok(end)) if start <= end => format!("list is length {}", list.len()),
        (Ok(_), Ok(_)) => "start index must be less than or equal to end index".to_owned(),
        _ => "negative indexes not supported".to_owned(),
    };
    Err(Error::other(format!("cannot slice({start}, {end}), {why}")))
}

/// The values of the non-empty optionals of a list.
fn unwrap<'a>(list: &ListValue<'a>) -> Found<'a> {
    let mut made = Vec::new();
    for element in list.iter() {
        match element {
            Value::Optional(Some(inner)) => made.push((*inner).clone()),
            Value::Optional(None) => {}
            _ => return Err(Error::NoSuchOverload),
        }
    }
    Ok(made.into())
}

fn sum<'a>(machine: &mut Machine<'a, '_>, list: &ListValue<'a>) -> Found<'a> {
    let mut elements = list.iter();
    let Some(mut total) = elements.next() else {
        // The sum of an empty list has the declared element type.
        return Ok(match list.items() {
            Some(DeclType::Duration) => Value::Duration(SignedDuration::ZERO),
            Some(DeclType::Double) => Value::Double(0.0),
            _ => Value::Int(0),
        });
    };
    for element in elements {
        total = operators::binary(Op::Add, &total, &element, machine.budget)?;
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

fn join<'a>(machine: &mut Machine<'a, '_>, list: &ListValue<'a>, by: &str) -> Found<'a> {
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
    list: &ListValue<'a>,
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
