//! Many concurrent lists: their peak memory.

use std::time::Duration;

use anyhow::Result;
use tokio::task::JoinSet;

use super::ALL;
use crate::connect::Connection;
use crate::load::body::{self, Encoding};
use crate::report::figures::Figures;
use crate::target::TargetServer;
use crate::target::measure::{Meter, rss};

/// Concurrent lists.
const AT_ONCE: usize = 16;
/// The interval between memory samples: short from the kernel, long from `/metrics`.
const SAMPLE_LOCAL: Duration = Duration::from_millis(5);
const SAMPLE_REMOTE: Duration = Duration::from_millis(500);

pub(super) async fn once(target: &TargetServer, objects: usize) -> Result<Figures> {
    let before = rss(target).await;
    let mut lists = JoinSet::new();
    let meter = Meter::start(target).await;
    for _ in 0..AT_ONCE {
        let mut connection = Connection::open(&target.endpoint).await?;
        lists.spawn(async move {
            let read = body::read(&mut connection, ALL, Encoding::Plain).await?;
            read.expect(Encoding::Plain, objects)
        });
    }
    let mut peak = before;
    let interval = if target.pids.is_empty() { SAMPLE_REMOTE } else { SAMPLE_LOCAL };
    let mut ticks = tokio::time::interval(interval);
    while !lists.is_empty() {
        tokio::select! {
            Some(done) = lists.join_next() => done??,
            _ = ticks.tick() => peak = peak.max(rss(target).await),
        }
    }
    let used = meter.stop().await;
    let growth = peak.zip(before).map(|(peak, before)| peak.saturating_sub(before));
    Ok(Figures::per_unit(objects * AT_ONCE, used).memory(growth))
}
