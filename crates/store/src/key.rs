//! Keys: where an object lives in the store.
//!
//! `/registry/<group>/<resource>/[<namespace>/]<name>`, the core group written as `core`.
//! Promise: segments are never empty, `.` or `..` and hold no `/` or NUL, and every prefix that is
//! scanned ends in the separator, so no request can reach outside its own collection (R49).

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

/// What every key begins with.
pub const ROOT: &str = "/registry/";

/// The place of one object.
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

    /// The whole key.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A key is ordered and compared as its text, so maps of keys can be searched with text.
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

/// What the keys of a resource begin with; ends in `/`.
pub fn collection(group: &str, plural: &str) -> String {
    let group = if group.is_empty() { "core" } else { group };
    format!("{ROOT}{group}/{plural}/")
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
    fn collections_are_separate_even_when_one_name_begins_with_another() {
        assert_eq!(collection("", "pods"), "/registry/core/pods/");
        assert!(!collection("", "podsx").starts_with(&collection("", "pods")));
    }

    /// S6.1
    #[test]
    fn segments_cannot_climb() {
        for bad in ["", ".", "..", "a/b", "a\0", "a%2f"] {
            assert!(!is_segment(bad), "{bad:?}");
        }
        assert!(is_segment("a..b"));
    }
}
