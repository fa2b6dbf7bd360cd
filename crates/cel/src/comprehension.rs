//! Macros over lists and maps: `all`, `exists`, `map`, `filter` and their kin.
//!
//! Promise: every step is charged; a deciding element of a quantifier hides the errors of others.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::budget::Error;
use super::eval::{Found, Machine, Outer, Scope};
use super::operators;
use super::tree::{Expr, Fold, FoldKind};
use super::value::Value;

/// One step of a macro.
struct Step<'a> {
    first: Value<'a>,
    second: Option<Value<'a>>,
}

impl<'a> Machine<'a, '_> {
    pub(super) fn fold(&mut self, fold: &'a Fold, scope: Outer<'_, 'a>) -> Found<'a> {
        let steps = self.steps(fold, scope)?;
        match fold.kind {
            FoldKind::All => self.quantify(fold, &steps, false, scope),
            FoldKind::Exists => self.quantify(fold, &steps, true, scope),
            FoldKind::ExistsOne => self.exists_one(fold, &steps, scope),
            FoldKind::Map | FoldKind::Filter => self.collect(fold, &steps, scope),
            FoldKind::TransformMap | FoldKind::TransformMapEntry => {
                self.transform_map(fold, &steps, scope)
            }
            FoldKind::SortBy => self.sort_by(fold, &steps, scope),
        }
    }

    /// The values of a macro's variables, step by step.
    fn steps(&mut self, fold: &'a Fold, scope: Outer<'_, 'a>) -> Result<Vec<Step<'a>>, Error> {
        let range = self.eval(&fold.range, scope)?;
        let is_pair = fold.second.is_some();
        match range {
            Value::List(list) => {
                self.budget.spend(list.len() as u64)?;
                let step = |(at, value)| match is_pair {
                    true => Step { first: Value::Int(at as i64), second: Some(value) },
                    false => Step { first: value, second: None },
                };
                Ok(list.iter().enumerate().map(step).collect())
            }
            Value::Map(map) => {
                self.budget.spend(map.len() as u64)?;
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

    fn quantify(
        &mut self,
        fold: &'a Fold,
        steps: &[Step<'a>],
        decides: bool,
        scope: Outer<'_, 'a>,
    ) -> Found<'a> {
        let mut failed = None;
        for step in steps {
            match self.within(fold, &fold.body, step, scope) {
                Ok(Value::Bool(value)) if value == decides => return Ok(Value::Bool(value)),
                Ok(Value::Bool(_)) => {}
                Ok(_) => drop(failed.get_or_insert(Error::NoSuchOverload)),
                Err(Error::CostExceeded) => return Err(Error::CostExceeded),
                Err(error) => drop(failed.get_or_insert(error)),
            }
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(Value::Bool(!decides)),
        }
    }

    fn is_true(
        &mut self,
        fold: &'a Fold,
        expr: &'a Expr,
        step: &Step<'a>,
        scope: Outer<'_, 'a>,
    ) -> Result<bool, Error> {
        match self.within(fold, expr, step, scope)? {
            Value::Bool(value) => Ok(value),
            _ => Err(Error::NoSuchOverload),
        }
    }

    fn exists_one(
        &mut self,
        fold: &'a Fold,
        steps: &[Step<'a>],
        scope: Outer<'_, 'a>,
    ) -> Found<'a> {
        let mut count = 0;
        for step in steps {
            count += u32::from(self.is_true(fold, &fold.body, step, scope)?);
        }
        Ok(Value::Bool(count == 1))
    }

    fn collect(&mut self, fold: &'a Fold, steps: &[Step<'a>], scope: Outer<'_, 'a>) -> Found<'a> {
        let mut made = Vec::new();
        for step in steps {
            if fold.kind == FoldKind::Filter {
                if self.is_true(fold, &fold.body, step, scope)? {
                    made.push(step.first.clone());
                }
                continue;
            }
            if let Some(filter) = &fold.filter
                && !self.is_true(fold, filter, step, scope)?
            {
                continue;
            }
            made.push(self.within(fold, &fold.body, step, scope)?);
        }
        Ok(made.into())
    }

    fn transform_map(
        &mut self,
        fold: &'a Fold,
        steps: &[Step<'a>],
        scope: Outer<'_, 'a>,
    ) -> Found<'a> {
        let mut made = BTreeMap::new();
        for step in steps {
            if let Some(filter) = &fold.filter
                && !self.is_true(fold, filter, step, scope)?
            {
                continue;
            }
            let value = self.within(fold, &fold.body, step, scope)?;
            if fold.kind == FoldKind::TransformMap {
                let key = step.first.key().ok_or(Error::NoSuchOverload)?;
                made.insert(key, value);
                continue;
            }
            let Value::Map(entries) = value else { return Err(Error::NoSuchOverload) };
            self.budget.spend(entries.len() as u64)?;
            for key in entries.keys() {
                let (Some(name), Some(value)) = (key.key(), entries.get(&key)) else { continue };
                let shown = name.text();
                if made.insert(name, value).is_some() {
                    return Err(Error::other(format!("insert failed: key {shown} already exists")));
                }
            }
        }
        Ok(made.into())
    }

    fn sort_by(&mut self, fold: &'a Fold, steps: &[Step<'a>], scope: Outer<'_, 'a>) -> Found<'a> {
        let mut keyed = Vec::with_capacity(steps.len());
        for step in steps {
            keyed.push((self.within(fold, &fold.body, step, scope)?, step.first.clone()));
        }
        self.budget.spend(keyed.len() as u64 * 16)?;
        let mut failed = false;
        keyed.sort_by(|(a, _), (b, _)| {
            operators::compare(a, b).unwrap_or_else(|| {
                failed = true;
                Ordering::Equal
            })
        });
        match failed {
            true => Err(Error::NoSuchOverload),
            false => Ok(keyed.into_iter().map(|(_, value)| value).collect::<Vec<_>>().into()),
        }
    }
}
