//! The next writes of a rollout, decided from the current ReplicaSets.
//!
//! Every pass returns only the writes that are due now, and none that depends on their result. The
//! written objects arrive through the caches and start the next pass, so a rollout can be
//! interrupted after any write.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, ReplicaSet};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::int_or_percent::resolve;

use super::sets::{
    DESIRED_REPLICAS, MAX_REPLICAS, ReplicaLimits, ReplicaSets, annotation, annotations_for,
    available, counts, new_replica_set, replicas, revision, spec,
};

/// A write to a ReplicaSet.
#[derive(Debug, PartialEq)]
pub(super) enum SetWrite {
    /// Creates the set of a new template.
    Create(Box<ReplicaSet>),
    /// Sets the size, the annotations, and the Deployment's `minReadySeconds`.
    Update { set: Arc<ReplicaSet>, size: i32, annotations: BTreeMap<String, String> },
    /// Deletes a set beyond the revision history limit.
    Delete(Arc<ReplicaSet>),
}

/// The state from which the next writes are decided.
pub(super) struct Rollout<'a> {
    pub(super) deployment: &'a Deployment,
    pub(super) sets: &'a ReplicaSets,
    /// Whether pods of older templates still run; only `Recreate` uses it.
    pub(super) old_pods_run: bool,
    /// Whether all pods have the new template and are available.
    pub(super) is_complete: bool,
}

impl Rollout<'_> {
    /// The writes that are due now.
    pub(super) fn writes(&self) -> Vec<SetWrite> {
        let spec = spec(self.deployment);
        let paused = spec.paused == Some(true);
        if paused || self.is_resized() {
            let writes = self.resize();
            if !writes.is_empty() {
                return writes;
            }
        }
        match is_recreate(spec) {
            _ if paused => self.clean_up(),
            true => self.recreate(),
            false => self.roll(),
        }
    }

    /// Whether `spec.replicas` changed since the sets were last scaled.
    fn is_resized(&self) -> bool {
        let desired = limits(self.deployment).desired;
        self.sets.all().filter(|set| replicas(set) > 0).any(|set| {
            let known = annotation(&set.metadata, DESIRED_REPLICAS);
            known.and_then(|text| text.parse::<i32>().ok()).is_some_and(|known| known != desired)
        })
    }

    /// Scales the sets in proportion, so that a Deployment can be scaled during a rollout.
    fn resize(&self) -> Vec<SetWrite> {
        let ReplicaLimits { desired, max } = limits(self.deployment);
        if let Some(only) = self.active_or_latest() {
            return self.scale(only, desired);
        }
        if self.is_saturated() {
            return self.sets.old_active().flat_map(|set| self.scale(set, 0)).collect();
        }
        if is_recreate(spec(self.deployment)) {
            return vec![];
        }
        let active: Vec<&Arc<ReplicaSet>> =
            self.sets.all().filter(|set| replicas(set) > 0).collect();
        let allowed = if desired > 0 { max } else { 0 };
        let add = allowed.saturating_sub(self.sets.replicas());
        self.shares(active, add)
    }

    fn shares(&self, mut active: Vec<&Arc<ReplicaSet>>, add: i32) -> Vec<SetWrite> {
        let created = |set: &ReplicaSet| set.metadata.creation_timestamp.as_ref().map(|it| it.0);
        // Largest first; among equals the newest grows first and the oldest shrinks first.
        match add > 0 {
            true => active.sort_by_key(|set| (Reverse(replicas(set)), Reverse(created(set)))),
            false => active.sort_by_key(|set| (Reverse(replicas(set)), created(set))),
        }
        let mut left = add;
        let mut sizes = Vec::with_capacity(active.len());
        for set in &active {
            let share = self.share(set);
            let share = if add > 0 { share.min(left).max(0) } else { share.max(left).min(0) };
            sizes.push(replicas(set).saturating_add(share));
            left -= share;
        }
        if let Some(first) = sizes.first_mut() {
            *first = first.saturating_add(left).max(0); // the rounding error
        }
        active.into_iter().zip(sizes).flat_map(|(set, size)| self.scale(set, size)).collect()
    }

    /// The change that keeps a set's proportion of the total.
    fn share(&self, set: &ReplicaSet) -> i32 {
        let ReplicaLimits { desired, max } = limits(self.deployment);
        if desired == 0 {
            return -replicas(set);
        }
        let before = annotation(&set.metadata, MAX_REPLICAS).and_then(|text| text.parse().ok());
        let status = self.deployment.status.as_ref().and_then(|status| status.replicas);
        let before: i32 = before.or(status).unwrap_or(0);
        if before == 0 {
            return 0;
        }
        let size = f64::from(replicas(set)) * f64::from(max) / f64::from(before);
        (size.round() as i32).saturating_sub(replicas(set))
    }

    /// The only set with pods; the newest set if none has pods.
    fn active_or_latest(&self) -> Option<&Arc<ReplicaSet>> {
        let mut active = self.sets.all().filter(|set| replicas(set) > 0);
        match (active.next(), active.next()) {
            (None, _) => self.sets.new.as_ref().or(self.sets.old.last()),
            (only, None) => only,
            _ => None,
        }
    }

    /// Whether the new set has the desired number of pods, all available.
    fn is_saturated(&self) -> bool {
        let desired = limits(self.deployment).desired;
        self.sets.new.as_ref().is_some_and(|set| {
            let known = annotation(&set.metadata, DESIRED_REPLICAS);
            known == Some(&desired.to_string())
                && replicas(set) == desired
                && available(set) == desired
        })
    }

    /// Scales the new set up to the surge, then old sets down as far as availability allows.
    fn roll(&self) -> Vec<SetWrite> {
        let Some(new) = &self.sets.new else {
            return self.create(self.size_of_new(0));
        };
        let writes = self.update_metadata(new);
        if !writes.is_empty() {
            return writes;
        }
        let desired = limits(self.deployment).desired;
        let size = match replicas(new) {
            now if now > desired => desired,
            now => self.size_of_new(now),
        };
        if size != replicas(new) {
            return self.scale(new, size);
        }
        let writes = self.shrink_old(new);
        if writes.is_empty() && self.is_complete { self.clean_up() } else { writes }
    }

    /// The size that the new set may have now.
    fn size_of_new(&self, now: i32) -> i32 {
        let ReplicaLimits { desired, max } = limits(self.deployment);
        let room = max.saturating_sub(self.sets.replicas());
        if room <= 0 { now } else { now + room.min(desired.saturating_sub(now)) }
    }

    fn shrink_old(&self, new: &ReplicaSet) -> Vec<SetWrite> {
        let desired = limits(self.deployment).desired;
        let available_min = desired.saturating_sub(max_unavailable(spec(self.deployment)));
        let unavailable_new = replicas(new).saturating_sub(available(new));
        let removable = self.sets.replicas().saturating_sub(available_min);
        let may_go = removable.saturating_sub(unavailable_new);
        if may_go <= 0 {
            return vec![];
        }
        let mut sizes: Vec<(&Arc<ReplicaSet>, i32)> =
            self.sets.old_active().map(|set| (set, replicas(set))).collect();
        // Unavailable pods of old sets are removed first.
        let mut left = may_go;
        for (set, size) in &mut sizes {
            let broken = size.saturating_sub(available(set)).clamp(0, left);
            *size -= broken;
            left -= broken;
        }
        let available_now = self.sets.total(available);
        let mut left = available_now.saturating_sub(available_min).max(0);
        for (_, size) in &mut sizes {
            let gone = (*size).min(left);
            *size -= gone;
            left -= gone;
        }
        let changed = sizes.into_iter().filter(|(set, size)| replicas(set) != *size);
        changed.flat_map(|(set, size)| self.scale(set, size)).collect()
    }

    /// Scales old sets down to zero, then the new set up.
    fn recreate(&self) -> Vec<SetWrite> {
        let down: Vec<SetWrite> =
            self.sets.old_active().flat_map(|set| self.scale(set, 0)).collect();
        if !down.is_empty() {
            return down;
        }
        if self.old_pods_run {
            return vec![];
        }
        let desired = limits(self.deployment).desired;
        let Some(new) = &self.sets.new else { return self.create(desired) };
        let writes = self.update_metadata(new);
        if !writes.is_empty() {
            return writes;
        }
        match replicas(new) == desired {
            true if self.is_complete => self.clean_up(),
            true => vec![],
            false => self.scale(new, desired),
        }
    }

    fn create(&self, size: i32) -> Vec<SetWrite> {
        let set = new_replica_set(self.deployment, self.sets, limits(self.deployment), size);
        vec![SetWrite::Create(Box::new(set))]
    }

    /// Updates revision, annotations and `minReadySeconds` of the set with the current template,
    /// which may be an old set after a rollback.
    fn update_metadata(&self, new: &Arc<ReplicaSet>) -> Vec<SetWrite> {
        let mut annotations = annotations_for(self.deployment, new, self.sets.next_revision());
        annotations.extend(limits(self.deployment).annotations());
        let patience = |seconds: Option<i32>| seconds.unwrap_or(0);
        let known = new.spec.as_ref().and_then(|spec| spec.min_ready_seconds);
        let is_patient = patience(known) == patience(spec(self.deployment).min_ready_seconds);
        if is_patient && new.metadata.annotations.as_ref() == Some(&annotations) {
            return vec![];
        }
        vec![SetWrite::Update { set: Arc::clone(new), size: replicas(new), annotations }]
    }

    /// Sets the size of a set, and records the limits it is part of.
    fn scale(&self, set: &Arc<ReplicaSet>, size: i32) -> Vec<SetWrite> {
        let mut annotations = set.metadata.annotations.clone().unwrap_or_default();
        annotations.extend(limits(self.deployment).annotations());
        if size == replicas(set) && set.metadata.annotations.as_ref() == Some(&annotations) {
            return vec![];
        }
        vec![SetWrite::Update { set: Arc::clone(set), size, annotations }]
    }

    /// Deletes unused sets beyond `revisionHistoryLimit`, lowest revisions first.
    fn clean_up(&self) -> Vec<SetWrite> {
        let limit = spec(self.deployment).revision_history_limit.unwrap_or(10);
        if limit == i32::MAX {
            return vec![];
        }
        let living = self.sets.old.iter().filter(|set| set.metadata.deletion_timestamp.is_none());
        let mut living: Vec<&Arc<ReplicaSet>> = living.collect();
        living.sort_by_key(|set| revision(set));
        let surplus = living.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
        let gone = living.into_iter().take(surplus).filter(|set| is_idle(set));
        gone.map(|set| SetWrite::Delete(Arc::clone(set))).collect()
    }
}

/// Whether a set has no pods, desires none, and its status is up to date.
fn is_idle(set: &ReplicaSet) -> bool {
    let status = counts(set);
    replicas(set) == 0
        && status.replicas == 0
        && set.metadata.generation.unwrap_or(0) <= status.observed_generation.unwrap_or(0)
}

pub(super) fn is_recreate(spec: &DeploymentSpec) -> bool {
    spec.strategy.as_ref().and_then(|strategy| strategy.type_.as_deref()) == Some("Recreate")
}

pub(super) fn limits(deployment: &Deployment) -> ReplicaLimits {
    let spec = spec(deployment);
    let desired = spec.replicas.unwrap_or(1);
    ReplicaLimits { desired, max: desired.saturating_add(fenceposts(spec).0) }
}

/// The number of pods that may be unavailable during a rollout.
pub(super) fn max_unavailable(spec: &DeploymentSpec) -> i32 {
    let desired = spec.replicas.unwrap_or(1);
    if desired == 0 { 0 } else { fenceposts(spec).1.min(desired) }
}

/// `maxSurge` (percentages rounded up) and `maxUnavailable` (rounded down) in pods. They are never
/// both zero, or the rollout could not proceed.
fn fenceposts(spec: &DeploymentSpec) -> (i32, i32) {
    if is_recreate(spec) {
        return (0, 0);
    }
    let desired = spec.replicas.unwrap_or(1);
    let rolling = spec.strategy.as_ref().and_then(|strategy| strategy.rolling_update.as_ref());
    let surge = rolling.and_then(|rolling| rolling.max_surge.as_ref());
    let unavailable = rolling.and_then(|rolling| rolling.max_unavailable.as_ref());
    let surge = pods(surge, desired, f64::ceil);
    match pods(unavailable, desired, f64::floor) {
        0 if surge == 0 => (0, 1),
        unavailable => (surge, unavailable),
    }
}

/// An absolute number, or a percentage of `of`; 25 % by default.
fn pods(wanted: Option<&IntOrString>, of: i32, round: fn(f64) -> f64) -> i32 {
    let quarter = || round(f64::from(of) / 4.0) as i32;
    wanted.map_or_else(quarter, |wanted| resolve(wanted, of, round).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use headwater_client::Cached;
    use serde_json::{Value, json};

    use super::super::tests::{deployment, set, with};
    use super::*;

    #[test]
    fn the_largest_numbers_of_the_api_do_not_overflow() {
        for surge in [json!(i32::MAX), json!("100%")] {
            let rolling = json!({"maxSurge": surge, "maxUnavailable": 0});
            let deployment: Deployment = serde_json::from_value(json!({"spec": {
                "replicas": i32::MAX, "selector": {}, "template": {},
                "strategy": {"type": "RollingUpdate", "rollingUpdate": rolling},
            }}))
            .unwrap();
            let limits = limits(&deployment);
            assert_eq!((limits.desired, limits.max), (i32::MAX, i32::MAX));
        }
    }

    fn surge(surge: Value, unavailable: Value) -> Value {
        json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {
            "maxSurge": surge, "maxUnavailable": unavailable,
        }}}})
    }

    #[test]
    fn percentages_are_resolved_against_the_desired_replicas() {
        check_limits(10, surge(json!(2), json!(3)), 12, 3);
        check_limits(10, surge(json!("25%"), json!("25%")), 13, 2);
        check_limits(3, surge(json!("25%"), json!("25%")), 4, 0);
        check_limits(1, surge(json!(0), json!("25%")), 1, 1);
        check_limits(2, surge(json!(0), json!(5)), 2, 2);
        check_limits(0, surge(json!(1), json!(1)), 1, 0);
        check_limits(4, json!({}), 5, 1);
        check_limits(4, json!({"spec": {"strategy": {"type": "Recreate"}}}), 4, 0);
    }

    #[track_caller]
    fn check_limits(desired: i32, change: Value, max: i32, unavailable: i32) {
        let deployment = with(deployment(desired, "v1"), change);
        assert_eq!(limits(&deployment), ReplicaLimits { desired, max });
        assert_eq!(max_unavailable(spec(&deployment)), unavailable);
    }

    /// A set with the annotations of these limits.
    fn sized(name: &str, image: &str, size: i32, ready: i32, of: (i32, i32)) -> Arc<ReplicaSet> {
        let mut set = (*set(name, image, size)).clone();
        let annotations = set.metadata.annotations.get_or_insert_default();
        annotations.extend(ReplicaLimits { desired: of.0, max: of.1 }.annotations());
        let status = set.status.get_or_insert_default();
        (status.replicas, status.available_replicas) = (size, Some(ready));
        Arc::new(set)
    }

    fn writes(
        deployment: &Deployment,
        sets: &[Arc<ReplicaSet>],
        old_pods_run: bool,
    ) -> Vec<String> {
        let mut sets = ReplicaSets::of(deployment, sets);
        if let Some(new) = sets.new.take() {
            // The revision is already written, so that only sizes remain to be decided.
            let mut new = (*new).clone();
            let annotations = annotations_for(deployment, &new, sets.next_revision());
            new.metadata.annotations = Some(annotations);
            sets.new = Some(Arc::new(new));
        }
        let is_complete = sets.old_active().next().is_none();
        let rollout = Rollout { deployment, sets: &sets, old_pods_run, is_complete };
        let each = rollout.writes().into_iter().map(|write| match write {
            SetWrite::Create(set) => format!("create {}", replicas(&set)),
            SetWrite::Update { set, size, .. } => format!("{} {size}", set.name()),
            SetWrite::Delete(set) => format!("delete {}", set.name()),
        });
        each.collect()
    }

    #[track_caller]
    fn check(deployment: &Deployment, sets: &[Arc<ReplicaSet>], expected: &[&str]) {
        assert_eq!(writes(deployment, sets, false), expected);
    }

    #[test]
    fn a_rollout_respects_max_surge_and_max_unavailable() {
        let deployment = with(deployment(10, "v2"), surge(json!(2), json!(3)));
        let all = (10, 12);
        let old = |size, ready| sized("old", "v1", size, ready, all);
        let new = |size, ready| sized("new", "v2", size, ready, all);
        check(&deployment, &[], &["create 10"]);
        check(&deployment, &[old(10, 10)], &["create 2"]);
        check(&deployment, &[old(10, 10), new(2, 0)], &["old 7"]);
        check(&deployment, &[old(7, 7), new(2, 0)], &["new 5"]);
        check(&deployment, &[old(7, 7), new(5, 0)], &[]);
        check(&deployment, &[old(7, 7), new(5, 1)], &["old 6"]);
        check(&deployment, &[old(7, 7), new(5, 5)], &["old 2"]);
        check(&deployment, &[old(2, 2), new(10, 5)], &[]);
        check(&deployment, &[old(2, 2), new(10, 8)], &["old 0"]);
        check(&deployment, &[old(0, 0), new(10, 10)], &[]);
    }

    #[test]
    fn unavailable_old_pods_are_removed_first() {
        let deployment = with(deployment(10, "v3"), surge(json!(0), json!(2)));
        let sets = [
            sized("a", "v1", 4, 4, (10, 10)),
            sized("b", "v2", 6, 3, (10, 10)),
            sized("new", "v3", 0, 0, (10, 10)),
        ];
        check(&deployment, &sets, &["b 4"]);
    }

    #[test]
    fn a_rollout_without_surge_still_proceeds() {
        let deployment = with(deployment(1, "v2"), surge(json!(0), json!("25%")));
        let sets = [sized("old", "v1", 1, 1, (1, 1)), sized("new", "v2", 0, 0, (1, 1))];
        check(&deployment, &sets, &["old 0"]);
    }

    #[test]
    fn recreate_waits_for_the_last_old_pod() {
        let recreate = json!({"spec": {"strategy": {"type": "Recreate"}}});
        let deployment = with(deployment(3, "v2"), recreate);
        check(&deployment, &[sized("old", "v1", 3, 3, (3, 3))], &["old 0"]);
        let gone = [sized("old", "v1", 0, 0, (3, 3))];
        assert_eq!(writes(&deployment, &gone, true), [""; 0]);
        check(&deployment, &gone, &["create 3"]);
        let sets = [gone[0].clone(), sized("new", "v2", 0, 0, (3, 3))];
        check(&deployment, &sets, &["new 3"]);
    }

    #[test]
    fn scaling_during_a_rollout_is_proportional() {
        let sets = [sized("old", "v1", 9, 9, (10, 15)), sized("new", "v2", 6, 0, (10, 15))];
        let wanted = |size, extra: i32| with(deployment(size, "v2"), surge(json!(extra), json!(0)));
        // 15 pods were allowed (10 + 5), now 25: both sets grow by two thirds.
        check(&wanted(20, 5), &sets, &["old 15", "new 10"]);
        check(&wanted(5, 5), &sets, &["old 6", "new 4"]);
        check(&wanted(0, 5), &sets, &["old 0", "new 0"]);
        // The rounding error goes to the largest set; among equals the newest grows first.
        let three = [
            sized("a", "v0", 1, 1, (2, 3)),
            sized("b", "v1", 1, 1, (2, 3)),
            sized("new", "v2", 1, 1, (2, 3)),
        ];
        check(&wanted(3, 1), &three, &["new 2", "b 1", "a 1"]);
    }

    #[test]
    fn a_single_set_takes_the_new_size() {
        let sets = [sized("new", "v1", 3, 3, (3, 4))];
        check(&deployment(5, "v1"), &sets, &["new 5"]);
        check(&deployment(0, "v1"), &sets, &["new 0"]);
        // Scaling up from zero updates the annotations first, then the size.
        check(&deployment(2, "v1"), &[sized("new", "v1", 0, 0, (0, 0))], &["new 0"]);
        check(&deployment(2, "v1"), &[sized("new", "v1", 0, 0, (2, 3))], &["new 2"]);
    }

    #[test]
    fn a_new_min_ready_seconds_is_copied_to_the_set() {
        let patient = with(deployment(3, "v1"), json!({"spec": {"minReadySeconds": 5}}));
        check(&patient, &[sized("new", "v1", 3, 3, (3, 4))], &["new 3"]);
        let mut set = (*sized("new", "v1", 3, 3, (3, 4))).clone();
        set.spec.as_mut().unwrap().min_ready_seconds = Some(5);
        check(&patient, &[Arc::new(set)], &[]);
    }

    #[test]
    fn a_paused_deployment_scales_but_does_not_roll_out() {
        let paused = |size| with(deployment(size, "v2"), json!({"spec": {"paused": true}}));
        check(&paused(3), &[sized("old", "v1", 3, 3, (3, 4))], &[]);
        check(&paused(5), &[sized("old", "v1", 3, 3, (3, 4))], &["old 5"]);
        check(&paused(3), &[], &[]);
    }

    #[test]
    fn history_beyond_its_limit_is_deleted_lowest_revision_first() {
        let deployment = with(deployment(1, "v9"), json!({"spec": {"revisionHistoryLimit": 1}}));
        let old = |name: &str, image: &str, revision: &str| {
            let mut set = (*sized(name, image, 0, 0, (1, 2))).clone();
            let annotations = set.metadata.annotations.get_or_insert_default();
            annotations.insert(super::super::sets::REVISION.into(), revision.into());
            Arc::new(set)
        };
        let mut sets = vec![
            old("c", "v3", "10"),
            old("a", "v1", "9"),
            old("b", "v2", "2"),
            sized("new", "v9", 1, 1, (1, 2)),
        ];
        check(&deployment, &sets, &["delete b", "delete a"]);
        let mut busy = (*sets[2]).clone();
        busy.status.get_or_insert_default().replicas = 1;
        sets[2] = Arc::new(busy);
        check(&deployment, &sets, &["delete a"]);
    }
}
