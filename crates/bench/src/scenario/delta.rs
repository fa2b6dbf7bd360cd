//! `bench fan-out --delta`: routine changes to every watcher, as complete objects and as deltas; the
//! bytes and the CPU of one delivery.

use anyhow::Result;
use clap::ValueEnum;

use super::fan_out::WRITERS;
use crate::connect::Connection;
use crate::load::checker::ExpectedEvents;
use crate::load::routine::{RoutineChange, make_objects};
use crate::load::stream::{Protocol, WatchTarget};
use crate::load::watchers::{Readers, open};
use crate::load::{load, send};
use crate::report::Case;
use crate::report::figures::{Figure, Figures};
use crate::session::Session;
use crate::target::TargetServer;
use crate::target::measure::{Meter, rss};

/// The forms of events: a name, and the media type that a watcher accepts.
const FORMS: [(&str, &str); 4] = [
    ("objects", "application/json"),
    ("deltas", "application/json;delta=v1"),
    ("objects without managed fields", "application/json;drop=metadata.managedFields"),
    ("deltas without managed fields", "application/json;drop=metadata.managedFields;delta=v1"),
];

/// Creates the objects that receive the changes.
pub(crate) async fn prepare(session: &mut Session) -> Result<()> {
    session.fresh().await?;
    session.each(async |target| make_objects(target).await).await
}

/// Measures every change in every form.
pub(crate) async fn run(
    session: &mut Session,
    watchers: usize,
    writes: usize,
    protocol: Protocol,
) -> Result<()> {
    for change in RoutineChange::value_variants() {
        for (form, accept) in FORMS {
            let mode = format!("{}, {form}", change.name());
            let case = Case::new("delta", &mode, "events").sized("watchers", watchers);
            let delta = DeltaCase { change: *change, accept, watchers, writes, protocol };
            session.measure(case, async |target, _| delta.once(target).await).await?;
        }
    }
    Ok(())
}

/// One change in one form.
struct DeltaCase {
    change: RoutineChange,
    accept: &'static str,
    watchers: usize,
    writes: usize,
    protocol: Protocol,
}

impl DeltaCase {
    async fn once(&self, target: &TargetServer) -> Result<Figures> {
        let (endpoint, change) = (&target.endpoint, self.change);
        let mut connection = Connection::open(endpoint).await?;
        let now = send(&mut connection, change.write(0)).await?;
        let path = format!("{}&resourceVersion={now}", change.watch_path());
        let watch = |_| WatchTarget { path: path.clone(), accept: self.accept };
        let streams = open(endpoint, self.watchers, self.protocol, watch).await?;
        let readers = Readers::start(streams, false, |_| self.writes);
        let meter = Meter::start(target).await;
        let done = load(endpoint, WRITERS, self.writes, move |index| change.write(index)).await?;
        let expected = ExpectedEvents::of(done.revisions())?;
        let finished = readers.finish(|_| &expected).await?;
        let used = meter.stop().await;
        let events = self.writes * self.watchers;
        let figures = Figures::per_unit(events, used)
            .with(Figure::Wire, finished.bytes as f64 / events as f64)
            .memory(rss(target).await);
        finished.expect_only(send(&mut connection, change.write(0)).await?).await?;
        Ok(figures)
    }
}
