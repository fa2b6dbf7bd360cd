//! Cost estimation: the maximum cost of an expression for any object of a schema.
//!
//! The estimates equal those of Kubernetes exactly, because they decide which definitions are
//! accepted. Sizes come from the schema (`maxItems`, `maxProperties`, `maxLength`, `enum`, formats) or
//! from the maximum request size. As in Kubernetes, a value is followed along its path through the
//! schema; a value without a path has the size of its source, or an unknown, unbounded size.

mod fold;

use super::environment::Environment;
use super::estimate::{
    EntrySize, Estimate, LIST, MAP, ONE, Own, Place, STRUCT, Size, Step, TRAVERSAL, scaled,
};
use super::overload;
use super::scope::{self, Scope, bound};
use super::tree::{Call, Expr, Node, Op};
use super::types::{BOOL, STRING, Ty};
use super::typing;

/// The maximum cost of an evaluation.
pub(super) fn of(root: &Expr, known: &Environment<'_>) -> u64 {
    Estimator { known }.of(root, None).cost
}

type Outer<'o, 's> = scope::Outer<'o, Estimate<'s>>;

struct Estimator<'k, 's> {
    known: &'k Environment<'s>,
}

impl<'s> Estimator<'_, 's> {
    fn of(&self, expr: &Expr, scope: Outer<'_, 's>) -> Estimate<'s> {
        match &expr.node {
            Node::Literal(value) => Estimate::literal(value),
            Node::Name(name) => self.name(name, scope),
            Node::Select { of, field, optional } => self.select(of, field, *optional, scope),
            Node::Has { of, .. } => Estimate::of(BOOL, self.of(of, scope).cost),
            Node::Index { of, key, optional } => self.index(of, key, *optional, scope),
            Node::Not(inner) => Estimate::of(BOOL, self.of(inner, scope).cost.saturating_add(1)),
            Node::Negate(inner) => {
                let inner = self.of(inner, scope);
                Estimate::of(inner.ty, inner.cost.saturating_add(1))
            }
            Node::Binary(op, sides) => self.binary(*op, sides, scope),
            Node::All(terms) | Node::Any(terms) => {
                let costs = terms.iter().map(|term| self.of(term, scope).cost);
                Estimate::of(BOOL, costs.fold(0, u64::saturating_add))
            }
            Node::If(parts) => {
                let [condition, yes, no] = [0, 1, 2].map(|at| self.of(&parts[at], scope));
                conditional(condition.cost, yes, no)
            }
            Node::List(elements) => {
                let found: Vec<_> =
                    elements.iter().map(|(inner, _)| self.of(inner, scope)).collect();
                literal_list(&found)
            }
            Node::Map(entries) => self.map(entries, scope),
            Node::Struct { fields, .. } => {
                let costs = fields.iter().map(|(_, inner, _)| self.of(inner, scope).cost);
                Estimate::of(Ty::map(STRING, Ty::Dyn), costs.fold(STRUCT, u64::saturating_add))
            }
            Node::Call(call) => self.call(call, scope),
            Node::Fold(fold) => self.fold(fold, scope),
            Node::OptMap { of, name, body, flat } => self.opt_map(of, name, body, *flat, scope),
        }
    }

    fn name(&self, name: &str, scope: Outer<'_, 's>) -> Estimate<'s> {
        if let Some(known) = bound(scope, name) {
            let found = Estimate { entry: known.entry, ..Estimate::of(known.ty.clone(), 1) };
            let found = Estimate { size: found.size.or(known.size), ..found };
            return found.placed(known.place);
        }
        let ty = self.known.ty(name).unwrap_or(Ty::Dyn);
        Estimate::of(ty, 1).placed(Place::At(self.known.root()))
    }

    fn call(&self, call: &Call, scope: Outer<'_, 's>) -> Estimate<'s> {
        let args: Vec<_> = call.args.iter().map(|arg| self.of(arg, scope)).collect();
        let types: Vec<_> = args.iter().map(|arg| arg.ty.clone()).collect();
        let (overloads, ty) = overload::resolve_or_last(call.overloads, call.is_method, &types);
        let own = overloads.into_iter().map(|overload| (overload.rule)(&args)).reduce(Own::or);
        let Some(own) = own else { return Estimate::of(ty, u64::MAX) };
        let cost = args.iter().map(|arg| arg.cost).fold(own.cost, u64::saturating_add);
        let found = Estimate::of(ty, cost);
        Estimate { size: own.size.or(found.size), entry: own.entry, ..found }
    }

    fn select(&self, of: &Expr, field: &str, optional: bool, scope: Outer<'_, 's>) -> Estimate<'s> {
        let of = self.of(of, scope);
        let ty = typing::field_of(&of.ty, field, optional).unwrap_or(Ty::Dyn);
        if optional {
            return Estimate::of(ty, of.cost.saturating_add(1));
        }
        let own = u64::from(matches!(of.ty, Ty::Map(_) | Ty::DeclType(_)));
        let place = of.place.then(&Step::Field(field), self.known.root());
        Estimate::of(ty, of.cost.saturating_add(own)).placed(place)
    }

    fn index(&self, of: &Expr, key: &Expr, optional: bool, scope: Outer<'_, 's>) -> Estimate<'s> {
        let (of, key) = (self.of(of, scope), self.of(key, scope));
        let ty = typing::element_of(&of.ty, &key.ty, optional).unwrap_or(Ty::Dyn);
        let cost = of.cost.saturating_add(key.cost).saturating_add(1);
        if optional || matches!(of.ty, Ty::Optional(_)) {
            return Estimate::of(ty, cost);
        }
        let place = of.place.then(&Step::Value, self.known.root());
        let found = Estimate::of(ty, cost).placed(place);
        match of.entry {
            Some(entry) => found.sized(entry.value),
            None => found,
        }
    }

    fn map(&self, entries: &[(Expr, Expr, bool)], scope: Outer<'_, 's>) -> Estimate<'s> {
        let made = Estimate::of(Ty::map(STRING, Ty::Dyn), MAP);
        let mut made = made.sized(Size::exactly(entries.len() as u64));
        let (mut keys, mut values) = (Size::NOTHING, Size::NOTHING);
        for (at, (key, value, _)) in entries.iter().enumerate() {
            let (key, value) = (self.of(key, scope), self.of(value, scope));
            made.cost = made.cost.saturating_add(key.cost).saturating_add(value.cost);
            keys = if at == 0 { key.size() } else { keys.or(key.size()) };
            values = if at == 0 { value.size() } else { values.or(value.size()) };
            made.ty = Ty::map(key.ty, value.ty);
        }
        made.entry = Some(EntrySize { is_list: false, key: keys, value: values });
        made
    }

    fn binary(&self, op: Op, sides: &[Expr; 2], scope: Outer<'_, 's>) -> Estimate<'s> {
        let (left, right) = (self.of(&sides[0], scope), self.of(&sides[1], scope));
        let ty = typing::binary(op, &left.ty, &right.ty).unwrap_or(Ty::Dyn);
        let cost = left.cost.saturating_add(right.cost);
        let both = |name: &str| left.ty.may_be(name) && right.ty.may_be(name);
        let unknown = left.ty.is_dyn() && right.ty.is_dyn();
        let compared = || scaled(left.size().max.min(right.size().max), TRAVERSAL);
        let own = match op {
            Op::Equal => equality(&left, &right).unwrap_or_else(compared),
            Op::NotEqual => compared(),
            // A value of unknown type may be a string or a number.
            Op::Less | Op::LessEqual | Op::Greater | Op::GreaterEqual => {
                let is_text = both("string") || both("bytes");
                if is_text { compared().max(u64::from(unknown)) } else { 1 }
            }
            Op::In if right.ty.may_be("list") => right.size().max.max(u64::from(right.ty.is_dyn())),
            Op::Add => return add(&left, &right, ty, cost),
            _ => 1,
        };
        Estimate::of(ty, cost.saturating_add(own))
    }

    /// `of.hasValue() ? optional.of(body with of.value()) : optional.none()`.
    fn opt_map(
        &self,
        of: &Expr,
        name: &str,
        body: &Expr,
        flat: bool,
        scope: Outer<'_, 's>,
    ) -> Estimate<'s> {
        let of = self.of(of, scope);
        let inner = match &of.ty {
            Ty::Optional(inner) => (**inner).clone(),
            _ => Ty::Dyn,
        };
        let asked = of.cost.saturating_add(1);
        let bound = Scope { name, value: Estimate::of(inner, asked), outer: scope };
        let body = self.of(body, Some(&bound));
        let made = body.cost.saturating_add(LIST).saturating_add(asked);
        let yes = match flat {
            true => Estimate { cost: made, ..body },
            false => Estimate::of(Ty::optional(body.ty), made.saturating_add(1)),
        };
        let none = Estimate::of(yes.ty.clone(), 1);
        conditional(asked, yes, none)
    }
}

/// The maximum length of the name of a named format.
const FORMAT_NAME: u64 = 64;

/// The cost of comparing two values of Kubernetes' types.
fn equality(left: &Estimate<'_>, right: &Estimate<'_>) -> Option<u64> {
    let (Ty::Basic(a), Ty::Basic(b)) = (&left.ty, &right.ty) else { return None };
    if a != b {
        return None;
    }
    match *a {
        "kubernetes.NamedFormat" => Some(scaled(FORMAT_NAME, TRAVERSAL)),
        "kubernetes.URL" => Some(scaled(right.size.map_or(1, |size| size.max).max(1), TRAVERSAL)),
        name if name.starts_with("kubernetes.") || name.starts_with("net.") => Some(1),
        _ => None,
    }
}

fn conditional<'s>(condition: u64, yes: Estimate<'s>, no: Estimate<'s>) -> Estimate<'s> {
    let size = yes.size().or(no.size());
    let entry = yes.entry.zip(no.entry).map(|(yes, no)| yes.or(no));
    let cost = condition.saturating_add(yes.cost.max(no.cost));
    let ty = typing::either(yes.ty, no.ty);
    Estimate { entry, ..Estimate::of(ty, cost).sized(size) }
}

fn literal_list<'s>(elements: &[Estimate<'s>]) -> Estimate<'s> {
    let cost = elements.iter().fold(LIST, |sum, element| sum.saturating_add(element.cost));
    let sizes = elements.iter().map(Estimate::size);
    let value = sizes.reduce(Size::or).unwrap_or(Size::NOTHING);
    let ty = elements.first().map_or(Ty::Dyn, |element| element.ty.clone());
    Estimate {
        entry: Some(EntrySize { is_list: true, key: ONE, value }),
        ..Estimate::of(Ty::list(ty), cost).sized(Size::exactly(elements.len() as u64))
    }
}

/// The cost of `+`: one for numbers; strings and bytes are copied.
fn add<'s>(left: &Estimate<'s>, right: &Estimate<'s>, ty: Ty<'s>, cost: u64) -> Estimate<'s> {
    let both = |name: &str| left.ty.may_be(name) && right.ty.may_be(name);
    let size = left.size().plus(right.size());
    let copies = both("string") || both("bytes");
    let unknown = left.ty.is_dyn() && right.ty.is_dyn();
    let own = if copies { scaled(size.max, TRAVERSAL).max(u64::from(unknown)) } else { 1 };
    let found = Estimate::of(ty, cost.saturating_add(own));
    if !copies && !both("list") {
        return found;
    }
    let entry = left.entry.zip(right.entry).map(|(left, right)| left.or(right));
    Estimate { entry, ..found.sized(size) }
}

#[cfg(test)]
mod tests;
