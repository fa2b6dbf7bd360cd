//! Running a relay: the server, and one task for each resource that is held.
//!
//! River: options → **run** → server; discovery → tasks that follow.
//! Promise: every task ends with the relay. A resource whose task fails is passed on until it is held
//! again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use headwater_api::backoff::Backoff;
use headwater_api::random::Random;
use headwater_cache::{Cacher, Filter, WatchStart, WatchStep};
use headwater_json::Value;
use headwater_server::token_webhook::TokenWebhook;
use headwater_server::{Authorization, HeldResource, Running, Server, start};
use headwater_store::Memory;
use kube::Config;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::catalog::{CatalogEntry, Descriptions, DiscoveryError, HeldResources, discover, entry};
use crate::connection::Connection;
use crate::metrics::{FollowedProgress, ReadProgress, RelayMetrics};
use crate::store::{FollowOptions, Followed, FollowedStore};

/// How often discovery is read again, besides after a change of a definition.
const DISCOVER_EVERY: Duration = Duration::from_secs(30);

/// How long a changed definition takes to appear in discovery.
const DEFINITION_DELAY: Duration = Duration::from_millis(200);

/// The key prefix of definitions.
const DEFINITIONS: &str = "/registry/apiextensions.k8s.io/customresourcedefinitions/";

/// The file of the data directory that has the last catalog.
const CATALOG_FILE: &str = "resources.json";

/// How a relay is set up.
pub struct Options {
    /// Where the upstream is, and the relay's own credential there.
    pub upstream: Config,
    /// What the relay holds.
    pub resources: HeldResources,
    /// Where history is kept; `None` keeps it in memory only.
    pub data_dir: Option<PathBuf>,
    /// Reads that ask for the newest state may get one that is this old. Zero asks the upstream.
    pub stale_ok: Duration,
    /// How long the upstream's answers about users and permissions are used.
    pub keep_reviews: Duration,
    /// How often the upstream is asked again whether the reader of an open watch may still watch.
    pub recheck_watches: Duration,
    /// Whether requests whose credential cannot be passed on are sent as their user, with the relay's
    /// right to impersonate.
    pub impersonate: bool,
    /// The size at which a log of the journal ends; `None` is the usual one.
    pub log_max: Option<u64>,
    /// How long a watch of the upstream may be silent before it is checked; `None` is the usual time.
    pub silence: Option<Duration>,
    /// The server; what concerns the upstream is added.
    pub server: headwater_server::Options,
}

/// A running relay.
pub struct Relay {
    running: Running,
    synced: watch::Receiver<bool>,
}

/// What the tasks of a relay share.
struct RelayState {
    connection: Arc<Connection>,
    resources: HeldResources,
    data_dir: Option<PathBuf>,
    stale_ok: Duration,
    log_max: Option<u64>,
    silence: Option<Duration>,
    cache: headwater_cache::Options,
    server: Server,
    followed: Mutex<BTreeMap<String, Arc<Followed>>>,
    /// One task at a time for each key prefix.
    turns: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

impl Relay {
    /// Starts a relay. It passes everything on until it holds its resources, see [`Relay::synced`].
    pub async fn start(options: Options) -> Result<Relay, Error> {
        let Options { upstream, resources, data_dir, keep_reviews, impersonate, .. } = options;
        let mut server = options.server;
        let metrics = RelayMetrics::new(&server.metrics.registry);
        let connection = Arc::new(Connection::new(upstream, impersonate, metrics)?);
        let tokens = TokenWebhook::upstream(connection.clone(), keep_reviews);
        server.authenticator = server.authenticator.without_administrator().with_webhook(tokens);
        server.authorization = Authorization::upstream(connection.clone(), keep_reviews);
        server.upstream = Some(connection.clone());
        server.settings.recheck_watches = Some(options.recheck_watches);
        let cache = server.cache.clone();
        if let Some(path) = &data_dir {
            let made = std::fs::create_dir_all(path);
            made.map_err(|source| Error::Data { path: path.clone(), source })?;
        }
        let known = data_dir.as_deref().map(read_catalog).unwrap_or_default();
        let first = match discover(&connection, &resources, &known).await {
            Ok(found) => found,
            Err(DiscoveryError::Missing(why)) => return Err(Error::Resource(why)),
            Err(DiscoveryError::Unavailable(why)) if !known.is_empty() => {
                tracing::warn!(
                    why,
                    "the upstream cannot be reached; starting with what is on disk"
                );
                known
            }
            Err(DiscoveryError::Unavailable(why)) => {
                return Err(Error::Resource(format!(
                    "cannot read the upstream's resources: {why}"
                )));
            }
        };
        let mut running = Box::pin(start(Arc::new(Memory::default()), server)).await?;
        let state = Arc::new(RelayState {
            connection,
            resources,
            data_dir,
            stale_ok: options.stale_ok,
            log_max: options.log_max,
            silence: options.silence,
            cache,
            server: running.server().clone(),
            followed: Mutex::default(),
            turns: Mutex::default(),
        });
        let read: ReadProgress = {
            let state = Arc::clone(&state);
            Arc::new(move || state.progress())
        };
        state.connection.metrics().observe(&read);
        let (synced, receiver) = watch::channel(false);
        running.run(|stop| state.run(first, synced, stop));
        Ok(Relay { running, synced: receiver })
    }

    /// Waits until every resource of the first catalog is held.
    pub async fn synced(&mut self) {
        // If the sender is gone, the relay has ended, which `running` reports.
        let _ = self.synced.wait_for(|synced| *synced).await;
    }

    /// The server, to listen and to stop.
    pub fn running(&mut self) -> &mut Running {
        &mut self.running
    }

    /// The same as a value.
    pub fn into_running(self) -> Running {
        self.running
    }
}

/// A task that follows a resource.
struct FollowTask {
    description: Value,
    stop: CancellationToken,
    held: watch::Receiver<bool>,
}

impl RelayState {
    fn followed(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Arc<Followed>>> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn progress(&self) -> Vec<FollowedProgress> {
        let each = self.followed();
        let each = each.values().map(|followed| FollowedProgress {
            group: followed.kind.group.to_string(),
            resource: followed.kind.plural.to_string(),
            age: followed.age().as_secs_f64(),
            revision: followed.tip().0 as f64,
        });
        each.collect()
    }

    /// Follows the catalog until stopped.
    async fn run(
        self: Arc<Self>,
        mut found: Descriptions,
        synced: watch::Sender<bool>,
        stop: CancellationToken,
    ) {
        let mut tasks: BTreeMap<String, FollowTask> = BTreeMap::new();
        let mut running = JoinSet::new();
        loop {
            self.adjust(&found, &mut tasks, &mut running, &stop);
            while running.try_join_next().is_some() {}
            if !*synced.borrow() {
                for task in tasks.values_mut() {
                    let held = task.held.wait_for(|held| *held);
                    let _ = stop.run_until_cancelled(held).await;
                }
                synced.send_replace(true);
            }
            if let Some(path) = &self.data_dir {
                write_catalog(path, &found);
            }
            if stop.run_until_cancelled(self.definitions_changed()).await.is_none() {
                break;
            }
            match discover(&self.connection, &self.resources, &found).await {
                Ok(newer) => found = newer,
                Err(DiscoveryError::Missing(why) | DiscoveryError::Unavailable(why)) => {
                    tracing::warn!(
                        why,
                        "cannot read the upstream's resources; keeping what is known"
                    );
                }
            }
        }
        for task in tasks.values() {
            task.stop.cancel();
        }
        while running.join_next().await.is_some() {}
    }

    /// Waits until discovery may have changed.
    async fn definitions_changed(&self) {
        let until = Instant::now() + DISCOVER_EVERY;
        if self.resources != HeldResources::All {
            return tokio::time::sleep_until(until).await;
        }
        let Some(cache) = self.server.held_cache(DEFINITIONS) else {
            return tokio::time::sleep_until(until).await;
        };
        let mut watcher =
            cache.watch(&cache.resource(DEFINITIONS), &Filter::default(), WatchStart::Now);
        let changed = async {
            while !matches!(watcher.next().await, WatchStep::Events(_) | WatchStep::Closed) {}
            tokio::time::sleep(DEFINITION_DELAY).await;
        };
        let _ = tokio::time::timeout_at(until, changed).await;
    }

    /// Starts what is new, ends what is gone, and starts again what is described differently.
    fn adjust(
        self: &Arc<Self>,
        found: &Descriptions,
        tasks: &mut BTreeMap<String, FollowTask>,
        running: &mut JoinSet<()>,
        stop: &CancellationToken,
    ) {
        tasks.retain(|prefix, task| {
            let is_same = found.get(prefix).is_some_and(|one| *one == task.description);
            if !is_same {
                tracing::info!(resource = prefix, "the upstream's resource is gone, or another");
                task.stop.cancel();
            }
            is_same
        });
        for (prefix, description) in found {
            if tasks.contains_key(prefix) {
                continue;
            }
            let entry = match entry(description) {
                Ok(entry) => entry,
                Err(why) => {
                    tracing::error!(resource = prefix, why, "cannot hold a resource");
                    continue;
                }
            };
            let (held, receiver) = watch::channel(false);
            let stop = stop.child_token();
            let task = FollowTask {
                description: entry.description.clone(),
                stop: stop.clone(),
                held: receiver,
            };
            tasks.insert(prefix.clone(), task);
            running.spawn(Arc::clone(self).follow(entry, held, stop));
        }
    }

    /// Follows one resource until stopped.
    async fn follow(
        self: Arc<Self>,
        entry: CatalogEntry,
        held: watch::Sender<bool>,
        stop: CancellationToken,
    ) {
        let mut backoff =
            Backoff::new(Duration::from_millis(100), Duration::from_secs(10), 0.5..1.0);
        let random = Random::from_entropy();
        let turn = {
            let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(turns.entry(entry.kind.prefix.clone()).or_default())
        };
        let _turn = turn.lock_owned().await;
        while !stop.is_cancelled() {
            let began = Instant::now();
            let ended = self.follow_once(&entry, &held, &stop).await;
            if stop.is_cancelled() {
                return;
            }
            if began.elapsed() > DISCOVER_EVERY {
                backoff.reset();
            }
            let resource = &entry.kind.prefix;
            tracing::error!(resource, why = ended, "following a resource failed; starting again");
            let _ = stop.run_until_cancelled(tokio::time::sleep(backoff.next(&random))).await;
        }
    }

    /// Loads a resource, serves it and follows it; returns why that ended.
    async fn follow_once(
        &self,
        entry: &CatalogEntry,
        held: &watch::Sender<bool>,
        stop: &CancellationToken,
    ) -> String {
        let prefix = entry.kind.prefix.clone();
        let options = FollowOptions {
            kind: Arc::clone(&entry.kind),
            selection: entry.selection.clone(),
            stale_ok: self.stale_ok,
            folder: self.data_dir.as_ref().map(|path| {
                let folder = prefix.trim_start_matches("/registry/").trim_end_matches('/');
                path.join(folder.replace('/', "_"))
            }),
            log_max: self.log_max,
            silence: self.silence,
        };
        let store = match FollowedStore::open(&self.connection, options) {
            Ok(store) => store,
            Err(error) => return error.to_string(),
        };
        let mut cacher = Cacher::new(Arc::new(store.clone()), self.cache.clone());
        let cache = cacher.handle();
        store.set_cache(cache.clone());
        if let Err(error) = cache.set_fields(&prefix, &entry.kind.fields) {
            return error.to_string();
        }
        match stop.run_until_cancelled(cacher.load()).await {
            Some(Ok(())) => {}
            Some(Err(error)) => return error.to_string(),
            None => return String::new(),
        }
        let followed = Arc::clone(&store.shared);
        self.followed().insert(prefix.clone(), Arc::clone(&followed));
        self.server.hold(HeldResource {
            kind: Arc::clone(&entry.kind),
            cache,
            part: entry.part.clone(),
            age: {
                let followed = Arc::clone(&followed);
                Arc::new(move || followed.age())
            },
            shows_progress: Arc::new(move || followed.shows_progress()),
        });
        held.send_replace(true);
        let ended = cacher.run(stop.clone()).await;
        self.server.let_go(&prefix);
        self.followed().remove(&prefix);
        ended.err().map(|error| error.to_string()).unwrap_or_default()
    }
}

fn read_catalog(path: &Path) -> Descriptions {
    let Ok(text) = std::fs::read(path.join(CATALOG_FILE)) else { return Descriptions::new() };
    let Ok(parsed) = headwater_json::parse(&text) else { return Descriptions::new() };
    let members = parsed.value.as_object().into_iter().flatten();
    members.map(|(prefix, one)| (prefix.as_str().to_owned(), one.clone())).collect()
}

fn write_catalog(path: &Path, found: &Descriptions) {
    let mut all = headwater_json::json!({});
    for (prefix, description) in found {
        all[prefix.as_str()] = Value::clone(description);
    }
    let temporary = path.join(format!("{CATALOG_FILE}.part"));
    let written = std::fs::write(&temporary, all.to_string())
        .and_then(|()| std::fs::rename(&temporary, path.join(CATALOG_FILE)));
    if let Err(error) = written {
        tracing::warn!(%error, "cannot write the list of resources");
    }
}
