//! `headwater serve` and `headwater dev`: opens the store, starts the server and the controllers,
//! and stops them.
//!
//! Promise: the process exits after every task has ended. The first signal starts a graceful
//! shutdown, the second exits at once. An error at start is one line that names the fix.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use headwater_api::{Clock, SystemClock};
use headwater_cache::Options as CacheOptions;
use headwater_controllers::ControllerSelection;
use headwater_controllers::certificates::CertificateSigner;
use headwater_controllers::identity::ComponentIdentity;
use headwater_recording::{FillOptions, fill};
use headwater_server::audit::Audit;
use headwater_server::authenticator::Authenticator;
use headwater_server::listen::{self, Listener};
use headwater_server::metrics::Metrics;
use headwater_server::oidc::file::{Authentication, AuthenticationFile};
use headwater_server::openapi::Descriptions;
use headwater_server::pki::private_file::{self, OthersMayRead};
use headwater_server::pki::revoked::RevocationFile;
use headwater_server::pki::{self, Pair, Pki, kubeconfig};
use headwater_server::presence::Presence;
use headwater_server::request_header::RequestHeaderOptions;
use headwater_server::service_account::Issuer;
use headwater_server::tls::Acceptor;
use headwater_server::token_file::TokenFile;
use headwater_server::token_webhook::TokenWebhook;
use headwater_server::{Forwarding, Limits, Loopback, Options, Running, Settings, start};
use headwater_store::Store;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet, spawn_blocking};
use tokio_util::sync::CancellationToken;

use crate::containers::SimulatedContainers;
use crate::controllers::{self, LocalControllers, Signer};
use crate::encryption::EncryptionFile;
use crate::engine::Engine;
use crate::flags::{ServeFlags, TimePoint, UiBind};
use crate::replay::{self, ReplayPlan};
use crate::signals::Signals;
use crate::traces::TraceExport;
use crate::ui::PageServer;
use crate::{limits, print};

/// The interval at which a running server checks its certificates.
const RENEW_EVERY: Duration = Duration::from_secs(86_400);
/// The interval at which a running server looks for newly revoked certificates.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Serves with all controllers, unless flags select some.
pub(crate) async fn dev(mut flags: ServeFlags) -> Result<()> {
    flags.controller_flags.controllers.get_or_insert_with(ControllerSelection::all);
    flags.ui_bind.get_or_insert(UiBind::At((Ipv4Addr::LOCALHOST, 0).into()));
    flags.honors_forwarding = true;
    Box::pin(serve(flags, None)).await
}

/// Serves until a signal; meanwhile replays a recording, if there is one.
pub(crate) async fn serve(mut flags: ServeFlags, replay: Option<ReplayPlan>) -> Result<()> {
    let stages = controllers::stages(&flags.controller_flags)?;
    let began = Instant::now();
    limits::raise();
    let signals = Signals::new()?;
    let paths = ServerPaths::new(&flags)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);

    let engine = Engine::open(&flags, paths.data.as_deref(), clock.clone()).await?;
    let metrics = Metrics::new();
    let authorization = flags.authorization.open(&metrics)?;
    let given = flags.certificates.take();
    let credentials = Credentials::open(&flags, &paths, &metrics)?;
    let mut certificates = Certificates::open(&flags, given, &paths, clock.clone())?;
    if let Some(proxies) = &credentials.proxies {
        certificates.acceptor = certificates.acceptor.with_proxies(&proxies.authority)?;
    }
    let https = Listener::tls(
        flags.bind,
        certificates.acceptor.clone(),
        listen_options(&flags),
        metrics.clone(),
    )?;
    let http = match flags.insecure_bind {
        Some(address) => Some(Listener::plain(address, listen_options(&flags), metrics.clone())?),
        None => None,
    };

    let audit = match flags.audit.options()? {
        Some(options) => {
            Audit::start(options, clock.clone(), &metrics).context("cannot open the audit log")?
        }
        None => Audit::default(),
    };

    let (tracer, traces) = TraceExport::open(&flags.traces, clock.clone(), &metrics)?;

    let encryption = match &flags.encryption_provider_config {
        Some(path) => {
            let counted = &metrics.encryption;
            Some(EncryptionFile::open(path, paths.others, engine.store(), counted).await?)
        }
        None => None,
    };
    let store = encryption.as_ref().map_or_else(|| engine.store(), EncryptionFile::store);

    // Other front proxies may need another certificate of this server too.
    let front_proxy = match (credentials.proxy_client, &credentials.proxies) {
        (Some(given), _) => Some(given),
        (None, Some(_)) => None,
        (None, None) => Some(certificates.pki.front_proxy.client.clone()),
    };
    if let Some(path) = &flags.from {
        fill_from(&*store, path, flags.from_until.as_ref(), flags.memory).await?;
    }
    let replay = replay.map(|plan| (plan, Arc::clone(&store)));
    let controllers = LocalControllers::new(&flags.controller_flags, stages.clone());
    let has_nodes = controllers.as_ref().is_some_and(LocalControllers::has_nodes);
    let mut running = start(
        store,
        Options {
            front_proxy,
            authenticator: credentials.authenticator,
            authorization: authorization.authorization,
            clock,
            metrics,
            descriptions: descriptions(),
            backup: engine.backup(),
            cache: cache_options(&flags),
            settings: settings(&flags)?,
            audit,
            tracer,
            containers: has_nodes.then(|| SimulatedContainers::runtime(stages)),
            ..Options::new(certificates.issuer()?)
        },
    )
    .await?;
    if let Some(traces) = traces {
        running.run(|stop| traces.run(stop));
    }
    if let Some(file) = credentials.token_file {
        running.run(|stop| file.run(stop));
    }
    if let Some(file) = authorization.file {
        running.run(|stop| file.run(stop));
    }
    if let Some(file) = credentials.authentication_file {
        running.run(|stop| file.run(stop));
    }
    if let Some(file) = encryption {
        running.run(|stop| file.run(stop));
    }
    let client_authority = certificates.pki.ca.clone();
    let own_proxy = || RequestHeaderOptions::own(certificates.pki.front_proxy.ca.clone());
    let proxies = credentials.proxies.or_else(|| Some(own_proxy()));
    running.appear(Presence { address: https.address(), client_authority, proxies }).await;
    let url = format!("https://{}", reachable(https.address()));
    let admin = kubeconfig::admin(&certificates.pki, &url);
    let kubeconfig_path = paths.write_kubeconfig(&admin)?;
    let credentials = ControllerCredentials::new(&certificates.pki, &url, &*certificates.clock)?;
    let plain = http.as_ref().map(Listener::address);

    let mut tasks = ControllerTasks::default();
    let (renewals, newest) = watch::channel(credentials);
    if let Some(controllers) = &controllers {
        running.server().ensure_component_roles().await.map_err(|status| anyhow!("{status}"))?;
        tasks.spawn(controllers.clone(), newest);
    }
    let renewal = AdminRenewal {
        url: url.clone(),
        path: kubeconfig_path.clone(),
        published: admin,
        clock: certificates.clock.clone(),
        renewals,
    };
    running.run(|stop| certificates.keep_renewed(renewal, stop));
    for listener in std::iter::once(https).chain(http) {
        running.listen(listener);
    }
    if let Some((plan, store)) = replay {
        running.run(|stop| plan.run(store, stop));
    }
    announce_data(plain, &engine);
    if let Some(controllers) = &controllers {
        controllers.announce();
    }
    if let Some(UiBind::At(address)) = flags.ui_bind {
        let page = PageServer::bind(address, kubeconfig_path.clone()).await?;
        page.announce();
        running.run(|stop| page.run(stop));
    }
    announce(&url, &kubeconfig_path, began.elapsed(), controllers.as_ref());
    let ended = until_stopped(running, tasks, signals).await;
    paths.clean_up();
    engine.close().await?;
    ended
}

/// Writes a recording into an empty store.
async fn fill_from(
    store: &dyn Store,
    path: &Path,
    until: Option<&TimePoint>,
    is_memory: bool,
) -> Result<()> {
    /// Writes that share a sync. In memory nothing is gained, and every change has its revision.
    const TOGETHER: usize = 200;
    let (until, _) = replay::checked(path, until)?;
    let file = std::fs::File::open(path)?;
    let together = if is_memory { 1 } else { TOGETHER };
    let filled = fill(store, file, FillOptions { until, together }).await;
    let summary = filled.with_context(|| {
        format!(
            "cannot start from {}; use a new data directory, or leave out --from",
            path.display()
        )
    })?;
    print::data(&format!(
        "starting from {}: {} objects, {} changes",
        path.display(),
        summary.initial,
        summary.changes
    ));
    Ok(())
}

/// Waits for a signal or a failure, then stops the controllers and after them the server.
async fn until_stopped(
    mut running: Running,
    mut controllers: ControllerTasks,
    mut signals: Signals,
) -> Result<()> {
    let failure = tokio::select! {
        biased;
        () = signals.next() => None,
        error = running.failed() => Some(error.into()),
        error = controllers.failed() => Some(error),
    };
    if failure.is_none() {
        print::note("stopping; a second signal exits at once");
    }
    tokio::select! {
        biased;
        () = signals.next() => std::process::exit(SECOND_SIGNAL),
        () = controllers.stop() => {}
    }
    tokio::select! {
        biased;
        () = signals.next() => std::process::exit(SECOND_SIGNAL),
        ended = running.stop() => match failure {
            Some(failure) => Err(failure),
            None => Ok(ended?),
        },
    }
}

/// What the controllers in this process need of the certificates.
#[derive(Clone)]
struct ControllerCredentials {
    /// A kubeconfig for each identity, by its user. Their certificates are in memory only.
    kubeconfigs: BTreeMap<String, String>,
    signer: Arc<dyn CertificateSigner>,
}

impl ControllerCredentials {
    fn new(pki: &Pki, url: &str, clock: &dyn Clock) -> Result<ControllerCredentials> {
        let identities = headwater_controllers::identity::all().into_iter();
        let each =
            identities.map(|ComponentIdentity { user, groups }| -> Result<(String, String)> {
                let pair = pki.client(&user, &groups, clock)?;
                let credential = kubeconfig::UserCredential::Certificate(&pair);
                let text = kubeconfig::user(&pki.ca, url, &user, credential);
                Ok((user, text))
            });
        let kubeconfigs = each.collect::<Result<_>>()?;
        Ok(ControllerCredentials { kubeconfigs, signer: Signer::of(&pki.signing)? })
    }
}

/// The tasks of the controllers in this process. They stop before the server.
#[derive(Default)]
struct ControllerTasks {
    tasks: JoinSet<Result<()>>,
    stop: CancellationToken,
}

/// Time for controllers to complete their writes at shutdown.
const CONTROLLERS_GRACE: Duration = Duration::from_secs(5);

impl ControllerTasks {
    /// Runs the controllers with the newest credentials: they start again when these are renewed.
    fn spawn(
        &mut self,
        controllers: LocalControllers,
        mut newest: watch::Receiver<ControllerCredentials>,
    ) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            loop {
                let credentials = newest.borrow_and_update().clone();
                let (stopped, mut newer) = (stop.clone(), newest.clone());
                let until = async move {
                    tokio::select! {
                        biased;
                        () = stopped.cancelled() => {}
                        Ok(()) = newer.changed() => {}
                    }
                };
                controllers.run(&credentials.kubeconfigs, credentials.signer, until)?.await?;
                if stop.is_cancelled() || !newest.has_changed().unwrap_or_default() {
                    return Ok(());
                }
                tracing::info!("the controllers start again with renewed certificates");
            }
        });
    }

    /// Waits until the controllers end without being stopped.
    async fn failed(&mut self) -> anyhow::Error {
        match self.tasks.join_next().await {
            Some(Ok(Err(error))) => error,
            Some(Ok(Ok(()))) => anyhow!("the controllers stopped unexpectedly"),
            Some(Err(error)) => anyhow::Error::new(error).context("the controllers panicked"),
            None => std::future::pending().await,
        }
    }

    async fn stop(&mut self) {
        self.stop.cancel();
        let quiet = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(CONTROLLERS_GRACE, quiet).await.is_err() {
            self.tasks.abort_all();
        }
    }
}

/// The exit code after a second signal: that of a shell after Ctrl-C.
pub(crate) const SECOND_SIGNAL: i32 = 130;

/// The files and directories that the server writes.
struct ServerPaths {
    data: Option<PathBuf>,
    kubeconfig_out: Option<PathBuf>,
    /// Directory for the kubeconfig of a server in memory; removed at shutdown.
    temporary: Option<PathBuf>,
    others: OthersMayRead,
}

impl ServerPaths {
    fn new(flags: &ServeFlags) -> Result<ServerPaths> {
        let others = OthersMayRead::from_flag(flags.allow_loose_permissions);
        let data = (!flags.memory).then(|| flags.data_dir.clone());
        if let Some(data) = &data {
            private_file::directory(data, others)?;
        }
        let kubeconfig_out = flags.kubeconfig_out.clone();
        let temporary = match (&data, &kubeconfig_out) {
            (None, None) => Some(private_file::temporary_directory()?),
            _ => None,
        };
        Ok(ServerPaths { data, kubeconfig_out, temporary, others })
    }

    fn write_kubeconfig(&self, kubeconfig: &str) -> Result<PathBuf> {
        let directory = self.data.as_ref().or(self.temporary.as_ref());
        let path = match (&self.kubeconfig_out, directory) {
            (Some(path), _) => path.clone(),
            (None, Some(directory)) => directory.join("admin.kubeconfig"),
            (None, None) => anyhow::bail!("there is no directory for the kubeconfig"),
        };
        private_file::replace(&path, kubeconfig, private_file::PRIVATE)?;
        Ok(path)
    }

    fn clean_up(&self) {
        if let Some(temporary) = &self.temporary {
            // A leftover directory is harmless: only its owner may enter it.
            let _ = std::fs::remove_dir_all(temporary);
        }
    }
}

/// How clients prove who they are, and the files that say so.
struct Credentials {
    authenticator: Authenticator,
    token_file: Option<TokenFile>,
    authentication_file: Option<AuthenticationFile>,
    proxies: Option<RequestHeaderOptions>,
    proxy_client: Option<Pair>,
}

impl Credentials {
    fn open(flags: &ServeFlags, paths: &ServerPaths, metrics: &Metrics) -> Result<Credentials> {
        let token_file = match &flags.token_auth_file {
            Some(path) => Some(TokenFile::open(path, paths.others)?),
            None => None,
        };
        let tokens = token_file.as_ref().map(TokenFile::tokens).unwrap_or_default();
        let mut authenticator = Authenticator::new(tokens);
        let given = &flags.authentication;
        let authentication_file = match &given.authentication_config {
            Some(path) => Some(AuthenticationFile::open(path, metrics.clone())?),
            None => None,
        };
        if let Some(file) = &authentication_file {
            authenticator = authenticator.with_authentication(file.authentication());
        } else if let Some(issuer) = given.issuer()? {
            authenticator = authenticator.with_authentication(Authentication::new(issuer)?);
        }
        if !given.anonymous_auth {
            authenticator = authenticator.without_anonymous();
        }
        if given.enable_bootstrap_token_auth {
            authenticator = authenticator.with_bootstrap_tokens();
        }
        if let Some(path) = &given.authentication_token_webhook_config_file {
            let keep = given.authentication_token_webhook_cache_ttl;
            authenticator = authenticator.with_webhook(TokenWebhook::open(path, keep)?);
        }
        let proxies = given.proxies()?;
        if let Some(proxies) = &proxies {
            authenticator = authenticator.with_proxies(proxies.clone());
        }
        let proxy_client = given.proxy_client()?;
        Ok(Credentials { authenticator, token_file, authentication_file, proxies, proxy_client })
    }
}

/// The server's certificates and their renewal.
struct Certificates {
    pki: Pki,
    acceptor: Acceptor,
    /// `None` if they are in memory only, and not renewed.
    directory: Option<PathBuf>,
    names: std::collections::BTreeSet<String>,
    others: OthersMayRead,
    clock: Arc<dyn Clock>,
    /// Notices revoked certificates.
    revocations: Option<RevocationFile>,
}

/// What has to change when the administrator's certificate is renewed.
struct AdminRenewal {
    /// The address in the kubeconfig.
    url: String,
    /// The kubeconfig file.
    path: PathBuf,
    /// The content of the file.
    published: String,
    clock: Arc<dyn Clock>,
    /// The credentials of the controllers in this process.
    renewals: watch::Sender<ControllerCredentials>,
}

impl AdminRenewal {
    /// Writes and publishes the kubeconfig if it differs.
    fn publish(&mut self, pki: &Pki) -> Result<()> {
        let kubeconfig = kubeconfig::admin(pki, &self.url);
        if self.published == kubeconfig {
            return Ok(());
        }
        private_file::replace(&self.path, &kubeconfig, private_file::PRIVATE)?;
        tracing::info!(path = %self.path.display(), "wrote a renewed kubeconfig");
        self.renewals.send_replace(ControllerCredentials::new(pki, &self.url, &*self.clock)?);
        self.published = kubeconfig;
        Ok(())
    }
}

impl Certificates {
    /// Uses the given certificates, or loads or creates them.
    fn open(
        flags: &ServeFlags,
        given: Option<Pki>,
        paths: &ServerPaths,
        clock: Arc<dyn Clock>,
    ) -> Result<Certificates> {
        let names = pki::names(flags.bind.ip(), &flags.tls_san);
        let own = paths.data.as_ref().map(|data| data.join("pki"));
        let directory = flags.pki_dir.clone().or(own);
        let pki = match given {
            Some(pki) => pki,
            None => load(directory.as_deref(), &names, paths.others, &*clock)?,
        };
        let acceptor = Acceptor::new(&pki, clock.clone())?;
        let revocations = match &directory {
            None => None,
            Some(directory) => {
                let (file, revoked) = RevocationFile::open(directory)?;
                acceptor.revoke(revoked);
                Some(file)
            }
        };
        let others = paths.others;
        Ok(Certificates { pki, acceptor, directory, names, others, clock, revocations })
    }

    /// Signs and verifies service-account tokens.
    fn issuer(&self) -> Result<Issuer> {
        let issuer = Issuer::new(&self.pki.service_account_key)?;
        Ok(issuer.with_former_keys(&self.pki.former_service_account_keys)?)
    }

    /// Renews certificates before they expire, and rejects those that are revoked.
    async fn keep_renewed(self, admin: AdminRenewal, stop: CancellationToken) {
        let mut kept = (self, admin);
        let mut days = tokio::time::interval(RENEW_EVERY);
        let mut looks = tokio::time::interval(LOOK_EVERY);
        loop {
            let work = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = days.tick() => |(own, admin): &mut (Certificates, _)| own.renew(admin),
                _ = looks.tick() => |(own, admin): &mut (Certificates, _)| own.read_revocations(admin),
            };
            // They read files, and another process may hold the lock of the directory.
            let done = spawn_blocking(move || {
                work(&mut kept);
                kept
            });
            match done.await.map_err(JoinError::try_into_panic) {
                Ok(again) => kept = again,
                Err(Ok(panic)) => std::panic::resume_unwind(panic),
                Err(Err(_)) => return, // the process is stopping
            }
        }
    }

    fn renew(&self, admin: &mut AdminRenewal) {
        let Some(directory) = &self.directory else { return };
        let renewed =
            load(Some(directory), &self.names, self.others, &*self.clock).and_then(|pki| {
                self.acceptor.replace(&pki)?;
                admin.publish(&pki)
            });
        if let Err(error) = renewed {
            tracing::error!(%error, "cannot renew the certificates; the server keeps the old ones");
        }
    }

    fn read_revocations(&mut self, admin: &mut AdminRenewal) {
        match self.revocations.as_mut().and_then(RevocationFile::changed) {
            None => {}
            Some(Ok(revoked)) => {
                tracing::info!("the list of revoked certificates was read again");
                // First a new certificate for the administrator, if the old one is revoked.
                self.renew(admin);
                self.acceptor.revoke(revoked);
            }
            Some(Err(error)) => {
                tracing::error!(%error, "cannot read the revoked certificates; the server keeps the previous list");
            }
        }
    }
}

fn load(
    directory: Option<&Path>,
    names: &std::collections::BTreeSet<String>,
    others: OthersMayRead,
    clock: &dyn Clock,
) -> Result<Pki> {
    Ok(match directory {
        Some(directory) => Pki::open(directory, names, others, clock)?,
        None => Pki::in_memory(names, clock)?,
    })
}

fn listen_options(flags: &ServeFlags) -> listen::Options {
    listen::Options {
        shutdown_grace: flags.shutdown_grace,
        http2_streams_max: flags.http2_max_streams_per_connection,
        ..listen::Options::default()
    }
}

fn settings(flags: &ServeFlags) -> Result<Settings> {
    let webhooks_on_loopback = match flags.may_call_loopback() {
        true => Loopback::Callable,
        false => Loopback::Refused,
    };
    let forwarding = match flags.honors_forwarding && flags.bind.ip().is_loopback() {
        true => Forwarding::Honored,
        false => Forwarding::Ignored,
    };
    let limits = Limits {
        watches_max: flags.max_watches,
        watches_per_user_max: flags.max_watches_per_user,
        list_bytes_max: flags.max_list_bytes.0,
        reads_max: flags.max_requests_inflight,
        writes_max: flags.max_mutating_requests_inflight,
        fairness: flags.enable_priority_and_fairness,
    };
    let has_seats = limits.reads_max > 0 || limits.writes_max > 0;
    ensure!(
        has_seats || !limits.fairness,
        "--max-requests-inflight and --max-mutating-requests-inflight cannot both be 0 with \
         priority and fairness"
    );
    let controllers = flags.controller_flags.controllers.as_ref();
    let makes_accounts = controllers.is_some_and(|selected| selected.has("serviceaccount"));
    let admission = flags.admission.settings(makes_accounts)?;
    Ok(Settings { webhooks_on_loopback, forwarding, limits, admission, ..Settings::default() })
}

fn cache_options(flags: &ServeFlags) -> CacheOptions {
    let mut options = CacheOptions::default();
    if let Some(size) = flags.default_watch_cache_size {
        options.window.count = size;
    }
    options.window_counts = flags.watch_cache_sizes.iter().cloned().collect();
    options
}

/// The descriptions of built-in types for `kubectl explain`, written by `describe.py`.
fn descriptions() -> Descriptions {
    Descriptions::new(include_str!("descriptions.txt"))
}

/// The address for clients on this machine.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

fn announce_data(plain: Option<SocketAddr>, engine: &Engine) {
    print::data(&format!("data is kept in {}", engine.description()));
    if let Some(address) = plain {
        print::data(&format!(
            "plain HTTP at http://{address}: every client there is the administrator"
        ));
    }
}

fn announce(url: &str, kubeconfig: &Path, took: Duration, controllers: Option<&LocalControllers>) {
    let kubeconfig = print::shell_word(kubeconfig);
    let next = controllers.map_or("kubectl get namespaces", LocalControllers::example);
    print::data(&format!(
        "ready at {url} after {} ms; try: export KUBECONFIG={kubeconfig}; {next}",
        took.as_millis()
    ));
}

#[cfg(test)]
mod tests;
