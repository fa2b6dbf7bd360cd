//! The type check of an expression: names, fields and types.
//!
//! A value whose type the declarations do not determine is `dyn`; the evaluation checks it.

use super::environment::Environment;
use super::overload::resolve;
use super::scope::{self, Scope, bound};
use super::tree::{Call, Expr, Fold, FoldKind, Node};
use super::types::{BOOL, ORDERED, STRING, Ty};
use super::typing::{binary, either, element_of, field_of, folded};
use super::value::Value;
use super::{Fault, time};

/// Checks an expression and returns the type of its result.
pub(super) fn ty<'s>(root: &Expr, known: &Environment<'s>) -> Result<Ty<'s>, Fault> {
    Checker { known, mixes: false }.ty(root, None)
}

type Outer<'o, 's> = scope::Outer<'o, Ty<'s>>;

struct Checker<'k, 's> {
    known: &'k Environment<'s>,
    /// Whether the elements of a list may have different types, as in the arguments of `format`.
    mixes: bool,
}

impl<'s> Checker<'_, 's> {
    fn ty(&self, expr: &Expr, scope: Outer<'_, 's>) -> Result<Ty<'s>, Fault> {
        let at = expr.at;
        Ok(match &expr.node {
            Node::Literal(value) => Ty::Basic(value.type_name()),
            Node::Name(name) => return self.name(name, at, scope),
            Node::Select { of, field, optional } => {
                if let Some(found) = self.variable(of, field, scope) {
                    let found = found.map_err(|why| Fault::new(at, why))?;
                    return Ok(if *optional { Ty::optional(found) } else { found });
                }
                let of = self.ty(of, scope)?;
                return field_of(&of, field, *optional).map_err(|why| Fault::new(at, why));
            }
            Node::Has { of, field } => {
                let of = self.ty(of, scope)?;
                field_of(&of, field, false).map_err(|why| Fault::new(at, why))?;
                BOOL
            }
            Node::Index { of, key, optional } => {
                let (of, key) = (self.ty(of, scope)?, self.ty(key, scope)?);
                let name = if *optional { "_[?_]" } else { "_[_]" };
                let found = element_of(&of, &key, *optional);
                found.ok_or_else(|| no_overload(at, name, &[&of, &key]))?
            }
            Node::Not(inner) => {
                let inner = self.ty(inner, scope)?;
                match inner.may_be("bool") {
                    true => BOOL,
                    false => return Err(no_overload(at, "!_", &[&inner])),
                }
            }
            Node::Negate(inner) => {
                let inner = self.ty(inner, scope)?;
                match inner.name() {
                    "int" | "double" | "dyn" => inner,
                    _ => return Err(no_overload(at, "-_", &[&inner])),
                }
            }
            Node::Binary(op, sides) => {
                let (left, right) = (self.ty(&sides[0], scope)?, self.ty(&sides[1], scope)?);
                let found = binary(*op, &left, &right);
                found.ok_or_else(|| no_overload(at, op.name(), &[&left, &right]))?
            }
            Node::All(terms) | Node::Any(terms) => {
                for term in terms {
                    self.condition(term, scope)?;
                }
                BOOL
            }
            Node::If(parts) => return self.conditional(parts, at, scope),
            Node::List(elements) => {
                let elements = elements.iter().map(|(element, optional)| (element, *optional));
                Ty::list(self.joined(elements, scope)?)
            }
            Node::Map(entries) => {
                let keys = entries.iter().map(|(key, _, _)| (key, false));
                let values = entries.iter().map(|(_, value, optional)| (value, *optional));
                Ty::map(self.joined(keys, scope)?, self.joined(values, scope)?)
            }
            Node::Struct { name, fields } => {
                let root = name.split('.').next().unwrap_or_default();
                if !self.known.types.contains(&root) {
                    return Err(undeclared(at, name));
                }
                for (_, value, _) in fields {
                    self.ty(value, scope)?;
                }
                match &**name {
                    "Object" => Ty::Basic("Object"),
                    "JSONPatch" => Ty::Basic("JSONPatch"),
                    _ => Ty::map(STRING, Ty::Dyn),
                }
            }
            Node::Call(call) => return self.call(call, at, scope),
            Node::Fold(fold) => return self.fold(fold, scope),
            Node::OptMap { of, name, body, flat } => {
                let ty = match self.ty(of, scope)? {
                    Ty::Optional(inner) => (*inner).clone(),
                    Ty::Dyn => Ty::Dyn,
                    other => return Err(no_method(at, "optMap", &[other])),
                };
                let made = self.ty(body, Some(&Scope { name, value: ty, outer: scope }))?;
                if *flat { made } else { Ty::optional(made) }
            }
        })
    }

    fn name(&self, name: &str, at: usize, scope: Outer<'_, 's>) -> Result<Ty<'s>, Fault> {
        let found = bound(scope, name).cloned().or_else(|| self.known.ty(name));
        found.ok_or_else(|| undeclared(at, name))
    }

    /// `variables.field`, unless a macro binds the name `variables`.
    fn variable(
        &self,
        of: &Expr,
        field: &str,
        scope: Outer<'_, 's>,
    ) -> Option<Result<Ty<'s>, String>> {
        let is_root = matches!(&of.node, Node::Name(name) if **name == *"variables");
        let is_root = is_root && bound(scope, "variables").is_none();
        is_root.then(|| self.known.variable(field))?
    }

    /// Checks that an expression is a boolean.
    fn condition(&self, expr: &Expr, scope: Outer<'_, 's>) -> Result<(), Fault> {
        let ty = self.ty(expr, scope)?;
        match ty.may_be("bool") {
            true => Ok(()),
            false => Err(mismatch(expr.at, &BOOL, &ty)),
        }
    }

    /// The common type of the elements of a list or map.
    fn joined<'e>(
        &self,
        elements: impl Iterator<Item = (&'e Expr, bool)>,
        scope: Outer<'_, 's>,
    ) -> Result<Ty<'s>, Fault> {
        let mut joined: Option<Ty<'s>> = None;
        for (element, optional) in elements {
            let found = match (self.ty(element, scope)?, optional) {
                (Ty::Optional(inner), true) => (*inner).clone(),
                (Ty::Dyn, true) => Ty::Dyn,
                (found, true) => {
                    return Err(mismatch(element.at, &Ty::optional(found.clone()), &found));
                }
                (found, false) => found,
            };
            joined = Some(match joined {
                Some(known) if self.mixes && !known.goes_with(&found) => Ty::Dyn,
                Some(known) if !known.goes_with(&found) => {
                    return Err(mismatch(element.at, &known, &found));
                }
                Some(known) if found.is_dyn() || known.is_dyn() => Ty::Dyn,
                Some(Ty::Basic("null_type")) | None => found,
                Some(known) => known,
            });
        }
        Ok(joined.unwrap_or(Ty::Dyn))
    }

    fn conditional(
        &self,
        parts: &[Expr; 3],
        at: usize,
        scope: Outer<'_, 's>,
    ) -> Result<Ty<'s>, Fault> {
        let condition = self.ty(&parts[0], scope)?;
        let (yes, no) = (self.ty(&parts[1], scope)?, self.ty(&parts[2], scope)?);
        match condition.may_be("bool") && yes.goes_with(&no) {
            true => Ok(either(yes, no)),
            false => Err(no_overload(at, "_?_:_", &[&condition, &yes, &no])),
        }
    }

    fn call(&self, call: &Call, at: usize, scope: Outer<'_, 's>) -> Result<Ty<'s>, Fault> {
        let name = &*call.name;
        let inside = Checker { mixes: self.mixes || name == "format", ..*self };
        let types = call.args.iter().map(|arg| inside.ty(arg, scope));
        let types = types.collect::<Result<Vec<_>, _>>()?;
        if name.starts_with("jsonpatch.") && !self.known.types.contains(&"JSONPatch") {
            return Err(undeclared(at, name));
        }
        literals(name, call.given())?;
        match resolve(call.overloads, call.is_method, &types) {
            Some((_, ty)) => Ok(ty),
            None if call.overloads.is_empty() => Err(undeclared(at, name)),
            None if call.is_method => Err(no_method(at, name, &types)),
            None => Err(no_overload(at, name, &types.iter().collect::<Vec<_>>())),
        }
    }

    fn fold(&self, fold: &Fold, scope: Outer<'_, 's>) -> Result<Ty<'s>, Fault> {
        let range = self.ty(&fold.range, scope)?;
        if !range.is_dyn() && (range.is_object() || !matches!(range.name(), "list" | "map")) {
            let why = format!(
                "expression of type '{}' cannot be range of a comprehension (must be list, map, or dynamic)",
                range.show()
            );
            return Err(Fault::new(fold.range.at, why));
        }
        let (first, second) = range.steps(fold.second.is_some());
        let outer = Scope { name: &fold.first, value: first, outer: scope };
        let inner = fold.second.as_deref().zip(second);
        let inner = inner.map(|(name, value)| Scope { name, value, outer: Some(&outer) });
        let scope = Some(inner.as_ref().unwrap_or(&outer));
        if let Some(filter) = &fold.filter {
            self.condition(filter, scope)?;
        }
        if matches!(
            fold.kind,
            FoldKind::All | FoldKind::Exists | FoldKind::ExistsOne | FoldKind::Filter
        ) {
            self.condition(&fold.body, scope)?;
            return Ok(folded(fold, &range, Ty::Dyn));
        }
        let body = self.ty(&fold.body, scope)?;
        if fold.kind == FoldKind::SortBy && !body.is_dyn() && !ORDERED.contains(&body.name()) {
            let types = [range, Ty::list(body)];
            return Err(no_method(fold.body.at, "@sortByAssociatedKeys", &types));
        }
        Ok(folded(fold, &range, body))
    }
}

/// Checks literal timestamps and durations.
fn literals(name: &str, args: &[Expr]) -> Result<(), Fault> {
    let [Expr { at, node: Node::Literal(value) }] = args else { return Ok(()) };
    let fits = match (name, value) {
        ("duration", Value::Text(text)) => time::parse_duration(text).is_some(),
        ("timestamp", Value::Text(text)) => time::parse_timestamp(text).is_some(),
        ("timestamp", Value::Int(seconds)) => time::from_seconds(*seconds).is_some(),
        _ => true,
    };
    if fits { Ok(()) } else { Err(Fault::new(*at, format!("invalid {name} argument"))) }
}

fn undeclared(at: usize, name: &str) -> Fault {
    Fault::new(at, format!("undeclared reference to '{name}' (in container '')"))
}

fn mismatch(at: usize, expected: &Ty<'_>, found: &Ty<'_>) -> Fault {
    let why = format!("expected type '{}' but found '{}'", expected.show(), found.show());
    Fault::new(at, why)
}

fn no_overload(at: usize, name: &str, types: &[&Ty<'_>]) -> Fault {
    let types: Vec<String> = types.iter().map(|ty| ty.show()).collect();
    let types = types.join(", ");
    Fault::new(at, format!("found no matching overload for '{name}' applied to '({types})'"))
}

fn no_method(at: usize, name: &str, types: &[Ty<'_>]) -> Fault {
    let mut shown = types.iter().map(Ty::show);
    let of = shown.next().unwrap_or_default();
    let rest = shown.collect::<Vec<_>>().join(", ");
    Fault::new(at, format!("found no matching overload for '{name}' applied to '{of}.({rest})'"))
}
