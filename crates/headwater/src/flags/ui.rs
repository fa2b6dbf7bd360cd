//! The flags of `headwater ui`, and of the page of `headwater dev`.

use std::net::SocketAddr;
use std::str::FromStr;

use clap::Args;

use super::{RemoteFlags, address};

pub(super) const EXAMPLES: &str = "\
Examples:
  headwater ui                                  the server of ./.headwater or $KUBECONFIG
  headwater ui --kubeconfig ~/.kube/config      any Kubernetes server, with your rights
  headwater ui --bind 127.0.0.1:8080            always at the same port

Open the address that it prints. The page only reads. The address works once: it logs the browser
in, and another one is printed for the next browser.";

#[derive(Debug, Args)]
pub(crate) struct UiFlags {
    /// Loopback address to serve the page on; port 0 selects a free port
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0", value_parser = address::parse_bind)]
    pub(crate) bind: SocketAddr,

    #[command(flatten)]
    pub(crate) remote: RemoteFlags,
}

/// Where a server serves the page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum UiBind {
    Off,
    At(SocketAddr),
}

impl FromStr for UiBind {
    type Err = String;

    fn from_str(text: &str) -> Result<UiBind, String> {
        match text {
            "off" => Ok(UiBind::Off),
            text => {
                let address = address::parse_bind(text)?;
                let is_loopback = address.ip().is_loopback();
                is_loopback.then_some(UiBind::At(address)).ok_or_else(|| {
                    "the page has the rights of the administrator: use a loopback address, or off"
                        .to_owned()
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_served_on_loopback_or_not_at_all() {
        assert_eq!("off".parse(), Ok(UiBind::Off));
        let address = "127.0.0.1:0".parse().unwrap();
        assert_eq!("127.0.0.1:0".parse(), Ok(UiBind::At(address)));
        assert!("0.0.0.0:80".parse::<UiBind>().unwrap_err().contains("loopback"));
        assert!("on".parse::<UiBind>().is_err());
    }
}
