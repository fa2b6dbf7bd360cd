//! Scheduling decisions as tables: a cluster, a pod, and the chosen node or the reported reason.

use std::sync::Arc;
use std::time::Duration;

use headwater_client::{Cached, Key};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::cache::SchedulerCache;
use super::pod_info::PodInfo;
use super::queue::SchedulingQueue;
use super::reason::ClusterEvent;
use super::schedule_one::{FitError, ScheduleResult, schedule_pod};
use crate::pod::Pod;

/// A node with four CPUs, 8 GiB and at most ten pods.
fn node(name: &str, spec: Value, labels: Value) -> Arc<Node> {
    let mut all = json!({"kubernetes.io/hostname": name});
    all.as_object_mut().unwrap().extend(labels.as_object().unwrap().clone());
    let allocatable = json!({"cpu": "4", "memory": "8Gi", "pods": "10"});
    let node = json!({
        "metadata": {"name": name, "labels": all},
        "spec": spec, "status": {"allocatable": allocatable},
    });
    Arc::new(serde_json::from_value(node).unwrap())
}

/// A pod that requests CPU, with more fields in its spec.
fn pod(name: &str, cpu: &str, more: Value) -> Arc<PodInfo> {
    let mut spec = json!({"containers": [
        {"name": "c", "resources": {"requests": {"cpu": cpu}}},
    ]});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    pod_info(json!({"name": name, "namespace": "a", "uid": name, "labels": {"app": "web"}}), spec)
}

fn pod_info(metadata: Value, spec: Value) -> Arc<PodInfo> {
    let text = json!({"metadata": metadata, "spec": spec}).to_string();
    Arc::new(PodInfo::new(Arc::new(Pod::decode(&text).unwrap())))
}

fn cluster(nodes: &[Arc<Node>], assigned: &[(&str, Arc<PodInfo>)]) -> SchedulerCache {
    let mut cache = SchedulerCache::default();
    for node in nodes {
        cache.set_node(node);
    }
    for (node, pod_info) in assigned {
        cache.assign(pod_info, node);
    }
    cache
}

fn plain(name: &str) -> Arc<Node> {
    node(name, json!({}), json!({}))
}

fn in_zone(name: &str, zone: &str) -> Arc<Node> {
    node(name, json!({}), json!({"zone": zone}))
}

fn outcome(cache: &SchedulerCache, pod_info: &PodInfo) -> Result<String, FitError> {
    match schedule_pod(pod_info, cache, &mut String::new()) {
        ScheduleResult::Bind(node) => Ok(node),
        ScheduleResult::BindClaims { node, .. } => Ok(format!("{node}, for claims")),
        ScheduleResult::Unschedulable(fit_error) => Err(fit_error),
    }
}

#[track_caller]
fn is_assigned_to(cache: &SchedulerCache, pod_info: &PodInfo, expected: &str) {
    assert_eq!(
        outcome(cache, pod_info).map_err(|fit_error| fit_error.message),
        Ok(expected.to_owned())
    );
}

#[track_caller]
fn is_unschedulable(cache: &SchedulerCache, pod_info: &PodInfo, expected: &str) {
    let message = outcome(cache, pod_info).unwrap_err().message;
    assert!(message.starts_with(expected), "{message}");
}

#[test]
fn node_selectors_affinity_taints_and_cordons_restrict_a_pod() {
    let tainted = json!({"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]});
    let nodes = [
        node("closed", json!({"unschedulable": true}), json!({})),
        node("tainted", tainted, json!({})),
        node("ssd", json!({}), json!({"disk": "ssd", "size": "5"})),
    ];
    let cache = cluster(&nodes, &[]);
    let here = |more: Value, expected: &str| is_assigned_to(&cache, &pod("p", "1", more), expected);
    let nowhere =
        |more: Value, expected: &str| is_unschedulable(&cache, &pod("p", "1", more), expected);
    let required = |rules: Value| {
        let terms = json!({"nodeSelectorTerms": [rules]});
        json!({"affinity": {"nodeAffinity":
            {"requiredDuringSchedulingIgnoredDuringExecution": terms}}})
    };
    here(json!({}), "ssd");
    here(json!({"nodeSelector": {"disk": "ssd"}}), "ssd");
    let size = |operator: &str, value: &str| {
        required(json!({"matchExpressions":
            [{"key": "size", "operator": operator, "values": [value]}]}))
    };
    here(size("Gt", "4"), "ssd");
    nowhere(
        size("Lt", "5"),
        "0/3 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, \
         1 node(s) had untolerated taint(s), 1 node(s) were unschedulable.",
    );
    nowhere(required(json!({})), "0/3 nodes are available: 1 node(s) didn't match Pod's");
    let by_name = json!({"matchFields":
        [{"key": "metadata.name", "operator": "In", "values": ["closed"]}]});
    let mut to_closed = required(by_name);
    to_closed["tolerations"] = json!([{"operator": "Exists"}]);
    here(to_closed, "closed");
    let gpu = |toleration: Value| json!({"nodeSelector": {"kubernetes.io/hostname": "tainted"}, "tolerations": [toleration]});
    here(gpu(json!({"key": "gpu", "value": "yes"})), "tainted");
    here(gpu(json!({"key": "gpu", "operator": "Exists", "effect": "NoSchedule"})), "tainted");
    nowhere(gpu(json!({"key": "gpu", "value": "no"})), "0/3");
    nowhere(gpu(json!({"key": "gpu", "operator": "Exists", "effect": "NoExecute"})), "0/3");
}

#[test]
fn a_pod_fits_only_where_resources_are_free() {
    let placed = [("n1", pod("big", "3500m", json!({}))), ("n2", pod("small", "1", json!({})))];
    let cache = cluster(&[plain("n1"), plain("n2")], &placed);
    is_assigned_to(&cache, &pod("p", "1", json!({})), "n2");
    is_unschedulable(
        &cache,
        &pod("p", "5", json!({})),
        "0/2 nodes are available: 2 Insufficient cpu. preemption: 0/2 nodes are available: \
         2 No preemption victims found for incoming pod.",
    );
    let none = cluster(&[], &[]);
    is_unschedulable(&none, &pod("p", "1", json!({})), "no nodes available to schedule pods");
    let many: Vec<_> = (0..10).map(|n| ("n1", pod(&format!("p{n}"), "0", json!({})))).collect();
    let full = cluster(&[plain("n1")], &many);
    is_unschedulable(&full, &pod("p", "0", json!({})), "0/1 nodes are available: 1 Too many pods.");
}

#[test]
fn a_host_port_is_occupied_once_per_address_and_protocol() {
    let with_port = |name: &str, port: Value| {
        pod_info(
            json!({"name": name, "namespace": "a", "uid": name}),
            json!({"containers": [{"name": "c", "ports": [port]}]}),
        )
    };
    let port = |number: i32, ip: &str, protocol: &str| json!({"containerPort": 80, "hostPort": number, "hostIP": ip, "protocol": protocol});
    let cache = cluster(&[plain("n1")], &[("n1", with_port("web", port(80, "10.0.0.1", "TCP")))]);
    let clash = "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod";
    is_unschedulable(&cache, &with_port("p", port(80, "", "TCP")), clash);
    is_unschedulable(&cache, &with_port("p", port(80, "10.0.0.1", "TCP")), clash);
    is_assigned_to(&cache, &with_port("p", port(80, "10.0.0.2", "TCP")), "n1");
    is_assigned_to(&cache, &with_port("p", port(80, "", "UDP")), "n1");
    is_assigned_to(&cache, &with_port("p", port(81, "", "TCP")), "n1");
}

#[test]
fn topology_spread_constraints_limit_the_skew() {
    let spread = |skew: i32, min: Value| {
        json!({"topologySpreadConstraints": [{
            "maxSkew": skew, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
            "minDomains": min, "labelSelector": {"matchLabels": {"app": "web"}},
        }]})
    };
    let nodes = [in_zone("n1", "east"), in_zone("n2", "west"), plain("n3")];
    let placed = [("n1", pod("p1", "0", json!({}))), ("n1", pod("p2", "0", json!({})))];
    let cache = cluster(&nodes, &placed);
    is_assigned_to(&cache, &pod("p", "0", spread(1, Value::Null)), "n2");
    let full = [("n2", pod("full", "4", json!({"priority": 5}))), placed[0].clone()];
    is_unschedulable(
        &cluster(&nodes, &full),
        &pod("p", "1", spread(1, json!(5))),
        "0/3 nodes are available: 1 Insufficient cpu, 1 node(s) didn't match pod topology spread \
         constraints, 1 node(s) didn't match pod topology spread constraints (missing required \
         label).",
    );
    // A pod that does not match the constraint's selector does not add to the skew.
    let other = pod_info(
        json!({"name": "p", "namespace": "a", "uid": "p", "labels": {"app": "other"}}),
        json!({"containers": [], "topologySpreadConstraints":
            spread(2, Value::Null)["topologySpreadConstraints"],
            "nodeSelector": {"zone": "east"}}),
    );
    is_assigned_to(&cache, &other, "n1");
}

fn affinity(kind: &str, topology: &str, app: &str) -> Value {
    let term = json!([{"topologyKey": topology, "labelSelector": {"matchLabels": {"app": app}}}]);
    json!({"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": term}}})
}

#[test]
fn required_affinity_and_anti_affinity_restrict_domains() {
    let nodes = [in_zone("n1", "east"), in_zone("n2", "west")];
    let cache = cluster(&nodes, &[("n2", pod("p1", "0", json!({})))]);
    is_assigned_to(&cache, &pod("p", "0", affinity("podAffinity", "zone", "web")), "n2");
    is_assigned_to(&cache, &pod("p", "0", affinity("podAntiAffinity", "zone", "web")), "n1");
    is_unschedulable(
        &cache,
        &pod("p", "0", affinity("podAffinity", "zone", "db")),
        "0/2 nodes are available: 2 node(s) didn't match pod affinity rules.",
    );
    let first = cluster(&nodes, &[]);
    is_assigned_to(&first, &pod("p", "0", affinity("podAffinity", "zone", "web")), "n1");
    let exclusive = pod("exclusive", "0", affinity("podAntiAffinity", "zone", "web"));
    let both = [("n1", exclusive.clone()), ("n2", pod("p1", "0", json!({})))];
    is_unschedulable(
        &cluster(&nodes, &both),
        &also_exclusive(),
        "0/2 nodes are available: 1 node(s) didn't match pod anti-affinity rules, \
         1 node(s) didn't satisfy existing pods anti-affinity rules.",
    );
    is_assigned_to(&cluster(&nodes, &[("n1", exclusive)]), &pod("p", "0", json!({})), "n2");
}

fn also_exclusive() -> Arc<PodInfo> {
    pod("too", "0", affinity("podAntiAffinity", "kubernetes.io/hostname", "web"))
}

#[test]
fn the_feasible_node_with_the_highest_score_is_chosen() {
    let busy = [("n1", pod("busy", "2", json!({})))];
    let cache = cluster(&[plain("n1"), plain("n2")], &busy);
    is_assigned_to(&cache, &pod("p", "1", json!({})), "n2");
    let preferred = json!({"affinity": {"nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 10, "preference":
            {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}}]}}});
    let disk = cluster(&[plain("n1"), node("n2", json!({}), json!({"disk": "ssd"}))], &[]);
    is_assigned_to(&disk, &pod("p", "1", preferred), "n2");
    let soft = json!({"taints": [{"key": "old", "effect": "PreferNoSchedule"}]});
    let old = cluster(&[node("n1", soft, json!({})), plain("n2")], &[]);
    is_assigned_to(&old, &pod("p", "1", json!({})), "n2");
    let sibling = |name: &str| {
        let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r",
            "uid": "r", "controller": true}]);
        let metadata =
            json!({"name": name, "namespace": "a", "uid": name, "ownerReferences": owner});
        pod_info(metadata, json!({"containers": []}))
    };
    let filled = [("n2", pod("other", "1", json!({}))), ("n1", sibling("s1"))];
    is_assigned_to(&cluster(&[plain("n1"), plain("n2")], &filled), &sibling("s2"), "n2");
}

fn with_priority(name: &str, cpu: &str, priority: i32) -> Arc<PodInfo> {
    pod(name, cpu, json!({"priority": priority}))
}

#[track_caller]
fn preempts(cache: &SchedulerCache, pod_info: &PodInfo, node: &str, victims: &[&str]) {
    let preemption =
        outcome(cache, pod_info).unwrap_err().preemption.expect("a preemption is found");
    let names: Vec<&str> = preemption.victims.iter().map(|victim| victim.key.name()).collect();
    assert_eq!((preemption.node.as_str(), names.as_slice()), (node, victims));
}

#[test]
fn preemption_deletes_the_fewest_pods_of_the_lowest_priority() {
    let placed = [
        ("n1", with_priority("high", "3", 50)),
        ("n1", with_priority("low", "1", 1)),
        ("n2", with_priority("mid", "3", 10)),
        ("n2", with_priority("min", "1", 1)),
    ];
    let cache = cluster(&[plain("n1"), plain("n2")], &placed);
    preempts(&cache, &with_priority("p", "2", 100), "n2", &["mid"]);
    preempts(&cache, &with_priority("p", "1", 100), "n1", &["low"]);
    preempts(&cache, &with_priority("p", "4", 100), "n2", &["mid", "min"]);
    is_unschedulable(
        &cache,
        &with_priority("p", "2", 5),
        "0/2 nodes are available: 2 Insufficient cpu. preemption: 0/2 nodes are available: \
         2 No preemption victims found for incoming pod.",
    );
    let never = pod("p", "2", json!({"priority": 100, "preemptionPolicy": "Never"}));
    is_unschedulable(
        &cache,
        &never,
        "0/2 nodes are available: 2 Insufficient cpu. preemption: not eligible",
    );
}

/// A budget for pods with `app=web` that allows this many disruptions.
fn budget(allowed: i32, leaving: &[&str]) -> Arc<PodDisruptionBudget> {
    let leaving: serde_json::Map<String, Value> =
        leaving.iter().map(|name| ((*name).to_owned(), json!("2026-01-01T00:00:00Z"))).collect();
    let budget = json!({
        "metadata": {"name": "b", "namespace": "a"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}},
        "status": {
            "disruptionsAllowed": allowed, "currentHealthy": 1, "desiredHealthy": 1,
            "expectedPods": 1, "disruptedPods": leaving,
        },
    });
    Arc::new(serde_json::from_value(budget).unwrap())
}

#[test]
fn pods_protected_by_a_budget_are_preempted_last() {
    let free = |name: &str, cpu: &str, priority: i32| {
        let metadata =
            json!({"name": name, "namespace": "a", "uid": name, "labels": {"app": "db"}});
        let containers = json!([{"name": "c", "resources": {"requests": {"cpu": cpu}}}]);
        pod_info(metadata, json!({"containers": containers, "priority": priority}))
    };
    // The protected pod has the lowest priority, and still another pod is preempted.
    let placed = [("n1", with_priority("web", "2", 1)), ("n1", free("db", "2", 5))];
    let mut cache = cluster(&[plain("n1")], &placed);
    preempts(&cache, &with_priority("p", "2", 100), "n1", &["web"]);
    cache.budgets.put(&budget(0, &[]));
    preempts(&cache, &with_priority("p", "2", 100), "n1", &["db"]);
    cache.budgets.put(&budget(1, &[]));
    preempts(&cache, &with_priority("p", "2", 100), "n1", &["web"]);
    cache.budgets.put(&budget(0, &["web"]));
    preempts(&cache, &with_priority("p", "2", 100), "n1", &["web"]);
    // If there is no other victim, the budget is violated.
    cache.budgets.put(&budget(0, &[]));
    preempts(&cache, &with_priority("p", "4", 100), "n1", &["web", "db"]);
    // A node without violations is preferred, although its victims have a higher priority.
    let placed = [("n1", with_priority("web", "3", 1)), ("n2", free("db", "3", 50))];
    let mut cache = cluster(&[plain("n1"), plain("n2")], &placed);
    cache.budgets.put(&budget(0, &[]));
    preempts(&cache, &with_priority("p", "3", 100), "n2", &["db"]);
    cache.budgets.remove(&Key::namespaced("a", "b"));
    preempts(&cache, &with_priority("p", "3", 100), "n1", &["web"]);
}

#[test]
fn a_nominated_node_is_reserved_against_pods_of_lower_priority() {
    let mut cache = cluster(&[plain("n1")], &[]);
    cache.nominate(&with_priority("waits", "3", 10), "n1");
    is_unschedulable(
        &cache,
        &with_priority("p", "2", 5),
        "0/1 nodes are available: 1 Insufficient cpu.",
    );
    is_assigned_to(&cache, &with_priority("p", "2", 20), "n1");
    cache.remove_nomination(&Key::namespaced("a", "waits"));
    is_assigned_to(&cache, &with_priority("p", "2", 5), "n1");
}

#[test]
fn assumed_pods_count_until_they_are_forgotten() {
    let mut cache = cluster(&[plain("n1")], &[]);
    let first = pod("first", "3", json!({}));
    cache.assume(&first, "n1");
    is_unschedulable(
        &cache,
        &pod("p", "2", json!({})),
        "0/1 nodes are available: 1 Insufficient cpu.",
    );
    cache.forget(&first.key);
    is_assigned_to(&cache, &pod("p", "2", json!({})), "n1");
    cache.assume(&first, "n1");
    assert_eq!(cache.assign(&first, "n1"), ClusterEvent::POD_ASSIGNED, "the watch confirms it");
    assert_eq!(
        cache.assign(&first, "n1"),
        ClusterEvent::NONE,
        "a change of the status does not matter"
    );
    let relabelled =
        pod_info(json!({"name": "first", "namespace": "a", "uid": "first"}), json!({}));
    let changed = ClusterEvent::POD_ASSIGNED | ClusterEvent::POD_REMOVED;
    assert_eq!(cache.assign(&relabelled, "n1"), changed);
    assert_eq!(cache.assign(&first, "n1"), changed);
    cache.forget(&first.key);
    assert!(cache.pod(&first.key).is_some(), "a confirmed pod is not forgotten");
    cache.remove_node("n1");
    is_unschedulable(&cache, &pod("p", "1", json!({})), "no nodes available");
    cache.set_node(&plain("n1"));
    is_unschedulable(
        &cache,
        &pod("p", "2", json!({})),
        "0/1 nodes are available: 1 Insufficient cpu.",
    );
    assert!(cache.remove_pod(&first.key) && !cache.remove_pod(&first.key));
    assert_eq!(cache.node_info("n1").unwrap().requested, Default::default());
}

fn pop(queue: &mut SchedulingQueue, now: Instant) -> Option<String> {
    queue.pop(now).map(|pod_info| pod_info.key.name().to_owned())
}

#[test]
fn the_queue_orders_pods_by_priority_and_then_by_arrival() {
    let (mut queue, now) = (SchedulingQueue::default(), Instant::now());
    for pod_info in
        [with_priority("a", "1", 0), with_priority("b", "1", 0), with_priority("c", "1", 9)]
    {
        queue.add(pod_info);
    }
    let order: Vec<_> = std::iter::from_fn(|| pop(&mut queue, now)).collect();
    assert_eq!(order, ["c", "a", "b"]);
}

#[test]
fn an_unschedulable_pod_waits_for_an_event_that_may_help_it() {
    let (mut queue, now) = (SchedulingQueue::default(), Instant::now());
    let later = |seconds| now + Duration::from_secs(seconds);
    let pod_info = pod("p", "1", json!({}));
    queue.add(pod_info.clone());
    assert_eq!(pop(&mut queue, now).as_deref(), Some("p"));
    queue.add_unschedulable(&pod_info.key, ClusterEvent::POD_REMOVED, now);
    queue.move_on_event(ClusterEvent::NODE, later(2));
    assert_eq!(pop(&mut queue, later(2)), None, "the event does not help");
    queue.move_on_event(ClusterEvent::POD_REMOVED, later(2));
    assert_eq!(pop(&mut queue, later(2)).as_deref(), Some("p"));
    queue.add_unschedulable(&pod_info.key, ClusterEvent::POD_REMOVED, later(2));
    queue.move_on_event(ClusterEvent::POD_REMOVED, later(3));
    assert_eq!(pop(&mut queue, later(3)), None, "the second backoff is two seconds");
    assert_eq!(queue.next_due(), Some(later(4)));
    assert_eq!(pop(&mut queue, later(4)).as_deref(), Some("p"));
    queue.add_unschedulable(&pod_info.key, ClusterEvent::POD_REMOVED, later(4));
    assert_eq!(pop(&mut queue, later(303)), None);
    assert_eq!(pop(&mut queue, later(304)).as_deref(), Some("p"), "retried after five minutes");
    queue.add_backoff(&pod_info.key, later(304));
    queue.add(pod("p", "2", json!({})));
    assert_eq!(pop(&mut queue, later(304)).as_deref(), Some("p"), "its constraints changed");
    queue.remove(&pod_info.key);
    assert_eq!((pop(&mut queue, later(900)), queue.next_due()), (None, None));
}
