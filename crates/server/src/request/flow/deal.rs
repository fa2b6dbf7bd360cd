//! Shuffle sharding: the few queues, of many, that a flow may use.
//!
//! Promise: the hand of a flow depends on its hash alone, its queues differ from each other, and
//! every hand is equally likely.

/// The largest hand. Validation allows no combination that needs more than 60 bits of a hash, and
/// `21!` has more.
const HAND_MAX: usize = 21;

/// The queues of one flow.
pub(super) struct Hand {
    queues: [u32; HAND_MAX],
    size: usize,
}

impl Hand {
    /// Deals `size` of `deck` queues.
    pub(super) fn deal(deck: u32, size: u32, mut hash: u64) -> Hand {
        let mut hand = Hand { queues: [0; HAND_MAX], size: 0 };
        let mut remainders = [0_u32; HAND_MAX];
        let size = (size.min(deck).max(1) as usize).min(HAND_MAX);
        for dealt in 0..size {
            let left = u64::from(deck.max(1)) - dealt as u64;
            remainders[dealt] = (hash % left) as u32;
            hash /= left;
            // The card at this position among those that are left.
            let mut card = remainders[dealt];
            for earlier in remainders[..dealt].iter().rev() {
                card += u32::from(card >= *earlier);
            }
            hand.queues[dealt] = card;
        }
        hand.size = size;
        hand
    }

    /// The queues, beginning with the one at `first`, so that flows with overlapping hands do not
    /// all prefer the same queue.
    pub(super) fn from(&self, first: u64) -> impl Iterator<Item = u32> + '_ {
        let first = (first % self.size as u64) as usize;
        let (before, after) = self.queues[..self.size].split_at(first);
        after.iter().chain(before).copied()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    fn hand(deck: u32, size: u32, hash: u64) -> Vec<u32> {
        Hand::deal(deck, size, hash).from(0).collect()
    }

    /// Takes cards out of a real deck.
    fn naive(deck: u32, size: u32, mut hash: u64) -> Vec<u32> {
        let mut cards: Vec<u32> = (0..deck).collect();
        let mut hand = Vec::new();
        for _ in 0..size {
            let at = hash % cards.len() as u64;
            hash /= cards.len() as u64;
            hand.push(cards.remove(at as usize));
        }
        hand
    }

    proptest! {
        #[test]
        fn a_hand_is_dealt_as_from_a_real_deck(
            deck in 1_u32..300, size in 1_u32..9, hash: u64, first: u64,
        ) {
            let size = size.min(deck);
            let dealt = hand(deck, size, hash);
            prop_assert_eq!(&dealt, &naive(deck, size, hash));
            let turned: BTreeSet<u32> = Hand::deal(deck, size, hash).from(first).collect();
            prop_assert_eq!(turned, dealt.into_iter().collect());
        }
    }

    #[test]
    fn every_hand_is_equally_likely() {
        let mut counts: BTreeMap<Vec<u32>, usize> = BTreeMap::new();
        for hash in 0..6 * 5 * 4 * 10 {
            *counts.entry(hand(6, 3, hash)).or_default() += 1;
        }
        assert_eq!(counts.len(), 6 * 5 * 4);
        assert!(counts.values().all(|count| *count == 10));
    }
}
