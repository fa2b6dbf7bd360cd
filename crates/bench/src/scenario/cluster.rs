//! `bench cluster`: from an empty server to pods running on simulated nodes, with all controllers.
//!
//! Promise: the bench fails if a controller sends a list or starts a watch after its first sync.
//! The request counters of the server show it.

use std::collections::HashSet;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use headwater_client::informer::{Informer, Subscribe};
use headwater_client::{Cached, Factory};
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::connect::{Connection, successful};
use crate::kubeconfig::kube_client;
use crate::report::figures::{Figure, Figures};
use crate::report::{Case, Row};
use crate::session::Session;
use crate::target::measure::{Meter, metrics, request_count, rss};
use crate::target::{Process, ScratchDir, TargetServer};

/// The size of the cluster.
pub(crate) struct ClusterSize {
    pub(crate) nodes: usize,
    pub(crate) pods: usize,
}

/// Pods of one Deployment.
const REPLICAS: usize = 250;
/// The bench gives up after this time.
const PATIENCE: Duration = Duration::from_secs(900);
/// Pods start without delay, so that only the server and the controllers are measured.
const STAGES: &str = "\
node:
  capacity: {pods: '250'}
rules:
- stages:
  - {stage: Running}
  - {stage: Gone}
";

pub(crate) async fn run(session: &mut Session, size: &ClusterSize, memory: bool) -> Result<()> {
    let home = ScratchDir::new()?;
    let stages = home.path().join("stages.yaml");
    std::fs::write(&stages, STAGES)?;
    let (mut target, _) = TargetServer::start(home, memory).await?;
    let server = target.pids.clone();

    session.report.note(&format!("starting controllers and {} nodes", size.nodes));
    let began = Instant::now();
    let controllers = start_controllers(&target.kubeconfig, &stages, size.nodes)?;
    target.pids.push(controllers.id());
    let observer = Observer::open(&target.kubeconfig).await?;
    Box::pin(observer.run(measure(size, &target, began, &observer, session))).await?;
    let controllers_pids = vec![controllers.id()];
    for (mode, pids) in [("server", server), ("controllers", controllers_pids)] {
        target.pids = pids;
        let case = Case::new("cluster", mode, "processes").sized("pods", size.pods);
        add_row(session, case, Figures::default().memory(rss(&target).await));
    }
    Ok(())
}

async fn measure(
    size: &ClusterSize,
    target: &TargetServer,
    began: Instant,
    observer: &Observer,
    session: &mut Session,
) -> Result<()> {
    let nodes = observer.factory.informer::<Node>().open()?;
    observer.until(&nodes, size.nodes, |_| true).await?;
    let took = Figures::default().with(Figure::Wall, began.elapsed().as_secs_f64());
    add_row(session, Case::new("cluster", "nodes there", "nodes").sized("nodes", size.nodes), took);

    let before = ReadCounts::settled(target).await?;
    let mut connection = Connection::open(&target.endpoint).await?;
    let meter = Meter::start(target).await;
    for number in 0..size.pods.div_ceil(REPLICAS) {
        let replicas = REPLICAS.min(size.pods - number * REPLICAS);
        deploy(&mut connection, number, replicas).await?;
    }
    observer.until(&observer.pods, size.pods, is_running).await?;
    let used = meter.stop().await;
    let after = ReadCounts::of(target).await?;
    let case = Case::new("cluster", "pods running", "pods").sized("pods", size.pods);
    add_row(session, case, Figures::per_unit(size.pods, used));
    ensure!(
        before == after,
        "a controller listed or watched again after its first sync: {before:?} before, {after:?} after"
    );
    session.report.note("no controller sent a list or restarted a watch after its first sync");
    Ok(())
}

fn is_running(pod: &Pod) -> bool {
    let Some(status) = &pod.status else { return false };
    let mut conditions = status.conditions.iter().flatten();
    status.phase.as_deref() == Some("Running")
        && conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Reports a row. CPU is the sum of the server and the controllers.
fn add_row(session: &mut Session, case: Case, figures: Figures) {
    session.report.row(Row::alone(case, "headwater", 1, figures));
}

async fn deploy(connection: &mut Connection, number: usize, replicas: usize) -> Result<()> {
    let name = format!("web-{number}");
    let labels = json!({"app": name});
    let requests = json!({"cpu": "10m", "memory": "16Mi"});
    let container = json!({"name": "c", "image": "nginx", "resources": {"requests": requests}});
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    });
    let request = Request::builder()
        .method(Method::POST)
        .uri("/apis/apps/v1/namespaces/default/deployments")
        .header("content-type", "application/json")
        .body(Full::from(deployment.to_string()))?;
    successful(connection.send(request).await?).await?.into_body().collect().await?;
    Ok(())
}

/// The number of lists and watches the server has received.
#[derive(Debug, PartialEq, Eq)]
struct ReadCounts {
    lists: u64,
    watches: u64,
}

/// All informers have synced when the server received no list or watch for this long. The garbage
/// collector discovers its kinds and opens their watches last.
const QUIET: Duration = Duration::from_secs(2);

impl ReadCounts {
    async fn settled(target: &TargetServer) -> Result<ReadCounts> {
        let mut known = ReadCounts::of(target).await?;
        loop {
            tokio::time::sleep(QUIET).await;
            let now = ReadCounts::of(target).await?;
            if now == known {
                return Ok(now);
            }
            known = now;
        }
    }

    async fn of(target: &TargetServer) -> Result<ReadCounts> {
        let text = metrics(&target.endpoint).await?;
        let count = |verb: &str| request_count(&text, &format!("verb=\"{verb}\""));
        Ok(ReadCounts { lists: count("LIST"), watches: count("WATCH") })
    }
}

/// An informer that observes the progress.
struct Observer {
    factory: Factory,
    pods: Informer<Pod>,
}

impl Observer {
    async fn open(kubeconfig: &Path) -> Result<Observer> {
        let factory = Factory::new(kube_client(kubeconfig).await?);
        let pods = factory.informer::<Pod>().open()?;
        Ok(Observer { factory, pods })
    }

    async fn run(&self, work: impl Future<Output = Result<()>>) -> Result<()> {
        let stop = CancellationToken::new();
        let work = async {
            let done = work.await;
            stop.cancel();
            done
        };
        let (ran, done) = tokio::join!(self.factory.run(stop.clone()), work);
        done?;
        Ok(ran?)
    }

    /// Waits until `wanted` objects fulfil a condition.
    async fn until<K: Cached>(
        &self,
        informer: &Informer<K>,
        wanted: usize,
        is_up: impl Fn(&K) -> bool,
    ) -> Result<()> {
        let mut changes = informer.subscribe(Subscribe::named("observer"))?;
        let mut up = HashSet::new();
        let seen = async {
            while up.len() < wanted {
                let change = changes.next().await.context("the watch ended")?;
                if let (Some(key), Some(object)) = (change.key(), change.object())
                    && is_up(object)
                {
                    up.insert(key);
                }
            }
            Ok(())
        };
        let seen = tokio::time::timeout(PATIENCE, seen).await;
        seen.with_context(|| format!("fewer than {wanted} {} were ready in time", informer.name()))?
    }
}

/// Starts a process of this program that runs all controllers.
fn start_controllers(kubeconfig: &Path, stages: &Path, nodes: usize) -> Result<Process> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["controllers", "--no-leader-election", "--nodes", &nodes.to_string()]);
    command.arg("--kubeconfig").arg(kubeconfig).arg("--stages").arg(stages);
    Process::ready(&mut command).context("the controllers did not start")
}
