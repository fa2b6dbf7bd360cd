//! Addresses of pods: each node has a small net of its own.
//!
//! Promise: two pods of the cluster that run never have the same address, whichever process gave
//! it: what the objects say is in use, and what this process gave and the objects do not say yet.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::Ipv4Addr;
use std::sync::Mutex;

use headwater_client::Key;

/// What was given and is not to be seen in the objects yet.
#[derive(Default)]
pub(crate) struct Addresses {
    given: Mutex<HashMap<usize, BTreeMap<Key, Ipv4Addr>>>,
}

/// The first net of pods: 10.64.0.0, 256 addresses for each node.
const PODS: u32 = u32::from_be_bytes([10, 64, 0, 0]);
/// The net of the nodes themselves.
const HOSTS: u32 = u32::from_be_bytes([172, 18, 0, 0]);

/// The address of a node.
pub(crate) fn host(number: usize) -> Ipv4Addr {
    Ipv4Addr::from(HOSTS + 2 + number as u32)
}

/// The net of a node's pods.
pub(crate) fn net(number: usize) -> String {
    format!("{}/24", Ipv4Addr::from(PODS + ((number as u32) << 8)))
}

impl Addresses {
    /// An address for a pod on a node; `None` if all are taken. What the objects say is looked at
    /// while nothing can be forgotten, so that no address is in neither of the two.
    pub(crate) fn give(
        &self,
        key: &Key,
        number: usize,
        taken: impl FnOnce() -> BTreeSet<Ipv4Addr>,
    ) -> Option<Ipv4Addr> {
        let mut given = self.given.lock().expect("no code panics while it is held");
        let given = given.entry(number).or_default();
        if let Some(known) = given.get(key) {
            return Some(*known);
        }
        let taken = taken();
        let first = PODS + ((number as u32) << 8);
        let is_free = |address: &Ipv4Addr| {
            !taken.contains(address) && given.values().all(|mine| mine != address)
        };
        let free = (first + 2..first + 255).map(Ipv4Addr::from).find(is_free)?;
        given.insert(key.clone(), free);
        Some(free)
    }

    /// The objects say it now, or the pod is gone.
    pub(crate) fn forget(&self, key: &Key, number: usize) {
        let mut given = self.given.lock().expect("no code panics while it is held");
        if let Some(given) = given.get_mut(&number) {
            given.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_given_once_and_again_when_it_is_free() {
        let addresses = Addresses::default();
        let key = |name| Key::namespaced("a", name);
        let mut taken = BTreeSet::from(["10.64.1.2".parse().unwrap()]);
        let first = addresses.give(&key("p"), 1, || taken.clone()).unwrap();
        assert_eq!(first.to_string(), "10.64.1.3");
        assert_eq!(addresses.give(&key("p"), 1, || taken.clone()), Some(first), "asking again");
        assert_eq!(
            addresses.give(&key("q"), 1, || taken.clone()).unwrap().to_string(),
            "10.64.1.4"
        );
        addresses.forget(&key("p"), 1);
        assert_eq!(addresses.give(&key("r"), 1, || taken.clone()), Some(first));
        taken.extend((first.to_bits()..).take(260).map(Ipv4Addr::from));
        assert_eq!(addresses.give(&key("s"), 1, || taken.clone()), None);
    }
}
