//! The server as one value: what every request shares.
//!
//! `crate::pipeline` answers requests with it; it knows nothing of sockets.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use headwater_api::{Clock, SystemClock, kind};
use headwater_cache::Cache;
use headwater_store::StoreCondition;
use http::HeaderMap;
use tokio_util::sync::CancellationToken;

use crate::admission::Admission;
use crate::admission::settings::AdmissionSettings;
use crate::answer::blocks::Blocks;
use crate::audit::Audit;
use crate::backend::Backend;
use crate::containers::ContainerRuntime;
use crate::front::authenticator::{Authenticator, Credential, TokenContext};
use crate::front::identity::{Identity, Peer, Unauthorized};
use crate::front::pki::Pair;
use crate::front::service_account::{self, AuthenticatedToken, Issuer, ServiceAccounts};
use crate::front::token_file::Tokens;
use crate::kinds::custom::definitions::Definitions;
use crate::kinds::live;
use crate::kinds::openapi::{Descriptions, Documents};
use crate::kinds::registry::{Registry, Served};
use crate::kinds::remote::RemoteVersions;
use crate::live::LiveResources;
use crate::outgoing::upstream::Upstream;
use crate::outgoing::{Caller, ClientCredential, Forwarding, Loopback};
use crate::relayed::{HeldResource, Relayed};
use crate::request::authorize::Authorization;
use crate::request::flow::FlowControl;
use crate::request::flow::limits::{Limits, StreamLimits};
use crate::request::observe;
use crate::system::backup::Backup;
use crate::system::health::Health;
use crate::system::metrics::Metrics;
use crate::trace::Tracer;
use crate::work::WorkPool;

/// How a server is set up.
pub struct Options {
    /// Determines who sent a request.
    pub authenticator: Authenticator,
    /// Decides who may send it.
    pub authorization: Authorization,
    /// Signs the tokens of service accounts.
    pub issuer: Issuer,
    /// The clock that requests see.
    pub clock: Arc<dyn Clock>,
    /// Where requests are counted.
    pub metrics: Metrics,
    /// The descriptions of types and fields that `kubectl explain` shows.
    pub descriptions: Descriptions,
    /// Makes backups.
    pub backup: Backup,
    /// How much history the cache keeps.
    pub cache: headwater_cache::Options,
    /// Times and limits.
    pub settings: Settings,
    /// What is recorded of requests.
    pub audit: Audit,
    /// Records traces of requests.
    pub tracer: Tracer,
    /// The client certificate that extension servers trust to name users.
    pub front_proxy: Option<Pair>,
    /// The server that this one is a relay of. It then serves what [`Server::hold`] adds, and passes on
    /// everything else.
    pub upstream: Option<Arc<dyn Upstream>>,
    /// What answers for the containers of pods; without it, logs and commands get 501.
    pub containers: Option<Arc<dyn ContainerRuntime>>,
}

impl Options {
    /// The defaults: the system clock, no token file, no descriptions, no backups.
    pub fn new(issuer: Issuer) -> Options {
        Options {
            authenticator: Authenticator::new(Tokens::default()),
            authorization: Authorization::default(),
            issuer,
            clock: Arc::new(SystemClock),
            metrics: Metrics::new(),
            descriptions: Descriptions::default(),
            backup: Backup::default(),
            cache: headwater_cache::Options::default(),
            settings: Settings::default(),
            audit: Audit::default(),
            tracer: Tracer::default(),
            front_proxy: None,
            upstream: None,
            containers: None,
        }
    }
}

/// Times and limits.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The maximum duration of a request that is not a watch (S8.25).
    pub request_timeout: Duration,
    /// The minimum duration of a watch without a timeout; it is random up to twice this (S4.9).
    pub watch_timeout: Duration,
    /// The approximate interval of bookmarks (S4.12).
    pub bookmark_every: Duration,
    /// How often the permission of an open watch is confirmed again; `None`: only when it opens.
    pub recheck_watches: Option<Duration>,
    /// Whether webhooks on this machine may be called.
    pub webhooks_on_loopback: Loopback,
    /// Whether Services and Pods may name a process on this machine that replies in their place.
    pub forwarding: Forwarding,
    /// Limits on what it does at a time.
    pub limits: Limits,
    /// What admission does.
    pub admission: AdmissionSettings,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            request_timeout: Duration::from_secs(60),
            watch_timeout: Duration::from_secs(1800),
            bookmark_every: Duration::from_secs(60),
            recheck_watches: None,
            webhooks_on_loopback: Loopback::Callable,
            forwarding: Forwarding::Ignored,
            limits: Limits::default(),
            admission: AdmissionSettings::default(),
        }
    }
}

/// The API server. Cheap to clone.
#[derive(Clone)]
pub struct Server {
    shared: Arc<Shared>,
}

struct Shared {
    backend: Backend,
    definitions: tokio::sync::Mutex<Definitions>,
    authenticator: Authenticator,
    service_accounts: ServiceAccounts,
    flow: FlowControl,
    stream_limits: Arc<StreamLimits>,
    work: WorkPool,
    live: LiveResources,
    settings: Settings,
    admission: Admission,
    documents: Documents,
    backup: Backup,
    audit: Audit,
    tracer: Tracer,
    /// Group versions of extension servers.
    remotes: RemoteVersions,
    front_proxy: Option<ClientCredential>,
    /// What a relay holds; `None` for every other server.
    relayed: Option<Relayed>,
    containers: Option<Arc<dyn ContainerRuntime>>,
    /// Compressed blocks of lists.
    blocks: Arc<Blocks>,
    /// Cancelled when the server begins to stop: watches end, readiness fails.
    draining: CancellationToken,
}

impl Deref for Server {
    type Target = Backend;

    fn deref(&self) -> &Backend {
        &self.shared.backend
    }
}

impl Server {
    /// A server over a loaded cache.
    pub(crate) fn new(cache: Cache, options: Options) -> Result<Server, headwater_cache::Error> {
        let Options { authenticator, issuer, clock, metrics, descriptions, backup, .. } = options;
        let (settings, audit, containers) = (options.settings, options.audit, options.containers);
        let front_proxy = options.front_proxy.map(|pair| ClientCredential::Certificate {
            chain: pair.certificate.into(),
            key: pair.key.reveal().into(),
        });
        let authorization = options.authorization;
        let relayed = options.upstream.map(Relayed::new);
        let builtin = Registry::new(kind::builtin());
        define(&cache, &builtin)?;
        let measured = containers.clone().map(|runtime| (runtime, cache.clone()));
        let mut rows = live::rows();
        rows.extend(measured.iter().flat_map(|_| live::metrics_rows()));
        let resources = LiveResources::new(&clock, cache.clone(), measured);
        for row in &rows {
            resources.cache().set_fields(&row.prefix, &row.fields)?;
        }
        let registry = match relayed {
            Some(_) => Registry::default().with(rows),
            None => builtin.with(rows),
        };
        observe::cache(&metrics, &cache);
        let caller = Caller::new(settings.webhooks_on_loopback, settings.forwarding);
        let shared = Shared {
            service_accounts: ServiceAccounts::new(issuer, cache.clone(), clock.clone()),
            flow: FlowControl::new(&cache, settings.limits, settings.request_timeout, &metrics),
            stream_limits: StreamLimits::new(settings.limits, &metrics),
            work: WorkPool::new(&metrics),
            live: resources,
            documents: Documents::new(descriptions, &metrics),
            admission: Admission::new(&cache, settings.admission.clone()),
            definitions: tokio::sync::Mutex::new(Definitions::new(registry.clone())),
            backend: Backend::new(cache, registry, clock, metrics, caller, authorization),
            authenticator,
            settings,
            backup,
            audit,
            tracer: options.tracer,
            remotes: RemoteVersions::default(),
            front_proxy,
            relayed,
            containers,
            blocks: Arc::default(),
            draining: CancellationToken::new(),
        };
        Ok(Server { shared: Arc::new(shared) })
    }

    /// Defines the built-in kinds in an empty cache, so that loading decodes each object once.
    pub(crate) fn prepare(cache: &Cache) -> Result<(), headwater_cache::Error> {
        define(cache, &Registry::new(kind::builtin()))
    }

    pub(crate) fn definitions(&self) -> &tokio::sync::Mutex<Definitions> {
        &self.shared.definitions
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    pub(crate) fn documents(&self) -> &Documents {
        &self.shared.documents
    }

    pub(crate) fn backup(&self) -> &Backup {
        &self.shared.backup
    }

    pub(crate) fn audit(&self) -> &Audit {
        &self.shared.audit
    }

    pub(crate) fn tracer(&self) -> &Tracer {
        &self.shared.tracer
    }

    /// What answers for the containers of pods, if anything does.
    pub(crate) fn containers(&self) -> Option<&Arc<dyn ContainerRuntime>> {
        self.shared.containers.as_ref()
    }

    pub(crate) fn blocks(&self) -> &Arc<Blocks> {
        &self.shared.blocks
    }

    /// Group versions of extension servers.
    pub(crate) fn remotes(&self) -> &RemoteVersions {
        &self.shared.remotes
    }

    /// The credential of this server at extension servers.
    pub(crate) fn front_proxy(&self) -> Option<&ClientCredential> {
        self.shared.front_proxy.as_ref()
    }

    pub(crate) fn stream_limits(&self) -> &Arc<StreamLimits> {
        &self.shared.stream_limits
    }

    /// Runs requests that compute for long.
    pub(crate) fn work(&self) -> &WorkPool {
        &self.shared.work
    }

    pub(crate) fn admission(&self) -> &Admission {
        &self.shared.admission
    }

    /// Cancelled when the server begins to stop.
    pub fn draining(&self) -> &CancellationToken {
        &self.shared.draining
    }

    /// Begins to stop: readiness fails, watches get a last bookmark and end cleanly.
    pub fn drain(&self) {
        self.shared.draining.cancel();
        self.cache().stop();
        self.live().cache().stop();
        self.relayed().into_iter().flat_map(Relayed::caches).for_each(|cache| cache.stop());
    }

    /// What a relay holds.
    pub(crate) fn relayed(&self) -> Option<&Relayed> {
        self.shared.relayed.as_ref()
    }

    /// Serves a resource from its cache, which is loaded. Only a relay does.
    pub fn hold(&self, resource: HeldResource) {
        self.change_held(|held| {
            held.insert(resource.kind.prefix.clone(), resource);
        });
    }

    /// The cache of a resource that a relay holds, by key prefix.
    pub fn held_cache(&self, prefix: &str) -> Option<Cache> {
        self.relayed()?.cache(prefix)
    }

    /// Ends the watches of a resource and serves it no longer.
    pub fn let_go(&self, prefix: &str) {
        let mut released = None;
        self.change_held(|held| released = held.remove(prefix));
        if let Some(released) = released {
            released.cache.retire(prefix);
        }
    }

    fn change_held(&self, change: impl FnOnce(&mut HashMap<String, HeldResource>)) {
        let Some(relayed) = self.relayed() else { return };
        relayed.change(change, |kinds| {
            self.replace_registry(Registry::default().with(live::rows()).with(kinds));
        });
    }

    /// The resources that show what the server is doing.
    pub(crate) fn live(&self) -> &LiveResources {
        &self.shared.live
    }

    /// The cache that has the objects of a kind.
    pub(crate) fn cache_of(&self, kind: &Served) -> Cache {
        if self.live().covers(kind) {
            return self.live().cache().clone();
        }
        let held = self.relayed().and_then(|relayed| relayed.cache(&kind.prefix));
        held.unwrap_or_else(|| self.cache().clone())
    }

    /// The cache that has the objects of a kind, after a sample if they are sampled.
    pub(crate) async fn sampled_cache(&self, kind: &Served) -> Cache {
        if self.live().covers(kind) {
            self.live().refresh(self.flow()).await;
        }
        self.cache_of(kind)
    }

    /// Keeps the live resources current.
    pub(crate) async fn keep_live_resources(self, stop: CancellationToken) {
        self.live().run(self.flow(), stop).await;
    }

    pub(crate) fn flow(&self) -> &FlowControl {
        &self.shared.flow
    }

    /// Authenticates a request for a path.
    pub(crate) async fn identify(
        &self,
        peer: &Peer,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<Arc<Identity>, Unauthorized> {
        let identity = match self.shared.authenticator.identify(peer, path, headers)? {
            Credential::Identified(identity) => identity,
            Credential::Token(token) => {
                let known = self.identify_token(token, &[]).await;
                known.map(|known| known.identity).map_err(|_| Unauthorized)?
            }
        };
        if identity.is_anonymous() {
            return Ok(identity);
        }
        // A connection may outlive its certificate.
        if identity.expires.is_some_and(|expires| expires <= self.now()) {
            return Err(Unauthorized);
        }
        peer.mark_identified();
        Ok(identity)
    }

    /// Whether a request is authenticated by a token that the upstream of a relay knows.
    pub(crate) fn shows_token(&self, peer: &Peer, path: &str, headers: &HeaderMap) -> bool {
        let found = self.shared.authenticator.identify(peer, path, headers);
        matches!(found, Ok(Credential::Token(_)))
    }

    /// The user of a bearer token that is valid for one of these audiences; no audience means this
    /// server.
    pub(crate) async fn identify_token(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<AuthenticatedToken, service_account::Refused> {
        let context = TokenContext {
            accounts: &self.shared.service_accounts,
            cache: self.cache(),
            caller: self.caller(),
            now: self.now(),
        };
        self.shared.authenticator.identify_token(token, audiences, context).await
    }

    pub(crate) fn service_accounts(&self) -> &ServiceAccounts {
        &self.shared.service_accounts
    }

    /// What the health paths report.
    pub(crate) fn health(&self) -> Health {
        let StoreCondition { trouble, key_services, .. } = self.store().condition();
        // A relay goes on without its upstream, and says so in metrics.
        let trouble = trouble.filter(|_| self.relayed().is_none());
        let is_stopping = self.draining().is_cancelled();
        Health { store_trouble: trouble, key_services, is_stopping }
    }
}

/// Defines the selectable fields of each stored kind; existing definitions stay unchanged.
fn define(cache: &Cache, registry: &Registry) -> Result<(), headwater_cache::Error> {
    for row in registry.kinds().iter().filter(|row| !row.is_converted()) {
        cache.set_fields(&row.prefix, &row.fields)?;
    }
    Ok(())
}
