//! Where a pod fits best, of the rooms it fits into.
//!
//! Every measure gives 0 to 100; the weights are those of Kubernetes' default profile.

use super::around::Around;
use super::ask::Ask;
use super::cache::Room;
use super::filter;

const MAX: f64 = 100.0;

/// The best room; of equals the first, so whoever calls in turns spreads.
pub(crate) fn best<'a>(ask: &Ask, rooms: &[&'a Room], around: &Around) -> Option<&'a Room> {
    let scores = scores(ask, rooms, around);
    let mut best: Option<(f64, &Room)> = None;
    for (score, room) in scores.into_iter().zip(rooms) {
        if best.is_none_or(|(known, _)| score > known) {
            best = Some((score, room));
        }
    }
    best.map(|(_, room)| room)
}

/// What a room is worth in some respect; only the differences count.
type Measure<'a> = &'a dyn Fn(&Room) -> i64;

fn scores(ask: &Ask, rooms: &[&Room], around: &Around) -> Vec<f64> {
    let owner = ask.pod.controller_uid();
    let crowd = |room: &Room| {
        let siblings = owner.map_or(0, |owner| room.owned_by(owner)) as i64;
        -(siblings + around.crowd(room))
    };
    let measures: [(f64, Measure<'_>); 4] = [
        (2.0, &crowd),
        (2.0, &|room| filter::preference(&ask.pod, room)),
        (2.0, &|room| around.wished(room)),
        (3.0, &|room| -(filter::disliked_taints(&ask.pod, room) as i64)),
    ];
    let mut scores: Vec<f64> =
        rooms.iter().map(|room| least_allocated(ask, room) + balanced(ask, room)).collect();
    for (weight, measure) in measures {
        let values: Vec<i64> = rooms.iter().map(|room| measure(room)).collect();
        add_normalized(&mut scores, &values, weight);
    }
    scores
}

/// The largest value is worth 100, the smallest nothing; if all are equal it decides nothing.
fn add_normalized(scores: &mut [f64], values: &[i64], weight: f64) {
    let (Some(low), Some(high)) = (values.iter().min(), values.iter().max()) else { return };
    if low == high {
        return;
    }
    for (score, value) in scores.iter_mut().zip(values) {
        *score += weight * MAX * (value - low) as f64 / (high - low) as f64;
    }
}

/// The parts of CPU and memory that would be in use.
fn fractions(ask: &Ask, room: &Room) -> (f64, f64) {
    let part = |used: i64, more: i64, have: i64| match have {
        0 => 1.0,
        have => ((used + more) as f64 / have as f64).min(1.0),
    };
    (
        part(room.counted.0, ask.counted.0, room.have.cpu),
        part(room.counted.1, ask.counted.1, room.have.memory),
    )
}

fn least_allocated(ask: &Ask, room: &Room) -> f64 {
    let (cpu, memory) = fractions(ask, room);
    MAX * (2.0 - cpu - memory) / 2.0
}

/// Nothing is gained by a room whose memory is full while its CPU is idle.
fn balanced(ask: &Ask, room: &Room) -> f64 {
    let (cpu, memory) = fractions(ask, room);
    MAX * (1.0 - (cpu - memory).abs() / 2.0)
}
