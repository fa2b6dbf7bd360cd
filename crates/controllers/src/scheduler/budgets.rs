//! Disruption budgets, as far as preemption cares: how many of whose pods may be pushed out.
//!
//! River: informer of budgets → **budgets** → preemption. Preemption prefers victims that no budget
//! protects; where there are none it takes others all the same, as Kubernetes does.

use std::collections::BTreeMap;
use std::sync::Arc;

use headwater_client::{Cached, Key};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;

use crate::disruption::selects;

use super::ask::Ask;

/// All budgets.
#[derive(Debug, Default)]
pub(crate) struct Budgets(BTreeMap<Key, Arc<PodDisruptionBudget>>);

impl Budgets {
    pub(crate) fn put(&mut self, budget: &Arc<PodDisruptionBudget>) {
        self.0.insert(budget.key(), Arc::clone(budget));
    }

    pub(crate) fn remove(&mut self, key: &Key) {
        self.0.remove(key);
    }

    /// Which of these pods, if they left one after the other, would leave against a budget.
    pub(crate) fn broken_by(&self, pods: &[&Arc<Ask>]) -> Vec<bool> {
        let mut spent: BTreeMap<&Key, i32> = BTreeMap::new();
        let each = pods.iter().map(|ask| {
            let mut breaks = false;
            for (key, budget) in self.0.iter().filter(|(_, budget)| protects(budget, ask)) {
                let spent = spent.entry(key).or_default();
                *spent += 1;
                let allowed = budget.status.as_ref().and_then(|status| status.disruptions_allowed);
                breaks |= *spent > allowed.unwrap_or(0);
            }
            breaks
        });
        each.collect()
    }
}

/// Whether a budget counts the end of a pod; one that it has counted already it does not.
fn protects(budget: &PodDisruptionBudget, ask: &Ask) -> bool {
    let leaving = budget.status.as_ref().and_then(|status| status.disrupted_pods.as_ref());
    budget.namespace() == ask.pod.namespace()
        && selects(budget, &ask.pod)
        && !leaving.is_some_and(|leaving| leaving.contains_key(ask.pod.name()))
}
