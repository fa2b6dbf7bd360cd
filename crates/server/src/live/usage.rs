//! The usage of simulated pods and nodes as objects of `metrics.k8s.io`.
//!
//! River: pods of the cache → the container runtime → **usage** → the store of live resources.

use std::collections::BTreeMap;

use bytes::Bytes;
use headwater_cache::Cache;
use headwater_json::{Value, json};
use headwater_store::{Key, key};
use jiff::Timestamp;

use crate::containers::{ContainerRuntime, PodUsage, ResourceUsage};
use crate::kinds::live::{METRICS_GROUP, METRICS_VERSION, metrics_prefix};
use crate::object::{canonical, meta, tree};

/// Usage is the same for so many seconds.
const STEP: i64 = 5;

/// What a node uses without pods.
const IDLE: ResourceUsage = ResourceUsage { cpu_millis: 100, memory_bytes: 600 << 20 };

/// The metrics of pods and nodes, at most `limit` pods.
pub(super) fn objects(
    runtime: &dyn ContainerRuntime,
    cache: &Cache,
    now: Timestamp,
    limit: usize,
) -> BTreeMap<Key, Bytes> {
    let seconds = now.as_second().div_euclid(STEP) * STEP;
    let now = Timestamp::from_second(seconds).unwrap_or(now);
    let stored = |plural: &str| -> Vec<Bytes> {
        let snapshot = cache.snapshot(&cache.resource(&key::collection("", plural)));
        snapshot
            .iter("", None)
            .take(limit)
            .map(|object| Bytes::copy_from_slice(object.as_slice()))
            .collect()
    };
    let pods = runtime.usage(&stored("pods"), now);
    let nodes = stored("nodes").into_iter().filter_map(|node| {
        let node = tree(&node).ok()?;
        Some((meta(&node, "name").to_owned(), node["metadata"]["labels"].clone()))
    });
    describe(&pods, nodes.collect(), now)
}

fn describe(
    pods: &[PodUsage],
    nodes: BTreeMap<String, Value>,
    now: Timestamp,
) -> BTreeMap<Key, Bytes> {
    let mut objects = BTreeMap::new();
    let mut used: BTreeMap<&str, ResourceUsage> = BTreeMap::new();
    for pod in pods {
        let node = used.entry(&pod.node).or_default();
        for (_, usage) in &pod.containers {
            node.cpu_millis = node.cpu_millis.saturating_add(usage.cpu_millis);
            node.memory_bytes = node.memory_bytes.saturating_add(usage.memory_bytes);
        }
        let containers: Vec<Value> = pod
            .containers
            .iter()
            .map(|(name, usage)| json!({ "name": name.as_str(), "usage": amounts(*usage) }))
            .collect();
        let labels: Value = pod
            .labels
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .fold(json!({}), |mut all, (key, value)| {
                all[key] = value.into();
                all
            });
        let mut object = head("PodMetrics", &pod.name, labels, now);
        object["metadata"]["namespace"] = pod.namespace.as_str().into();
        object["containers"] = containers.into();
        let name = format!("{}/{}", pod.namespace, pod.name);
        objects
            .insert(Key::in_collection(&metrics_prefix("pods"), &name), canonical(&object).into());
    }
    for (name, labels) in nodes {
        let pods = used.get(name.as_str()).copied().unwrap_or_default();
        let usage = ResourceUsage {
            cpu_millis: pods.cpu_millis.saturating_add(IDLE.cpu_millis),
            memory_bytes: pods.memory_bytes.saturating_add(IDLE.memory_bytes),
        };
        let mut object = head("NodeMetrics", &name, labels, now);
        object["usage"] = amounts(usage);
        objects
            .insert(Key::in_collection(&metrics_prefix("nodes"), &name), canonical(&object).into());
    }
    objects
}

fn head(kind: &str, name: &str, labels: Value, now: Timestamp) -> Value {
    let mut object = json!({
        "apiVersion": format!("{METRICS_GROUP}/{METRICS_VERSION}"),
        "kind": kind,
        "metadata": { "name": name, "creationTimestamp": now.to_string() },
        "timestamp": now.to_string(),
        "window": "15s",
    });
    if labels.as_object().is_some_and(|labels| !labels.is_empty()) {
        object["metadata"]["labels"] = labels;
    }
    object
}

fn amounts(usage: ResourceUsage) -> Value {
    json!({
        "cpu": format!("{}m", usage.cpu_millis),
        "memory": format!("{}Ki", usage.memory_bytes / 1024),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_uses_what_its_pods_use_and_some_of_its_own() {
        let usage = ResourceUsage { cpu_millis: 250, memory_bytes: 64 << 20 };
        let pod = |name: &str| PodUsage {
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            node: "n1".to_owned(),
            containers: vec![("c".to_owned(), usage)],
            ..PodUsage::default()
        };
        let nodes = ["n1", "n2"].map(|name| (name.to_owned(), Value::Null));
        let objects = describe(&[pod("a"), pod("b")], nodes.into(), Timestamp::UNIX_EPOCH);
        let read = |plural: &str, name: &str| {
            tree(&objects[&Key::in_collection(&metrics_prefix(plural), name)]).unwrap()
        };
        assert_eq!(read("pods", "shop/a")["containers"][0]["usage"]["cpu"], "250m");
        assert_eq!(read("nodes", "n1")["usage"]["cpu"], "600m");
        assert_eq!(read("nodes", "n2")["usage"]["memory"], "614400Ki");
        assert_eq!(objects.len(), 4);
    }
}
