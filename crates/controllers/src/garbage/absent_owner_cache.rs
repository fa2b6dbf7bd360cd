//! A cache of owners that are known to be absent, which saves a request for each dependent.

use std::collections::{HashSet, VecDeque};
use std::sync::Mutex;

/// The number of cached UIDs; evicting the oldest costs a request, not correctness.
const MAX: usize = 2000;

/// UIDs of deleted objects. A UID is never reused.
#[derive(Default)]
pub(super) struct AbsentOwnerCache {
    known: Mutex<(HashSet<String>, VecDeque<String>)>,
}

impl AbsentOwnerCache {
    pub(super) fn insert(&self, uid: &str) {
        let mut known = self.known.lock().expect("no code panics while it is held");
        let (set, order) = &mut *known;
        if !set.insert(uid.to_owned()) {
            return;
        }
        order.push_back(uid.to_owned());
        if order.len() > MAX
            && let Some(oldest) = order.pop_front()
        {
            set.remove(&oldest);
        }
    }

    pub(super) fn contains(&self, uid: &str) -> bool {
        self.known.lock().expect("no code panics while it is held").0.contains(uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_uids_are_evicted_first() {
        let absent = AbsentOwnerCache::default();
        for number in 0..=MAX {
            absent.insert(&number.to_string());
            absent.insert("1");
        }
        assert!(!absent.contains("0") && absent.contains("2"));
        assert!(absent.contains(&MAX.to_string()));
    }
}
