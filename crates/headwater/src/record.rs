//! `headwater record`: writes every change of a cluster to a file.
//!
//! River: follow, one per kind → **record** → writer → file.
//! Promise: all objects that existed, then every change in the order of resourceVersions. What was
//! written a second ago survives a kill. Values of Secrets reach the file only if asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use headwater_api::EventType;
use headwater_json::Value;
use headwater_recording::{RecordedChange, RecordedKind, RecordingLine, RecordingWriter};
use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::copy::order;
use crate::flags::RecordFlags;
use crate::print;
use crate::remote::follow::{CollectionEvent, FollowedCollection, follow, version};
use crate::remote::kinds::{RemoteKind, RemoteKinds, items};
use crate::remote::{Refused, RemoteCluster};
use crate::secrets::SecretPolicy;
use crate::signals::Signals;

/// Changes that wait to be written; with more, streams are read later.
const QUEUE_MAX: usize = 1_024;

/// How long a change waits for changes of other kinds that came before it.
const HOLD: Duration = Duration::from_millis(500);

/// How long after its definition a kind may not be served.
const SERVED_WITHIN: Duration = Duration::from_secs(10);

/// How often the file is flushed.
const FLUSH_EVERY: Duration = Duration::from_secs(1);

/// Records until a signal, or for some time.
pub(crate) async fn run(flags: &RecordFlags) -> Result<()> {
    let mut signals = Signals::new()?;
    let cluster = RemoteCluster::open(&flags.remote).await?;
    let kinds = RemoteKinds::discover(&cluster).await?;
    let mut chosen = kinds.selected(&flags.resources)?;
    if flags.secrets == SecretPolicy::Omit {
        chosen.retain(|kind| !is_secrets(kind));
    }
    if chosen.is_empty() {
        bail!("nothing to record; Secrets need --secrets blank or keep");
    }
    let namespace = flags.scope.namespace(cluster.namespace());
    let path = &flags.output;
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let file = file.with_context(|| format!("cannot create {}", path.display()))?;
    let begin =
        RecordingLine::Begin { time: Timestamp::now(), server: cluster.address().to_owned() };
    let writer = RecordingWriter::new(file, &begin)?;
    let mut recorder = Recorder {
        cluster,
        namespace,
        secrets: flags.secrets,
        finds_kinds: flags.resources.is_empty(),
        sources: Vec::new(),
        tasks: JoinSet::new(),
        file: RecordingFile::new(writer),
    };
    let until = flags.duration.map(|duration| Instant::now() + duration);
    let ended = recorder.record(chosen, &mut signals, until).await;
    recorder.tasks.shutdown().await;
    let totals = recorder.file.close(Timestamp::now());
    ended?;
    let (initial, changes, bytes) =
        totals.with_context(|| format!("cannot write {}", path.display()))?;
    print::note(&format!(
        "recorded {initial} objects and {changes} changes in {}, {bytes} bytes",
        path.display()
    ));
    Ok(())
}

fn is_secrets(kind: &RemoteKind) -> bool {
    kind.resource.group.is_empty() && kind.resource.plural == "secrets"
}

/// Kinds that objects of other kinds need. They are listed last: then nothing that was listed before
/// lacks them.
fn is_needed_by_others(kind: &RemoteKind) -> bool {
    matches!(kind.resource.plural.as_str(), "namespaces" | "customresourcedefinitions")
}

/// One followed kind.
struct Source {
    kind: RemoteKind,
    /// The number of the kind in the file.
    number: usize,
    is_complete: bool,
    /// Versions of the objects by key, to find what changed while the server could not be followed.
    known: BTreeMap<String, (String, Value)>,
    /// The keys that a new list has not named yet.
    unseen: Option<BTreeSet<String>>,
}

struct Recorder {
    cluster: RemoteCluster,
    namespace: Option<String>,
    secrets: SecretPolicy,
    /// Whether new definitions are followed too.
    finds_kinds: bool,
    sources: Vec<Source>,
    tasks: JoinSet<Result<()>>,
    file: RecordingFile,
}

type Sender = mpsc::Sender<(usize, CollectionEvent)>;

impl Recorder {
    async fn record(
        &mut self,
        chosen: Vec<RemoteKind>,
        signals: &mut Signals,
        until: Option<Instant>,
    ) -> Result<()> {
        let (out, mut events) = mpsc::channel(QUEUE_MAX);
        let (last, first): (Vec<_>, Vec<_>) = chosen.into_iter().partition(is_needed_by_others);
        let mut last = Some(last);
        for kind in first {
            self.add(kind, &out)?;
        }
        let mut flush = tokio::time::interval(FLUSH_EVERY);
        loop {
            if self.sources.iter().all(|source| source.is_complete) {
                if let Some(last) = last.take() {
                    for kind in last {
                        self.add(kind, &out)?;
                    }
                    continue;
                }
                if !self.file.is_synced {
                    self.file.sync(Timestamp::now())?;
                    let count = self.file.initial;
                    print::note(&format!("recording changes of {count} objects; Ctrl-C ends it"));
                }
            }
            tokio::select! {
                biased;
                () = signals.next() => return Ok(()),
                () = wait_until(until) => return Ok(()),
                Some(ended) = self.tasks.join_next() => match ended {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => return Err(error),
                    Err(error) => return Err(anyhow::Error::new(error)),
                },
                Some((number, event)) = events.recv() => self.take(number, event, &out)?,
                _ = flush.tick() => self.file.flush()?,
            }
        }
    }

    /// Follows a kind from now on.
    fn add(&mut self, kind: RemoteKind, out: &Sender) -> Result<()> {
        let number = self.sources.len();
        let resource = kind.resource.clone();
        self.file.writer.push(&RecordingLine::Kind(RecordedKind {
            group: resource.group.clone(),
            version: resource.version.clone(),
            kind: resource.kind.clone(),
            plural: resource.plural.clone(),
            namespaced: kind.namespaced,
        }))?;
        let followed = FollowedCollection {
            path: kind.collection(self.namespace.as_deref()),
            query: String::new(),
        };
        let (cluster, out) = (self.cluster.clone(), out.clone());
        self.tasks.spawn(async move {
            let (own, mut events) = mpsc::channel(1);
            let forward = async {
                while let Some(event) = events.recv().await {
                    if out.send((number, event)).await.is_err() {
                        return;
                    }
                }
            };
            let followed = async {
                let ended = follow_when_served(&cluster, &followed, &own).await;
                drop(own);
                ended
            };
            let (ended, ()) = tokio::join!(followed, forward);
            ended.with_context(|| format!("cannot record {}", resource.resource()))
        });
        let known = BTreeMap::new();
        self.sources.push(Source { kind, number, is_complete: false, known, unseen: None });
        Ok(())
    }

    fn take(&mut self, number: usize, event: CollectionEvent, out: &Sender) -> Result<()> {
        let now = Timestamp::now();
        let source = &mut self.sources[number];
        match event {
            CollectionEvent::Object(object) => {
                let key = crate::watch::key(&object);
                if let Some(unseen) = &mut source.unseen {
                    unseen.remove(&key);
                }
                let before = source.known.get(&key).map(|(version, _)| version.as_str());
                match before {
                    Some(before) if before == version(&object) => {}
                    Some(_) => self.change(number, EventType::Modified, object, now)?,
                    None => self.change(number, EventType::Added, object, now)?,
                }
            }
            CollectionEvent::Complete => {
                source.is_complete = true;
                let gone: Vec<Value> = source
                    .unseen
                    .take()
                    .into_iter()
                    .flatten()
                    .filter_map(|key| source.known.get(&key).map(|(_, object)| object.clone()))
                    .collect();
                for object in gone {
                    self.change(number, EventType::Deleted, object, now)?;
                }
            }
            CollectionEvent::Restart => {
                source.unseen = Some(source.known.keys().cloned().collect());
                let kind = source.number;
                self.file.release_all()?;
                self.file.writer.push(&RecordingLine::Gap { time: now, kind })?;
            }
            CollectionEvent::Change(event, object) => {
                if let Some(kind) = self.finds_kinds.then(|| new_kind(&object)).flatten()
                    && !self.sources.iter().any(|source| is_same(&source.kind, &kind))
                {
                    self.add(kind, out)?;
                }
                self.change(number, event, object, now)?;
            }
        }
        Ok(())
    }

    fn change(
        &mut self,
        number: usize,
        event: EventType,
        object: Value,
        now: Timestamp,
    ) -> Result<()> {
        let Some(object) = self.secrets.apply(object) else { return Ok(()) };
        let source = &mut self.sources[number];
        let key = crate::watch::key(&object);
        match event {
            EventType::Deleted => drop(source.known.remove(&key)),
            _ => {
                let entry = (version(&object).to_owned(), object.clone());
                source.known.insert(key, entry);
            }
        }
        let initial = !self.file.is_synced && !source.is_complete;
        let kind = source.number;
        self.file.put(RecordedChange { time: now, kind, event, initial, object })
    }
}

/// Follows a collection that is served now or soon: the definition of a new kind is stored before the
/// kind is served everywhere.
async fn follow_when_served(
    cluster: &RemoteCluster,
    followed: &FollowedCollection,
    out: &mpsc::Sender<CollectionEvent>,
) -> Result<()> {
    let limit = Instant::now() + SERVED_WITHIN;
    loop {
        match follow(cluster, followed, out).await {
            Err(error) if Refused::code_of(&error) == Some(404) && Instant::now() < limit => {
                tokio::time::sleep(SERVED_WITHIN / 100).await;
            }
            // A kind whose definition was deleted has no more changes.
            Err(error) if Refused::code_of(&error) == Some(404) => return Ok(()),
            ended => return ended,
        }
    }
}

async fn wait_until(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until).await,
        None => std::future::pending().await,
    }
}

fn is_same(a: &RemoteKind, b: &RemoteKind) -> bool {
    a.resource.group == b.resource.group && a.resource.plural == b.resource.plural
}

/// The kind of a definition that is served.
fn new_kind(object: &Value) -> Option<RemoteKind> {
    if object["kind"] != "CustomResourceDefinition" {
        return None;
    }
    let is_established = items(&object["status"]["conditions"])
        .any(|condition| condition["type"] == "Established" && condition["status"] == "True");
    let spec = &object["spec"];
    let served = items(&spec["versions"]).find(|version| version["storage"] == true);
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let verbs = ["get", "list", "watch"].map(str::to_owned).to_vec();
    is_established.then_some(RemoteKind {
        resource: headwater_client::ResourceType {
            group: text(&spec["group"])?,
            version: text(&served.filter(|version| version["served"] == true)?["name"])?,
            kind: text(&spec["names"]["kind"])?,
            plural: text(&spec["names"]["plural"])?,
        },
        singular: String::new(),
        short_names: Vec::new(),
        namespaced: spec["scope"] == "Namespaced",
        verbs,
        subresources: Vec::new(),
    })
}

/// The file, and the changes that are held until they can be put in order.
struct RecordingFile {
    writer: RecordingWriter<File>,
    /// The objects of the first lists.
    first: Vec<RecordedChange>,
    /// By version, and by arrival if versions are not numbers.
    held: BTreeMap<(u64, u64), (Instant, RecordedChange)>,
    arrived: u64,
    is_synced: bool,
    initial: u64,
    changes: u64,
}

impl RecordingFile {
    fn new(writer: RecordingWriter<File>) -> RecordingFile {
        RecordingFile {
            writer,
            first: Vec::new(),
            held: BTreeMap::new(),
            arrived: 0,
            is_synced: false,
            initial: 0,
            changes: 0,
        }
    }

    fn put(&mut self, change: RecordedChange) -> Result<()> {
        if change.initial {
            self.initial += 1;
            self.first.push(change);
            return Ok(());
        }
        self.arrived += 1;
        let at = version(&change.object).parse().unwrap_or(u64::MAX);
        self.held.insert((at, self.arrived), (Instant::now(), change));
        match self.is_synced {
            true => self.release(Instant::now() - HOLD),
            false => Ok(()),
        }
    }

    /// Writes the objects of the first lists: every kind is complete.
    fn sync(&mut self, now: Timestamp) -> Result<()> {
        let mut first = std::mem::take(&mut self.first);
        order::sort(&mut first, |change| &change.object);
        for change in first {
            self.writer.push(&RecordingLine::Change(change))?;
        }
        self.is_synced = true;
        self.writer.push(&RecordingLine::Synced { time: now })?;
        Ok(self.writer.flush()?)
    }

    /// Writes the changes up to the newest one that arrived before `before`.
    fn release(&mut self, before: Instant) -> Result<()> {
        let due = self.held.iter().rev().find(|(_, (arrived, _))| *arrived <= before);
        let Some(last) = due.map(|(key, _)| *key) else { return Ok(()) };
        let later = self.held.split_off(&(last.0, last.1 + 1));
        for (_, change) in std::mem::replace(&mut self.held, later).into_values() {
            self.changes += 1;
            self.writer.push(&RecordingLine::Change(change))?;
        }
        Ok(())
    }

    fn release_all(&mut self) -> Result<()> {
        match self.is_synced {
            true => self.release(Instant::now()),
            false => Ok(()),
        }
    }

    fn flush(&mut self) -> Result<()> {
        if self.is_synced {
            self.release(Instant::now() - HOLD)?;
        }
        Ok(self.writer.flush()?)
    }

    /// Ends the file; returns the objects, the changes and the bytes.
    fn close(mut self, now: Timestamp) -> Result<(u64, u64, u64)> {
        if !self.is_synced {
            self.sync(now)?;
        }
        self.release_all()?;
        self.writer.push(&RecordingLine::End { time: now })?;
        self.writer.flush()?;
        let bytes = self.writer.written();
        self.writer.finish()?.sync_all()?;
        Ok((self.initial, self.changes, bytes))
    }
}
