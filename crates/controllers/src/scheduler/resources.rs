//! Amounts of resources: what pods request and what nodes can allocate.

use std::collections::BTreeMap;

use headwater_api::quantity::Quantity as Parsed;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::pod::{Container, PodSpec};

/// Amounts by resource: CPU in millicores, everything else in units.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResourceAmounts {
    pub(crate) cpu: i64,
    pub(crate) memory: i64,
    /// Devices, storage, huge pages; hardly any pod asks for one.
    pub(crate) others: BTreeMap<String, i64>,
}

const NANO: i128 = 1_000_000_000;

/// The quantity in the given unit, rounded up; 0 for an invalid quantity.
fn units(quantity: &Quantity, per_unit: i128) -> i64 {
    let nano = Parsed::parse(&quantity.0).map_or(0, |parsed| parsed.nano());
    let size = NANO / per_unit;
    i64::try_from((nano + size - 1).div_euclid(size)).unwrap_or(i64::MAX)
}

impl ResourceAmounts {
    pub(crate) fn of(quantities: &BTreeMap<String, Quantity>) -> ResourceAmounts {
        let mut amounts = ResourceAmounts::default();
        for (resource, quantity) in quantities {
            match resource.as_str() {
                "cpu" => amounts.cpu = units(quantity, 1000),
                "memory" => amounts.memory = units(quantity, 1),
                other => drop(amounts.others.insert(other.to_owned(), units(quantity, 1))),
            }
        }
        amounts
    }

    pub(crate) fn add(&mut self, more: &ResourceAmounts) {
        self.merge(more, i64::saturating_add);
    }

    pub(crate) fn subtract(&mut self, less: &ResourceAmounts) {
        self.merge(less, i64::saturating_sub);
    }

    fn merge(&mut self, other: &ResourceAmounts, with: fn(i64, i64) -> i64) {
        self.cpu = with(self.cpu, other.cpu);
        self.memory = with(self.memory, other.memory);
        for (resource, amount) in &other.others {
            let known = self.others.entry(resource.clone()).or_default();
            *known = with(*known, *amount);
        }
    }

    fn at_least(&mut self, other: &ResourceAmounts) {
        self.merge(other, i64::max);
    }

    /// The resources of which `self` exceeds what is free: `have` minus `used`.
    pub(crate) fn lacking<'a>(
        &'a self,
        have: &'a ResourceAmounts,
        used: &'a ResourceAmounts,
    ) -> impl Iterator<Item = &'a str> {
        let basic = [
            ("cpu", self.cpu, have.cpu, used.cpu),
            ("memory", self.memory, have.memory, used.memory),
        ];
        let of =
            |amounts: &ResourceAmounts, name: &str| amounts.others.get(name).copied().unwrap_or(0);
        let others = self
            .others
            .iter()
            .map(move |(name, wanted)| (name.as_str(), *wanted, of(have, name), of(used, name)));
        let lacks = |(_, wanted, have, used): &(&str, i64, i64, i64)| {
            *wanted > 0 && *wanted > have.saturating_sub(*used)
        };
        basic.into_iter().chain(others).filter(lacks).map(|(name, ..)| name)
    }
}

/// The most a pod needs at any time: its containers and sidecars together, or, while it starts,
/// the largest init container together with the sidecars started before it.
pub(crate) fn requests(spec: &PodSpec) -> ResourceAmounts {
    let of = |container: &Container| ResourceAmounts::of(&container.resources.requests);
    let mut sidecars = ResourceAmounts::default();
    let mut start = ResourceAmounts::default();
    for init in &spec.init_containers {
        let mut running = of(init);
        running.add(&sidecars);
        start.at_least(&running);
        if init.restart_policy.as_deref() == Some("Always") {
            sidecars.add(&of(init));
        }
    }
    let mut needed = sidecars;
    spec.containers.iter().for_each(|container| needed.add(&of(container)));
    needed.at_least(&start);
    needed.add(&ResourceAmounts::of(&spec.overhead));
    needed
}

#[cfg(test)]
#[allow(clippy::needless_pass_by_value, reason = "tables write values where they are used")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check(spec: Value, cpu: i64, memory: i64) {
        let spec: PodSpec = serde_json::from_value(spec).unwrap();
        let needed = requests(&spec);
        assert_eq!((needed.cpu, needed.memory), (cpu, memory));
    }

    fn container(cpu: &str, memory: &str) -> Value {
        json!({"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}})
    }

    fn sidecar(cpu: &str, memory: &str) -> Value {
        let mut value = container(cpu, memory);
        value["restartPolicy"] = json!("Always");
        value
    }

    #[test]
    fn a_pod_requests_the_peak_of_its_containers_and_init_containers() {
        check(json!({"containers": [{"name": "c"}]}), 0, 0);
        check(json!({"containers": [container("100m", "1Ki"), container("0.5", "1k")]}), 600, 2024);
        let main = container("1", "1Mi");
        let init = container("3", "1Ki");
        check(json!({"containers": [main], "initContainers": [init]}), 3000, 1 << 20);
        let order = [sidecar("500m", "0"), container("1", "0")];
        check(json!({"containers": [main], "initContainers": order}), 1500, 1 << 20);
        let overhead = json!({"cpu": "1u"});
        check(json!({"containers": [main], "overhead": overhead}), 1001, 1 << 20);
    }

    #[test]
    fn lacking_resources_are_listed_by_name() {
        let amounts = |value: Value| ResourceAmounts::of(&serde_json::from_value(value).unwrap());
        let have = amounts(json!({"cpu": "2", "memory": "1Gi", "example.com/gpu": "1"}));
        let used = amounts(json!({"cpu": "1500m", "example.com/gpu": "1"}));
        let wanted = amounts(json!({"cpu": "600m", "memory": "1Gi", "example.com/gpu": "1"}));
        assert_eq!(wanted.lacking(&have, &used).collect::<Vec<_>>(), ["cpu", "example.com/gpu"]);
        assert_eq!(amounts(json!({"cpu": "500m"})).lacking(&have, &used).count(), 0);
        assert_eq!(amounts(json!({})).lacking(&ResourceAmounts::default(), &used).count(), 0);
    }
}
