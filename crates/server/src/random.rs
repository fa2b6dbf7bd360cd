//! Random identifiers, from a buffer of the system's randomness.
//!
//! Each object and each request gets one; a system call each time would cost more than the
//! identifier. No random byte is used twice.

use std::cell::RefCell;

use ring::rand::{SecureRandom, SystemRandom};
use uuid::{Builder, Uuid};

const ID_BYTES: usize = 16;

/// The size of the buffer.
const STOCK: usize = 64;

thread_local! {
    static IDS: RefCell<Vec<[u8; ID_BYTES]>> = const { RefCell::new(Vec::new()) };
}

/// A new identifier.
pub(crate) fn id() -> Uuid {
    let bytes = IDS.with_borrow_mut(|ids| {
        if ids.is_empty() {
            let mut fetched = [0; STOCK * ID_BYTES];
            SystemRandom::new().fill(&mut fetched).ok()?;
            ids.extend_from_slice(fetched.as_chunks().0);
        }
        ids.pop()
    });
    bytes.map_or_else(Uuid::new_v4, |bytes| Builder::from_random_bytes(bytes).into_uuid())
}

/// Characters of generated names (S2.4).
const NAME_LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// A name that begins like this and has not been given to anything else (S2.4).
pub(crate) fn generate_name(prefix: &str) -> String {
    const SUFFIX: usize = 5;
    const NAME_MAX: usize = 63;
    let random = id();
    let letters = random.as_bytes().iter().take(SUFFIX);
    let suffix: String = letters
        .map(|byte| char::from(NAME_LETTERS[usize::from(*byte) % NAME_LETTERS.len()]))
        .collect();
    let end =
        (0..=prefix.len().min(NAME_MAX - SUFFIX)).rev().find(|at| prefix.is_char_boundary(*at));
    format!("{}{suffix}", &prefix[..end.unwrap_or(0)])
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn identifiers_are_random_and_differ() {
        let ids: HashSet<Uuid> = (0..3 * STOCK).map(|_| id()).collect();
        assert_eq!(ids.len(), 3 * STOCK);
        assert!(ids.iter().all(|id| id.get_version_num() == 4));
    }
}
