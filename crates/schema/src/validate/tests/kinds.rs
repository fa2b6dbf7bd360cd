//! The rules of storage, devices, networks, autoscalers, fairness and quotas, kind by kind.

use super::*;

/// Checks the fields of the errors of a create, with their reasons.
#[track_caller]
fn wrong(group: &str, name: &str, body: &Value, expected: &[(&str, &str)]) {
    let kind = kind(group, name);
    let errors = create(&kind, &prepared(&kind, body));
    assert_eq!(found(&errors), sorted(expected), "{body}");
}

/// The same for an update of `old`.
#[track_caller]
fn wrong_change(group: &str, name: &str, old: &Value, new: &Value, expected: &[(&str, &str)]) {
    let kind = kind(group, name);
    let (old, mut new) = (prepared(&kind, old), prepared(&kind, new));
    defaults::prepare_for_update(&kind, &mut new, &old);
    let errors = update(&kind, &new, &old);
    assert_eq!(found(&errors), sorted(expected), "{new}");
}

fn found(errors: &[FieldError]) -> Vec<(String, String)> {
    let mut found: Vec<_> =
        errors.iter().map(|error| (error.field.clone(), error.kind.reason().to_owned())).collect();
    found.sort();
    found.dedup();
    found
}

fn sorted(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    let mut sorted: Vec<_> = expected
        .iter()
        .map(|(field, reason)| ((*field).to_owned(), format!("FieldValue{reason}")))
        .collect();
    sorted.sort();
    sorted
}

/// A copy with another value at a JSON pointer; `null` removes it.
fn with(base: &Value, pointer: &str, value: Value) -> Value {
    let mut copy = base.clone();
    let (above, last) = pointer.rsplit_once('/').unwrap();
    let holder = copy.pointer_mut(above).unwrap();
    match holder {
        Value::Array(items) => items[last.parse::<usize>().unwrap()] = value,
        holder => holder[last] = value,
    }
    copy
}

const NET: &str = "networking.k8s.io";
const STORAGE: &str = "storage.k8s.io";
const RESOURCE: &str = "resource.k8s.io";

#[test]
fn service_ranges_are_canonical_and_stay() {
    let range = |cidrs: &[&str]| json!({"spec": {"cidrs": cidrs}});
    let v4 = range(&["10.0.0.0/24"]);
    wrong(NET, "ServiceCIDR", &range(&["10.0.0.0/24", "fd00::/112"]), &[]);
    wrong(NET, "ServiceCIDR", &range(&[]), &[("spec.cidrs", "Required")]);
    wrong(NET, "ServiceCIDR", &range(&["10.0.0.1/24"]), &[("spec.cidrs[0]", "Invalid")]);
    wrong(NET, "ServiceCIDR", &range(&["FD00::/112"]), &[("spec.cidrs[0]", "Invalid")]);
    wrong(NET, "ServiceCIDR", &range(&["0.0.0.0/0"]), &[]);
    wrong(
        NET,
        "ServiceCIDR",
        &range(&["10.0.0.0/24", "10.1.0.0/24"]),
        &[("spec.cidrs", "Invalid")],
    );
    wrong_change(NET, "ServiceCIDR", &v4, &range(&["10.0.0.0/24", "fd00::/112"]), &[]);
    wrong_change(
        NET,
        "ServiceCIDR",
        &v4,
        &range(&["10.1.0.0/24"]),
        &[("spec.cidrs[0]", "Invalid")],
    );
    wrong_change(NET, "ServiceCIDR", &v4, &range(&[]), &[("spec.cidrs", "Invalid")]);
}

#[test]
fn addresses_and_ingress_classes_name_their_objects() {
    let parent = json!({"group": "", "resource": "services", "namespace": "n", "name": "s"});
    let address = json!({"spec": {"parentRef": parent}});
    wrong(NET, "IPAddress", &address, &[]);
    wrong(NET, "IPAddress", &json!({"spec": {}}), &[("spec.parentRef", "Required")]);
    for (field, value, reason) in [
        ("group", "Bad_Name!", "Invalid"),
        ("resource", "", "Required"),
        ("resource", "a/b", "Invalid"),
        ("name", "", "Required"),
        ("namespace", "a/b", "Invalid"),
    ] {
        let body = with(&address, &format!("/spec/parentRef/{field}"), value.into());
        let at = format!("spec.parentRef.{field}");
        wrong(NET, "IPAddress", &body, &[(&at, reason)]);
    }
    let moved = with(&address, "/spec/parentRef/name", "t".into());
    wrong_change(NET, "IPAddress", &address, &moved, &[("spec.parentRef", "Invalid")]);

    let class = json!({"spec": {"controller": "a.b/c", "parameters": {"kind": "K", "name": "n"}}});
    wrong(NET, "IngressClass", &class, &[]);
    for (pointer, value, at, reason) in [
        ("/spec/controller", "plain", "spec.controller", "Invalid"),
        ("/spec/parameters/apiGroup", "", "spec.parameters.apiGroup", "Invalid"),
        ("/spec/parameters/kind", "a/b", "spec.parameters.kind", "Invalid"),
        ("/spec/parameters/scope", "Planet", "spec.parameters.scope", "NotSupported"),
        ("/spec/parameters/scope", "Namespace", "spec.parameters.namespace", "Required"),
        ("/spec/parameters/namespace", "n", "spec.parameters.namespace", "Forbidden"),
    ] {
        wrong(NET, "IngressClass", &with(&class, pointer, value.into()), &[(at, reason)]);
    }
}

#[test]
fn endpoint_slices_hint_at_zones_once() {
    let slice = json!({
        "addressType": "IPv4", "ports": [{"port": 0}],
        "endpoints": [{"addresses": ["1.2.3.4"], "hints": {"forZones": [{"name": "z"}]}}],
    });
    wrong("discovery.k8s.io", "EndpointSlice", &slice, &[]);
    for (pointer, value, at, reason) in [
        ("/hostname", json!(""), "endpoints[0].hostname", "Invalid"),
        ("/nodeName", json!(""), "endpoints[0].nodeName", "Invalid"),
        (
            "/hints",
            json!({"forZones": [{"name": "z"}, {"name": "z"}]}),
            "endpoints[0].hints.forZones[1].name",
            "Duplicate",
        ),
        (
            "/hints",
            json!({"forZones": [{"name": "a/b"}]}),
            "endpoints[0].hints.forZones[0].name",
            "Invalid",
        ),
    ] {
        let body = with(&slice, &format!("/endpoints/0{pointer}"), value);
        wrong("discovery.k8s.io", "EndpointSlice", &body, &[(at, reason)]);
    }
}

#[test]
fn storage_objects_name_their_drivers() {
    let attachment = json!({"spec": {
        "attacher": "a.b", "nodeName": "n", "source": {"persistentVolumeName": "v"},
    }});
    wrong(STORAGE, "VolumeAttachment", &attachment, &[]);
    for (pointer, value, at, reason) in [
        ("/spec/attacher", json!(""), "spec.attacher", "Required"),
        ("/spec/attacher", json!("x".repeat(64)), "spec.attacher", "TooLong"),
        ("/spec/nodeName", json!(""), "spec.nodeName", "Invalid"),
        ("/spec/source", json!({}), "spec.source", "Required"),
        (
            "/spec/source/persistentVolumeName",
            json!("_"),
            "spec.source.persistentVolumeName",
            "Invalid",
        ),
    ] {
        wrong(STORAGE, "VolumeAttachment", &with(&attachment, pointer, value), &[(at, reason)]);
    }
    let node =
        json!({"spec": {"drivers": [{"name": "a.b", "nodeID": "i", "topologyKeys": ["k"]}]}});
    wrong(STORAGE, "CSINode", &node, &[]);
    for (pointer, value, at, reason) in [
        ("/spec/drivers/0/name", json!(""), "spec.drivers[0].name", "Required"),
        ("/spec/drivers/0/nodeID", json!(""), "spec.drivers[0].nodeID", "Required"),
        ("/spec/drivers/0/topologyKeys", json!(["a", "a"]), "spec.drivers[0]", "Duplicate"),
        ("/spec/drivers/0/topologyKeys", json!(["a b"]), "spec.drivers[0]", "Invalid"),
        (
            "/spec/drivers/0/allocatable",
            json!({"count": -1}),
            "spec.drivers[0].allocatable.count",
            "Invalid",
        ),
    ] {
        wrong(STORAGE, "CSINode", &with(&node, pointer, value), &[(at, reason)]);
    }
    let renamed = with(&node, "/spec/drivers/0/nodeID", "j".into());
    wrong_change(STORAGE, "CSINode", &node, &renamed, &[("spec.drivers", "Invalid")]);
    let counted = with(&node, "/spec/drivers/0/allocatable", json!({"count": 3}));
    wrong_change(STORAGE, "CSINode", &node, &counted, &[]);
    let class = json!({"driverName": "a.b", "parameters": {"a": "b"}});
    wrong(STORAGE, "VolumeAttributesClass", &class, &[]);
    let other = json!({"driverName": "c.d", "parameters": {"a": "c"}});
    let frozen = [("driverName", "Forbidden"), ("parameters", "Forbidden")];
    wrong_change(STORAGE, "VolumeAttributesClass", &class, &other, &frozen);
    let bare = json!({"driverName": "", "parameters": {}});
    let missing = [("driverName", "Required"), ("parameters", "Required")];
    wrong(STORAGE, "VolumeAttributesClass", &bare, &missing);
    let driver = json!({"spec": {"fsGroupPolicy": "Odd", "volumeLifecycleModes": ["Short"],
        "tokenRequests": [{"audience": "a"}, {"audience": "a"}, {"audience": "b", "expirationSeconds": 5}]}});
    wrong(
        STORAGE,
        "CSIDriver",
        &driver,
        &[
            ("spec.fsGroupPolicy", "NotSupported"),
            ("spec.volumeLifecycleModes", "NotSupported"),
            ("spec.tokenRequests[1].audience", "Duplicate"),
            ("spec.tokenRequests[2].expirationSeconds", "Invalid"),
        ],
    );
}

#[test]
fn claims_of_devices_are_consistent() {
    let claim = json!({"spec": {"devices": {
        "requests": [{"name": "r", "exactly": {"deviceClassName": "c",
            "selectors": [{"cel": {"expression": "device.driver == 'a.b'"}}]}}],
        "constraints": [{"requests": ["r"], "matchAttribute": "a.b/c"}],
        "config": [{"requests": ["r"], "opaque": {"driver": "a.b", "parameters": {}}}],
    }}});
    wrong(RESOURCE, "ResourceClaim", &claim, &[]);
    let devices = "/spec/devices";
    for (pointer, value, expected) in [
        (
            "/requests/0/exactly/deviceClassName",
            json!(""),
            vec![("requests[0].exactly.deviceClassName", "Required")],
        ),
        ("/requests/0/exactly/count", json!(-1), vec![("requests[0].exactly.count", "Invalid")]),
        (
            "/requests/0/exactly/allocationMode",
            json!("Odd"),
            vec![("requests[0].exactly.allocationMode", "NotSupported")],
        ),
        ("/requests/0/exactly", Value::Null, vec![("requests[0]", "Required")]),
        (
            "/requests/0/exactly/selectors/0",
            json!({}),
            vec![("requests[0].exactly.selectors[0].cel", "Required")],
        ),
        (
            "/requests/0/exactly/selectors/0/cel/expression",
            json!("device.driver +"),
            vec![("requests[0].exactly.selectors[0].cel.expression", "Invalid")],
        ),
        ("/constraints/0/requests", json!(["s"]), vec![("constraints[0].requests[0]", "Invalid")]),
        (
            "/constraints/0/requests",
            json!(["r", "r"]),
            vec![("constraints[0].requests[1]", "Duplicate")],
        ),
        (
            "/constraints/0/matchAttribute",
            json!("plain"),
            vec![("constraints[0].matchAttribute", "Invalid")],
        ),
        ("/constraints/0/matchAttribute", Value::Null, vec![("constraints[0]", "Required")]),
        ("/config/0/opaque", Value::Null, vec![("config[0].opaque", "Required")]),
        (
            "/config/0/opaque/parameters",
            Value::Null,
            vec![("config[0].opaque.parameters", "Required")],
        ),
    ] {
        let body = with(&claim, &format!("{devices}{pointer}"), value);
        let expected: Vec<(String, &str)> =
            expected.into_iter().map(|(at, why)| (format!("spec.devices.{at}"), why)).collect();
        let expected: Vec<(&str, &str)> =
            expected.iter().map(|(at, why)| (at.as_str(), *why)).collect();
        wrong(RESOURCE, "ResourceClaim", &body, &expected);
        // Nothing but the change itself is an error of an update.
        wrong_change(RESOURCE, "ResourceClaim", &claim, &body, &[("spec", "Invalid")]);
    }
}

#[test]
fn slices_of_devices_are_consistent() {
    let slice = json!({"spec": {
        "driver": "a.b", "nodeName": "n",
        "pool": {"name": "p/q", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "d", "attributes": {"v": {"version": "1.2.3-rc.1+b"}, "a.b/s": {"string": "x"}}}],
    }});
    wrong(RESOURCE, "ResourceSlice", &slice, &[]);
    for (pointer, value, at, reason) in [
        ("/spec/driver", json!(""), "spec.driver", "Required"),
        ("/spec/nodeName", Value::Null, "spec", "Required"),
        ("/spec/allNodes", json!(true), "spec", "Invalid"),
        ("/spec/pool/name", json!(""), "spec.pool.name", "Required"),
        ("/spec/pool/resourceSliceCount", json!(0), "spec.pool.resourceSliceCount", "Invalid"),
        ("/spec/pool/generation", json!(-1), "spec.pool.generation", "Invalid"),
        ("/spec/devices/0/name", json!("A"), "spec.devices[0].name", "Invalid"),
        ("/spec/devices/0/nodeName", json!("n"), "spec.devices[0]", "Invalid"),
        ("/spec/devices/0/attributes/v", json!({}), "spec.devices[0].attributes[v]", "Invalid"),
        (
            "/spec/devices/0/attributes/v",
            json!({"version": "01.2.3"}),
            "spec.devices[0].attributes[v].version",
            "Invalid",
        ),
        (
            "/spec/devices/0/attributes/v",
            json!({"string": "x".repeat(65)}),
            "spec.devices[0].attributes[v].string",
            "TooLong",
        ),
        (
            "/spec/devices/0/attributes",
            json!({"1a": {"int": 1}}),
            "spec.devices[0].attributes",
            "Invalid",
        ),
    ] {
        wrong(RESOURCE, "ResourceSlice", &with(&slice, pointer, value), &[(at, reason)]);
    }
    let twice = with(&slice, "/spec/devices", json!([{"name": "d"}, {"name": "d"}]));
    wrong(RESOURCE, "ResourceSlice", &twice, &[("spec.devices[1]", "Duplicate")]);
    let moved = with(&slice, "/spec/nodeName", "m".into());
    wrong_change(RESOURCE, "ResourceSlice", &slice, &moved, &[("spec.nodeName", "Invalid")]);
}

#[test]
fn autoscalers_check_each_metric() {
    let scaler = json!({"spec": {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"},
        "maxReplicas": 2,
        "metrics": [{"type": "Pods", "pods": {
            "metric": {"name": "m", "selector": {"matchLabels": {"a": "not valid"}}},
            "target": {"type": "AverageValue", "averageValue": "1"},
        }}],
    }});
    let check = |body: &Value, expected: &[(&str, &str)]| {
        wrong("autoscaling", "HorizontalPodAutoscaler", body, expected);
    };
    check(&scaler, &[]);
    let metric = "/spec/metrics/0/pods";
    for (pointer, value, at, reason) in [
        (
            "/spec/scaleTargetRef/apiVersion",
            json!("v1"),
            "spec.scaleTargetRef.apiVersion",
            "Invalid",
        ),
        (
            "/spec/scaleTargetRef/apiVersion",
            json!("a/b/c"),
            "spec.scaleTargetRef.apiVersion",
            "Invalid",
        ),
        (
            &format!("{metric}/metric/name"),
            json!(""),
            "spec.metrics[0].pods.metric.name",
            "Required",
        ),
        (
            &format!("{metric}/target/averageValue"),
            json!("0"),
            "spec.metrics[0].pods.target.averageValue",
            "Invalid",
        ),
        (
            &format!("{metric}/target/type"),
            json!("Odd"),
            "spec.metrics[0].pods.target.type",
            "Invalid",
        ),
    ] {
        check(&with(&scaler, pointer, value), &[(at, reason)]);
    }
    let core = with(
        &scaler,
        "/spec/scaleTargetRef",
        json!({"apiVersion": "v1", "kind": "ReplicationController", "name": "r"}),
    );
    check(&core, &[]);
    // An old target stays valid.
    let old = with(&scaler, "/spec/scaleTargetRef/apiVersion", "v1".into());
    let new = with(&old, "/spec/maxReplicas", 3.into());
    wrong_change("autoscaling", "HorizontalPodAutoscaler", &old, &new, &[]);
}

#[test]
fn flow_schemas_name_verbs_paths_and_namespaces() {
    let rule = json!({
        "subjects": [{"kind": "ServiceAccount", "serviceAccount": {"name": "*", "namespace": "n"}}],
        "resourceRules": [{"verbs": ["get"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"]}],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["/", "/a/*"]}],
    });
    let schema = json!({"spec": {"priorityLevelConfiguration": {"name": "p"}, "rules": [rule]}});
    let group = "flowcontrol.apiserver.k8s.io";
    wrong(group, "FlowSchema", &schema, &[]);
    for (pointer, value, at, reason) in [
        ("subjects/0/kind", json!("Robot"), "subjects[0].kind", "NotSupported"),
        (
            "subjects/0/serviceAccount/namespace",
            json!("a.b"),
            "subjects[0].serviceAccount.namespace",
            "Invalid",
        ),
        ("resourceRules/0/verbs", json!(["fly"]), "resourceRules[0].verbs", "NotSupported"),
        ("resourceRules/0/verbs", json!(["*", "get"]), "resourceRules[0].verbs", "Invalid"),
        ("resourceRules/0/namespaces", json!(["A"]), "resourceRules[0].namespaces[0]", "Invalid"),
        (
            "nonResourceRules/0/nonResourceURLs",
            json!(["a"]),
            "nonResourceRules[0].nonResourceURLs[0]",
            "Invalid",
        ),
        (
            "nonResourceRules/0/nonResourceURLs",
            json!(["/a*"]),
            "nonResourceRules[0].nonResourceURLs[0]",
            "Invalid",
        ),
    ] {
        let body = with(&schema, &format!("/spec/rules/0/{pointer}"), value);
        wrong(group, "FlowSchema", &body, &[(&format!("spec.rules[0].{at}"), reason)]);
    }
    let level = |queues: i64, hand: i64| {
        json!({"spec": {"type": "Limited", "limited": {"limitResponse": {
            "type": "Queue", "queuing": {"queues": queues, "handSize": hand},
        }}}})
    };
    let at = "spec.limited.limitResponse.queuing.handSize";
    wrong(group, "PriorityLevelConfiguration", &level(64, 8), &[]);
    wrong(group, "PriorityLevelConfiguration", &level(4, 8), &[(at, "Invalid")]);
    wrong(group, "PriorityLevelConfiguration", &level(70_000, 6), &[(at, "Invalid")]);
}

#[test]
fn quotas_and_limits_are_consistent() {
    let quota = |requirement: Value| json!({"spec": {"hard": {"pods": "1"}, "scopeSelector": {"matchExpressions": [requirement]}}});
    let at = |name: &str| format!("spec.scopeSelector.matchExpressions.{name}");
    for (requirement, expected) in [
        (json!({"scopeName": "PriorityClass", "operator": "In", "values": ["a"]}), vec![]),
        (json!({"scopeName": "PriorityClass", "operator": "In"}), vec![("values", "Required")]),
        (
            json!({"scopeName": "BestEffort", "operator": "In", "values": ["a"]}),
            vec![("operator", "Invalid")],
        ),
        (json!({"scopeName": "Odd", "operator": "Exists"}), vec![("scopeName", "Invalid")]),
    ] {
        let expected: Vec<(String, &str)> =
            expected.into_iter().map(|(name, why)| (at(name), why)).collect();
        let expected: Vec<(&str, &str)> =
            expected.iter().map(|(at, why)| (at.as_str(), *why)).collect();
        wrong("", "ResourceQuota", &quota(requirement), &expected);
    }
    let limits = |limits: Value| json!({"spec": {"limits": limits}});
    for (body, expected) in [
        (json!([{"type": "PersistentVolumeClaim", "max": {"storage": "1Gi"}}]), vec![]),
        (json!([{"type": "PersistentVolumeClaim"}]), vec![("spec.limits[0].limits", "Required")]),
        (json!([{}]), vec![("spec.limits[0].type", "Invalid")]),
        (
            json!([{"type": "Container"}, {"type": "Container"}]),
            vec![("spec.limits[1].type", "Duplicate")],
        ),
        (
            json!([{"type": "Container", "maxLimitRequestRatio": {"cpu": "500m"}}]),
            vec![("spec.limits[0].maxLimitRequestRatio[cpu]", "Invalid")],
        ),
        (
            json!([{"type": "Container", "min": {"cpu": "2"}, "default": {"cpu": "1"}, "defaultRequest": {"cpu": "1"}}]),
            vec![
                ("spec.limits[0].default[cpu]", "Invalid"),
                ("spec.limits[0].defaultRequest[cpu]", "Invalid"),
            ],
        ),
    ] {
        wrong("", "LimitRange", &limits(body), &expected);
    }
}

#[test]
fn the_rest_of_the_kinds() {
    let binding = |role: &str, subject: &str| json!({"roleRef": {"kind": role, "name": "r"}, "subjects": [{"kind": subject, "name": "s"}]});
    let rbac = "rbac.authorization.k8s.io";
    wrong(rbac, "RoleBinding", &binding("Role", "User"), &[]);
    wrong(
        rbac,
        "RoleBinding",
        &binding("", ""),
        &[("roleRef.kind", "NotSupported"), ("subjects[0].kind", "NotSupported")],
    );
    let class = |cpu: &str| json!({"handler": "h", "overhead": {"podFixed": {"cpu": cpu}}});
    wrong("node.k8s.io", "RuntimeClass", &class("1"), &[]);
    wrong("node.k8s.io", "RuntimeClass", &class("-1"), &[("overhead.limits[cpu]", "Invalid")]);
    let node = |ranges: &[&str]| json!({"spec": {"podCIDRs": ranges}});
    wrong("", "Node", &node(&["10.0.0.0/24", "fd00::/64"]), &[]);
    wrong("", "Node", &node(&["10.0.0.0/24", "10.1.0.0/24"]), &[("spec.podCIDRs", "Invalid")]);
    let key = json!({"type": "kubernetes.io/ssh-auth", "data": {"ssh-privatekey": ""}});
    wrong("", "Secret", &key, &[("data[ssh-privatekey]", "Required")]);
    let template = json!({"template": {
        "metadata": {"labels": {"a": "b c"}, "annotations": {"a b": ""}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }});
    wrong(
        "",
        "PodTemplate",
        &template,
        &[("template.labels", "Invalid"), ("template.annotations", "Invalid")],
    );
    let priority = json!({"value": 1, "preemptionPolicy": ""});
    wrong("scheduling.k8s.io", "PriorityClass", &priority, &[("preemptionPolicy", "Required")]);
    let cron = |zone: &str| {
        json!({"metadata": {"name": "c"}, "spec": {"schedule": "* * * * *", "timeZone": zone,
        "jobTemplate": {"spec": {"template": {"spec": {
            "restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}],
        }}}}}})
    };
    wrong("batch", "CronJob", &cron("Europe/Berlin"), &[]);
    for zone in ["", "local", "Mars/Crater"] {
        wrong("batch", "CronJob", &cron(zone), &[("spec.timeZone", "Invalid")]);
    }
    let claim = |source: Value| {
        json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
            "dataSourceRef": source}})
    };
    wrong(
        "",
        "PersistentVolumeClaim",
        &claim(json!({"apiGroup": "a.b", "kind": "K", "name": "n"})),
        &[],
    );
    let both = |at: &'static str, why: &'static str| {
        [("spec.dataSource", why), ("spec.dataSourceRef", why)]
            .map(|(name, why)| (format!("{name}{at}"), why))
    };
    for (source, expected) in [
        (json!({"apiGroup": "a.b", "kind": "K", "name": ""}), both(".name", "Required")),
        (json!({"kind": "K", "name": "n"}), both("", "Invalid")),
        (json!({"apiGroup": "A_", "kind": "K", "name": "n"}), both(".apiGroup", "Invalid")),
    ] {
        let expected: Vec<(&str, &str)> =
            expected.iter().map(|(at, why)| (at.as_str(), *why)).collect();
        wrong("", "PersistentVolumeClaim", &claim(source), &expected);
    }
    let set = json!({"spec": {
        "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
        "volumeClaimTemplates": [{"metadata": {"name": "A"}, "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
        }}],
    }});
    wrong("apps", "StatefulSet", &set, &[("spec.template.spec.volumes[0].name", "Invalid")]);
}

#[test]
fn the_parts_of_pods() {
    let pod = json!({"spec": {
        "restartPolicy": "Always", "terminationGracePeriodSeconds": 10,
        "securityContext": {"sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}], "supplementalGroups": [1]},
        "dnsConfig": {"searches": ["_a.b.", "."], "options": [{"name": "ndots"}]},
        "hostAliases": [{"ip": "1.2.3.4", "hostnames": ["a.b"]}],
        "readinessGates": [{"conditionType": "a.b/c"}],
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule",
            "minDomains": 2, "labelSelector": {}, "matchLabelKeys": ["q"]}],
        "volumes": [{"name": "b", "persistentVolumeClaim": {"claimName": "c"}}, {"name": "e", "emptyDir": {}}],
        "containers": [{
            "name": "c", "image": "i",
            "env": [
                {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a.b/c']"}}},
                {"name": "B", "valueFrom": {"resourceFieldRef": {"resource": "limits.hugepages-2Mi"}}},
            ],
            "volumeDevices": [{"name": "b", "devicePath": "/dev/x"}],
            "volumeMounts": [{"name": "e", "mountPath": "/e", "mountPropagation": "HostToContainer"}],
            "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}],
            "lifecycle": {"preStop": {"sleep": {"seconds": 10}}},
            "livenessProbe": {"httpGet": {"port": 80, "httpHeaders": [{"name": "X-A", "value": "b"}]}},
        }],
    }});
    wrong("", "Pod", &pod, &[]);
    let inside = "spec.containers[0]";
    for (pointer, value, at, reason) in [
        (
            "/spec/securityContext/sysctls/0/name",
            json!("A"),
            "spec.securityContext.sysctls[0].name".to_owned(),
            "Invalid",
        ),
        (
            "/spec/securityContext/supplementalGroups",
            json!([-1]),
            "spec.securityContext.supplementalGroups[0]".into(),
            "Invalid",
        ),
        ("/spec/dnsConfig/searches", json!(["A"]), "spec.dnsConfig.searches[0]".into(), "Invalid"),
        (
            "/spec/dnsConfig/options",
            json!([{"value": "2"}]),
            "spec.dnsConfig.options[0]".into(),
            "Required",
        ),
        (
            "/spec/dnsConfig/nameservers",
            json!(["1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"]),
            "spec.dnsConfig.nameservers".into(),
            "Invalid",
        ),
        (
            "/spec/hostAliases/0/hostnames",
            json!([""]),
            "spec.hostAliases[0].hostnames[0]".into(),
            "Invalid",
        ),
        (
            "/spec/readinessGates/0/conditionType",
            json!(""),
            "spec.readinessGates[0].conditionType".into(),
            "Invalid",
        ),
        ("/spec/os", json!({"name": "beos"}), "spec.os".into(), "NotSupported"),
        (
            "/spec/topologySpreadConstraints/0/labelSelector",
            Value::Null,
            "spec.topologySpreadConstraints[0].matchLabelKeys".into(),
            "Forbidden",
        ),
        (
            "/spec/topologySpreadConstraints",
            json!([
                {"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"},
                {"maxSkew": 2, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"},
            ]),
            "spec.topologySpreadConstraints[0].{topologyKey, whenUnsatisfiable}".into(),
            "Duplicate",
        ),
        (
            "/spec/containers/0/env/0/valueFrom/fieldRef/fieldPath",
            json!("spec.x"),
            format!("{inside}.env[0].valueFrom.fieldRef.fieldPath"),
            "Invalid",
        ),
        (
            "/spec/containers/0/env/0/valueFrom/fieldRef/fieldPath",
            json!("status.phase"),
            format!("{inside}.env[0].valueFrom.fieldRef.fieldPath"),
            "NotSupported",
        ),
        (
            "/spec/containers/0/env/1/valueFrom/resourceFieldRef/resource",
            json!("limits.gpu"),
            format!("{inside}.env[1].valueFrom.resourceFieldRef.resource"),
            "NotSupported",
        ),
        (
            "/spec/containers/0/volumeDevices/0/name",
            json!("x"),
            format!("{inside}.volumeDevices[0].name"),
            "NotFound",
        ),
        (
            "/spec/containers/0/volumeDevices/0/devicePath",
            json!("/a/.."),
            format!("{inside}.volumeDevices[0].devicePath"),
            "Invalid",
        ),
        (
            "/spec/containers/0/volumeMounts/0/mountPropagation",
            json!("Bidirectional"),
            format!("{inside}.volumeMounts[0].mountPropagation"),
            "Forbidden",
        ),
        (
            "/spec/containers/0/volumeMounts/0/mountPropagation",
            json!("Odd"),
            format!("{inside}.volumeMounts[0].mountPropagation"),
            "NotSupported",
        ),
        (
            "/spec/containers/0/resizePolicy/0/resourceName",
            json!("gpu"),
            format!("{inside}.resizePolicy"),
            "NotSupported",
        ),
        ("/spec/restartPolicy", json!("Never"), format!("{inside}.resizePolicy"), "Invalid"),
        (
            "/spec/containers/0/lifecycle/preStop/sleep/seconds",
            json!(11),
            format!("{inside}.lifecycle.preStop.sleep"),
            "Invalid",
        ),
        (
            "/spec/containers/0/livenessProbe/httpGet/httpHeaders/0/name",
            json!("a b"),
            format!("{inside}.livenessProbe.httpGet.httpHeaders"),
            "Invalid",
        ),
    ] {
        wrong("", "Pod", &with(&pod, pointer, value), &[(&at, reason)]);
    }
}
