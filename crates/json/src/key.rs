//! The key of a member.
//!
//! Promise: keys are ordered by their bytes. A key stores its first eight bytes as a number, so
//! that searches compare numbers: most keys of one object differ in those bytes.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

use super::Text;
use crate::wide;

/// The key of a member.
#[derive(Clone)]
pub struct MemberKey {
    begin: u64,
    text: Text,
}

impl MemberKey {
    /// A key with this text.
    #[inline]
    pub fn new(text: &str) -> MemberKey {
        MemberKey { begin: wide::begin(text), text: text.into() }
    }

    /// The first eight bytes, as a number.
    #[inline]
    pub fn begin(&self) -> u64 {
        self.begin
    }

    /// The order relative to a text, given the text's first eight bytes as a number.
    #[inline]
    pub fn order(&self, begin: u64, text: &str) -> Ordering {
        self.begin.cmp(&begin).then_with(|| match self.text.len().max(text.len()) {
            // The numbers contain both texts completely, apart from trailing zeros.
            ..=8 => self.text.len().cmp(&text.len()),
            _ => self.text.as_str().cmp(text),
        })
    }

    /// The text alone.
    #[inline]
    pub fn into_text(self) -> Text {
        self.text
    }
}

/// A key for repeated lookups; its number is computed once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    begin: u64,
    text: &'static str,
}

impl Name {
    #[inline]
    pub fn new(text: &'static str) -> Name {
        Name { begin: wide::begin(text), text }
    }

    #[inline]
    pub fn begin(self) -> u64 {
        self.begin
    }

    #[inline]
    pub fn as_str(self) -> &'static str {
        self.text
    }
}

impl Deref for MemberKey {
    type Target = Text;

    fn deref(&self) -> &Text {
        &self.text
    }
}

impl AsRef<str> for MemberKey {
    fn as_ref(&self) -> &str {
        &self.text
    }
}

impl Borrow<str> for MemberKey {
    fn borrow(&self) -> &str {
        &self.text
    }
}

impl<T: Into<Text>> From<T> for MemberKey {
    fn from(text: T) -> MemberKey {
        let text = text.into();
        MemberKey { begin: wide::begin(&text), text }
    }
}

impl PartialEq for MemberKey {
    fn eq(&self, other: &MemberKey) -> bool {
        self.order(other.begin, &other.text).is_eq()
    }
}

impl Eq for MemberKey {}

impl PartialEq<str> for MemberKey {
    fn eq(&self, other: &str) -> bool {
        self.text == other
    }
}

impl PartialEq<&str> for MemberKey {
    fn eq(&self, other: &&str) -> bool {
        self.text == *other
    }
}

impl Ord for MemberKey {
    fn cmp(&self, other: &MemberKey) -> Ordering {
        self.order(other.begin, &other.text)
    }
}

impl PartialOrd for MemberKey {
    fn partial_cmp(&self, other: &MemberKey) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Hash for MemberKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl fmt::Debug for MemberKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl fmt::Display for MemberKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn keys_are_ordered_by_their_text(
            one in "[ab\u{0}é]{0,20}", other in "[ab\u{0}é]{0,20}", more in "[a-c]{0,20}",
        ) {
            for other in [&other, &one, &format!("{one}{more}")] {
                let (key, other_key) = (MemberKey::from(&one), MemberKey::from(other));
                prop_assert_eq!(key.cmp(&other_key), one.cmp(other));
                prop_assert_eq!(key.order(wide::begin(other), other), one.cmp(other));
                prop_assert_eq!(key == other_key, one == *other);
            }
        }
    }
}
