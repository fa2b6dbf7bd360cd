//! Many watchers: opened a few at a time, read all at once, each checked on its own.
//!
//! Promise: a watcher that does not see what it must, or sees anything else, fails the run.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;
use tokio::task::JoinSet;

use super::checker::{EventLog, ExpectedEvents};
use super::histogram;
use super::stream::{Protocol, WatchStream, revision};
use crate::kubeconfig::Endpoint;
use crate::report::progress::Progress;

/// How long after the last write its events may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// Handshakes at the same time.
const OPENING: usize = 64;

/// Watches of all pods.
pub(crate) const ALL_PODS: &str = "/api/v1/pods?watch=true";

/// Opens watches a few at a time; the result is in order.
pub(crate) async fn open(
    endpoint: &Endpoint,
    count: usize,
    protocol: Protocol,
    path: impl Fn(usize) -> String,
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
        let (endpoint, path) = (endpoint.clone(), path(index));
        opening.spawn(async move {
            let stream = WatchStream::open(&endpoint, &path, protocol).await;
            anyhow::Ok((index, stream.with_context(|| format!("watcher {index} at {path}"))?))
        });
    }
    while let Some(stream) = opening.join_next().await {
        open.push(stream??);
    }
    open.sort_by_key(|(index, _)| *index);
    Ok(open.into_iter().map(|(_, stream)| stream).collect())
}

/// When an event came.
pub(crate) type Arrival = (u64, Instant);

/// What one watcher read.
pub(crate) struct WatcherLog {
    pub(crate) watcher: usize,
    pub(crate) seen: EventLog,
    arrivals: Vec<Arrival>,
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
    let mut arrivals = Vec::new();
    while seen.count() < count {
        let event = stream.next().await.with_context(|| broken(watcher, &seen, count))?;
        let revision = revision(event)?;
        seen.push(revision).with_context(|| wrong(watcher))?;
        if timed {
            arrivals.push((revision, Instant::now()));
        }
    }
    Ok(WatcherLog { watcher, seen, arrivals, stream })
}

fn broken(watcher: usize, seen: &EventLog, count: usize) -> String {
    format!("watcher {watcher} was cut off after {} of {count} events", seen.count())
}

pub(crate) fn wrong(watcher: usize) -> String {
    format!("the stream of watcher {watcher} is wrong")
}

/// Watchers that read while others write.
pub(crate) struct Readers(JoinSet<Result<WatcherLog>>);

impl Readers {
    /// Each reads as many events as `count` says for it.
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

    /// Waits for all of them and checks each against what it must have seen.
    pub(crate) async fn finish<'a>(
        mut self,
        expected: impl Fn(usize) -> &'a ExpectedEvents,
    ) -> Result<CheckedWatchers> {
        let mut finished = CheckedWatchers { arrivals: Vec::new(), streams: Vec::new() };
        let all = async {
            while let Some(read) = self.0.join_next().await {
                let read = read??;
                let checked = expected(read.watcher).check(&read.seen);
                checked.with_context(|| wrong(read.watcher))?;
                finished.arrivals.extend(read.arrivals);
                finished.streams.push((read.watcher, read.stream));
            }
            Ok(finished)
        };
        let all = tokio::time::timeout(PATIENCE, all).await;
        all.context("an event that was acknowledged did not come in two minutes")?
    }
}

/// Watchers that have seen what they must.
pub(crate) struct CheckedWatchers {
    arrivals: Vec<Arrival>,
    streams: Vec<(usize, WatchStream)>,
}

impl CheckedWatchers {
    /// The next event of each must be that of one more write: nothing came twice at the end.
    pub(crate) async fn expect_only(self, last: u64) -> Result<()> {
        let mut readers = JoinSet::new();
        for (watcher, mut stream) in self.streams {
            readers.spawn(async move {
                let found = revision(stream.next().await?)?;
                if found != last {
                    bail!("watcher {watcher} saw revision {found} where {last} was written");
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
        all.context("the last event did not come in two minutes")?
    }

    /// From the acknowledgement of a write to each of its events. An event may well come first.
    pub(crate) fn delays(&self, acknowledged: &[Arrival]) -> Result<Histogram<u64>> {
        let mut micros = histogram()?;
        for (revision, at) in &self.arrivals {
            let found = acknowledged.binary_search_by_key(revision, |(revision, _)| *revision);
            let index = found.ok().context("an event of a write that was not ours")?;
            let delay = at.saturating_duration_since(acknowledged[index].1);
            micros.saturating_record(delay.as_micros().max(1) as u64);
        }
        Ok(micros)
    }
}

/// The path of a watch of all pods from a revision on.
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
    async fn watchers_that_see_what_was_written_are_right() {
        verdict(&[3, 5, 7]).await.unwrap();
    }

    #[tokio::test]
    async fn one_wrong_stream_among_others_fails_the_run_with_a_sentence() {
        for (revisions, sentence) in [
            (&[3, 3, 5, 7][..], "the stream of watcher 1 is wrong: revision 3 came twice"),
            (&[5, 3, 7], "the stream of watcher 1 is wrong: revision 3 came after 5"),
            (
                &[3, 7],
                "the stream of watcher 1 is wrong: revision 5 was acknowledged and never came",
            ),
            (&[3], "watcher 1 was cut off after 1 of 2 events: the server closed a watch"),
            (&[3, 5, 5, 7], "watcher 1 saw revision 5 where 7 was written"),
        ] {
            let wrong = verdict(revisions).await.unwrap_err();
            assert_eq!(format!("{wrong:#}"), sentence);
        }
    }

    #[tokio::test]
    async fn delays_are_counted_from_the_acknowledgement() {
        let (began, streams) = (Instant::now(), vec![stream(&[3, 5]).await]);
        let expected = ExpectedEvents::of(vec![3, 5]).unwrap();
        let finished = Readers::start(streams, true, |_| 2).finish(|_| &expected).await.unwrap();
        let late = Instant::now() + Duration::from_secs(3600);
        let delays = finished.delays(&[(3, began), (5, late)]).unwrap();
        assert_eq!((delays.len(), delays.min()), (2, 1), "an event may come first");
        assert!(finished.delays(&[(3, began)]).is_err(), "a write that was not ours");
    }
}
