//! `headwater relay`: a List/Watch cache in front of another API server.
//!
//! Promise: the same start and stop as `serve`: an error at start names the fix, the first signal begins
//! a graceful stop.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use headwater_api::{Clock, SystemClock};
use headwater_bench::kubeconfig;
use headwater_relay::{HeldResources, Options, Relay};
use headwater_server::authenticator::Authenticator;
use headwater_server::listen::{self, Listener};
use headwater_server::metrics::Metrics;
use headwater_server::pki::private_file::{self, OthersMayRead};
use headwater_server::pki::{self, Pki};
use headwater_server::service_account::Issuer;
use headwater_server::tls::Acceptor;
use headwater_server::token_file::TokenFile;
use headwater_server::{Limits, Settings};
use kube::Config;
use kube::config::KubeConfigOptions;

use crate::flags::RelayFlags;
use crate::signals::Signals;
use crate::{limits, print};

/// The permission of an open watch is not asked for more often.
const RECHECK_MIN: Duration = Duration::from_secs(1);

/// Relays until a signal.
pub(crate) async fn relay(flags: RelayFlags) -> Result<()> {
    limits::raise();
    let mut signals = Signals::new()?;
    let resources = match flags.all {
        true => HeldResources::All,
        false => HeldResources::Named(flags.named()?),
    };
    let upstream = upstream(&flags.upstream).await?;
    let others = OthersMayRead::from_flag(flags.allow_loose_permissions);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let metrics = Metrics::new();
    if let Some(path) = &flags.data_dir {
        private_file::directory(path, others)?;
    }
    let pki = certificates(&flags, others, &*clock)?;
    let issuer = Issuer::new(&pki.service_account_key)?;
    let own_authority = pki.ca.clone();
    let acceptor = Acceptor::new(&with_clients(&flags, pki, &*clock)?, clock.clone())?;
    let listener =
        Listener::tls(flags.bind, acceptor, listen::Options::default(), metrics.clone())?;

    let token_file = match &flags.token_auth_file {
        Some(path) => Some(TokenFile::open(path, others)?),
        None => None,
    };
    let tokens = token_file.as_ref().map(TokenFile::tokens).unwrap_or_default();
    let server = headwater_server::Options {
        authenticator: Authenticator::new(tokens),
        clock,
        metrics,
        settings: Settings { limits: relay_limits(&flags), ..Settings::default() },
        ..headwater_server::Options::new(issuer)
    };
    let mut relay = Box::pin(Relay::start(Options {
        upstream,
        resources,
        data_dir: flags.data_dir.clone(),
        stale_ok: flags.stale_ok,
        keep_reviews: flags.permission_ttl,
        recheck_watches: flags.recheck_watches.max(RECHECK_MIN),
        impersonate: flags.impersonate,
        log_max: None,
        silence: None,
        server,
    }))
    .await?;
    let url = format!("https://{}", listener.address());
    if let Some(path) = &flags.kubeconfig_out {
        let text = kubeconfig(&own_authority, &url);
        private_file::replace(path, &text, private_file::PRIVATE)?;
    }
    relay.running().listen(listener);
    if let Some(file) = token_file {
        relay.running().run(|stop| file.run(stop));
    }
    let is_stopped = tokio::select! {
        biased;
        () = signals.next() => true,
        () = relay.synced() => false,
    };
    let mut running = relay.into_running();
    let failure = match is_stopped {
        true => None,
        false => {
            print::data(&format!("ready at {url}; relaying {}", flags.upstream.display()));
            tokio::select! {
                biased;
                () = signals.next() => None,
                error = running.failed() => Some(error),
            }
        }
    };
    print::note("stopping; a second signal exits at once");
    tokio::select! {
        biased;
        () = signals.next() => std::process::exit(crate::serve::SECOND_SIGNAL),
        ended = running.stop() => match failure {
            Some(failure) => Err(failure.into()),
            None => Ok(ended?),
        },
    }
}

async fn upstream(path: &Path) -> Result<Config> {
    let name = path.display();
    let read = kubeconfig::read(path, "--upstream is the kubeconfig of another API server")?;
    let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
    config.with_context(|| format!("cannot use --upstream {name}"))
}

fn certificates(flags: &RelayFlags, others: OthersMayRead, clock: &dyn Clock) -> Result<Pki> {
    let names: BTreeSet<String> = pki::names(flags.bind.ip(), &flags.tls_san);
    let own = flags.data_dir.as_ref().map(|path| path.join("pki"));
    Ok(match flags.pki_dir.clone().or(own) {
        Some(directory) => Pki::open(&directory, &names, others, clock)?,
        None => Pki::in_memory(&names, clock)?,
    })
}

/// Client certificates count only by `--client-ca-file`: nobody has a key of the authority that stands
/// in for a missing one.
fn with_clients(flags: &RelayFlags, pki: Pki, clock: &dyn Clock) -> Result<Pki> {
    let ca = match &flags.client_ca_file {
        Some(path) => std::fs::read_to_string(path)
            .with_context(|| format!("cannot read --client-ca-file {}", path.display()))?,
        None => Pki::in_memory(&BTreeSet::new(), clock)?.ca,
    };
    Ok(Pki { ca, ..pki })
}

/// One queue for all users: the upstream decides whose requests matter most.
fn relay_limits(flags: &RelayFlags) -> Limits {
    Limits {
        watches_max: flags.max_watches,
        watches_per_user_max: flags.max_watches_per_user,
        reads_max: flags.max_requests_inflight,
        fairness: false,
        ..Limits::default()
    }
}

/// A kubeconfig without a user: who uses it adds a credential of the upstream.
fn kubeconfig(ca: &str, url: &str) -> String {
    use base64::Engine;
    let ca = base64::engine::general_purpose::STANDARD.encode(ca);
    format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: relay\n  cluster:\n    server: {url}\n    \
         certificate-authority-data: {ca}\ncontexts:\n- name: relay\n  context:\n    cluster: relay\n    \
         user: user\ncurrent-context: relay\nusers: []\n"
    )
}
