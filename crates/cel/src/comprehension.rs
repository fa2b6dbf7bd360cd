//! Macros over lists and maps: `all`, `exists`, `map`, `filter` and their kin.
//!
//! Promise: every step is charged; a deciding element of a quantifier hides the errors of others.

use std::collections::BTreeMap;

use super::budget::Error;
use super::eval::{Evaluator, Found, Outer};
use super::operators;
use super::scope::Scope;
use super::tree::{Expr, Fold, FoldKind};
use super::value::{MapKey, Value};

/// One step of a macro.
struct Step<'a> {
    first: Value<'a>,
    second: Option<Value<'a>>,
}

impl<'a> Evaluator<'a, '_> {
    pub(super) fn fold(&mut self, fold: &'a Fold, scope: Outer<'_, 'a>) -> Found<'a> {
        let steps = self.steps(fold, scope)?;
        match fold.kind {
            FoldKind::All | FoldKind::Exists => {
                let (body, decides) = (&fold.body, fold.kind == FoldKind::Exists);
                self.junction(&steps, decides, |all, step| all.within(fold, body, step, scope))
            }
            _ => self.collect(fold, &steps, scope),
        }
    }

    /// The values of a macro's variables, step by step.
    fn steps(&mut self, fold: &'a Fold, scope: Outer<'_, 'a>) -> Result<Vec<Step<'a>>, Error> {
        let range = self.eval(&fold.range, scope)?;
        let is_pair = fold.second.is_some();
        match range {
            Value::List(list) => {
                self.machine.spend(list.len() as u64)?;
                let step = |(at, value)| match is_pair {
                    true => Step { first: Value::Int(at as i64), second: Some(value) },
                    false => Step { first: value, second: None },
                };
                Ok(list.iter().enumerate().map(step).collect())
            }
            Value::Map(map) => {
                self.machine.spend(map.len() as u64)?;
                let step = |key: Value<'a>| {
                    let second = if is_pair { map.get(&key) } else { None };
                    Step { first: key, second }
                };
                Ok(map.keys().into_iter().map(step).collect())
            }
            _ => Err(Error::NoSuchOverload),
        }
    }

    /// Evaluates an expression with the macro's variables bound.
    fn within(
        &mut self,
        fold: &'a Fold,
        expr: &'a Expr,
        step: &Step<'a>,
        scope: Outer<'_, 'a>,
    ) -> Found<'a> {
        let first = Scope { name: &fold.first, value: step.first.clone(), outer: scope };
        match (&fold.second, &step.second) {
            (Some(name), Some(value)) => {
                let second = Scope { name, value: value.clone(), outer: Some(&first) };
                self.eval(expr, Some(&second))
            }
            _ => self.eval(expr, Some(&first)),
        }
    }

    fn collect(&mut self, fold: &'a Fold, steps: &[Step<'a>], scope: Outer<'_, 'a>) -> Found<'a> {
        let (mut count, mut list, mut keyed, mut map) = (0, vec![], vec![], BTreeMap::new());
        for step in steps {
            if let Some(filter) = &fold.filter
                && !truth(&self.within(fold, filter, step, scope)?)?
            {
                continue;
            }
            let value = self.within(fold, &fold.body, step, scope)?;
            match fold.kind {
                FoldKind::ExistsOne => count += u32::from(truth(&value)?),
                FoldKind::Filter if truth(&value)? => list.push(step.first.clone()),
                FoldKind::Map => list.push(value),
                FoldKind::SortBy => keyed.push((value, step.first.clone())),
                FoldKind::TransformMap => {
                    map.insert(step.first.key().ok_or(Error::NoSuchOverload)?, value);
                }
                FoldKind::TransformMapEntry => self.insert(&mut map, &value)?,
                FoldKind::All | FoldKind::Exists | FoldKind::Filter => {}
            }
        }
        Ok(match fold.kind {
            FoldKind::ExistsOne => (count == 1).into(),
            FoldKind::TransformMap | FoldKind::TransformMapEntry => map.into(),
            FoldKind::SortBy => {
                self.machine.spend(keyed.len() as u64 * 16)?;
                operators::sort(&mut keyed, |(key, _)| key)?;
                keyed.into_iter().map(|(_, value)| value).collect::<Vec<_>>().into()
            }
            _ => list.into(),
        })
    }

    /// Adds the entries of a map, whose keys must be new.
    fn insert(
        &mut self,
        made: &mut BTreeMap<MapKey, Value<'a>>,
        entries: &Value<'a>,
    ) -> Result<(), Error> {
        let Value::Map(entries) = entries else { return Err(Error::NoSuchOverload) };
        self.machine.spend(entries.len() as u64)?;
        for key in entries.keys() {
            let (Some(name), Some(value)) = (key.key(), entries.get(&key)) else { continue };
            let shown = name.text();
            if made.insert(name, value).is_some() {
                return Err(Error::other(format!("insert failed: key {shown} already exists")));
            }
        }
        Ok(())
    }
}

fn truth(value: &Value<'_>) -> Result<bool, Error> {
    match value {
        Value::Bool(value) => Ok(*value),
        _ => Err(Error::NoSuchOverload),
    }
}
