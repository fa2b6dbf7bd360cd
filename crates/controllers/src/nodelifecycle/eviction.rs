//! When a pod must leave a node with `NoExecute` taints.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Taint, Toleration};

use crate::time;
use crate::toleration::tolerates;

/// When a pod is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EvictionTime {
    Never,
    At(Timestamp),
}

/// When the pod's tolerations expire; only `NoExecute` taints evict pods.
pub(super) fn eviction_time(
    taints: &[Taint],
    tolerations: &[Toleration],
    now: Timestamp,
) -> EvictionTime {
    let mut end: Option<Timestamp> = None;
    for taint in taints.iter().filter(|taint| taint.effect == "NoExecute") {
        let since = taint.time_added.as_ref().map_or(now, |time| time.0);
        let holding = tolerations.iter().filter(|toleration| tolerates(toleration, taint));
        let seconds: Vec<Option<i64>> = holding.map(|it| it.toleration_seconds).collect();
        let until = match seconds.iter().flatten().min() {
            _ if seconds.is_empty() => now,
            None => continue,
            Some(seconds) => time::after(since, (*seconds).max(0)),
        };
        end = Some(end.map_or(until, |end| end.min(until)));
    }
    end.map_or(EvictionTime::Never, EvictionTime::At)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check(taints: Value, tolerations: Value, expected: Option<i64>) {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let taints: Vec<Taint> = serde_json::from_value(taints).unwrap();
        let tolerations: Vec<Toleration> = serde_json::from_value(tolerations).unwrap();
        let now = time::after(start, 100);
        let expected = expected
            .map_or(EvictionTime::Never, |seconds| EvictionTime::At(time::after(start, seconds)));
        assert_eq!(eviction_time(&taints, &tolerations, now), expected);
    }

    #[test]
    fn a_pod_is_evicted_when_its_shortest_toleration_expires() {
        let dead =
            json!([{"key": "dead", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}]);
        let two = json!([
            {"key": "dead", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"},
            {"key": "slow", "value": "very", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:50Z"},
        ]);
        let schedule = json!([{"key": "dead", "effect": "NoSchedule"}]);
        check(json!([]), json!([]), None);
        check(schedule, json!([]), None);
        check(dead.clone(), json!([]), Some(100));
        check(dead.clone(), json!([{"operator": "Exists"}]), None);
        check(dead.clone(), json!([{"key": "dead", "operator": "Exists"}]), None);
        check(dead.clone(), json!([{"key": "other", "operator": "Exists"}]), Some(100));
        let seconds = |seconds: i64| json!([{"key": "dead", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}]);
        check(dead.clone(), seconds(300), Some(300));
        check(dead.clone(), seconds(0), Some(0));
        check(dead.clone(), seconds(-5), Some(0));
        let mixed = json!([
            {"key": "dead", "operator": "Exists"},
            {"key": "dead", "operator": "Exists", "tolerationSeconds": 20},
        ]);
        check(dead, mixed, Some(20));
        let equal = json!([
            {"key": "dead", "operator": "Exists"},
            {"key": "slow", "operator": "Equal", "value": "very", "tolerationSeconds": 10},
        ]);
        check(two.clone(), equal, Some(60));
        check(two, json!([{"key": "dead", "operator": "Exists"}]), Some(100));
    }
}
