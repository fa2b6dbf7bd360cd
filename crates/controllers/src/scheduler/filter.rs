//! Where a pod fits: one room and one pod, yes or why not.

use k8s_openapi::api::core::v1 as core;

use super::around::Around;
use super::ask::Ask;
use super::cache::{Cache, Room};
use super::reason::Reason;
use crate::pod::Pod;

/// Why the pod does not fit into the room; nothing if it does.
pub(crate) fn reasons(ask: &Ask, room: &Room, around: &Around, cache: &Cache) -> Vec<Reason> {
    if let Some(reason) = node_refuses(&ask.pod, room) {
        return vec![reason];
    }
    let full = lacks(ask, room, cache);
    if !full.is_empty() {
        return full;
    }
    around.refuses(room).into_iter().collect()
}

/// What no leaving pod can change.
pub(crate) fn node_refuses(pod: &Pod, room: &Room) -> Option<Reason> {
    match () {
        () if is_closed(room) && !tolerates_closed(pod) => Some(Reason::Unschedulable),
        () if !tolerates_taints(pod, room) => Some(Reason::Taint),
        () if !selects(pod, room) => Some(Reason::NodeAffinity),
        () => None,
    }
}

/// What is missing in the room; pods of at least the same priority that were promised a place in
/// it count as if they were there.
pub(crate) fn lacks(ask: &Ask, room: &Room, cache: &Cache) -> Vec<Reason> {
    let mut reasons = Vec::new();
    if ask.ports.iter().any(|port| room.takes(port)) {
        return vec![Reason::Ports];
    }
    let promised: Vec<_> = match cache.has_nominated() {
        true => cache
            .nominated(room.name())
            .filter(|other| other.priority >= ask.priority && other.key != ask.key)
            .collect(),
        false => Vec::new(),
    };
    if room.pods.len() + promised.len() + 1 > room.pods_max {
        reasons.push(Reason::TooManyPods);
    }
    let insufficient = |used| -> Vec<Reason> {
        let lacking = ask.requests.lacking(&room.have, used);
        lacking.map(|resource| Reason::Insufficient(resource.to_owned())).collect()
    };
    reasons.extend(match promised.is_empty() {
        true => insufficient(&room.used),
        false => {
            let mut used = room.used.clone();
            promised.iter().for_each(|other| used.add(&other.requests));
            insufficient(&used)
        }
    });
    reasons
}

/// The taint of a node that takes no new pods.
const CLOSED: &str = "node.kubernetes.io/unschedulable";

fn spec(room: &Room) -> Option<&core::NodeSpec> {
    room.node.as_ref()?.spec.as_ref()
}

fn is_closed(room: &Room) -> bool {
    spec(room).is_some_and(|spec| spec.unschedulable == Some(true))
}

fn tolerates_closed(pod: &Pod) -> bool {
    let closed =
        core::Taint { key: CLOSED.into(), effect: "NoSchedule".into(), ..core::Taint::default() };
    pod.spec.tolerations.iter().any(|toleration| tolerates(toleration, &closed))
}

pub(crate) fn tolerates_taints(pod: &Pod, room: &Room) -> bool {
    let taints = spec(room).and_then(|spec| spec.taints.as_ref());
    let hard = taints.into_iter().flatten().filter(|taint| taint.effect != "PreferNoSchedule");
    let mut hard = hard.filter(|taint| taint.key != CLOSED || !is_closed(room));
    hard.all(|taint| pod.spec.tolerations.iter().any(|toleration| tolerates(toleration, taint)))
}

/// How many taints the pod would rather not have to live with.
pub(crate) fn disliked_taints(pod: &Pod, room: &Room) -> usize {
    let taints = spec(room).and_then(|spec| spec.taints.as_ref());
    let soft = taints.into_iter().flatten().filter(|taint| taint.effect == "PreferNoSchedule");
    let tolerated =
        |taint: &&core::Taint| pod.spec.tolerations.iter().any(|one| tolerates(one, taint));
    soft.filter(|taint| !tolerated(taint)).count()
}

fn tolerates(toleration: &core::Toleration, taint: &core::Taint) -> bool {
    let key = toleration.key.as_deref().unwrap_or_default();
    let effect = toleration.effect.as_deref().unwrap_or_default();
    let value = || toleration.value.as_deref().unwrap_or_default();
    let same_value = || match toleration.operator.as_deref().unwrap_or("Equal") {
        "Exists" => true,
        _ => value() == taint.value.as_deref().unwrap_or_default(),
    };
    (effect.is_empty() || effect == taint.effect)
        && (key.is_empty() || key == taint.key)
        && same_value()
}

/// Whether the pod's selector and required affinity choose the node.
pub(crate) fn selects(pod: &Pod, room: &Room) -> bool {
    let labels = pod.spec.node_selector.iter();
    let mut labels = labels.map(|(key, value)| room.label(key) == Some(value));
    let affinity = pod.spec.affinity.as_ref().and_then(|all| all.node_affinity.as_ref());
    let required = affinity
        .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref())
        .map(|selector| &selector.node_selector_terms);
    labels.all(|same| same)
        && required.is_none_or(|terms| terms.iter().any(|term| term_selects(term, room)))
}

/// The weight of the preferences that the node meets.
pub(crate) fn preference(pod: &Pod, room: &Room) -> i64 {
    let affinity = pod.spec.affinity.as_ref().and_then(|all| all.node_affinity.as_ref());
    let preferred = affinity.and_then(|affinity| {
        affinity.preferred_during_scheduling_ignored_during_execution.as_ref()
    });
    let met = preferred.into_iter().flatten().filter(|one| term_selects(&one.preference, room));
    met.map(|one| i64::from(one.weight)).sum()
}

/// All requirements of a term; a term without any selects nothing.
fn term_selects(term: &core::NodeSelectorTerm, room: &Room) -> bool {
    let labels = term.match_expressions.iter().flatten();
    let fields = term.match_fields.iter().flatten();
    let is_empty = labels.clone().next().is_none() && fields.clone().next().is_none();
    !is_empty
        && labels.clone().all(|rule| rule_holds(rule, room.label(&rule.key)))
        && fields.clone().all(|rule| {
            let field = (rule.key == "metadata.name").then(|| room.name());
            rule_holds(rule, field)
        })
}

fn rule_holds(rule: &core::NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = rule.values.as_deref().unwrap_or_default();
    let listed = || value.is_some_and(|value| values.iter().any(|one| one == value));
    let number = |text: &str| text.parse::<i64>().ok();
    let compared = |is: fn(&i64, &i64) -> bool| {
        let limit = values.first().and_then(|limit| number(limit));
        value.and_then(number).zip(limit).is_some_and(|(value, limit)| is(&value, &limit))
    };
    match rule.operator.as_str() {
        "In" => listed(),
        "NotIn" => !listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared(i64::gt),
        "Lt" => compared(i64::lt),
        _ => false,
    }
}
