//! Pod failure policy and success policy of a Job.
//!
//! River: inside the Job controller.
//! Promise: rules are evaluated in order and the first match decides (KEP-3329, KEP-3998).

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
pub(super) enum FailureAction {
    /// It counts towards the backoff limit.
    Count,
    /// It is replaced and not counted.
    Ignore,
    /// Its index is not retried.
    FailIndex,
    /// The Job fails, with this message.
    FailJob(String),
}

/// The action of the first rule that matches a failed pod; `Count` if none does.
pub(super) fn match_failure_policy(spec: &JobSpec, pod: &Pod) -> FailureAction {
    let rules = spec.pod_failure_policy.iter().flat_map(|policy| &policy.rules).enumerate();
    for (index, rule) in rules {
        let Some(what) = matched(rule, pod) else { continue };
        return match rule.action.as_str() {
            "Ignore" => FailureAction::Ignore,
            "FailIndex" => FailureAction::FailIndex,
            "FailJob" => {
                FailureAction::FailJob(format!("{what} matching FailJob rule at index {index}"))
            }
            _ => FailureAction::Count,
        };
    }
    FailureAction::Count
}

/// What matches a rule, as the start of a message.
fn matched(rule: &PodFailurePolicyRule, pod: &Pod) -> Option<String> {
    let place = format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name());
    if let Some(codes) = &rule.on_exit_codes {
        let (name, code) = exit(codes, pod)?;
        return Some(format!("Container {name} for pod {place} failed with exit code {code}"));
    }
    let type_ = condition(rule.on_pod_conditions.as_deref().unwrap_or_default(), pod)?;
    Some(format!("Pod {place} has condition {type_}"))
}

/// The first container whose exit code matches the requirement.
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

/// The type of the first condition that matches a pattern.
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

/// The message for the first success policy rule that the succeeded indexes meet.
pub(super) fn match_success_policy(spec: &JobSpec, succeeded: &BTreeSet<i32>) -> Option<String> {
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

    /// A failed pod whose containers terminated with these codes.
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
    fn check_failure(rules: &Value, pod: &Pod, expected: FailureAction) {
        assert_eq!(match_failure_policy(&spec("podFailurePolicy", rules), pod), expected);
    }

    #[test]
    fn the_first_matching_rule_decides() {
        let exit = |action: &str, operator: &str, values: &[i32]| json!({"action": action, "onExitCodes": {"operator": operator, "values": values}});
        let failed = pod(&[("main", 42), ("side", 0)], "Ready");
        check_failure(&json!([]), &failed, FailureAction::Count);
        check_failure(&json!([exit("Ignore", "In", &[1, 42])]), &failed, FailureAction::Ignore);
        check_failure(&json!([exit("Ignore", "In", &[1])]), &failed, FailureAction::Count);
        check_failure(
            &json!([exit("FailIndex", "NotIn", &[1])]),
            &failed,
            FailureAction::FailIndex,
        );
        check_failure(&json!([exit("FailIndex", "NotIn", &[42])]), &failed, FailureAction::Count);
        let both = json!([exit("Count", "In", &[42]), exit("Ignore", "In", &[42])]);
        check_failure(&both, &failed, FailureAction::Count);
        let why = "Container main for pod shop/p failed with exit code 42 matching FailJob rule at index 1";
        let second = json!([exit("Ignore", "In", &[7]), exit("FailJob", "In", &[42])]);
        check_failure(&second, &failed, FailureAction::FailJob(why.to_owned()));
    }

    #[test]
    fn a_rule_matches_one_container_or_a_condition() {
        let failed = pod(&[("main", 1), ("side", 2)], "DisruptionTarget");
        let named = |name: &str| {
            let codes = json!({"containerName": name, "operator": "In", "values": [2]});
            json!([{"action": "Ignore", "onExitCodes": codes}])
        };
        check_failure(&named("side"), &failed, FailureAction::Ignore);
        check_failure(&named("main"), &failed, FailureAction::Count);
        let when = |action: &str, pattern: Value| json!([{"action": action, "onPodConditions": [pattern]}]);
        check_failure(
            &when("Ignore", json!({"type": "DisruptionTarget"})),
            &failed,
            FailureAction::Ignore,
        );
        let not = json!({"type": "DisruptionTarget", "status": "False"});
        check_failure(&when("Ignore", not), &failed, FailureAction::Count);
        let why = "Pod shop/p has condition DisruptionTarget matching FailJob rule at index 0";
        let fails = when("FailJob", json!({"type": "DisruptionTarget", "status": "True"}));
        check_failure(&fails, &failed, FailureAction::FailJob(why.to_owned()));
    }

    #[track_caller]
    fn check_success(rules: Value, succeeded: &[i32], expected: Option<usize>) {
        let succeeded = succeeded.iter().copied().collect();
        let expected = expected.map(|index| format!("Matched rules at index {index}"));
        assert_eq!(match_success_policy(&spec("successPolicy", &rules), &succeeded), expected);
    }

    #[test]
    fn success_policy_rules_require_indexes_and_counts() {
        let leaders = json!([{"succeededIndexes": "0,2-3"}]);
        check_success(leaders.clone(), &[0, 2], None);
        check_success(leaders, &[0, 2, 3, 9], Some(0));
        let some = json!([{"succeededIndexes": "0-4", "succeededCount": 2}]);
        check_success(some.clone(), &[4, 7], None);
        check_success(some, &[4, 7, 0], Some(0));
        check_success(json!([{"succeededCount": 3}]), &[1, 2], None);
        check_success(json!([{"succeededCount": 3}]), &[1, 2, 5], Some(0));
        check_success(json!([{"succeededIndexes": "1"}, {"succeededCount": 1}]), &[5], Some(1));
        check_success(json!([{"succeededIndexes": "nonsense"}]), &[5], None);
        check_success(json!([{"succeededCount": 0}]), &[], None);
    }
}
