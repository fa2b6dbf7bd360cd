//! Shard selectors: parts of a collection by the hash of a field (S5.40).
//!
//! `shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')` selects one half of
//! the objects. The field of an object never changes, so an object stays in its shard.

use std::fmt;
use std::sync::Arc;

use super::{check_length, check_terms};
use crate::fnv;
use crate::object::Object;
use crate::query::bad_request;
use crate::status::Status;

/// The field whose hash decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ShardField {
    /// `metadata.uid`.
    Uid,
    /// `metadata.namespace`: the objects of a namespace are in one shard.
    Namespace,
}

/// The objects whose hash is in one of some ranges.
///
/// ```
/// use headwater_api::selector::{ShardField, ShardSelector};
///
/// let halves = [0, 1].map(|index| ShardSelector::part(ShardField::Uid, index, 2).unwrap());
/// assert!(halves[0].includes("u-1", "") != halves[1].includes("u-1", ""));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ShardSelector {
    field: ShardField,
    ranges: Arc<[HashRange]>,
}

/// From `start` to before `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct HashRange {
    start: u64,
    /// Above `start`; at most [`HASHES`].
    end: u128,
}

/// The number of hashes.
const HASHES: u128 = 1 << 64;

impl ShardSelector {
    /// The `index`-th of `count` equal parts; `None` if there is no such part.
    pub fn part(field: ShardField, index: u32, count: u32) -> Option<ShardSelector> {
        if index >= count {
            return None;
        }
        let bound = |index: u32| u128::from(index) * HASHES / u128::from(count);
        // The start of a part is below the number of hashes.
        let range = HashRange { start: bound(index) as u64, end: bound(index + 1) };
        Some(ShardSelector { field, ranges: [range].into() })
    }

    /// Parses a selector; `None` if it is empty.
    pub fn parse(text: &str) -> Result<Option<ShardSelector>, Status> {
        if text.trim().is_empty() {
            return Ok(None);
        }
        check_length(text)?;
        let terms: Vec<&str> = text.split("||").collect();
        check_terms(terms.len())?;
        let invalid = |why: &str| bad_request(format!("invalid shardSelector {text:?}: {why}"));
        let parsed: Result<Vec<(ShardField, HashRange)>, &str> =
            terms.into_iter().map(term).collect();
        let parsed = parsed.map_err(invalid)?;
        let field = parsed.first().map_or(ShardField::Uid, |(field, _)| *field);
        if parsed.iter().any(|(other, _)| *other != field) {
            return Err(invalid("all ranges must have the same field"));
        }
        Ok(Some(ShardSelector {
            field,
            ranges: parsed.into_iter().map(|(_, range)| range).collect(),
        }))
    }

    /// Whether an object belongs to it.
    pub fn matches(&self, object: &Object) -> bool {
        self.includes(object.uid(), object.namespace())
    }

    /// Whether an object with this uid and namespace belongs to it.
    pub fn includes(&self, uid: &str, namespace: &str) -> bool {
        let hash = fnv::hash(match self.field {
            ShardField::Uid => uid.as_bytes(),
            ShardField::Namespace => namespace.as_bytes(),
        });
        self.ranges.iter().any(|range| hash >= range.start && u128::from(hash) < range.end)
    }
}

/// The canonical text.
impl fmt::Display for ShardSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let field = match self.field {
            ShardField::Uid => UID,
            ShardField::Namespace => NAMESPACE,
        };
        for (index, HashRange { start, end }) in self.ranges.iter().enumerate() {
            let or = if index == 0 { "" } else { " || " };
            write!(f, "{or}shardRange({field}, '0x{start:016x}', '0x{end:016x}')")?;
        }
        Ok(())
    }
}

const UID: &str = "object.metadata.uid";
const NAMESPACE: &str = "object.metadata.namespace";

/// `shardRange(field, 'start', 'end')`.
fn term(text: &str) -> Result<(ShardField, HashRange), &'static str> {
    let arguments = text.trim().strip_prefix("shardRange").map(str::trim_start);
    let arguments = arguments.and_then(|text| text.strip_prefix('(')?.strip_suffix(')'));
    let arguments: Option<Vec<&str>> =
        arguments.map(|text| text.split(',').map(str::trim).collect());
    let Some([field, start, end]) = arguments.as_deref() else {
        return Err("expected shardRange(field, 'start', 'end'), joined by ||");
    };
    let field = match *field {
        UID => ShardField::Uid,
        NAMESPACE => ShardField::Namespace,
        _ => return Err("the field must be object.metadata.uid or object.metadata.namespace"),
    };
    let bounds = bound(start).zip(bound(end));
    let (start, end) = bounds.ok_or("a bound must be '0x' and 16 lower-case hexadecimal digits")?;
    match u64::try_from(start) {
        Ok(start) if u128::from(start) < end => Ok((field, HashRange { start, end })),
        _ => Err("the start of a range must be below its end"),
    }
}

fn bound(text: &str) -> Option<u128> {
    let quoted = |quote: char| text.strip_prefix(quote)?.strip_suffix(quote);
    let digits = quoted('\'').or_else(|| quoted('"'))?.strip_prefix("0x")?;
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_valid = digits.bytes().all(is_digit) && (digits.len() == 16 || digits == ALL);
    u128::from_str_radix(digits, 16).ok().filter(|_| is_valid)
}

/// The end of the last range, which has one digit more.
const ALL: &str = "10000000000000000";

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> ShardSelector {
        ShardSelector::parse(text).unwrap().unwrap()
    }

    const LOW: &str = "shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')";

    /// S5.40
    #[test]
    fn selectors_have_one_canonical_text() {
        let ends = "'0x00000000000000ff', '0x10000000000000000'";
        let both = format!("{LOW} || shardRange(object.metadata.uid, {ends})");
        for text in [
            both.clone(),
            both.replace(' ', ""),
            both.replace('\'', "\""),
            both.replace('(', " ( ").replace("||", "\n||\t"),
        ] {
            assert_eq!(parsed(&text).to_string(), both, "{text}");
        }
        assert_eq!(ShardSelector::parse(" ").unwrap(), None);
        let namespaces = LOW.replace("uid", "namespace");
        assert_eq!(parsed(&namespaces).to_string(), namespaces);
    }

    /// S5.40
    #[test]
    fn other_texts_are_refused() {
        for bad in [
            "shardRange",
            "shardRange()",
            "shardRange(object.metadata.uid, '0x0000000000000000')",
            "shardRange(object.metadata.name, '0x0000000000000000', '0x8000000000000000')",
            "shardRange(object.metadata.uid, '0x0', '0x8000000000000000')",
            "shardRange(object.metadata.uid, 0x0000000000000000, '0x8000000000000000')",
            "shardRange(object.metadata.uid, '0x000000000000000A', '0x8000000000000000')",
            "shardRange(object.metadata.uid, '0x8000000000000000', '0x8000000000000000')",
            "shardRange(object.metadata.uid, '0x10000000000000000', '0x10000000000000000')",
            "shardRange(object.metadata.uid, '0x0000000000000000', '0x20000000000000000')",
            &format!("{LOW} ||"),
            &format!("{LOW} && {LOW}"),
            &format!("{LOW} || {}", LOW.replace("uid", "namespace")),
            &format!("!{LOW}"),
        ] {
            assert_eq!(ShardSelector::parse(bad).unwrap_err().code, 400, "{bad}");
        }
        let long = [LOW; 1000].join("||");
        assert_eq!(ShardSelector::parse(&long).unwrap_err().code, 414);
    }

    /// S5.40
    #[test]
    fn the_hash_decides_and_every_object_is_in_one_part() {
        // FNV-1a of "a" is af63dc4c8601ec8c.
        let range = |start: &str, end: &str| {
            parsed(&format!("shardRange(object.metadata.uid, '0x{start}', '0x{end}')"))
        };
        assert!(range("af63dc4c8601ec8c", "af63dc4c8601ec8d").includes("a", "x"));
        assert!(!range("af63dc4c8601ec8d", "10000000000000000").includes("a", "x"));
        assert!(!range("0000000000000000", "af63dc4c8601ec8c").includes("a", "x"));
        for count in [1, 2, 3, 4, 7, 1000] {
            let parts: Vec<ShardSelector> = (0..count)
                .filter_map(|index| ShardSelector::part(ShardField::Uid, index, count))
                .collect();
            assert_eq!(parts.len(), count as usize);
            for object in 0..100 {
                let uid = format!("uid-{object}");
                assert_eq!(parts.iter().filter(|part| part.includes(&uid, "")).count(), 1);
            }
            for part in parts {
                assert_eq!(parsed(&part.to_string()), part);
            }
        }
        assert_eq!(ShardSelector::part(ShardField::Uid, 2, 2), None);
    }
}
