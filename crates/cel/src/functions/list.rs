//! Functions of lists, sets and maps.

use std::cmp::Ordering;

use jiff::SignedDuration;

use crate::DeclType;
use crate::budget::{Error, Machine, text_cost};
use crate::estimate::rule;
use crate::operators::{self, all_in, compare, equal, has_element};
use crate::tree::Op;
use crate::value::{ListValue, Value};

rows! {
    "size(list(T)) -> int" "list(T).size() -> int", rule::ONE, |_, list: list| list.len() as i64;
    "size(map(K,V)) -> int" "map(K,V).size() -> int", rule::ONE, |_, map: map| map.len() as i64;
    "list(T).indexOf(T) -> int", rule::SEARCHED,
        |m, list: list, wanted: any| index_of(m, list, wanted, false)?;
    "list(T).lastIndexOf(T) -> int", rule::SEARCHED,
        |m, list: list, wanted: any| index_of(m, list, wanted, true)?;
    "list(O).isSorted() -> bool", rule::SEARCHED, |_, list: list| is_sorted(list)?;
    "list(O).min() -> O", rule::SEARCHED, |_, list: list| extreme(list, "min", Ordering::is_lt)?;
    "list(O).max() -> O", rule::SEARCHED, |_, list: list| extreme(list, "max", Ordering::is_gt)?;
    "list(N).sum() -> N", rule::SEARCHED, |m, list: list| sum(m, list)?;
    "list(T).slice(int,int) -> list(T)", rule::SLICE,
        |_, list: list, start: int, end: int| slice(list, start, end)?;
    "list(list(T)).flatten() -> list(T)", rule::FLATTENED, |m, list: list| flat(m, list, 1)?;
    "list(dyn).flatten(int) -> list(dyn)", rule::FLATTENED,
        |m, list: list, depth: int| flat(m, list, depth)?;
    "list(O).sort() -> list(O)", rule::SORTED, |m, list: list| {
        m.spend(list.len() as u64 * 16)?;
        let mut elements: Vec<_> = list.iter().collect();
        operators::sort(&mut elements, |element| element)?;
        elements
    };
    "list(T).reverse() -> list(T)", rule::REVERSED, |_, list: list| {
        let mut elements: Vec<_> = list.iter().collect();
        elements.reverse();
        elements
    };
    "list(T).distinct() -> list(T)", rule::DISTINCT, |m, list: list| distinct(m, list)?;
    "list(T).first() -> optional(T)", rule::ONE, |_, list: list| list.get(0);
    "list(T).last() -> optional(T)", rule::ONE,
        |_, list: list| list.len().checked_sub(1).and_then(|at| list.get(at));
    "lists.range(int) -> list(int)", rule::RANGE, |m, end: int| {
        m.spend(u64::try_from(end).unwrap_or(0))?;
        (0..end).map(Value::Int).collect::<Vec<_>>()
    };
    "sets.contains(list(T),list(T)) -> bool", rule::sets::<1>,
        |m, all: list, some: list| all_in(some, all, m.budget)?;
    "sets.equivalent(list(T),list(T)) -> bool", rule::sets::<2>,
        |m, a: list, b: list| all_in(b, a, m.budget)? && all_in(a, b, m.budget)?;
    "sets.intersects(list(T),list(T)) -> bool", rule::sets::<1>, |m, a: list, b: list| {
        let mut found = false;
        for element in a.iter() {
            found = found || has_element(b, &element, m.budget)?;
        }
        found
    };
}

fn index_of<'a>(
    m: &mut Machine<'a, '_>,
    list: &ListValue<'a>,
    wanted: &Value<'a>,
    is_last: bool,
) -> Result<i64, Error> {
    let mut found = -1;
    for (at, element) in list.iter().enumerate() {
        if equal(&element, wanted, m.budget)? {
            found = at as i64;
            if !is_last {
                break;
            }
        }
    }
    Ok(found)
}

fn is_sorted(list: &ListValue<'_>) -> Result<bool, Error> {
    let elements: Vec<_> = list.iter().collect();
    let orders = elements.windows(2).map(|pair| compare(&pair[0], &pair[1]));
    let orders = orders.collect::<Option<Vec<_>>>().ok_or(Error::NoSuchOverload)?;
    Ok(orders.into_iter().all(Ordering::is_le))
}

fn distinct<'a>(m: &mut Machine<'a, '_>, list: &ListValue<'a>) -> Result<Vec<Value<'a>>, Error> {
    let mut kept: Vec<Value<'a>> = Vec::new();
    'elements: for element in list.iter() {
        for known in &kept {
            if equal(known, &element, m.budget)? {
                continue 'elements;
            }
        }
        kept.push(element);
    }
    Ok(kept)
}

fn slice<'a>(list: &ListValue<'a>, start: i64, end: i64) -> Result<Vec<Value<'a>>, Error> {
    let why = match (usize::try_from(start), usize::try_from(end)) {
        (Ok(start), Ok(end)) if start <= end && end <= list.len() => {
            return Ok(list.iter().skip(start).take(end - start).collect());
        }
        (Ok(start), Ok(end)) if start <= end => format!("list is length {}", list.len()),
        (Ok(_), Ok(_)) => "start index must be less than or equal to end index".to_owned(),
        _ => "negative indexes not supported".to_owned(),
    };
    Err(Error::other(format!("cannot slice({start}, {end}), {why}")))
}

fn sum<'a>(m: &mut Machine<'a, '_>, list: &ListValue<'a>) -> Result<Value<'a>, Error> {
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
        total = operators::binary(Op::Add, &total, &element, m.budget)?;
    }
    Ok(total)
}

fn extreme<'a>(
    list: &ListValue<'a>,
    name: &str,
    replaces: fn(Ordering) -> bool,
) -> Result<Value<'a>, Error> {
    let mut found: Option<Value<'a>> = None;
    for value in list.iter() {
        let order = found.as_ref().map(|best| compare(&value, best).ok_or(Error::NoSuchOverload));
        if order.transpose()?.is_none_or(replaces) {
            found = Some(value);
        }
    }
    found.ok_or_else(|| Error::other(format!("{name} called on empty list")))
}

pub(super) fn join(
    m: &mut Machine<'_, '_>,
    list: &ListValue<'_>,
    by: &str,
) -> Result<String, Error> {
    let mut made = String::new();
    for (at, element) in list.iter().enumerate() {
        let part = element.as_text().ok_or(Error::NoSuchOverload)?;
        m.spend(text_cost(part.len() + by.len()))?;
        if at > 0 {
            made.push_str(by);
        }
        made.push_str(part);
    }
    Ok(made)
}

fn flat<'a>(
    m: &mut Machine<'a, '_>,
    list: &ListValue<'a>,
    depth: i64,
) -> Result<Vec<Value<'a>>, Error> {
    if depth < 0 {
        return Err(Error::other("level must be non-negative"));
    }
    let mut made = Vec::new();
    flatten(m, list, depth, &mut made)?;
    Ok(made)
}

fn flatten<'a>(
    m: &mut Machine<'a, '_>,
    list: &ListValue<'a>,
    depth: i64,
    made: &mut Vec<Value<'a>>,
) -> Result<(), Error> {
    m.spend(list.len() as u64)?;
    for element in list.iter() {
        match element {
            Value::List(inner) if depth > 0 => flatten(m, &inner, depth - 1, made)?,
            element => made.push(element),
        }
    }
    Ok(())
}
