//! `headwater replay`: a recording happens again, in a server of its own or in another one.
//!
//! River: reader → **replay** → the store of a new server, or requests.
//! Promise: the file is checked up to the wanted time before anything is written; changes are written
//! in the order of the recording, each after the one before it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;
use headwater_api::EventType;
use headwater_recording::{
    Filler, RecordedChange, RecordedKind, RecordingError, RecordingLine, RecordingReader,
    RecordingSummary, began, check,
};
use headwater_store::Store;
use jiff::Timestamp;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::copy::placer::Placer;
use crate::flags::{Command, Flags, RemoteFlags, ReplayFlags, ReplaySpeed, TimePoint};
use crate::print;
use crate::remote::{RemoteCluster, ResponseForm};
use crate::signals::Signals;

/// The refused changes that are printed; all are counted.
const REFUSED_MAX: usize = 10;

/// A recording that was checked, and how it is replayed.
#[derive(Clone, Debug)]
pub(crate) struct ReplayPlan {
    path: PathBuf,
    speed: ReplaySpeed,
    until: Option<Timestamp>,
    begin: Timestamp,
    summary: RecordingSummary,
}

impl ReplayPlan {
    fn new(flags: &ReplayFlags) -> Result<ReplayPlan> {
        let path = flags.file.clone();
        let (until, summary) = checked(&path, flags.until.as_ref())?;
        let begin = summary.begin.unwrap_or_default();
        Ok(ReplayPlan { path, speed: flags.speed, until, begin, summary })
    }

    fn open(&self) -> Result<RecordingReader<File>> {
        let path = &self.path;
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        Ok(RecordingReader::new(file).until(self.until))
    }

    /// Waits until it is time for a change; the first objects do not wait.
    async fn wait(&self, started: Instant, change: &RecordedChange) {
        if change.initial || self.speed == ReplaySpeed::Max {
            return;
        }
        let since = change.time.duration_since(self.begin);
        let since = Duration::try_from(since).unwrap_or_default();
        tokio::time::sleep_until(started + self.speed.scaled(since)).await;
    }

    /// Writes the changes into the store of a running server.
    pub(crate) async fn run(self, store: Arc<dyn Store>, stop: CancellationToken) {
        let replayed = stop.run_until_cancelled(self.fill(&*store)).await;
        match replayed {
            Some(Ok(count)) => {
                print::note(&format!("replayed {count} changes; the server goes on"));
            }
            Some(Err(error)) => print::note(&format!("headwater: the replay stopped: {error:#}")),
            None => {}
        }
        // The server would end with any of its parts.
        stop.cancelled().await;
    }

    async fn fill(&self, store: &dyn Store) -> Result<u64> {
        let mut filler = Filler::over(store, 1);
        let mut reader = self.open()?;
        let (started, mut count) = (Instant::now(), 0);
        while let Some(line) = reader.next() {
            if let RecordingLine::Change(change) = line? {
                self.wait(started, &change).await;
                let kind = reader.kinds()[change.kind].clone();
                filler.put(&kind, &change).await?;
                filler.flush().await?;
                count += 1;
            }
        }
        Ok(count)
    }
}

/// Checks a recording up to a time, which may be relative to its beginning.
pub(crate) fn checked(
    path: &Path,
    until: Option<&TimePoint>,
) -> Result<(Option<Timestamp>, RecordingSummary)> {
    let open = || File::open(path).with_context(|| format!("cannot open {}", path.display()));
    let until = match until {
        None => None,
        Some(point) => {
            let time = point.after(began(open()?).unwrap_or_default());
            Some(time.context("--until needs a time or a duration, not a revision")?)
        }
    };
    let summary = check(open()?, until).map_err(|error| {
        let hint = match &error {
            RecordingError::Truncated { readable, .. }
            | RecordingError::Damaged { readable, .. } => {
                readable.last.map(|last| format!("; to use that part, add --until {last}"))
            }
            _ => None,
        };
        anyhow::Error::new(error).context(format!(
            "{} cannot be read to its end{}",
            path.display(),
            hint.unwrap_or_default()
        ))
    })?;
    Ok((until, summary))
}

/// Replays a recording.
pub(crate) async fn run(flags: &ReplayFlags) -> Result<()> {
    let plan = ReplayPlan::new(flags)?;
    let RecordingSummary { initial, changes, gaps, .. } = plan.summary;
    print::note(&format!("{}: {initial} objects, {changes} changes", plan.path.display()));
    if gaps > 0 {
        print::note(&format!("changes were missed {gaps} times while it was recorded"));
    }
    match &flags.into {
        Some(path) => onto(&plan, path, flags.force).await,
        None => serve(plan, flags).await,
    }
}

/// Serves the recording from a server in memory.
async fn serve(plan: ReplayPlan, flags: &ReplayFlags) -> Result<()> {
    let bind = flags.bind.to_string();
    let parsed = Flags::try_parse_from(["headwater", "serve", "--memory", "--bind", &bind])?;
    let Command::Serve(mut serve) = parsed.command else { bail!("serve is another command") };
    serve.kubeconfig_out.clone_from(&flags.kubeconfig_out);
    Box::pin(crate::serve::serve(*serve, Some(plan))).await
}

/// Writes the recording to another server.
async fn onto(plan: &ReplayPlan, path: &Path, force: bool) -> Result<()> {
    let mut signals = Signals::new()?;
    let cluster = RemoteCluster::open(&RemoteFlags { kubeconfig: path.to_owned() }).await?;
    if !force {
        refuse_unless_empty(&cluster).await?;
    }
    let mut player =
        RemotePlayer { placer: Placer::new(cluster, true).await?, written: 0, refused: 0 };
    tokio::select! {
        biased;
        () = signals.next() => {}
        played = player.play(plan) => played?,
    }
    let RemotePlayer { placer, written, refused } = player;
    print::note(&format!("wrote {written} changes"));
    if placer.owners_dropped > 0 {
        let count = placer.owners_dropped;
        print::note(&format!("{count} references to owners that do not exist were left out"));
    }
    match refused {
        0 => Ok(()),
        count => bail!("the server refused {count} changes"),
    }
}

async fn refuse_unless_empty(cluster: &RemoteCluster) -> Result<()> {
    let usual = ["default", "kube-system", "kube-public", "kube-node-lease"];
    let listed = cluster.list("/api/v1/namespaces", "", ResponseForm::Metadata).await?;
    let names = listed.items.iter().filter_map(|item| item["metadata"]["name"].as_str());
    if let Some(other) = names.into_iter().find(|name| !usual.contains(name)) {
        bail!(
            "the server is not empty: it has the namespace {other}; to write anyway, add --force"
        );
    }
    Ok(())
}

struct RemotePlayer {
    placer: Placer,
    written: u64,
    refused: usize,
}

impl RemotePlayer {
    async fn play(&mut self, plan: &ReplayPlan) -> Result<()> {
        let mut reader = plan.open()?;
        let started = Instant::now();
        while let Some(line) = reader.next() {
            if let RecordingLine::Change(change) = line? {
                plan.wait(started, &change).await;
                let kind = &reader.kinds()[change.kind];
                self.write(kind, change).await;
            }
        }
        Ok(())
    }

    async fn write(&mut self, kind: &RecordedKind, change: RecordedChange) {
        let key = change.key();
        let written = match change.event {
            EventType::Deleted => self.placer.delete(&change.object).await,
            _ => self.placer.put(&change.object).await,
        };
        match written {
            Ok(_) => self.written += 1,
            Err(error) => {
                self.refused += 1;
                if self.refused <= REFUSED_MAX {
                    let (event, kind) = (change.event.as_str(), &kind.kind);
                    print::note(&format!("not written: {event} {kind} {key}: {error:#}"));
                }
            }
        }
    }
}
