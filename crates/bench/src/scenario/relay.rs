//! `bench relay`: many watchers behind two relays; what they cost the server, the delay that a relay
//! adds, its memory, and a server that is killed under load.
//!
//! Promise: every stream is complete and in order, also across the outage.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use http::Request;
use http_body_util::{BodyExt, Full};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::fan_out::{self, paced};
use crate::connect::{Connection, successful};
use crate::kubeconfig::Endpoint;
use crate::load::body::{self, Encoding};
use crate::load::checker::{EventLog, ExpectedEvents};
use crate::load::requests::make_pods;
use crate::load::send;
use crate::load::stream::{Protocol, WatchStream, WatchTarget, revision};
use crate::load::watchers::{PATIENCE, Readers, all_pods_from, open};
use crate::report::Case;
use crate::report::figures::{Figure, Figures, grouped};
use crate::session::Session;
use crate::target::measure::{Meter, Usage, cpu_of, metrics, request_count, status};
use crate::target::{Process, ScratchDir, TargetServer};

/// Relays in front of the server.
const RELAYS: usize = 2;
/// The clients that cost the server as much as the relays should.
const CLIENTS: usize = 2;
/// The bearer token of all clients.
const TOKEN: &str = "bench-token";
/// The resources whose requests are counted.
const COUNTED: [&str; 3] = ["pods", "tokenreviews", "subjectaccessreviews"];
/// How long answers about permissions are used, so that they are asked for once in a case.
const PERMISSION_TTL: &str = "10m";

/// The sizes of the scenario.
pub(crate) struct RelaySizes {
    /// Watchers in total; a list runs each number.
    pub(crate) watchers: Vec<usize>,
    pub(crate) writes: usize,
    pub(crate) writes_per_second: u32,
    /// Pods for the memory per object.
    pub(crate) objects: usize,
    /// How long the server is down; none skips it.
    pub(crate) outage: Duration,
}

impl RelaySizes {
    pub(crate) async fn run(&self, session: &mut Session) -> Result<()> {
        let home = ScratchDir::new()?;
        write_private(&home.path().join("tokens"), &format!("{TOKEN},bench,1,system:masters\n"))?;
        let server = start_server(home, "127.0.0.1:0").await?;
        fan_out::prepare_target(&server).await?;
        Box::pin(self.fan_outs(session, &server)).await?;
        Box::pin(self.memory(session, &server)).await?;
        if !self.outage.is_zero() {
            Box::pin(self.outage(session, server)).await?;
        }
        Ok(())
    }

    /// The same writes to a few clients of the server, and to many watchers at the server and at relays.
    async fn fan_outs(&self, session: &mut Session, server: &TargetServer) -> Result<()> {
        let direct = vec![server.endpoint.clone()];
        let few = self.fan_out(server, &direct, CLIENTS, &[]).await?;
        let case = Case::new("relay", "server of two clients", "writes").sized("watchers", CLIENTS);
        session.report_row(case, "headwater", few.per_write(self.writes));
        let relays = RelayProcesses::start(server).await?;
        for &watchers in &self.watchers {
            let through = self.fan_out(server, &relays.endpoints, watchers, &relays.pids()).await?;
            let at = self.fan_out(server, &direct, watchers, &[]).await?;
            let sized =
                |mode: &str, unit| Case::new("relay", mode, unit).sized("watchers", watchers);
            let case = sized("server of two relays", "writes");
            session.report_row(case, "headwater", through.per_write(self.writes));
            let case = sized("two relays", "events");
            session.report_row(case, "relays", through.per_event(self.writes * watchers));
            let case = sized("server without relays", "events");
            session.report_row(case, "headwater", at.per_event(self.writes * watchers));
            session.report.note(&format!(
                "at the server during {} writes: {} bytes of events and {} requests with two clients, {} \
                 and {} with {} watchers of two relays",
                self.writes,
                grouped(few.bytes as f64),
                few.requests,
                grouped(through.bytes as f64),
                through.requests,
                grouped(watchers as f64),
            ));
        }
        Ok(())
    }

    /// Paced writes to the server, and watchers that are spread over endpoints.
    async fn fan_out(
        &self,
        server: &TargetServer,
        at: &[Endpoint],
        watchers: usize,
        relays: &[u32],
    ) -> Result<FanOutFigures> {
        let path = all_pods_from(fan_out::now(&server.endpoint).await?);
        let before = ServerCounts::of(server, 0).await?;
        let mut streams = Vec::with_capacity(watchers);
        for (index, endpoint) in at.iter().enumerate() {
            let share = watchers / at.len() + usize::from(index < watchers % at.len());
            streams.extend(open(endpoint, share, Protocol::Http1, |_| path.to_string()).await?);
        }
        let readers = Readers::start(streams, true, |_| self.writes);
        let sent_before = ServerCounts::sent(server).await?;
        let cpu = cpu_of(relays);
        let meter = Meter::start(server).await;
        let pause = Duration::from_secs(1) / self.writes_per_second;
        let done = paced(&server.endpoint, self.writes, pause).await?;
        let expected = ExpectedEvents::of(done.revisions())?;
        let finished = readers.finish(|_| &expected).await?;
        let used = meter.stop().await;
        let relay_cpu = cpu_of(relays).zip(cpu).map(|(now, then)| now.saturating_sub(then));
        let after = ServerCounts::of(server, sent_before).await?;
        let latency = finished.delays(&done.acknowledged)?;
        let memory = relays.iter().filter_map(|pid| status(*pid, "VmRSS:")).sum();
        finished.expect_only(fan_out::now(&server.endpoint).await?).await?;
        Ok(FanOutFigures {
            used: match relays {
                [] => used,
                _ => Usage { cpu: relay_cpu, ..used },
            },
            server: used,
            latency: Figures::default().latency(&latency),
            memory: (!relays.is_empty()).then_some(memory),
            bytes: after.bytes,
            requests: (after.requests - before.requests).saturating_sub(self.writes as u64),
        })
    }

    /// What a relay needs per object, and the JSON of one.
    async fn memory(&self, session: &mut Session, server: &TargetServer) -> Result<()> {
        let empty = RelayProcess::start(server, "pods?labelSelector=none=none").await?;
        let few = empty.memory()?;
        drop(empty);
        make_pods(server, fan_out::PODS, self.objects).await?;
        let relay = RelayProcess::start(server, "pods").await?;
        let all = relay.memory()?;
        let mut connection = Connection::open(&relay.endpoint).await?;
        let path = "/api/v1/pods?resourceVersion=0";
        let list = body::get(&mut connection, path, Encoding::Plain).await?;
        let list = body::read_all(list).await?;
        let each = |bytes: usize| bytes as f64 / self.objects as f64;
        let figures = Figures::default()
            .with(Figure::Count, self.objects as f64)
            .with(Figure::Wire, each(list.len()))
            .with(Figure::Memory, each(all.saturating_sub(few) as usize));
        let case = Case::new("relay", "memory", "objects").sized("objects", self.objects);
        session.report_row(case, "relay", figures);
        Ok(())
    }

    /// Kills the server under load, starts it again on its data, and checks every watcher of the relays.
    async fn outage(&self, session: &mut Session, server: TargetServer) -> Result<()> {
        let watchers = self.watchers.last().copied().unwrap_or(RELAYS);
        let relays = RelayProcesses::start(&server).await?;
        let start = fan_out::now(&server.endpoint).await?;
        let path = all_pods_from(start);
        let (goal, reached) = watch::channel(u64::MAX);
        let mut readers = JoinSet::new();
        for endpoint in &relays.endpoints {
            let share = watchers / RELAYS;
            for stream in open(endpoint, share, Protocol::Http1, |_| path.to_string()).await? {
                readers.spawn(read_to(stream, reached.clone()));
            }
        }
        let (stop, is_over) = watch::channel(false);
        let mut writer = JoinSet::new();
        let pause = Duration::from_secs(1) / self.writes_per_second;
        writer.spawn(write_through(server.endpoint.clone(), pause, is_over));
        tokio::time::sleep(self.outage.min(LOAD)).await;
        let address = server.endpoint.authority.clone();
        let home = server.kill()?;
        tokio::time::sleep(self.outage).await;
        let server = start_server(home, &address).await?;
        let back = Instant::now();
        tokio::time::sleep(self.outage.min(LOAD)).await;
        stop.send_replace(true);
        let (acknowledged, failed) =
            writer.join_next().await.context("the writer is gone")???;
        let last = fan_out::now(&server.endpoint).await?;
        goal.send_replace(last);
        // Watchers that had the last event before the goal was set end with this one.
        let beyond = fan_out::now(&server.endpoint).await?;

        // What happened, from a watch of the server itself: it includes writes without an answer.
        let target: WatchTarget = path.to_string().into();
        let mut witness = WatchStream::open(&server.endpoint, &target, Protocol::Http1).await?;
        let mut all = vec![revision(witness.next().await?)?];
        while all.last().is_some_and(|last| *last < beyond) {
            all.push(revision(witness.next().await?)?);
        }
        let known = acknowledged.iter().all(|revision| all.contains(revision));
        anyhow::ensure!(known, "an acknowledged write is lost");
        let expected = |upto: u64| {
            ExpectedEvents::of(all.iter().copied().filter(|found| *found <= upto).collect())
        };
        let (first, second) = (expected(last)?, expected(beyond)?);
        let read = async {
            while let Some(log) = readers.join_next().await {
                let log = log??;
                let expected = if log.last() == Some(last) { &first } else { &second };
                expected.check(&log).context("incorrect stream across the outage")?;
            }
            anyhow::Ok(())
        };
        let read = tokio::time::timeout(PATIENCE, read).await;
        read.context("a watcher was not complete within two minutes")??;
        let took = Figures::default()
            .with(Figure::Count, (all.len() * watchers) as f64)
            .with(Figure::Wall, back.elapsed().as_secs_f64());
        let case = Case::new("relay", "killed server", "events").sized("watchers", watchers);
        session.report_row(case, "relays", took);
        session.report.note(&format!(
            "the server was down for {} s; {} of {} changes were acknowledged, {failed} attempts failed; \
             every watcher has all of them, in order",
            self.outage.as_secs(),
            acknowledged.len(),
            all.len(),
        ));
        Ok(())
    }
}

/// How long the load runs before and after the outage, if that is not shorter.
const LOAD: Duration = Duration::from_secs(10);

/// How long a writer waits after a failure.
const RETRY: Duration = Duration::from_millis(200);

/// Writes until it is over, through failures. Returns the acknowledged revisions and how many attempts
/// failed.
async fn write_through(
    endpoint: Endpoint,
    pause: Duration,
    is_over: watch::Receiver<bool>,
) -> Result<(Vec<u64>, usize)> {
    let (mut acknowledged, mut failed) = (Vec::new(), 0);
    let mut open = None;
    for index in 0.. {
        if *is_over.borrow() {
            break;
        }
        let connected = match open.take() {
            Some(connection) => Ok(connection),
            None => Connection::open(&endpoint).await,
        };
        let Ok(mut connection) = connected else {
            failed += 1;
            tokio::time::sleep(RETRY).await;
            continue;
        };
        match send(&mut connection, fan_out::write(index)).await {
            Ok(revision) => {
                acknowledged.push(revision);
                open = Some(connection);
            }
            Err(_) => failed += 1,
        }
        tokio::time::sleep(pause).await;
    }
    Ok((acknowledged, failed))
}

/// Reads events up to a revision that is set later.
async fn read_to(mut stream: WatchStream, goal: watch::Receiver<u64>) -> Result<EventLog> {
    let mut log = EventLog::default();
    loop {
        let revision = revision(stream.next().await?)?;
        log.push(revision)?;
        if revision >= *goal.borrow() {
            return Ok(log);
        }
    }
}

/// What one fan-out cost.
struct FanOutFigures {
    /// Of the processes that the watchers are connected to.
    used: Usage,
    server: Usage,
    latency: Figures,
    memory: Option<u64>,
    bytes: u64,
    requests: u64,
}

impl FanOutFigures {
    fn per_write(&self, writes: usize) -> Figures {
        let figures = Figures::per_unit(writes, self.server);
        figures.with(Figure::Wire, self.bytes as f64 / writes as f64)
    }

    fn per_event(&self, events: usize) -> Figures {
        let figures = Figures::per_unit(events, self.used).memory(self.memory);
        let latency = |figure| self.latency.get(figure);
        figures.maybe(Figure::P50, latency(Figure::P50)).maybe(Figure::P99, latency(Figure::P99))
    }
}

/// The counters of the server.
struct ServerCounts {
    /// Bytes of events that its open watches of pods were sent, since a count.
    bytes: u64,
    requests: u64,
}

impl ServerCounts {
    async fn of(server: &TargetServer, since: u64) -> Result<ServerCounts> {
        let bytes = ServerCounts::sent(server).await?.saturating_sub(since);
        let text = metrics(&server.endpoint).await?;
        let count = |resource: &&str| request_count(&text, &format!("resource=\"{resource}\""));
        Ok(ServerCounts { bytes, requests: COUNTED.iter().map(count).sum() })
    }

    async fn sent(server: &TargetServer) -> Result<u64> {
        let mut connection = Connection::open(&server.endpoint).await?;
        let request = Request::get("/apis/headwater.dev/v1alpha1/watchers").body(Full::default())?;
        let response = successful(connection.send(request).await?).await?;
        let list: Value =
            serde_json::from_slice(&response.into_body().collect().await?.to_bytes())?;
        let items = list["items"].as_array().context("a list of watchers has items")?;
        let of_pods = items.iter().filter(|item| item["spec"]["resource"] == "pods");
        Ok(of_pods.filter_map(|item| item["status"]["bytes"].as_u64()).sum())
    }
}

/// The relays in front of the server.
struct RelayProcesses {
    relays: Vec<RelayProcess>,
    endpoints: Vec<Endpoint>,
}

impl RelayProcesses {
    async fn start(server: &TargetServer) -> Result<RelayProcesses> {
        let mut relays = Vec::new();
        for _ in 0..RELAYS {
            relays.push(RelayProcess::start(server, "pods").await?);
        }
        let endpoints = relays.iter().map(|relay| relay.endpoint.clone()).collect();
        Ok(RelayProcesses { relays, endpoints })
    }

    fn pids(&self) -> Vec<u32> {
        self.relays.iter().map(|relay| relay.process.id()).collect()
    }
}

struct RelayProcess {
    process: Process,
    endpoint: Endpoint,
    _home: ScratchDir,
}

impl RelayProcess {
    /// Starts a relay of some resources; it is ready when it holds them.
    async fn start(server: &TargetServer, resources: &str) -> Result<RelayProcess> {
        let home = ScratchDir::new()?;
        let kubeconfig = home.path().join("kubeconfig");
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["relay", "--bind", "127.0.0.1:0", "--resources", resources]);
        command.args(["--permission-ttl", PERMISSION_TTL]);
        command.args(["--max-watches", "10000000", "--max-watches-per-user", "10000000"]);
        command.arg("--upstream").arg(&server.kubeconfig);
        command.arg("--kubeconfig-out").arg(&kubeconfig);
        let process = Process::ready(&mut command).context("cannot start a relay")?;
        let endpoint = Endpoint::read(&with_user(&kubeconfig)?).await?;
        Ok(RelayProcess { process, endpoint, _home: home })
    }

    fn memory(&self) -> Result<u64> {
        status(self.process.id(), "VmRSS:").context("the relay has ended")
    }
}

/// The kubeconfig of a relay with the token of the bench.
fn with_user(kubeconfig: &Path) -> Result<PathBuf> {
    let text = std::fs::read_to_string(kubeconfig)?;
    let user = format!("users:\n- name: user\n  user:\n    token: {TOKEN}\n");
    let path = kubeconfig.with_extension("user");
    write_private(&path, &text.replace("users: []\n", &user))?;
    Ok(path)
}

fn write_private(path: &Path, text: &str) -> Result<()> {
    let mut file =
        OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(path)?;
    Ok(file.write_all(text.as_bytes())?)
}

/// Starts a server with the data and the tokens of a directory.
async fn start_server(home: ScratchDir, address: &str) -> Result<TargetServer> {
    let tokens = home.path().join("tokens").to_string_lossy().into_owned();
    let flags = ["--bind", address, "--token-auth-file", &tokens];
    Ok(TargetServer::start_with(home, false, &flags).await?.0)
}
