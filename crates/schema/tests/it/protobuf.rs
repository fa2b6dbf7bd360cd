//! Messages of a Go client decode to the JSON that the same client would send.

use std::collections::BTreeMap;

use headwater_json::{Value, json};
use headwater_schema::decode::{self, Format, Target};
use k8s_pb::api::apps::v1 as apps;
use k8s_pb::api::authentication::v1 as authentication;
use k8s_pb::api::coordination::v1 as coordination;
use k8s_pb::api::core::v1 as core;
use k8s_pb::apiextensions_apiserver::pkg::apis::apiextensions::v1 as apiextensions;
use k8s_pb::apimachinery::pkg::api::resource::Quantity;
use k8s_pb::apimachinery::pkg::apis::meta::v1 as meta;
use k8s_pb::apimachinery::pkg::util::intstr::IntOrString;
use prost::Message;

fn text(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn named(name: &str) -> Option<meta::ObjectMeta> {
    Some(meta::ObjectMeta { name: text(name), ..Default::default() })
}

/// The envelope, as a client writes it.
fn body(api_version: &str, kind: &str, object: &impl Message) -> Vec<u8> {
    #[derive(Clone, PartialEq, Message)]
    struct TypeMeta {
        #[prost(string, tag = "1")]
        api_version: String,
        #[prost(string, tag = "2")]
        kind: String,
    }
    #[derive(Clone, PartialEq, Message)]
    struct Unknown {
        #[prost(message, optional, tag = "1")]
        type_meta: Option<TypeMeta>,
        #[prost(bytes = "vec", tag = "2")]
        raw: Vec<u8>,
    }
    let type_meta = TypeMeta { api_version: api_version.into(), kind: kind.into() };
    let unknown = Unknown { type_meta: Some(type_meta), raw: object.encode_to_vec() };
    [b"k8s\0".to_vec(), unknown.encode_to_vec()].concat()
}

#[track_caller]
fn check(target: Target<'_>, object: &impl Message, expected: &Value) {
    let api_version = match target.group {
        "" => target.version.to_owned(),
        group => format!("{group}/{}", target.version),
    };
    let message = body(&api_version, target.kind, object);
    let found = decode::object(target, Format::Protobuf, &message).unwrap();
    let same = decode::object(target, Format::Json, expected.to_string().as_bytes()).unwrap();
    assert_eq!(same.unknown, Vec::<String>::new());
    assert_eq!(found.value, same.value);
}

fn target(group: &'static str, kind: &'static str) -> Target<'static> {
    Target { group, version: "v1", kind }
}

#[test]
fn a_config_map_and_a_secret() {
    let data = BTreeMap::from([("k".to_owned(), "v".to_owned()), ("e".to_owned(), String::new())]);
    let object = core::ConfigMap {
        metadata: named("c"),
        data,
        binary_data: BTreeMap::from([("b".to_owned(), vec![0xff, 0])]),
        immutable: Some(false),
    };
    check(
        target("", "ConfigMap"),
        &object,
        &json!({"metadata": {"name": "c"}, "data": {"k": "v", "e": ""},
            "binaryData": {"b": "/wA="}, "immutable": false}),
    );
    let object = core::Secret {
        metadata: named("s"),
        string_data: BTreeMap::from([("a".to_owned(), "b".to_owned())]),
        r#type: text("Opaque"),
        ..Default::default()
    };
    check(
        target("", "Secret"),
        &object,
        &json!({"metadata": {"name": "s"}, "stringData": {"a": "b"}, "type": "Opaque"}),
    );
}

fn pod_spec() -> core::PodSpec {
    let quantity = |amount: &str| Quantity { string: text(amount) };
    core::PodSpec {
        containers: vec![core::Container {
            name: text("c"),
            image: text("img"),
            ports: vec![core::ContainerPort { container_port: Some(80), ..Default::default() }],
            resources: Some(core::ResourceRequirements {
                requests: BTreeMap::from([("cpu".to_owned(), quantity("500m"))]),
                ..Default::default()
            }),
            liveness_probe: Some(core::Probe {
                handler: Some(core::ProbeHandler {
                    http_get: Some(core::HttpGetAction {
                        port: Some(IntOrString {
                            r#type: Some(1),
                            int_val: Some(0),
                            str_val: text("http"),
                        }),
                        ..Default::default()
                    }),
                    ..Default::default()
                }),
                period_seconds: Some(3),
                ..Default::default()
            }),
            env: vec![core::EnvVar {
                name: text("A"),
                value_from: Some(core::EnvVarSource {
                    secret_key_ref: Some(core::SecretKeySelector {
                        local_object_reference: Some(core::LocalObjectReference {
                            name: text("s"),
                        }),
                        key: text("k"),
                        optional: None,
                    }),
                    ..Default::default()
                }),
                ..Default::default()
            }],
            ..Default::default()
        }],
        volumes: vec![core::Volume {
            name: text("v"),
            volume_source: Some(core::VolumeSource {
                empty_dir: Some(core::EmptyDirVolumeSource::default()),
                ..Default::default()
            }),
        }],
        host_network: Some(false),
        termination_grace_period_seconds: Some(0),
        security_context: Some(core::PodSecurityContext {
            supplemental_groups: vec![1, 2],
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn pod_spec_json() -> Value {
    json!({
        "containers": [{"name": "c", "image": "img", "ports": [{"containerPort": 80}],
            "resources": {"requests": {"cpu": "500m"}},
            "livenessProbe": {"httpGet": {"port": "http"}, "periodSeconds": 3},
            "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}],
        "volumes": [{"name": "v", "emptyDir": {}}],
        "terminationGracePeriodSeconds": 0,
        "securityContext": {"supplementalGroups": [1, 2]},
    })
}

#[test]
fn a_pod_and_a_deployment() {
    let pod = core::Pod { metadata: named("p"), spec: Some(pod_spec()), ..Default::default() };
    let expected = json!({"metadata": {"name": "p"}, "spec": pod_spec_json()});
    check(target("", "Pod"), &pod, &expected);
    let deployment = apps::Deployment {
        metadata: Some(meta::ObjectMeta {
            name: text("d"),
            // Go's encoding of a zero time.
            creation_timestamp: Some(meta::Time::default()),
            generation: Some(0),
            namespace: text(""),
            ..Default::default()
        }),
        spec: Some(apps::DeploymentSpec {
            replicas: Some(0),
            template: Some(core::PodTemplateSpec {
                metadata: Some(meta::ObjectMeta {
                    labels: BTreeMap::from([("a".to_owned(), "b".to_owned())]),
                    ..Default::default()
                }),
                spec: Some(pod_spec()),
            }),
            strategy: Some(apps::DeploymentStrategy {
                rolling_update: Some(apps::RollingUpdateDeployment {
                    max_surge: Some(IntOrString { int_val: Some(2), ..Default::default() }),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    };
    check(
        target("apps", "Deployment"),
        &deployment,
        &json!({"metadata": {"name": "d"}, "spec": {"replicas": 0,
            "strategy": {"rollingUpdate": {"maxSurge": 2}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": pod_spec_json()}}}),
    );
}

#[test]
fn times_on_a_lease_and_an_event() {
    let micros = meta::MicroTime { seconds: Some(1_700_000_000), nanos: Some(123_456_789) };
    let lease = coordination::Lease {
        metadata: named("l"),
        spec: Some(coordination::LeaseSpec {
            holder_identity: text("one"),
            renew_time: Some(micros),
            ..Default::default()
        }),
    };
    check(
        target("coordination.k8s.io", "Lease"),
        &lease,
        &json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "one",
            "renewTime": "2023-11-14T22:13:20.123456Z"}}),
    );
    let event = core::Event {
        metadata: named("e"),
        first_timestamp: Some(meta::Time { seconds: Some(1_700_000_000), nanos: Some(5) }),
        count: Some(2),
        ..Default::default()
    };
    check(
        target("", "Event"),
        &event,
        &json!({"metadata": {"name": "e"}, "firstTimestamp": "2023-11-14T22:13:20Z", "count": 2}),
    );
}

#[test]
fn a_custom_resource_definition_with_unions_and_free_json() {
    use apiextensions::{Json, JsonSchemaProps, JsonSchemaPropsOrArray, JsonSchemaPropsOrBool};
    let of = |kind: &str| JsonSchemaProps { r#type: text(kind), ..Default::default() };
    let schema = JsonSchemaProps {
        properties: BTreeMap::from([(
            "list".to_owned(),
            JsonSchemaProps {
                items: Some(Box::new(JsonSchemaPropsOrArray {
                    schema: Some(Box::new(of("string"))),
                    j_son_schemas: Vec::new(),
                })),
                ..of("array")
            },
        )]),
        additional_properties: Some(Box::new(JsonSchemaPropsOrBool {
            allows: Some(true),
            schema: None,
        })),
        default: Some(Json { raw: Some(br#"{"list":["a"]}"#.to_vec()) }),
        ..of("object")
    };
    let object = apiextensions::CustomResourceDefinition {
        metadata: named("c"),
        spec: Some(apiextensions::CustomResourceDefinitionSpec {
            group: text("example.com"),
            versions: vec![apiextensions::CustomResourceDefinitionVersion {
                name: text("v1"),
                schema: Some(apiextensions::CustomResourceValidation {
                    open_apiv3_schema: Some(schema),
                }),
                ..Default::default()
            }],
            ..Default::default()
        }),
        status: None,
    };
    check(
        target("apiextensions.k8s.io", "CustomResourceDefinition"),
        &object,
        &json!({"metadata": {"name": "c"}, "spec": {"group": "example.com", "versions": [{
            "name": "v1", "schema": {"openAPIV3Schema": {"type": "object",
                "properties": {"list": {"type": "array", "items": {"type": "string"}}},
                "additionalProperties": true, "default": {"list": ["a"]}}}}]}}),
    );
}

#[test]
fn a_token_review_with_lists_in_messages() {
    let user = authentication::UserInfo {
        username: text("u"),
        extra: BTreeMap::from([(
            "scopes".to_owned(),
            authentication::ExtraValue { items: vec!["a".to_owned(), "b".to_owned()] },
        )]),
        ..Default::default()
    };
    let review = authentication::TokenReview {
        status: Some(authentication::TokenReviewStatus { user: Some(user), ..Default::default() }),
        ..Default::default()
    };
    check(
        target("authentication.k8s.io", "TokenReview"),
        &review,
        &json!({"status": {"user": {"username": "u", "extra": {"scopes": ["a", "b"]}}}}),
    );
}

#[test]
fn delete_options_and_another_kind() {
    let options = meta::DeleteOptions { grace_period_seconds: Some(0), ..Default::default() };
    let message = body("v1", "DeleteOptions", &options);
    let found = decode::delete_options(Format::Protobuf, &message).unwrap();
    assert_eq!(found.value["gracePeriodSeconds"], 0);
    let message = body("v1", "Secret", &core::Secret::default());
    let error = decode::object(target("", "ConfigMap"), Format::Protobuf, &message).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Secret in version \"v1\" cannot be handled as a ConfigMap: converting (v1.Secret) to (core.ConfigMap): unknown conversion"
    );
    let error = decode::object(target("", "ConfigMap"), Format::Protobuf, b"not protobuf");
    assert_eq!(
        error.unwrap_err().to_string(),
        "the object provided is unrecognized (must be of type ConfigMap): provided data does not appear to be a protobuf message, expected prefix [107 56 115 0] (6e6f742070726f746f627566)"
    );
}
