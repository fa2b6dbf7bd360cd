//! The load of simulated containers: what they use of CPU and memory, by rule.
//!
//! River: pods and the time → **load** → metrics.
//! Promise: pure; the same pods and time give the same usage.

use std::collections::BTreeMap;
use std::f64::consts::TAU;
use std::time::Duration;

use headwater_api::fnv;
use headwater_api::quantity::Quantity;
use jiff::Timestamp;

use crate::pod::{Container, Pod};
use crate::time::parse;

/// The pod annotation with the CPU of each container: `250m`, or `sine 100m..900m 2m`; a part
/// ` noise 10%` may follow.
pub const CPU: &str = "headwater.dev/cpu";
/// As [`CPU`], but shared by all running pods of the same controller.
pub const CPU_TOTAL: &str = "headwater.dev/cpu-total";
/// The pod annotation with the memory of each container, in the form of [`CPU`].
pub const MEMORY: &str = "headwater.dev/memory";

/// What a container uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContainerLoad {
    /// Thousandths of a CPU.
    pub cpu_millis: u64,
    /// Bytes of memory.
    pub memory_bytes: u64,
}

/// A pod with what its containers use.
#[derive(Clone, Debug, PartialEq)]
pub struct PodLoad {
    /// The pod.
    pub pod: Pod,
    /// Each container with its load.
    pub containers: Vec<(String, ContainerLoad)>,
}

/// A curve over time: amounts in billionths.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LoadCurve {
    low: f64,
    high: f64,
    /// `None` for a constant.
    period: Option<Duration>,
    /// The part by which the amount varies from step to step.
    noise: f64,
}

impl LoadCurve {
    /// Parses `250m`, `sine 100m..900m 2m`, each with an optional ` noise 10%`.
    pub(crate) fn parse(text: &str) -> Option<LoadCurve> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let (words, noise) = match words.as_slice() {
            [words @ .., "noise", part] => {
                (words, part.strip_suffix('%')?.parse::<f64>().ok()? / 100.0)
            }
            words => (words, 0.0),
        };
        if !(0.0..=1.0).contains(&noise) {
            return None;
        }
        let amount = |text: &str| {
            let amount = Quantity::parse(text).ok().filter(|it| !it.is_negative())?;
            Some(amount.nano() as f64)
        };
        match words {
            [constant] => {
                let amount = amount(constant)?;
                Some(LoadCurve { low: amount, high: amount, period: None, noise })
            }
            ["sine", range, period] => {
                let (low, high) = range.split_once("..")?;
                let period = parse(period).filter(|period| !period.is_zero())?;
                let (low, high) = (amount(low)?, amount(high)?);
                Some(LoadCurve { low, high, period: Some(period), noise })
            }
            _ => None,
        }
    }

    /// The amount at a time, in billionths. `salt` tells apart the noise of different pods.
    fn at(&self, now: Timestamp, salt: &str) -> f64 {
        let seconds = now.as_millisecond() as f64 / 1_000.0;
        let phase =
            self.period.map_or(0.0, |period| (seconds / period.as_secs_f64()).fract() * TAU);
        let part = if self.period.is_some() { (1.0 - phase.cos()) / 2.0 } else { 0.0 };
        let amount = self.low + (self.high - self.low) * part;
        let hash = fnv::hash(format!("{salt}{}", now.as_second()).as_bytes());
        let random = (hash >> 11) as f64 / (1_u64 << 53) as f64; // from 0 to 1
        amount * (1.0 + self.noise * (2.0 * random - 1.0))
    }
}

/// Without an annotation a container uses these parts of its requests, or these amounts.
const CPU_PART: f64 = 0.1;
const MEMORY_PART: f64 = 0.5;
const CPU_USUAL: f64 = 0.005;
const MEMORY_USUAL: f64 = 32.0 * 1_048_576.0;
const NOISE_USUAL: f64 = 0.05;
const NANO: f64 = 1e9;

/// What the running pods among these use.
pub fn loads(pods: Vec<Pod>, now: Timestamp) -> Vec<PodLoad> {
    let runs = |pod: &Pod| pod.phase() == "Running" && !pod.is_deleting() && pod.node().is_some();
    let running: Vec<Pod> = pods.into_iter().filter(runs).collect();
    let mut siblings: BTreeMap<String, usize> = BTreeMap::new();
    for pod in &running {
        *siblings.entry(group(pod)).or_default() += 1;
    }
    let load = |pod: Pod| {
        let share = siblings.get(&group(&pod)).copied().unwrap_or(1);
        let containers = pod.spec.containers.iter();
        let loads = containers.map(|one| (one.name.clone(), container(&pod, one, share, now)));
        PodLoad { containers: loads.collect(), pod }
    };
    running.into_iter().map(load).collect()
}

/// The pods that share a load: those of a Deployment, over all its ReplicaSets, or of a controller.
fn group(pod: &Pod) -> String {
    let owners = pod.metadata.owner_references.iter().flatten();
    let mut owner = owners.filter(|owner| owner.controller == Some(true)).map(|owner| {
        let hash = pod.metadata.labels.as_ref().and_then(|labels| labels.get("pod-template-hash"));
        let name = hash.and_then(|hash| owner.name.strip_suffix(hash.as_str()));
        name.unwrap_or(&owner.name)
    });
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let own = pod.metadata.name.as_deref().unwrap_or_default();
    format!("{namespace}/{}", owner.next().unwrap_or(own))
}

fn container(pod: &Pod, one: &Container, share: usize, now: Timestamp) -> ContainerLoad {
    let curve = |name: &str| pod.annotation(name).and_then(LoadCurve::parse);
    let request = |resource: &str| {
        let amount = one.resources.requests.get(resource)?;
        Quantity::parse(&amount.0).ok().map(|amount| amount.nano() as f64)
    };
    let usual =
        |amount: f64| LoadCurve { low: amount, high: amount, period: None, noise: NOISE_USUAL };
    let salt = format!("{}/{}", pod.metadata.uid.as_deref().unwrap_or_default(), one.name);
    let total = || {
        let containers = share.saturating_mul(pod.spec.containers.len().max(1)).max(1);
        let together = curve(CPU_TOTAL)?;
        Some(together.at(now, &group(pod)) / containers as f64)
    };
    let cpu = curve(CPU).map(|curve| curve.at(now, &salt)).or_else(total).unwrap_or_else(|| {
        let amount = request("cpu").map_or(CPU_USUAL * NANO, |request| request * CPU_PART);
        usual(amount).at(now, &salt)
    });
    let memory = curve(MEMORY).unwrap_or_else(|| {
        let amount = request("memory").map_or(MEMORY_USUAL * NANO, |request| request * MEMORY_PART);
        usual(amount)
    });
    ContainerLoad {
        cpu_millis: (cpu / NANO * 1_000.0).round() as u64,
        memory_bytes: (memory.at(now, &salt) / NANO).round() as u64,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, annotations: Value) -> Pod {
        let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-x", "uid": "rs", "controller": true});
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "shop", "uid": name, "annotations": annotations,
                "labels": {"pod-template-hash": "x"}, "ownerReferences": [owner]},
            "spec": {"nodeName": "n", "containers": [{"name": "c",
                "resources": {"requests": {"cpu": "500m", "memory": "100Mi"}}}]},
            "status": {"phase": "Running"},
        }))
        .unwrap()
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn cpu(pods: Vec<Pod>, seconds: i64) -> Vec<u64> {
        loads(pods, at(seconds)).iter().map(|pod| pod.containers[0].1.cpu_millis).collect()
    }

    #[test]
    fn a_sine_goes_from_its_low_to_its_high_and_back() {
        let sine = json!({CPU: "sine 100m..900m 2m"});
        for (seconds, expected) in [(0, 100), (30, 500), (60, 900), (90, 500), (120, 100)] {
            assert_eq!(cpu(vec![pod("a", sine.clone())], seconds), [expected], "{seconds} s");
        }
        assert_eq!(cpu(vec![pod("a", json!({CPU: "250m"}))], 7), [250]);
    }

    #[test]
    fn a_total_is_shared_by_the_running_pods() {
        let total = json!({CPU_TOTAL: "900m"});
        let mut ended = pod("d", total.clone());
        ended.status.phase = Some("Succeeded".to_owned());
        let pods = vec![pod("a", total.clone()), pod("b", total.clone()), pod("c", total), ended];
        assert_eq!(cpu(pods, 0), [300, 300, 300]);
    }

    #[test]
    fn noise_is_bounded_and_repeatable() {
        let noisy = json!({CPU: "1 noise 10%"});
        let seen: Vec<u64> =
            (0..50).flat_map(|second| cpu(vec![pod("a", noisy.clone())], second)).collect();
        assert!(seen.iter().all(|cpu| (900..=1100).contains(cpu)), "{seen:?}");
        assert!(seen.iter().any(|cpu| *cpu != seen[0]));
        assert_eq!(cpu(vec![pod("a", noisy.clone())], 3), cpu(vec![pod("a", noisy)], 3));
    }

    #[test]
    fn without_a_rule_a_container_uses_a_part_of_its_requests() {
        let load = &loads(vec![pod("a", json!({}))], at(0))[0].containers[0].1;
        assert!((47..=53).contains(&load.cpu_millis), "{load:?}");
        assert!((49_800_000..=55_100_000).contains(&load.memory_bytes), "{load:?}");
    }

    #[test]
    fn unreadable_curves_are_refused() {
        for text in
            ["", "fast", "sine 1..2", "sine 2 1m", "-1", "1 noise 200%", "sine 1..2 0s", "1 noise"]
        {
            assert_eq!(LoadCurve::parse(text), None, "{text}");
        }
    }
}
