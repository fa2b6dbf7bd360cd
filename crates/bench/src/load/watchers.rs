//! Many watchers: opens them in batches, reads them concurrently and checks each stream.
//!
//! Promise: a missing or unexpected event on any stream fails the run.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;
use tokio::task::JoinSet;

use super::checker::{EventLog, ExpectedEvents};
use super::histogram;
use super::stream::{Protocol, WatchStream, WatchTarget, revision};
use crate::kubeconfig::Endpoint;
use crate::report::progress::Progress;

/// Maximum time from the last write to its events.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// Concurrent handshakes.
const OPENING: usize = 64;

/// The path of a watch of all pods.
pub(crate) const ALL_PODS: &str = "/api/v1/pods?watch=true";

/// Opens watches, [`OPENING`] at a time. The result is in order of the index.
pub(crate) async fn open<T: Into<WatchTarget>>(
    endpoint: &Endpoint,
    count: usize,
    protocol: Protocol,
    target: impl Fn(usize) -> T,
) -> Result<Vec<WatchStream>> {
    let progress = Progress::new("watchers", count);
    let mut opening = JoinSet::new();
    let mut open = Vec::with_capacity(count);
    for index in 0..count {
        if opening.len() >= OPENING
            && let Some(stream) = opening.join_next().await
        {
            open.push(stream??);
            progress.step();
        }
        let (endpoint, target) = (endpoint.clone(), target(index).into());
        opening.spawn(async move {
            let stream = WatchStream::open(&endpoint, &target, protocol).await;
            let name = || format!("watcher {index} at {}", target.path);
            anyhow::Ok((index, stream.with_context(name)?))
        });
    }
    while let Some(stream) = opening.join_next().await {
        open.push(stream??);
    }
    open.sort_by_key(|(index, _)| *index);
    Ok(open.into_iter().map(|(_, stream)| stream).collect())
}

/// The revision of an event, and when it arrived.
pub(crate) type Arrival = (u64, Instant);

/// The events of one watcher.
pub(crate) struct WatcherLog {
    pub(crate) watcher: usize,
    pub(crate) seen: EventLog,
    arrivals: Vec<Arrival>,
    /// The bytes of its events.
    bytes: usize,
    pub(crate) stream: WatchStream,
}

/// Reads `count` events, each newer than the one before.
pub(crate) async fn read(
    watcher: usize,
    mut stream: WatchStream,
    count: usize,
    timed: bool,
) -> Result<WatcherLog> {
    let mut seen = EventLog::default();
    let (mut arrivals, mut bytes) = (Vec::new(), 0);
    while seen.count() < count {
        let event = stream.next().await.with_context(|| broken(watcher, &seen, count))?;
        let revision = revision(event)?;
        bytes += event.len();
        seen.push(revision).with_context(|| wrong(watcher))?;
        if timed {
            arrivals.push((revision, Instant::now()));
        }
    }
    Ok(WatcherLog { watcher, seen, arrivals, bytes, stream })
}

fn broken(watcher: usize, seen: &EventLog, count: usize) -> String {
    format!("the stream of watcher {watcher} ended after {} of {count} events", seen.count())
}

pub(crate) fn wrong(watcher: usize) -> String {
    format!("incorrect stream of watcher {watcher}")
}

/// Watchers that read concurrently with writes.
pub(crate) struct Readers(JoinSet<Result<WatcherLog>>);

impl Readers {
    /// Starts the watchers; each reads `count(index)` events.
    pub(crate) fn start(
        streams: Vec<WatchStream>,
        timed: bool,
        count: impl Fn(usize) -> usize,
    ) -> Readers {
        let mut readers = JoinSet::new();
        for (watcher, stream) in streams.into_iter().enumerate() {
            readers.spawn(read(watcher, stream, count(watcher), timed));
        }
        Readers(readers)
    }

    /// Waits for all watchers and checks the events of each.
    pub(crate) async fn finish<'a>(
        mut self,
        expected: impl Fn(usize) -> &'a ExpectedEvents,
    ) -> Result<CheckedWatchers> {
        let mut finished = CheckedWatchers::default();
        let all = async {
            while let Some(read) = self.0.join_next().await {
                let read = read??;
                let checked = expected(read.watcher).check(&read.seen);
                checked.with_context(|| wrong(read.watcher))?;
                finished.arrivals.extend(read.arrivals);
                finished.bytes += read.bytes;
                finished.streams.push((read.watcher, read.stream));
            }
            Ok(finished)
        };
        let all = tokio::time::timeout(PATIENCE, all).await;
        all.context("the event of an acknowledged write did not arrive within two minutes")?
    }
}

/// Watchers that received all expected events.
#[derive(Default)]
pub(crate) struct CheckedWatchers {
    arrivals: Vec<Arrival>,
    /// The bytes of all their events.
    pub(crate) bytes: usize,
    streams: Vec<(usize, WatchStream)>,
}

impl CheckedWatchers {
    /// Checks that the next event of each watcher has revision `last`: no extra event is in
    /// between.
    pub(crate) async fn expect_only(self, last: u64) -> Result<()> {
        let mut readers = JoinSet::new();
        for (watcher, mut stream) in self.streams {
            readers.spawn(async move {
                let found = revision(stream.next().await?)?;
                if found != last {
                    bail!("watcher {watcher} received revision {found} instead of {last}");
                }
                Ok(())
            });
        }
        let all = async {
            while let Some(read) = readers.join_next().await {
                read??;
            }
            Ok(())
        };
        let all = tokio::time::timeout(PATIENCE, all).await;
        all.context("the last event did not arrive within two minutes")?
    }

    /// The delays from the acknowledgement of a write to its events; 1 µs if the event arrives
    /// first.
    pub(crate) fn delays(&self, acknowledged: &[Arrival]) -> Result<Histogram<u64>> {
        let mut micros = histogram()?;
        for (revision, at) in &self.arrivals {
            let found = acknowledged.binary_search_by_key(revision, |(revision, _)| *revision);
            let index =
                found.ok().context("an event belongs to a write that the bench did not send")?;
            let delay = at.saturating_duration_since(acknowledged[index].1);
            micros.saturating_record(delay.as_micros().max(1) as u64);
        }
        Ok(micros)
    }
}

/// The path of a watch of all pods after a revision.
pub(crate) fn all_pods_from(revision: u64) -> Arc<str> {
    format!("{ALL_PODS}&resourceVersion={revision}").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "HTTP/1.1 200 OK\r\n\r\n";

    /// A stream of events with these revisions.
    async fn stream(revisions: &[u64]) -> WatchStream {
        let events = revisions.iter().map(|revision| {
            let event = format!("{{\"resourceVersion\":\"{revision}\"}}\n");
            format!("{:x}\r\n{event}\r\n", event.len())
        });
        let wire = format!("{HEAD}{}", events.collect::<String>());
        WatchStream::answering(wire.leak().as_bytes()).await
    }

    async fn verdict(revisions: &[u64]) -> Result<()> {
        let streams = vec![stream(&[3, 5, 7]).await, stream(revisions).await];
        let expected = ExpectedEvents::of(vec![3, 5])?;
        let finished = Readers::start(streams, true, |_| 2).finish(|_| &expected).await?;
        finished.expect_only(7).await
    }

    #[tokio::test]
    async fn watchers_that_receive_all_writes_pass() {
        verdict(&[3, 5, 7]).await.unwrap();
    }

    #[tokio::test]
    async fn one_incorrect_stream_fails_the_run_and_is_named() {
        for (revisions, sentence) in [
            (&[3, 3, 5, 7][..], "incorrect stream of watcher 1: revision 3 arrived twice"),
            (&[5, 3, 7], "incorrect stream of watcher 1: revision 3 arrived after 5"),
            (
                &[3, 7],
                "incorrect stream of watcher 1: revision 5 was acknowledged but did not arrive",
            ),
            (
                &[3],
                "the stream of watcher 1 ended after 1 of 2 events: the server closed the connection",
            ),
            (&[3, 5, 5, 7], "watcher 1 received revision 5 instead of 7"),
        ] {
            let wrong = verdict(revisions).await.unwrap_err();
            assert_eq!(format!("{wrong:#}"), sentence);
        }
    }

    #[tokio::test]
    async fn delays_start_at_the_acknowledgement() {
        let (began, streams) = (Instant::now(), vec![stream(&[3, 5]).await]);
        let expected = ExpectedEvents::of(vec![3, 5]).unwrap();
        let finished = Readers::start(streams, true, |_| 2).finish(|_| &expected).await.unwrap();
        let late = Instant::now() + Duration::from_secs(3600);
        let delays = finished.delays(&[(3, began), (5, late)]).unwrap();
        assert_eq!((delays.len(), delays.min()), (2, 1), "an event may come first");
        assert!(finished.delays(&[(3, began)]).is_err(), "a write that was not ours");
    }
}
