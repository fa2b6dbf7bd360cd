//! The client process: caches pods in one representation and reports its CPU and memory.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use headwater_client::factory::Builder;
use headwater_client::informer::{Buffer, Subscribe};
use headwater_client::{Cached, Change, Factory, slim};
use k8s_openapi::api::core::v1::Pod;
use kube::core::ObjectMeta;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::KeepMode;
use crate::kubeconfig::kube_client;
use crate::report::Printer;
use crate::target::measure;

/// The cost of one phase, as the process reports it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct FollowPhase {
    pub(super) name: String,
    pub(super) count: u64,
    pub(super) wall_seconds: f64,
    pub(super) cpu_seconds: f64,
    /// Growth since before the process connected.
    pub(super) peak_bytes: u64,
    pub(super) settled_bytes: u64,
}

/// Caches pods until it has synced and received `updates` updates.
pub(crate) async fn follow(
    kubeconfig: &Path,
    keep: KeepMode,
    updates: u64,
    printer: Printer,
) -> Result<()> {
    let factory = Factory::new(kube_client(kubeconfig).await?);
    let pods = factory.informer::<Pod>();
    let ledger = Ledger::open(updates, printer);
    match keep {
        KeepMode::Typed => cache(&factory, pods, ledger).await,
        KeepMode::Packed => cache(&factory, pods.packed(), ledger).await,
        KeepMode::Projected => cache(&factory, factory.informer::<SlimPod>(), ledger).await,
    }
}

/// The five fields of a pod that this client needs.
#[derive(kube::Resource, Deserialize)]
#[resource(inherit = Pod)]
struct SlimPod {
    #[serde(deserialize_with = "slim")]
    metadata: ObjectMeta,
    #[expect(dead_code, reason = "only kept for its memory")]
    spec: SlimPodSpec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SlimPodSpec {
    #[expect(dead_code, reason = "only kept for its memory")]
    node_name: Option<String>,
}

async fn cache<K: Cached>(factory: &Factory, pods: Builder<K>, mut ledger: Ledger) -> Result<()> {
    let pods = pods.open()?;
    let all = Subscribe::named("bench").buffer(Buffer::Lossless);
    let mut changes = pods.subscribe(all)?;
    let stop = CancellationToken::new();
    let reading = async {
        while let Some(change) = changes.next().await {
            let seen = match change {
                Change::Added { .. } => Observation::Object,
                Change::Updated { .. } => Observation::Update,
                Change::Synced => Observation::Synced,
                Change::Deleted(_) => {
                    bail!("unexpected deletion: only the bench may write to this server")
                }
            };
            if ledger.note(seen).await? {
                break;
            }
        }
        stop.cancel();
        Ok(())
    };
    let running = async { Ok(factory.run(stop.clone()).await?) };
    tokio::try_join!(running, reading).map(drop)
}

enum Observation {
    Object,
    Synced,
    Update,
}

/// Counts objects and updates, and reports each phase at its end.
struct Ledger {
    printer: Printer,
    base_bytes: u64,
    began: Instant,
    cpu: Duration,
    objects: u64,
    updates: u64,
    updates_wanted: u64,
}

impl Ledger {
    fn open(updates_wanted: u64, printer: Printer) -> Ledger {
        Ledger {
            printer,
            base_bytes: status("VmRSS:").unwrap_or_default(),
            began: Instant::now(),
            cpu: cpu(),
            objects: 0,
            updates: 0,
            updates_wanted,
        }
    }

    /// Counts one observation; returns whether it was the last.
    async fn note(&mut self, seen: Observation) -> Result<bool> {
        match seen {
            Observation::Object => self.objects += 1,
            Observation::Synced => self.report_phase("synced", self.objects).await?,
            Observation::Update => self.updates += 1,
        }
        let is_last = self.updates == self.updates_wanted && matches!(seen, Observation::Update);
        if is_last {
            self.report_phase("updated", self.updates).await?;
        }
        Ok(is_last || (self.updates_wanted == 0 && matches!(seen, Observation::Synced)))
    }

    async fn report_phase(&mut self, name: &str, count: u64) -> Result<()> {
        let (wall, used) = (self.began.elapsed(), cpu().saturating_sub(self.cpu));
        let peak = status("VmHWM:").context("cannot read the peak memory of this process")?;
        // The allocator returns freed memory with a delay.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let settled = status("VmRSS:").context("cannot read the memory of this process")?;
        let phase = FollowPhase {
            name: name.to_owned(),
            count,
            wall_seconds: wall.as_secs_f64(),
            cpu_seconds: used.as_secs_f64(),
            peak_bytes: peak.saturating_sub(self.base_bytes),
            settled_bytes: settled.saturating_sub(self.base_bytes),
        };
        (self.printer.data)(&serde_json::to_string(&phase)?);
        (self.began, self.cpu) = (Instant::now(), cpu());
        Ok(())
    }
}

fn cpu() -> Duration {
    measure::cpu_of(&[std::process::id()]).unwrap_or_default()
}

/// A value of `/proc/self/status`, in bytes.
fn status(name: &str) -> Option<u64> {
    measure::status(std::process::id(), name)
}
