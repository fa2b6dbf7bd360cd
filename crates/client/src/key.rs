//! The key of an object: its namespace and name.
//!
//! River: identifies objects in every stage after the decoder.
//! Promise: keys convert to text and back without loss; keys are ordered by their text, so the
//! objects of a namespace are adjacent.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// `namespace/name`, or `name` for cluster-scoped objects. Cheap to clone.
///
/// ```
/// use headwater_client::Key;
///
/// let key: Key = "shop/web-0".parse()?;
/// assert_eq!((key.namespace(), key.name()), (Some("shop"), "web-0"));
/// assert_eq!(Key::cluster("node-7").to_string(), "node-7");
/// assert!("a/b/c".parse::<Key>().is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Key {
    text: Arc<str>,
    /// Zero for cluster-scoped objects.
    namespace_len: u32,
}

/// The text is not a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a key: expected \"namespace/name\" or \"name\"")]
pub struct InvalidKey(String);

impl Key {
    /// The key of an object with or without a namespace. An empty namespace counts as none.
    pub fn new(namespace: Option<&str>, name: &str) -> Key {
        match namespace {
            None | Some("") => Key { text: name.into(), namespace_len: 0 },
            Some(namespace) => Key {
                text: [namespace, "/", name].concat().into(),
                namespace_len: namespace.len() as u32,
            },
        }
    }

    /// The key of an object in a namespace.
    pub fn namespaced(namespace: &str, name: &str) -> Key {
        Key::new(Some(namespace), name)
    }

    /// The key of a cluster-scoped object.
    pub fn cluster(name: &str) -> Key {
        Key::new(None, name)
    }

    /// The namespace, if the object has one.
    pub fn namespace(&self) -> Option<&str> {
        match self.namespace_len {
            0 => None,
            len => self.text.get(..len as usize),
        }
    }

    /// The name.
    pub fn name(&self) -> &str {
        match self.namespace_len {
            0 => &self.text,
            len => &self.text[len as usize + 1..],
        }
    }

    /// `namespace/name`, or `name`.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl FromStr for Key {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Key, InvalidKey> {
        match text.split_once('/') {
            None if !text.is_empty() => Ok(Key::cluster(text)),
            Some((namespace, name))
                if !namespace.is_empty() && !name.is_empty() && !name.contains('/') =>
            {
                Ok(Key::namespaced(namespace, name))
            }
            _ => Err(InvalidKey(text.to_owned())),
        }
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        self.text == other.text
    }
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Key) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Key) -> std::cmp::Ordering {
        self.text.cmp(&other.text)
    }
}

impl std::hash::Hash for Key {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.text, f)
    }
}

impl Serialize for Key {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Key, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C11.1
    #[test]
    fn keys_convert_both_ways_without_loss_and_a_second_slash_is_refused() {
        check("shop/web-0", Some("shop"), "web-0");
        check("node-7", None, "node-7");
        check("a.b/c", Some("a.b"), "c");
        for bad in ["", "/", "a/", "/b", "a/b/c", "a//b"] {
            assert!(bad.parse::<Key>().is_err(), "{bad:?}");
        }
    }

    #[track_caller]
    fn check(text: &str, namespace: Option<&str>, name: &str) {
        let key: Key = text.parse().unwrap();
        assert_eq!((key.namespace(), key.name(), key.as_str()), (namespace, name, text));
        assert_eq!(Key::new(namespace, name), key);
        let json = serde_json::to_string(&key).unwrap();
        assert_eq!(serde_json::from_str::<Key>(&json).unwrap(), key);
    }
}
