//! The merge structure of kinds: which lists are sets or maps, which values are atomic.

use headwater_json::{Map, Value};

use crate::types::{Merge, Type, Types, ValueType, Zero};
use headwater_api::kind::Kind;

/// A node in the type of a kind. Built-in kinds use [`Builtin`]; custom kinds implement it over their
/// schema.
pub trait Structure: Copy {
    /// The form of a value here.
    fn form(self) -> Form;

    /// The named field of that key, if there is one.
    fn field(self, key: &str) -> Option<Self>;

    /// The node of list elements, or of map members that are not named fields. `None` if only named
    /// fields are allowed.
    fn element(self) -> Option<Self>;

    /// The keys of the elements of a [`Form::KeyedList`], sorted.
    fn keys(self) -> Vec<String>;

    /// The default of a missing key of an element.
    fn key_default(self, key: &str) -> Option<Value>;

    /// The empty object of the kind.
    fn empty(self) -> Value;
}

/// The form of a value for apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A string.
    Text,
    /// A number.
    Number,
    /// A boolean.
    Bool,
    /// Any scalar.
    Scalar,
    /// An object, owned member by member.
    Map,
    /// An atomic object.
    AtomicMap,
    /// An atomic list.
    AtomicList,
    /// A list of scalars, owned element by element.
    Set,
    /// A list of objects, owned element by element.
    KeyedList,
    /// Anything: objects are owned member by member, other values are atomic.
    Deduced,
}

/// A node in the type of a built-in kind.
#[derive(Clone, Copy, Debug)]
pub struct Builtin {
    place: Place,
}

#[derive(Clone, Copy, Debug)]
enum Place {
    Root(&'static Type),
    Below(&'static ValueType, &'static Merge),
}

impl Builtin {
    /// The structure of a built-in kind.
    pub fn of(kind: &Kind) -> Option<Builtin> {
        Types::builtin().of(kind).map(Builtin::root)
    }

    /// The structure of a type.
    pub fn root(of: &'static Type) -> Builtin {
        Builtin { place: Place::Root(of) }
    }

    /// The structure of every object's `metadata`.
    pub fn metadata() -> Option<Builtin> {
        Types::builtin().named("meta/v1.ObjectMeta").map(Builtin::root)
    }

    fn below(shape: &'static ValueType, merge: &'static Merge) -> Builtin {
        Builtin { place: Place::Below(shape, merge) }
    }

    fn fields(self) -> Option<&'static Type> {
        match self.place {
            Place::Root(of) => Some(of),
            Place::Below(ValueType::Struct(id), _) => Some(Types::builtin().get(*id)),
            Place::Below(..) => None,
        }
    }
}

impl Structure for Builtin {
    fn form(self) -> Form {
        let Place::Below(shape, merge) = self.place else { return Form::Map };
        let atomic = *merge == Merge::Atomic;
        match shape {
            ValueType::Text | ValueType::Bytes => Form::Text,
            ValueType::Int32 | ValueType::Int64 | ValueType::Float => Form::Number,
            ValueType::Bool => Form::Bool,
            ValueType::Time
            | ValueType::MicroTime
            | ValueType::Quantity
            | ValueType::IntOrString => Form::Scalar,
            ValueType::Struct(id) if atomic || Types::builtin().get(*id).atomic => Form::AtomicMap,
            ValueType::Map(_) if atomic => Form::AtomicMap,
            ValueType::Struct(_) | ValueType::Map(_) => Form::Map,
            ValueType::List(_) | ValueType::Wrapped(_) => match merge {
                Merge::Set => Form::Set,
                Merge::Keyed(_) => Form::KeyedList,
                Merge::Ordinary | Merge::Atomic => Form::AtomicList,
            },
            ValueType::Any
            | ValueType::SchemaOrList(_)
            | ValueType::SchemaOrBool(_)
            | ValueType::SchemaOrTexts(_) => Form::Deduced,
        }
    }

    fn field(self, key: &str) -> Option<Builtin> {
        let field = self.fields()?.field(key)?;
        Some(Builtin::below(&field.shape, &field.merge))
    }

    fn element(self) -> Option<Builtin> {
        match self.place {
            Place::Below(
                ValueType::Map(inner) | ValueType::List(inner) | ValueType::Wrapped(inner),
                _,
            ) => Some(Builtin::below(inner, &Merge::Ordinary)),
            Place::Below(shape, _) if self.form() == Form::Deduced => {
                Some(Builtin::below(shape, &Merge::Ordinary))
            }
            _ => None,
        }
    }

    fn keys(self) -> Vec<String> {
        match self.place {
            Place::Below(_, Merge::Keyed(keys)) => {
                let mut keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
                keys.sort_unstable();
                keys
            }
            _ => Vec::new(),
        }
    }

    fn key_default(self, key: &str) -> Option<Value> {
        // The only default key of built-in lists: the protocol of container and service ports.
        (key == "protocol").then(|| "TCP".into())
    }

    fn empty(self) -> Value {
        self.fields().map_or(Value::Null, |of| Value::Object(empty(of)))
    }
}

/// The members that are always present.
fn empty(of: &'static Type) -> Map {
    of.always()
        .map(|field| {
            let value = match &field.shape {
                _ if field.zero == Zero::Null => Value::Null,
                ValueType::Struct(id) => Value::Object(empty(Types::builtin().get(*id))),
                ValueType::Text | ValueType::Bytes => "".into(),
                ValueType::Int32 | ValueType::Int64 | ValueType::Float => 0.into(),
                ValueType::Bool => false.into(),
                ValueType::Quantity | ValueType::IntOrString => "0".into(),
                _ => Value::Null,
            };
            (field.name.to_owned(), value)
        })
        .collect()
}

/// A custom kind without a schema: only `metadata` is known.
#[derive(Clone, Copy, Debug)]
pub enum Loose {
    /// The object.
    Root,
    /// Inside `metadata`.
    Metadata(Builtin),
    /// Anywhere else.
    Anything,
}

impl Structure for Loose {
    fn form(self) -> Form {
        match self {
            Loose::Root => Form::Map,
            Loose::Metadata(inner) => inner.form(),
            Loose::Anything => Form::Deduced,
        }
    }

    fn field(self, key: &str) -> Option<Loose> {
        match self {
            Loose::Root if key == "metadata" => Builtin::metadata().map(Loose::Metadata),
            Loose::Metadata(inner) => inner.field(key).map(Loose::Metadata),
            _ => None,
        }
    }

    fn element(self) -> Option<Loose> {
        match self {
            Loose::Root | Loose::Anything => Some(Loose::Anything),
            Loose::Metadata(inner) => inner.element().map(Loose::Metadata),
        }
    }

    fn keys(self) -> Vec<String> {
        match self {
            Loose::Metadata(inner) => inner.keys(),
            _ => Vec::new(),
        }
    }

    fn key_default(self, key: &str) -> Option<Value> {
        match self {
            Loose::Metadata(inner) => inner.key_default(key),
            _ => None,
        }
    }

    fn empty(self) -> Value {
        headwater_json::json!({ "metadata": {} })
    }
}
