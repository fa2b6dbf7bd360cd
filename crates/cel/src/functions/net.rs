//! Functions of IP addresses and CIDRs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::budget::Error;
use crate::estimate::rule;
use crate::value::Other;

rows! {
    "ip(string) -> IP" "~string.ip() -> IP", rule::READ, |_, text: text| Other::Ip(address(text)?);
    "isIP(string) -> bool", rule::READ, |_, text: text| parse_ip(text).is_some();
    "ip.isCanonical(string) -> bool", rule::READ_TWICE,
        |_, text: text| address(text)?.to_string() == text;
    "IP.family() -> int", rule::ONE, |_, ip: ip| if ip.is_ipv4() { 4_i64 } else { 6 };
    "IP.isUnspecified() -> bool", rule::ONE, |_, ip: ip| ip.is_unspecified();
    "IP.isLoopback() -> bool", rule::ONE, |_, ip: ip| ip.is_loopback();
    "IP.isLinkLocalMulticast() -> bool", rule::ONE, |_, ip: ip| match ip {
        IpAddr::V4(v4) => v4.octets()[..3] == [224, 0, 0],
        IpAddr::V6(v6) => v6.segments()[0] & 0xff0f == 0xff02,
    };
    "IP.isLinkLocalUnicast() -> bool", rule::ONE, |_, ip: ip| is_link_local(ip);
    "IP.isGlobalUnicast() -> bool", rule::ONE, |_, ip: ip| {
        let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
        let special = ip.is_unspecified() || ip.is_loopback() || ip.is_multicast();
        !broadcast && !special && !is_link_local(ip)
    };
    "cidr(string) -> CIDR", rule::READ, |_, text: text| {
        let why = || format!("network address parse error during conversion from string: {text:?}");
        let (ip, bits) = parse_cidr(text).ok_or_else(|| Error::other(why()))?;
        Other::Cidr(ip, bits)
    };
    "isCIDR(string) -> bool", rule::READ, |_, text: text| parse_cidr(text).is_some();
    "CIDR.containsIP(string) -> bool", rule::parsed::<4>, |_, net: network, text: text|
        holds(net, parsed(parse_ip(text).map(|ip| (ip, width(ip))))?);
    "CIDR.containsIP(IP) -> bool" "~CIDR.containsIP(CIDR) -> bool", rule::parsed::<4>,
        |_, net: network, other: network| holds(net, other);
    "CIDR.containsCIDR(string) -> bool", rule::parsed::<7>,
        |_, net: network, text: text| holds(net, parsed(parse_cidr(text))?);
    "CIDR.containsCIDR(CIDR) -> bool" "~CIDR.containsCIDR(IP) -> bool", rule::parsed::<7>,
        |_, net: network, other: network| holds(net, other);
    "CIDR.ip() -> IP" "~ip(CIDR) -> IP", rule::ONE, |_, net: network| Other::Ip(net.0);
    "CIDR.prefixLength() -> int", rule::ONE, |_, net: network| i64::from(net.1);
    "CIDR.masked() -> CIDR", rule::ONE, |_, net: network| {
        let number = prefix(net.0, net.1);
        let masked: IpAddr = match net.0 {
            IpAddr::V4(_) => Ipv4Addr::from((number >> 96) as u32).into(),
            IpAddr::V6(_) => Ipv6Addr::from(number).into(),
        };
        Other::Cidr(masked, net.1)
    };
}

fn parse_ip(text: &str) -> Option<IpAddr> {
    // Kubernetes accepts neither notation of IPv4-mapped IPv6 addresses.
    let ip: IpAddr = text.parse().ok()?;
    match ip {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => None,
        ip => Some(ip),
    }
}

fn parse_cidr(text: &str) -> Option<(IpAddr, u8)> {
    let (ip, bits) = text.split_once('/')?;
    let ip = parse_ip(ip)?;
    let plain = !bits.is_empty()
        && bits.bytes().all(|b| b.is_ascii_digit())
        && (bits == "0" || !bits.starts_with('0'));
    let bits: u8 = if plain { bits.parse().ok()? } else { return None };
    (bits <= width(ip)).then_some((ip, bits))
}

pub(super) fn width(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

/// An address, or Kubernetes' error.
fn address(text: &str) -> Result<IpAddr, Error> {
    let why = || format!("IP Address {text:?} parse error during conversion from string");
    parse_ip(text).ok_or_else(|| Error::other(why()))
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.segments()[0] & 0xffc0 == 0xfe80,
    }
}

/// The first `bits` of an address.
fn prefix(ip: IpAddr, bits: u8) -> u128 {
    let number = match ip {
        IpAddr::V4(v4) => u128::from(v4.to_bits()) << 96,
        IpAddr::V6(v6) => v6.to_bits(),
    };
    if bits == 0 { 0 } else { number & (u128::MAX << (128 - u32::from(bits))) }
}

/// The network of an argument that is a string.
fn parsed(network: Option<(IpAddr, u8)>) -> Result<(IpAddr, u8), Error> {
    network.ok_or_else(|| Error::other("parse error during conversion from string"))
}

/// Whether one network contains another.
fn holds((ip, bits): (IpAddr, u8), (other, other_bits): (IpAddr, u8)) -> bool {
    ip.is_ipv4() == other.is_ipv4() && bits <= other_bits && prefix(ip, bits) == prefix(other, bits)
}
