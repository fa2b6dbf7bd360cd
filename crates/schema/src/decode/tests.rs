//! Bodies as clients send them, and Kubernetes' responses.

use headwater_json::json;
use proptest::prelude::*;

use super::*;
use headwater_api::kind::builtin;

fn kind(name: &str) -> Kind {
    builtin().into_iter().find(|kind| kind.kind == name).unwrap()
}

fn decode(name: &str, body: &str) -> Result<Decoded, Error> {
    object(&kind(name), Format::Json, body.as_bytes())
}

#[track_caller]
fn check_error(name: &str, body: &str, expected: &str) {
    assert_eq!(decode(name, body).map_err(|error| error.to_string()), Err(expected.into()));
}

#[track_caller]
fn check_value(name: &str, body: &Value, expected: &Value) {
    let decoded = decode(name, &body.to_string()).unwrap();
    assert_eq!(decoded.unknown, Vec::<String>::new());
    assert_eq!(&decoded.value, expected);
}

#[test]
fn malformed_bodies_are_unrecognized() {
    check_error(
        "ConfigMap",
        "",
        "the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: unexpected end of JSON input (<empty>)",
    );
    check_error(
        "ConfigMap",
        "{not json",
        "the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: invalid character 'n' looking for beginning of object key string ({not json)",
    );
    check_error(
        "ConfigMap",
        "[]",
        "the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: json: cannot unmarshal array into Go value of type struct { APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" } (5b5d)",
    );
    check_error(
        "ConfigMap",
        r#"{"kind":1}"#,
        "the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: json: cannot unmarshal number into Go struct field .kind of type string ({\"kind\":1})",
    );
}

#[test]
fn a_body_of_another_kind_or_version_is_rejected() {
    check_error(
        "ConfigMap",
        r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a"}}"#,
        "Secret in version \"v1\" cannot be handled as a ConfigMap: converting (v1.Secret) to (core.ConfigMap): unknown conversion",
    );
    check_error(
        "ConfigMap",
        r#"{"apiVersion":"v2","kind":"ConfigMap","metadata":{"name":"a"}}"#,
        "ConfigMap in version \"v2\" cannot be handled as a ConfigMap: no kind \"ConfigMap\" is registered for version \"v2\" in scheme \"pkg/api/legacyscheme/scheme.go:30\"",
    );
    check_error(
        "HorizontalPodAutoscaler",
        r#"{"apiVersion":"autoscaling/v1","kind":"HorizontalPodAutoscaler"}"#,
        "the API version in the data (autoscaling/v1) does not match the expected API version (autoscaling/v2)",
    );
}

#[test]
fn kind_and_version_may_be_left_out() {
    let expected = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    check_value("ConfigMap", &json!({"metadata": {"name": "a"}}), &expected);
    let empty = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}});
    check_value("ConfigMap", &Value::Null, &empty);
}

#[test]
fn unknown_and_repeated_fields_are_reported_as_in_kubernetes() {
    let body = r#"{"apiVersion":"v1","bogus":1,"kind":"ConfigMap","metadata":{"name":"a","x":{}}}"#;
    let decoded = decode("ConfigMap", body).unwrap();
    assert_eq!(decoded.value["metadata"], json!({"name": "a"}));
    assert_eq!(
        decoded.problems().collect::<Vec<_>>(),
        ["unknown field \"bogus\"", "unknown field \"metadata.x\""]
    );
    assert_eq!(
        decoded.strict_error(Target::from(&kind("ConfigMap"))).unwrap().to_string(),
        "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: unknown field \"bogus\", unknown field \"metadata.x\""
    );
    let body = r#"{"metadata":{"name":"b"},"data":{"k":"1","k":"2"}}"#;
    let decoded = decode("ConfigMap", body).unwrap();
    assert_eq!(decoded.problems().collect::<Vec<_>>(), ["duplicate field \"data.k\""]);
    assert_eq!(decoded.value["data"]["k"], "2");
    let body = r#"{"spec":{"containers":[{"name":"c","foo":1,"Image":"x"}]}}"#;
    let decoded = decode("Pod", body).unwrap();
    assert_eq!(decoded.unknown, ["spec.containers[0].Image", "spec.containers[0].foo"]);
}

#[test]
fn wrong_types_are_rejected_with_kubernetes_messages() {
    let rest = |kind: &str| format!("{kind} in version \"v1\" cannot be handled as a {kind}: ");
    let check = |kind: &str, body: &str, why: &str| {
        check_error(kind, body, &format!("{}{why}", rest(kind)));
    };
    check(
        "ConfigMap",
        r#"{"data":{"k":1}}"#,
        "json: cannot unmarshal number into Go struct field ConfigMap.data of type string",
    );
    check(
        "Deployment",
        r#"{"spec":{"replicas":"3"}}"#,
        "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32",
    );
    check(
        "Deployment",
        r#"{"spec":{"replicas":1.5}}"#,
        "json: cannot unmarshal number 1.5 into Go struct field DeploymentSpec.spec.replicas of type int32",
    );
    check(
        "Deployment",
        r#"{"spec":{"replicas":3000000000}}"#,
        "json: cannot unmarshal number 3000000000 into Go struct field DeploymentSpec.spec.replicas of type int32",
    );
    check(
        "Deployment",
        r#"{"spec":[]}"#,
        "json: cannot unmarshal array into Go struct field Deployment.spec of type v1.DeploymentSpec",
    );
    check(
        "Pod",
        r#"{"spec":{"containers":{}}}"#,
        "json: cannot unmarshal object into Go struct field PodSpec.spec.containers of type []v1.Container",
    );
    check(
        "Pod",
        r#"{"metadata":{"creationTimestamp":"today"}}"#,
        "parsing time \"today\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"today\" as \"2006\"",
    );
    check("Secret", r#"{"data":{"k":"***"}}"#, "illegal base64 data at input byte 0");
    check(
        "Pod",
        r#"{"spec":{"containers":[{"resources":{"limits":{"cpu":"x"}}}]}}"#,
        "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
    );
    check(
        "Service",
        r#"{"spec":{"ports":[{"targetPort":99999999999}]}}"#,
        "json: cannot unmarshal number 99999999999 into Go value of type int32",
    );
}

#[test]
fn empty_fields_are_omitted_or_shown_as_in_kubernetes() {
    check_value(
        "Service",
        &json!({"metadata": {"name": "s", "labels": {}, "annotations": null},
            "spec": {"ports": [{"port": 80, "nodePort": 0}], "publishNotReadyAddresses": false}}),
        &json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
            "spec": {"ports": [{"port": 80, "targetPort": 0}]}, "status": {"loadBalancer": {}}}),
    );
    check_value(
        "Deployment",
        &json!({"metadata": {}, "spec": {"replicas": 0, "paused": false}}),
        &json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {},
            "spec": {"replicas": 0, "strategy": {},
                "template": {"metadata": {}, "spec": {"containers": null}}},
            "status": {}}),
    );
    check_value(
        "Role",
        &json!({"metadata": {"name": "r"}}),
        &json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": {"name": "r"}, "rules": null}),
    );
    check_value(
        "ConfigMap",
        &json!({"metadata": {"name": "c"}, "data": {"a": null, "b": ""}}),
        &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"},
            "data": {"a": "", "b": ""}}),
    );
}

#[test]
fn quantities_and_times_get_their_canonical_text() {
    let decoded = decode(
        "Pod",
        r#"{"metadata":{"deletionTimestamp":"2024-01-01T01:00:00.5+01:00"},
            "spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":0.5,"memory":"1024Mi"}}}]}}"#,
    );
    let value = decoded.unwrap().value;
    assert_eq!(value["metadata"]["deletionTimestamp"], "2024-01-01T00:00:00Z");
    assert_eq!(
        value["spec"]["containers"][0]["resources"]["requests"],
        json!({"cpu": "500m", "memory": "1Gi"})
    );
    let lease = r#"{"spec":{"renewTime":"2024-01-01T00:00:00Z"}}"#;
    assert!(decode("Lease", lease).is_err(), "micro times have six decimals");
}

#[test]
fn json_schemas_accept_their_three_forms() {
    let schema = json!({"type": "object", "items": [{"type": "string"}],
        "additionalProperties": false, "properties": {"a": {"additionalProperties":
            {"type": "string"}, "default": {"any": [null, 1.5]}, "maximum": 2.5}},
        "dependencies": {"a": ["b"]}});
    let body =
        json!({"spec": {"versions": [{"name": "v1", "schema": {"openAPIV3Schema": schema}}]}});
    let decoded = decode("CustomResourceDefinition", &body.to_string()).unwrap();
    assert_eq!(decoded.unknown, Vec::<String>::new());
    assert_eq!(decoded.value["spec"]["versions"][0]["schema"]["openAPIV3Schema"], schema);
    let bad = json!({"spec": {"versions": [{"schema": {"openAPIV3Schema": {"items": "x"}}}]}});
    assert!(decode("CustomResourceDefinition", &bad.to_string()).is_err());
}

#[test]
fn delete_options_come_in_any_version() {
    for body in [
        r#"{}"#,
        r#"{"apiVersion":"v1","kind":"DeleteOptions"}"#,
        r#"{"apiVersion":"apps/v1","kind":"DeleteOptions"}"#,
        r#"{"apiVersion":"meta.k8s.io/v1","kind":"DeleteOptions"}"#,
    ] {
        assert!(delete_options(Format::Json, body.as_bytes()).is_ok(), "{body}");
    }
    let body = r#"{"gracePeriodSeconds":0,"preconditions":{"uid":"u"},"x":1}"#;
    let decoded = delete_options(Format::Json, body.as_bytes()).unwrap();
    assert_eq!(decoded.value["gracePeriodSeconds"], 0);
    assert_eq!(decoded.unknown, ["x"]);
    for body in ["[]", "{", r#"{"kind":"Pod"}"#, r#"{"gracePeriodSeconds":"0"}"#] {
        assert!(delete_options(Format::Json, body.as_bytes()).is_err(), "{body}");
    }
}

#[test]
fn custom_objects_need_a_kind_and_standard_metadata() {
    let widget = Kind {
        group: "example.com".into(),
        version: "v1".into(),
        kind: "Widget".into(),
        custom: true,
        ..Kind::default()
    };
    let decode = |body: &str| custom(&widget, Format::Json, body.as_bytes());
    let body = r#"{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w","labels":{},"x":1},"spec":{"a":null}}"#;
    let decoded = decode(body).unwrap();
    assert_eq!(decoded.unknown, ["metadata.x"]);
    assert_eq!(decoded.value["metadata"], json!({"name": "w"}));
    assert_eq!(decoded.value["spec"], json!({"a": null}));
    for bad in [
        r#"{"apiVersion":"example.com/v1","metadata":{}}"#,
        r#"{"kind":"Widget","metadata":{}}"#,
        r#"{"apiVersion":"example.com/v1","kind":"Widget","metadata":[]}"#,
        r#"{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"labels":{"a":1}}}"#,
        "null",
        "[]",
    ] {
        assert!(decode(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_deep_document_is_safe_in_the_typed_pass_too() {
    let levels = headwater_json::DEPTH_MAX as usize / 2 - 8;
    let deep = format!("{}{{}}{}", r#"{"not":"#.repeat(levels), "}".repeat(levels));
    let nested =
        format!(r#"{{"spec":{{"versions":[{{"schema":{{"openAPIV3Schema":{deep}}}}}]}}}}"#);
    let thread = std::thread::Builder::new().stack_size(2 * 1024 * 1024).spawn(move || {
        let decoded = decode("CustomResourceDefinition", &nested).unwrap();
        assert!(decoded.unknown.is_empty());
    });
    thread.unwrap().join().unwrap();
}

proptest! {
    #[test]
    fn fitting_twice_changes_nothing(body in pods()) {
        let once = decode("Pod", &body.to_string());
        if let Ok(once) = once {
            let twice = refit(&kind("Pod"), once.value.clone(), None).unwrap();
            prop_assert_eq!(&twice.value, &once.value);
            prop_assert!(twice.unknown.is_empty());
        }
    }
}

/// Objects similar to pods.
fn pods() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!(null)),
        Just(json!("")),
        Just(json!("x")),
        Just(json!(0)),
        Just(json!(7)),
        Just(json!({})),
        Just(json!([])),
        Just(json!(false)),
        Just(json!("1Gi")),
        Just(json!("2024-01-01T00:00:00Z")),
    ];
    let names = prop_oneof![
        Just("name"),
        Just("labels"),
        Just("spec"),
        Just("metadata"),
        Just("containers"),
        Just("status"),
        Just("conditions"),
        Just("resources"),
        Just("limits"),
        Just("volumes"),
        Just("hostNetwork"),
        Just("creationTimestamp"),
        Just("bogus"),
        Just("type"),
    ];
    leaf.prop_recursive(5, 48, 5, move |inner| {
        prop_oneof![
            prop::collection::btree_map(names.clone(), inner.clone(), 0..5).prop_map(|map| map
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value))
                .collect()),
            prop::collection::vec(inner, 0..3).prop_map(Value::from),
        ]
    })
}

/// A JSON patch can copy one member of a stored object over another, where it has another type.
#[test]
fn a_stored_member_that_a_patch_moves_is_fitted_again() {
    let pods = builtin().into_iter().find(|kind| kind.kind == "Pod").unwrap();
    let stored = super::stored(
        br#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p"},"spec":{"nodeName":"n"},"status":{"conditions":[],"phase":"Pending"}}"#,
    )
    .unwrap();
    let whole = super::refit(&pods, stored.clone(), Some(&stored)).unwrap();
    assert!(whole.unknown.is_empty());
    assert_eq!(whole.value["spec"], stored["spec"]);
    let mut moved = stored.clone();
    moved["spec"] = stored["status"].clone();
    moved["metadata"]["annotations"] = stored["spec"].clone();
    let fitted = super::refit(&pods, moved, Some(&stored)).unwrap();
    assert_eq!(fitted.unknown, ["spec.conditions", "spec.phase"]);
    assert_eq!(fitted.value["spec"].get("phase"), None);
    let mut mistyped = stored.clone();
    mistyped["metadata"]["labels"] = stored["status"].clone();
    assert!(super::refit(&pods, mistyped, Some(&stored)).is_err());
}
