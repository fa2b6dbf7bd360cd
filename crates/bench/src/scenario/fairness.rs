//! `bench fairness`: fifty users who get, write and watch, alone and next to two that take what they
//! can: one lists everything over many connections, one writes without a pause.
//!
//! The bench fails if priority and fairness does not hold the others' p99 within [`FACTOR_MAX`] of
//! what it is alone, or if health or leader election are rejected. The same load on a server without
//! fairness is the control; its figures are only reported.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use bytes::Bytes;
use hdrhistogram::Histogram;
use headwater_api::object::string_at;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::connect::{Connection, successful};
use crate::kubeconfig::Endpoint;
use crate::load::object::namespace;
use crate::load::requests::{make_namespaces, make_pods, unused_mark};
use crate::load::{JSON, histogram};
use crate::report::Case;
use crate::report::figures::{Figure, Figures};
use crate::session::Session;
use crate::target::measure::Usage;
use crate::target::{ScratchDir, TargetServer};

/// How much slower the others may become.
const FACTOR_MAX: f64 = 3.0;

/// The pause of a user between two requests.
const PAUSE: Duration = Duration::from_millis(50);

/// The pause between checks of health and leader election.
const PROBE_PAUSE: Duration = Duration::from_millis(20);

/// A latency below this counts as this: the scheduling of the machine, not the server.
const NOISE: f64 = 2_000.0;

/// The longest wait for the event of a write.
const EVENT_MAX: Duration = Duration::from_secs(30);

/// The group of all users of this scenario.
const GROUP: &str = "bench-fairness";

/// The size of the scenario.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FairnessSize {
    pub(crate) users: usize,
    pub(crate) connections: usize,
    pub(crate) pods: usize,
    pub(crate) time: Duration,
    pub(crate) memory: bool,
    /// Whether the control runs too.
    pub(crate) with_control: bool,
}

/// What the others measured in one phase.
struct Phase {
    gets: Histogram<u64>,
    writes: Histogram<u64>,
    events: Histogram<u64>,
    /// Requests of the others, of health checks and of leader election that failed.
    failures: u64,
    /// Lists and writes that the two others got done, and those that were rejected.
    flood: FloodCount,
    took: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
struct FloodCount {
    lists: u64,
    writes: u64,
    rejected: u64,
}

impl FairnessSize {
    pub(crate) async fn run(self, session: &mut Session) -> Result<()> {
        let enforced = self.server(session, true).await?;
        if self.with_control {
            let control = self.server(session, false).await?;
            let note = format!(
                "without priority and fairness, the p99 of the others was {control:.1} times what it \
                 is alone"
            );
            session.report.note(&note);
        }
        ensure!(
            enforced <= FACTOR_MAX,
            "the p99 of the others was {enforced:.1} times what it is alone; at most {FACTOR_MAX} is \
             allowed"
        );
        Ok(())
    }

    /// Measures both phases on one server, and returns by how much the p99 of the others grew.
    async fn server(self, session: &mut Session, fairness: bool) -> Result<f64> {
        let flag = format!("--enable-priority-and-fairness={fairness}");
        let (target, _) =
            TargetServer::start_with(ScratchDir::new()?, self.memory, &[&flag]).await?;
        self.prepare(&target).await?;
        let alone = self.phase(&target, false).await.context("alone")?;
        let flooded = self.phase(&target, true).await.context("next to the two others")?;
        let mode = if fairness { "" } else { ", no fairness" };
        let mut worst: f64 = 0.0;
        for (name, before, after) in [
            ("get", &alone.gets, &flooded.gets),
            ("write", &alone.writes, &flooded.writes),
            ("watch", &alone.events, &flooded.events),
        ] {
            for (when, micros, took) in
                [("alone", before, alone.took), ("flooded", after, flooded.took)]
            {
                let used = Usage { wall: took, cpu: None };
                let figures = Figures::per_unit(micros.len() as usize, used).latency(micros);
                let case = Case::new("fairness", &format!("{name} {when}{mode}"), "requests");
                session.report_row(case.sized("users", self.users), &target.name, figures);
            }
            let p99 = |micros: &Histogram<u64>| (micros.value_at_quantile(0.99) as f64).max(NOISE);
            worst = worst.max(p99(after) / p99(before));
        }
        let FloodCount { lists, writes, rejected } = flooded.flood;
        let figures = Figures::default().with(Figure::Count, lists as f64);
        let case = Case::new("fairness", &format!("lists of the flood{mode}"), "lists");
        session.report_row(case.sized("connections", self.connections), &target.name, figures);
        session.report.note(&format!(
            "the flood: {lists} lists and {writes} writes in {:.0} s, {rejected} rejected",
            flooded.took.as_secs_f64()
        ));
        let failures = alone.failures + if fairness { flooded.failures } else { 0 };
        ensure!(
            failures == 0,
            "{failures} requests of the others, of health checks or of leader election failed"
        );
        Ok(worst)
    }

    async fn prepare(self, target: &TargetServer) -> Result<()> {
        make_namespaces(target).await?;
        make_pods(target, 0, self.pods).await?;
        let mut admin = User::admin(&target.endpoint).await?;
        let binding = format!(
            r#"{{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{{"name":"{GROUP}"}},"roleRef":{{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"}},"subjects":[{{"apiGroup":"rbac.authorization.k8s.io","kind":"Group","name":"{GROUP}"}}]}}"#
        );
        let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
        admin.write(Method::POST, bindings, binding).await?;
        for user in 0..self.users {
            let name = object_name(user);
            admin.write(Method::POST, &config_maps(user), config_map(&name)).await?;
        }
        let lease = r#"{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"bench-fairness"},"spec":{"holderIdentity":"bench"}}"#;
        let leases = LEASE.rsplit_once('/').map_or(LEASE, |(leases, _)| leases);
        admin.write(Method::POST, leases, lease.to_owned()).await?;
        Ok(())
    }

    async fn phase(self, target: &TargetServer, flooded: bool) -> Result<Phase> {
        let endpoint = &target.endpoint;
        let stop = Arc::new(AtomicBool::new(false));
        let counts = Arc::new(SharedCount::default());
        let flood = flooded.then(|| self.start_flood(endpoint, &stop, &counts));
        let mut users = JoinSet::new();
        for user in 0..self.users {
            users.spawn(use_the_server(endpoint.clone(), user, self.time));
        }
        let mut probes = JoinSet::new();
        probes.spawn(check_health(endpoint.clone(), self.time));
        probes.spawn(elect(endpoint.clone(), self.time));
        let began = Instant::now();
        let mut phase = Phase {
            gets: histogram()?,
            writes: histogram()?,
            events: histogram()?,
            failures: 0,
            flood: FloodCount::default(),
            took: Duration::ZERO,
        };
        while let Some(done) = users.join_next().await {
            let done = done??;
            phase.gets.add(&done.gets)?;
            phase.writes.add(&done.writes)?;
            phase.events.add(&done.events)?;
            phase.failures += done.failures;
        }
        while let Some(failures) = probes.join_next().await {
            phase.failures += failures??;
        }
        phase.took = began.elapsed();
        stop.store(true, Relaxed);
        if let Some(flood) = flood {
            let ended = tokio::task::spawn_blocking(|| flood.join()).await?;
            ended.map_err(|_| anyhow!("the flood panicked"))??;
        }
        phase.flood = counts.get();
        Ok(phase)
    }

    /// Starts the two that take what they can, on a thread of their own: the others must not wait for
    /// them in this process, only at the server.
    fn start_flood(
        self,
        endpoint: &Endpoint,
        stop: &Arc<AtomicBool>,
        counts: &Arc<SharedCount>,
    ) -> JoinHandle<Result<()>> {
        let (endpoint, stop, counts) = (endpoint.clone(), Arc::clone(stop), Arc::clone(counts));
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let mut flood = JoinSet::new();
                for _ in 0..self.connections {
                    flood.spawn(list_in_a_loop(endpoint.clone(), stop.clone(), counts.clone()));
                }
                flood.spawn(write_in_a_loop(endpoint, stop, counts));
                while let Some(done) = flood.join_next().await {
                    done??;
                }
                Ok(())
            })
        })
    }
}

#[derive(Default)]
struct SharedCount {
    lists: AtomicU64,
    writes: AtomicU64,
    rejected: AtomicU64,
}

impl SharedCount {
    fn get(&self) -> FloodCount {
        let SharedCount { lists, writes, rejected } = self;
        FloodCount {
            lists: lists.load(Relaxed),
            writes: writes.load(Relaxed),
            rejected: rejected.load(Relaxed),
        }
    }
}

/// A user with one connection.
struct User {
    connection: Connection,
    /// Empty for the administrator.
    name: String,
    group: &'static str,
}

impl User {
    async fn admin(endpoint: &Endpoint) -> Result<User> {
        User::named(endpoint, String::new(), "").await
    }

    async fn named(endpoint: &Endpoint, name: String, group: &'static str) -> Result<User> {
        Ok(User { connection: Connection::open(endpoint).await?, name, group })
    }

    async fn send(
        &mut self,
        method: Method,
        path: &str,
        body: String,
    ) -> Result<Response<Incoming>> {
        let mut request = Request::builder().method(method).uri(path).header(CONTENT_TYPE, JSON);
        if !self.name.is_empty() {
            request = request.header("impersonate-user", &self.name);
        }
        if !self.group.is_empty() {
            request = request.header("impersonate-group", self.group);
        }
        self.connection.send(request.body(Full::new(Bytes::from(body)))?).await
    }

    async fn write(&mut self, method: Method, path: &str, body: String) -> Result<u64> {
        let response = successful(self.send(method, path, body).await?).await?;
        let body = response.into_body().collect().await?.to_bytes();
        let revision = string_at(&body, &["metadata", "resourceVersion"]);
        Ok(revision.context("the response to a write has no resourceVersion")?.parse()?)
    }
}

fn object_name(user: usize) -> String {
    format!("bench-user-{user}")
}

fn config_maps(user: usize) -> String {
    format!("/api/v1/namespaces/{}/configmaps", namespace(user))
}

fn config_map(name: &str) -> String {
    let mark = unused_mark();
    format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}"}},"data":{{"mark":"{mark}"}}}}"#
    )
}

/// What one user measured.
struct Measured {
    gets: Histogram<u64>,
    writes: Histogram<u64>,
    events: Histogram<u64>,
    failures: u64,
}

/// Gets and writes an object in turn, and watches it.
async fn use_the_server(endpoint: Endpoint, user: usize, time: Duration) -> Result<Measured> {
    let name = object_name(user);
    let mut own = User::named(&endpoint, name.clone(), GROUP).await?;
    let (collection, object) = (config_maps(user), format!("{}/{name}", config_maps(user)));
    let mut watcher = User::named(&endpoint, name.clone(), GROUP).await?;
    let path = format!("{collection}?watch=true&fieldSelector=metadata.name%3D{name}");
    let watch = watcher.send(Method::GET, &path, String::new()).await?;
    let mut events = successful(watch).await?.into_body();
    let mut measured =
        Measured { gets: histogram()?, writes: histogram()?, events: histogram()?, failures: 0 };
    // Users do not begin all at once.
    tokio::time::sleep(PAUSE * (user % 10) as u32 / 10).await;
    let end = Instant::now() + time;
    while Instant::now() < end {
        let began = Instant::now();
        let got = own.send(Method::GET, &object, String::new()).await?;
        let is_ok = got.status().is_success();
        got.into_body().collect().await?;
        match is_ok {
            true => measured.gets.saturating_record(micros(began)),
            false => measured.failures += 1,
        }
        tokio::time::sleep(PAUSE).await;
        let began = Instant::now();
        let written = own.send(Method::PUT, &object, config_map(&name)).await?;
        let is_ok = written.status().is_success();
        let body = written.into_body().collect().await?.to_bytes();
        if !is_ok {
            measured.failures += 1;
            continue;
        }
        measured.writes.saturating_record(micros(began));
        let revision = string_at(&body, &["metadata", "resourceVersion"]).unwrap_or_default();
        timeout(EVENT_MAX, until_event(&mut events, &revision)).await.context("no event")??;
        measured.events.saturating_record(micros(began));
        tokio::time::sleep(PAUSE).await;
    }
    Ok(measured)
}

fn micros(began: Instant) -> u64 {
    began.elapsed().as_micros() as u64
}

/// Reads events until the one of this revision.
async fn until_event(events: &mut Incoming, revision: &str) -> Result<()> {
    let wanted = format!("\"resourceVersion\":\"{revision}\"");
    let mut text = Vec::new();
    loop {
        let frame = events.frame().await.context("the watch ended")??;
        text.extend_from_slice(frame.data_ref().map(Bytes::as_ref).unwrap_or_default());
        if memchr::memmem::find(&text, wanted.as_bytes()).is_some() && text.ends_with(b"\n") {
            return Ok(());
        }
    }
}

/// Lists all pods until told to stop. Waits as long as a rejection says, as every client does.
async fn list_in_a_loop(
    endpoint: Endpoint,
    stop: Arc<AtomicBool>,
    counts: Arc<SharedCount>,
) -> Result<()> {
    let mut user = User::named(&endpoint, "bench-lister".into(), GROUP).await?;
    while !stop.load(Relaxed) {
        let response = user.send(Method::GET, "/api/v1/pods", String::new()).await?;
        if response.status() == StatusCode::TOO_MANY_REQUESTS {
            counts.rejected.fetch_add(1, Relaxed);
            pause_after(response, &stop).await?;
            continue;
        }
        let mut body = successful(response).await?.into_body();
        while let Some(frame) = body.frame().await {
            frame?;
            if stop.load(Relaxed) {
                return Ok(());
            }
        }
        counts.lists.fetch_add(1, Relaxed);
    }
    Ok(())
}

async fn pause_after(response: Response<Incoming>, stop: &AtomicBool) -> Result<()> {
    let after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    let seconds: u64 = after.and_then(|seconds| seconds.parse().ok()).unwrap_or(1);
    response.into_body().collect().await?;
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end && !stop.load(Relaxed) {
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

/// Updates an object until told to stop.
async fn write_in_a_loop(
    endpoint: Endpoint,
    stop: Arc<AtomicBool>,
    counts: Arc<SharedCount>,
) -> Result<()> {
    let mut user = User::named(&endpoint, "bench-writer".into(), GROUP).await?;
    let (collection, name) = (config_maps(0), "bench-writer");
    let object = format!("{collection}/{name}");
    let made = user.send(Method::POST, &collection, config_map(name)).await?;
    made.into_body().collect().await?;
    while !stop.load(Relaxed) {
        let response = user.send(Method::PUT, &object, config_map(name)).await?;
        if response.status() == StatusCode::TOO_MANY_REQUESTS {
            counts.rejected.fetch_add(1, Relaxed);
            pause_after(response, &stop).await?;
            continue;
        }
        successful(response).await?.into_body().collect().await?;
        counts.writes.fetch_add(1, Relaxed);
    }
    Ok(())
}

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/bench-fairness";

/// Checks the server's health; returns how many checks failed.
async fn check_health(endpoint: Endpoint, time: Duration) -> Result<u64> {
    probe(User::named(&endpoint, "system:anonymous".into(), "").await?, "/readyz", time).await
}

/// Reads a lease as a scheduler does before it renews it.
async fn elect(endpoint: Endpoint, time: Duration) -> Result<u64> {
    let leader = User::named(&endpoint, "system:kube-scheduler".into(), GROUP).await?;
    probe(leader, LEASE, time).await
}

async fn probe(mut user: User, path: &str, time: Duration) -> Result<u64> {
    let end = Instant::now() + time;
    let (mut checks, mut failures) = (0, 0);
    while Instant::now() < end {
        let response = user.send(Method::GET, path, String::new()).await?;
        failures += u64::from(!response.status().is_success());
        checks += 1;
        response.into_body().collect().await?;
        tokio::time::sleep(PROBE_PAUSE).await;
    }
    if checks == 0 {
        bail!("{path} was never checked");
    }
    Ok(failures)
}
