//! The decision about one pod: a room, or why there is none and what may help.

use std::collections::BTreeMap;

use super::around::Around;
use super::ask::Ask;
use super::cache::{Cache, Room};
use super::filter;
use super::preempt::{self, Preemption};
use super::reason::{Happened, Reason, sentence};
use super::score;

/// What is to be done about a pod.
#[derive(Debug)]
pub(crate) enum Decision {
    Bind(String),
    Wait(Unfit),
}

/// A pod that fits nowhere.
#[derive(Debug)]
pub(crate) struct Unfit {
    /// `0/3 nodes are available: …`
    pub(crate) message: String,
    pub(crate) helped_by: Happened,
    pub(crate) preemption: Option<Preemption>,
}

/// So many rooms that fit are enough to choose from; more would cost more than they are worth.
const ENOUGH: usize = 100;

/// Decides about one pod. `last` is the room where the look around ended last time.
pub(crate) fn decide(ask: &Ask, cache: &Cache, last: &mut String) -> Decision {
    let around = Around::new(ask, cache);
    let mut why: BTreeMap<String, Vec<Reason>> = BTreeMap::new();
    let mut fit: Vec<&Room> = Vec::new();
    for room in cache.rooms_after(last) {
        let reasons = filter::reasons(ask, room, &around, cache);
        if !reasons.is_empty() {
            why.insert(room.name().to_owned(), reasons);
            continue;
        }
        fit.push(room);
        if fit.len() == ENOUGH {
            break;
        }
    }
    if let Some(promised) = promised(ask, &fit) {
        return Decision::Bind(promised.name().to_owned());
    }
    match score::best(ask, &fit, &around) {
        Some(best) => {
            *last = best.name().to_owned();
            Decision::Bind(best.name().to_owned())
        }
        None => Decision::Wait(unfit(ask, cache, &around, &why)),
    }
}

/// The room that others left for this pod.
fn promised<'a>(ask: &Ask, fit: &[&'a Room]) -> Option<&'a Room> {
    let name = ask.pod.status.nominated_node_name.as_deref()?;
    fit.iter().copied().find(|room| room.name() == name)
}

fn unfit(ask: &Ask, cache: &Cache, around: &Around, why: &BTreeMap<String, Vec<Reason>>) -> Unfit {
    if why.is_empty() {
        let message = "no nodes available to schedule pods".to_owned();
        return Unfit { message, helped_by: Happened::NODE, preemption: None };
    }
    let mut counts: BTreeMap<&Reason, usize> = BTreeMap::new();
    why.values().flatten().for_each(|reason| *counts.entry(reason).or_default() += 1);
    let helped_by = counts.keys().fold(Happened::NODE, |all, reason| all | reason.helped_by());
    let reasons = counts.iter().map(|(reason, count)| (*reason as &dyn std::fmt::Display, *count));
    let message = sentence(why.len(), reasons);
    match preempt::find(ask, cache, around, why) {
        Ok(preemption) => Unfit { message, helped_by, preemption: Some(preemption) },
        Err(none) => {
            Unfit { message: format!("{message} preemption: {none}"), helped_by, preemption: None }
        }
    }
}
