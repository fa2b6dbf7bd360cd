//! Terms of node selectors: of the affinity of a pod, and of a volume.

use k8s_openapi::api::core::v1 as core;

use super::cache::NodeInfo;

/// Whether a node meets all requirements of a term; a term without requirements matches no node.
pub(crate) fn term_matches(term: &core::NodeSelectorTerm, node_info: &NodeInfo) -> bool {
    let labels = term.match_expressions.iter().flatten();
    let fields = term.match_fields.iter().flatten();
    let is_empty = labels.clone().next().is_none() && fields.clone().next().is_none();
    !is_empty
        && labels.clone().all(|rule| rule_holds(rule, node_info.label(&rule.key)))
        && fields.clone().all(|rule| {
            let field = (rule.key == "metadata.name").then(|| node_info.name());
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
