//! Collects the descriptions of built-in types and fields from the schemas of `k8s-openapi`.
//!
//! Only `kubectl explain` uses them: schemas and rules come from our own tables. The result is
//! compressed and embedded in the binary.

use std::env;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use k8s_openapi::api;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions;
use k8s_openapi::apimachinery::pkg::apis::meta;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::Value;

macro_rules! kinds {
    ($generator:expr; $($package:path: $($kind:ident),+;)+) => {
        $({ use $package as package; $(add::<package::$kind>($generator);)+ })+
    };
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let mut generator = SchemaGenerator::default();
    kinds! { &mut generator;
        api::admissionregistration::v1:
            MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding, MutatingWebhookConfiguration,
            ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
            ValidatingWebhookConfiguration;
        api::apps::v1: ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet;
        api::authentication::v1: SelfSubjectReview, TokenRequest, TokenReview;
        api::authorization::v1:
            LocalSubjectAccessReview, SelfSubjectAccessReview, SelfSubjectRulesReview,
            SubjectAccessReview;
        api::autoscaling::v1: HorizontalPodAutoscaler, Scale;
        api::autoscaling::v2: HorizontalPodAutoscaler;
        api::batch::v1: CronJob, Job;
        api::certificates::v1: CertificateSigningRequest;
        api::coordination::v1: Lease;
        api::core::v1:
            Binding, ComponentStatus, ConfigMap, Endpoints, Event, LimitRange, Namespace, Node,
            PersistentVolume, PersistentVolumeClaim, Pod, PodTemplate, ReplicationController,
            ResourceQuota, Secret, Service, ServiceAccount;
        api::discovery::v1: EndpointSlice;
        api::events::v1: Event;
        api::flowcontrol::v1: FlowSchema, PriorityLevelConfiguration;
        api::networking::v1: IPAddress, Ingress, IngressClass, NetworkPolicy, ServiceCIDR;
        api::node::v1: RuntimeClass;
        api::policy::v1: Eviction, PodDisruptionBudget;
        api::rbac::v1: ClusterRole, ClusterRoleBinding, Role, RoleBinding;
        api::resource::v1: DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice;
        api::scheduling::v1: PriorityClass;
        api::storage::v1:
            CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment,
            VolumeAttributesClass;
        apiextensions::v1: CustomResourceDefinition;
        apiregistration::v1: APIService;
        meta::v1: DeleteOptions, ListMeta, Status;
    }
    let mut lines = String::new();
    for (name, schema) in generator.take_definitions(false) {
        let parts: Vec<&str> = name.rsplit('.').take(3).collect();
        let short = parts.into_iter().rev().collect::<Vec<_>>().join(".");
        line(&mut lines, &short, &schema);
        for (field, schema) in schema["properties"].as_object().into_iter().flatten() {
            line(&mut lines, &format!("{short}.{field}"), schema);
        }
    }
    write(&lines).expect("the build directory can be written");
}

fn add<T: JsonSchema>(generator: &mut SchemaGenerator) {
    generator.subschema_for::<T>();
}

fn line(lines: &mut String, name: &str, schema: &Value) {
    if let Some(text) = schema["description"].as_str() {
        let text = text.replace('\n', "\\n");
        lines.push_str(&format!("{name}\t{text}\n"));
    }
}

fn write(lines: &str) -> std::io::Result<()> {
    let directory = env::var_os("OUT_DIR").unwrap_or_default();
    let file = File::create(Path::new(&directory).join("descriptions.gz"))?;
    let mut encoder = GzEncoder::new(file, Compression::best());
    encoder.write_all(lines.as_bytes())?;
    encoder.finish()?.sync_all()
}
