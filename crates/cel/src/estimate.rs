//! The estimate of a value: its cost, its size and its place in the schema.

pub(super) mod rule;
mod size;

use super::DeclType;
use super::types::Ty;
use super::value::Value;

pub(super) use size::{EntrySize, ONE, Size, UNKNOWN, scaled};

/// The cost of constructing a list, a map or an object, without its parts.
pub(super) const LIST: u64 = 10;
pub(super) const MAP: u64 = 30;
pub(super) const STRUCT: u64 = 40;

/// The cost factor of traversing a string: a tenth of its length.
pub(super) const TRAVERSAL: f64 = 0.1;

/// The estimate of a value.
pub(super) struct Estimate<'s> {
    pub(super) cost: u64,
    pub(super) size: Option<Size>,
    pub(super) entry: Option<EntrySize>,
    pub(super) place: Place<'s>,
    pub(super) ty: Ty<'s>,
    /// The number, if it is a literal one.
    pub(super) literal: Option<u64>,
}

impl<'s> Estimate<'s> {
    /// A value of this type, computed at this cost.
    pub(super) fn of(ty: Ty<'s>, cost: u64) -> Estimate<'s> {
        let size = ty.is_scalar().then_some(ONE);
        Estimate { cost, size, entry: None, place: Place::None, ty, literal: None }
    }

    pub(super) fn literal(value: &Value<'_>) -> Estimate<'s> {
        let (size, literal) = match value {
            Value::Text(text) => (text.chars().count(), None),
            Value::Bytes(bytes) => (bytes.len(), None),
            Value::Int(value) => (1, Some(u64::try_from(*value).unwrap_or(0))),
            _ => (1, None),
        };
        let found = Estimate::of(Ty::Basic(value.type_name()), 0);
        Estimate { literal, ..found.sized(Size::exactly(size as u64)) }
    }

    pub(super) fn size(&self) -> Size {
        self.size.unwrap_or(UNKNOWN)
    }

    pub(super) fn sized(self, size: Size) -> Estimate<'s> {
        Estimate { size: Some(size), ..self }
    }

    /// The same at a path in the schema, which determines its size.
    pub(super) fn placed(self, place: Place<'s>) -> Estimate<'s> {
        let size = place.size().or(self.size);
        Estimate { place, size, ..self }
    }
}

/// The path of a value in the schema.
#[derive(Clone, Copy)]
pub(super) enum Place<'s> {
    /// The value is computed.
    None,
    At(&'s DeclType),
    /// The keys of a map, whose length no schema limits.
    Key,
    /// An unknown path.
    Lost,
}

/// One element of a path.
pub(super) enum Step<'f> {
    Field(&'f str),
    Value,
    Key,
    Index,
}

impl<'s> Place<'s> {
    /// The first element of a path always means the root, and so does the first step from an unknown
    /// path.
    pub(super) fn then(self, step: &Step<'_>, root: &'s DeclType) -> Place<'s> {
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

    pub(super) fn size(self) -> Option<Size> {
        match self {
            Place::At(shape) => Some(Size { min: 0, max: shape.elements_max() }),
            Place::Key => Some(Size { min: 0, max: 0 }),
            Place::None | Place::Lost => None,
        }
    }
}

/// The cost of a call without its arguments, and the size of its result.
#[derive(Clone, Copy)]
pub(super) struct Own {
    pub(super) cost: u64,
    pub(super) size: Option<Size>,
    pub(super) entry: Option<EntrySize>,
}

impl Own {
    fn cost(cost: u64) -> Own {
        Own { cost, size: None, entry: None }
    }

    fn sized(cost: u64, size: Size) -> Own {
        Own { size: Some(size), ..Own::cost(cost) }
    }

    /// The cost of creating a list, per element.
    fn list(size: Size, factor: f64) -> Own {
        Own::sized(scaled(size.max, factor).saturating_add(1 + LIST), size)
    }

    /// The estimate of a call that may be either.
    pub(super) fn or(self, other: Own) -> Own {
        let size = match (self.size, other.size) {
            (Some(one), Some(other)) => Some(one.or(other)),
            (one, other) => one.or(other),
        };
        Own { cost: self.cost.max(other.cost), size, entry: self.entry.or(other.entry) }
    }
}
