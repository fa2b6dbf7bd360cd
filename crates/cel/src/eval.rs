//! Evaluation: one walk over the tree, within a budget.
//!
//! Promise: it ends within its budget. Each node costs one; work proportional to a size is charged in
//! proportion, before it is done.

use std::collections::BTreeMap;

use super::budget::{Budget, Error, Machine, text_cost};
use super::overload::Run;
use super::scope::{self, Scope, bound};
use super::tree::{Call, Expr, Node};
use super::types::type_named;
use super::value::{ListValue, MapKey, Value};
use super::{DeclType, Program, functions, operators};

/// The variables of an evaluation.
#[derive(Clone, Debug, Default)]
pub struct Variables<'a> {
    roots: Vec<(&'a str, Result<Value<'a>, Error>)>,
}

impl<'a> Variables<'a> {
    /// Adds a variable.
    #[must_use]
    pub fn with(mut self, name: &'a str, value: Value<'a>) -> Variables<'a> {
        self.roots.push((name, Ok(value)));
        self
    }

    /// Adds a JSON value of this type.
    #[must_use]
    pub fn with_json(
        self,
        name: &'a str,
        json: &'a headwater_json::Value,
        shape: &'a DeclType,
    ) -> Variables<'a> {
        self.with(name, Value::read(json, shape))
    }

    /// Adds the result of an expression; using a failed one is the same error.
    pub fn add(&mut self, name: &'a str, value: Result<Value<'a>, Error>) {
        self.roots.push((name, value));
    }

    fn get(&self, name: &str) -> Option<&Result<Value<'a>, Error>> {
        self.roots.iter().rev().find(|(known, _)| *known == name).map(|(_, value)| value)
    }
}

pub(super) type Outer<'s, 'a> = scope::Outer<'s, Value<'a>>;
pub(super) type Found<'a> = Result<Value<'a>, Error>;

pub(super) fn run<'a>(
    program: &'a Program,
    variables: &Variables<'a>,
    budget: &mut Budget,
) -> Found<'a> {
    let machine = Machine { budget, patterns: &program.patterns };
    Evaluator { machine, variables }.eval(&program.root, None)
}

pub(super) struct Evaluator<'a, 'm> {
    pub(super) machine: Machine<'a, 'm>,
    variables: &'m Variables<'a>,
}

impl<'a> Evaluator<'a, '_> {
    pub(super) fn eval(&mut self, expr: &'a Expr, scope: Outer<'_, 'a>) -> Found<'a> {
        self.machine.spend(1)?;
        Ok(match &expr.node {
            Node::Literal(value) => value.clone(),
            Node::Name(name) => return self.name(name, scope),
            Node::Select { of, field, optional } => {
                return self.select(of, field, *optional, scope);
            }
            Node::Has { of, field } => return self.has(of, field, scope),
            Node::Index { of, key, optional } => return self.index(of, key, *optional, scope),
            Node::Not(inner) => match self.eval(inner, scope)? {
                Value::Bool(value) => Value::Bool(!value),
                _ => return Err(Error::NoSuchOverload),
            },
            Node::Negate(inner) => return operators::negate(&self.eval(inner, scope)?),
            Node::Binary(op, sides) => {
                let left = self.eval(&sides[0], scope)?;
                let right = self.eval(&sides[1], scope)?;
                return operators::binary(*op, &left, &right, self.machine.budget);
            }
            Node::All(terms) | Node::Any(terms) => {
                let decides = matches!(expr.node, Node::Any(_));
                return self.junction(terms, decides, |all, term| all.eval(term, scope));
            }
            Node::If(parts) => match self.eval(&parts[0], scope)? {
                Value::Bool(true) => return self.eval(&parts[1], scope),
                Value::Bool(false) => return self.eval(&parts[2], scope),
                _ => return Err(Error::NoSuchOverload),
            },
            Node::List(elements) => return self.list(elements, scope),
            Node::Map(entries) => return self.map(entries, scope),
            Node::Struct { fields, .. } => return self.structure(fields, scope),
            Node::Call(call) => return self.call(call, scope),
            Node::Fold(fold) => return self.fold(fold, scope),
            Node::OptMap { of, name, body, flat } => {
                return self.opt_map(of, name, body, *flat, scope);
            }
        })
    }

    fn name(&mut self, name: &str, scope: Outer<'_, 'a>) -> Found<'a> {
        if let Some(value) = bound(scope, name) {
            return Ok(value.clone());
        }
        if let Some(value) = self.variables.get(name) {
            return value.clone();
        }
        match type_named(name) {
            Some(name) => Ok(Value::Type(name)),
            None => Err(Error::other(format!("no such attribute(s): {name}"))),
        }
    }

    fn select(
        &mut self,
        of: &'a Expr,
        field: &str,
        optional: bool,
        scope: Outer<'_, 'a>,
    ) -> Found<'a> {
        let whose = of;
        let of = self.eval(of, scope)?;
        match of {
            Value::Map(map) => match (map.field(field), optional) {
                (Some(value), true) => Ok(Value::some(value)),
                (Some(value), false) => Ok(value),
                (None, true) => Ok(Value::NONE),
                (None, false) => Err(self.missing(whose, field)),
            },
            // Accessing an optional yields an optional.
            Value::Optional(None) => Ok(Value::NONE),
            Value::Optional(Some(inner)) => match &*inner {
                Value::Map(map) => Ok(map.field(field).map_or(Value::NONE, Value::some)),
                _ => Err(Error::NoSuchOverload),
            },
            Value::Null => Err(Error::NoSuchKey(field.to_owned())),
            Value::Other(other) if !optional => functions::authorizer::field(&other, field),
            _ => Err(Error::NoSuchOverload),
        }
    }

    /// The error of a missing field: one of `variables` may have failed.
    fn missing(&self, of: &Expr, field: &str) -> Error {
        let failed = match &of.node {
            Node::Name(name) => self.variables.get(&format!("{name}.{field}")),
            _ => None,
        };
        match failed {
            Some(Err(error)) => error.clone(),
            _ => Error::NoSuchKey(field.to_owned()),
        }
    }

    fn has(&mut self, of: &'a Expr, field: &str, scope: Outer<'_, 'a>) -> Found<'a> {
        match self.eval(of, scope)? {
            Value::Map(map) => Ok(Value::Bool(map.field(field).is_some())),
            Value::Optional(inner) => Ok(Value::Bool(inner.is_some_and(
                |inner| matches!(&*inner, Value::Map(map) if map.field(field).is_some()),
            ))),
            Value::Null => Ok(Value::Bool(false)),
            _ => Err(Error::NoSuchOverload),
        }
    }

    fn index(
        &mut self,
        of: &'a Expr,
        key: &'a Expr,
        optional: bool,
        scope: Outer<'_, 'a>,
    ) -> Found<'a> {
        let of = self.eval(of, scope)?;
        let key = self.eval(key, scope)?;
        match of {
            Value::Optional(None) => Ok(Value::NONE),
            Value::Optional(Some(inner)) => Ok(at(&inner, &key).map_or(Value::NONE, Value::some)),
            of if optional => Ok(at(&of, &key).map_or(Value::NONE, Value::some)),
            of => at(&of, &key),
        }
    }

    /// `&&`, `||`, `all` and `exists`: a deciding term hides the errors of others.
    pub(super) fn junction<'t, T>(
        &mut self,
        terms: &'t [T],
        decides: bool,
        eval: impl Fn(&mut Self, &'t T) -> Found<'a>,
    ) -> Found<'a> {
        let mut failed = None;
        for term in terms {
            match eval(self, term) {
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

    /// A value, or `None` if it is marked optional and absent.
    fn given(
        &mut self,
        expr: &'a Expr,
        optional: bool,
        scope: Outer<'_, 'a>,
    ) -> Result<Option<Value<'a>>, Error> {
        let value = self.eval(expr, scope)?;
        match (optional, value) {
            (false, value) => Ok(Some(value)),
            (true, Value::Optional(inner)) => Ok(inner.map(|inner| (*inner).clone())),
            (true, _) => Err(Error::NoSuchOverload),
        }
    }

    fn list(&mut self, elements: &'a [(Expr, bool)], scope: Outer<'_, 'a>) -> Found<'a> {
        let mut made = Vec::new();
        for (element, optional) in elements {
            made.extend(self.given(element, *optional, scope)?);
        }
        Ok(made.into())
    }

    fn map(&mut self, entries: &'a [(Expr, Expr, bool)], scope: Outer<'_, 'a>) -> Found<'a> {
        let mut made = BTreeMap::new();
        for (key, value, optional) in entries {
            let key = self.eval(key, scope)?.key();
            let key = key.ok_or_else(|| Error::other("unsupported key type"))?;
            let Some(value) = self.given(value, *optional, scope)? else { continue };
            if made.insert(key, value).is_some() {
                return Err(Error::other("Failed with repeated key"));
            }
        }
        Ok(made.into())
    }

    fn structure(
        &mut self,
        fields: &'a [(Box<str>, Expr, bool)],
        scope: Outer<'_, 'a>,
    ) -> Found<'a> {
        let mut made = BTreeMap::new();
        for (field, value, optional) in fields {
            if let Some(value) = self.given(value, *optional, scope)? {
                let field = super::decl_type::unescape(field).unwrap_or_else(|| field.to_string());
                made.insert(MapKey::Text(field.into()), value);
            }
        }
        Ok(made.into())
    }

    fn call(&mut self, call: &'a Call, scope: Outer<'_, 'a>) -> Found<'a> {
        let mut values = Vec::with_capacity(call.args.len());
        for arg in &call.args {
            values.push(self.eval(arg, scope)?);
            if let [value] = &values[..]
                && let Some(Run::Lazy(decide)) = call.overloads.first().map(|known| known.run)
            {
                return match (decide(value)?, call.given()) {
                    (None, [other]) => self.eval(other, scope),
                    (found, _) => found.ok_or(Error::NoSuchOverload),
                };
            }
        }
        match values.first() {
            Some(Value::Text(text)) => self.machine.spend(text_cost(text.len()))?,
            Some(Value::List(list)) => self.machine.spend(list.len() as u64)?,
            _ => {}
        }
        // A value may have another type than its schema declares, so all overloads are candidates.
        let found = call.overloads.iter().find(|known| known.accepts(call.is_method, &values));
        match found.map(|overload| overload.run) {
            Some(Run::Strict(run)) => run(&mut self.machine, &values),
            _ => Err(Error::NoSuchOverload),
        }
    }

    fn opt_map(
        &mut self,
        of: &'a Expr,
        name: &'a str,
        body: &'a Expr,
        flat: bool,
        scope: Outer<'_, 'a>,
    ) -> Found<'a> {
        match self.eval(of, scope)? {
            Value::Optional(None) => Ok(Value::NONE),
            Value::Optional(Some(inner)) => {
                let value = (*inner).clone();
                let made = self.eval(body, Some(&Scope { name, value, outer: scope }))?;
                Ok(if flat { made } else { Value::some(made) })
            }
            _ => Err(Error::NoSuchOverload),
        }
    }
}

/// The value of `of[key]`.
fn at<'a>(of: &Value<'a>, key: &Value<'_>) -> Found<'a> {
    match of {
        Value::Map(map) => map.get(key).ok_or_else(|| match key.key() {
            Some(key) => Error::NoSuchKey(key.text()),
            None => Error::NoSuchOverload,
        }),
        Value::List(list) => element(list, key),
        _ => Err(Error::NoSuchOverload),
    }
}

fn element<'a>(list: &ListValue<'a>, key: &Value<'_>) -> Found<'a> {
    let at = match key {
        Value::Int(at) => Some(*at),
        Value::Uint(at) => i64::try_from(*at).ok(),
        Value::Double(at) if at.fract() == 0.0 => Some(*at as i64),
        _ => return Err(Error::NoSuchOverload),
    };
    let found = at.and_then(|at| usize::try_from(at).ok()).and_then(|at| list.get(at));
    found.ok_or_else(|| Error::other(format!("index out of bounds: {}", at.unwrap_or(i64::MAX))))
}
