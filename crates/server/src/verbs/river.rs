//! The river of this server as a stream of JSON lines: `/debug/headwater/river?watch=1`.
//!
//! River: store, cache, traffic, priority levels → **river** → HTTP. A line has where the store and the
//! cache are, the rates and the slowest requests of each user, and the seats of each priority level.
//! The watchers are a resource of their own, `watchers.headwater.dev`.
//! Promise: nothing is counted while nobody reads; a reader that does not read costs nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::stream;
use headwater_api::Status;
use headwater_json::{Value, json};
use http::StatusCode;
use tokio::time::Instant;

use crate::answer::body::{self, Response};
use crate::answer::status;
use crate::live::traffic::{RecentDurations, TrafficViewer};
use crate::server::Server;

/// The interval of lines.
const LINE_EVERY: Duration = Duration::from_millis(500);
/// The maximum number of users in a line: those with the most requests.
const USERS_SHOWN: usize = 50;
/// The part of the durations that counts in the next line: those of about five seconds.
const KEEP: f32 = 0.8;

/// A line every half second, or one line without `watch`.
pub(crate) fn answer(server: &Server, watch: bool) -> Result<Response, Status> {
    let viewer = server.live().traffic().view();
    let viewer =
        viewer.ok_or_else(|| status::too_many_requests("too many readers of the river"))?;
    let reader = RiverReader {
        server: server.clone(),
        viewer,
        last: Instant::now(),
        users: BTreeMap::new(),
        levels: BTreeMap::new(),
        is_first: true,
    };
    let lines = stream::unfold(reader, move |mut reader| async move {
        if !reader.is_first {
            if !watch {
                return None;
            }
            let stopped = reader.server.draining().clone();
            stopped.run_until_cancelled(tokio::time::sleep(LINE_EVERY)).await?;
        }
        let line = reader.line();
        Some((line, reader))
    });
    Ok(body::answer(StatusCode::OK, "application/json", body::stream(lines)))
}

/// One reader: what it saw last, to tell rates.
struct RiverReader {
    server: Server,
    viewer: TrafficViewer,
    last: Instant,
    users: BTreeMap<Box<str>, UserRates>,
    levels: BTreeMap<String, u64>,
    is_first: bool,
}

#[derive(Default)]
struct UserRates {
    reads: u64,
    writes: u64,
    recent: RecentDurations,
}

impl RiverReader {
    fn line(&mut self) -> String {
        let seconds = self.last.elapsed().as_secs_f64().max(0.001);
        self.last = Instant::now();
        let (users, writes) = self.user_rates(seconds);
        let levels = self.level_rates(seconds);
        self.is_first = false;
        let cache = self.server.cache();
        let condition = cache.store().condition();
        let resources = cache.resources();
        let objects: usize = resources.iter().map(|kind| cache.snapshot(kind).len()).sum();
        let window = resources.iter().map(|kind| kind.window_edge()).max().unwrap_or_default();
        let line = json!({
            "revision": condition.revision.0,
            "applied": cache.applied().0,
            "compacted": condition.compacted.0,
            "windowFrom": window.0,
            "diskBytes": condition.disk_bytes,
            "objects": objects,
            "kinds": resources.len(),
            "watches": self.server.live().watches().count(),
            "writes": writes,
            "users": users,
            "levels": levels,
        });
        format!("{line}\n")
    }

    /// Each user with requests per second, and the writes per second of all.
    fn user_rates(&mut self, seconds: f64) -> (Vec<Value>, f64) {
        let mut rates = Vec::new();
        for (name, traffic) in self.viewer.users() {
            let known = self.users.entry(name.clone()).or_default();
            let reads = per_second(traffic.reads, &mut known.reads, seconds);
            let writes = per_second(traffic.writes, &mut known.writes, seconds);
            known.recent.update(&traffic.durations, KEEP);
            rates.push((name, traffic.level, reads, writes, known.recent.slowest()));
        }
        let all = rates.iter().fold(0.0, |sum, (_, _, _, writes, _)| sum + writes);
        rates.sort_by(|a, b| (b.2 + b.3).total_cmp(&(a.2 + a.3)).then_with(|| a.0.cmp(&b.0)));
        rates.truncate(USERS_SHOWN);
        let described = rates.iter().map(|(user, level, reads, writes, slowest)| {
            json!({
                "user": &**user,
                "level": level.as_str(),
                "reads": *reads,
                "writes": *writes,
                "slowestMillis": *slowest,
            })
        });
        (described.collect(), all)
    }

    fn level_rates(&mut self, seconds: f64) -> Vec<Value> {
        let (is_first, known) = (self.is_first, &mut self.levels);
        let reports = self.server.flow().report();
        let described = reports.into_iter().map(|level| {
            let before = known.entry(level.name.clone()).or_default();
            let rate = per_second(level.dispatched, before, seconds);
            json!({
                "name": level.name.as_str(),
                "seats": level.seats,
                "running": level.running,
                "waiting": level.waiting,
                "rejected": level.rejected,
                "rate": if is_first { 0.0 } else { rate },
            })
        });
        described.collect()
    }
}

fn per_second(now: u64, before: &mut u64, seconds: f64) -> f64 {
    let grown = now.saturating_sub(std::mem::replace(before, now));
    (grown as f64 / seconds * 100.0).round() / 100.0
}
