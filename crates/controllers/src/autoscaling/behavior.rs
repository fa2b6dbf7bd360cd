//! How fast replicas may change: stabilization windows and scaling policies.
//!
//! Promise: pure, over a history that is bounded by the longest window.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::autoscaling::v2::{
    HPAScalingPolicy, HPAScalingRules, HorizontalPodAutoscalerSpec,
};

/// The window before replicas are removed, without a rule.
const DOWN_WINDOW: i32 = 300;
/// The longest window or period that the API permits.
const WINDOW_MAX: SignedDuration = SignedDuration::from_secs(3600);

/// What an autoscaler recommended and did lately. It is lost with the process: then the current
/// number counts as the only recommendation, as in Kubernetes.
#[derive(Clone, Debug, Default)]
pub(super) struct ScalingHistory {
    recommendations: Vec<(Timestamp, i32)>,
    changes: Vec<(Timestamp, i32)>,
}

/// The number of replicas, and why it is not the recommended one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LimitedReplicas {
    pub(super) replicas: i32,
    /// The status, reason and message of the condition `ScalingLimited`.
    pub(super) limited: (&'static str, &'static str, &'static str),
    /// Whether an earlier recommendation holds.
    pub(super) is_stabilized: bool,
}

impl ScalingHistory {
    /// Records a change of the number of replicas.
    pub(super) fn changed(&mut self, now: Timestamp, by: i32) {
        self.changes.push((now, by));
    }

    /// Records the recommendation and limits it.
    pub(super) fn limit(
        &mut self,
        spec: &HorizontalPodAutoscalerSpec,
        current: i32,
        recommended: i32,
        now: Timestamp,
    ) -> LimitedReplicas {
        let oldest = now.checked_sub(WINDOW_MAX).unwrap_or(Timestamp::MIN);
        self.recommendations.retain(|(at, _)| *at >= oldest);
        self.changes.retain(|(at, _)| *at >= oldest);
        if self.recommendations.is_empty() {
            self.recommendations.push((now, current));
        }
        self.recommendations.push((now, recommended));
        let (up, down) = rules(spec);
        let stabilized = self.stabilize(current, recommended, (up, down), now);
        let (min, max) = (spec.min_replicas.unwrap_or(1), spec.max_replicas);
        let mut replicas = stabilized;
        let mut limited =
            ("False", "DesiredWithinRange", "the desired count is within the acceptable range");
        if stabilized > current {
            let most = current.max(self.most(current, up, now));
            if stabilized > most.min(max) {
                replicas = most.min(max);
                limited = match most < max {
                    true => (
                        "True",
                        "ScaleUpLimit",
                        "the desired replica count is increasing faster than the maximum scale rate",
                    ),
                    false => TOO_MANY,
                };
            }
        } else if stabilized < current {
            let fewest = current.min(self.fewest(current, down, now));
            if stabilized < fewest.max(min) {
                replicas = fewest.max(min);
                limited = match fewest > min {
                    true => (
                        "True",
                        "ScaleDownLimit",
                        "the desired replica count is decreasing faster than the maximum scale rate",
                    ),
                    false => TOO_FEW,
                };
            }
        } else if recommended > max {
            limited = TOO_MANY;
        } else if recommended < min {
            limited = TOO_FEW;
        }
        let replicas = replicas.clamp(min.min(max), max);
        LimitedReplicas { replicas, limited, is_stabilized: stabilized != recommended }
    }

    /// The lowest recommendation of the window for more replicas, the highest of that for fewer.
    fn stabilize(
        &self,
        current: i32,
        recommended: i32,
        (up, down): (Option<&HPAScalingRules>, Option<&HPAScalingRules>),
        now: Timestamp,
    ) -> i32 {
        let window = |rules: Option<&HPAScalingRules>, usual: i32| {
            let seconds = rules.and_then(|rules| rules.stabilization_window_seconds);
            let window = SignedDuration::from_secs(i64::from(seconds.unwrap_or(usual)));
            now.checked_sub(window).unwrap_or(Timestamp::MIN)
        };
        let since = |start: Timestamp| {
            self.recommendations.iter().filter(move |(at, _)| *at > start).map(|(_, count)| *count)
        };
        let lowest = since(window(up, 0)).min().unwrap_or(recommended).min(recommended);
        let highest =
            since(window(down, DOWN_WINDOW)).max().unwrap_or(recommended).max(recommended);
        match current {
            current if current < lowest => lowest,
            current if current > highest => highest,
            current => current,
        }
    }

    /// The sum of the changes of a direction within a period.
    fn recent(&self, period: i32, sign: i32, now: Timestamp) -> i32 {
        let start = now.checked_sub(SignedDuration::from_secs(i64::from(period)));
        let start = start.unwrap_or(Timestamp::MIN);
        let recent = self.changes.iter().filter(|(at, by)| *at > start && by.signum() == sign);
        recent.fold(0_i32, |sum, (_, by)| sum.saturating_add(by.saturating_abs()))
    }

    fn most(&self, current: i32, rules: Option<&HPAScalingRules>, now: Timestamp) -> i32 {
        let policies = policies(rules, &[("Percent", 100, 15), ("Pods", 4, 15)]);
        let limits = policies.into_iter().map(|(type_, value, period)| {
            let before = current.saturating_sub(self.recent(period, 1, now));
            match type_.as_str() {
                "Pods" => before.saturating_add(value),
                _ => percent(before, 100_i64.saturating_add(value.into()), f64::ceil),
            }
        });
        match select(rules) {
            "Disabled" => current,
            "Min" => limits.min().unwrap_or(current),
            _ => limits.max().unwrap_or(current),
        }
    }

    fn fewest(&self, current: i32, rules: Option<&HPAScalingRules>, now: Timestamp) -> i32 {
        let policies = policies(rules, &[("Percent", 100, 15)]);
        let limits = policies.into_iter().map(|(type_, value, period)| {
            let before = current.saturating_add(self.recent(period, -1, now));
            match type_.as_str() {
                "Pods" => before.saturating_sub(value),
                _ => percent(before, 100_i64.saturating_sub(value.into()).max(0), f64::floor),
            }
        });
        match select(rules) {
            "Disabled" => current,
            "Min" => limits.max().unwrap_or(current),
            _ => limits.min().unwrap_or(current),
        }
    }
}

const TOO_MANY: (&str, &str, &str) =
    ("True", "TooManyReplicas", "the desired replica count is more than the maximum replica count");
const TOO_FEW: (&str, &str, &str) =
    ("True", "TooFewReplicas", "the desired replica count is less than the minimum replica count");

fn rules(
    spec: &HorizontalPodAutoscalerSpec,
) -> (Option<&HPAScalingRules>, Option<&HPAScalingRules>) {
    let behavior = spec.behavior.as_ref();
    let up = behavior.and_then(|behavior| behavior.scale_up.as_ref());
    (up, behavior.and_then(|behavior| behavior.scale_down.as_ref()))
}

fn select(rules: Option<&HPAScalingRules>) -> &str {
    rules.and_then(|rules| rules.select_policy.as_deref()).unwrap_or("Max")
}

/// The policies of a rule: type, value, period in seconds.
fn policies(
    rules: Option<&HPAScalingRules>,
    usual: &[(&str, i32, i32)],
) -> Vec<(String, i32, i32)> {
    let given = rules.and_then(|rules| rules.policies.as_ref()).filter(|all| !all.is_empty());
    let own = |it: &HPAScalingPolicy| (it.type_.clone(), it.value, it.period_seconds);
    match given {
        Some(given) => given.iter().map(own).collect(),
        None => usual
            .iter()
            .map(|(type_, value, period)| ((*type_).to_owned(), *value, *period))
            .collect(),
    }
}

fn percent(count: i32, percent: i64, round: fn(f64) -> f64) -> i32 {
    round(f64::from(count) * percent as f64 / 100.0) as i32
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec(behavior: Value) -> HorizontalPodAutoscalerSpec {
        serde_json::from_value(json!({
            "minReplicas": 1, "maxReplicas": 20, "behavior": behavior,
            "scaleTargetRef": {"kind": "Deployment", "name": "web"},
        }))
        .unwrap()
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).unwrap()
    }

    #[test]
    fn replicas_at_most_double_or_grow_by_four_at_first() {
        let mut history = ScalingHistory::default();
        let first = history.limit(&spec(json!({})), 2, 15, at(0));
        assert_eq!((first.replicas, first.limited.1), (6, "ScaleUpLimit"));
        history.changed(at(0), 4);
        assert_eq!(history.limit(&spec(json!({})), 6, 15, at(5)).replicas, 6, "in the same period");
        assert_eq!(history.limit(&spec(json!({})), 6, 15, at(20)).replicas, 12);
        let most = history.limit(&spec(json!({})), 12, 50, at(60));
        assert_eq!((most.replicas, most.limited.1), (20, "TooManyReplicas"));
    }

    #[test]
    fn the_largest_changes_do_not_overflow() {
        let mut history = ScalingHistory::default();
        for seconds in 0..3 {
            history.changed(at(seconds), i32::MAX);
        }
        assert_eq!(history.limit(&spec(json!({})), i32::MAX, i32::MAX, at(5)).replicas, 20);
    }

    #[test]
    fn fewer_replicas_wait_for_the_window() {
        let mut history = ScalingHistory::default();
        let spec = spec(json!({}));
        assert_eq!(history.limit(&spec, 10, 2, at(0)).replicas, 10, "the process has just begun");
        assert!(history.limit(&spec, 10, 2, at(200)).is_stabilized);
        assert_eq!(history.limit(&spec, 10, 2, at(301)).replicas, 2);
    }

    #[test]
    fn policies_limit_both_directions() {
        let down = json!({"scaleDown": {"stabilizationWindowSeconds": 0,
            "policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}]}});
        let mut history = ScalingHistory::default();
        history.limit(&spec(down.clone()), 10, 10, at(-4000));
        let first = history.limit(&spec(down.clone()), 10, 2, at(0));
        assert_eq!((first.replicas, first.limited.1), (9, "ScaleDownLimit"));
        history.changed(at(0), -1);
        assert_eq!(history.limit(&spec(down.clone()), 9, 2, at(30)).replicas, 9);
        assert_eq!(history.limit(&spec(down), 9, 2, at(61)).replicas, 8);
        let never = json!({"scaleUp": {"selectPolicy": "Disabled"}});
        assert_eq!(ScalingHistory::default().limit(&spec(never), 2, 9, at(0)).replicas, 2);
    }

    #[test]
    fn the_number_stays_between_minimum_and_maximum() {
        let now = json!({"scaleDown": {"stabilizationWindowSeconds": 0}});
        let mut history = ScalingHistory::default();
        history.limit(&spec(now.clone()), 3, 3, at(-4000));
        let fewest = history.limit(&spec(now.clone()), 3, 0, at(0));
        assert_eq!((fewest.replicas, fewest.limited.1), (1, "TooFewReplicas"));
        let extreme = ScalingHistory::default().limit(&spec(now), i32::MAX, i32::MAX, at(0));
        assert_eq!(extreme.replicas, 20);
    }
}
