//! Disruption budgets for preemption: which victims would violate one.
//!
//! River: informer of budgets → **budgets** → preemption. Preemption prefers victims that no budget
//! protects; if there are none it violates budgets, as Kubernetes does.

use std::collections::BTreeMap;
use std::sync::Arc;

use headwater_client::{Cached, Key};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;

use crate::disruption::selects;

use super::pod_info::PodInfo;

/// All budgets.
#[derive(Debug, Default)]
pub(crate) struct DisruptionBudgets(BTreeMap<Key, Arc<PodDisruptionBudget>>);

impl DisruptionBudgets {
    pub(crate) fn put(&mut self, budget: &Arc<PodDisruptionBudget>) {
        self.0.insert(budget.key(), Arc::clone(budget));
    }

    pub(crate) fn remove(&mut self, key: &Key) {
        self.0.remove(key);
    }

    /// For each pod, whether deleting it after the ones before it violates a budget.
    pub(crate) fn violations(&self, pods: &[&Arc<PodInfo>]) -> Vec<bool> {
        let mut spent: BTreeMap<&Key, i32> = BTreeMap::new();
        let each = pods.iter().map(|pod_info| {
            let mut violates = false;
            for (key, budget) in self.0.iter().filter(|(_, budget)| protects(budget, pod_info)) {
                let spent = spent.entry(key).or_default();
                *spent += 1;
                let allowed = budget.status.as_ref().and_then(|status| status.disruptions_allowed);
                violates |= *spent > allowed.unwrap_or(0);
            }
            violates
        });
        each.collect()
    }
}

/// Whether the eviction of a pod counts against a budget; not if the budget already counts it as
/// disrupted.
fn protects(budget: &PodDisruptionBudget, pod_info: &PodInfo) -> bool {
    let disrupted = budget.status.as_ref().and_then(|status| status.disrupted_pods.as_ref());
    budget.namespace() == pod_info.pod.namespace()
        && selects(budget, &pod_info.pod)
        && !disrupted.is_some_and(|disrupted| disrupted.contains_key(pod_info.pod.name()))
}
