//! The same object sent as JSON, YAML and protobuf is stored as the same bytes.
//!
//! Objects and messages are generated from the type table; `k8s-pb`, whose types drop unknown fields,
//! checks that the table agrees with Kubernetes.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use headwater_api::{Kind, kind};
use headwater_json::Value;
use headwater_schema::decode::{self, Format, Target};
use headwater_schema::types::{Type, Types};
use headwater_schema::{defaults, protobuf};
use k8s_pb::api::{
    admissionregistration::v1 as admission, apps::v1 as apps, autoscaling::v1 as autoscaling,
    autoscaling::v2 as autoscaling_v2, batch::v1 as batch, certificates::v1 as certificates,
    coordination::v1 as coordination, core::v1 as core, discovery::v1 as discovery,
    events::v1 as events, flowcontrol::v1 as flowcontrol, networking::v1 as networking,
    node::v1 as node, policy::v1 as policy, rbac::v1 as rbac, resource::v1 as resource,
    scheduling::v1 as scheduling, storage::v1 as storage,
};
use k8s_pb::apiextensions_apiserver::pkg::apis::apiextensions::v1 as apiextensions;
use proptest::prelude::*;
use prost::Message;

use crate::any::{self, Dice};
use crate::wire;

/// Every kind with its type.
pub(crate) fn kinds() -> Vec<(&'static Kind, &'static Type)> {
    static KINDS: LazyLock<Vec<Kind>> = LazyLock::new(kind::builtin);
    let typed = |kind: &'static Kind| Some((kind, Types::builtin().of(kind)?));
    KINDS.iter().filter_map(typed).collect()
}

/// The stored object of a body.
fn stored(kind: &Kind, format: Format, body: &[u8]) -> Result<String, String> {
    let target = Target { group: &kind.group, version: &kind.version, kind: &kind.kind };
    let decoded = decode::object(target, format, body).map_err(|error| error.to_string())?;
    if !decoded.unknown.is_empty() {
        return Err(format!("unknown: {:?}", decoded.unknown));
    }
    let mut value = decoded.value;
    defaults::apply(kind, &mut value, None);
    Ok(value.to_string())
}

proptest! {
    #[test]
    fn every_format_is_stored_as_the_same_bytes(seed: u64) {
        let kinds = kinds();
        let (kind, of) = kinds[seed as usize % kinds.len()];
        let mut object = any::object(&mut Dice::new(seed), of);
        let message = wire::message(of, object.as_object().unwrap());
        let body = wire::body(&kind.api_version(), &kind.kind, &message);
        object["apiVersion"] = kind.api_version().into();
        object["kind"] = kind.kind.to_string().into();
        let json = object.to_string();
        let yaml = serde_saphyr::to_string(&object).unwrap();
        let expected = stored(kind, Format::Json, json.as_bytes());
        prop_assert!(expected.is_ok(), "{:?}: {}", expected, json);
        prop_assert_eq!(&stored(kind, Format::Yaml, yaml.as_bytes()), &expected, "{}", yaml);
        prop_assert_eq!(&stored(kind, Format::Protobuf, &body), &expected, "{}", json);
    }
}

/// The message after a round trip through the oracle: its known fields.
fn again<M: Message + Default>(message: &[u8]) -> Vec<u8> {
    M::decode(message).unwrap().encode_to_vec()
}

type Oracle = fn(&[u8]) -> Vec<u8>;

/// A type of the table and the oracle's type.
macro_rules! oracles {
    ($($package:literal: $module:ident { $($kind:ident)+ })+) => {
        &[$($((concat!($package, ".", stringify!($kind)), again::<$module::$kind> as Oracle)),+),+]
    };
}

const ORACLES: &[(&str, Oracle)] = oracles! {
    "admissionregistration/v1": admission {
        ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding
        ValidatingWebhookConfiguration MutatingWebhookConfiguration
    }
    "apiextensions/v1": apiextensions { CustomResourceDefinition }
    "apps/v1": apps { ControllerRevision DaemonSet Deployment ReplicaSet StatefulSet }
    "autoscaling/v1": autoscaling { HorizontalPodAutoscaler }
    "autoscaling/v2": autoscaling_v2 { HorizontalPodAutoscaler }
    "batch/v1": batch { CronJob Job }
    "certificates/v1": certificates { CertificateSigningRequest }
    "coordination/v1": coordination { Lease }
    "core/v1": core {
        ConfigMap Endpoints Event LimitRange Namespace Node PersistentVolume PersistentVolumeClaim
        Pod PodTemplate ReplicationController ResourceQuota Secret Service ServiceAccount
    }
    "discovery/v1": discovery { EndpointSlice }
    "events/v1": events { Event }
    "flowcontrol/v1": flowcontrol { FlowSchema PriorityLevelConfiguration }
    "networking/v1": networking { Ingress IngressClass IPAddress NetworkPolicy ServiceCIDR }
    "node/v1": node { RuntimeClass }
    "policy/v1": policy { PodDisruptionBudget }
    "rbac/v1": rbac { ClusterRole ClusterRoleBinding Role RoleBinding }
    "resource/v1": resource { DeviceClass ResourceClaim ResourceClaimTemplate ResourceSlice }
    "scheduling/v1": scheduling { PriorityClass }
    "storage/v1": storage {
        CSIDriver CSINode CSIStorageCapacity StorageClass VolumeAttachment VolumeAttributesClass
    }
};

/// Fields of 1.36 that the oracle, which has 1.35, does not know.
const NEW: &[&str] = &[
    "attributes.bools",
    "attributes.ints",
    "attributes.strings",
    "attributes.versions",
    "devices.nodeAllocatableResourceMappings",
    "resources.message",
    "spec.preventPodSchedulingIfMissing",
    "spec.schedulingGroup",
    "status.nodeAllocatableResourceClaimStatuses",
    "volumeMounts.volumeStatus",
];

#[test]
fn the_table_numbers_fields_as_kubernetes_does() {
    let mut lost = BTreeSet::new();
    for (name, again) in ORACLES {
        let of =
            Types::builtin().named(name).unwrap_or_else(|| panic!("{name} is not in the table"));
        for seed in 0..200 {
            let object = any::object(&mut Dice::new(seed), of);
            let message = wire::message(of, object.as_object().unwrap());
            let kept = again(&message);
            if kept != message {
                find_lost("", &read(of, &message), &read(of, &kept), &mut lost);
            }
        }
    }
    lost.retain(|field| !NEW.contains(&field.as_str()));
    assert_eq!(lost, BTreeSet::new());
}

#[test]
fn objects_are_encoded_as_by_kubernetes() {
    for (name, again) in ORACLES {
        let of = Types::builtin().named(name).unwrap();
        let (kind, _) = kinds().into_iter().find(|(_, other)| other.name == *name).unwrap();
        for seed in 0..100 {
            let mut object = any::object(&mut Dice::new(seed), of);
            object["apiVersion"] = kind.api_version().into();
            object["kind"] = kind.kind.to_string().into();
            let json = stored(kind, Format::Json, object.to_string().as_bytes()).unwrap();
            let body = protobuf::encode::body(json.as_bytes()).unwrap();
            assert_eq!(stored(kind, Format::Protobuf, &body).unwrap(), json);
            let mut message = Vec::new();
            protobuf::encode::message(of, json.as_bytes(), &mut message).unwrap();
            assert!(body.ends_with(&[&message[..], &protobuf::encode::ENVELOPE_END].concat()));
            // The oracle writes fields in order and keeps those that are set, also to zero.
            let kept = again(&message);
            let mut lost = BTreeSet::new();
            find_lost("", &read(of, &message), &read(of, &kept), &mut lost);
            // The oracle leaves out empty messages in maps, which these have.
            let has_empty_entries = *name == "resource/v1.ResourceSlice";
            assert!(!lost.is_empty() || has_empty_entries || kept == message, "{json}");
            lost.retain(|field| !NEW.contains(&field.as_str()));
            assert_eq!(lost, BTreeSet::new());
        }
    }
}

/// As the API server of Kubernetes 1.36 answers.
#[test]
fn a_service_is_encoded_byte_for_byte() {
    let json = br#"{"kind":"Service","apiVersion":"v1","metadata":{"name":"s","namespace":"default",
        "creationTimestamp":"2026-11-16T20:26:16Z","labels":{"b":"\"2\"","a":"1"},
        "managedFields":[{"manager":"m","time":"2026-11-16T20:26:16Z","fieldsV1":{"f:spec":{}}}]},
        "spec":{"ports":[{"port":80,"targetPort":"web"},{"port":-1,"targetPort":82}],
        "sessionAffinity":"None","allocateLoadBalancerNodePorts":false},"status":{"loadBalancer":{}}}"#;
    let hex = [
        "6b387300", // the magic bytes
        "0a0d0a027631120753657276696365",
        "12aa01",
        "0a5b0a017312001a0764656661756c7422002a0032003800420808e8cdedd7061000",
        "5a080a016212032232225a060a0161120131", // labels, by key
        "8a01260a016d12001a00220808e8cdedd706100032003a0f0a0d7b22663a73706563223a7b7d7d4200",
        "1247",
        "0a130a00120018502209080110001a037765622800",
        "0a190a00120018ffffffffffffffffff012206080010521a002800",
        "1a0022003a044e6f6e65420052005a0060006800a00100", // `false` is set, and no pointer
        "1a020a00",
        "1a002200",
    ]
    .concat();
    let found: String =
        protobuf::encode::body(json).unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(found, hex);
}

fn read(of: &Type, message: &[u8]) -> Value {
    let (group, rest) = of.name.split_once('/').unwrap();
    let (version, kind) = rest.split_once('.').unwrap();
    let group = if group == "core" { "" } else { group };
    protobuf::object(group, version, kind, message).unwrap()
}

/// The differences of two values as `parent.key`.
fn find_lost(parent: &str, whole: &Value, kept: &Value, lost: &mut BTreeSet<String>) {
    match (whole, kept) {
        (Value::Object(whole), Value::Object(kept)) => {
            for (key, value) in whole {
                // Attributes are a map: their keys are not fields.
                let next = if parent == "attributes" { parent } else { key };
                match kept.get(key) {
                    Some(kept) => find_lost(next, value, kept, lost),
                    None => _ = lost.insert(format!("{parent}.{key}")),
                }
            }
        }
        (Value::Array(whole), Value::Array(kept)) if whole.len() == kept.len() => {
            whole.iter().zip(kept).for_each(|(whole, kept)| find_lost(parent, whole, kept, lost));
        }
        (whole, kept) if whole == kept => {}
        (whole, kept) => _ = lost.insert(format!("{parent}: {whole}, not {kept}")),
    }
}
