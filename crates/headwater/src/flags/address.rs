//! Parsers for addresses, log filters and kubeconfigs, with errors that say what to write.

use std::net::SocketAddr;
use std::path::PathBuf;

/// `127.0.0.1:6443` or `localhost:6443`.
pub(super) fn parse_bind(text: &str) -> Result<SocketAddr, String> {
    let (host, port) = text.rsplit_once(':').unwrap_or((text, ""));
    let address = match host {
        "localhost" => format!("127.0.0.1:{port}"),
        _ => text.to_owned(),
    };
    address.parse().map_err(|_| {
        let port = if port.parse::<u16>().is_ok() { port } else { "6443" };
        format!(
            "write an IP address and a port: 127.0.0.1:{port}, or 0.0.0.0:{port} for all interfaces"
        )
    })
}

/// Refuses `--port`, which servers often have.
pub(super) fn refuse_port(port: &str) -> Result<u16, String> {
    Err(format!("the port is a part of --bind: use --bind 127.0.0.1:{port}"))
}

/// `warn`, or `info,headwater_cache=debug`. The filter itself accepts any word as the name of a
/// module.
pub(super) fn parse_log(filter: &str) -> Result<String, String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    for part in filter.split(',') {
        let is_level = LEVELS.iter().any(|level| level.eq_ignore_ascii_case(part.trim()));
        if !is_level && !part.contains(['=', '[']) {
            return Err(format!(
                "{part:?} is not a level: use {}, or MODULE=LEVEL",
                LEVELS.join(", ")
            ));
        }
    }
    Ok(filter.to_owned())
}

/// A path, or a list of paths as `KUBECONFIG` may have: the first file that exists, else the first
/// path.
pub(super) fn parse_kubeconfig(text: &str) -> Result<PathBuf, String> {
    let mut paths = std::env::split_paths(text).filter(|path| !path.as_os_str().is_empty());
    let first = paths.next().ok_or("it is empty; pass --kubeconfig FILE")?;
    match first.is_file() {
        true => Ok(first),
        false => Ok(paths.find(|path| path.is_file()).unwrap_or(first)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_an_ip_and_a_port_or_localhost() {
        assert_eq!(parse_bind("0.0.0.0:7000"), Ok("0.0.0.0:7000".parse().unwrap()));
        assert_eq!(parse_bind("[::1]:0"), Ok("[::1]:0".parse().unwrap()));
        assert_eq!(parse_bind("localhost:7000"), Ok("127.0.0.1:7000".parse().unwrap()));
        for wrong in [":7000", "7000", "example.org:7000", "127.0.0.1", ""] {
            assert!(parse_bind(wrong).unwrap_err().contains("127.0.0.1:"), "{wrong}");
        }
        assert!(parse_bind(":7000").unwrap_err().contains("127.0.0.1:7000"));
        assert!(refuse_port("7000").unwrap_err().contains("--bind 127.0.0.1:7000"));
    }

    #[test]
    fn a_log_filter_is_a_level_or_names_a_module() {
        for filter in ["warn", "INFO", "info,headwater_cache=debug", "[{key=\"a\"}]=trace"] {
            assert_eq!(parse_log(filter), Ok(filter.to_owned()));
        }
        for wrong in ["loud", "", "warn,headwater_cache"] {
            assert!(parse_log(wrong).unwrap_err().contains("is not a level"), "{wrong}");
        }
    }

    #[test]
    fn of_a_list_of_kubeconfigs_the_first_that_exists_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let (absent, there) = (dir.path().join("a"), dir.path().join("b"));
        std::fs::write(&there, "").unwrap();
        let list = format!("{}:{}", absent.display(), there.display());
        assert_eq!(parse_kubeconfig(&list), Ok(there));
        assert_eq!(parse_kubeconfig("x:y"), Ok("x".into()));
        assert!(parse_kubeconfig("").is_err());
    }
}
