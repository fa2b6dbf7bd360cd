//! The resources of a pod: sums over its containers, for limit ranges and quotas.

use std::collections::BTreeMap;

use headwater_api::quantity::Quantity;
use headwater_json::{MemberKey, Value};

/// Amounts by name.
pub(super) type Amounts = BTreeMap<String, Quantity>;

/// Requests or limits.
#[derive(Clone, Copy)]
pub(super) enum ResourceList {
    Requests,
    Limits,
}

impl ResourceList {
    pub(super) fn key(self) -> &'static str {
        match self {
            ResourceList::Requests => "requests",
            ResourceList::Limits => "limits",
        }
    }
}

/// Parses a list of amounts. Validation has rejected invalid quantities.
pub(super) fn amounts(list: &Value) -> Amounts {
    let members = list.as_object().into_iter().flatten();
    let read = |(name, value): (&MemberKey, &Value)| {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        Quantity::parse(&text).ok().map(|amount| (name.to_string(), amount))
    };
    members.filter_map(read).collect()
}

/// The amounts of one container.
pub(super) fn of_container(container: &Value, list: ResourceList) -> Amounts {
    amounts(&container["resources"][list.key()])
}

pub(super) fn containers<'a>(spec: &'a Value, key: &str) -> &'a [Value] {
    spec[key].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The amounts of a pod: containers add up; init containers run one at a time, next to earlier
/// sidecars, so only the largest counts.
pub(super) fn of_pod(spec: &Value, list: ResourceList) -> Amounts {
    let mut total = Amounts::new();
    for container in containers(spec, "containers") {
        add(&mut total, &of_container(container, list));
    }
    let (mut sidecars, mut largest) = (Amounts::new(), Amounts::new());
    for container in containers(spec, "initContainers") {
        let mut own = of_container(container, list);
        if container["restartPolicy"] == "Always" {
            add(&mut total, &own);
            add(&mut sidecars, &own);
            own = sidecars.clone();
        } else {
            add(&mut own, &sidecars);
        }
        keep_larger(&mut largest, &own);
    }
    keep_larger(&mut total, &largest);
    for (name, amount) in amounts(&spec["resources"][list.key()]) {
        // Pod-level resources take precedence.
        total.insert(name, amount);
    }
    if matches!(list, ResourceList::Requests) || !total.is_empty() {
        let overhead = amounts(&spec["overhead"]);
        let counted =
            |name: &&String| matches!(list, ResourceList::Requests) || total.contains_key(*name);
        let names: Vec<String> = overhead.keys().filter(counted).cloned().collect();
        let overhead = overhead.into_iter().filter(|(name, _)| names.contains(name)).collect();
        add(&mut total, &overhead);
    }
    total
}

pub(super) fn add(total: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        total.entry(name.clone()).and_modify(|sum| *sum = sum.plus(*amount)).or_insert(*amount);
    }
}

fn keep_larger(largest: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        let held = largest.entry(name.clone()).or_insert(*amount);
        if amount.nano() > held.nano() {
            *held = *amount;
        }
    }
}

#[cfg(test)]
mod tests {
    use headwater_json::json;

    use super::*;

    #[test]
    fn a_pod_needs_the_sum_of_containers_that_run_at_the_same_time() {
        let container = |cpu: &str| json!({"resources": {"requests": {"cpu": cpu}}});
        let cpu = |spec: &Value| of_pod(spec, ResourceList::Requests)["cpu"].to_string();
        let mut spec = json!({"containers": [container("100m"), container("200m")]});
        assert_eq!(cpu(&spec), "300m");
        spec["initContainers"] = json!([container("250m")]);
        assert_eq!(cpu(&spec), "300m");
        spec["initContainers"] = json!([container("1")]);
        assert_eq!(cpu(&spec), "1");
        let mut sidecar = container("100m");
        sidecar["restartPolicy"] = "Always".into();
        spec["initContainers"] = json!([sidecar, container("500m")]);
        assert_eq!(cpu(&spec), "600m");
        spec["overhead"] = json!({"cpu": "50m"});
        assert_eq!(cpu(&spec), "650m");
    }
}
