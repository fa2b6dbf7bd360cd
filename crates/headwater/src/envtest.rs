//! `headwater envtest DIR`: replacements for the programs that controller-runtime's envtest starts.
//!
//! River: `KUBEBUILDER_ASSETS=DIR go test` → **envtest** → serve. DIR receives links to this
//! program, named `kube-apiserver`, `etcd` and `kubectl`; the program acts by the name it was
//! started with.
//! Promise: the flags and files of envtest work unchanged. Flags without an equivalent (service
//! address ranges, plug-ins) are accepted and ignored.

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

use crate::flags::{Command, EnvtestFlags, Flags, ServeFlags};
use crate::print;

mod etcd;

/// Time for open requests after SIGTERM: envtest waits 20 s in total.
const GRACE: Duration = Duration::from_secs(2);

/// The programs that envtest starts.
const NAMES: [&str; 3] = ["kube-apiserver", "etcd", "kubectl"];

/// Creates the links.
pub(crate) fn link(flags: &EnvtestFlags) -> Result<()> {
    let own = std::env::current_exe().context("cannot find the path of this program")?;
    let directory = &flags.directory;
    std::fs::create_dir_all(directory)
        .with_context(|| format!("cannot create directory {}", directory.display()))?;
    for name in NAMES {
        let path = directory.join(name);
        if path.symlink_metadata().is_ok_and(|known| !known.is_symlink()) {
            bail!("{} exists and is not a link; choose another directory", path.display());
        }
        // It may not exist; any other error recurs below.
        let _ = std::fs::remove_file(&path);
        symlink(&own, &path).with_context(|| format!("cannot create link {}", path.display()))?;
    }
    let directory = directory.canonicalize()?;
    print::data(&format!("export KUBEBUILDER_ASSETS={}", print::shell_word(&directory)));
    Ok(())
}

/// The program that this process replaces, by the name it was started with.
pub(crate) fn replaced_program(program: Option<&OsStr>) -> Option<&'static str> {
    let name = Path::new(program?).file_name()?;
    NAMES.into_iter().find(|known| name == *known)
}

/// Runs as a replacement for a program.
pub(crate) fn run_as(name: &str, arguments: Vec<OsString>) -> Result<()> {
    if name == "kubectl" {
        return kubectl(arguments);
    }
    let given = GoFlags::read(arguments)?;
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
            runtime.block_on(async { Box::pin(crate::serve::serve(serve, None)).await })
        }
    }
}

fn help(name: &str) -> &'static str {
    match name {
        "etcd" => ETCD_HELP,
        _ => API_SERVER_HELP,
    }
}

// envtest reads this text to find the supported flags.
const API_SERVER_HELP: &str = "\
A replacement for kube-apiserver in controller-runtime's envtest. Data is kept in memory.

Supported flags:
      --bind-address ip                         address to serve on
      --secure-port int                         port to serve on
      --cert-dir string                         directory of apiserver.crt and apiserver.key
      --tls-cert-file string                    serving certificate, if not in --cert-dir
      --tls-private-key-file string             key of the serving certificate
      --client-ca-file string                   certificate authority of clients
      --token-auth-file string                  file of bearer tokens
      --service-account-signing-key-file string key for service account tokens (EC P-256)

All others are accepted and ignored.";

const ETCD_HELP: &str = "\
A replacement for etcd in controller-runtime's envtest. It answers health checks and stores nothing,
because the replacement for kube-apiserver keeps its data in memory.

Supported flags:
      --listen-client-urls string  address to listen on

All others are accepted and ignored.";

/// Flags in Go's syntax.
struct GoFlags(BTreeMap<String, String>);

impl GoFlags {
    fn read(arguments: Vec<OsString>) -> Result<GoFlags> {
        let mut given = BTreeMap::new();
        let mut arguments = arguments.into_iter().peekable();
        while let Some(argument) = arguments.next() {
            let text =
                argument.into_string().map_err(|text| anyhow!("argument {text:?} is not UTF-8"))?;
            let Some(flag) = text.strip_prefix('-') else {
                bail!("argument {text:?} is not a flag");
            };
            let flag = flag.strip_prefix('-').unwrap_or(flag);
            let (name, value) = match flag.split_once('=') {
                Some((name, value)) => (name, value.to_owned()),
                // The value may be the next argument, unless that is a flag.
                None => {
                    let next = arguments.next_if(|next| !next.as_encoded_bytes().starts_with(b"-"));
                    let value = next.and_then(|next| next.into_string().ok());
                    (flag, value.unwrap_or_else(|| "true".to_owned()))
                }
            };
            given.insert(name.to_owned(), value);
        }
        Ok(GoFlags(given))
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

/// The flags of `serve` that are equivalent to flags of kube-apiserver.
fn api_server(given: &GoFlags) -> Result<ServeFlags> {
    let address = match given.text("bind-address") {
        "" => "127.0.0.1",
        address => address,
    };
    let address = address.parse().with_context(|| format!("invalid --bind-address={address}"))?;
    let port = match given.text("secure-port") {
        "" => 6443,
        port => port.parse().with_context(|| format!("invalid --secure-port={port}"))?,
    };
    let bind = SocketAddr::new(address, port);
    let flags = Flags::try_parse_from(["headwater", "serve", "--memory"])?;
    let Command::Serve(mut serve) = flags.command else {
        bail!("internal error: serve is not a command")
    };
    serve.bind = bind;
    serve.token_auth_file = given.file("token-auth-file");
    // envtest writes its files so that its group can read them.
    serve.allow_loose_permissions = true;
    serve.shutdown_grace = GRACE;
    serve.certificates = Some(certificates(given, bind)?);
    Ok(*serve)
}

fn certificates(given: &GoFlags, bind: SocketAddr) -> Result<Pki> {
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
            // Only this server checks the tokens, so a generated key works as well.
            Err(error) => {
                tracing::warn!(%error, "cannot use the key in {}; signing service account tokens with a generated key", path.display())
            }
        }
    }
    Ok(pki)
}

/// Replaces this process with the next kubectl on the PATH.
fn kubectl(arguments: Vec<OsString>) -> Result<()> {
    let own = std::env::current_exe()?.canonicalize()?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .map(|directory| directory.join("kubectl"))
        .find(|path| path.canonicalize().is_ok_and(|path| path.is_file() && path != own));
    let Some(found) = found else {
        bail!("no kubectl found on the PATH; install kubectl");
    };
    // `exec` returns only on failure.
    let error = Process::new(&found).args(arguments).exec();
    Err(error).with_context(|| format!("cannot run {}", found.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(arguments: &[&str]) -> GoFlags {
        GoFlags::read(arguments.iter().map(OsString::from).collect()).unwrap()
    }

    #[test]
    fn flags_are_read_as_go_reads_them() {
        let given = given(&["--a=1", "-b", "2", "--c", "--d=x=y", "--e="]);
        for (name, value) in [("a", "1"), ("b", "2"), ("c", "true"), ("d", "x=y"), ("e", "")] {
            assert_eq!(given.text(name), value, "{name}");
        }
        assert!(given.file("e").is_none() && !given.has("f"));
        assert!(GoFlags::read(vec!["word".into()]).is_err());
    }

    #[test]
    fn the_name_selects_the_replaced_program() {
        for (program, name) in [
            ("/x/kube-apiserver", Some("kube-apiserver")),
            ("etcd", Some("etcd")),
            ("./kubectl", Some("kubectl")),
            ("/usr/bin/headwater", None),
            ("", None),
        ] {
            assert_eq!(replaced_program(Some(OsStr::new(program))), name, "{program}");
        }
        assert_eq!(replaced_program(None), None);
    }

    #[test]
    fn the_help_names_no_flag_that_envtest_must_not_use() {
        assert!(!API_SERVER_HELP.contains("--insecure-port"));
        assert!(!ETCD_HELP.contains("--unsafe-no-fsync"));
    }

    #[test]
    fn the_api_server_listens_on_the_given_address() {
        let flags = ["--secure-port=7001", "--bind-address=127.0.0.1", "--authorization-mode=RBAC"];
        let serve = api_server(&given(&flags)).unwrap();
        assert_eq!(serve.bind.to_string(), "127.0.0.1:7001");
        assert!(serve.memory && serve.certificates.is_some());
        assert!(api_server(&given(&["--secure-port=x"])).is_err());
    }
}
