//! Functions of IP addresses and CIDRs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Found, other};
use crate::budget::Error;
use crate::value::{Other, Value};

pub(super) fn parse_ip(text: &str) -> Option<IpAddr> {
    // Kubernetes accepts neither notation of IPv4-mapped IPv6 addresses.
    let ip: IpAddr = text.parse().ok()?;
    match ip {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => None,
        ip => Some(ip),
    }
}

pub(super) fn parse_cidr(text: &str) -> Option<(IpAddr, u8)> {
    let (ip, bits) = text.split_once('/')?;
    let ip = parse_ip(ip)?;
    let plain = !bits.is_empty()
        && bits.bytes().all(|b| b.is_ascii_digit())
        && (bits == "0" || !bits.starts_with('0'));
    let bits: u8 = if plain { bits.parse().ok()? } else { return None };
    (bits <= width(ip)).then_some((ip, bits))
}

fn width(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

pub(super) fn of_ip<'a>(name: &str, ip: IpAddr) -> Found<'a> {
    let link_local_unicast = match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.segments()[0] & 0xffc0 == 0xfe80,
    };
    Ok(match name {
        "family" => Value::Int(if ip.is_ipv4() { 4 } else { 6 }),
        "isUnspecified" => ip.is_unspecified().into(),
        "isLoopback" => ip.is_loopback().into(),
        "isLinkLocalMulticast" => match ip {
            IpAddr::V4(v4) => v4.octets()[..3] == [224, 0, 0],
            IpAddr::V6(v6) => v6.segments()[0] & 0xff0f == 0xff02,
        }
        .into(),
        "isLinkLocalUnicast" => link_local_unicast.into(),
        "isGlobalUnicast" => {
            let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
            let special = ip.is_unspecified() || ip.is_loopback() || ip.is_multicast();
            (!broadcast && !special && !link_local_unicast).into()
        }
        _ => return Err(Error::NoSuchOverload),
    })
}

/// The first `bits` of an address.
fn network(ip: IpAddr, bits: u8) -> u128 {
    let number = match ip {
        IpAddr::V4(v4) => u128::from(v4.to_bits()) << 96,
        IpAddr::V6(v6) => v6.to_bits(),
    };
    if bits == 0 { 0 } else { number & (u128::MAX << (128 - u32::from(bits))) }
}

pub(super) fn of_cidr<'a>(name: &str, ip: IpAddr, bits: u8, rest: &[Value<'_>]) -> Found<'a> {
    let holds = |other: IpAddr, other_bits: u8| {
        ip.is_ipv4() == other.is_ipv4()
            && bits <= other_bits
            && network(ip, bits) == network(other, bits)
    };
    let argument = match (name, rest) {
        ("containsIP", [Value::Text(text)]) => parse_ip(text).map(|ip| (ip, width(ip))),
        ("containsCIDR", [Value::Text(text)]) => parse_cidr(text),
        (_, [Value::Other(value)]) => match &**value {
            Other::Ip(ip) => Some((*ip, width(*ip))),
            Other::Cidr(ip, bits) => Some((*ip, *bits)),
            _ => return Err(Error::NoSuchOverload),
        },
        (_, []) => None,
        _ => return Err(Error::NoSuchOverload),
    };
    Ok(match (name, argument) {
        ("containsIP" | "containsCIDR", Some((ip, bits))) => holds(ip, bits).into(),
        ("containsIP" | "containsCIDR", None) => {
            return Err(Error::other("parse error during conversion from string"));
        }
        ("ip", None) => other(Other::Ip(ip)),
        ("prefixLength", None) => Value::Int(i64::from(bits)),
        ("masked", None) => {
            let number = network(ip, bits);
            let masked: IpAddr = match ip {
                IpAddr::V4(_) => Ipv4Addr::from((number >> 96) as u32).into(),
                IpAddr::V6(_) => Ipv6Addr::from(number).into(),
            };
            other(Other::Cidr(masked, bits))
        }
        _ => return Err(Error::NoSuchOverload),
    })
}
