//! The merge structure of custom kinds, from their schema (S9.16).

use headwater_json::{Value, json};

use super::{Additional, List, Node, Schema, Type};
use crate::managed::{Builtin, Form, Structure};

/// A node in the schema of a custom kind.
#[derive(Clone, Copy)]
pub struct Structured<'a>(Place<'a>);

#[derive(Clone, Copy)]
enum Place<'a> {
    Root(&'a Node),
    Node(&'a Node),
    /// `apiVersion` or `kind`.
    Text,
    /// Inside `metadata`.
    Metadata(Builtin),
    /// A value without a schema.
    Anything,
}

impl Schema {
    /// The schema as apply sees it.
    pub fn structure(&self) -> Structured<'_> {
        Structured(Place::Root(&self.root))
    }
}

impl<'a> Place<'a> {
    fn node(self) -> Option<&'a Node> {
        match self {
            Place::Root(node) | Place::Node(node) => Some(node),
            Place::Text | Place::Metadata(_) | Place::Anything => None,
        }
    }

    fn is_resource(self) -> bool {
        match self {
            Place::Root(_) => true,
            Place::Node(node) => node.embedded,
            Place::Text | Place::Metadata(_) | Place::Anything => false,
        }
    }
}

impl Structure for Structured<'_> {
    fn form(self) -> Form {
        let node = match self.0 {
            Place::Root(_) => return Form::Map,
            Place::Text => return Form::Text,
            Place::Metadata(inner) => return inner.form(),
            Place::Anything => return Form::Deduced,
            Place::Node(node) => node,
        };
        match node.types.single() {
            Some(Type::String) => Form::Text,
            Some(Type::Integer | Type::Number) => Form::Number,
            Some(Type::Boolean) => Form::Bool,
            Some(Type::Object) if node.atomic => Form::AtomicMap,
            Some(Type::Object) => Form::Map,
            Some(Type::Array) => match node.list {
                List::Atomic => Form::AtomicList,
                List::Set => Form::Set,
                List::Map(_) => Form::KeyedList,
            },
            None if node.types.is_empty() => Form::Deduced,
            None => Form::Scalar,
        }
    }

    fn field(self, key: &str) -> Option<Self> {
        if let Place::Metadata(inner) = self.0 {
            return inner.field(key).map(|inner| Structured(Place::Metadata(inner)));
        }
        if self.0.is_resource() {
            match key {
                "metadata" => return Builtin::metadata().map(|of| Structured(Place::Metadata(of))),
                "apiVersion" | "kind" => return Some(Structured(Place::Text)),
                _ => {}
            }
        }
        self.0.node()?.property(key).map(|node| Structured(Place::Node(node)))
    }

    fn element(self) -> Option<Self> {
        let place = match self.0 {
            Place::Metadata(inner) => Place::Metadata(inner.element()?),
            Place::Anything => Place::Anything,
            Place::Text => return None,
            Place::Root(node) | Place::Node(node) => match (&node.items, &node.additional) {
                (Some(items), _) => Place::Node(items),
                (None, Some(Additional::Of(inner))) => Place::Node(inner),
                (None, Some(Additional::Any)) => Place::Anything,
                _ if node.preserve || node.types.is_empty() => Place::Anything,
                _ => return None,
            },
        };
        Some(Structured(place))
    }

    fn keys(self) -> Vec<String> {
        match self.0 {
            Place::Metadata(inner) => inner.keys(),
            Place::Node(Node { list: List::Map(keys), .. }) => {
                let mut keys: Vec<String> = keys.iter().map(ToString::to_string).collect();
                keys.sort_unstable();
                keys
            }
            _ => Vec::new(),
        }
    }

    fn key_default(self, key: &str) -> Option<Value> {
        match self.0 {
            Place::Metadata(inner) => inner.key_default(key),
            Place::Node(node) => {
                let node = node.items.as_deref().unwrap_or(node);
                node.property(key)?.default.clone()
            }
            _ => None,
        }
    }

    fn empty(self) -> Value {
        json!({ "metadata": {} })
    }
}
