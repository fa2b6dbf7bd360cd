//! Requests in flight: what runs and what waits in each priority level, and how much.
//!
//! River: levels → **in flight** → live resources. Without fairness nothing is known of single
//! requests, and the list is empty.

use std::time::Duration;

use super::level::{LevelWork, RequestDetails};
use super::queues::{Discipline, Width};
use super::{FlowControl, Nanos};
use crate::lock::lock;
use crate::request::flow::classify::Flow;

/// One request that runs or waits.
pub(crate) struct RequestInFlight {
    /// Unique while it is in flight.
    pub(crate) name: String,
    pub(crate) level: String,
    pub(crate) schema: String,
    pub(crate) user: String,
    pub(crate) verb: &'static str,
    pub(crate) path: String,
    pub(crate) seats: u32,
    pub(crate) is_waiting: bool,
    /// How long it runs or waits.
    pub(crate) since: Duration,
}

/// A priority level at work.
pub(crate) struct LevelReport {
    pub(crate) name: String,
    /// The seats that its requests share; `None` if it has no limit.
    pub(crate) seats: Option<u32>,
    pub(crate) running: u64,
    pub(crate) waiting: u64,
    /// Requests since the start.
    pub(crate) dispatched: u64,
    pub(crate) rejected: u64,
}

impl FlowControl {
    /// All levels, by name; empty without fairness.
    pub(crate) fn report(&self) -> Vec<LevelReport> {
        let known = lock(&self.known);
        let levels = known.by_name.iter().map(|(name, level)| {
            let work = level.work();
            let is_exempt = matches!(work.settings.discipline, Discipline::Exempt);
            LevelReport {
                name: name.clone(),
                seats: (!is_exempt).then(|| work.queues.limit()),
                running: work.queues.running() as u64,
                waiting: work.queues.waiting() as u64,
                dispatched: work.tally.dispatched,
                rejected: work.tally.rejected,
            }
        });
        levels.collect()
    }

    /// The requests in flight, at most `limit`.
    pub(crate) fn in_flight(&self, limit: usize) -> Vec<RequestInFlight> {
        let mut found = Vec::new();
        for (name, level) in &lock(&self.known).by_name {
            let work = level.work();
            collect(name, &work, level.now(), limit, &mut found);
        }
        found
    }
}

fn collect(
    level: &str,
    work: &LevelWork,
    now: Nanos,
    limit: usize,
    found: &mut Vec<RequestInFlight>,
) {
    let describe =
        |name, flow: &Flow, details: &RequestDetails, width: Width, at: Nanos| RequestInFlight {
            name,
            level: level.to_owned(),
            schema: flow.schema.clone(),
            user: details.identity.user.clone(),
            verb: details.verb.as_str(),
            path: details.uri.path().to_owned(),
            seats: width.seats,
            is_waiting: false,
            since: Duration::from_nanos(now.saturating_sub(at)),
        };
    for (number, running) in work.running.iter().take(limit.saturating_sub(found.len())) {
        let (details, width) = (&running.details, running.seated.width);
        let name = format!("{level}-{number}");
        found.push(describe(name, &running.flow, details, width, running.began));
    }
    for queue in work.queues.report() {
        for (at, (ticket, width, arrived)) in queue.waiting().enumerate() {
            let Some(waiting) = work.waiting.get(&ticket) else { continue };
            if found.len() >= limit {
                return;
            }
            let name = format!("{level}-waiting-{}-{at}", queue.index);
            let described = describe(name, &waiting.flow, &waiting.details, width, arrived);
            found.push(RequestInFlight { is_waiting: true, ..described });
        }
    }
}
