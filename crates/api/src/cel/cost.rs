//! What an expression may cost at most, before there is an object: a refusal when the definition
//! is written is better than one for every object later.
//!
//! The estimate follows the reference in kind (sizes from `maxItems`, `maxProperties` and
//! `maxLength`, else from what fits into a request), not to the last unit.

use super::Shape;
use super::check::{Known, Ty};
use super::parse::{Expr, Fold, FoldKind, Node, Op};
use super::shape::REQUEST_MAX;

/// The most an evaluation costs.
pub(super) fn of(root: &Expr, known: &Known<'_>) -> u64 {
    Estimate { known }.of(root, None).cost
}

/// How many values of this shape a list or map may hold.
pub(super) fn count_max(shape: &Shape) -> u64 {
    match shape {
        Shape::List(list) => list.max.unwrap_or_else(|| REQUEST_MAX / (list.items.bytes_min() + 1)),
        Shape::Map(map) => map.max.unwrap_or_else(|| REQUEST_MAX / (map.values.bytes_min() + 6)),
        _ => 1,
    }
}

/// What is known of a value: its cost so far, how large it may be, and its type.
struct Sized<'s> {
    cost: u64,
    size: u64,
    ty: Option<Ty<'s>>,
}

struct Scope<'o, 's> {
    name: &'o str,
    size: u64,
    ty: Option<Ty<'s>>,
    outer: Option<&'o Scope<'o, 's>>,
}

type Outer<'o, 's> = Option<&'o Scope<'o, 's>>;

struct Estimate<'k, 's> {
    known: &'k Known<'s>,
}

fn size_of(ty: &Option<Ty<'_>>) -> u64 {
    match ty {
        Some(Ty::Shape(shape @ (Shape::List(_) | Shape::Map(_)))) => count_max(shape),
        Some(Ty::Basic("string" | "bytes") | Ty::Dyn) | None => REQUEST_MAX,
        _ => 1,
    }
}

impl<'s> Estimate<'_, 's> {
    fn of(&self, expr: &Expr, scope: Outer<'_, 's>) -> Sized<'s> {
        let plain = |cost: u64| Sized { cost, size: 1, ty: None };
        match &expr.node {
            Node::Text(text) => Sized { cost: 1, size: text.len() as u64, ty: None },
            Node::Bytes(bytes) => Sized { cost: 1, size: bytes.len() as u64, ty: None },
            Node::Null | Node::Bool(_) | Node::Int(_) | Node::Uint(_) | Node::Double(_) => plain(1),
            Node::Name(name) => self.name(name, scope),
            Node::Select { of, field, .. } => self.select(of, field, scope),
            Node::Has { of, .. } => plain(self.of(of, scope).cost.saturating_add(1)),
            Node::Index { of, key, .. } => {
                let (of, key) = (self.of(of, scope), self.of(key, scope));
                let shape = match &of.ty {
                    Some(Ty::Shape(Shape::List(list))) => Some(&list.items),
                    Some(Ty::Shape(Shape::Map(map))) => Some(&map.values),
                    _ => None,
                };
                self.shaped(shape, of.cost.saturating_add(key.cost))
            }
            Node::Binary(op, sides) => self.binary(*op, sides, scope),
            Node::Fold(fold) => self.fold(fold, scope),
            Node::Bind { name, value, body } => {
                let value = self.of(value, scope);
                let bound = Scope { name, size: value.size, ty: value.ty, outer: scope };
                let body = self.of(body, Some(&bound));
                Sized { cost: body.cost.saturating_add(value.cost), ..body }
            }
            Node::Call { name, of, args } => self.call(name, of.as_deref(), args, scope),
            Node::If(parts) => {
                let [condition, yes, no] = [0, 1, 2].map(|at| self.of(&parts[at], scope));
                let cost = condition.cost.saturating_add(yes.cost.max(no.cost));
                Sized { cost: cost.saturating_add(1), size: yes.size.max(no.size), ty: yes.ty }
            }
            Node::OptMap { of, name, body, .. } => {
                let of = self.of(of, scope);
                let bound = Scope { name, size: of.size, ty: of.ty, outer: scope };
                let body = self.of(body, Some(&bound));
                Sized { cost: body.cost.saturating_add(of.cost), size: body.size, ty: None }
            }
            _ => {
                let (mut cost, mut count) = (1u64, 0);
                expr.children(&mut |inner| {
                    cost = cost.saturating_add(self.of(inner, scope).cost);
                    count += 1;
                });
                Sized { cost, size: count, ty: None }
            }
        }
    }

    fn shaped(&self, shape: Option<&'s Shape>, cost: u64) -> Sized<'s> {
        let ty = shape.map(Ty::of);
        let size = match shape {
            Some(Shape::Text(Some(max))) => *max,
            _ => size_of(&ty),
        };
        Sized { cost: cost.saturating_add(1), size, ty }
    }

    fn name(&self, name: &str, mut scope: Outer<'_, 's>) -> Sized<'s> {
        while let Some(bound) = scope {
            if bound.name == name {
                return Sized { cost: 1, size: bound.size, ty: bound.ty.clone() };
            }
            scope = bound.outer;
        }
        let ty = self.known.get(name);
        let ty = match ty {
            Some(Ty::Optional(inner)) => Some((*inner).clone()),
            ty => ty,
        };
        let size = self.known.text_max(name).unwrap_or_else(|| size_of(&ty));
        Sized { cost: 1, size, ty }
    }

    fn select(&self, of: &Expr, field: &str, scope: Outer<'_, 's>) -> Sized<'s> {
        let of = self.of(of, scope);
        let shape = match &of.ty {
            Some(Ty::Shape(shape @ Shape::Object(_))) => {
                shape.named(field).map(|field| &field.shape)
            }
            Some(Ty::Shape(Shape::Map(map))) => Some(&map.values),
            _ => None,
        };
        self.shaped(shape, of.cost)
    }

    fn binary(&self, op: Op, sides: &[Expr; 2], scope: Outer<'_, 's>) -> Sized<'s> {
        let (left, right) = (self.of(&sides[0], scope), self.of(&sides[1], scope));
        let own = match op {
            Op::Equal | Op::NotEqual => left.size.min(right.size) / 10 + 1,
            Op::In => right.size.max(1),
            Op::Add => left.size.saturating_add(right.size) / 10 + 1,
            _ => 1,
        };
        let size = match op {
            Op::Add => left.size.saturating_add(right.size),
            _ => 1,
        };
        let cost = left.cost.saturating_add(right.cost).saturating_add(own);
        Sized { cost, size, ty: None }
    }

    fn call(
        &self,
        name: &str,
        of: Option<&Expr>,
        args: &[Expr],
        scope: Outer<'_, 's>,
    ) -> Sized<'s> {
        let all: Vec<Sized<'s>> =
            of.into_iter().chain(args).map(|arg| self.of(arg, scope)).collect();
        let cost = all.iter().fold(1u64, |sum, arg| sum.saturating_add(arg.cost));
        let size = |at: usize| all.get(at).map_or(1, |arg| arg.size);
        let own = match name {
            "matches" | "find" | "findAll" => {
                (size(0) / 10 + 1).saturating_mul(size(1).div_ceil(4).min(REQUEST_MAX))
            }
            "contains" | "indexOf" | "lastIndexOf" => {
                (size(0) / 10 + 1).saturating_mul(size(1) / 10 + 1)
            }
            "sets.contains" | "sets.equivalent" | "sets.intersects" => {
                size(0).saturating_mul(size(1))
            }
            "startsWith" | "endsWith" => size(1) / 10 + 1,
            "size" | "hasValue" | "value" | "orValue" | "or" => 1,
            _ => size(0) / 10 + 1,
        };
        let made = match name {
            "size" | "startsWith" | "endsWith" | "matches" | "contains" | "indexOf" => 1,
            _ => size(0),
        };
        Sized { cost: cost.saturating_add(own), size: made, ty: None }
    }

    fn fold(&self, fold: &Fold, scope: Outer<'_, 's>) -> Sized<'s> {
        let range = self.of(&fold.range, scope);
        let (key, value) = match &range.ty {
            Some(Ty::Shape(Shape::List(list))) => (None, Some(&list.items)),
            Some(Ty::Shape(Shape::Map(map))) => (None, Some(&map.values)),
            _ => (None::<&'s Shape>, None),
        };
        let is_map = matches!(&range.ty, Some(Ty::Shape(Shape::Map(_))));
        let value = self.shaped(value, 0);
        let key = match (is_map, fold.second.is_some()) {
            (false, false) => Sized { cost: 0, size: value.size, ty: value.ty.clone() },
            (false, true) => Sized { cost: 0, size: 1, ty: None },
            // Nothing bounds the keys of a map but the request.
            (true, _) => self.shaped(key, 0),
        };
        let outer = Scope { name: &fold.first, size: key.size, ty: key.ty, outer: scope };
        let inner = fold.second.as_deref().map(|name| Scope {
            name,
            size: value.size,
            ty: value.ty,
            outer: Some(&outer),
        });
        let scope = Some(inner.as_ref().unwrap_or(&outer));
        let filter = fold.filter.as_ref().map_or(0, |filter| self.of(filter, scope).cost);
        let body = self.of(&fold.body, scope);
        let each = filter.saturating_add(body.cost).saturating_add(1);
        let cost = range.cost.saturating_add(each.saturating_mul(range.size));
        let size = match fold.kind {
            FoldKind::All | FoldKind::Exists | FoldKind::ExistsOne => 1,
            _ => range.size,
        };
        Sized { cost, size, ty: None }
    }
}
