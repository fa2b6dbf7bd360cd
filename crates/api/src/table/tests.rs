use bytes::BytesMut;
use headwater_json::json;

use super::*;
use crate::accept::{IncludeObject, MetaVersion};
use crate::frame::EventType;
use crate::object::{ManagedFields, Object};
use crate::revision::Revision;

fn kind(group: &'static str, kind: &'static str) -> Kind {
    Kind { group: group.into(), kind: kind.into(), ..Kind::default() }
}

fn now() -> Timestamp {
    "2024-01-02T03:04:05Z".parse().unwrap()
}

#[track_caller]
fn check_columns(group: &'static str, name: &'static str, expected: &[(&str, i32)]) {
    let found = columns(&kind(group, name));
    let found: Vec<_> = found.iter().map(|column| (&*column.name, column.priority)).collect();
    assert_eq!(found, expected);
}

#[test]
fn columns_are_those_of_kubernetes() {
    check_columns(
        "",
        "Pod",
        &[
            ("Name", 0),
            ("Ready", 0),
            ("Status", 0),
            ("Restarts", 0),
            ("Age", 0),
            ("IP", 1),
            ("Node", 1),
            ("Nominated Node", 1),
            ("Readiness Gates", 1),
        ],
    );
    check_columns("", "Secret", &[("Name", 0), ("Type", 0), ("Data", 0), ("Age", 0)]);
    check_columns("coordination.k8s.io", "Lease", &[("Name", 0), ("Holder", 0), ("Age", 0)]);
    check_columns("", "LimitRange", &[("Name", 0), ("Created At", 0)]);
    check_columns(
        "apiextensions.k8s.io",
        "CustomResourceDefinition",
        &[("Name", 0), ("Created At", 0)],
    );
}

#[track_caller]
fn check(group: &'static str, name: &'static str, object: &Value, expected: &Value) {
    let found = row(columns(&kind(group, name)), object, now());
    assert_eq!(&Value::Array(found), expected);
}

/// An object created five seconds ago.
fn made(object: Value) -> Value {
    let mut made = json!({"metadata": {"name": "a", "creationTimestamp": "2024-01-02T03:04:00Z"}});
    merge(&mut made, object);
    made
}

fn merge(into: &mut Value, from: Value) {
    match from {
        Value::Object(members) => {
            members.into_iter().for_each(|(key, value)| merge(&mut into[key], value));
        }
        other => *into = other,
    }
}

#[test]
fn an_invalid_object_still_has_a_row() {
    for builtin in crate::kind::builtin() {
        let columns = columns(&builtin);
        for object in [json!(null), json!({}), json!({"metadata": [], "spec": 1, "status": "x"})] {
            assert_eq!(row(columns, &object, now()).len(), columns.len());
        }
    }
}

#[test]
fn config_maps_count_their_data() {
    let object = made(json!({"data": {"x": "1"}, "binaryData": {"y": ""}}));
    check("", "ConfigMap", &object, &json!(["a", 2, "5s"]));
    check("", "ConfigMap", &made(json!({})), &json!(["a", 0, "5s"]));
}

#[track_caller]
fn check_pod(pod: Value, ready: &str, status: &str, restarts: &str) {
    let cells = row(columns(&kind("", "Pod")), &made(pod), now());
    assert_eq!(&cells[1..4], [ready, status, restarts]);
}

#[test]
fn pods_show_their_status() {
    let spec =
        json!({"containers": [{"name": "c"}, {"name": "d"}], "initContainers": [{"name": "i"}]});
    check_pod(json!({"spec": spec, "status": {"phase": "Pending"}}), "0/2", "Pending", "0");
    check_pod(
        json!({"spec": spec, "status": {"phase": "Running", "containerStatuses": [
            {"name": "c", "ready": true, "restartCount": 2, "state": {"running": {}},
             "lastState": {"terminated": {"finishedAt": "2024-01-02T03:03:05Z"}}},
            {"name": "d", "ready": false, "restartCount": 1,
             "state": {"waiting": {"reason": "CrashLoopBackOff"}}},
        ]}}),
        "1/2",
        "CrashLoopBackOff",
        "3 (60s ago)",
    );
    check_pod(
        json!({"spec": spec, "status": {"phase": "Pending", "initContainerStatuses": [
            {"name": "i", "restartCount": 0, "state": {"running": {}}},
        ]}}),
        "0/2",
        "Init:0/1",
        "0",
    );
    check_pod(
        json!({"spec": spec, "status": {"phase": "Failed", "containerStatuses": [
            {"name": "c", "state": {"terminated": {"exitCode": 3}}},
        ]}}),
        "0/2",
        "ExitCode:3",
        "0",
    );
    check_pod(
        json!({"spec": spec, "status": {"phase": "Running", "containerStatuses": [
            {"name": "c", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}},
            {"name": "d", "ready": true, "state": {"running": {}}},
        ]}}),
        "1/2",
        "NotReady",
        "0",
    );
    check_pod(
        json!({"metadata": {"deletionTimestamp": "2024-01-02T03:04:00Z"}, "spec": spec,
               "status": {"phase": "Running"}}),
        "0/2",
        "Terminating",
        "0",
    );
    check_pod(
        json!({"spec": spec, "status": {"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]}}),
        "0/2",
        "SchedulingGated",
        "0",
    );
    let sidecar = json!({"containers": [{"name": "c"}],
                         "initContainers": [{"name": "s", "restartPolicy": "Always"}]});
    check_pod(
        json!({"spec": sidecar, "status": {"phase": "Running",
            "initContainerStatuses": [{"name": "s", "started": true, "ready": true,
                                       "restartCount": 4, "state": {"running": {}}}],
            "containerStatuses": [{"name": "c", "ready": true, "state": {"running": {}}}]}}),
        "2/2",
        "Running",
        "4",
    );
}

#[test]
fn workloads_show_their_progress() {
    let template = json!({"spec": {"containers": [{"name": "c", "image": "i:1"}, {"name": "d", "image": "j"}]}});
    check(
        "apps",
        "Deployment",
        &made(json!({
            "spec": {"replicas": 3, "template": template, "selector": {
                "matchLabels": {"b": "1"},
                "matchExpressions": [{"key": "a", "operator": "In", "values": ["y", "x"]}]}},
            "status": {"readyReplicas": 2, "updatedReplicas": 1, "availableReplicas": 2},
        })),
        &json!(["a", "2/3", 1, 2, "5s", "c,d", "i:1,j", "a in (x,y),b=1"]),
    );
    check(
        "batch",
        "Job",
        &made(json!({
            "spec": {"completions": 4, "template": template},
            "status": {"succeeded": 1, "startTime": "2024-01-02T03:04:00Z"},
        })),
        &json!(["a", "Running", "1/4", "5s", "5s", "c,d", "i:1,j", "<none>"]),
    );
    check(
        "batch",
        "CronJob",
        &made(json!({"spec": {"schedule": "@daily", "suspend": false}})),
        &json!(["a", "@daily", "<none>", "False", 0, "<none>", "5s", "", "", "<none>"]),
    );
}

#[test]
fn services_show_their_addresses() {
    let ports = json!([{"port": 80, "protocol": "TCP"}, {"port": 443, "nodePort": 30000, "protocol": "TCP"}]);
    check(
        "",
        "Service",
        &made(json!({"spec": {"type": "ClusterIP", "clusterIPs": ["10.0.0.1"], "ports": ports,
                              "selector": {"app": "a"}}})),
        &json!(["a", "ClusterIP", "10.0.0.1", "<none>", "80/TCP,443:30000/TCP", "5s", "app=a"]),
    );
    check(
        "",
        "Service",
        &made(json!({"spec": {"type": "LoadBalancer", "externalIPs": ["1.1.1.1"]},
                     "status": {"loadBalancer": {"ingress": [{"ip": "2.2.2.2"}]}}})),
        &json!(["a", "LoadBalancer", "<none>", "2.2.2.2,1.1.1.1", "<none>", "5s", "<none>"]),
    );
    let addresses: Vec<Value> = (1..6).map(|n| json!({"ip": format!("10.0.0.{n}")})).collect();
    check(
        "",
        "Endpoints",
        &made(json!({"subsets": [{"addresses": addresses, "ports": [{"port": 80}]}]})),
        &json!(["a", "10.0.0.1:80,10.0.0.2:80,10.0.0.3:80 + 2 more...", "5s"]),
    );
}

#[test]
fn both_versions_of_events_have_the_same_cells() {
    let old = made(json!({
        "involvedObject": {"kind": "Pod", "name": "p"}, "message": " hi\n", "type": "Normal",
        "reason": "R", "source": {"component": "kubelet", "host": "n1"}, "count": 2,
        "firstTimestamp": "2024-01-02T03:03:05Z", "lastTimestamp": "2024-01-02T03:04:00Z",
    }));
    let new = made(json!({
        "regarding": {"kind": "Pod", "name": "p"}, "note": "hi", "type": "Normal", "reason": "R",
        "reportingController": "kubelet", "reportingInstance": "n1", "deprecatedCount": 2,
        "deprecatedFirstTimestamp": "2024-01-02T03:03:05Z",
        "deprecatedLastTimestamp": "2024-01-02T03:04:00Z",
    }));
    let expected = json!(["5s", "Normal", "R", "pod/p", "", "kubelet, n1", "hi", "60s", 2, "a"]);
    check("", "Event", &old, &expected);
    check("events.k8s.io", "Event", &new, &expected);
}

#[test]
fn autoscalers_show_their_metrics() {
    let object = made(json!({
        "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "d"}, "maxReplicas": 5,
                 "metrics": [
                    {"type": "Resource", "resource": {"name": "cpu", "target": {"averageUtilization": 80}}},
                    {"type": "Pods", "pods": {"target": {"averageValue": "10"}}},
                    {"type": "External", "external": {"target": {"value": "3"}}}]},
        "status": {"currentReplicas": 2, "currentMetrics": [
            {"type": "Resource", "resource": {"current": {"averageUtilization": 40}}}]},
    }));
    check(
        "autoscaling",
        "HorizontalPodAutoscaler",
        &object,
        &json!([
            "a",
            "Deployment/d",
            "cpu: 40%/80%, <unknown>/10 + 1 more...",
            "<unset>",
            5,
            2,
            "5s"
        ]),
    );
}

#[test]
fn custom_kinds_have_the_columns_of_their_definition() {
    let printer = [
        PrinterColumn {
            name: "Size".into(),
            kind: "integer".into(),
            description: "how big".into(),
            json_path: ".spec.size".into(),
            ..PrinterColumn::default()
        },
        PrinterColumn {
            name: "Colour".into(),
            kind: "string".into(),
            priority: 1,
            json_path: ".spec.colour".into(),
            ..PrinterColumn::default()
        },
        PrinterColumn {
            name: "Since".into(),
            kind: "date".into(),
            json_path: ".metadata.creationTimestamp".into(),
            ..PrinterColumn::default()
        },
        PrinterColumn {
            name: "Gone".into(),
            kind: "string".into(),
            json_path: ".spec.none".into(),
            ..PrinterColumn::default()
        },
    ];
    let columns = custom_columns(&printer);
    let cells = row(&columns, &made(json!({"spec": {"size": 3, "colour": "blue"}})), now());
    assert_eq!(Value::Array(cells), json!(["a", 3, "blue", "5s", null]));
    assert_eq!(
        columns[2].description,
        "Custom resource definition column (in JSONPath format): .spec.colour"
    );
    let plain = custom_columns(&[]);
    let names: Vec<_> = plain.iter().map(|column| (&*column.name, &*column.kind)).collect();
    assert_eq!(names, [("Name", "string"), ("Age", "date")]);
    assert_eq!(row(&plain, &made(json!({})), now()), ["a", "5s"]);
}

fn config_map(name: &str) -> Object {
    let json = format!(
        r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"{name}","namespace":"n","creationTimestamp":"2024-01-02T03:04:00Z"}},"data":{{"x":"1"}}}}"#
    );
    Object::decode(json.as_bytes(), Revision(7), EventType::Added, &[]).unwrap()
}

fn view(name: &'static str, include: IncludeObject) -> View<'static> {
    View {
        columns: columns(&kind("", name)),
        version: MetaVersion::V1,
        include,
        managed_fields: ManagedFields::Kept,
    }
}

fn list(include: IncludeObject) -> Value {
    let view = view("ConfigMap", include);
    let meta = ListMeta {
        revision: Revision(9),
        continue_token: "t",
        remaining: Some(3),
        ..ListMeta::default()
    };
    let mut buffer = BytesMut::new();
    view.write_head(&mut buffer, &meta, Headings::Shown);
    view.write_row(&mut buffer, &config_map("a"), now());
    view.write_tail(&mut buffer);
    serde_json::from_slice(&buffer).unwrap()
}

#[test]
fn a_list_is_one_table() {
    let table = list(IncludeObject::Metadata);
    assert_eq!(table["kind"], "Table");
    assert_eq!(
        table["metadata"],
        json!({"resourceVersion": "9", "continue": "t", "remainingItemCount": 3})
    );
    assert_eq!(table["columnDefinitions"].as_array().unwrap().len(), 3);
    assert_eq!(table["rows"][0]["cells"], json!(["a", 1, "5s"]));
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    assert_eq!(table["rows"][0]["object"]["metadata"]["resourceVersion"], "7");
    assert_eq!(table["rows"][0]["object"].get("data"), None);
    assert_eq!(list(IncludeObject::Object)["rows"][0]["object"]["data"], json!({"x": "1"}));
    assert_eq!(list(IncludeObject::None)["rows"][0]["object"], json!(null));
}

fn frame(bytes: &[u8]) -> Value {
    assert_eq!(bytes.iter().filter(|byte| **byte == b'\n').count(), 1);
    serde_json::from_slice(bytes).unwrap()
}

#[test]
fn a_watch_shows_columns_once() {
    let view = view("ConfigMap", IncludeObject::Metadata);
    let object = config_map("b");
    let event = |headings| frame(&view.event_frame(EventType::Modified, &object, headings, now()));
    let first = event(Headings::Shown);
    assert_eq!(first["object"]["columnDefinitions"].as_array().unwrap().len(), 3);
    let later = event(Headings::Omitted);
    assert_eq!(later["type"], "MODIFIED");
    assert_eq!(later["object"]["columnDefinitions"], json!(null));
    assert_eq!(later["object"]["metadata"]["resourceVersion"], "7");
}

#[test]
fn one_object_is_a_table_at_its_own_revision() {
    let mut buffer = BytesMut::new();
    let view = view("ConfigMap", IncludeObject::None);
    view.write_object(&mut buffer, &config_map("a"), now());
    let table: Value = serde_json::from_slice(&buffer).unwrap();
    assert_eq!(table["metadata"], json!({"resourceVersion": "7"}));
    assert_eq!(table["rows"].as_array().unwrap().len(), 1);
}

#[test]
fn bookmarks_are_tables_too() {
    let bookmark = |include, mark| {
        let view = view("ConfigMap", include);
        frame(&view.bookmark_frame(Revision(5), mark, Headings::Omitted, None))
    };
    let mark = bookmark(IncludeObject::None, true);
    assert_eq!(mark["type"], "BOOKMARK");
    let metadata = &mark["object"]["rows"][0]["object"]["metadata"];
    assert_eq!(metadata["resourceVersion"], "5");
    assert_eq!(metadata["annotations"]["k8s.io/initial-events-end"], "true");
    assert_eq!(bookmark(IncludeObject::None, false)["object"]["rows"][0]["object"], json!(null));
    let partial = partial::bookmark(MetaVersion::V1, Revision(5), false);
    let partial: Value = serde_json::from_slice(&partial).unwrap();
    assert_eq!(partial["metadata"], json!({"resourceVersion": "5"}));
}

#[test]
fn finished_pods_are_marked() {
    let json = br#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p"},"status":{"phase":"Succeeded"}}"#;
    let pod = Object::decode(json, Revision(1), EventType::Added, &[]).unwrap();
    let mut buffer = BytesMut::new();
    view("Pod", IncludeObject::None).write_row(&mut buffer, &pod, now());
    let row: Value = serde_json::from_slice(&buffer).unwrap();
    assert_eq!(row["conditions"][0]["type"], "Completed");
    assert_eq!(row["conditions"][0]["reason"], "Succeeded");
}

#[test]
fn partial_metadata_has_no_spec_or_status() {
    let event = frame(&partial::event_frame(
        EventType::Added,
        MetaVersion::V1Beta1,
        &config_map("a"),
        ManagedFields::Kept,
    ));
    assert_eq!(event["object"]["apiVersion"], "meta.k8s.io/v1beta1");
    assert_eq!(event["object"]["metadata"]["name"], "a");
    assert_eq!(event["object"].get("data"), None);
}
