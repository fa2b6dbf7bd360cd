//! Keys of objects in the store.
//!
//! A key is `/registry/<group>/<resource>/[<namespace>/]<name>`; the core group is written as
//! `core`.
//! Promise: a segment is not empty, `.` or `..`, and contains no `/`, `%` or NUL. Every scanned
//! prefix ends with the separator, so no request can reach outside its collection (R49).

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

/// The prefix of every key.
pub const ROOT: &str = "/registry/";

/// The key of one object.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

impl Key {
    /// A key as it is stored.
    pub fn new(text: impl Into<Arc<str>>) -> Key {
        Key(text.into())
    }

    /// The key of an object: its collection's prefix and `namespace/name` or `name`.
    pub fn in_collection(prefix: &str, object: &str) -> Key {
        Key(format!("{prefix}{object}").into())
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A key is ordered and compared as its text, so a map of keys can be searched with text.
impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The prefix of the keys of a resource; ends with `/`.
pub fn collection(group: &str, plural: &str) -> String {
    let group = if group.is_empty() { "core" } else { group };
    format!("{ROOT}{group}/{plural}/")
}

/// The collection of a key: `/registry/core/pods/default/a` is in `/registry/core/pods/`.
pub fn collection_of(key: &str) -> &str {
    let mut slashes = key.match_indices('/').map(|(at, _)| at);
    match slashes.nth(3) {
        Some(end) => &key[..=end],
        None => key,
    }
}

/// Whether `text` may be a segment of a key.
pub fn is_segment(text: &str) -> bool {
    !matches!(text, "" | "." | "..") && !text.contains(['/', '\0', '%'])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S6.1
    #[test]
    fn collections_are_separate_even_if_one_name_is_a_prefix_of_another() {
        assert_eq!(collection("", "pods"), "/registry/core/pods/");
        assert!(!collection("", "podsx").starts_with(&collection("", "pods")));
    }

    #[test]
    fn a_key_belongs_to_its_collection() {
        assert_eq!(collection_of("/registry/core/pods/default/a"), "/registry/core/pods/");
        assert_eq!(collection_of("/registry/apps/deployments/ns/a"), "/registry/apps/deployments/");
        assert_eq!(collection_of("/registry/core/nodes/n1"), "/registry/core/nodes/");
    }

    /// S6.1
    #[test]
    fn segments_cannot_escape_their_collection() {
        for bad in ["", ".", "..", "a/b", "a\0", "a%2f"] {
            assert!(!is_segment(bad), "{bad:?}");
        }
        assert!(is_segment("a..b"));
    }
}
