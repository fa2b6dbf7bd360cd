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
