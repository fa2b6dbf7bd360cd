//! `bench selective`: every event is for one of many watchers; the extra CPU per write.
//!
//! The extra cost is small compared with the write. To find it, the bench sends the same writes in
//! small batches alternately to two servers: one with the watchers, one without.

use std::ops::Range;

use anyhow::Result;
use http::Method;

use super::fan_out::{self, now};
use crate::connect::Connection;
use crate::load::checker::ExpectedEvents;
use crate::load::object::{namespace, own_namespace, own_node, own_pod, pod_name};
use crate::load::requests::{make_own_namespaces, unused_mark};
use crate::load::stream::Protocol;
use crate::load::watchers::{Readers, open};
use crate::load::{APPLY, JSON, WriteRequest, load, send};
use crate::report::Case;
use crate::report::extra::{BATCH, ExtraCost};
use crate::report::figures::Figures;
use crate::session::Session;
use crate::target::TargetServer;
use crate::target::measure::{Meter, Usage};

/// The index of the first pod: higher than those of all other scenarios.
const FIRST: usize = 90_000;

/// How a watcher selects its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum SelectBy {
    /// A label that only its pod has
    Label,
    /// spec.nodeName, as a kubelet does
    Node,
    /// A namespace that only its pod is in
    Namespace,
}

/// One case of selective fan-out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SelectiveCase {
    pub(crate) by: SelectBy,
    pub(crate) watchers: usize,
    pub(crate) writes: usize,
}

impl SelectiveCase {
    pub(crate) async fn run(self, session: &mut Session) -> Result<()> {
        // Fresh servers: the cleanup after earlier watchers would count as the cost of these.
        session.fresh().await?;
        let twin = session.twin().await?;
        session.each(async |target| self.prepare(target).await).await?;
        if let Some(twin) = &twin {
            self.prepare(twin).await?;
        }
        let mode = match self.by {
            SelectBy::Label => "label",
            SelectBy::Node => "node",
            SelectBy::Namespace => "namespace",
        };
        let case = Case::new("selective", mode, "writes").sized("watchers", self.watchers);
        let once = async |target: &TargetServer, _| match twin.as_ref().filter(|_| target.is_own())
        {
            Some(twin) => self.alternately(target, twin).await,
            None => self.one_after_the_other(target).await,
        };
        session.measure(case, once).await
    }

    /// The number of pods: only those that receive writes are created.
    fn pods(self) -> usize {
        self.watchers.min(self.writes)
    }

    async fn prepare(self, target: &TargetServer) -> Result<()> {
        fan_out::prepare_target(target).await?;
        if self.by == SelectBy::Namespace {
            make_own_namespaces(target, self.watchers).await?;
        }
        // Server-side apply creates the missing ones; those of an earlier case stay unchanged.
        let make = move |watcher| self.request(Method::PATCH, watcher);
        load(&target.endpoint, 4, self.pods(), make).await.map(drop)
    }

    /// The cost of the writes with watchers, minus their cost without: first all without, then all
    /// with.
    async fn one_after_the_other(self, target: &TargetServer) -> Result<Figures> {
        let (_, alone) = self.write(target).await?;
        let readers = self.watch(target).await?;
        let (written, watched) = self.write(target).await?;
        self.check(readers, &written).await?;
        let extra = watched.cpu.zip(alone.cpu).map(|(with, without)| with.saturating_sub(without));
        Ok(Figures::per_unit(self.writes, Usage { cpu: extra, ..watched }))
    }

    /// The same, alternately on two servers that differ only in the watchers.
    async fn alternately(self, target: &TargetServer, twin: &TargetServer) -> Result<Figures> {
        let readers = self.watch(target).await?;
        let mut with = Connection::open(&target.endpoint).await?;
        let mut without = Connection::open(&twin.endpoint).await?;
        let (mut written, mut extra) = (Vec::new(), ExtraCost::default());
        for first in (0..self.writes).step_by(BATCH) {
            let turns = first..self.writes.min(first + BATCH);
            let (_, alone) = self.batch(twin, &mut without, turns.clone()).await?;
            let (revisions, watched) = self.batch(target, &mut with, turns.clone()).await?;
            extra.add(turns.len(), alone, watched)?;
            written.extend(revisions);
        }
        self.check(readers, &written).await?;
        Ok(extra.figures())
    }

    /// Sends a batch of writes, one after the other.
    async fn batch(
        self,
        target: &TargetServer,
        connection: &mut Connection,
        turns: Range<usize>,
    ) -> Result<(Vec<u64>, Usage)> {
        let meter = Meter::start(target).await;
        let mut revisions = Vec::with_capacity(turns.len());
        for turn in turns {
            revisions
                .push(send(connection, self.request(Method::PUT, turn % self.watchers)).await?);
        }
        Ok((revisions, meter.stop().await))
    }

    async fn watch(self, target: &TargetServer) -> Result<Readers> {
        let from = now(&target.endpoint).await?;
        let path = move |watcher| self.path(watcher, from);
        let streams = open(&target.endpoint, self.watchers, Protocol::Http1, path).await?;
        Ok(Readers::start(streams, false, |watcher| self.turns(watcher).count()))
    }

    /// Fails unless each watcher received exactly its own events.
    async fn check(self, readers: Readers, written: &[u64]) -> Result<()> {
        let expected = self.expected(written)?;
        readers.finish(|watcher| &expected[watcher]).await.map(drop)
    }

    /// The writes that are for a watcher.
    fn turns(self, watcher: usize) -> impl Iterator<Item = usize> {
        (watcher..self.writes).step_by(self.watchers)
    }

    fn expected(self, written: &[u64]) -> Result<Vec<ExpectedEvents>> {
        let of =
            |watcher| ExpectedEvents::of(self.turns(watcher).map(|turn| written[turn]).collect());
        Ok((0..self.watchers).map(of).collect::<Result<_, _>>()?)
    }

    /// Updates pods one after the other, so that revisions are in the order of the writes.
    async fn write(self, target: &TargetServer) -> Result<(Vec<u64>, Usage)> {
        let meter = Meter::start(target).await;
        let work = move |turn: usize| self.request(Method::PUT, turn % self.watchers);
        let done = load(&target.endpoint, 1, self.writes, work).await?;
        Ok((done.revisions(), meter.stop().await))
    }

    fn request(self, method: Method, watcher: usize) -> WriteRequest {
        let index = FIRST + watcher;
        let namespace = match self.by {
            SelectBy::Namespace => own_namespace(watcher),
            SelectBy::Label | SelectBy::Node => namespace(index),
        };
        let body = own_pod(watcher, index, &namespace, unused_mark());
        let path = format!("/api/v1/namespaces/{namespace}/pods/{}", pod_name(index));
        let (path, content_type) = match method {
            Method::PATCH => (format!("{path}?fieldManager=bench&force=true"), APPLY),
            _ => (path, JSON),
        };
        WriteRequest { method, path, content_type, body }
    }

    fn path(self, watcher: usize, from: u64) -> String {
        let version = format!("watch=true&resourceVersion={from}");
        match self.by {
            SelectBy::Label => format!("/api/v1/pods?{version}&labelSelector=watcher%3Dw{watcher}"),
            SelectBy::Node => {
                let node = own_node(watcher);
                format!("/api/v1/pods?{version}&fieldSelector=spec.nodeName%3D{node}")
            }
            SelectBy::Namespace => {
                format!("/api/v1/namespaces/{}/pods?{version}", own_namespace(watcher))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_write_is_for_one_watcher() {
        let case = SelectiveCase { by: SelectBy::Label, watchers: 7, writes: 100 };
        let mut turns: Vec<usize> = (0..7).flat_map(|watcher| case.turns(watcher)).collect();
        turns.sort_unstable();
        assert_eq!(turns, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn watchers_without_a_write_expect_no_event() {
        let case = SelectiveCase { by: SelectBy::Node, watchers: 7, writes: 3 };
        assert_eq!(case.turns(5).count(), 0);
        assert_eq!(case.expected(&[11, 12, 13]).unwrap().len(), 7);
    }
}
