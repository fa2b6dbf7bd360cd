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
    let ip = ip.to_canonical();
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
