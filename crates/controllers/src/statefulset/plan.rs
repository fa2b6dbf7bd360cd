//! The next writes of a StatefulSet, decided from its pods and claims.
//!
//! Every pass returns only the writes that are due now. With `OrderedReady` a pass handles one pod
//! and waits until it is available; with `Parallel` it handles all of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use headwater_client::Cached;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetStatus};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod as CorePod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use crate::int_or_percent::resolve;
use crate::pod::Pod;
use crate::revisions::POD_REVISION;
use crate::slow_start::BURST_MAX;
use crate::time;

use super::claim_owners;
use super::pods::{claims, ordinal, ordinals, pod, pod_name, replicas, spec, start};

/// A template with the name of its revision.
#[derive(Clone, Debug)]
pub(super) struct TemplateRevision {
    pub(super) name: String,
    pub(super) template: PodTemplateSpec,
}

/// The current state of a set.
pub(super) struct SetState<'a> {
    pub(super) set: &'a StatefulSet,
    /// The revision of pods below the partition.
    pub(super) current: &'a TemplateRevision,
    /// The revision of the set's template.
    pub(super) update: &'a TemplateRevision,
    pub(super) pods: &'a [Arc<Pod>],
    /// The claims of the set's namespace by name.
    pub(super) claims: &'a BTreeMap<String, Arc<PersistentVolumeClaim>>,
    pub(super) now: Timestamp,
}

/// A write that is due now.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum SetWrite {
    CreateClaim {
        claim: Box<PersistentVolumeClaim>,
        pod: String,
    },
    CreatePod(Box<CorePod>),
    DeletePod(Arc<Pod>),
    /// Sets the owner references of a claim, as the retention policy requires.
    SetClaimOwners {
        claim: Arc<PersistentVolumeClaim>,
        owners: Vec<OwnerReference>,
    },
}

/// Whether a pass goes on to the next pod.
enum Flow {
    Next,
    Wait,
}

impl SetState<'_> {
    /// The writes that are due now.
    pub(super) fn writes(&self) -> Vec<SetWrite> {
        if self.set.metadata.deletion_timestamp.is_some() {
            return Vec::new();
        }
        let mut writes = Vec::new();
        let by_ordinal = self.by_ordinal();
        for ordinal in ordinals(self.set) {
            if writes.len() > BURST_MAX {
                return writes;
            }
            if let Flow::Wait = self.maintain(ordinal, by_ordinal.get(&ordinal), &mut writes) {
                return writes;
            }
        }
        let desired = ordinals(self.set);
        let condemned = by_ordinal.iter().filter(|(ordinal, _)| !desired.contains(ordinal));
        let condemned: Vec<(&i32, &Arc<Pod>)> = condemned.rev().collect();
        for (ordinal, pod) in &condemned {
            self.set_claim_owners(**ordinal, Some(pod), &mut writes);
        }
        for (_, pod) in &condemned {
            if let Flow::Wait = self.remove(pod, &by_ordinal, &mut writes) {
                return writes;
            }
        }
        if !is_on_delete(self.set) {
            self.roll_out(&by_ordinal, &mut writes);
        }
        writes
    }

    fn by_ordinal(&self) -> BTreeMap<i32, Arc<Pod>> {
        let pods = self.pods.iter();
        pods.filter_map(|pod| Some((ordinal(self.set, pod.name())?, Arc::clone(pod)))).collect()
    }

    /// Creates or replaces a desired pod; waits until it is available if pods are ordered.
    fn maintain(&self, ordinal: i32, pod: Option<&Arc<Pod>>, writes: &mut Vec<SetWrite>) -> Flow {
        let ordered = |flow| if is_parallel(self.set) { Flow::Next } else { flow };
        let Some(pod) = pod else {
            if self.has_stale_claim(ordinal) {
                return ordered(Flow::Wait);
            }
            self.create_claims(ordinal, writes);
            writes.push(SetWrite::CreatePod(Box::new(self.new_pod(ordinal))));
            return ordered(Flow::Wait);
        };
        if pod.is_finished() {
            if !pod.is_deleting() {
                writes.push(SetWrite::DeletePod(Arc::clone(pod)));
            }
            return ordered(Flow::Wait);
        }
        if pod.phase() == "Pending" && !pod.is_deleting() {
            self.create_claims(ordinal, writes);
        }
        if !self.is_available(pod) {
            return ordered(Flow::Wait);
        }
        self.set_claim_owners(ordinal, Some(pod), writes);
        Flow::Next
    }

    /// Deletes a pod beyond the desired number.
    fn remove(
        &self,
        pod: &Arc<Pod>,
        all: &BTreeMap<i32, Arc<Pod>>,
        writes: &mut Vec<SetWrite>,
    ) -> Flow {
        let is_ordered = !is_parallel(self.set);
        if pod.is_deleting() {
            return if is_ordered { Flow::Wait } else { Flow::Next };
        }
        let desired = ordinals(self.set);
        let in_order = all.iter().filter(|(ordinal, _)| desired.contains(ordinal));
        let others = all.iter().filter(|(ordinal, _)| !desired.contains(ordinal));
        let mut in_order = in_order.chain(others);
        let first = in_order.find(|(_, other)| !self.is_available(other));
        let is_first = first.is_some_and(|(_, first)| first.name() == pod.name());
        if is_ordered && !self.is_available(pod) && !is_first {
            return Flow::Wait;
        }
        writes.push(SetWrite::DeletePod(Arc::clone(pod)));
        if is_ordered { Flow::Wait } else { Flow::Next }
    }

    /// Deletes pods of older revisions, highest ordinals first, as far as `maxUnavailable` allows.
    /// An unavailable pod of an older revision costs no availability.
    fn roll_out(&self, by_ordinal: &BTreeMap<i32, Arc<Pod>>, writes: &mut Vec<SetWrite>) {
        let desired = ordinals(self.set);
        let present = by_ordinal.iter().filter(|(ordinal, _)| desired.contains(ordinal));
        let available = present.filter(|(_, pod)| self.is_available(pod)).count();
        let unavailable =
            i32::try_from(desired.len().saturating_sub(available)).unwrap_or(i32::MAX);
        let mut budget = max_unavailable(self.set).saturating_sub(unavailable);
        for (ordinal, pod) in by_ordinal.range(desired).rev() {
            if *ordinal < first_updated(self.set) {
                return;
            }
            if pod.is_deleting() || revision(pod) == self.update.name {
                continue;
            }
            if self.is_available(pod) {
                if budget <= 0 {
                    return;
                }
                budget -= 1;
            }
            writes.push(SetWrite::DeletePod(Arc::clone(pod)));
        }
    }

    fn new_pod(&self, ordinal: i32) -> CorePod {
        let is_old = !is_on_delete(self.set) && ordinal < first_updated(self.set);
        let TemplateRevision { name, template } = if is_old { self.current } else { self.update };
        pod(self.set, template, name, ordinal)
    }

    fn create_claims(&self, ordinal: i32, writes: &mut Vec<SetWrite>) {
        let missing = claims(self.set, ordinal);
        let missing = missing.into_iter().filter(|claim| !self.claims.contains_key(claim.name()));
        writes.extend(missing.map(|mut claim| {
            let owners = claim_owners::wanted(self.set, &claim, None, true);
            claim.metadata.owner_references = owners.filter(|owners| !owners.is_empty());
            SetWrite::CreateClaim { claim: Box::new(claim), pod: pod_name(self.set, ordinal) }
        }));
    }

    fn set_claim_owners(&self, ordinal: i32, pod: Option<&Arc<Pod>>, writes: &mut Vec<SetWrite>) {
        let is_desired = ordinals(self.set).contains(&ordinal);
        for claim in claims(self.set, ordinal) {
            let Some(claim) = self.claims.get(claim.name()) else { continue };
            let pod = pod.map(|pod| &**pod);
            if let Some(owners) = claim_owners::wanted(self.set, claim, pod, is_desired) {
                writes.push(SetWrite::SetClaimOwners { claim: Arc::clone(claim), owners });
            }
        }
    }

    /// Whether a claim of a missing pod is being deleted, or will be with an earlier pod.
    fn has_stale_claim(&self, ordinal: i32) -> bool {
        let name = pod_name(self.set, ordinal);
        let claims = claims(self.set, ordinal);
        claims.iter().filter_map(|claim| self.claims.get(claim.name())).any(|claim| {
            let mut owners = claim.metadata.owner_references.iter().flatten();
            claim.metadata.deletion_timestamp.is_some()
                || owners.any(|owner| owner.kind == "Pod" && owner.name == name)
        })
    }

    /// Whether a pod runs, is ready for `minReadySeconds`, and is not being deleted.
    fn is_available(&self, pod: &Pod) -> bool {
        !pod.is_deleting() && self.until_available(pod).is_some_and(|wait| wait.is_zero())
    }

    /// How long a ready pod must stay ready until it is available; `None` if it is not ready.
    fn until_available(&self, pod: &Pod) -> Option<Duration> {
        let is_ready = pod.phase() == "Running" && pod.is_ready();
        let seconds = spec(self.set).min_ready_seconds.unwrap_or(0);
        let since = pod.ready_since().map_or(self.now, |time| time.0);
        is_ready.then(|| time::until(self.now, time::after(since, seconds)))
    }

    /// When to check again without a change: when a ready pod becomes available.
    pub(super) fn next_check(&self) -> Option<Duration> {
        let waits = self.pods.iter().filter_map(|pod| self.until_available(pod));
        waits.filter(|wait| !wait.is_zero()).min()
    }

    /// The new status.
    pub(super) fn status(&self, collisions: i32) -> StatefulSetStatus {
        let count = |is: &dyn Fn(&Pod) -> bool| {
            let counted = self.pods.iter().filter(|pod| is(pod)).count();
            i32::try_from(counted).unwrap_or(i32::MAX)
        };
        let of = |name: &str| count(&|pod: &Pod| !pod.is_deleting() && revision(pod) == name);
        let is_ready = |pod: &Pod| self.until_available(pod).is_some();
        let is_available = |pod: &Pod| self.until_available(pod).is_some_and(|wait| wait.is_zero());
        let mut status = StatefulSetStatus {
            observed_generation: self.set.metadata.generation,
            replicas: count(&|_| true),
            ready_replicas: Some(count(&is_ready)),
            available_replicas: Some(count(&is_available)),
            current_replicas: Some(of(&self.current.name)),
            updated_replicas: Some(of(&self.update.name)),
            current_revision: Some(self.current.name.clone()),
            update_revision: Some(self.update.name.clone()),
            collision_count: Some(collisions),
            conditions: self.set.status.as_ref().and_then(|status| status.conditions.clone()),
        };
        let desired = replicas(self.set);
        let is_complete = !is_on_delete(self.set)
            && status.updated_replicas == Some(desired)
            && status.ready_replicas == Some(desired)
            && status.replicas == desired;
        if is_complete {
            status.current_replicas = status.updated_replicas;
            status.current_revision.clone_from(&status.update_revision);
        }
        // Zero is omitted, as in Kubernetes, except for the available replicas.
        let counts = [
            &mut status.ready_replicas,
            &mut status.current_replicas,
            &mut status.updated_replicas,
        ];
        for number in counts {
            *number = number.filter(|number| *number != 0);
        }
        status
    }
}

/// The revision of a pod's template.
pub(super) fn revision(pod: &Pod) -> &str {
    let labels = pod.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(POD_REVISION)).map_or("", String::as_str)
}

fn is_parallel(set: &StatefulSet) -> bool {
    spec(set).pod_management_policy.as_deref() == Some("Parallel")
}

fn is_on_delete(set: &StatefulSet) -> bool {
    let strategy = spec(set).update_strategy.as_ref();
    strategy.and_then(|strategy| strategy.type_.as_deref()) == Some("OnDelete")
}

/// The first ordinal at or above the partition.
fn first_updated(set: &StatefulSet) -> i32 {
    let strategy = spec(set).update_strategy.as_ref();
    let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    let partition = rolling.and_then(|rolling| rolling.partition).unwrap_or(0);
    start(set).saturating_add(partition)
}

/// The number of pods that may be unavailable during a rollout; at least one.
fn max_unavailable(set: &StatefulSet) -> i32 {
    let strategy = spec(set).update_strategy.as_ref();
    let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    let wanted = rolling.and_then(|rolling| rolling.max_unavailable.as_ref());
    let wanted = wanted.and_then(|wanted| resolve(wanted, replicas(set), f64::ceil).ok());
    wanted.unwrap_or(1).max(1)
}

#[cfg(test)]
pub(super) mod tests;
