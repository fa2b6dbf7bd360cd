//! Rules of a Job about its pods: what a failure means, and which successes are enough.
//!
//! River: inside the job controller. Promise: rules are asked in their order and the first that
//! matches decides, in the words of Kubernetes (KEP-3329, KEP-3998).

use std::collections::BTreeSet;

use headwater_client::Cached;
use k8s_openapi::api::batch::v1::{
    JobSpec, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyOnPodConditionsPattern,
    PodFailurePolicyRule, SuccessPolicyRule,
};

use crate::pod::{ContainerStatus, Pod};

use super::indexes;

/// What a failed pod means for its Job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is one failure more.
    Count,
    /// It is replaced as if nothing had been.
    Ignore,
    /// Its index is not tried again.
    FailIndex,
    /// The Job has failed, for this reason.
    FailJob(String),
}

/// What the rules of a Job say about a pod that failed.
pub(super) fn verdict(spec: &JobSpec, pod: &Pod) -> Verdict {
    let rules = spec.pod_failure_policy.iter().flat_map(|policy| &policy.rules).enumerate();
    for (index, rule) in rules {
        let Some(what) = matched(rule, pod) else { continue };
        return match rule.action.as_str() {
            "Ignore" => Verdict::Ignore,
            "FailIndex" => Verdict::FailIndex,
            "FailJob" => Verdict::FailJob(format!("{what} matching FailJob rule at index {index}")),
            _ => Verdict::Count,
        };
    }
    Verdict::Count
}

/// What of a pod a rule is about.
fn matched(rule: &PodFailurePolicyRule, pod: &Pod) -> Option<String> {
    let place = format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name());
    if let Some(codes) = &rule.on_exit_codes {
        let (name, code) = exit(codes, pod)?;
        return Some(format!("Container {name} for pod {place} failed with exit code {code}"));
    }
    let type_ = condition(rule.on_pod_conditions.as_deref().unwrap_or_default(), pod)?;
    Some(format!("Pod {place} has condition {type_}"))
}

/// The first container that ended with a code the rule names.
fn exit<'a>(
    wanted: &PodFailurePolicyOnExitCodesRequirement,
    pod: &'a Pod,
) -> Option<(&'a str, i32)> {
    let names =
        |it: &&ContainerStatus| wanted.container_name.as_ref().is_none_or(|name| *name == it.name);
    let all = pod.status.container_statuses.iter().chain(&pod.status.init_container_statuses);
    let codes = all.filter(names).filter_map(|it| {
        let code = it.state.terminated.as_ref()?.exit_code;
        (code != 0).then_some((it.name.as_str(), code))
    });
    let is_wanted = |code: i32| match wanted.operator.as_str() {
        "In" => wanted.values.contains(&code),
        "NotIn" => !wanted.values.contains(&code),
        _ => false,
    };
    codes.into_iter().find(|(_, code)| is_wanted(*code))
}

/// The first condition of a pod that the rule names.
fn condition<'a>(
    wanted: &[PodFailurePolicyOnPodConditionsPattern],
    pod: &'a Pod,
) -> Option<&'a str> {
    let is_wanted = |type_: &str, status: &str| {
        wanted
            .iter()
            .any(|it| it.type_ == type_ && it.status.as_deref().unwrap_or("True") == status)
    };
    let found = pod.status.conditions.iter().find(|it| is_wanted(&it.type_, &it.status));
    found.map(|it| it.type_.as_str())
}

/// Whether the indexes that succeeded are enough, and by which rule.
pub(super) fn success(spec: &JobSpec, succeeded: &BTreeSet<i32>) -> Option<String> {
    if succeeded.is_empty() {
        return None;
    }
    let completions = spec.completions.unwrap_or(0);
    let mut rules = spec.success_policy.iter().flat_map(|policy| &policy.rules);
    let index = rules.position(|rule| is_enough(rule, succeeded, completions))?;
    Some(format!("Matched rules at index {index}"))
}

fn is_enough(rule: &SuccessPolicyRule, succeeded: &BTreeSet<i32>, completions: i32) -> bool {
    let count = rule.succeeded_count.map(|count| usize::try_from(count).unwrap_or(usize::MAX));
    let Some(named) = &rule.succeeded_indexes else {
        return count.is_some_and(|count| succeeded.len() >= count);
    };
    let named = indexes::parse(named, completions);
    let done = named.intersection(succeeded).count();
    !named.is_empty() && done >= count.unwrap_or(named.len())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec(field: &str, rules: &Value) -> JobSpec {
        let spec = json!({
            "completions": 10, "template": {}, field: {"rules": rules},
        });
        serde_json::from_value(spec).unwrap()
    }

    /// A pod whose containers ended with these codes.
    fn pod(codes: &[(&str, i32)], condition: &str) -> Pod {
        let containers: Vec<Value> = codes
            .iter()
            .map(|(name, code)| json!({"name": name, "state": {"terminated": {"exitCode": code}}}))
            .collect();
        let pod = json!({
            "metadata": {"name": "p", "namespace": "shop"},
            "status": {
                "phase": "Failed", "containerStatuses": containers,
                "conditions": [{"type": condition, "status": "True"}],
            },
        });
        serde_json::from_value(pod).unwrap()
    }

    #[track_caller]
    fn judged(rules: &Value, pod: &Pod, expected: Verdict) {
        assert_eq!(verdict(&spec("podFailurePolicy", rules), pod), expected);
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let exit = |action: &str, operator: &str, values: &[i32]| json!({"action": action, "onExitCodes": {"operator": operator, "values": values}});
        let failed = pod(&[("main", 42), ("side", 0)], "Ready");
        judged(&json!([]), &failed, Verdict::Count);
        judged(&json!([exit("Ignore", "In", &[1, 42])]), &failed, Verdict::Ignore);
        judged(&json!([exit("Ignore", "In", &[1])]), &failed, Verdict::Count);
        judged(&json!([exit("FailIndex", "NotIn", &[1])]), &failed, Verdict::FailIndex);
        judged(&json!([exit("FailIndex", "NotIn", &[42])]), &failed, Verdict::Count);
        let both = json!([exit("Count", "In", &[42]), exit("Ignore", "In", &[42])]);
        judged(&both, &failed, Verdict::Count);
        let why = "Container main for pod shop/p failed with exit code 42 matching FailJob rule at index 1";
        let second = json!([exit("Ignore", "In", &[7]), exit("FailJob", "In", &[42])]);
        judged(&second, &failed, Verdict::FailJob(why.to_owned()));
    }

    #[test]
    fn a_rule_may_be_about_one_container_or_about_a_condition() {
        let failed = pod(&[("main", 1), ("side", 2)], "DisruptionTarget");
        let named = |name: &str| {
            let codes = json!({"containerName": name, "operator": "In", "values": [2]});
            json!([{"action": "Ignore", "onExitCodes": codes}])
        };
        judged(&named("side"), &failed, Verdict::Ignore);
        judged(&named("main"), &failed, Verdict::Count);
        let when = |action: &str, pattern: Value| json!([{"action": action, "onPodConditions": [pattern]}]);
        judged(&when("Ignore", json!({"type": "DisruptionTarget"})), &failed, Verdict::Ignore);
        let not = json!({"type": "DisruptionTarget", "status": "False"});
        judged(&when("Ignore", not), &failed, Verdict::Count);
        let why = "Pod shop/p has condition DisruptionTarget matching FailJob rule at index 0";
        let fails = when("FailJob", json!({"type": "DisruptionTarget", "status": "True"}));
        judged(&fails, &failed, Verdict::FailJob(why.to_owned()));
    }

    #[track_caller]
    fn enough(rules: Value, succeeded: &[i32], expected: Option<usize>) {
        let succeeded = succeeded.iter().copied().collect();
        let expected = expected.map(|index| format!("Matched rules at index {index}"));
        assert_eq!(success(&spec("successPolicy", &rules), &succeeded), expected);
    }

    #[test]
    fn enough_successes_of_the_right_indexes_end_a_job() {
        let leaders = json!([{"succeededIndexes": "0,2-3"}]);
        enough(leaders.clone(), &[0, 2], None);
        enough(leaders, &[0, 2, 3, 9], Some(0));
        let some = json!([{"succeededIndexes": "0-4", "succeededCount": 2}]);
        enough(some.clone(), &[4, 7], None);
        enough(some, &[4, 7, 0], Some(0));
        enough(json!([{"succeededCount": 3}]), &[1, 2], None);
        enough(json!([{"succeededCount": 3}]), &[1, 2, 5], Some(0));
        enough(json!([{"succeededIndexes": "1"}, {"succeededCount": 1}]), &[5], Some(1));
        enough(json!([{"succeededIndexes": "nonsense"}]), &[5], None);
        enough(json!([{"succeededCount": 0}]), &[], None);
    }
}
