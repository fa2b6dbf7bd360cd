//! Conversion of the two built-in kinds that have two versions.
//!
//! River: request body in the version of the path → **convert** → the stored version, and back for
//! readers of the other version.
//! Promise: a round trip preserves every field that the version can represent.

use headwater_json::{Map, Value, json};

use headwater_api::Kind;

/// Converts an object from version `from` to version `to` of its kind. For kinds with one schema, and
/// custom kinds without a webhook, only `apiVersion` changes.
pub fn convert(value: &mut Value, from: &Kind, to: &Kind) {
    let Some(object) = value.as_object_mut() else { return };
    object.insert("apiVersion".into(), to.api_version().into());
    match (from.kind.as_ref(), from.api_version().as_str(), to.api_version().as_str()) {
        ("Event", "v1", "events.k8s.io/v1") => rename(object, EVENT),
        ("Event", "events.k8s.io/v1", "v1") => rename_back(object, EVENT),
        ("HorizontalPodAutoscaler", "autoscaling/v1", "autoscaling/v2") => autoscaler_v2(object),
        ("HorizontalPodAutoscaler", "autoscaling/v2", "autoscaling/v1") => autoscaler_v1(object),
        _ => {}
    }
}

/// Fields of an Event: in `v1`, in `events.k8s.io/v1`.
const EVENT: &[(&str, &str)] = &[
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

fn rename(object: &mut Map, names: &[(&str, &str)]) {
    for (old, new) in names {
        if let Some(value) = object.remove(old) {
            object.insert((*new).into(), value);
        }
    }
}

fn rename_back(object: &mut Map, names: &[(&str, &str)]) {
    for (new, old) in names {
        if let Some(value) = object.remove(old) {
            object.insert((*new).into(), value);
        }
    }
}

/// Annotations in which `autoscaling/v1` keeps values without a field.
const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";

/// The default target of `autoscaling/v1`.
const DEFAULT_CPU_UTILIZATION: i64 = 80;

/// Members of a metric: its type, the name in the v1 annotation, the path in v2.
const METRIC: &[(&str, &str, &[&str])] = &[
    ("resource", "name", &["name"]),
    ("resource", "targetAverageUtilization", &["target", "averageUtilization"]),
    ("resource", "targetAverageValue", &["target", "averageValue"]),
    ("resource", "currentAverageUtilization", &["current", "averageUtilization"]),
    ("resource", "currentAverageValue", &["current", "averageValue"]),
    ("containerResource", "name", &["name"]),
    ("containerResource", "container", &["container"]),
    ("containerResource", "targetAverageUtilization", &["target", "averageUtilization"]),
    ("containerResource", "targetAverageValue", &["target", "averageValue"]),
    ("containerResource", "currentAverageUtilization", &["current", "averageUtilization"]),
    ("containerResource", "currentAverageValue", &["current", "averageValue"]),
    ("pods", "metricName", &["metric", "name"]),
    ("pods", "selector", &["metric", "selector"]),
    ("pods", "targetAverageValue", &["target", "averageValue"]),
    ("pods", "currentAverageValue", &["current", "averageValue"]),
    ("object", "metricName", &["metric", "name"]),
    ("object", "selector", &["metric", "selector"]),
    ("object", "target", &["describedObject"]),
    ("object", "targetValue", &["target", "value"]),
    ("object", "averageValue", &["target", "averageValue"]),
    ("object", "currentValue", &["current", "value"]),
    ("external", "metricName", &["metric", "name"]),
    ("external", "metricSelector", &["metric", "selector"]),
    ("external", "targetValue", &["target", "value"]),
    ("external", "targetAverageValue", &["target", "averageValue"]),
    ("external", "currentValue", &["current", "value"]),
    ("external", "currentAverageValue", &["current", "averageValue"]),
];

fn autoscaler_v1(object: &mut Map) {
    drop_annotations(object);
    let mut spec = take(object, "spec");
    let mut others = Vec::new();
    let mut utilization = None;
    for metric in list(spec.remove("metrics")) {
        match cpu(&metric, "target") {
            Some(percent) => _ = utilization.get_or_insert(percent),
            None => others.push(metric_v1(&metric)),
        }
    }
    if let Some(percent) = utilization {
        spec.insert("targetCPUUtilizationPercentage".into(), percent);
    }
    if let Some(behavior) = spec.remove("behavior") {
        annotate(object, BEHAVIOR, &behavior);
    }
    if !others.is_empty() {
        annotate(object, METRICS, &Value::Array(others));
    }
    put(object, "spec", spec);

    let mut status = take(object, "status");
    let current = list(status.remove("currentMetrics"));
    if let Some(percent) = current.iter().rev().find_map(|metric| cpu(metric, "current")) {
        status.insert("currentCPUUtilizationPercentage".into(), percent);
    }
    if !current.is_empty() {
        annotate(object, CURRENT_METRICS, &current.iter().map(metric_v1).collect());
    }
    let conditions = list(status.remove("conditions"));
    if !conditions.is_empty() {
        annotate(object, CONDITIONS, &Value::Array(conditions));
    }
    // v1 always shows two numbers; v2 omits one of them if it is zero.
    if !status.is_empty() {
        status.entry("currentReplicas").or_insert_with(|| 0.into());
        status.entry("desiredReplicas").or_insert_with(|| 0.into());
    }
    put(object, "status", status);
}

fn autoscaler_v2(object: &mut Map) {
    let mut spec = take(object, "spec");
    let mut metrics: Vec<Value> = list(annotation(object, METRICS))
        .iter()
        .map(|metric| metric_v2(metric, "target"))
        .collect();
    match spec.remove("targetCPUUtilizationPercentage") {
        Some(percent) => metrics.push(cpu_metric(&percent)),
        None if metrics.is_empty() => metrics.push(cpu_metric(&DEFAULT_CPU_UTILIZATION.into())),
        None => {}
    }
    spec.insert("metrics".into(), metrics.into());
    if let Some(behavior @ Value::Object(_)) = annotation(object, BEHAVIOR) {
        spec.insert("behavior".into(), behavior);
    }
    put(object, "spec", spec);

    let mut status = take(object, "status");
    if status.get("currentReplicas").is_some_and(|number| *number == 0) {
        status.remove("currentReplicas");
    }
    let utilization = status.remove("currentCPUUtilizationPercentage");
    let current = list(annotation(object, CURRENT_METRICS));
    if !current.is_empty() {
        let current: Value = current.iter().map(|metric| metric_v2(metric, "current")).collect();
        status.insert("currentMetrics".into(), current);
    } else if let Some(percent) = utilization {
        let current = json!({"name": "cpu", "current": {"averageUtilization": percent}});
        status.insert("currentMetrics".into(), json!([{"type": "Resource", "resource": current}]));
    }
    if let Some(conditions @ Value::Array(_)) = annotation(object, CONDITIONS) {
        status.insert("conditions".into(), conditions);
    }
    put(object, "status", status);
    drop_annotations(object);
}

fn cpu_metric(percent: &Value) -> Value {
    json!({"type": "Resource", "resource": {
        "name": "cpu",
        "target": {"type": "Utilization", "averageUtilization": percent},
    }})
}

/// The target or current average CPU utilization of a v2 metric.
fn cpu(metric: &Value, side: &str) -> Option<Value> {
    let resource = metric.get("resource")?;
    let is_cpu = metric.get("type")? == "Resource" && resource.get("name")? == "cpu";
    is_cpu.then(|| resource.get(side)?.get("averageUtilization").cloned()).flatten()
}

fn metric_v1(metric: &Value) -> Value {
    rebuild(metric, |kind, from, to| {
        for (_, old, path) in METRIC.iter().filter(|(of, _, _)| *of == kind) {
            if let Some(value) = path.iter().try_fold(from, |value, name| value.get(*name)) {
                to[*old] = value.clone();
            }
        }
    })
}

/// `side` is `target` or `current`: the member that v2 nests numbers in. Only targets have a type.
fn metric_v2(metric: &Value, side: &str) -> Value {
    rebuild(metric, |kind, from, to| {
        for (_, old, path) in METRIC.iter().filter(|(of, _, _)| *of == kind) {
            if let Some(value) = from.get(*old) {
                match path {
                    [name] => to[*name] = value.clone(),
                    [outer @ ("target" | "current"), name] => {
                        let outer = if *old == "averageValue" { side } else { *outer };
                        to[outer][*name] = value.clone();
                    }
                    [outer, name] => to[*outer][*name] = value.clone(),
                    _ => {}
                }
            }
        }
        if side == "target" {
            let target_type = target_type(&to["target"]);
            to["target"]["type"] = target_type.into();
        }
    })
}

fn target_type(target: &Value) -> &'static str {
    if target.get("averageUtilization").is_some() {
        "Utilization"
    } else if target.get("averageValue").is_some() {
        "AverageValue"
    } else {
        "Value"
    }
}

/// A metric with the same type and a source filled by `fill(source name, old source, new source)`.
fn rebuild(metric: &Value, fill: impl Fn(&str, &Value, &mut Value)) -> Value {
    let mut built = Map::new();
    for (name, value) in metric.as_object().into_iter().flatten() {
        if value.is_object() {
            let mut source = json!({});
            fill(name, value, &mut source);
            built.insert(name.clone(), source);
        } else {
            built.insert(name.clone(), value.clone());
        }
    }
    Value::Object(built)
}

fn take(object: &mut Map, name: &str) -> Map {
    match object.remove(name) {
        Some(Value::Object(inner)) => inner,
        _ => Map::new(),
    }
}

fn put(object: &mut Map, name: &str, inner: Map) {
    if !inner.is_empty() {
        object.insert(name.into(), Value::Object(inner));
    }
}

fn list(value: Option<Value>) -> Vec<Value> {
    match value {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    }
}

fn annotate(object: &mut Map, key: &str, value: &Value) {
    let metadata = object.entry("metadata").or_insert_with(|| json!({}));
    if metadata.is_object() {
        if !metadata["annotations"].is_object() {
            metadata["annotations"] = json!({});
        }
        metadata["annotations"][key] = value.to_string().into();
    }
}

fn annotation(object: &Map, key: &str) -> Option<Value> {
    let text = object.get("metadata")?.get("annotations")?.get(key)?.as_str()?;
    serde_json::from_str(text).ok()
}

fn drop_annotations(object: &mut Map) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    let Some(Value::Object(annotations)) = metadata.get_mut("annotations") else { return };
    for key in [METRICS, CURRENT_METRICS, CONDITIONS, BEHAVIOR] {
        annotations.remove(key);
    }
    if annotations.is_empty() {
        metadata.remove("annotations");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_api::kind::builtin;

    fn row(group: &str, version: &str, kind: &str) -> Kind {
        let mut kinds = builtin().into_iter();
        kinds.find(|row| row.group == group && row.version == version && row.kind == kind).unwrap()
    }

    fn converted(mut value: Value, from: &Kind, to: &Kind) -> Value {
        convert(&mut value, from, to);
        value
    }

    /// S10.12
    #[test]
    fn an_event_survives_a_round_trip() {
        let (core, new) = (row("", "v1", "Event"), row("events.k8s.io", "v1", "Event"));
        let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"},
            "involvedObject": {"kind": "Pod"}, "message": "m", "count": 2, "reason": "r",
            "source": {"component": "c"}, "reportingComponent": "rc"});
        let other = converted(event.clone(), &core, &new);
        assert_eq!(
            other,
            json!({"apiVersion": "events.k8s.io/v1", "kind": "Event",
            "metadata": {"name": "e"}, "regarding": {"kind": "Pod"}, "note": "m",
            "deprecatedCount": 2, "reason": "r", "deprecatedSource": {"component": "c"},
            "reportingController": "rc"})
        );
        assert_eq!(converted(other, &new, &core), event);
    }

    #[test]
    fn an_autoscaler_keeps_its_metrics_through_v1() {
        let v1 = row("autoscaling", "v1", "HorizontalPodAutoscaler");
        let v2 = row("autoscaling", "v2", "HorizontalPodAutoscaler");
        let stored = json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "h"},
        "spec": {"maxReplicas": 3, "behavior": {"scaleUp": {"selectPolicy": "Max"}}, "metrics": [
            {"type": "Object", "object": {"describedObject": {"kind": "Service", "name": "s"},
                "metric": {"name": "m"}, "target": {"type": "Value", "value": "5"}}},
            {"type": "Resource", "resource": {"name": "cpu",
                "target": {"type": "Utilization", "averageUtilization": 50}}},
        ]}});
        let old = converted(stored.clone(), &v2, &v1);
        assert_eq!(old["spec"], json!({"maxReplicas": 3, "targetCPUUtilizationPercentage": 50}));
        assert_eq!(
            old["metadata"]["annotations"][METRICS],
            r#"[{"object":{"metricName":"m","target":{"kind":"Service","name":"s"},"targetValue":"5"},"type":"Object"}]"#
        );
        assert_eq!(converted(old, &v1, &v2), stored);
    }

    #[test]
    fn a_v1_autoscaler_always_counts_its_replicas() {
        let v1 = row("autoscaling", "v1", "HorizontalPodAutoscaler");
        let v2 = row("autoscaling", "v2", "HorizontalPodAutoscaler");
        let status = json!({"currentMetrics": null, "desiredReplicas": 0});
        let old = converted(json!({ "status": status }), &v2, &v1);
        assert_eq!(old["status"], json!({"currentReplicas": 0, "desiredReplicas": 0}));
        assert_eq!(converted(old, &v1, &v2)["status"], json!({"desiredReplicas": 0}));
    }

    #[test]
    fn a_v1_autoscaler_without_a_target_gets_eighty_percent() {
        let v1 = row("autoscaling", "v1", "HorizontalPodAutoscaler");
        let v2 = row("autoscaling", "v2", "HorizontalPodAutoscaler");
        let new = converted(json!({"spec": {"maxReplicas": 1}}), &v1, &v2);
        assert_eq!(new["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"], 80);
    }
}
