//! The objects of the bench: pods, config maps and custom resources of realistic size.

use std::fmt::Write;

use serde_json::{Value, json};

/// Namespaces, and values of a label, that objects are spread over: each selects 1 %.
pub(crate) const SPREAD: usize = 100;

/// The prefixes of the names of our namespaces.
pub(crate) const PREFIXES: [&str; 2] = ["bench-", "own-"];

/// Nodes that pods are spread over: each selects 0.1 %.
pub(crate) const NODES: usize = 1000;

/// The namespace of the `index`-th object.
pub(crate) fn namespace(index: usize) -> String {
    format!("bench-{}", index % SPREAD)
}

/// The namespace of one watcher.
pub(crate) fn own_namespace(watcher: usize) -> String {
    format!("own-{watcher}")
}

/// The `index`-th node.
pub(crate) fn node(index: usize) -> String {
    format!("node-{:04}", index % NODES)
}

/// The prefix of every pod's name.
pub(crate) const POD_PREFIX: &str = "web-frontend-7d4b9c6f58-";

/// The name of the `index`-th pod.
pub(crate) fn pod_name(index: usize) -> String {
    format!("{POD_PREFIX}{index:05}")
}

/// A pod of about 3 KB, or 6 KB when stored with defaults and managed fields. An update changes
/// `mark`.
pub(crate) fn pod(index: usize, namespace: &str, mark: usize) -> Vec<u8> {
    pod_value(index, namespace, mark).to_string().into_bytes()
}

/// A pod that only one watcher selects, by label, by node, or by namespace if it has its own.
pub(crate) fn own_pod(watcher: usize, index: usize, namespace: &str, mark: usize) -> Vec<u8> {
    let mut pod = pod_value(index, namespace, mark);
    pod["metadata"]["labels"]["watcher"] = format!("w{watcher}").into();
    pod["spec"]["nodeName"] = own_node(watcher).into();
    pod.to_string().into_bytes()
}

/// The node of one watcher's pod.
pub(crate) fn own_node(watcher: usize) -> String {
    format!("own-node-{watcher}")
}

fn pod_value(index: usize, namespace: &str, mark: usize) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(index),
            "namespace": namespace,
            "labels": {
                "app": "web-frontend",
                "pod-template-hash": "7d4b9c6f58",
                "shard": format!("s{}", (index / SPREAD) % SPREAD),
                "team": "storefront",
                "tier": "frontend",
            },
            "annotations": {
                "bench.headwater/mark": mark.to_string(),
                "checksum/config": "5f1d7a84db00d2fce00b31a7fc73224f9a2a7d0a9e0c5f0d3c6ff5d3a8a44c11",
                "prometheus.io/port": "9102",
                "prometheus.io/scrape": "true",
            },
        },
        "spec": {
            "nodeName": node(index),
            "serviceAccountName": "web-frontend",
            "automountServiceAccountToken": false,
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "schedulerName": "default-scheduler",
            "tolerations": [
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
                {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
            ],
            "containers": [
                container("app", "registry.example.org/storefront/web-frontend:v1.42.7", 6),
                {"name": "proxy", "image": "registry.example.org/mesh/proxy:1.19.3", "imagePullPolicy": "IfNotPresent", "args": ["--upstream=127.0.0.1:8080"], "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}}},
            ],
            "volumes": [
                {"name": "config", "configMap": {"name": "web-frontend", "defaultMode": 420}},
                {"name": "cache", "emptyDir": {}},
                {"name": "tls", "secret": {"secretName": "web-frontend-tls", "defaultMode": 420}},
            ],
        },
    })
}

fn container(name: &str, image: &str, variables: usize) -> Value {
    let env: Vec<Value> = (0..variables)
        .map(|n| json!({"name": format!("STOREFRONT_SETTING_{n:02}"), "value": format!("value-of-setting-{n:02}-in-production")}))
        .collect();
    json!({
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "args": ["--listen=:8080", "--metrics=:9102", "--log-format=json", "--shutdown-timeout=25s"],
        "env": env,
        "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}, {"name": "metrics", "containerPort": 9102, "protocol": "TCP"}],
        "resources": {"requests": {"cpu": "250m", "memory": "256Mi"}, "limits": {"memory": "512Mi"}},
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080, "scheme": "HTTP"}, "periodSeconds": 10, "timeoutSeconds": 2, "successThreshold": 1, "failureThreshold": 3},
        "livenessProbe": {"httpGet": {"path": "/live", "port": 8080, "scheme": "HTTP"}, "periodSeconds": 20, "timeoutSeconds": 2, "successThreshold": 1, "failureThreshold": 5},
        "volumeMounts": [{"name": "config", "mountPath": "/etc/storefront", "readOnly": true}, {"name": "cache", "mountPath": "/var/cache/storefront"}, {"name": "tls", "mountPath": "/etc/tls", "readOnly": true}],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "securityContext": {"runAsNonRoot": true, "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true},
    })
}

/// A config map of about 3.5 KB.
pub(crate) fn config_map(index: usize, namespace: &str) -> Vec<u8> {
    let mut text = String::new();
    for line in 0..69 {
        // Writing to a string cannot fail.
        let _ =
            writeln!(text, "storefront.feature.{line:03}.rollout = percentage:{:02}", line % 100);
    }
    let map = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": format!("settings-{index:05}"),
            "namespace": namespace,
            "labels": {"app": "web-frontend", "shard": format!("s{}", index % SPREAD)},
        },
        "data": {"application.properties": text},
    });
    map.to_string().into_bytes()
}

/// The API path of our custom resources.
pub(crate) const WIDGETS: &str = "/apis/bench.example.org/v1";

/// Their definition: a schema with defaults, bounds and a validation rule, as operators have them.
pub(crate) const DEFINITION: &str = include_str!("definition.json");

/// A custom resource of about 2 KB.
pub(crate) fn widget(index: usize, namespace: &str) -> Vec<u8> {
    let parts: Vec<Value> = (0..16)
        .map(|n| json!({"name": format!("part-{n:02}"), "count": n + 1, "material": "stainless-steel", "supplier": format!("supplier-{:03}.example.org", n * 7)}))
        .collect();
    let options: serde_json::Map<String, Value> =
        (0..10).map(|n| (format!("option-{n:02}"), format!("value-of-{n:02}").into())).collect();
    let widget = json!({
        "apiVersion": "bench.example.org/v1",
        "kind": "Widget",
        "metadata": {
            "name": format!("widget-{index:05}"),
            "namespace": namespace,
            "labels": {"app": "widget-factory", "shard": format!("s{}", index % SPREAD)},
        },
        "spec": {"size": index % 1000 + 1, "color": "green", "owner": "storefront", "options": options, "parts": parts},
    });
    widget.to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_have_the_documented_size() {
        let pod = pod(7, "bench-7", 0).len();
        assert!((2_700..3_300).contains(&pod), "{pod}");
        let map = config_map(7, "bench-7").len();
        assert!((3_300..3_700).contains(&map), "{map}");
        let widget = widget(7, "bench-7").len();
        assert!((1_700..2_300).contains(&widget), "{widget}");
    }
}
