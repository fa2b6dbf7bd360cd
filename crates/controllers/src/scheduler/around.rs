//! What the pods that are placed already mean for one that is not: spreading, nearness, distance.
//!
//! Looked up once for each pod to be placed, so that asking for each room is a few lookups.

use std::collections::{BTreeMap, BTreeSet};

use super::ask::{Ask, Spread, Term};
use super::cache::{Cache, Room};
use super::filter;
use super::reason::Reason;

/// What the pods around mean for one pod.
#[derive(Debug, Default)]
pub(crate) struct Around {
    spread: Vec<Domains>,
    near: Option<Near>,
    /// Places that pods of whom this one keeps away are in.
    apart: BTreeSet<Spot>,
    /// Places that pods which keep this one away are in.
    kept_out: BTreeSet<Spot>,
    /// What wishes are worth, by place.
    wishes: BTreeMap<Spot, i64>,
}

/// A topology key and one of its values: a zone, a host.
type Spot = (String, String);

/// How many pods are in each domain of a spread constraint.
#[derive(Debug)]
struct Domains {
    topology: String,
    is_hard: bool,
    skew_max: i64,
    /// One if the pod counts itself.
    own: i64,
    counts: BTreeMap<String, i64>,
    least: i64,
}

/// Where the pods are that this one wants to be near to.
#[derive(Debug)]
struct Near {
    topologies: Vec<String>,
    spots: BTreeSet<Spot>,
    /// The first of a group that wants to be together may be anywhere.
    is_first: bool,
}

impl Around {
    pub(crate) fn new(ask: &Ask, cache: &Cache) -> Around {
        Around {
            spread: ask.spread.iter().map(|one| Domains::new(one, ask, cache)).collect(),
            near: (!ask.near.is_empty()).then(|| Near::new(ask, cache)),
            apart: spots(&ask.apart, cache),
            kept_out: kept_out(ask, cache),
            wishes: wishes(ask, cache),
        }
    }

    /// Why a room is not possible.
    pub(crate) fn refuses(&self, room: &Room) -> Option<Reason> {
        let spread = self.spread.iter().find_map(|domains| domains.refuses(room));
        spread
            .or_else(|| is_in(&self.kept_out, room).then_some(Reason::ExistingAntiAffinity))
            .or_else(|| is_in(&self.apart, room).then_some(Reason::AntiAffinity))
            .or_else(|| {
                let near = self.near.as_ref()?;
                (!near.allows(room)).then_some(Reason::Affinity)
            })
    }

    /// How many pods of the constraints are in the room's domains already: fewer is better.
    pub(crate) fn crowd(&self, room: &Room) -> i64 {
        let soft = self.spread.iter().filter(|domains| !domains.is_hard);
        soft.map(|domains| domains.count(room).unwrap_or(0)).sum()
    }

    pub(crate) fn wished(&self, room: &Room) -> i64 {
        let here = self.wishes.iter().filter(|((key, value), _)| room.label(key) == Some(value));
        here.map(|(_, weight)| weight).sum()
    }
}

fn is_in(spots: &BTreeSet<Spot>, room: &Room) -> bool {
    spots.iter().any(|(key, value)| room.label(key) == Some(value))
}

/// Every pod that is placed and not about to go, with its room.
fn placed(cache: &Cache) -> impl Iterator<Item = (&Ask, &Room)> {
    let all = cache.rooms().flat_map(|room| room.pods.values().map(move |ask| (&**ask, room)));
    all.filter(|(ask, _)| !ask.pod.is_deleting())
}

fn spot(topology: &str, room: &Room) -> Option<Spot> {
    Some((topology.to_owned(), room.label(topology)?.to_owned()))
}

fn spots(terms: &[Term], cache: &Cache) -> BTreeSet<Spot> {
    if terms.is_empty() {
        return BTreeSet::new();
    }
    let mut spots = BTreeSet::new();
    for (other, room) in placed(cache) {
        let meant = terms.iter().filter(|term| term.means(&other.pod));
        spots.extend(meant.filter_map(|term| spot(&term.topology, room)));
    }
    spots
}

fn kept_out(ask: &Ask, cache: &Cache) -> BTreeSet<Spot> {
    let mut out = BTreeSet::new();
    for (other, room) in cache.distant() {
        let meant = other.apart.iter().filter(|term| term.means(&ask.pod));
        out.extend(meant.filter_map(|term| spot(&term.topology, room)));
    }
    out
}

fn wishes(ask: &Ask, cache: &Cache) -> BTreeMap<Spot, i64> {
    let mut worth = BTreeMap::new();
    if ask.wishes.is_empty() {
        return worth;
    }
    for (other, room) in placed(cache) {
        for (weight, term) in ask.wishes.iter().filter(|(_, term)| term.means(&other.pod)) {
            if let Some(spot) = spot(&term.topology, room) {
                *worth.entry(spot).or_default() += weight;
            }
        }
    }
    worth
}

impl Near {
    fn new(ask: &Ask, cache: &Cache) -> Near {
        let mut spots = BTreeSet::new();
        let wanted = |other: &Ask| ask.near.iter().all(|term| term.means(&other.pod));
        for (_, room) in placed(cache).filter(|(other, _)| wanted(other)) {
            spots.extend(ask.near.iter().filter_map(|term| spot(&term.topology, room)));
        }
        let topologies = ask.near.iter().map(|term| term.topology.clone()).collect();
        let is_first = spots.is_empty() && wanted(ask);
        Near { topologies, spots, is_first }
    }

    fn allows(&self, room: &Room) -> bool {
        self.topologies.iter().all(|topology| match spot(topology, room) {
            Some(spot) => self.is_first || self.spots.contains(&spot),
            None => false,
        })
    }
}

impl Domains {
    fn new(spread: &Spread, ask: &Ask, cache: &Cache) -> Domains {
        let keys: Vec<&str> = ask
            .spread
            .iter()
            .filter(|one| one.is_hard == spread.is_hard)
            .map(|one| &*one.topology)
            .collect();
        let counts_in = |room: &&Room| {
            keys.iter().all(|key| room.label(key).is_some())
                && (!spread.honors_affinity || filter::selects(&ask.pod, room))
                && (!spread.honors_taints || filter::tolerates_taints(&ask.pod, room))
        };
        let mut counts: BTreeMap<String, i64> = BTreeMap::new();
        for room in cache.rooms().filter(counts_in) {
            let Some(domain) = room.label(&spread.topology) else { continue };
            let here = room.pods.values().filter(|other| {
                other.namespace() == ask.namespace()
                    && !other.pod.is_deleting()
                    && spread.selector.matches(&*other.pod)
            });
            *counts.entry(domain.to_owned()).or_default() += here.count() as i64;
        }
        let least = match counts.len() < spread.domains_min {
            true => 0,
            false => counts.values().min().copied().unwrap_or(0),
        };
        Domains {
            topology: spread.topology.clone(),
            is_hard: spread.is_hard,
            skew_max: spread.skew_max,
            own: i64::from(spread.selector.matches(&*ask.pod)),
            counts,
            least,
        }
    }

    fn count(&self, room: &Room) -> Option<i64> {
        self.counts.get(room.label(&self.topology)?).copied()
    }

    fn refuses(&self, room: &Room) -> Option<Reason> {
        if !self.is_hard {
            return None;
        }
        if room.label(&self.topology).is_none() {
            return Some(Reason::SpreadLabel);
        }
        let there = self.count(room).unwrap_or(0);
        (there + self.own - self.least > self.skew_max).then_some(Reason::Spread)
    }
}
