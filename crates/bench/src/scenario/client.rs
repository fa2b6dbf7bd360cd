//! `bench client`: the CPU and memory of a client that caches many pods.
//!
//! Each representation of a pod runs in its own process, so CPU and memory are those of the client
//! alone.

use std::io::{BufReader, Lines};
use std::path::Path;
use std::process::{ChildStdout, Command};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;

use super::list;
use crate::load::load;
use crate::load::requests::update_pod;
use crate::report::figures::{Figure, Figures};
use crate::report::{self, Row};
use crate::session::Session;
use crate::target::measure::Usage;
use crate::target::{Process, TargetServer};

pub(crate) mod follow;

use follow::FollowPhase;

/// How pods are kept in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KeepMode {
    /// Typed objects without managed fields, the default of an informer
    Typed,
    /// JSON bytes, decoded when read
    Packed,
    /// A custom type with five fields
    Projected,
}

impl KeepMode {
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// The sizes to measure.
pub(crate) struct ClientSizes {
    pub(crate) objects: Vec<usize>,
    pub(crate) updates: usize,
    pub(crate) keep: Vec<KeepMode>,
}

pub(crate) async fn run(session: &mut Session, size: &ClientSizes) -> Result<()> {
    session.fresh().await?;
    let mut made = 0;
    for &objects in &size.objects {
        list::prepare(session, made, objects).await?;
        made = objects;
        for &keep in &size.keep {
            let case = KeepCase { keep, objects, updates: size.updates };
            let phases = case.runs(session).await?;
            case.report(&phases, session);
        }
    }
    Ok(())
}

/// One representation and one number of pods.
struct KeepCase {
    keep: KeepMode,
    objects: usize,
    updates: usize,
}

/// The name and the median figures of each phase.
type Phases = Vec<(String, Figures)>;

impl KeepCase {
    /// Runs on the first server only: the client is measured, not the server.
    async fn runs(&self, session: &Session) -> Result<Phases> {
        let mut runs = Vec::new();
        for _ in 0..session.runs() {
            runs.push(self.run(session.first()?).await?);
        }
        let first = runs.first().context("there was no run")?.iter().enumerate();
        let medians = first.map(|(index, phase)| {
            let figures: Vec<Figures> =
                runs.iter().map(|run| run[index].figures(self.objects)).collect();
            (phase.name.clone(), Figures::median(&figures))
        });
        Ok(medians.collect())
    }

    /// Starts a client process and waits until it has synced and received the updates.
    async fn run(&self, target: &TargetServer) -> Result<Vec<FollowPhase>> {
        let mut follower = Follower::start(self, &target.kubeconfig)?;
        let syncing = tokio::task::spawn_blocking(|| (follower.phase(), follower));
        let (synced, mut follower) = syncing.await?;
        let mut phases = vec![synced?];
        if self.updates > 0 {
            let reading = tokio::task::spawn_blocking(move || follower.phase());
            let objects = self.objects;
            let update = move |turn: usize| update_pod(turn % objects);
            load(&target.endpoint, 16, self.updates, update).await?;
            phases.push(reading.await??);
        }
        Ok(phases)
    }

    fn report(&self, phases: &Phases, session: &mut Session) {
        for (name, figures) in phases {
            let (mode, unit) = match name.as_str() {
                "synced" => (self.keep.name(), "pods"),
                _ => (format!("{}, updates", self.keep.name()), "changes"),
            };
            let case = report::Case::new("client", &mode, unit).sized("objects", self.objects);
            session.report.row(Row::alone(case, "headwater", session.runs(), *figures));
        }
    }
}

/// A process of this program that caches pods.
struct Follower {
    /// Ends with this value.
    _process: Process,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Follower {
    fn start(case: &KeepCase, kubeconfig: &Path) -> Result<Follower> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench", "follow", "--keep", &case.keep.name()]);
        command.args(["--updates", &case.updates.to_string()]);
        command.arg("--kubeconfig").arg(kubeconfig);
        let (process, lines) = Process::start(&mut command)?;
        Ok(Follower { _process: process, lines })
    }

    /// The next phase that the process reports.
    fn phase(&mut self) -> Result<FollowPhase> {
        let line = self.lines.next().context("the client process exited early")??;
        serde_json::from_str(&line).with_context(|| format!("the client process printed {line:?}"))
    }
}

impl FollowPhase {
    /// CPU per object or change, memory per cached pod.
    fn figures(&self, objects: usize) -> Figures {
        let wall = Duration::from_secs_f64(self.wall_seconds);
        let cpu = Some(Duration::from_secs_f64(self.cpu_seconds));
        let figures = Figures::per_unit(self.count as usize, Usage { wall, cpu });
        let each = |bytes: u64| bytes as f64 / objects as f64;
        figures
            .with(Figure::Memory, each(self.settled_bytes))
            .with(Figure::Peak, each(self.peak_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_per_pod_and_cpu_is_per_change() {
        let phase = FollowPhase {
            name: "updated".into(),
            count: 40,
            wall_seconds: 1.0,
            cpu_seconds: 0.004,
            peak_bytes: 4000,
            settled_bytes: 2000,
        };
        let figures = phase.figures(20);
        assert_eq!(figures.get(Figure::Cpu), Some(100.0));
        assert_eq!(figures.get(Figure::Memory), Some(100.0));
        assert_eq!(figures.get(Figure::Peak), Some(200.0));
    }
}
