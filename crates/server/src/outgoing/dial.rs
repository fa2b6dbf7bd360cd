//! Dialling: connections to endpoints, and the addresses that are never called.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::TcpStream;

/// Whether webhooks on the server's own machine may be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loopback {
    /// Allowed: operators under development listen there.
    Callable,
    /// Not allowed: authors of webhook configurations could reach services that are local to the
    /// machine.
    Refused,
}

/// Metadata services outside the link-local range.
const METADATA: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
];

/// Connects to the first allowed address that accepts.
pub(super) async fn dial(
    addresses: &[SocketAddr],
    loopback: Loopback,
) -> Result<TcpStream, String> {
    let mut last = "no addresses".to_owned();
    for address in addresses {
        if let Err(why) = check(address.ip(), loopback) {
            last = format!("dial tcp {address}: {why}");
            continue;
        }
        match TcpStream::connect(address).await {
            Ok(socket) => {
                // A review is one small write; Nagle's algorithm would only delay it.
                let _ = socket.set_nodelay(true);
                return Ok(socket);
            }
            Err(error) => {
                let why = match error.kind() {
                    std::io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
                    _ => error.to_string(),
                };
                last = format!("dial tcp {address}: connect: {why}");
            }
        }
    }
    Err(last)
}

/// Metadata services return secrets to every caller; most are at link-local addresses.
fn check(ip: IpAddr, loopback: Loopback) -> Result<(), &'static str> {
    let ip = match ip.to_canonical() {
        IpAddr::V6(v6) => embedded(v6).map_or(IpAddr::V6(v6), IpAddr::V4),
        v4 => v4,
    };
    let is_link_local = match ip {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.segments()[0] & 0xffc0 == 0xfe80,
    };
    if is_link_local || ip.is_unspecified() || METADATA.contains(&ip) {
        return Err("the address may not be called");
    }
    if ip.is_loopback() && loopback == Loopback::Refused {
        return Err("loopback may not be called, see --webhooks-on-loopback");
    }
    Ok(())
}

/// The IPv4 address to which a translator or a tunnel forwards packets for this address: IPv4-compatible,
/// NAT64 (well-known and local prefix) and 6to4 addresses.
fn embedded(v6: Ipv6Addr) -> Option<Ipv4Addr> {
    let v4 = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    match v6.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => None,
        [0, 0, 0, 0, 0, 0, high, low] => Some(v4(high, low)),
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some(v4(high, low)),
        [0x64, 0xff9b, 1, _, _, _, high, low] => Some(v4(high, low)),
        [0x2002, high, low, ..] => Some(v4(high, low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_services_are_not_called_and_loopback_only_where_that_is_allowed() {
        use Loopback::{Callable, Refused};
        for (address, with, without) in [
            ("127.0.0.1", true, false),
            ("127.8.8.8", true, false),
            ("::1", true, false),
            ("::ffff:127.0.0.1", true, false),
            ("10.0.0.1", true, true),
            ("2001:db8::1", true, true),
            ("169.254.169.254", false, false),
            ("::ffff:169.254.169.254", false, false),
            ("fe80::1", false, false),
            ("::169.254.169.254", false, false),
            ("64:ff9b::169.254.169.254", false, false),
            ("64:ff9b:1::a9fe:a9fe", false, false),
            ("2002:a9fe:a9fe::1", false, false),
            ("64:ff9b::100.100.100.200", false, false),
            ("64:ff9b::127.0.0.1", true, false),
            ("2002:7f00:1::", true, false),
            ("64:ff9b::10.0.0.1", true, true),
            ("fd00:ec2::254", false, false),
            ("100.100.100.200", false, false),
            ("0.0.0.0", false, false),
            ("::", false, false),
        ] {
            let ip = address.parse().unwrap();
            assert_eq!(check(ip, Callable).is_ok(), with, "{address}");
            assert_eq!(check(ip, Refused).is_ok(), without, "{address}");
        }
    }
}
