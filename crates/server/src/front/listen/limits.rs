//! Limits on the number of connections, in total and per address.
//!
//! Promise: one address cannot take the connections of all others, and clients without an identity
//! cannot take those of clients that have one. An IPv6 address counts as its /64 network, because a
//! host has all of it.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use super::Options;
use crate::lock::lock;

/// Counts connections against the limits.
#[derive(Clone)]
pub(super) struct ConnectionLimits(Arc<Mutex<ConnectionCounts>>);

struct ConnectionCounts {
    all: CountedConnections,
    /// Those on which no client has been identified; a part of all.
    anonymous: CountedConnections,
}

/// The connections of one class and their limits.
struct CountedConnections {
    total: usize,
    by_network: HashMap<IpAddr, usize>,
    total_max: usize,
    per_network_max: usize,
}

impl ConnectionLimits {
    pub(super) fn new(options: &Options) -> ConnectionLimits {
        let anonymous = &options.anonymous;
        ConnectionLimits(Arc::new(Mutex::new(ConnectionCounts {
            all: CountedConnections::new(
                options.connections_max,
                options.connections_per_address_max,
            ),
            anonymous: CountedConnections::new(
                anonymous.connections_max,
                anonymous.connections_per_address_max,
            ),
        })))
    }

    /// Admits a connection, or returns the limit that is reached.
    pub(super) fn take(&self, address: IpAddr) -> Result<ConnectionPermit, &'static str> {
        let network = network(address);
        let mut counts = lock(&self.0);
        counts.all.check(network)?;
        counts.anonymous.check(network).map_err(|_| "anonymous")?;
        counts.all.add(network);
        counts.anonymous.add(network);
        Ok(ConnectionPermit { network, is_anonymous: AtomicBool::new(true), limits: self.clone() })
    }
}

impl CountedConnections {
    fn new(total_max: usize, per_network_max: usize) -> CountedConnections {
        CountedConnections { total: 0, by_network: HashMap::new(), total_max, per_network_max }
    }

    fn check(&self, network: IpAddr) -> Result<(), &'static str> {
        if self.total >= self.total_max {
            return Err("total");
        }
        let limit = if network.is_loopback() { usize::MAX } else { self.per_network_max };
        let here = self.by_network.get(&network).copied().unwrap_or_default();
        if here >= limit { Err("address") } else { Ok(()) }
    }

    fn add(&mut self, network: IpAddr) {
        *self.by_network.entry(network).or_default() += 1;
        self.total += 1;
    }

    fn remove(&mut self, network: IpAddr) {
        self.total -= 1;
        if let Some(here) = self.by_network.get_mut(&network) {
            *here -= 1;
            if *here == 0 {
                self.by_network.remove(&network);
            }
        }
    }
}

/// The address that counts for a client: its own with IPv4, its /64 network with IPv6.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            let bits = address.to_bits() & (u128::MAX << 64);
            IpAddr::V6(Ipv6Addr::from_bits(bits))
        }
        address => address,
    }
}

/// An admitted connection; dropping it releases its share of the limits.
pub(super) struct ConnectionPermit {
    network: IpAddr,
    is_anonymous: AtomicBool,
    limits: ConnectionLimits,
}

impl ConnectionPermit {
    /// Records that a client was identified on the connection.
    pub(super) fn identified(&self) {
        if self.is_anonymous.load(Relaxed) && self.is_anonymous.swap(false, Relaxed) {
            lock(&self.limits.0).anonymous.remove(self.network);
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut counts = lock(&self.limits.0);
        counts.all.remove(self.network);
        if *self.is_anonymous.get_mut() {
            counts.anonymous.remove(self.network);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::AnonymousOptions;
    use super::*;

    fn limits(total: usize, per_address: usize) -> ConnectionLimits {
        ConnectionLimits::new(&Options {
            connections_max: total,
            connections_per_address_max: per_address,
            ..Options::default()
        })
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// B030
    #[test]
    fn the_limit_of_one_address_does_not_affect_another() {
        let limits = limits(10, 2);
        let (here, there) = (address("10.0.0.1"), address("10.0.0.2"));
        let first = limits.take(here).ok().unwrap();
        let _second = limits.take(here).ok().unwrap();
        assert_eq!(limits.take(here).err(), Some("address"));
        let _other = limits.take(there).ok().unwrap();
        drop(first);
        assert!(limits.take(here).is_ok());
    }

    #[test]
    fn loopback_is_subject_to_the_total_limit_only() {
        for here in ["127.0.0.1", "::1", "::ffff:127.0.0.1"].map(address) {
            let limits = limits(3, 1);
            let _held: Vec<ConnectionPermit> =
                (0..3).map(|_| limits.take(here).ok().unwrap()).collect();
            assert_eq!(limits.take(here).err(), Some("total"));
        }
    }

    #[test]
    fn addresses_of_one_ipv6_network_count_as_one() {
        let limits = limits(10, 2);
        let _one = limits.take(address("2001:db8:0:1::1")).ok().unwrap();
        let _two = limits.take(address("2001:db8:0:1:ffff:ffff:ffff:ffff")).ok().unwrap();
        assert_eq!(limits.take(address("2001:db8:0:1::2")).err(), Some("address"));
        let _other = limits.take(address("2001:db8:0:2::1")).ok().unwrap();
        // An IPv4 client of an IPv6 socket is that IPv4 address.
        let _mapped = limits.take(address("::ffff:10.0.0.1")).ok().unwrap();
        let _same = limits.take(address("10.0.0.1")).ok().unwrap();
        assert_eq!(limits.take(address("::ffff:10.0.0.1")).err(), Some("address"));
    }

    #[test]
    fn anonymous_connections_leave_room_for_identified_ones() {
        let anonymous =
            AnonymousOptions { connections_per_address_max: 2, ..AnonymousOptions::default() };
        let limits = ConnectionLimits::new(&Options { anonymous, ..Options::default() });
        let here = address("10.0.0.1");
        let first = limits.take(here).ok().unwrap();
        let second = limits.take(here).ok().unwrap();
        assert_eq!(limits.take(here).err(), Some("anonymous"));
        first.identified();
        first.identified();
        let third = limits.take(here).ok().unwrap();
        assert_eq!(limits.take(here).err(), Some("anonymous"));
        drop((first, second, third));
        let counts = lock(&limits.0);
        for class in [&counts.all, &counts.anonymous] {
            assert!(class.total == 0 && class.by_network.is_empty());
        }
    }
}
