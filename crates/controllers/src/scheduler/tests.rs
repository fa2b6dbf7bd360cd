//! Decisions, as tables: a cluster, a pod, and where it goes or what it is told.

use std::sync::Arc;
use std::time::Duration;

use headwater_client::{Cached, Key};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::ask::Ask;
use super::cache::Cache;
use super::decide::{Decision, Unfit, decide};
use super::queue::Queue;
use super::reason::Happened;
use crate::pod::Pod;

/// A node with four CPUs, 8 GiB and room for ten pods.
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

/// A pod that asks for CPU, with more in its spec.
fn pod(name: &str, cpu: &str, more: Value) -> Arc<Ask> {
    let mut spec = json!({"containers": [
        {"name": "c", "resources": {"requests": {"cpu": cpu}}},
    ]});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    ask(json!({"name": name, "namespace": "a", "uid": name, "labels": {"app": "web"}}), spec)
}

fn ask(metadata: Value, spec: Value) -> Arc<Ask> {
    let text = json!({"metadata": metadata, "spec": spec}).to_string();
    Arc::new(Ask::new(Arc::new(Pod::decode(&text).unwrap())))
}

fn cluster(nodes: &[Arc<Node>], placed: &[(&str, Arc<Ask>)]) -> Cache {
    let mut cache = Cache::default();
    for node in nodes {
        cache.set_node(node);
    }
    for (room, ask) in placed {
        cache.place(ask, room);
    }
    cache
}

fn plain(name: &str) -> Arc<Node> {
    node(name, json!({}), json!({}))
}

fn in_zone(name: &str, zone: &str) -> Arc<Node> {
    node(name, json!({}), json!({"zone": zone}))
}

fn outcome(cache: &Cache, ask: &Ask) -> Result<String, Unfit> {
    match decide(ask, cache, &mut String::new()) {
        Decision::Bind(node) => Ok(node),
        Decision::Wait(unfit) => Err(unfit),
    }
}

#[track_caller]
fn goes_to(cache: &Cache, ask: &Ask, expected: &str) {
    assert_eq!(outcome(cache, ask).map_err(|unfit| unfit.message), Ok(expected.to_owned()));
}

#[track_caller]
fn waits(cache: &Cache, ask: &Ask, expected: &str) {
    let message = outcome(cache, ask).unwrap_err().message;
    assert!(message.starts_with(expected), "{message}");
}

#[test]
fn a_pod_goes_where_nodes_let_it() {
    let tainted = json!({"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]});
    let nodes = [
        node("closed", json!({"unschedulable": true}), json!({})),
        node("tainted", tainted, json!({})),
        node("ssd", json!({}), json!({"disk": "ssd", "size": "5"})),
    ];
    let cache = cluster(&nodes, &[]);
    let here = |more: Value, expected: &str| goes_to(&cache, &pod("p", "1", more), expected);
    let nowhere = |more: Value, expected: &str| waits(&cache, &pod("p", "1", more), expected);
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
fn a_pod_goes_where_there_is_room() {
    let placed = [("n1", pod("big", "3500m", json!({}))), ("n2", pod("small", "1", json!({})))];
    let cache = cluster(&[plain("n1"), plain("n2")], &placed);
    goes_to(&cache, &pod("p", "1", json!({})), "n2");
    waits(
        &cache,
        &pod("p", "5", json!({})),
        "0/2 nodes are available: 2 Insufficient cpu. preemption: 0/2 nodes are available: \
         2 No preemption victims found for incoming pod.",
    );
    let none = cluster(&[], &[]);
    waits(&none, &pod("p", "1", json!({})), "no nodes available to schedule pods");
    let many: Vec<_> = (0..10).map(|n| ("n1", pod(&format!("p{n}"), "0", json!({})))).collect();
    let full = cluster(&[plain("n1")], &many);
    waits(&full, &pod("p", "0", json!({})), "0/1 nodes are available: 1 Too many pods.");
}

#[test]
fn ports_of_the_host_are_taken_once() {
    let with_port = |name: &str, port: Value| {
        ask(
            json!({"name": name, "namespace": "a", "uid": name}),
            json!({"containers": [{"name": "c", "ports": [port]}]}),
        )
    };
    let port = |number: i32, ip: &str, protocol: &str| json!({"containerPort": 80, "hostPort": number, "hostIP": ip, "protocol": protocol});
    let cache = cluster(&[plain("n1")], &[("n1", with_port("web", port(80, "10.0.0.1", "TCP")))]);
    let clash = "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod";
    waits(&cache, &with_port("p", port(80, "", "TCP")), clash);
    waits(&cache, &with_port("p", port(80, "10.0.0.1", "TCP")), clash);
    goes_to(&cache, &with_port("p", port(80, "10.0.0.2", "TCP")), "n1");
    goes_to(&cache, &with_port("p", port(80, "", "UDP")), "n1");
    goes_to(&cache, &with_port("p", port(81, "", "TCP")), "n1");
}

#[test]
fn pods_are_spread_over_domains_as_they_ask() {
    let spread = |skew: i32, min: Value| {
        json!({"topologySpreadConstraints": [{
            "maxSkew": skew, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
            "minDomains": min, "labelSelector": {"matchLabels": {"app": "web"}},
        }]})
    };
    let nodes = [in_zone("n1", "east"), in_zone("n2", "west"), plain("n3")];
    let placed = [("n1", pod("p1", "0", json!({}))), ("n1", pod("p2", "0", json!({})))];
    let cache = cluster(&nodes, &placed);
    goes_to(&cache, &pod("p", "0", spread(1, Value::Null)), "n2");
    let full = [("n2", pod("full", "4", json!({"priority": 5}))), placed[0].clone()];
    waits(
        &cluster(&nodes, &full),
        &pod("p", "1", spread(1, json!(5))),
        "0/3 nodes are available: 1 Insufficient cpu, 1 node(s) didn't match pod topology spread \
         constraints, 1 node(s) didn't match pod topology spread constraints (missing required \
         label).",
    );
    // A pod that does not count itself may be one more.
    let other = ask(
        json!({"name": "p", "namespace": "a", "uid": "p", "labels": {"app": "other"}}),
        json!({"containers": [], "topologySpreadConstraints":
            spread(2, Value::Null)["topologySpreadConstraints"],
            "nodeSelector": {"zone": "east"}}),
    );
    goes_to(&cache, &other, "n1");
}

fn affinity(kind: &str, topology: &str, app: &str) -> Value {
    let term = json!([{"topologyKey": topology, "labelSelector": {"matchLabels": {"app": app}}}]);
    json!({"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": term}}})
}

#[test]
fn pods_are_near_and_apart_as_they_ask() {
    let nodes = [in_zone("n1", "east"), in_zone("n2", "west")];
    let cache = cluster(&nodes, &[("n2", pod("p1", "0", json!({})))]);
    goes_to(&cache, &pod("p", "0", affinity("podAffinity", "zone", "web")), "n2");
    goes_to(&cache, &pod("p", "0", affinity("podAntiAffinity", "zone", "web")), "n1");
    waits(
        &cache,
        &pod("p", "0", affinity("podAffinity", "zone", "db")),
        "0/2 nodes are available: 2 node(s) didn't match pod affinity rules.",
    );
    let first = cluster(&nodes, &[]);
    goes_to(&first, &pod("p", "0", affinity("podAffinity", "zone", "web")), "n1");
    let shy = pod("shy", "0", affinity("podAntiAffinity", "zone", "web"));
    let both = [("n1", shy.clone()), ("n2", pod("p1", "0", json!({})))];
    waits(
        &cluster(&nodes, &both),
        &shy_too(),
        "0/2 nodes are available: 1 node(s) didn't match pod anti-affinity rules, \
         1 node(s) didn't satisfy existing pods anti-affinity rules.",
    );
    goes_to(&cluster(&nodes, &[("n1", shy)]), &pod("p", "0", json!({})), "n2");
}

fn shy_too() -> Arc<Ask> {
    pod("too", "0", affinity("podAntiAffinity", "kubernetes.io/hostname", "web"))
}

#[test]
fn of_the_rooms_that_fit_the_best_is_taken() {
    let busy = [("n1", pod("busy", "2", json!({})))];
    let cache = cluster(&[plain("n1"), plain("n2")], &busy);
    goes_to(&cache, &pod("p", "1", json!({})), "n2");
    let preferred = json!({"affinity": {"nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 10, "preference":
            {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}}]}}});
    let disk = cluster(&[plain("n1"), node("n2", json!({}), json!({"disk": "ssd"}))], &[]);
    goes_to(&disk, &pod("p", "1", preferred), "n2");
    let soft = json!({"taints": [{"key": "old", "effect": "PreferNoSchedule"}]});
    let old = cluster(&[node("n1", soft, json!({})), plain("n2")], &[]);
    goes_to(&old, &pod("p", "1", json!({})), "n2");
    let sibling = |name: &str| {
        let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r",
            "uid": "r", "controller": true}]);
        let metadata =
            json!({"name": name, "namespace": "a", "uid": name, "ownerReferences": owner});
        ask(metadata, json!({"containers": []}))
    };
    let filled = [("n2", pod("other", "1", json!({}))), ("n1", sibling("s1"))];
    goes_to(&cluster(&[plain("n1"), plain("n2")], &filled), &sibling("s2"), "n2");
}

fn with_priority(name: &str, cpu: &str, priority: i32) -> Arc<Ask> {
    pod(name, cpu, json!({"priority": priority}))
}

#[track_caller]
fn pushes_out(cache: &Cache, ask: &Ask, room: &str, victims: &[&str]) {
    let preemption = outcome(cache, ask).unwrap_err().preemption.expect("somebody must leave");
    let names: Vec<&str> = preemption.victims.iter().map(|victim| victim.key.name()).collect();
    assert_eq!((preemption.room.as_str(), names.as_slice()), (room, victims));
}

#[test]
fn an_important_pod_pushes_out_as_few_and_as_unimportant_ones_as_it_can() {
    let placed = [
        ("n1", with_priority("high", "3", 50)),
        ("n1", with_priority("low", "1", 1)),
        ("n2", with_priority("mid", "3", 10)),
        ("n2", with_priority("min", "1", 1)),
    ];
    let cache = cluster(&[plain("n1"), plain("n2")], &placed);
    pushes_out(&cache, &with_priority("p", "2", 100), "n2", &["mid"]);
    pushes_out(&cache, &with_priority("p", "1", 100), "n1", &["low"]);
    pushes_out(&cache, &with_priority("p", "4", 100), "n2", &["mid", "min"]);
    waits(
        &cache,
        &with_priority("p", "2", 5),
        "0/2 nodes are available: 2 Insufficient cpu. preemption: 0/2 nodes are available: \
         2 No preemption victims found for incoming pod.",
    );
    let never = pod("p", "2", json!({"priority": 100, "preemptionPolicy": "Never"}));
    waits(&cache, &never, "0/2 nodes are available: 2 Insufficient cpu. preemption: not eligible");
}

/// A budget for pods with `app=web` that allows so many to go.
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
fn who_is_protected_by_a_budget_is_pushed_out_last() {
    let free = |name: &str, cpu: &str, priority: i32| {
        let metadata =
            json!({"name": name, "namespace": "a", "uid": name, "labels": {"app": "db"}});
        let containers = json!([{"name": "c", "resources": {"requests": {"cpu": cpu}}}]);
        ask(metadata, json!({"containers": containers, "priority": priority}))
    };
    // The protected pod is the least important one, and yet another goes.
    let placed = [("n1", with_priority("web", "2", 1)), ("n1", free("db", "2", 5))];
    let mut cache = cluster(&[plain("n1")], &placed);
    pushes_out(&cache, &with_priority("p", "2", 100), "n1", &["web"]);
    cache.budgets.put(&budget(0, &[]));
    pushes_out(&cache, &with_priority("p", "2", 100), "n1", &["db"]);
    cache.budgets.put(&budget(1, &[]));
    pushes_out(&cache, &with_priority("p", "2", 100), "n1", &["web"]);
    cache.budgets.put(&budget(0, &["web"]));
    pushes_out(&cache, &with_priority("p", "2", 100), "n1", &["web"]);
    // Where nobody else can go, a budget does not help.
    cache.budgets.put(&budget(0, &[]));
    pushes_out(&cache, &with_priority("p", "4", 100), "n1", &["web", "db"]);
    // Of two rooms, the one where no budget is broken, although its pods are more important.
    let placed = [("n1", with_priority("web", "3", 1)), ("n2", free("db", "3", 50))];
    let mut cache = cluster(&[plain("n1"), plain("n2")], &placed);
    cache.budgets.put(&budget(0, &[]));
    pushes_out(&cache, &with_priority("p", "3", 100), "n2", &["db"]);
    cache.budgets.remove(&Key::namespaced("a", "b"));
    pushes_out(&cache, &with_priority("p", "3", 100), "n1", &["web"]);
}

#[test]
fn a_promised_room_is_kept_from_those_who_are_less_important() {
    let mut cache = cluster(&[plain("n1")], &[]);
    cache.nominate(&with_priority("waits", "3", 10), "n1");
    waits(&cache, &with_priority("p", "2", 5), "0/1 nodes are available: 1 Insufficient cpu.");
    goes_to(&cache, &with_priority("p", "2", 20), "n1");
    cache.withdraw(&Key::namespaced("a", "waits"));
    goes_to(&cache, &with_priority("p", "2", 5), "n1");
}

#[test]
fn what_is_assumed_counts_and_what_is_forgotten_does_not() {
    let mut cache = cluster(&[plain("n1")], &[]);
    let first = pod("first", "3", json!({}));
    cache.assume(&first, "n1");
    waits(&cache, &pod("p", "2", json!({})), "0/1 nodes are available: 1 Insufficient cpu.");
    cache.forget(&first.key);
    goes_to(&cache, &pod("p", "2", json!({})), "n1");
    cache.assume(&first, "n1");
    assert_eq!(cache.place(&first, "n1"), Happened::POD_PLACED, "the watch confirms it");
    assert_eq!(cache.place(&first, "n1"), Happened::NOTHING, "its status is nobody's business");
    let relabelled = ask(json!({"name": "first", "namespace": "a", "uid": "first"}), json!({}));
    let changed = Happened::POD_PLACED | Happened::POD_GONE;
    assert_eq!(cache.place(&relabelled, "n1"), changed);
    assert_eq!(cache.place(&first, "n1"), changed);
    cache.forget(&first.key);
    assert!(cache.placed(&first.key).is_some(), "what is confirmed is not forgotten");
    cache.remove_node("n1");
    waits(&cache, &pod("p", "1", json!({})), "no nodes available");
    cache.set_node(&plain("n1"));
    waits(&cache, &pod("p", "2", json!({})), "0/1 nodes are available: 1 Insufficient cpu.");
    assert!(cache.remove_pod(&first.key) && !cache.remove_pod(&first.key));
    assert_eq!(cache.room("n1").unwrap().used, Default::default());
}

fn taken(queue: &mut Queue, now: Instant) -> Option<String> {
    queue.take(now).map(|ask| ask.key.name().to_owned())
}

#[test]
fn the_queue_gives_the_most_important_first_and_then_the_oldest() {
    let (mut queue, now) = (Queue::default(), Instant::now());
    for ask in [with_priority("a", "1", 0), with_priority("b", "1", 0), with_priority("c", "1", 9)]
    {
        queue.put(ask);
    }
    let order: Vec<_> = std::iter::from_fn(|| taken(&mut queue, now)).collect();
    assert_eq!(order, ["c", "a", "b"]);
}

#[test]
fn a_parked_pod_waits_for_news_that_may_help_it() {
    let (mut queue, now) = (Queue::default(), Instant::now());
    let later = |seconds| now + Duration::from_secs(seconds);
    let ask = pod("p", "1", json!({}));
    queue.put(ask.clone());
    assert_eq!(taken(&mut queue, now).as_deref(), Some("p"));
    queue.park(&ask.key, Happened::POD_GONE, now);
    queue.wake(Happened::NODE, later(2));
    assert_eq!(taken(&mut queue, later(2)), None, "no help");
    queue.wake(Happened::POD_GONE, later(2));
    assert_eq!(taken(&mut queue, later(2)).as_deref(), Some("p"));
    queue.park(&ask.key, Happened::POD_GONE, later(2));
    queue.wake(Happened::POD_GONE, later(3));
    assert_eq!(taken(&mut queue, later(3)), None, "the second time it backs off for two seconds");
    assert_eq!(queue.next_due(), Some(later(4)));
    assert_eq!(taken(&mut queue, later(4)).as_deref(), Some("p"));
    queue.park(&ask.key, Happened::POD_GONE, later(4));
    assert_eq!(taken(&mut queue, later(303)), None);
    assert_eq!(taken(&mut queue, later(304)).as_deref(), Some("p"), "after five minutes anyway");
    queue.retry(&ask.key, later(304));
    queue.put(pod("p", "2", json!({})));
    assert_eq!(taken(&mut queue, later(304)).as_deref(), Some("p"), "it asks for something else");
    queue.remove(&ask.key);
    assert_eq!((taken(&mut queue, later(900)), queue.next_due()), (None, None));
}
