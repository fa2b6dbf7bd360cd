//! The client library: what a cache of many pods costs the program that has it.
//!
//! Each way to keep pods runs in a process of its own, against a server in another, so CPU and
//! memory are its own; kube-runtime's reflector does the same work in the same run, for the ratios.

use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use http::Method;

use super::load::{Work, create_pod, load, make_namespaces};
use super::measure::Used;
use super::object::{namespace, pod, pod_name};
use super::report::{Line, Report};
use super::target::{Home, Started, Target};

pub(super) mod follow;

use follow::Phase;

/// How pods are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Keep {
    /// kube-runtime's reflector, for comparison
    KubeRuntime,
    /// Typed objects, the default of an informer
    Typed,
    /// Typed objects with their managed fields
    TypedWhole,
    /// The bytes, decoded when read
    Packed,
    /// Five fields of a type of one's own
    Projected,
}

impl Keep {
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// What is aimed at for 100,000 pods of 6 KB.
    fn goal(self, phase: &str) -> &'static str {
        match (self, phase) {
            (Keep::Packed, "synced") => "≤ 30 µs and ≤ 8 KB a pod",
            (Keep::Typed, "synced") => "≤ 70 µs and ≤ 28 KB a pod",
            _ => "",
        }
    }
}

/// What is measured.
pub(super) struct Size {
    pub(super) objects: Vec<usize>,
    pub(super) updates: usize,
    pub(super) keep: Vec<Keep>,
}

pub(super) async fn run(size: &Size, memory: bool, report: &mut Report) -> Result<()> {
    let started = Started::new(Home::new()?, memory)?;
    let kubeconfig = started.kubeconfig();
    let (target, _) = Target::timed(started)?;
    make_namespaces(&target).await?;
    let mut made = 0;
    let mut round = 0;
    for objects in &size.objects {
        report.note(&format!("creating pods, up to {objects}"));
        let from = made;
        let missing = objects.saturating_sub(made);
        load(&target.endpoint, 16, missing, move |index| create_pod(from + index)).await?;
        made = made.max(*objects);
        let mut others = Vec::new();
        for keep in &size.keep {
            let case = Case { keep: *keep, objects: made, updates: size.updates };
            let phases = case.run(&target, &kubeconfig, round).await?;
            round += size.updates.div_ceil(made);
            case.report(&phases, &others, report);
            if *keep == Keep::KubeRuntime {
                others = phases;
            }
        }
    }
    Ok(())
}

/// One way to keep so many pods.
struct Case {
    keep: Keep,
    objects: usize,
    updates: usize,
}

impl Case {
    /// Follows in a new process: until it has synced, and until it has seen the updates.
    async fn run(&self, target: &Target, kubeconfig: &Path, round: usize) -> Result<Vec<Phase>> {
        let mut follower = Follower::start(self, kubeconfig)?;
        let syncing = tokio::task::spawn_blocking(|| (follower.phase(), follower));
        let (synced, mut follower) = syncing.await?;
        let mut phases = vec![synced?];
        if self.updates > 0 {
            let reading = tokio::task::spawn_blocking(move || follower.phase());
            let objects = self.objects;
            let update = move |turn: usize| update_pod(turn % objects, round + turn / objects + 1);
            load(&target.endpoint, 16, self.updates, update).await?;
            phases.push(reading.await??);
        }
        Ok(phases)
    }

    fn report(&self, phases: &[Phase], others: &[Phase], report: &mut Report) {
        for phase in phases {
            let (verb, unit) = match phase.name.as_str() {
                "synced" => ("sync", "pods"),
                _ => ("updates with", "changes"),
            };
            let name = format!("{verb} {} pods, {}", self.objects, self.keep.name());
            let (wall, cpu) = (phase.wall(), phase.cpu());
            let line = Line::new(name, unit).used(phase.count, Used { wall, cpu: Some(cpu) });
            let each = |bytes: u64| bytes / self.objects as u64;
            let line = line.memory(each(phase.peak_bytes), each(phase.settled_bytes));
            let other = others.iter().find(|other| other.name == phase.name);
            let line = match other {
                Some(other) => line.against("kube-runtime", phase.ratios(other)),
                None => line,
            };
            report.line(&line.target(self.keep.goal(&phase.name)));
        }
    }
}

fn update_pod(index: usize, mark: usize) -> Work {
    let namespace = namespace(index);
    Work {
        method: Method::PUT,
        path: format!("/api/v1/namespaces/{namespace}/pods/{}", pod_name(index)),
        body: pod(index, &namespace, mark),
    }
}

/// A process of this same binary that follows pods.
struct Follower {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Follower {
    fn start(case: &Case, kubeconfig: &Path) -> Result<Follower> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench", "follow", "--keep", &case.keep.name()]);
        command.args(["--updates", &case.updates.to_string()]);
        command.arg("--kubeconfig").arg(kubeconfig);
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().context("a pipe was asked for")?;
        Ok(Follower { child, lines: BufReader::new(stdout).lines() })
    }

    /// What it says next.
    fn phase(&mut self) -> Result<Phase> {
        let line = self.lines.next().context("the follower ended early")??;
        serde_json::from_str(&line).with_context(|| format!("the follower said {line:?}"))
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Phase {
    fn wall(&self) -> Duration {
        Duration::from_secs_f64(self.wall_seconds)
    }

    fn cpu(&self) -> Duration {
        Duration::from_secs_f64(self.cpu_seconds)
    }

    /// CPU and settled memory, as parts of another's.
    fn ratios(&self, other: &Phase) -> (f64, f64) {
        let memory = self.settled_bytes as f64 / other.settled_bytes.max(1) as f64;
        (self.cpu_seconds / other.cpu_seconds, memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_parts_of_the_others_figures() {
        let phase = |cpu_seconds, settled_bytes| Phase {
            name: "synced".into(),
            count: 1,
            wall_seconds: 1.0,
            cpu_seconds,
            peak_bytes: 0,
            settled_bytes,
        };
        assert_eq!(phase(1.0, 50).ratios(&phase(4.0, 200)), (0.25, 0.25));
    }
}
