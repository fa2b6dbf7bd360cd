//! `headwater envtest DIR`: stand-ins for the binaries that envtest of controller-runtime starts.
//!
//! River: `KUBEBUILDER_ASSETS=DIR go test` → **envtest** → serve. DIR gets links to this very
//! binary, named `kube-apiserver`, `etcd` and `kubectl`; it looks at the name it was called by.
//! Promise: the flags and files of envtest work as they are. What a flag asks for and this server
//! does not have (a range for service addresses, plug-ins) is accepted and ignored.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::Parser;
use headwater_api::{Clock, SystemClock};
use headwater_server::pki::{self, Pair, Pki, Secret};
use headwater_server::service_account::Issuer;

use crate::flags::{Command, Envtest, Flags, Serve};
use crate::print;

mod etcd;

/// What an open request may take when the server is told to end: envtest waits 20 s in all.
const GRACE: Duration = Duration::from_secs(2);

/// The names that envtest looks for.
const NAMES: [&str; 3] = ["kube-apiserver", "etcd", "kubectl"];

/// Links the stand-ins.
pub(crate) fn link(flags: &Envtest) -> Result<()> {
    let own = std::env::current_exe().context("cannot tell where this program is")?;
    let directory = &flags.directory;
    std::fs::create_dir_all(directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    for name in NAMES {
        let path = directory.join(name);
        if path.symlink_metadata().is_ok_and(|known| !known.is_symlink()) {
            bail!("{} is a file; choose another directory", path.display());
        }
        // It may not be there; anything else shows below.
        let _ = std::fs::remove_file(&path);
        symlink(&own, &path).with_context(|| format!("cannot link {}", path.display()))?;
    }
    let directory = directory.canonicalize()?;
    print::data(&format!("export KUBEBUILDER_ASSETS={}", print::shell_word(&directory)));
    Ok(())
}

/// Which stand-in this process is, by the name it was called by.
pub(crate) fn called_as(program: Option<&OsStr>) -> Option<&'static str> {
    let name = Path::new(program?).file_name()?;
    NAMES.into_iter().find(|known| name == *known)
}

/// Runs as a stand-in until it ends.
pub(crate) fn stand_in(name: &str, arguments: Vec<OsString>) -> Result<()> {
    if name == "kubectl" {
        return kubectl(arguments);
    }
    let given = Given::read(arguments)?;
    if given.has("help") || given.has("h") {
        print::data(help(name));
        return Ok(());
    }
    if given.has("version") {
        print::data(concat!("headwater ", env!("CARGO_PKG_VERSION")));
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    match name {
        "etcd" => runtime.block_on(etcd::run(given.text("listen-client-urls"))),
        _ => {
            let serve = api_server(&given)?;
            runtime.block_on(async { Box::pin(crate::serve::serve(serve)).await })
        }
    }
}

fn help(name: &str) -> &'static str {
    match name {
        "etcd" => ETCD_HELP,
        _ => API_SERVER_HELP,
    }
}

// envtest looks here for the flags it may use.
const API_SERVER_HELP: &str = "\
A stand-in for kube-apiserver, for envtest of controller-runtime. Data is kept in memory.

Flags that count:
      --bind-address ip                         address to serve on
      --secure-port int                         port to serve on
      --cert-dir string                         where apiserver.crt and apiserver.key are
      --tls-cert-file string                    the serving certificate, if it is elsewhere
      --tls-private-key-file string             its key
      --client-ca-file string                   who signs the certificates of clients
      --token-auth-file string                  users known by a token
      --service-account-signing-key-file string signs the tokens of service accounts (EC P-256)

All others are accepted and ignored.";

const ETCD_HELP: &str = "\
A stand-in for etcd, for envtest of controller-runtime: it answers health checks and keeps nothing,
because the stand-in for kube-apiserver keeps its data itself.

Flags that count:
      --listen-client-urls string  where to listen

All others are accepted and ignored.";

/// Flags as Go writes them.
struct Given(BTreeMap<String, String>);

impl Given {
    fn read(arguments: Vec<OsString>) -> Result<Given> {
        let mut given = BTreeMap::new();
        let mut arguments = arguments.into_iter().peekable();
        while let Some(argument) = arguments.next() {
            let text = argument.into_string().map_err(|text| anyhow!("{text:?} is not text"))?;
            let Some(flag) = text.strip_prefix('-') else {
                bail!("{text:?} is no flag");
            };
            let flag = flag.strip_prefix('-').unwrap_or(flag);
            let (name, value) = match flag.split_once('=') {
                Some((name, value)) => (name, value.to_owned()),
                // The value may be the next word; what begins with a dash is the next flag.
                None => {
                    let next = arguments.next_if(|next| !next.as_encoded_bytes().starts_with(b"-"));
                    let value = next.and_then(|next| next.into_string().ok());
                    (flag, value.unwrap_or_else(|| "true".to_owned()))
                }
            };
            given.insert(name.to_owned(), value);
        }
        Ok(Given(given))
    }

    fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    fn file(&self, name: &str) -> Option<PathBuf> {
        self.0.get(name).filter(|path| !path.is_empty()).map(PathBuf::from)
    }
}

/// The flags of `serve` that do what the flags of kube-apiserver ask for.
fn api_server(given: &Given) -> Result<Serve> {
    let address = match given.text("bind-address") {
        "" => "127.0.0.1",
        address => address,
    };
    let address = address.parse().with_context(|| format!("--bind-address={address}"))?;
    let port = match given.text("secure-port") {
        "" => 6443,
        port => port.parse().with_context(|| format!("--secure-port={port}"))?,
    };
    let bind = SocketAddr::new(address, port);
    let flags = Flags::try_parse_from(["headwater", "serve", "--memory"])?;
    let Command::Serve(mut serve) = flags.command else { bail!("serve is a command") };
    serve.bind = bind;
    serve.token_auth_file = given.file("token-auth-file");
    // envtest writes its files so that its group can read them.
    serve.allow_loose_permissions = true;
    serve.shutdown_grace = GRACE;
    serve.certificates = Some(certificates(given, bind)?);
    Ok(*serve)
}

fn certificates(given: &Given, bind: SocketAddr) -> Result<Pki> {
    let clock: &dyn Clock = &SystemClock;
    let mut pki = Pki::in_memory(&pki::names(bind.ip(), &[]), clock)?;
    let read = |path: &Path| {
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
    };
    let directory = given.file("cert-dir").unwrap_or_else(|| PathBuf::from("."));
    let certificate =
        given.file("tls-cert-file").unwrap_or_else(|| directory.join("apiserver.crt"));
    let key = given.file("tls-private-key-file").unwrap_or_else(|| directory.join("apiserver.key"));
    if certificate.exists() {
        pki.server = Pair { certificate: read(&certificate)?, key: Secret::new(read(&key)?) };
    }
    if let Some(path) = given.file("client-ca-file") {
        pki.ca = read(&path)?;
    }
    if let Some(path) = given.file("service-account-signing-key-file") {
        let key = Secret::new(read(&path)?);
        match Issuer::new(&key) {
            Ok(_) => pki.service_account_key = key,
            // Tokens are checked by nobody but this server, so a key of its own does as well.
            Err(error) => {
                tracing::warn!(%error, "{} cannot sign; a key of our own does", path.display())
            }
        }
    }
    Ok(pki)
}

/// Becomes the next kubectl on the PATH.
fn kubectl(arguments: Vec<OsString>) -> Result<()> {
    let own = std::env::current_exe()?.canonicalize()?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .map(|directory| directory.join("kubectl"))
        .find(|path| path.canonicalize().is_ok_and(|path| path.is_file() && path != own));
    let Some(found) = found else {
        bail!("this is a stand-in for kubectl, and there is no other on the PATH; install one");
    };
    // It does not come back if it works.
    let error = Process::new(&found).args(arguments).exec();
    Err(error).with_context(|| format!("cannot run {}", found.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(arguments: &[&str]) -> Given {
        Given::read(arguments.iter().map(OsString::from).collect()).unwrap()
    }

    #[test]
    fn flags_are_read_as_go_reads_them() {
        let given = given(&["--a=1", "-b", "2", "--c", "--d=x=y", "--e="]);
        for (name, value) in [("a", "1"), ("b", "2"), ("c", "true"), ("d", "x=y"), ("e", "")] {
            assert_eq!(given.text(name), value, "{name}");
        }
        assert!(given.file("e").is_none() && !given.has("f"));
        assert!(Given::read(vec!["word".into()]).is_err());
    }

    #[test]
    fn a_stand_in_is_known_by_its_name() {
        for (program, name) in [
            ("/x/kube-apiserver", Some("kube-apiserver")),
            ("etcd", Some("etcd")),
            ("./kubectl", Some("kubectl")),
            ("/usr/bin/headwater", None),
            ("", None),
        ] {
            assert_eq!(called_as(Some(OsStr::new(program))), name, "{program}");
        }
        assert_eq!(called_as(None), None);
    }

    #[test]
    fn the_help_has_no_flag_that_envtest_must_not_use() {
        assert!(!API_SERVER_HELP.contains("--insecure-port"));
        assert!(!ETCD_HELP.contains("--unsafe-no-fsync"));
    }

    #[test]
    fn the_api_server_serves_where_it_is_told_to() {
        let flags = ["--secure-port=7001", "--bind-address=127.0.0.1", "--authorization-mode=RBAC"];
        let serve = api_server(&given(&flags)).unwrap();
        assert_eq!(serve.bind.to_string(), "127.0.0.1:7001");
        assert!(serve.memory && serve.certificates.is_some());
        assert!(api_server(&given(&["--secure-port=x"])).is_err());
    }
}
