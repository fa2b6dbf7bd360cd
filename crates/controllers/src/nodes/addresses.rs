//! Pod addresses: each node has its own subnet.
//!
//! Promise: two running pods never have the same address, whichever process allocated it. In use
//! are the addresses in pod objects and those that this process allocated and no object shows yet.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::Ipv4Addr;
use std::sync::Mutex;

use headwater_client::Key;

/// Addresses that were allocated and that no object shows yet.
#[derive(Default)]
pub(crate) struct Addresses {
    allocated: Mutex<HashMap<usize, BTreeMap<Key, Ipv4Addr>>>,
}

/// The pod network: 256 addresses per node, starting at 10.64.0.0.
const POD_NET: u32 = u32::from_be_bytes([10, 64, 0, 0]);
/// The network of the nodes.
const HOST_NET: u32 = u32::from_be_bytes([172, 18, 0, 0]);

/// The address of a node.
pub(crate) fn host_ip(number: usize) -> Ipv4Addr {
    Ipv4Addr::from(HOST_NET + 2 + number as u32)
}

/// The subnet of a node's pods.
pub(crate) fn pod_cidr(number: usize) -> String {
    format!("{}/24", Ipv4Addr::from(POD_NET + ((number as u32) << 8)))
}

impl Addresses {
    /// Allocates an address for a pod; `None` if the subnet is full. `taken` reads the objects
    /// while the lock is held, so that no address is missing from both sets.
    pub(crate) fn allocate(
        &self,
        key: &Key,
        number: usize,
        taken: impl FnOnce() -> BTreeSet<Ipv4Addr>,
    ) -> Option<Ipv4Addr> {
        let mut allocated = self.allocated.lock().expect("no code panics while it is held");
        let allocated = allocated.entry(number).or_default();
        if let Some(known) = allocated.get(key) {
            return Some(*known);
        }
        let taken = taken();
        let first = POD_NET + ((number as u32) << 8);
        let is_free = |address: &Ipv4Addr| {
            !taken.contains(address) && allocated.values().all(|mine| mine != address)
        };
        let free = (first + 2..first + 255).map(Ipv4Addr::from).find(is_free)?;
        allocated.insert(key.clone(), free);
        Some(free)
    }

    /// Releases an address that the pod object shows now, or whose pod was deleted.
    pub(crate) fn release(&self, key: &Key, number: usize) {
        let mut allocated = self.allocated.lock().expect("no code panics while it is held");
        if let Some(allocated) = allocated.get_mut(&number) {
            allocated.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_allocated_once_and_reused_after_its_release() {
        let addresses = Addresses::default();
        let key = |name| Key::namespaced("a", name);
        let mut taken = BTreeSet::from(["10.64.1.2".parse().unwrap()]);
        let first = addresses.allocate(&key("p"), 1, || taken.clone()).unwrap();
        assert_eq!(first.to_string(), "10.64.1.3");
        assert_eq!(
            addresses.allocate(&key("p"), 1, || taken.clone()),
            Some(first),
            "the same pod again"
        );
        assert_eq!(
            addresses.allocate(&key("q"), 1, || taken.clone()).unwrap().to_string(),
            "10.64.1.4"
        );
        addresses.release(&key("p"), 1);
        assert_eq!(addresses.allocate(&key("r"), 1, || taken.clone()), Some(first));
        taken.extend((first.to_bits()..).take(260).map(Ipv4Addr::from));
        assert_eq!(addresses.allocate(&key("s"), 1, || taken.clone()), None);
    }
}
