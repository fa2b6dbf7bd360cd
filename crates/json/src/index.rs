//! Access to a tree by key, by index and by JSON pointer.

use std::ops;

use super::{Map, MemberKey, Text, Value};

static NULL: Value = Value::Null;

/// A key of an object or an index of a list.
pub trait Index {
    /// The value, if it exists.
    fn of<'v>(&self, value: &'v Value) -> Option<&'v Value>;
    /// The value, mutable.
    fn of_mut<'v>(&self, value: &'v mut Value) -> Option<&'v mut Value>;
    /// The value; inserted if it is absent and can be.
    fn make<'v>(&self, value: &'v mut Value) -> &'v mut Value;
}

impl Index for usize {
    fn of<'v>(&self, value: &'v Value) -> Option<&'v Value> {
        value.as_array()?.get(*self)
    }

    fn of_mut<'v>(&self, value: &'v mut Value) -> Option<&'v mut Value> {
        value.as_array_mut()?.get_mut(*self)
    }

    fn make<'v>(&self, value: &'v mut Value) -> &'v mut Value {
        self.of_mut(value).expect("the list has this index")
    }
}

impl Index for str {
    #[inline(always)]
    fn of<'v>(&self, value: &'v Value) -> Option<&'v Value> {
        value.as_object()?.get(self)
    }

    #[inline(always)]
    fn of_mut<'v>(&self, value: &'v mut Value) -> Option<&'v mut Value> {
        value.as_object_mut()?.get_mut(self)
    }

    fn make<'v>(&self, value: &'v mut Value) -> &'v mut Value {
        if value.is_null() {
            *value = Value::Object(Map::new());
        }
        let members = value.as_object_mut().expect("only objects have keys");
        members.entry(self).or_insert(Value::Null)
    }
}

macro_rules! text_index {
    ($($text:ty),*) => {
        $(impl Index for $text {
            fn of<'v>(&self, value: &'v Value) -> Option<&'v Value> {
                self.as_str().of(value)
            }

            fn of_mut<'v>(&self, value: &'v mut Value) -> Option<&'v mut Value> {
                self.as_str().of_mut(value)
            }

            fn make<'v>(&self, value: &'v mut Value) -> &'v mut Value {
                self.as_str().make(value)
            }
        })*
    };
}
text_index!(String, Text, MemberKey);

impl<T: Index + ?Sized> Index for &T {
    #[inline(always)]
    fn of<'v>(&self, value: &'v Value) -> Option<&'v Value> {
        (**self).of(value)
    }

    #[inline(always)]
    fn of_mut<'v>(&self, value: &'v mut Value) -> Option<&'v mut Value> {
        (**self).of_mut(value)
    }

    fn make<'v>(&self, value: &'v mut Value) -> &'v mut Value {
        (**self).make(value)
    }
}

impl Value {
    /// The value of a key or at an index.
    #[inline(always)]
    pub fn get(&self, index: impl Index) -> Option<&Value> {
        index.of(self)
    }

    /// The value of a key or at an index, mutable.
    #[inline(always)]
    pub fn get_mut(&mut self, index: impl Index) -> Option<&mut Value> {
        index.of_mut(self)
    }

    /// The value at a JSON pointer (RFC 6901).
    pub fn pointer(&self, pointer: &str) -> Option<&Value> {
        steps(pointer)?.try_fold(self, |value, step| match value {
            Value::Object(members) => members.get(&step),
            Value::Array(items) => items.get(position(&step)?),
            _ => None,
        })
    }

    /// The value at a JSON pointer, mutable.
    pub fn pointer_mut(&mut self, pointer: &str) -> Option<&mut Value> {
        steps(pointer)?.try_fold(self, |value, step| match value {
            Value::Object(members) => members.get_mut(&step),
            Value::Array(items) => items.get_mut(position(&step)?),
            _ => None,
        })
    }
}

/// The unescaped segments of a pointer; the empty pointer has none.
fn steps(pointer: &str) -> Option<impl Iterator<Item = String>> {
    if !pointer.is_empty() && !pointer.starts_with('/') {
        return None;
    }
    Some(pointer.split('/').skip(1).map(|step| step.replace("~1", "/").replace("~0", "~")))
}

fn position(step: &str) -> Option<usize> {
    if step.starts_with('+') || (step.starts_with('0') && step.len() != 1) {
        return None;
    }
    step.parse().ok()
}

/// `null` if the value is absent.
impl<I: Index> ops::Index<I> for Value {
    type Output = Value;

    #[inline(always)]
    fn index(&self, index: I) -> &Value {
        index.of(self).unwrap_or(&NULL)
    }
}

/// Inserts the value if it is absent.
impl<I: Index> ops::IndexMut<I> for Value {
    fn index_mut(&mut self, index: I) -> &mut Value {
        index.make(self)
    }
}

/// The value of a key; panics if it is absent.
impl ops::Index<&str> for Map {
    type Output = Value;

    fn index(&self, key: &str) -> &Value {
        self.get(key).expect("the object has this key")
    }
}

/// The value of a key; inserted if it is absent.
impl ops::IndexMut<&str> for Map {
    fn index_mut(&mut self, key: &str) -> &mut Value {
        self.entry(key).or_insert(Value::Null)
    }
}

#[cfg(test)]
mod tests {
    use crate::json;

    #[test]
    fn a_pointer_finds_its_value() {
        let value = json!({ "a": [{ "b/c": 1, "d~e": 2 }, 3] });
        assert_eq!(value.pointer(""), Some(&value));
        assert_eq!(value.pointer("/a/0/b~1c"), Some(&json!(1)));
        assert_eq!(value.pointer("/a/0/d~0e"), Some(&json!(2)));
        for nowhere in ["a", "/a/01", "/a/+1", "/a/2", "/b", "/a/0/b~1c/x"] {
            assert_eq!(value.pointer(nowhere), None, "{nowhere}");
        }
    }

    #[test]
    fn indexing_reads_null_and_inserts_missing_values() {
        let mut value = json!({ "a": 1 });
        assert!(value["b"]["c"].is_null());
        value["b"]["c"] = 2.into();
        assert_eq!(value, json!({ "a": 1, "b": { "c": 2 } }));
    }
}
