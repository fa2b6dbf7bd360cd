//! Tables: which writes are due for which pods.

use serde_json::{Value, json};

use super::*;

const NOW: &str = "2026-01-01T00:01:00Z";

pub(crate) fn set(change: Value) -> StatefulSet {
    let mut value = json!({
        "metadata": {"name": "db", "namespace": "shop", "uid": "set", "generation": 3},
        "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "db"}},
            "template": {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": []}}},
    });
    crate::fixture::merge(&mut value["spec"], &change);
    serde_json::from_value(value).unwrap()
}

pub(crate) fn pod(name: &str, change: Value) -> Arc<Pod> {
    let mut value =
        json!({"metadata": {"name": name, "uid": name, "labels": {POD_REVISION: "new"}}});
    crate::fixture::merge(&mut value, &change);
    Arc::new(serde_json::from_value(value).unwrap())
}

fn ready(name: &str, revision: &str) -> Arc<Pod> {
    let since = "2026-01-01T00:00:30Z";
    pod(
        name,
        json!({"metadata": {"labels": {POD_REVISION: revision}}, "status": {"phase": "Running",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": since}]}}),
    )
}

fn deleting(name: &str) -> Arc<Pod> {
    let mut pod = (*ready(name, "new")).clone();
    pod.metadata.deletion_timestamp = Some(serde_json::from_value(json!(NOW)).unwrap());
    Arc::new(pod)
}

fn revision_named(name: &str) -> TemplateRevision {
    TemplateRevision { name: name.to_owned(), template: PodTemplateSpec::default() }
}

fn claim(name: &str, change: Value) -> (String, Arc<PersistentVolumeClaim>) {
    let mut value = json!({"metadata": {"name": name}});
    crate::fixture::merge(&mut value, &change);
    (name.to_owned(), Arc::new(serde_json::from_value(value).unwrap()))
}

fn with_state<T>(
    set: &StatefulSet,
    pods: &[Arc<Pod>],
    claims: &BTreeMap<String, Arc<PersistentVolumeClaim>>,
    read: impl FnOnce(&SetState<'_>) -> T,
) -> T {
    let (current, update) = (revision_named("old"), revision_named("new"));
    let now = NOW.parse().unwrap();
    read(&SetState { set, current: &current, update: &update, pods, claims, now })
}

/// The writes as words: `+db-0@new`, `-db-1`, `+claim data-db-0`, `~claim data-db-0`.
fn words(
    set: &StatefulSet,
    pods: &[Arc<Pod>],
    claims: &BTreeMap<String, Arc<PersistentVolumeClaim>>,
) -> Vec<String> {
    let word = |write: SetWrite| match write {
        SetWrite::CreateClaim { claim, .. } => format!("+claim {}", claim.name()),
        SetWrite::CreatePod(pod) => {
            format!("+{}@{}", pod.name(), pod.metadata.labels.as_ref().unwrap()[POD_REVISION])
        }
        SetWrite::DeletePod(pod) => format!("-{}", pod.name()),
        SetWrite::SetClaimOwners { claim, .. } => format!("~claim {}", claim.name()),
    };
    with_state(set, pods, claims, |state| state.writes().into_iter().map(word).collect())
}

#[track_caller]
fn check(change: Value, pods: &[Arc<Pod>], expected: &[&str]) {
    assert_eq!(words(&set(change), pods, &BTreeMap::new()), expected);
}

#[test]
fn ordered_pods_are_created_one_after_the_other() {
    check(json!({}), &[], &["+db-0@new"]);
    check(json!({}), &[pod("db-0", json!({}))], &[]);
    check(json!({}), &[ready("db-0", "new")], &["+db-1@new"]);
    check(json!({}), &[ready("db-0", "new"), ready("db-2", "new")], &["+db-1@new"]);
    check(json!({}), &[deleting("db-0"), ready("db-1", "new")], &[]);
    check(json!({"minReadySeconds": 60}), &[ready("db-0", "new")], &[]);
    check(json!({"minReadySeconds": 30}), &[ready("db-0", "new")], &["+db-1@new"]);
    check(json!({"ordinals": {"start": 5}}), &[], &["+db-5@new"]);
    check(json!({"replicas": 0}), &[], &[]);
}

#[test]
fn parallel_pods_are_created_at_once() {
    let parallel = json!({"podManagementPolicy": "Parallel"});
    check(parallel.clone(), &[], &["+db-0@new", "+db-1@new", "+db-2@new"]);
    check(parallel.clone(), &[pod("db-1", json!({}))], &["+db-0@new", "+db-2@new"]);
    let finished = pod("db-0", json!({"status": {"phase": "Failed"}}));
    check(parallel, &[finished], &["-db-0", "+db-1@new", "+db-2@new"]);
}

#[test]
fn a_finished_pod_is_replaced() {
    for phase in ["Failed", "Succeeded"] {
        check(json!({}), &[pod("db-0", json!({"status": {"phase": phase}}))], &["-db-0"]);
    }
}

#[test]
fn surplus_pods_are_deleted_from_the_highest_ordinal() {
    let all = || (0..5).map(|ordinal| ready(&format!("db-{ordinal}"), "new")).collect::<Vec<_>>();
    check(json!({"replicas": 2}), &all(), &["-db-4"]);
    let parallel = json!({"replicas": 2, "podManagementPolicy": "Parallel"});
    check(parallel, &all(), &["-db-4", "-db-3", "-db-2"]);
    let mut one_ends = all();
    one_ends[4] = deleting("db-4");
    check(json!({"replicas": 2}), &one_ends, &[]);
    let mut unready = all();
    unready[4] = pod("db-4", json!({}));
    check(json!({"replicas": 2}), &unready, &["-db-4"]);
    unready[3] = pod("db-3", json!({}));
    check(json!({"replicas": 2}), &unready, &[]);
    // The ordinals before the start are surplus as well.
    check(json!({"replicas": 2, "ordinals": {"start": 1}}), &all()[..3], &["-db-0"]);
}

#[test]
fn a_rollout_replaces_pods_of_older_revisions_from_the_highest_ordinal() {
    let old = || [ready("db-0", "old"), ready("db-1", "old"), ready("db-2", "old")];
    check(json!({}), &old(), &["-db-2"]);
    let [zero, one, _] = old();
    check(json!({}), &[zero.clone(), one.clone(), ready("db-2", "new")], &["-db-1"]);
    check(json!({}), &[zero.clone(), one.clone(), pod("db-2", json!({}))], &[]);
    check(json!({}), &[zero, one, deleting("db-2")], &[]);
    let rolling = |change: Value| json!({"updateStrategy": {"rollingUpdate": change}});
    check(rolling(json!({"partition": 2})), &old(), &["-db-2"]);
    check(rolling(json!({"partition": 3})), &old(), &[]);
    check(rolling(json!({"partition": i32::MAX})), &old(), &[]);
    check(rolling(json!({"maxUnavailable": 2})), &old(), &["-db-2", "-db-1"]);
    check(rolling(json!({"maxUnavailable": "34%"})), &old(), &["-db-2", "-db-1"]);
    check(json!({"updateStrategy": {"type": "OnDelete"}}), &old(), &[]);
    // A missing pod below the partition gets the current revision.
    check(rolling(json!({"partition": 2})), &[], &["+db-0@old"]);
    check(json!({"updateStrategy": {"type": "OnDelete"}}), &[], &["+db-0@new"]);
    // A parallel rollout replaces a broken pod of an older revision.
    let parallel = json!({"podManagementPolicy": "Parallel"});
    let broken = pod("db-2", json!({"metadata": {"labels": {POD_REVISION: "old"}}}));
    let [zero, one, _] = old();
    check(parallel, &[zero, one, broken], &["-db-2"]);
}

#[test]
fn claims_are_created_before_their_pod() {
    let templates = json!([{"metadata": {"name": "data"}}, {"metadata": {"name": "log"}}]);
    let one = set(json!({"volumeClaimTemplates": templates, "replicas": 1}));
    let all = ["+claim data-db-0", "+claim log-db-0", "+db-0@new"];
    assert_eq!(words(&one, &[], &BTreeMap::new()), all);
    let data = BTreeMap::from([claim("data-db-0", json!({}))]);
    assert_eq!(words(&one, &[], &data), ["+claim log-db-0", "+db-0@new"]);
    let pending = [pod("db-0", json!({}))];
    assert_eq!(words(&one, &pending, &data), ["+claim log-db-0"]);
    let ends =
        BTreeMap::from([claim("data-db-0", json!({"metadata": {"deletionTimestamp": NOW}}))]);
    assert!(words(&one, &[], &ends).is_empty(), "the claim must be gone first");
    let owners = json!([{"apiVersion": "v1", "kind": "Pod", "name": "db-0", "uid": "earlier"}]);
    let stale = claim("data-db-0", json!({"metadata": {"ownerReferences": owners}}));
    assert!(words(&one, &[], &BTreeMap::from([stale])).is_empty());
}

#[test]
fn a_surplus_pod_owns_its_claims_before_it_is_deleted() {
    let one = set(json!({
        "replicas": 1, "volumeClaimTemplates": [{"metadata": {"name": "data"}}],
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Delete"},
    }));
    let pods = [ready("db-0", "new"), ready("db-1", "new")];
    let claims = BTreeMap::from([claim("data-db-0", json!({})), claim("data-db-1", json!({}))]);
    assert_eq!(words(&one, &pods, &claims), ["~claim data-db-1", "-db-1"]);
}

#[test]
fn a_set_that_is_being_deleted_does_nothing() {
    let mut set = set(json!({}));
    set.metadata.deletion_timestamp = Some(serde_json::from_value(json!(NOW)).unwrap());
    assert!(words(&set, &[], &BTreeMap::new()).is_empty());
}

#[test]
fn the_largest_numbers_of_the_api_do_not_overflow() {
    let change = json!({
        "replicas": i32::MAX, "ordinals": {"start": i32::MAX}, "podManagementPolicy": "Parallel",
        "updateStrategy": {"rollingUpdate": {"partition": i32::MAX, "maxUnavailable": "100%"}},
    });
    assert!(words(&set(change), &[], &BTreeMap::new()).is_empty());
    let many = json!({"replicas": i32::MAX, "podManagementPolicy": "Parallel"});
    assert_eq!(words(&set(many), &[], &BTreeMap::new()).len(), BURST_MAX + 1);
}

#[test]
fn the_status_counts_pods_by_revision_until_the_rollout_is_complete() {
    let status = |pods: &[Arc<Pod>]| {
        with_state(&set(json!({})), pods, &BTreeMap::new(), |state| state.status(0))
    };
    let half = status(&[ready("db-0", "old"), ready("db-1", "new"), pod("db-2", json!({}))]);
    assert_eq!((half.replicas, half.ready_replicas), (3, Some(2)));
    assert_eq!((half.current_replicas, half.updated_replicas), (Some(1), Some(2)));
    assert_eq!(half.current_revision.as_deref(), Some("old"));
    assert_eq!((half.observed_generation, half.collision_count), (Some(3), Some(0)));
    let done = status(&[ready("db-0", "new"), ready("db-1", "new"), ready("db-2", "new")]);
    assert_eq!(done.current_revision.as_deref(), Some("new"));
    assert_eq!((done.current_replicas, done.available_replicas), (Some(3), Some(3)));
    let none = status(&[]);
    assert_eq!((none.ready_replicas, none.available_replicas), (None, Some(0)));
}

#[test]
fn a_ready_pod_becomes_available_by_the_passing_of_time() {
    let set = set(json!({"minReadySeconds": 40}));
    let wait =
        with_state(&set, &[ready("db-0", "new")], &BTreeMap::new(), |state| state.next_check());
    assert_eq!(wait, Some(Duration::from_secs(10)));
}
