//! Tables: which pods are created and deleted on which nodes.

use serde_json::{Value, json};

use super::*;

const NOW: &str = "2026-01-01T00:01:00Z";

pub(crate) fn set(change: Value) -> DaemonSet {
    let mut value = json!({
        "metadata": {"name": "agent", "namespace": "shop", "uid": "set", "generation": 3},
        "spec": {"selector": {"matchLabels": {"app": "agent"}},
            "template": {"metadata": {"labels": {"app": "agent"}}, "spec": {"containers": []}}},
    });
    crate::fixture::merge(&mut value["spec"], &change);
    serde_json::from_value(value).unwrap()
}

pub(crate) fn node(name: &str, change: Value) -> Arc<Node> {
    let mut value = json!({"metadata": {"name": name}});
    crate::fixture::merge(&mut value, &change);
    Arc::new(serde_json::from_value(value).unwrap())
}

fn pod(name: &str, node: &str, revision: &str, change: Value) -> Arc<Pod> {
    let mut value = json!({
        "metadata": {"name": name, "uid": name, "labels": {POD_REVISION: revision}},
        "spec": {"nodeName": node},
    });
    crate::fixture::merge(&mut value, &change);
    Arc::new(serde_json::from_value(value).unwrap())
}

fn ready(name: &str, node: &str, revision: &str) -> Arc<Pod> {
    let since = "2026-01-01T00:00:30Z";
    let conditions = json!([{"type": "Ready", "status": "True", "lastTransitionTime": since}]);
    pod(name, node, revision, json!({"status": {"phase": "Running", "conditions": conditions}}))
}

fn plan_for(set: &DaemonSet, nodes: &[Arc<Node>], pods: &[Arc<Pod>]) -> DaemonPlan {
    SetState { set, revision: "new", pods, nodes, now: NOW.parse().unwrap() }.plan()
}

/// Three nodes without taints.
fn nodes() -> Vec<Arc<Node>> {
    ["n1", "n2", "n3"].map(|name| node(name, json!({}))).into()
}

#[track_caller]
fn check(change: Value, pods: &[Arc<Pod>], create: &[&str], delete: &[&str]) {
    let plan = plan_for(&set(change), &nodes(), pods);
    let deleted: Vec<&str> = plan.delete.iter().map(|pod| pod.name()).collect();
    assert_eq!((plan.create.as_slice(), deleted.as_slice()), (owned(create).as_slice(), delete));
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn rolling(change: Value) -> Value {
    json!({"updateStrategy": {"rollingUpdate": change}})
}

#[test]
fn each_node_runs_one_pod() {
    check(json!({}), &[], &["n1", "n2", "n3"], &[]);
    let one = ready("a", "n1", "new");
    check(json!({}), std::slice::from_ref(&one), &["n2", "n3"], &[]);
    let older = json!({"metadata": {"creationTimestamp": "2025-01-01T00:00:00Z"}});
    let later = json!({"metadata": {"creationTimestamp": "2025-01-02T00:00:00Z"}});
    let two = [pod("b", "n1", "new", later), pod("c", "n1", "new", older)];
    check(json!({}), &two, &["n2", "n3"], &["b"]);
    // A pod that is being deleted must be gone before the next one is created.
    let ends = pod("a", "n1", "new", json!({"metadata": {"deletionTimestamp": NOW}}));
    check(json!({}), &[ends, ready("b", "n2", "new"), ready("c", "n3", "new")], &[], &[]);
}

#[test]
fn pods_are_deleted_where_they_should_not_run() {
    let everywhere = [ready("a", "n1", "new"), ready("b", "n2", "new"), ready("c", "n3", "new")];
    check(json!({"template": {"spec": {"nodeName": "n2"}}}), &everywhere, &[], &["a", "c"]);
    let pinned = json!({"spec": {"nodeName": null, "affinity": {"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gone"]}]},
        ]},
    }}}});
    let stranded = pod("d", "", "new", pinned);
    let mut pods = everywhere.to_vec();
    pods.extend([stranded, ready("e", "also-gone", "new")]);
    check(json!({}), &pods, &[], &["d"]);
}

#[test]
fn a_pod_that_ended_is_deleted() {
    let failed = pod("a", "n1", "new", json!({"status": {"phase": "Failed"}}));
    let plan = plan_for(&set(json!({})), &nodes(), &[failed]);
    assert_eq!(plan.ended.len(), 1);
    assert_eq!(plan.create, ["n2", "n3"]);
}

#[test]
fn a_rolling_update_respects_the_unavailable_limit() {
    let old = || [ready("a", "n1", "old"), ready("b", "n2", "old"), ready("c", "n3", "old")];
    check(json!({}), &old(), &[], &["a"]);
    check(rolling(json!({"maxUnavailable": 2})), &old(), &[], &["a", "b"]);
    check(rolling(json!({"maxUnavailable": "34%"})), &old(), &[], &["a", "b"]);
    check(json!({"updateStrategy": {"type": "OnDelete"}}), &old(), &[], &[]);
    let [_, two, three] = old();
    check(json!({}), &[pod("a", "n1", "new", json!({})), two.clone(), three.clone()], &[], &[]);
    check(json!({}), &[ready("a", "n1", "new"), two.clone(), three.clone()], &[], &["b"]);
    // An old pod that is not available is replaced without regard to the limit.
    let broken = pod("a", "n1", "old", json!({}));
    check(json!({}), &[broken, two.clone(), three.clone()], &[], &["a"]);
    // Nothing is replaced while a pod is missing.
    check(json!({}), &[two, three], &["n1"], &[]);
}

#[test]
fn a_surge_creates_the_new_pod_before_the_old_one_is_deleted() {
    let surge = |number: i32| rolling(json!({"maxSurge": number, "maxUnavailable": 0}));
    let old = || vec![ready("a", "n1", "old"), ready("b", "n2", "old"), ready("c", "n3", "old")];
    check(surge(1), &old(), &["n1"], &[]);
    check(surge(2), &old(), &["n1", "n2"], &[]);
    let mut starts = old();
    starts.push(pod("d", "n1", "new", json!({})));
    check(surge(1), &starts, &[], &[]);
    let mut runs = old();
    runs.push(ready("d", "n1", "new"));
    check(surge(1), &runs, &[], &["a"]);
    let mut patient = surge(1);
    patient["minReadySeconds"] = json!(20);
    let since = "2026-01-01T00:00:50Z";
    let conditions = json!([{"type": "Ready", "status": "True", "lastTransitionTime": since}]);
    starts[3] = pod("d", "n1", "new", json!({"status": {"conditions": conditions}}));
    check(patient, &starts, &[], &[]);
    let mut broken = old();
    broken[2] = pod("c", "n3", "old", json!({}));
    check(surge(1), &broken, &["n3", "n1"], &[]);
}

#[test]
fn the_status_counts_nodes() {
    let mut all = nodes();
    all.push(node("n4", json!({"spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]}})));
    let pods = [ready("a", "n1", "new"), ready("b", "n2", "old"), pod("c", "n4", "new", json!({}))];
    let set = set(json!({"minReadySeconds": 10, "updateStrategy": {"type": "OnDelete"}}));
    let plan = plan_for(&set, &all, &pods);
    let status = &plan.status;
    assert_eq!((status.desired_number_scheduled, status.current_number_scheduled), (3, 2));
    assert_eq!((status.number_ready, status.number_misscheduled), (2, 1));
    assert_eq!((status.updated_number_scheduled, status.number_available), (Some(1), Some(2)));
    assert_eq!((status.number_unavailable, status.observed_generation), (Some(1), Some(3)));
    assert!(plan.delete.is_empty(), "a pod on a node that starts none stays");
    let patient = super::tests::set(json!({"minReadySeconds": 50}));
    let plan = plan_for(&patient, &nodes(), &pods);
    assert_eq!(plan.next_check, Some(Duration::from_secs(20)));
}

#[test]
fn a_set_that_is_being_deleted_does_nothing() {
    let mut set = set(json!({}));
    set.metadata.deletion_timestamp = Some(serde_json::from_value(json!(NOW)).unwrap());
    assert!(plan_for(&set, &nodes(), &[]).create.is_empty());
}
