//! Static types and their compatibility.

use std::sync::Arc;

use super::DeclType;

/// A static type. An unknown type is `Dyn`, which is compatible with everything and is checked at
/// evaluation.
#[derive(Clone, Debug)]
pub(super) enum Ty<'s> {
    Dyn,
    Basic(&'static str),
    List(Arc<Ty<'s>>),
    /// A map with key and value types.
    Map(Arc<[Ty<'s>; 2]>),
    Optional(Arc<Ty<'s>>),
    /// A list, a map or an object of a schema.
    DeclType(&'s DeclType),
    /// A type parameter of a function.
    Parameter(char),
}

pub(super) const BOOL: Ty<'static> = Ty::Basic("bool");
pub(super) const INT: Ty<'static> = Ty::Basic("int");
pub(super) const STRING: Ty<'static> = Ty::Basic("string");
pub(super) const TIMESTAMP: &str = "google.protobuf.Timestamp";
pub(super) const DURATION: &str = "google.protobuf.Duration";

/// Types that can be ordered.
pub(super) const ORDERED: [&str; 8] =
    ["int", "uint", "double", "bool", DURATION, TIMESTAMP, "string", "bytes"];

/// Types with a sum.
pub(super) const SUMMABLE: [&str; 4] = ["int", "uint", "double", DURATION];

/// The types that expressions can name.
#[rustfmt::skip]
pub(super) const TYPES: [&str; 24] = [
    "int", "uint", "double", "bool", "string", "bytes", "list", "map", "null_type", "type",
    "optional_type", TIMESTAMP, DURATION, "net.IP", "net.CIDR", "kubernetes.Quantity",
    "kubernetes.URL", "kubernetes.Semver", "kubernetes.NamedFormat",
    "kubernetes.authorization.Authorizer", "kubernetes.authorization.PathCheck",
    "kubernetes.authorization.GroupCheck", "kubernetes.authorization.ResourceCheck",
    "kubernetes.authorization.Decision",
];

/// The type that a name denotes.
pub(super) fn type_named(name: &str) -> Option<&'static str> {
    TYPES.into_iter().find(|known| *known == name)
}

impl<'s> Ty<'s> {
    pub(super) fn of(shape: &'s DeclType) -> Ty<'s> {
        match shape {
            DeclType::Dyn | DeclType::IntOrString(_) => Ty::Dyn,
            DeclType::Bool => BOOL,
            DeclType::Int => INT,
            DeclType::Double => Ty::Basic("double"),
            DeclType::Text(_) => STRING,
            DeclType::Bytes(_) => Ty::Basic("bytes"),
            DeclType::Date | DeclType::Timestamp => Ty::Basic(TIMESTAMP),
            DeclType::Duration => Ty::Basic(DURATION),
            DeclType::Environment(name) => Ty::Basic(name),
            DeclType::List(_) | DeclType::Map(_) | DeclType::Object(_) => Ty::DeclType(shape),
        }
    }

    pub(super) fn list(of: Ty<'s>) -> Ty<'s> {
        Ty::List(Arc::new(of))
    }

    pub(super) fn map(key: Ty<'s>, value: Ty<'s>) -> Ty<'s> {
        Ty::Map(Arc::new([key, value]))
    }

    pub(super) fn optional(of: Ty<'s>) -> Ty<'s> {
        Ty::Optional(Arc::new(of))
    }

    /// The name of the type, without parameters.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Ty::Dyn | Ty::Parameter(_) => "dyn",
            Ty::Basic(name) => name,
            Ty::List(_) | Ty::DeclType(DeclType::List(_)) => "list",
            Ty::Optional(_) => "optional_type",
            Ty::Map(_) | Ty::DeclType(_) => "map",
        }
    }

    pub(super) fn is_dyn(&self) -> bool {
        matches!(self, Ty::Dyn | Ty::Parameter(_))
    }

    /// Whether a value may have the type with this name at evaluation.
    pub(super) fn may_be(&self, name: &str) -> bool {
        self.is_dyn() || self.name() == name
    }

    /// Whether it is an object with declared fields.
    pub(super) fn is_object(&self) -> bool {
        matches!(self, Ty::DeclType(DeclType::Object(_)))
    }

    /// Whether its values have a fixed size: numbers, booleans, times.
    pub(super) fn is_scalar(&self) -> bool {
        match self {
            Ty::Basic(name) => {
                matches!(*name, "bool" | "int" | "uint" | "double" | TIMESTAMP | DURATION)
            }
            Ty::Optional(inner) => inner.is_scalar(),
            _ => false,
        }
    }

    /// The name with parameters, for messages.
    pub(super) fn show(&self) -> String {
        match self {
            Ty::List(inner) => format!("list({})", inner.show()),
            Ty::Map(parts) => format!("map({}, {})", parts[0].show(), parts[1].show()),
            Ty::Optional(inner) => format!("optional_type({})", inner.show()),
            Ty::DeclType(DeclType::List(list)) => format!("list({})", Ty::of(&list.items).show()),
            Ty::DeclType(DeclType::Map(map)) => {
                format!("map(string, {})", Ty::of(&map.values).show())
            }
            Ty::DeclType(_) => "object".to_owned(),
            Ty::Basic("null_type") => "null".to_owned(),
            other => other.name().to_owned(),
        }
    }

    /// The keys of a map.
    pub(super) fn keys(&self) -> Ty<'s> {
        match self {
            Ty::Map(parts) => parts[0].clone(),
            Ty::DeclType(DeclType::Map(_)) => STRING,
            _ => Ty::Dyn,
        }
    }

    /// The element type of a list or map.
    pub(super) fn values(&self) -> Ty<'s> {
        match self {
            Ty::List(inner) => (**inner).clone(),
            Ty::Map(parts) => parts[1].clone(),
            Ty::DeclType(DeclType::List(list)) => Ty::of(&list.items),
            Ty::DeclType(DeclType::Map(map)) => Ty::of(&map.values),
            _ => Ty::Dyn,
        }
    }

    /// The types of a macro's one or two variables over this type.
    pub(super) fn steps(&self, is_pair: bool) -> (Ty<'s>, Option<Ty<'s>>) {
        let is_list = self.name() == "list";
        match (is_list, is_pair) {
            (true, true) => (INT, Some(self.values())),
            (true, false) => (self.values(), None),
            (false, true) => (self.keys(), Some(self.values())),
            (false, false) => (self.keys(), None),
        }
    }

    /// Whether a value of one type is assignable to the other.
    pub(super) fn goes_with(&self, other: &Ty<'s>) -> bool {
        match (self, other) {
            (Ty::Dyn, _) | (_, Ty::Dyn) => true,
            (Ty::Basic("null_type"), other) | (other, Ty::Basic("null_type")) => {
                other.is_nullable()
            }
            (Ty::Basic(a), Ty::Basic(b)) => a == b,
            (Ty::Optional(a), Ty::Optional(b)) => a.goes_with(b),
            _ if self.is_object() || other.is_object() => self.is_object() && other.is_object(),
            _ => {
                self.name() == other.name()
                    && matches!(self.name(), "list" | "map")
                    && self.keys().goes_with(&other.keys())
                    && self.values().goes_with(&other.values())
            }
        }
    }

    /// Whether it can be compared with null: objects and wrappers can.
    fn is_nullable(&self) -> bool {
        match self {
            Ty::Basic(name) => {
                !matches!(*name, "bool" | "int" | "uint" | "double" | "string" | "bytes" | "type")
            }
            Ty::Optional(_) | Ty::Dyn | Ty::Parameter(_) => true,
            Ty::List(_) | Ty::Map(_) => false,
            Ty::DeclType(shape) => matches!(shape, DeclType::Object(_)),
        }
    }
}
