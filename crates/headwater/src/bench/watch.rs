//! Watches: what an event costs for each watcher it goes to, and what a watcher costs that waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;
use http::Method;
use tokio::task::JoinSet;

use super::load::{Work, create_pod, histogram, load, make_namespaces, send};
use super::measure::{Meter, Used, rss};
use super::object::{namespace, pod, pod_name};
use super::report::{Line, Report};
use super::stream::{Seen, Stream, revision};
use super::target::Target;
use crate::connect::Connection;
use crate::kubeconfig::Endpoint;

/// How many of each.
pub(super) struct Size {
    pub(super) watchers: usize,
    pub(super) idle: usize,
    pub(super) writes: usize,
}

/// Clients that write flat out.
const WRITERS: usize = 4;
/// Pods that are written to; each watcher sees every write.
const PODS: usize = 64;
/// Writes of the paced case, and the time between two.
const PACED_WRITES: usize = 100;
const PACE: Duration = Duration::from_millis(100);
/// Writes of the selective case.
const SELECTIVE_WRITES: usize = 2000;
/// Events every returning watcher has missed.
const MISSED: usize = 200;
/// How long after the last write its events may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// Handshakes at the same time.
const OPENING: usize = 64;

const ALL: &str = "/api/v1/pods?watch=true";

pub(super) async fn run(target: &Target, size: &Size, report: &mut Report) -> Result<()> {
    make_namespaces(target).await?;
    load(&target.endpoint, 4, PODS, create_pod).await?;
    fan_out(target, size, report).await?;
    paced(target, size, report).await?;
    selective(target, size, report).await?;
    herd(target, size, report).await?;
    if size.idle > 0 {
        idle(target, size, report).await?;
    }
    Ok(())
}

/// The newest resourceVersion: that of a write nobody watches.
async fn now(endpoint: &Endpoint) -> Result<u64> {
    let mut connection = Connection::open(endpoint).await?;
    send(&mut connection, update(0)).await
}

/// A write to one of the pods, different from every other: one that changes nothing makes no event.
fn update(index: usize) -> Work {
    let index = index % PODS;
    let namespace = namespace(index);
    Work {
        method: Method::PUT,
        path: format!("/api/v1/namespaces/{namespace}/pods/{}", pod_name(index)),
        body: pod(index, &namespace, unused_mark()),
    }
}

fn unused_mark() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    NEXT.fetch_add(1, Relaxed)
}

/// Opens watches a few at a time; the result is in order.
async fn open(
    endpoint: &Endpoint,
    count: usize,
    path: impl Fn(usize) -> String,
) -> Result<Vec<Stream>> {
    let mut opening = JoinSet::new();
    let mut open = Vec::with_capacity(count);
    for index in 0..count {
        if opening.len() >= OPENING
            && let Some(stream) = opening.join_next().await
        {
            open.push(stream??);
        }
        let (endpoint, path) = (endpoint.clone(), path(index));
        opening.spawn(async move { anyhow::Ok((index, Stream::open(&endpoint, &path).await?)) });
    }
    while let Some(stream) = opening.join_next().await {
        open.push(stream??);
    }
    open.sort_by_key(|(index, _)| *index);
    Ok(open.into_iter().map(|(_, stream)| stream).collect())
}

/// When the event of each revision came.
type Times = Vec<(u64, Instant)>;

/// Reads `count` events from each stream; each must have seen the same.
struct Readers(JoinSet<Result<(Seen, Times)>>);

impl Readers {
    fn start(streams: Vec<Stream>, count: usize, timed: bool) -> Readers {
        let mut readers = JoinSet::new();
        for mut stream in streams {
            readers.spawn(async move {
                let mut seen = Seen::default();
                let mut times = Times::new();
                for _ in 0..count {
                    let revision = revision(stream.next().await?)?;
                    seen.push(revision)?;
                    if timed {
                        times.push((revision, Instant::now()));
                    }
                }
                Ok((seen, times))
            });
        }
        Readers(readers)
    }

    async fn finish(mut self, expected: Seen) -> Result<Times> {
        let read = async {
            let mut all = Vec::new();
            while let Some(read) = self.0.join_next().await {
                let (seen, times) = read??;
                if seen != expected {
                    bail!("a watcher saw {seen:?} where {expected:?} was written");
                }
                all.extend(times);
            }
            Ok(all)
        };
        let read = tokio::time::timeout(PATIENCE, read).await;
        read.context("an event did not come")?
    }
}

async fn fan_out(target: &Target, size: &Size, report: &mut Report) -> Result<()> {
    let from = now(&target.endpoint).await?;
    let path = format!("{ALL}&resourceVersion={from}");
    let streams = open(&target.endpoint, size.watchers, |_| path.clone()).await?;
    let readers = Readers::start(streams, size.writes, false);
    let meter = Meter::start(target);
    let done = load(&target.endpoint, WRITERS, size.writes, update).await?;
    readers.finish(Seen::of(revisions(&done.acknowledged))?).await?;
    let used = meter.stop();
    let events = (size.writes * size.watchers) as u64;
    let name = format!("fan-out to {} watchers, flat out", size.watchers);
    let line = Line::new(name, "events").used(events, used);
    report.line(&line.target("≤ 8 µs, ≥ 130,000/s"));
    Ok(())
}

fn revisions(acknowledged: &[(u64, Instant)]) -> Vec<u64> {
    acknowledged.iter().map(|(revision, _)| *revision).collect()
}

async fn paced(target: &Target, size: &Size, report: &mut Report) -> Result<()> {
    let from = now(&target.endpoint).await?;
    let path = format!("{ALL}&resourceVersion={from}");
    let streams = open(&target.endpoint, size.watchers, |_| path.clone()).await?;
    let readers = Readers::start(streams, PACED_WRITES, true);
    let mut connection = Connection::open(&target.endpoint).await?;
    let mut ticks = tokio::time::interval(PACE);
    let mut acknowledged = Vec::new();
    let meter = Meter::start(target);
    for write in 0..PACED_WRITES {
        ticks.tick().await;
        let revision = send(&mut connection, update(write)).await?;
        acknowledged.push((revision, Instant::now()));
    }
    let arrived = readers.finish(Seen::of(revisions(&acknowledged))?).await?;
    let used = meter.stop();
    let events = (PACED_WRITES * size.watchers) as u64;
    let name = format!("fan-out to {} watchers, 10 writes/s, ack to event", size.watchers);
    let line = Line::new(name, "events").used(events, used);
    let line = line.latency(&delays(&acknowledged, &arrived)?);
    report.line(&line.target("≤ 16 µs, p99 ≤ 22 ms"));
    Ok(())
}

/// From the acknowledgement of a write to each of its events. An event may well come first.
fn delays(acknowledged: &[(u64, Instant)], arrived: &[(u64, Instant)]) -> Result<Histogram<u64>> {
    let mut micros = histogram()?;
    for (revision, at) in arrived {
        let found = acknowledged.binary_search_by_key(revision, |(revision, _)| *revision);
        let Ok(index) = found else { bail!("revision {revision} was not written by us") };
        let delay = at.saturating_duration_since(acknowledged[index].1);
        micros.saturating_record(delay.as_micros().max(1) as u64);
    }
    Ok(micros)
}

/// Every event is for one of the watchers: what do the others cost?
async fn selective(target: &Target, size: &Size, report: &mut Report) -> Result<()> {
    let watchers = size.watchers;
    load(&target.endpoint, 4, watchers, |index| labelled(Method::POST, index)).await?;
    let alone = selective_writes(target, watchers).await?.1;
    let from = now(&target.endpoint).await?;
    let path = move |index: usize| {
        format!("{ALL}&resourceVersion={from}&labelSelector=watcher%3Dw{index}")
    };
    let streams = open(&target.endpoint, watchers, path).await?;
    let mut readers = JoinSet::new();
    for (index, mut stream) in streams.into_iter().enumerate() {
        let expected = (index..SELECTIVE_WRITES).step_by(watchers).count();
        readers.spawn(async move {
            let mut seen = Vec::new();
            for _ in 0..expected {
                seen.push(revision(stream.next().await?)?);
            }
            anyhow::Ok(seen)
        });
    }
    let (written, watched) = selective_writes(target, watchers).await?;
    let mut seen = Vec::new();
    while let Some(read) = readers.join_next().await {
        seen.extend(read??);
    }
    if Seen::of(seen)? != Seen::of(written)? {
        bail!("the watchers together did not see every write once");
    }
    let extra = watched.cpu.zip(alone.cpu).map(|(with, without)| with.saturating_sub(without));
    let name = format!("selective, 1 of {watchers} watchers: extra a write");
    let used = Used { cpu: extra, ..watched };
    let line = Line::new(name, "writes").used(SELECTIVE_WRITES as u64, used);
    report.line(&line.target("≤ 40 µs"));
    Ok(())
}

/// Updates pods, each labelled for one watcher.
async fn selective_writes(target: &Target, watchers: usize) -> Result<(Vec<u64>, Used)> {
    let meter = Meter::start(target);
    let work = move |index: usize| labelled(Method::PUT, index % watchers);
    let done = load(&target.endpoint, 1, SELECTIVE_WRITES, work).await?;
    Ok((revisions(&done.acknowledged), meter.stop()))
}

/// A write to the pod of one watcher.
fn labelled(method: Method, watcher: usize) -> Work {
    let index = PODS + watcher;
    let namespace = namespace(index);
    let body = String::from_utf8_lossy(&pod(index, &namespace, unused_mark())).replacen(
        "\"team\"",
        &format!("\"watcher\":\"w{watcher}\",\"team\""),
        1,
    );
    let path = match method {
        Method::POST => format!("/api/v1/namespaces/{namespace}/pods"),
        _ => format!("/api/v1/namespaces/{namespace}/pods/{}", pod_name(index)),
    };
    Work { method, path, body: body.into_bytes() }
}

/// Watchers that were away come back all at once.
async fn herd(target: &Target, size: &Size, report: &mut Report) -> Result<()> {
    let from = now(&target.endpoint).await?;
    let done = load(&target.endpoint, WRITERS, MISSED, update).await?;
    let expected = Seen::of(revisions(&done.acknowledged))?;
    let path: Arc<str> = format!("{ALL}&resourceVersion={from}").into();
    let meter = Meter::start(target);
    let mut readers = JoinSet::new();
    for _ in 0..size.watchers {
        let (endpoint, path) = (target.endpoint.clone(), path.clone());
        readers.spawn(async move {
            let mut stream = Stream::open(&endpoint, &path).await?;
            let mut seen = Seen::default();
            for _ in 0..MISSED {
                seen.push(revision(stream.next().await?)?)?;
            }
            // Kept open until all are done, as real ones would be.
            anyhow::Ok((seen, stream))
        });
    }
    let mut open = Vec::with_capacity(size.watchers);
    while let Some(read) = readers.join_next().await {
        let (seen, stream) = read??;
        if seen != expected {
            bail!("a returning watcher saw {seen:?} where {expected:?} was written");
        }
        open.push(stream);
    }
    let used = meter.stop();
    let events = (MISSED * size.watchers) as u64;
    let name = format!("herd: {} watchers resume, {MISSED} missed", size.watchers);
    report.line(&Line::new(name.clone(), "events").used(events, used).target("≤ 6 µs"));
    report.line(&Line::new(format!("{name}: all of it"), "").took(used.wall).target("≤ 1.2 s"));
    Ok(())
}

/// Watchers that only wait: their memory, and what a minute of them costs.
async fn idle(target: &Target, size: &Size, report: &mut Report) -> Result<()> {
    let path = "/api/v1/endpoints?watch=true&allowWatchBookmarks=true";
    // The first ones pay for what all of them share.
    let _warm = open(&target.endpoint, 100, |_| path.to_owned()).await?;
    let before = rss(target);
    let streams = open(&target.endpoint, size.idle, |_| path.to_owned()).await?;
    let each = rss(target)
        .zip(before)
        .map(|(after, before)| after.saturating_sub(before) / size.idle as u64);
    let name = format!("memory of an idle watcher, of {}", size.idle);
    report.line(&Line::new(name, "bytes").bytes(each).target("≤ 14 KB"));
    let meter = Meter::start(target);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let used = meter.stop();
    drop(streams);
    let name = format!("{} idle watchers, a minute", size.idle);
    let cpu = used.cpu.map(|cpu| cpu * 6);
    let line = Line::new(name, "minutes").used(1, Used { wall: Duration::from_secs(60), cpu });
    report.line(&line.target("≤ 0.1 s for 1,000"));
    Ok(())
}
