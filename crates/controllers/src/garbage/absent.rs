//! Owners that are known to be gone, so that not every dependent asks the server again.

use std::collections::{HashSet, VecDeque};
use std::sync::Mutex;

/// So many are remembered; the oldest are forgotten first, which costs a question, not an error.
const MAX: usize = 2000;

/// UIDs of objects that are gone. A UID never comes back.
#[derive(Default)]
pub(super) struct Absent {
    known: Mutex<(HashSet<String>, VecDeque<String>)>,
}

impl Absent {
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
    fn the_oldest_are_forgotten_first() {
        let absent = Absent::default();
        for number in 0..=MAX {
            absent.insert(&number.to_string());
            absent.insert("1");
        }
        assert!(!absent.contains("0") && absent.contains("2"));
        assert!(absent.contains(&MAX.to_string()));
    }
}
