//! The ranges of cluster IPs and node ports.
//!
//! Promise: a range is checked where it enters, from a flag; at most one of each address family.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// The most addresses of a range that are given to Services.
const ADDRESSES_MAX: u128 = 1 << 20;

/// Addresses at the beginning that are only given on request, if the range is large.
const RESERVED: u128 = 10;

/// A range of cluster IPs, such as `10.96.0.0/12`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AddressRange {
    /// The network as a number.
    network: u128,
    length: u32,
    is_v6: bool,
}

impl AddressRange {
    fn bits(self) -> u32 {
        if self.is_v6 { 128 } else { 32 }
    }

    /// The number of addresses, at most 2^127.
    fn size(self) -> u128 {
        1 << (self.bits() - self.length).min(127)
    }

    /// `IPv4` or `IPv6`.
    pub(crate) fn family(self) -> &'static str {
        if self.is_v6 { "IPv6" } else { "IPv4" }
    }

    /// The address of the API server: the first after the network.
    pub(crate) fn first(self) -> String {
        self.nth(1)
    }

    fn nth(self, offset: u128) -> String {
        let number = self.network + offset;
        match self.is_v6 {
            true => Ipv6Addr::from(number).to_string(),
            false => Ipv4Addr::from(number as u32).to_string(),
        }
    }

    /// The number of addresses that are given without a request.
    pub(crate) fn count(self) -> u32 {
        let last = if self.is_v6 { self.size() } else { self.size() - 1 };
        last.saturating_sub(self.skipped()).min(ADDRESSES_MAX) as u32
    }

    /// One of these addresses.
    pub(crate) fn address(self, index: u32) -> String {
        self.nth(self.skipped() + u128::from(index))
    }

    fn skipped(self) -> u128 {
        if self.size() > 4 * RESERVED { RESERVED } else { 2 }
    }

    /// Whether an address belongs to it and can be given to a Service.
    pub(crate) fn contains(self, ip: IpAddr) -> bool {
        let (number, is_v6) = match ip {
            IpAddr::V4(ip) => (u128::from(u32::from(ip)), false),
            IpAddr::V6(ip) => (u128::from(ip), true),
        };
        let Some(offset) = number.checked_sub(self.network) else { return false };
        // Neither the network nor, with IPv4, the broadcast address.
        let last = if self.is_v6 { self.size() - 1 } else { self.size() - 2 };
        is_v6 == self.is_v6 && (1..=last).contains(&offset)
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.nth(0), self.length)
    }
}

impl FromStr for AddressRange {
    type Err = InvalidRange;

    fn from_str(text: &str) -> Result<AddressRange, InvalidRange> {
        let wrong = |why: &str| InvalidRange(format!("{text:?} {why}"));
        let (ip, length) = text.split_once('/').ok_or_else(|| wrong("is not a CIDR"))?;
        let ip: IpAddr = ip.parse().map_err(|_| wrong("is not a CIDR"))?;
        let length: u32 = length.parse().map_err(|_| wrong("is not a CIDR"))?;
        let (number, is_v6, bits) = match ip {
            IpAddr::V4(ip) => (u128::from(u32::from(ip)), false, 32),
            IpAddr::V6(ip) => (u128::from(ip), true, 128),
        };
        let longest = bits - 3;
        let shortest = if is_v6 { 64 } else { 8 };
        if !(shortest..=longest).contains(&length) {
            return Err(wrong(&format!("must have a length from {shortest} to {longest}")));
        }
        let network = number >> (bits - length) << (bits - length);
        Ok(AddressRange { network, length, is_v6 })
    }
}

/// The ranges of Services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceRanges {
    /// One range, or one of each family; the first is the primary one.
    addresses: Vec<AddressRange>,
    /// The first and the last node port.
    ports: (u16, u16),
}

impl Default for ServiceRanges {
    fn default() -> ServiceRanges {
        let network = u128::from(u32::from_be_bytes([10, 96, 0, 0]));
        let addresses = vec![AddressRange { network, length: 12, is_v6: false }];
        ServiceRanges { addresses, ports: (30_000, 32_767) }
    }
}

/// A range that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidRange(String);

impl ServiceRanges {
    /// The ranges in a list such as `10.96.0.0/12,fd00::/108` and in `30000-32767`.
    ///
    /// # Errors
    /// A range is malformed, two are of one family, or the ports are not in order.
    pub fn new(addresses: &str, ports: &str) -> Result<ServiceRanges, InvalidRange> {
        let addresses: Vec<AddressRange> =
            addresses.split(',').map(|range| range.trim().parse()).collect::<Result<_, _>>()?;
        let is_dual = matches!(&*addresses, [one, other] if one.is_v6 != other.is_v6);
        if addresses.len() != 1 && !is_dual {
            return Err(InvalidRange("there can be one range, or one of each family".into()));
        }
        let wrong = || InvalidRange(format!("{ports:?} is not a range of ports"));
        let (first, last) = ports.split_once('-').ok_or_else(wrong)?;
        let first: u16 = first.trim().parse().map_err(|_| wrong())?;
        let last: u16 = last.trim().parse().map_err(|_| wrong())?;
        if first == 0 || first > last {
            return Err(wrong());
        }
        Ok(ServiceRanges { addresses, ports: (first, last) })
    }

    pub(crate) fn primary(&self) -> AddressRange {
        self.addresses[0]
    }

    /// The ranges as a ServiceCIDR lists them.
    pub(crate) fn addresses(&self) -> &[AddressRange] {
        &self.addresses
    }

    pub(crate) fn of_family(&self, family: &str) -> Option<AddressRange> {
        self.addresses.iter().copied().find(|range| range.family() == family)
    }

    /// Whether Services can have addresses of both families.
    pub(crate) fn is_dual(&self) -> bool {
        self.addresses.len() > 1
    }

    /// The first and the last node port.
    pub(crate) fn ports(&self) -> (i64, i64) {
        (self.ports.0.into(), self.ports.1.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_bounded() {
        let ranges = ServiceRanges::new("10.0.0.7/24, fd00::/108", "30000-30002").unwrap();
        assert_eq!(ranges.primary().to_string(), "10.0.0.0/24");
        assert_eq!(ranges.of_family("IPv6").unwrap().first(), "fd00::1");
        assert!(ranges.is_dual());
        assert_eq!(ranges.ports(), (30_000, 30_002));
        let v4 = ranges.primary();
        assert_eq!((v4.count(), v4.address(0).as_str()), (245, "10.0.0.10"));
        assert_eq!(v4.address(v4.count() - 1), "10.0.0.254");
        for (ip, expected) in [
            ("10.0.0.1", true),
            ("10.0.0.254", true),
            ("10.0.0.0", false),
            ("10.0.0.255", false),
            ("10.0.1.1", false),
            ("9.255.255.255", false),
            ("fd00::1", false),
        ] {
            assert_eq!(v4.contains(ip.parse().unwrap()), expected, "{ip}");
        }
        let small = ServiceRanges::new("10.0.0.0/29", "1-65535").unwrap().primary();
        assert_eq!((small.count(), small.address(0).as_str()), (5, "10.0.0.2"));
        assert_eq!(ServiceRanges::default().primary().to_string(), "10.96.0.0/12");
        for (addresses, ports) in [
            ("", "1-2"),
            ("10.0.0.0", "1-2"),
            ("10.0.0.0/33", "1-2"),
            ("10.0.0.0/31", "1-2"),
            ("fd00::/8", "1-2"),
            ("10.0.0.0/24,10.1.0.0/24", "1-2"),
            ("10.0.0.0/24,fd00::/112,fd01::/112", "1-2"),
            ("10.0.0.0/24", "0-2"),
            ("10.0.0.0/24", "3-2"),
            ("10.0.0.0/24", "30000"),
            ("10.0.0.0/24", "1-65536"),
        ] {
            assert!(ServiceRanges::new(addresses, ports).is_err(), "{addresses} {ports}");
        }
    }
}
