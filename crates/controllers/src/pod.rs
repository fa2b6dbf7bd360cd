//! A projection of pods: the fields that controllers read, and no others.
//!
//! River: decoder → **projection** → store. A cluster has more pods than all other objects together
//! and every controller reads them, so they are decoded once into a small type and shared.
//! Promise: a projection is only read. Writes are patches or full objects, so that fields that are
//! missing here are not lost.

mod references;
mod sleep;

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::ObjectMeta;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

pub use self::references::{PodReference, SourceReference};

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, kube::Resource, Deserialize)]
#[resource(inherit = core::Pod)]
pub struct Pod {
    /// Without managed fields.
    pub metadata: ObjectMeta,
    /// The desired state.
    #[serde(default)]
    pub spec: PodSpec,
    /// The observed state.
    #[serde(default)]
    pub status: PodStatus,
}

/// The fields of a pod's spec that controllers read.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the names are those of the API")]
pub struct PodSpec {
    pub node_name: Option<String>,
    pub scheduler_name: Option<String>,
    pub restart_policy: Option<String>,
    pub priority: Option<i32>,
    pub preemption_policy: Option<String>,
    pub termination_grace_period_seconds: Option<i64>,
    pub active_deadline_seconds: Option<i64>,
    #[serde(default)]
    pub host_network: bool,
    #[serde(default, deserialize_with = "list")]
    pub containers: Vec<Container>,
    #[serde(default, deserialize_with = "list")]
    pub init_containers: Vec<Container>,
    #[serde(default, deserialize_with = "nullable")]
    pub node_selector: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "list")]
    pub tolerations: Vec<core::Toleration>,
    #[serde(default, deserialize_with = "list")]
    pub topology_spread_constraints: Vec<core::TopologySpreadConstraint>,
    #[serde(default, deserialize_with = "nullable")]
    pub overhead: BTreeMap<String, Quantity>,
    #[serde(default, deserialize_with = "list")]
    pub scheduling_gates: Vec<core::PodSchedulingGate>,
    #[serde(default, deserialize_with = "list")]
    pub readiness_gates: Vec<core::PodReadinessGate>,
    pub affinity: Option<Box<core::Affinity>>,
    /// The claims, ConfigMaps and Secrets that volumes need.
    #[serde(default, rename = "volumes", deserialize_with = "references::volumes")]
    pub volume_references: Vec<PodReference>,
    #[serde(default, deserialize_with = "list")]
    pub ephemeral_containers: Vec<Container>,
}

/// A container of a pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the names are those of the API")]
pub struct Container {
    pub name: String,
    pub image: Option<String>,
    pub restart_policy: Option<String>,
    #[serde(default, deserialize_with = "list")]
    pub ports: Vec<core::ContainerPort>,
    #[serde(default, deserialize_with = "nullable")]
    pub resources: ContainerResources,
    /// The ConfigMaps and Secrets that `env` needs.
    #[serde(default, rename = "env", deserialize_with = "references::variables")]
    pub variable_references: Vec<PodReference>,
    /// The ConfigMaps and Secrets that `envFrom` needs.
    #[serde(default, rename = "envFrom", deserialize_with = "references::variable_sources")]
    pub variable_sources: Vec<PodReference>,
    pub readiness_probe: Option<Box<Probe>>,
    pub startup_probe: Option<Box<Probe>>,
    pub liveness_probe: Option<Box<Probe>>,
    pub lifecycle: Option<Box<ContainerHooks>>,
    /// How long `command` sleeps, if that is what it does.
    #[serde(default, rename = "command", deserialize_with = "sleep::time")]
    pub command_sleep: Option<Duration>,
    /// How long `args` sleep.
    #[serde(default, rename = "args", deserialize_with = "sleep::time")]
    pub arguments_sleep: Option<Duration>,
}

impl Container {
    /// How long its command sleeps, if that is what it does.
    pub fn sleep(&self) -> Option<Duration> {
        self.command_sleep.or(self.arguments_sleep)
    }
}

/// What runs before a container ends.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the names are those of the API")]
pub struct ContainerHooks {
    pub pre_stop: Option<HookHandler>,
}

/// A handler; only the one that sleeps is known.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the names are those of the API")]
pub struct HookHandler {
    pub sleep: Option<core::SleepAction>,
}

/// When a probe runs, and what it takes to fail.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the names are those of the API")]
pub struct Probe {
    pub initial_delay_seconds: Option<i32>,
    pub period_seconds: Option<i32>,
    pub failure_threshold: Option<i32>,
    pub success_threshold: Option<i32>,
}

/// The resources of a container.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the names are those of the API")]
pub struct ContainerResources {
    #[serde(default, deserialize_with = "nullable")]
    pub requests: BTreeMap<String, Quantity>,
    #[serde(default, deserialize_with = "nullable")]
    pub limits: BTreeMap<String, Quantity>,
}

/// The fields of a pod's status that controllers read.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the names are those of the API")]
pub struct PodStatus {
    pub phase: Option<String>,
    pub reason: Option<String>,
    #[serde(rename = "podIP")]
    pub pod_ip: Option<String>,
    #[serde(default, rename = "podIPs", deserialize_with = "nullable")]
    pub pod_ips: Vec<core::PodIP>,
    #[serde(rename = "hostIP")]
    pub host_ip: Option<String>,
    pub nominated_node_name: Option<String>,
    pub start_time: Option<Time>,
    #[serde(default, deserialize_with = "list")]
    pub conditions: Vec<PodCondition>,
    #[serde(default, deserialize_with = "list")]
    pub container_statuses: Vec<ContainerStatus>,
    #[serde(default, deserialize_with = "list")]
    pub init_container_statuses: Vec<ContainerStatus>,
    #[serde(default, deserialize_with = "list")]
    pub ephemeral_container_statuses: Vec<ContainerStatus>,
    pub observed_generation: Option<i64>,
}

/// A condition of a pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the names are those of the API")]
pub struct PodCondition {
    #[serde(rename = "type")]
    pub type_: String,
    pub status: String,
    pub reason: Option<String>,
    pub message: Option<String>,
    pub last_transition_time: Option<Time>,
}

/// The status of a container.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the names are those of the API")]
pub struct ContainerStatus {
    pub name: String,
    #[serde(default)]
    pub ready: bool,
    #[serde(default)]
    pub restart_count: i32,
    #[serde(default, deserialize_with = "nullable")]
    pub state: ContainerState,
    /// How it ended before its last restart, as it was written.
    #[serde(default, deserialize_with = "unless_empty")]
    pub last_state: Option<Box<Value>>,
}

/// Waiting, running or terminated; empty until the node reports the state.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the names are those of the API")]
pub struct ContainerState {
    pub waiting: Option<ContainerStateWaiting>,
    pub running: Option<ContainerStateRunning>,
    pub terminated: Option<ContainerStateTerminated>,
}

/// Why a container is waiting.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[allow(missing_docs, reason = "the names are those of the API")]
pub struct ContainerStateWaiting {
    pub reason: Option<String>,
}

/// Since when a container has been running.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the names are those of the API")]
pub struct ContainerStateRunning {
    pub started_at: Option<Time>,
}

/// How a container ended.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the names are those of the API")]
pub struct ContainerStateTerminated {
    pub exit_code: i32,
    pub reason: Option<String>,
    pub finished_at: Option<Time>,
}

impl Pod {
    /// The node that the pod is bound to.
    pub fn node(&self) -> Option<&str> {
        self.spec.node_name.as_deref().filter(|node| !node.is_empty())
    }

    /// The phase; `Pending` if it is not set.
    pub fn phase(&self) -> &str {
        self.status.phase.as_deref().unwrap_or("Pending")
    }

    /// Whether the pod has succeeded or failed.
    pub fn is_finished(&self) -> bool {
        matches!(self.phase(), "Succeeded" | "Failed")
    }

    /// Whether the pod is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether the pod is neither finished nor being deleted.
    pub fn is_active(&self) -> bool {
        !self.is_finished() && !self.is_deleting()
    }

    /// The condition of this type.
    pub fn condition(&self, type_: &str) -> Option<&PodCondition> {
        self.status.conditions.iter().find(|condition| condition.type_ == type_)
    }

    /// Whether the conditions of all readiness gates are true.
    pub fn readiness_gates_pass(&self) -> bool {
        self.spec.readiness_gates.iter().all(|gate| {
            self.condition(&gate.condition_type).is_some_and(|known| known.status == "True")
        })
    }

    /// Whether the pod is ready.
    pub fn is_ready(&self) -> bool {
        self.condition("Ready").is_some_and(|ready| ready.status == "True")
    }

    /// Since when the pod has been ready, if it is.
    pub fn ready_since(&self) -> Option<&Time> {
        let ready = self.condition("Ready").filter(|ready| ready.status == "True")?;
        ready.last_transition_time.as_ref()
    }

    /// The UID of the pod's controller.
    pub fn controller_uid(&self) -> Option<&str> {
        let owners = self.metadata.owner_references.iter().flatten();
        owners.filter(|owner| owner.controller == Some(true)).map(|owner| owner.uid.as_str()).next()
    }

    /// Whether the pod has all of these labels.
    pub(crate) fn has_labels(&self, wanted: &BTreeMap<String, String>) -> bool {
        contains_all(self.metadata.labels.as_ref(), wanted)
    }

    /// The names of the claims that the pod uses.
    pub fn claims(&self) -> impl Iterator<Item = &str> {
        self.spec.volume_references.iter().filter_map(|reference| match reference {
            PodReference::Claim(name) => Some(name.as_str()),
            _ => None,
        })
    }

    /// Everything that must exist before the pod starts.
    pub fn references(&self) -> impl Iterator<Item = &PodReference> {
        let containers = self.spec.init_containers.iter().chain(&self.spec.containers);
        let variables = containers.flat_map(|container| {
            container.variable_references.iter().chain(&container.variable_sources)
        });
        self.spec.volume_references.iter().chain(variables)
    }

    /// The value of an annotation.
    pub fn annotation(&self, name: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(name).map(String::as_str)
    }
}

/// Whether labels or annotations contain all of these entries.
pub(crate) fn contains_all(
    actual: Option<&BTreeMap<String, String>>,
    wanted: &BTreeMap<String, String>,
) -> bool {
    wanted.iter().all(|(key, value)| actual.and_then(|all| all.get(key)) == Some(value))
}

/// Deserializes `null` as the default value.
fn nullable<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Deserializes an object without members as `None`.
fn unless_empty<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Box<Value>>, D::Error> {
    let value = Option::<Value>::deserialize(deserializer)?;
    let has_members = |value: &Value| value.as_object().is_some_and(|members| !members.is_empty());
    Ok(value.filter(has_members).map(Box::new))
}

/// As [`nullable`], without spare capacity: most lists have one element.
fn list<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let mut list: Vec<T> = nullable(deserializer)?;
    list.shrink_to_fit();
    Ok(list)
}

#[cfg(test)]
mod tests {
    use headwater_client::Cached;

    use super::*;

    #[test]
    fn a_projection_reads_the_same_values_as_the_full_type() {
        let text = r#"{"metadata":{"name":"web-0","namespace":"shop","uid":"u","ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"web","uid":"rs","controller":true}]},"spec":{"nodeName":"node-1","containers":[{"name":"c","image":"nginx","resources":{"requests":{"cpu":"100m"}},"ports":null}],"tolerations":null},"status":{"phase":"Running","podIP":"10.0.0.1","conditions":[{"type":"Ready","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z"}],"containerStatuses":[{"name":"c","ready":true,"restartCount":2,"state":{"running":{"startedAt":"2026-01-01T00:00:00Z"}}}]}}"#;
        let pod = Pod::decode(text).unwrap();
        assert_eq!((pod.key().as_str(), pod.node()), ("shop/web-0", Some("node-1")));
        assert_eq!((pod.phase(), pod.is_ready(), pod.is_active()), ("Running", true, true));
        assert_eq!(pod.controller_uid(), Some("rs"));
        assert!(pod.ready_since().is_some());
        assert_eq!(pod.spec.containers[0].resources.requests["cpu"].0, "100m");
        assert_eq!(pod.status.container_statuses[0].restart_count, 2);
        assert_eq!(pod.status.pod_ip.as_deref(), Some("10.0.0.1"));
    }

    #[test]
    fn references_are_the_objects_that_must_exist() {
        let text = r#"{"metadata":{"name":"p"},"spec":{
            "volumes":[{"name":"data","persistentVolumeClaim":{"claimName":"data-0"}},
                {"name":"tmp","emptyDir":{}},{"name":"conf","configMap":{"name":"conf"}},
                {"name":"maybe","secret":{"secretName":"maybe","optional":true}},
                {"name":"all","projected":{"sources":[{"secret":{"name":"tls"}}]}},
                {"name":"kube-api-access-x","projected":{"sources":[{"configMap":{"name":"kube-root-ca.crt"}}]}}],
            "containers":[{"name":"c","env":[{"name":"A","value":"1"},
                {"name":"B","valueFrom":{"secretKeyRef":{"name":"s","key":"k"}}}],
                "envFrom":[{"configMapRef":{"name":"env"}}]}]}}"#;
        let pod = Pod::decode(text).unwrap();
        assert_eq!(pod.claims().collect::<Vec<_>>(), ["data-0"]);
        let source = |name: &str, key: Option<&str>, volume: Option<&str>| SourceReference {
            name: name.to_owned(),
            key: key.map(str::to_owned),
            volume: volume.map(str::to_owned),
        };
        let expected = [
            PodReference::Claim("data-0".into()),
            PodReference::ConfigMap(source("conf", None, Some("conf"))),
            PodReference::Secret(source("tls", None, Some("all"))),
            PodReference::Secret(source("s", Some("k"), None)),
            PodReference::ConfigMap(source("env", None, None)),
        ];
        assert_eq!(pod.references().cloned().collect::<Vec<_>>(), expected);
    }
}
