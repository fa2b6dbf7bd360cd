//! Cost estimation: the maximum cost of an expression for any object of a schema.
//!
//! The estimates equal those of Kubernetes exactly, because they decide which definitions are
//! accepted. Sizes come from the schema (`maxItems`, `maxProperties`, `maxLength`, `enum`, formats) or
//! from the maximum request size. As in Kubernetes, a value is followed along its path through the
//! schema; a value without a path has the size of its source, or an unknown, unbounded size.

mod calls;
mod fold;
mod size;

use self::size::{EntrySize, ONE, Size, UNKNOWN, scaled};
use super::DeclType;
use super::environment::Environment;
use super::tree::{Expr, Node, Op};
use super::types::{BOOL, INT, STRING, Ty};
use super::typing;

/// The maximum cost of an evaluation.
pub(super) fn of(root: &Expr, known: &Environment<'_>) -> u64 {
    Estimate { known }.of(root, None).cost
}

/// The cost of constructing a list, a map or an object, without its parts.
const LIST: u64 = 10;
const MAP: u64 = 30;
const STRUCT: u64 = 40;

/// The cost factor of traversing a string: a tenth of its length.
const TRAVERSAL: f64 = 0.1;

/// The estimate of a value.
struct Found<'s> {
    cost: u64,
    size: Option<Size>,
    entry: Option<EntrySize>,
    place: Place<'s>,
    ty: Ty<'s>,
}

impl<'s> Found<'s> {
    /// A value of this type, computed at this cost.
    fn of(ty: Ty<'s>, cost: u64) -> Found<'s> {
        let size = ty.is_scalar().then_some(ONE);
        Found { cost, size, entry: None, place: Place::None, ty }
    }

    fn literal(ty: Ty<'s>, size: u64) -> Found<'s> {
        Found { size: Some(Size::exactly(size)), ..Found::of(ty, 0) }
    }

    fn size(&self) -> Size {
        self.size.unwrap_or(UNKNOWN)
    }

    fn sized(self, size: Size) -> Found<'s> {
        Found { size: Some(size), ..self }
    }

    /// The same at a path in the schema, which determines its size.
    fn placed(self, place: Place<'s>) -> Found<'s> {
        let size = place.size().or(self.size);
        Found { place, size, ..self }
    }
}

/// The path of a value in the schema.
#[derive(Clone, Copy)]
enum Place<'s> {
    /// The value is computed.
    None,
    At(&'s DeclType),
    /// The keys of a map, whose length no schema limits.
    Key,
    /// An unknown path.
    Lost,
}

/// One element of a path.
enum Step<'f> {
    Field(&'f str),
    Value,
    Key,
    Index,
}

impl<'s> Place<'s> {
    /// The first element of a path always means the root, and so does the first step from an unknown
    /// path.
    fn then(self, step: &Step<'_>, root: &'s DeclType) -> Place<'s> {
        match (self, step) {
            (Place::None, _) => Place::At(root),
            (Place::At(shape), Step::Field(name)) => {
                shape.named(name).map_or(Place::Lost, |field| Place::At(&field.shape))
            }
            (Place::At(DeclType::List(list)), Step::Value) => Place::At(&list.items),
            (Place::At(DeclType::Map(map)), Step::Value) => Place::At(&map.values),
            (Place::At(DeclType::Map(_)), Step::Key) => Place::Key,
            _ => Place::Lost,
        }
    }

    fn size(self) -> Option<Size> {
        match self {
            Place::At(shape) => Some(Size { min: 0, max: shape.elements_max() }),
            Place::Key => Some(Size { min: 0, max: 0 }),
            Place::None | Place::Lost => None,
        }
    }
}

/// A name bound by a macro, and the enclosing ones.
struct Scope<'o, 's> {
    name: &'o str,
    found: Found<'s>,
    outer: Option<&'o Scope<'o, 's>>,
}

type Outer<'o, 's> = Option<&'o Scope<'o, 's>>;

struct Estimate<'k, 's> {
    known: &'k Environment<'s>,
}

impl<'s> Estimate<'_, 's> {
    fn of(&self, expr: &Expr, scope: Outer<'_, 's>) -> Found<'s> {
        match &expr.node {
            Node::Null => Found::literal(Ty::Basic("null_type"), 1),
            Node::Bool(_) => Found::literal(BOOL, 1),
            Node::Int(_) => Found::literal(INT, 1),
            Node::Uint(_) => Found::literal(Ty::Basic("uint"), 1),
            Node::Double(_) => Found::literal(Ty::Basic("double"), 1),
            Node::Text(text) => Found::literal(STRING, text.chars().count() as u64),
            Node::Bytes(bytes) => Found::literal(Ty::Basic("bytes"), bytes.len() as u64),
            Node::Name(name) => self.name(name, scope),
            Node::Select { of, field, optional } => self.select(of, field, *optional, scope),
            Node::Has { of, .. } => Found::of(BOOL, self.of(of, scope).cost),
            Node::Index { of, key, optional } => self.index(of, key, *optional, scope),
            Node::Not(inner) => Found::of(BOOL, self.of(inner, scope).cost.saturating_add(1)),
            Node::Negate(inner) => {
                let inner = self.of(inner, scope);
                Found::of(inner.ty, inner.cost.saturating_add(1))
            }
            Node::Binary(op, sides) => self.binary(*op, sides, scope),
            Node::All(terms) | Node::Any(terms) => {
                let costs = terms.iter().map(|term| self.of(term, scope).cost);
                Found::of(BOOL, costs.fold(0, u64::saturating_add))
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
                Found::of(Ty::map(STRING, Ty::Dyn), costs.fold(STRUCT, u64::saturating_add))
            }
            Node::Call { name, of, args } => {
                let of = of.as_deref().map(|of| self.of(of, scope));
                let found: Vec<_> = args.iter().map(|arg| self.of(arg, scope)).collect();
                calls::call(name, of.as_ref(), &found, args)
            }
            Node::Fold(fold) => self.fold(fold, scope),
            Node::OptMap { of, name, body, flat } => self.opt_map(of, name, body, *flat, scope),
        }
    }

    fn name(&self, name: &str, mut scope: Outer<'_, 's>) -> Found<'s> {
        while let Some(bound) = scope {
            if bound.name == name {
                let known = &bound.found;
                let found = Found { entry: known.entry, ..Found::of(known.ty.clone(), 1) };
                let found = Found { size: found.size.or(known.size), ..found };
                return found.placed(known.place);
            }
            scope = bound.outer;
        }
        let ty = self.known.ty(name).unwrap_or(Ty::Dyn);
        Found::of(ty, 1).placed(Place::At(self.known.root()))
    }

    fn select(&self, of: &Expr, field: &str, optional: bool, scope: Outer<'_, 's>) -> Found<'s> {
        let of = self.of(of, scope);
        let ty = typing::field_of(&of.ty, field, optional).unwrap_or(Ty::Dyn);
        if optional {
            return Found::of(ty, of.cost.saturating_add(1));
        }
        let own = u64::from(matches!(of.ty, Ty::Map(_) | Ty::DeclType(_)));
        let place = of.place.then(&Step::Field(field), self.known.root());
        Found::of(ty, of.cost.saturating_add(own)).placed(place)
    }

    fn index(&self, of: &Expr, key: &Expr, optional: bool, scope: Outer<'_, 's>) -> Found<'s> {
        let (of, key) = (self.of(of, scope), self.of(key, scope));
        let ty = typing::element_of(&of.ty, &key.ty, optional).unwrap_or(Ty::Dyn);
        let cost = of.cost.saturating_add(key.cost).saturating_add(1);
        if optional || matches!(of.ty, Ty::Optional(_)) {
            return Found::of(ty, cost);
        }
        let place = of.place.then(&Step::Value, self.known.root());
        let found = Found::of(ty, cost).placed(place);
        match of.entry {
            Some(entry) => found.sized(entry.value),
            None => found,
        }
    }

    fn map(&self, entries: &[(Expr, Expr, bool)], scope: Outer<'_, 's>) -> Found<'s> {
        let mut made = Found::literal(Ty::map(STRING, Ty::Dyn), entries.len() as u64);
        made.cost = MAP;
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

    fn binary(&self, op: Op, sides: &[Expr; 2], scope: Outer<'_, 's>) -> Found<'s> {
        let (left, right) = (self.of(&sides[0], scope), self.of(&sides[1], scope));
        let ty = typing::binary(op, &left.ty, &right.ty).unwrap_or(Ty::Dyn);
        let cost = left.cost.saturating_add(right.cost);
        let both = |name: &str| left.ty.may_be(name) && right.ty.may_be(name);
        let unknown = left.ty.is_dyn() && right.ty.is_dyn();
        let compared = || scaled(left.size().max.min(right.size().max), TRAVERSAL);
        let own = match op {
            Op::Equal => calls::equality(&left, &right).unwrap_or_else(compared),
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
        Found::of(ty, cost.saturating_add(own))
    }

    /// `of.hasValue() ? optional.of(body with of.value()) : optional.none()`.
    fn opt_map(
        &self,
        of: &Expr,
        name: &str,
        body: &Expr,
        flat: bool,
        scope: Outer<'_, 's>,
    ) -> Found<'s> {
        let of = self.of(of, scope);
        let inner = match &of.ty {
            Ty::Optional(inner) => (**inner).clone(),
            _ => Ty::Dyn,
        };
        let asked = of.cost.saturating_add(1);
        let bound = Scope { name, found: Found::of(inner, asked), outer: scope };
        let body = self.of(body, Some(&bound));
        let made = body.cost.saturating_add(LIST).saturating_add(asked);
        let yes = match flat {
            true => Found { cost: made, ..body },
            false => Found::of(Ty::optional(body.ty), made.saturating_add(1)),
        };
        let none = Found::of(yes.ty.clone(), 1);
        conditional(asked, yes, none)
    }
}

fn conditional<'s>(condition: u64, yes: Found<'s>, no: Found<'s>) -> Found<'s> {
    let size = yes.size().or(no.size());
    let entry = yes.entry.zip(no.entry).map(|(yes, no)| yes.or(no));
    let cost = condition.saturating_add(yes.cost.max(no.cost));
    let ty = typing::either(yes.ty, no.ty);
    Found { entry, ..Found::of(ty, cost).sized(size) }
}

fn literal_list<'s>(elements: &[Found<'s>]) -> Found<'s> {
    let cost = elements.iter().fold(LIST, |sum, element| sum.saturating_add(element.cost));
    let sizes = elements.iter().map(Found::size);
    let value = sizes.reduce(Size::or).unwrap_or(Size::NOTHING);
    let ty = elements.first().map_or(Ty::Dyn, |element| element.ty.clone());
    Found {
        entry: Some(EntrySize { is_list: true, key: ONE, value }),
        ..Found::of(Ty::list(ty), cost).sized(Size::exactly(elements.len() as u64))
    }
}

/// The cost of `+`: one for numbers; strings and bytes are copied.
fn add<'s>(left: &Found<'s>, right: &Found<'s>, ty: Ty<'s>, cost: u64) -> Found<'s> {
    let both = |name: &str| left.ty.may_be(name) && right.ty.may_be(name);
    let size = left.size().plus(right.size());
    let copies = both("string") || both("bytes");
    let unknown = left.ty.is_dyn() && right.ty.is_dyn();
    let own = if copies { scaled(size.max, TRAVERSAL).max(u64::from(unknown)) } else { 1 };
    let found = Found::of(ty, cost.saturating_add(own));
    if !copies && !both("list") {
        return found;
    }
    let entry = left.entry.zip(right.entry).map(|(left, right)| left.or(right));
    Found { entry, ..found.sized(size) }
}

#[cfg(test)]
mod tests;
