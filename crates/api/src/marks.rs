//! Marks: a Bloom filter of 128 bits over the labels and selectable fields of an object.
//!
//! River: object, selector → **marks** → lists that select few objects. Most objects of such a list
//! do not match, and reading the labels of each would cost more than everything else. An object
//! sets three bits for each label and selectable field; a selector knows the bits that every
//! matching object has.
//! Promise: a matching object is never ruled out; an object that does not match may have to be
//! checked.

use crate::fnv::{BASIS, extended};

/// A set of bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Marks([u64; 2]);

impl Marks {
    /// The marks of a label with a value.
    pub(crate) fn label(key: &str, value: &str) -> Marks {
        Marks::of(extended(extended(BASIS, key.as_bytes()) ^ SEPARATOR, value.as_bytes()))
    }

    /// The marks of a kind's `index`-th selectable field with a value.
    pub(crate) fn field(index: usize, value: &str) -> Marks {
        Marks::of(extended(BASIS ^ (index as u64 + 1), value.as_bytes()))
    }

    fn of(hash: u64) -> Marks {
        let hash = hash ^ (hash >> 29);
        let mut marks = [0; 2];
        for bit in [hash, hash >> 7, hash >> 14] {
            marks[(bit >> 6 & 1) as usize] |= 1 << (bit & 63);
        }
        Marks(marks)
    }

    /// Adds the bits of another set.
    pub fn add(&mut self, other: Marks) {
        self.0[0] |= other.0[0];
        self.0[1] |= other.0[1];
    }

    /// Whether it contains all bits of another set.
    pub fn cover(self, other: Marks) -> bool {
        (other.0[0] & !self.0[0]) | (other.0[1] & !self.0[1]) == 0
    }
}

const SEPARATOR: u64 = 0xff;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_objects_that_do_not_match_are_ruled_out() {
        let mut object = Marks::default();
        for (key, value) in [("app", "web"), ("tier", "front"), ("team", "a"), ("hash", "7d4b9")] {
            object.add(Marks::label(key, value));
        }
        assert!(object.cover(Marks::label("app", "web")) && object.cover(Marks::default()));
        let others = (0..1000).map(|n| Marks::label("shard", &format!("s{n}")));
        let passing = others.filter(|other| object.cover(*other)).count();
        assert!(passing < 10, "{passing} of 1000");
    }
}
