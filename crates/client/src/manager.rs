//! The manager: runs several controllers and other tasks, with one stop signal, one leader election
//! and one health endpoint.
//!
//! River: around the controllers.
//! Promise: the first task that ends with an error stops the others; controllers end before their
//! caches; every task is joined before `run_until` returns.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::calls::Calls;
use crate::controller::{Env, Prepared};
use crate::error::Error;
use crate::factory::Factory;
use crate::leader::{Elector, LeaderHealth, Lease};
use crate::list_watch::BoxError;
use crate::recorder::{self, Recorder};

/// Runs controllers and other tasks together.
///
/// ```no_run
/// # use headwater_client::{Factory, controller::Prepared, leader::Lease, manager::Manager};
/// # async fn example(factory: Factory, webapps: Prepared) -> Result<(), headwater_client::Error> {
/// Manager::new(factory)
///     .leader(Lease::named("shop-operator"))
///     .controller(webapps)
///     .part("probe", |stop| async move {
///         stop.cancelled().await;
///         Ok::<(), std::io::Error>(())
///     })
///     .run_until(async { tokio::signal::ctrl_c().await.ok(); })
///     .await
/// # }
/// ```
#[must_use = "a manager does nothing until it is run"]
pub struct Manager {
    factory: Factory,
    calls: Calls,
    controllers: Vec<Prepared>,
    parts: Vec<(String, StartPart)>,
    lease: Option<Lease>,
    events: Option<recorder::Options>,
    health_on: Option<SocketAddr>,
    commands: (mpsc::Sender<Command>, mpsc::Receiver<Command>),
    state: Arc<Mutex<ManagerState>>,
}

type StartPart =
    Box<dyn FnOnce(CancellationToken) -> BoxFuture<'static, Result<(), BoxError>> + Send>;

enum Command {
    Add(Prepared),
    Remove(String),
}

/// The state that the health endpoint and the handle read.
#[derive(Default)]
struct ManagerState {
    running: BTreeSet<String>,
    leader: Option<LeaderHealth>,
    address: Option<SocketAddr>,
}

/// Commands of a handle that wait to be executed; when full, the caller waits.
const COMMANDS_MAX: usize = 64;
/// How long after the end of its lease a holder may renew before the health check fails.
const LEADER_TOLERANCE: Duration = Duration::from_secs(20);

impl Manager {
    /// A manager over the informers of a factory.
    pub fn new(factory: Factory) -> Manager {
        let calls = Calls::new(factory.client().clone());
        Manager {
            factory,
            calls,
            controllers: Vec::new(),
            parts: Vec::new(),
            lease: None,
            events: None,
            health_on: None,
            commands: mpsc::channel(COMMANDS_MAX),
            state: Arc::default(),
        }
    }

    /// Reconciles only while this replica holds the lease. A standby keeps its caches
    /// and queues filled.
    pub fn leader(mut self, lease: Lease) -> Self {
        self.lease = Some(lease);
        self
    }

    /// How controllers and the election call the server.
    pub fn calls(mut self, calls: Calls) -> Self {
        self.calls = calls;
        self
    }

    /// How the events of all controllers are written; by default, each controller reports under its
    /// own name.
    pub fn events(mut self, options: recorder::Options) -> Self {
        self.events = Some(options);
        self
    }

    /// Adds a controller.
    pub fn controller(mut self, controller: Prepared) -> Self {
        self.controllers.push(controller);
        self
    }

    /// Adds another task that runs and stops with the controllers.
    pub fn part<F, E>(
        mut self,
        name: impl Into<String>,
        start: impl FnOnce(CancellationToken) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError>,
    {
        let start: StartPart =
            Box::new(move |stop| Box::pin(start(stop).map(|ended| ended.map_err(Into::into))));
        self.parts.push((name.into(), start));
        self
    }

    /// Serves `/healthz`, `/readyz` and `/metrics` at this address.
    pub fn health_on(mut self, address: SocketAddr) -> Self {
        self.health_on = Some(address);
        self
    }

    /// A handle that adds and removes controllers while the manager runs.
    pub fn handle(&self) -> ManagerHandle {
        ManagerHandle { commands: self.commands.0.clone(), state: Arc::clone(&self.state) }
    }

    /// Runs everything until `stop` completes or a task fails, then joins every task.
    ///
    /// # Errors
    /// The first error of a task; [`Error::LostLeadership`]; [`Error::Invalid`] for two controllers
    /// with one name.
    pub async fn run_until(self, stop: impl Future<Output = ()>) -> Result<(), Error> {
        let Manager { factory, calls, controllers, parts, lease, events, health_on, .. } = self;
        let mut names = BTreeSet::new();
        for controller in &controllers {
            if !names.insert(controller.name.clone()) {
                let why = format!("two controllers have the name {:?}", controller.name);
                return Err(Error::Invalid(why));
            }
        }
        let leading = watch::Sender::new(lease.is_none());
        let elector = lease.clone().map(|lease| Elector::new(calls.clone(), lease)).transpose()?;
        let health = elector.as_ref().map(Elector::health);
        self.state.lock().expect("no code panics while it is held").leader = health;
        let one_component = events.is_some();
        let events = events.unwrap_or_else(|| {
            let metrics = factory.metrics().cloned();
            recorder::Options { metrics, ..recorder::Options::named("manager") }
        });
        let (recorder, events) = recorder::new(calls.clone(), events);
        let mut running = RunningManager {
            factory: factory.clone(),
            calls,
            recorder,
            one_component,
            leading: leading.clone(),
            state: Arc::clone(&self.state),
            controllers: JoinSet::new(),
            stops: BTreeMap::new(),
            work: CancellationToken::new(),
            abandon: CancellationToken::new(),
        };
        let caches = CancellationToken::new();
        let mut others: JoinSet<Result<(), Error>> = JoinSet::new();
        let run = (factory.clone(), caches.clone());
        others.spawn(async move { run.0.run(run.1).await });
        for (name, start) in parts {
            let part = start(running.work.clone());
            others.spawn(async move { part.await.map_err(|source| Error::Part { name, source }) });
        }
        others.spawn(events.run(caches.clone()).map(Ok));
        if let Some(address) = health_on {
            let page = HealthPage::open(address, &factory, &self.state).await?;
            others.spawn(page.serve(caches.clone()));
        }
        for controller in controllers {
            running.start(controller);
        }
        let idle = CancellationToken::new();
        let election = elector.map(|elector| {
            let (leading, idle) = (leading.clone(), idle.clone());
            elector
                .while_leading(running.work.clone(), move |_| async move {
                    leading.send_replace(true);
                    // The lease is released only after the last controller has ended.
                    idle.cancelled().await;
                })
                .map(|ended| ended.map(drop))
                .boxed()
        });
        let others = BackgroundTasks { parts: others, commands: self.commands.1, caches, idle };
        running.until(stop, election, others).await
    }
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Manager({} controllers)", self.controllers.len())
    }
}

/// Adds and removes controllers of a running manager. Cheap to clone.
#[derive(Clone)]
pub struct ManagerHandle {
    commands: mpsc::Sender<Command>,
    state: Arc<Mutex<ManagerState>>,
}

impl ManagerHandle {
    /// Starts another controller. Cancel-safe.
    ///
    /// # Errors
    /// [`Error::Stopped`] if the manager has ended.
    pub async fn add(&self, controller: Prepared) -> Result<(), Error> {
        self.send(Command::Add(controller)).await
    }

    /// Stops a controller and its subscriptions. Cancel-safe.
    ///
    /// # Errors
    /// [`Error::Stopped`] if the manager has ended.
    pub async fn remove(&self, name: &str) -> Result<(), Error> {
        self.send(Command::Remove(name.to_owned())).await
    }

    async fn send(&self, command: Command) -> Result<(), Error> {
        let sent = self.commands.send(command).await;
        sent.map_err(|_| Error::Stopped("the manager".to_owned()))
    }

    /// The names of the running controllers.
    pub fn controllers(&self) -> Vec<String> {
        let state = self.state.lock().expect("no code panics while it is held");
        state.running.iter().cloned().collect()
    }

    /// The address of the health endpoint, once it listens.
    #[cfg(any(test, feature = "testing"))]
    pub fn health_address(&self) -> Option<SocketAddr> {
        self.state.lock().expect("no code panics while it is held").address
    }
}

impl fmt::Debug for ManagerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManagerHandle").field("controllers", &self.controllers()).finish()
    }
}

/// A running manager and its controllers.
struct RunningManager {
    factory: Factory,
    calls: Calls,
    recorder: Recorder,
    /// Whether all controllers report events under the recorder's component.
    one_component: bool,
    leading: watch::Sender<bool>,
    state: Arc<Mutex<ManagerState>>,
    controllers: JoinSet<(String, Result<(), Error>)>,
    stops: BTreeMap<String, CancellationToken>,
    work: CancellationToken,
    abandon: CancellationToken,
}

impl RunningManager {
    fn start(&mut self, controller: Prepared) {
        let name = controller.name.clone();
        if self.stops.contains_key(&name) {
            tracing::error!(
                controller = name,
                "not started: a controller with this name is running"
            );
            return;
        }
        let stop = self.work.child_token();
        self.stops.insert(name.clone(), stop.clone());
        let mut leading = self.leading.subscribe();
        let elected = async move { drop(leading.wait_for(|leading| *leading).await) };
        let env = Env {
            calls: self.calls.clone(),
            metrics: self.factory.metrics().cloned(),
            recorder: match self.one_component {
                true => self.recorder.clone(),
                false => self.recorder.component(&name),
            },
            leading: elected.boxed(),
            stop,
            abandon: self.abandon.clone(),
        };
        self.mark(&name, true);
        self.controllers.spawn(async move {
            let ended = (controller.start)(env).await;
            (name, ended.map(drop))
        });
    }

    fn mark(&self, name: &str, runs: bool) {
        let mut state = self.state.lock().expect("no code panics while it is held");
        match runs {
            true => drop(state.running.insert(name.to_owned())),
            false => drop(state.running.remove(name)),
        }
    }

    async fn until(
        mut self,
        stop: impl Future<Output = ()>,
        mut election: Option<BoxFuture<'static, Result<(), Error>>>,
        mut others: BackgroundTasks,
    ) -> Result<(), Error> {
        tokio::pin!(stop);
        let mut result = loop {
            tokio::select! {
                biased;
                () = &mut stop => break Ok(()),
                ended = election_end(&mut election) => {
                    election = None;
                    self.abandon.cancel();
                    break ended;
                }
                Some(command) = others.commands.recv() => self.execute(command),
                Some(ended) = self.controllers.join_next() => {
                    if let Err(error) = self.ended(joined(ended)) {
                        break Err(error);
                    }
                }
                Some(ended) = others.parts.join_next() => {
                    if let Err(error) = joined(ended) {
                        break Err(error);
                    }
                }
            }
        };
        // Stop the controllers, then release the lease, then stop the caches.
        self.work.cancel();
        let leading = async {
            if let Some(election) = &mut election {
                return election.await;
            }
            Ok(())
        };
        let controllers = async {
            let mut result = Ok(());
            while let Some(ended) = self.controllers.join_next().await {
                let ended = self.ended(joined(ended));
                result = result.and(ended);
            }
            others.idle.cancel();
            result
        };
        let (led, worked) = tokio::join!(leading, controllers);
        result = result.and(worked).and(led);
        others.caches.cancel();
        while let Some(ended) = others.parts.join_next().await {
            result = result.and(joined(ended));
        }
        result
    }

    fn execute(&mut self, command: Command) {
        match command {
            Command::Add(controller) => self.start(controller),
            Command::Remove(name) => {
                if let Some(stop) = self.stops.get(&name) {
                    stop.cancel();
                }
            }
        }
    }

    fn ended(&mut self, (name, ended): (String, Result<(), Error>)) -> Result<(), Error> {
        self.stops.remove(&name);
        self.mark(&name, false);
        ended
    }
}

/// The tasks of a manager that are not controllers.
struct BackgroundTasks {
    parts: JoinSet<Result<(), Error>>,
    commands: mpsc::Receiver<Command>,
    caches: CancellationToken,
    /// Cancelled when the last controller has ended.
    idle: CancellationToken,
}

/// Waits for the end of the election; for ever without one.
async fn election_end(
    election: &mut Option<BoxFuture<'static, Result<(), Error>>>,
) -> Result<(), Error> {
    match election {
        Some(election) => election.await,
        None => std::future::pending().await,
    }
}

fn joined<T>(ended: Result<T, JoinError>) -> T {
    match ended {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// The HTTP endpoint for probes: one response per connection.
struct HealthPage {
    listener: TcpListener,
    factory: Factory,
    state: Arc<Mutex<ManagerState>>,
}

/// How long a probe may take to send its request line.
const PROBE_PATIENCE: Duration = Duration::from_secs(5);
const PROBES_MAX: usize = 64;

impl HealthPage {
    async fn open(
        address: SocketAddr,
        factory: &Factory,
        state: &Arc<Mutex<ManagerState>>,
    ) -> Result<HealthPage, Error> {
        let listener = TcpListener::bind(address)
            .await
            .map_err(|error| Error::Invalid(format!("cannot listen on {address}: {error}")))?;
        let mut open = state.lock().expect("no code panics while it is held");
        open.address = listener.local_addr().ok();
        drop(open);
        Ok(HealthPage { listener, factory: factory.clone(), state: Arc::clone(state) })
    }

    async fn serve(self, stop: CancellationToken) -> Result<(), Error> {
        let page = Arc::new(self);
        let mut probes = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                Some(_) = probes.join_next() => {}
                accepted = page.listener.accept(), if probes.len() < PROBES_MAX => {
                    if let Ok((stream, _)) = accepted {
                        let page = Arc::clone(&page);
                        probes.spawn(async move {
                            timeout(PROBE_PATIENCE, page.answer(stream)).await.ok();
                        });
                    }
                }
            }
        }
    }

    async fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut line = String::new();
        let (read, mut write) = stream.split();
        let mut lines = tokio::io::AsyncReadExt::take(BufReader::new(read), 8 << 10);
        lines.read_line(&mut line).await?;
        let path = line.split(' ').nth(1).unwrap_or_default();
        let (code, body) = self.page(path);
        let head = format!(
            "HTTP/1.1 {code}\r\ncontent-type: text/plain\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
            body.len()
        );
        write.write_all(head.as_bytes()).await?;
        write.write_all(body.as_bytes()).await
    }

    fn page(&self, path: &str) -> (&'static str, String) {
        match path {
            "/healthz" => {
                let state = self.state.lock().expect("no code panics while it is held");
                match state.leader.as_ref().map(|leader| leader.check(LEADER_TOLERANCE)) {
                    Some(Err(error)) => ("500 Internal Server Error", format!("{error}\n")),
                    _ => ("200 OK", "ok\n".to_owned()),
                }
            }
            "/readyz" => {
                let waiting = self.factory.not_synced().into_iter();
                let waiting: Vec<String> =
                    waiting.map(|(name, health)| format!("{name}: {health}\n")).collect();
                match waiting.is_empty() {
                    true => ("200 OK", "ok\n".to_owned()),
                    false => ("503 Service Unavailable", waiting.concat()),
                }
            }
            "/metrics" => match self.factory.metrics() {
                Some(metrics) => ("200 OK", metrics.render()),
                None => ("200 OK", String::new()),
            },
            _ => (
                "404 Not Found",
                "not found; the paths are /healthz, /readyz and /metrics\n".to_owned(),
            ),
        }
    }
}
