//! The resourceVersion of an object or list, compared as KEP-5504 specifies.
//!
//! River: on every object, list, event and bookmark.
//! Promise: two versions are ordered only if both are decimal numbers without a leading zero; any
//! other text is kept unchanged and never ordered.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A `metadata.resourceVersion`. Cheap to clone.
///
/// ```
/// use std::cmp::Ordering;
/// use headwater_client::ResourceVersion;
///
/// let (a, b) = (ResourceVersion::new("99"), ResourceVersion::new("100"));
/// assert_eq!(a.compare(&b), Some(Ordering::Less));
/// assert_eq!(a.compare(&ResourceVersion::new("abc")), None);
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ResourceVersion(Form);

/// Well-formed versions that fit are stored as numbers, which saves an allocation per event.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Form {
    Number(u64),
    Text(Arc<str>),
}

impl ResourceVersion {
    /// Makes a version from its text on the wire.
    pub fn new(text: &str) -> ResourceVersion {
        match text.parse() {
            Ok(number) if is_well_formed(text) => ResourceVersion(Form::Number(number)),
            _ => ResourceVersion(Form::Text(text.into())),
        }
    }

    /// Whether it can be ordered: digits only, not empty, no leading zero.
    pub(crate) fn is_well_formed(&self) -> bool {
        match &self.0 {
            Form::Number(_) => true,
            Form::Text(text) => is_well_formed(text),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        matches!(&self.0, Form::Text(text) if text.is_empty())
    }

    /// The order of two versions of one resource on one server; `None` if either is not
    /// well-formed. A longer number is greater; equal lengths compare as text.
    pub fn compare(&self, other: &ResourceVersion) -> Option<Ordering> {
        if let (Form::Number(a), Form::Number(b)) = (&self.0, &other.0) {
            return Some(a.cmp(b));
        }
        if !self.is_well_formed() || !other.is_well_formed() {
            return None;
        }
        let (a, b) = (self.text(), other.text());
        Some(a.len().cmp(&b.len()).then_with(|| a.cmp(&b)))
    }

    /// Whether it is older than `other`; false if they cannot be ordered.
    pub(crate) fn is_before(&self, other: &ResourceVersion) -> bool {
        self.compare(other) == Some(Ordering::Less)
    }

    /// Its text on the wire.
    pub fn text(&self) -> Cow<'_, str> {
        match &self.0 {
            Form::Number(number) => Cow::Owned(number.to_string()),
            Form::Text(text) => Cow::Borrowed(text),
        }
    }

    /// The last 15 digits as a number, for a gauge: a float represents no more without loss.
    pub(crate) fn gauge(&self) -> i64 {
        let text = self.text();
        let tail = text.get(text.len().saturating_sub(15)..).unwrap_or_default();
        tail.parse().unwrap_or(0)
    }
}

fn is_well_formed(text: &str) -> bool {
    !text.is_empty() && !text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit())
}

impl fmt::Display for ResourceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Form::Number(number) => number.fmt(f),
            Form::Text(text) => f.write_str(text),
        }
    }
}

impl fmt::Debug for ResourceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl From<&str> for ResourceVersion {
    fn from(text: &str) -> ResourceVersion {
        ResourceVersion::new(text)
    }
}

impl Serialize for ResourceVersion {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ResourceVersion {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = ResourceVersion;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a resourceVersion")
            }

            fn visit_str<E>(self, text: &str) -> Result<ResourceVersion, E> {
                Ok(ResourceVersion::new(text))
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// C4.13, C27.5
    #[test]
    fn versions_compare_by_length_and_then_as_text_and_only_when_well_formed() {
        check("9", "10", Some(Ordering::Less));
        check("100", "100", Some(Ordering::Equal));
        check("18446744073709551616", "18446744073709551615", Some(Ordering::Greater));
        check("99999999999999999999999", "100000000000000000000000", Some(Ordering::Less));
        for bad in ["", "0", "012", "1a", "-1", "+1", " 1", "1.0"] {
            check(bad, "10", None);
            check("10", bad, None);
        }
    }

    #[track_caller]
    fn check(a: &str, b: &str, expected: Option<Ordering>) {
        assert_eq!(ResourceVersion::new(a).compare(&ResourceVersion::new(b)), expected);
    }

    #[test]
    fn the_gauge_shows_the_last_fifteen_digits() {
        assert_eq!(ResourceVersion::new("12345678901234567890").gauge(), 678_901_234_567_890);
        assert_eq!(ResourceVersion::new("42").gauge(), 42);
        assert_eq!(ResourceVersion::new("ä").gauge(), 0);
    }

    proptest! {
        /// C31.11
        #[test]
        fn any_text_is_kept_unchanged(text in ".*") {
            prop_assert_eq!(ResourceVersion::new(&text).to_string(), text);
        }
    }
}
