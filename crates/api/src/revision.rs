//! The store's number of a change, and its representation on the wire, the resourceVersion.
//!
//! Promise: revisions are compared as numbers, never as strings.

use std::fmt;

/// One position in the store-wide sequence of changes. Zero means "nothing yet" or "unset".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl Revision {
    /// Before the first change.
    pub const ZERO: Revision = Revision(0);

    /// The revision after this one.
    #[must_use]
    pub fn next(self) -> Revision {
        Revision(self.0.saturating_add(1))
    }

    /// Parses a resourceVersion: decimal digits only, as Kubernetes does (`01` is 1).
    pub fn parse(text: &str) -> Option<Revision> {
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        text.parse().ok().map(Revision)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_decimal_digits_are_a_revision() {
        assert_eq!(Revision::parse("01"), Some(Revision(1)));
        assert_eq!(Revision::parse("18446744073709551615"), Some(Revision(u64::MAX)));
        for bad in ["", "abc", "-1", "+1", " 1", "1.5", "0x10", "1e3", "18446744073709551616"] {
            assert_eq!(Revision::parse(bad), None, "{bad:?}");
        }
    }
}
