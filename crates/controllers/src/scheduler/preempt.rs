//! Preemption: whom a more important pod may push out, and where that hurts least.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::around::Around;
use super::ask::Ask;
use super::cache::{Cache, Room};
use super::filter;
use super::reason::{Reason, sentence};

/// A room, and the pods that must leave it.
#[derive(Debug)]
pub(crate) struct Preemption {
    pub(crate) room: String,
    pub(crate) victims: Vec<Arc<Ask>>,
    /// How many of them leave against a disruption budget.
    broken: usize,
}

/// The least painful preemption, or the sentence that says why there is none.
pub(crate) fn find(
    ask: &Ask,
    cache: &Cache,
    around: &Around,
    why: &BTreeMap<String, Vec<Reason>>,
) -> Result<Preemption, String> {
    if ask.pod.spec.preemption_policy.as_deref() == Some("Never") {
        return Err("not eligible due to preemptionPolicy=Never.".to_owned());
    }
    if waits_for_leavers(ask, cache) {
        return Err("not eligible due to a terminating pod on the nominated node.".to_owned());
    }
    let hopeful = |room: &&Room| {
        let reasons = why.get(room.name()).map_or(&[] as &[Reason], Vec::as_slice);
        !reasons.is_empty() && reasons.iter().all(Reason::is_resolvable)
    };
    let hopeful: Vec<&Room> = cache.rooms().filter(hopeful).collect();
    let found = hopeful.iter().filter_map(|room| victims(ask, room, cache, around));
    found.min_by_key(Preemption::pain).ok_or_else(|| {
        let total = cache.rooms().count();
        let (unhelpful, without) = (total - hopeful.len(), hopeful.len());
        let reasons: [(&dyn std::fmt::Display, usize); 2] = [
            (&"Preemption is not helpful for scheduling", unhelpful),
            (&"No preemption victims found for incoming pod", without),
        ];
        sentence(total, reasons.into_iter().filter(|(_, count)| *count > 0))
    })
}

/// Whether somebody less important is leaving the room already that this pod was promised.
fn waits_for_leavers(ask: &Ask, cache: &Cache) -> bool {
    let promised = ask.pod.status.nominated_node_name.as_deref();
    let Some(room) = promised.and_then(|name| cache.room(name)) else { return false };
    room.pods.values().any(|other| other.pod.is_deleting() && other.priority < ask.priority)
}

/// The pods that must leave a room: as few and as unimportant as possible, and such as no budget
/// protects if that can be.
fn victims(ask: &Ask, room: &Room, cache: &Cache, around: &Around) -> Option<Preemption> {
    let lesser = |other: &Ask| other.priority < ask.priority;
    if !room.pods.values().any(|other| lesser(other)) {
        return None;
    }
    let mut emptied = room.without(lesser);
    if !filter::lacks(ask, &emptied, cache).is_empty() || around.refuses(room).is_some() {
        return None;
    }
    let mut candidates: Vec<&Arc<Ask>> = room.pods.values().filter(|other| lesser(other)).collect();
    // The most important ones are the first that may stay; of equals, those that run longest.
    candidates.sort_by_key(|other| (Reverse(other.priority), started(other)));
    let protected = cache.budgets.broken_by(&candidates);
    let mut candidates: Vec<_> = candidates.into_iter().zip(protected).collect();
    // Those that a budget protects are asked to stay before all others.
    candidates.sort_by_key(|(_, protected)| !protected);
    let (mut victims, mut broken) = (Vec::new(), 0);
    for (other, protected) in candidates {
        emptied.with(other);
        if !filter::lacks(ask, &emptied, cache).is_empty() {
            emptied.again_without(&other.key);
            broken += usize::from(protected);
            victims.push(Arc::clone(other));
        }
    }
    let room = room.name().to_owned();
    (!victims.is_empty()).then_some(Preemption { room, victims, broken })
}

fn started(ask: &Ask) -> Option<jiff::Timestamp> {
    ask.pod.status.start_time.as_ref().map(|time| time.0)
}

impl Preemption {
    /// Less is better: budgets that are broken, the most important victim, then all together, then
    /// how many, then those that started last.
    fn pain(&self) -> (usize, i32, i64, usize, Reverse<Option<jiff::Timestamp>>) {
        let most = self.victims.iter().map(|victim| victim.priority).max().unwrap_or(i32::MIN);
        let all = self.victims.iter().map(|victim| i64::from(victim.priority)).sum();
        let first = self.victims.iter().filter_map(|victim| started(victim)).min();
        (self.broken, most, all, self.victims.len(), Reverse(first))
    }
}
