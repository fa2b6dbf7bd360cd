//! Every built-in kind through the types of the `kube` crate: a created object is read back
//! unchanged, an unchanged update has no effect, and an applier owns exactly the fields it applied.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::path::Path;

use k8s_openapi::api::{
    admissionregistration::v1 as admission, apps::v1 as apps, autoscaling, batch::v1 as batch,
    certificates::v1 as certificates, coordination::v1 as coordination, core::v1 as core,
    discovery::v1 as discovery, events::v1 as events, flowcontrol::v1 as flowcontrol,
    networking::v1 as networking, node::v1 as node, policy::v1 as policy, rbac::v1 as rbac,
    resource::v1 as resource, scheduling::v1 as scheduling, storage::v1 as storage,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1 as apiextensions;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1 as apiregistration;
use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::process::Process;

/// The traits that these tests need.
trait Typed:
    Resource<DynamicType = ()> + Clone + Debug + PartialEq + Serialize + DeserializeOwned
{
}

impl<K> Typed for K where
    K: Resource<DynamicType = ()> + Clone + Debug + PartialEq + Serialize + DeserializeOwned
{
}

struct Trip {
    client: Client,
    /// `group/version/Kind` of every type that was sent.
    seen: BTreeSet<String>,
    /// All failures.
    failures: Vec<String>,
}

impl Trip {
    async fn namespaced<K>(&mut self, name: &str, body: Value)
    where
        K: Typed + Resource<Scope = NamespaceResourceScope>,
    {
        let api = Api::<K>::namespaced(self.client.clone(), "default");
        Box::pin(self.go(&api, name, body)).await;
    }

    async fn cluster<K>(&mut self, name: &str, body: Value)
    where
        K: Typed + Resource<Scope = ClusterResourceScope>,
    {
        let api = Api::<K>::all(self.client.clone());
        Box::pin(self.go(&api, name, body)).await;
    }

    async fn go<K: Typed>(&mut self, api: &Api<K>, name: &str, body: Value) {
        let what = format!("{}/{}/{}", K::group(&()), K::version(&()), K::kind(&()));
        let sent = typed::<K>(&what, name, body);
        for gone in [self.create(api, name, &sent).await, self.apply(api, &what, name, &sent).await]
        {
            self.failures.extend(gone.err().map(|why| format!("{what}: {why}")));
        }
        self.seen.insert(what);
    }

    async fn create<K: Typed>(&self, api: &Api<K>, name: &str, sent: &K) -> Result<(), String> {
        let maker = PostParams { field_manager: Some("maker".into()), ..PostParams::default() };
        let created = api.create(&maker, sent).await.map_err(said)?;
        let read = settled(api, name).await?;
        same("what was created and what is read", &still(&read), &still(&created))?;
        let shown = serde_json::to_value(&read).unwrap();
        let sent = serde_json::to_value(sent).unwrap();
        contains(&shown, &sent).map_err(|path| format!("{path} was not kept: {shown}"))?;
        self.check_plain(api, name, &shown).await?;
        let entry = only_entry::<K>(&shown, "maker", "Update")?;
        owns_all(&entry, &sent).map_err(|path| format!("{path} is not owned: {entry}"))?;

        let again = api.replace(name, &maker, &read).await.map_err(said)?;
        same("what is written back unchanged", &again, &read)?;
        let immediately = DeleteParams::default().grace_period(0);
        api.delete(name, &immediately).await.map_err(said)?;
        Ok(())
    }

    /// Checks that the type has every field that the server writes.
    async fn check_plain<K: Typed>(
        &self,
        api: &Api<K>,
        name: &str,
        shown: &Value,
    ) -> Result<(), String> {
        let path = format!("{}/{name}", api.resource_url());
        let request = http::Request::get(path).body(Vec::new()).unwrap();
        let text = self.client.request_text(request).await.map_err(said)?;
        let mut plain: Value = serde_json::from_str(&text).unwrap();
        without_nulls(&mut plain);
        same("the object and its type", shown, &plain)
    }

    async fn apply<K: Typed>(
        &self,
        api: &Api<K>,
        what: &str,
        name: &str,
        sent: &K,
    ) -> Result<(), String> {
        let name = sibling(name);
        let mut wanted = serde_json::to_value(sent).unwrap();
        wanted["metadata"]["name"] = name.clone().into();
        rename(&mut wanted, what);
        let applier = PatchParams::apply("applier");
        let apply = Patch::Apply(&wanted);
        api.patch(&name, &applier, &apply).await.map_err(said)?;
        let applied = settled(api, &name).await?;
        let shown = serde_json::to_value(&applied).unwrap();
        contains(&shown, &wanted).map_err(|path| format!("{path} was not applied"))?;
        let entry = only_entry::<K>(&shown, "applier", "Apply")?;
        owns_all(&entry, &wanted).map_err(|path| format!("{path} is not owned: {entry}"))?;
        owns_only(&entry, &wanted).map_err(|path| format!("{path} is owned, but not applied"))?;
        let again = api.patch(&name, &applier, &apply).await.map_err(said)?;
        same("what is applied again", &again, &applied)
    }
}

/// The object after the server has finished writing to it: it establishes definitions, counts
/// quotas, looks up the priority level of a FlowSchema and looks for extension servers.
async fn settled<K: Typed>(api: &Api<K>, name: &str) -> Result<K, String> {
    loop {
        let read = api.get(name).await.map_err(said)?;
        let value = serde_json::to_value(&read).unwrap();
        let conditions = value["status"]["conditions"].as_array();
        let has = |name: &str| {
            conditions.is_some_and(|conditions| conditions.iter().any(|c| c["type"] == name))
        };
        let is_settled = match &*K::kind(&()) {
            "CustomResourceDefinition" => has("Established"),
            "APIService" => has("Available"),
            "FlowSchema" => has("Dangling"),
            "ResourceQuota" => value["status"]["used"].is_object(),
            _ => true,
        };
        if is_settled {
            return Ok(read);
        }
        tokio::task::yield_now().await;
    }
}

/// The object without the fields that the server changes.
fn still<K: Typed>(object: &K) -> Value {
    let mut value = serde_json::to_value(object).unwrap();
    const COMPLETED: [&str; 4] =
        ["APIService", "CustomResourceDefinition", "FlowSchema", "ResourceQuota"];
    if COMPLETED.contains(&&*K::kind(&())) {
        value["status"].take();
        value["metadata"]["resourceVersion"].take();
    }
    value
}

#[expect(clippy::needless_pass_by_value, reason = "handed to map_err")]
fn said(error: kube::Error) -> String {
    error.to_string()
}

/// Checks that each contains the other.
fn same<T: Serialize>(what: &str, found: &T, expected: &T) -> Result<(), String> {
    let found = serde_json::to_value(found).unwrap();
    let expected = serde_json::to_value(expected).unwrap();
    let both = contains(&found, &expected).and_then(|()| contains(&expected, &found));
    both.map_err(|path| format!("{what} differ at {path}"))
}

fn typed<K: Typed>(what: &str, name: &str, mut body: Value) -> K {
    let (group, kind) = (K::group(&()), K::kind(&()));
    let version = K::version(&());
    body["apiVersion"] =
        if group.is_empty() { version.into() } else { format!("{group}/{version}").into() };
    body["kind"] = kind.into();
    body["metadata"]["name"] = name.into();
    let typed: K = serde_json::from_value(body.clone()).unwrap_or_else(|e| panic!("{what}: {e}"));
    let kept = serde_json::to_value(&typed).unwrap();
    contains(&kept, &body).unwrap_or_else(|path| panic!("{what} has no {path}"));
    typed
}

/// Another valid name: definitions, services and addresses have rules for names.
fn sibling(name: &str) -> String {
    match name.split_once('.') {
        Some(("10", rest)) => format!("11.{rest}"),
        Some((first, rest)) => format!("{first}s.{rest}"),
        None => format!("{name}-applied"),
    }
}

/// Adjusts the fields that must match the name of the object.
fn rename(object: &mut Value, what: &str) {
    match what {
        "apiextensions.k8s.io/v1/CustomResourceDefinition" => {
            object["spec"]["names"] = json!({"plural": "widgetss", "kind": "Other"});
        }
        "apiregistration.k8s.io/v1/APIService" => object["spec"]["version"] = "v1s".into(),
        _ => {}
    }
}

/// The first path at which `part` is not in `whole`.
fn contains(whole: &Value, part: &Value) -> Result<(), String> {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            for (key, value) in part.iter().filter(|(_, value)| !value.is_null()) {
                let found = whole.get(key).unwrap_or(&Value::Null);
                contains(found, value).map_err(|path| format!(".{key}{path}"))?;
            }
            Ok(())
        }
        (Value::Array(whole), Value::Array(part)) if whole.len() == part.len() => {
            for (index, (whole, part)) in whole.iter().zip(part).enumerate() {
                contains(whole, part).map_err(|path| format!("[{index}]{path}"))?;
            }
            Ok(())
        }
        (whole, part) if whole == part => Ok(()),
        (whole, part) => Err(format!(" ({part}, not {whole})")),
    }
}

fn without_nulls(value: &mut Value) {
    match value {
        Value::Object(object) => {
            object.retain(|_, value| !value.is_null());
            object.values_mut().for_each(without_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(without_nulls),
        _ => {}
    }
}

/// The fields of the only managedFields entry that is not about the status.
fn only_entry<K: Typed>(object: &Value, manager: &str, operation: &str) -> Result<Value, String> {
    let mut entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    entries.retain(|entry| entry["subresource"] != "status");
    let [entry] = entries.as_slice() else { return Err(format!("several entries: {entries:?}")) };
    let mut head = entry.clone();
    let fields = head["fieldsV1"].take();
    head.as_object_mut().unwrap().retain(|key, _| key != "fieldsV1" && key != "time");
    let expected = json!({
        "manager": manager, "operation": operation, "apiVersion": K::api_version(&()),
        "fieldsType": "FieldsV1",
    });
    same("the entry", &head, &expected)?;
    Ok(fields)
}

/// Fields without an owner.
const SYSTEM: &[&str] = &["apiVersion", "kind", "name", "namespace"];

/// The first value of an object that has no owner, neither itself nor as part of an atomic value.
fn owns_all(fields: &Value, object: &Value) -> Result<(), String> {
    let Value::Object(members) = object else { return Ok(()) };
    for (key, value) in members.iter().filter(|(_, value)| !value.is_null()) {
        if key == "metadata" {
            owns_metadata(&fields["f:metadata"], value)?;
        } else if !SYSTEM.contains(&key.as_str()) {
            owns_member(fields, key, value)?;
        }
    }
    Ok(())
}

fn owns_metadata(fields: &Value, metadata: &Value) -> Result<(), String> {
    let Value::Object(members) = metadata else { return Ok(()) };
    for (key, value) in members.iter().filter(|(key, _)| !SYSTEM.contains(&key.as_str())) {
        owns_member(fields, key, value).map_err(|path| format!(".metadata{path}"))?;
    }
    Ok(())
}

fn owns_member(fields: &Value, key: &str, value: &Value) -> Result<(), String> {
    let Some(below) = fields.get(format!("f:{key}")) else { return Err(format!(".{key}")) };
    owns_value(below, value).map_err(|path| format!(".{key}{path}"))
}

fn owns_value(fields: &Value, value: &Value) -> Result<(), String> {
    let is_whole = fields.as_object().is_none_or(serde_json::Map::is_empty);
    match value {
        _ if is_whole => Ok(()),
        Value::Object(members) => members
            .iter()
            .filter(|(_, value)| !value.is_null())
            .try_for_each(|(key, value)| owns_member(fields, key, value)),
        Value::Array(items) => items.iter().enumerate().try_for_each(|(index, item)| {
            let owned = owned_item(fields, item).ok_or_else(|| format!("[{index}]"))?;
            owns_value(owned, item).map_err(|path| format!("[{index}]{path}"))
        }),
        _ => Err(" is a value, but owned in parts".to_owned()),
    }
}

/// The fields of one item of a list.
fn owned_item<'a>(fields: &'a Value, item: &Value) -> Option<&'a Value> {
    let fields = fields.as_object()?;
    fields.iter().find(|(name, _)| is_about(name, item)).map(|(_, below)| below)
}

/// Whether `k:{…}` or `v:…` names an item. A key may be a default that was not sent.
fn is_about(name: &str, item: &Value) -> bool {
    match name.split_once(':') {
        Some(("v", text)) => serde_json::from_str::<Value>(text).unwrap() == *item,
        Some(("k", text)) => {
            let keys: Value = serde_json::from_str(text).unwrap();
            let keys = keys.as_object().unwrap();
            keys.iter().all(|(key, value)| item.get(key).is_none_or(|given| given == value))
        }
        _ => false,
    }
}

/// The first path that is owned but does not exist.
fn owns_only(fields: &Value, object: &Value) -> Result<(), String> {
    let Value::Object(fields) = fields else { return Ok(()) };
    for (name, below) in fields.iter().filter(|(name, _)| *name != ".") {
        let found = match name.strip_prefix("f:") {
            Some(key) => object.get(key),
            None => {
                object.as_array().and_then(|items| items.iter().find(|item| is_about(name, item)))
            }
        };
        let found = found.ok_or_else(|| format!("/{name}"))?;
        owns_only(below, found).map_err(|path| format!("/{name}{path}"))?;
    }
    Ok(())
}

async fn connect(kubeconfig: &Path) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
    Client::try_from(config).unwrap()
}

#[tokio::test]
async fn every_kind_is_read_back_unchanged_and_owned_by_its_applier() {
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let _server = Process::serve(&["--memory", "--kubeconfig-out", kubeconfig.to_str().unwrap()]);
    let mut trip =
        Trip { client: connect(&kubeconfig).await, seen: BTreeSet::new(), failures: Vec::new() };
    Box::pin(core_kinds(&mut trip)).await;
    Box::pin(workloads(&mut trip)).await;
    Box::pin(networks_and_storage(&mut trip)).await;
    Box::pin(access_and_policy(&mut trip)).await;
    Box::pin(extensions(&mut trip)).await;
    assert!(trip.failures.is_empty(), "{}", trip.failures.join("\n\n"));
    assert_eq!(trip.seen, stored_kinds(), "a kind of the table is not in this test");
}

#[tokio::test]
async fn every_type_is_described_for_explain() {
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let _server = Process::serve(&["--memory", "--kubeconfig-out", kubeconfig.to_str().unwrap()]);
    let client = connect(&kubeconfig).await;
    let request = http::Request::get("/openapi/v2").body(Vec::new()).unwrap();
    let text = client.request_text(request).await.unwrap();
    let document: Value = serde_json::from_str(&text).unwrap();
    let definitions = document["definitions"].as_object().unwrap();
    assert!(definitions.contains_key("io.k8s.api.core.v1.PodSpec"));
    let is_bare =
        |(name, of): &(&String, &Value)| of["description"].is_null() && !name.ends_with("List");
    let bare: Vec<&String> = definitions.iter().filter(is_bare).map(|(name, _)| name).collect();
    assert!(bare.is_empty(), "not in descriptions.txt: {bare:?}");
    // Fields whose type is a reference are described too.
    let spec = &definitions["io.k8s.api.core.v1.Pod"]["properties"]["spec"];
    assert_eq!(spec["$ref"], "#/definitions/io.k8s.api.core.v1.PodSpec");
    assert!(spec["description"].is_string());
}

/// Every kind that is stored.
fn stored_kinds() -> BTreeSet<String> {
    let kinds = headwater_api::kind::builtin();
    let stored = kinds.iter().filter(|kind| kind.allows("create") && kind.allows("get"));
    stored.map(|kind| format!("{}/{}/{}", kind.group, kind.version, kind.kind)).collect()
}

fn pod_spec() -> Value {
    json!({
        "containers": [{
            "name": "c",
            "image": "i:1",
            "args": ["a", "b"],
            "env": [{"name": "A", "value": "a"}, {"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            "ports": [{"containerPort": 80, "name": "web"}, {"containerPort": 53, "protocol": "UDP"}],
            "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "1Gi"}},
            "livenessProbe": {"httpGet": {"path": "/", "port": "web"}},
            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        }],
        "volumes": [{"name": "v", "emptyDir": {}}, {"name": "s", "secret": {"secretName": "s"}}],
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"operator": "Exists"}],
        "securityContext": {"runAsUser": 7},
    })
}

fn template() -> Value {
    json!({"metadata": {"labels": {"app": "x"}}, "spec": pod_spec()})
}

fn selector() -> Value {
    json!({"matchLabels": {"app": "x"}})
}

async fn core_kinds(trip: &mut Trip) {
    trip.namespaced::<core::ConfigMap>(
        "x",
        json!({
            "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
            "data": {"k": "v", "empty": ""}, "binaryData": {"b": "AAEC"}, "immutable": false,
        }),
    )
    .await;
    trip.namespaced::<core::Secret>("x", json!({"type": "Opaque", "data": {"k": "dg=="}})).await;
    trip.namespaced::<core::Pod>(
        "x",
        json!({"metadata": {"labels": {"app": "x"}}, "spec": pod_spec()}),
    )
    .await;
    trip.namespaced::<core::PodTemplate>("x", json!({"template": template()})).await;
    trip.namespaced::<core::Service>("x", json!({"spec": {
        "selector": {"app": "x"}, "type": "NodePort",
        "ports": [{"name": "a", "port": 80, "targetPort": "web"}, {"name": "b", "port": 81, "targetPort": 8081}],
    }})).await;
    trip.namespaced::<core::ServiceAccount>("x", json!({
        "secrets": [{"name": "s"}], "imagePullSecrets": [{"name": "p"}], "automountServiceAccountToken": true,
    })).await;
    trip.namespaced::<core::Endpoints>("x", json!({"subsets": [{
        "addresses": [{"ip": "192.0.2.1", "nodeName": "n"}], "ports": [{"port": 80, "name": "a"}],
    }]})).await;
    trip.namespaced::<core::Event>(
        "x",
        json!({
            "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
            "reason": "Started", "message": "m", "type": "Normal", "count": 1,
            "firstTimestamp": "2026-01-02T03:04:05Z", "source": {"component": "kubelet"},
        }),
    )
    .await;
    trip.namespaced::<core::LimitRange>(
        "x",
        json!({"spec": {"limits": [{
            "type": "Container", "default": {"cpu": "1"}, "defaultRequest": {"cpu": "500m"},
        }]}}),
    )
    .await;
    trip.namespaced::<core::ResourceQuota>(
        "x",
        json!({"spec": {
            "hard": {"pods": "10", "requests.cpu": "4"}, "scopes": ["NotTerminating"],
        }}),
    )
    .await;
    trip.namespaced::<core::ReplicationController>(
        "x",
        json!({"spec": {
            "replicas": 2, "selector": {"app": "x"}, "template": template(),
        }}),
    )
    .await;
    trip.namespaced::<core::PersistentVolumeClaim>(
        "x",
        json!({"spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
        }}),
    )
    .await;
    trip.cluster::<core::PersistentVolume>("x", json!({"spec": {
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/p"},
    }})).await;
    trip.cluster::<core::Namespace>("x", json!({"metadata": {"labels": {"a": "b"}}})).await;
    trip.cluster::<core::Node>(
        "x",
        json!({"spec": {
            "podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24"],
            // The server adds the second taint to every new node that is not ready.
            "taints": [
                {"key": "k", "effect": "NoSchedule"},
                {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"},
            ],
        }}),
    )
    .await;
}

async fn workloads(trip: &mut Trip) {
    let replicated =
        json!({"spec": {"replicas": 2, "selector": selector(), "template": template()}});
    trip.namespaced::<apps::Deployment>("x", replicated.clone()).await;
    trip.namespaced::<apps::ReplicaSet>("x", replicated).await;
    trip.namespaced::<apps::DaemonSet>(
        "x",
        json!({"spec": {"selector": selector(), "template": template()}}),
    )
    .await;
    trip.namespaced::<apps::StatefulSet>(
        "x",
        json!({"spec": {
            "serviceName": "s", "selector": selector(), "template": template(),
            "volumeClaimTemplates": [{"metadata": {"name": "d"}, "spec": {
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
            }}],
        }}),
    )
    .await;
    trip.namespaced::<apps::ControllerRevision>(
        "x",
        json!({"revision": 3, "data": {"any": ["thing", 1, null]}}),
    )
    .await;
    let mut run_once = template();
    run_once["spec"]["restartPolicy"] = "Never".into();
    trip.namespaced::<batch::Job>(
        "x",
        json!({"spec": {"completions": 3, "parallelism": 2, "template": run_once}}),
    )
    .await;
    trip.namespaced::<batch::CronJob>(
        "x",
        json!({"spec": {
            "schedule": "*/5 * * * *", "timeZone": "Etc/UTC",
            "jobTemplate": {"spec": {"template": run_once}},
        }}),
    )
    .await;
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "x"});
    trip.namespaced::<autoscaling::v2::HorizontalPodAutoscaler>("x", json!({"spec": {
        "scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 5,
        "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}],
    }})).await;
    trip.namespaced::<autoscaling::v1::HorizontalPodAutoscaler>(
        "y",
        json!({"spec": {
            "scaleTargetRef": target, "maxReplicas": 5, "targetCPUUtilizationPercentage": 60,
        }}),
    )
    .await;
    trip.namespaced::<policy::PodDisruptionBudget>(
        "x",
        json!({"spec": {"minAvailable": "50%", "selector": selector()}}),
    )
    .await;
    trip.namespaced::<coordination::Lease>("x", json!({"spec": {
        "holderIdentity": "me", "leaseDurationSeconds": 15, "renewTime": "2026-01-02T03:04:05.000006Z",
    }})).await;
    trip.namespaced::<events::Event>(
        "y",
        json!({
            "regarding": {"kind": "Pod", "name": "p", "namespace": "default"},
            "reason": "Started", "note": "n", "type": "Normal", "action": "Start",
            "reportingController": "example.com/c", "reportingInstance": "i",
            "eventTime": "2026-01-02T03:04:05.000006Z",
        }),
    )
    .await;
    trip.cluster::<scheduling::PriorityClass>("x", json!({"value": 10, "description": "d"})).await;
    trip.cluster::<node::RuntimeClass>("x", json!({
        "handler": "runc", "scheduling": {"nodeSelector": {"a": "b"}}, "overhead": {"podFixed": {"cpu": "10m"}},
    })).await;
}

async fn networks_and_storage(trip: &mut Trip) {
    let backend = json!({"service": {"name": "s", "port": {"number": 80}}});
    trip.namespaced::<networking::Ingress>("x", json!({"spec": {
        "ingressClassName": "c",
        "rules": [{"host": "a.example", "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}}],
        "tls": [{"hosts": ["a.example"], "secretName": "t"}],
    }})).await;
    trip.cluster::<networking::IngressClass>("x", json!({"spec": {"controller": "example.com/c"}}))
        .await;
    trip.namespaced::<networking::NetworkPolicy>(
        "x",
        json!({"spec": {
            "podSelector": selector(), "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"ipBlock": {"cidr": "192.0.2.0/24"}}], "ports": [{"port": 80}]}],
        }}),
    )
    .await;
    trip.cluster::<networking::IPAddress>(
        "10.0.0.7",
        json!({"spec": {
            "parentRef": {"resource": "services", "name": "s", "namespace": "default"},
        }}),
    )
    .await;
    trip.cluster::<networking::ServiceCIDR>("x", json!({"spec": {"cidrs": ["192.0.2.0/24"]}}))
        .await;
    trip.namespaced::<discovery::EndpointSlice>("x", json!({
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["192.0.2.1"], "conditions": {"ready": true}, "nodeName": "n"}],
        "ports": [{"name": "a", "port": 80}],
    })).await;
    trip.cluster::<storage::StorageClass>(
        "x",
        json!({
            "provisioner": "example.com/p", "parameters": {"a": "b"}, "mountOptions": ["ro"],
            "allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}],
        }),
    )
    .await;
    trip.cluster::<storage::CSIDriver>(
        "x",
        json!({"spec": {"attachRequired": false, "volumeLifecycleModes": ["Ephemeral"]}}),
    )
    .await;
    trip.cluster::<storage::CSINode>(
        "x",
        json!({"spec": {"drivers": [{"name": "d", "nodeID": "n", "topologyKeys": ["z"]}]}}),
    )
    .await;
    trip.namespaced::<storage::CSIStorageCapacity>(
        "x",
        json!({
            "storageClassName": "c", "capacity": "1Gi", "nodeTopology": selector(),
        }),
    )
    .await;
    trip.cluster::<storage::VolumeAttachment>(
        "x",
        json!({"spec": {
            "attacher": "a", "nodeName": "n", "source": {"persistentVolumeName": "p"},
        }}),
    )
    .await;
    trip.cluster::<storage::VolumeAttributesClass>(
        "x",
        json!({"driverName": "d", "parameters": {"iops": "5"}}),
    )
    .await;
    let request = json!({"name": "r", "exactly": {"deviceClassName": "c", "count": 2}});
    trip.cluster::<resource::DeviceClass>(
        "x",
        json!({"spec": {"selectors": [{"cel": {"expression": "true"}}]}}),
    )
    .await;
    trip.namespaced::<resource::ResourceClaim>(
        "x",
        json!({"spec": {"devices": {"requests": [request]}}}),
    )
    .await;
    trip.namespaced::<resource::ResourceClaimTemplate>(
        "x",
        json!({"spec": {"spec": {"devices": {"requests": [request]}}}}),
    )
    .await;
    trip.cluster::<resource::ResourceSlice>("x", json!({"spec": {
        "driver": "d.example.com", "nodeName": "n",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "d", "attributes": {"model": {"string": "m"}}, "capacity": {"memory": {"value": "1Gi"}}}],
    }})).await;
}

async fn access_and_policy(trip: &mut Trip) {
    let rules =
        json!({"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]});
    let subjects = json!([{"kind": "ServiceAccount", "name": "s", "namespace": "default"}, {"kind": "User", "name": "u", "apiGroup": "rbac.authorization.k8s.io"}]);
    let role =
        |kind: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": "x"});
    trip.namespaced::<rbac::Role>("x", rules.clone()).await;
    trip.cluster::<rbac::ClusterRole>("x", rules).await;
    trip.namespaced::<rbac::RoleBinding>(
        "x",
        json!({"roleRef": role("Role"), "subjects": subjects}),
    )
    .await;
    trip.cluster::<rbac::ClusterRoleBinding>(
        "x",
        json!({"roleRef": role("ClusterRole"), "subjects": subjects}),
    )
    .await;
    trip.cluster::<certificates::CertificateSigningRequest>("x", json!({"spec": {
        "signerName": "example.com/signer", "usages": ["client auth"], "request": signing_request(),
    }})).await;
    trip.cluster::<flowcontrol::FlowSchema>("x", json!({"spec": {
        "priorityLevelConfiguration": {"name": "global-default"}, "matchingPrecedence": 500,
        "distinguisherMethod": {"type": "ByUser"},
        "rules": [{
            "subjects": [{"kind": "Group", "group": {"name": "g"}}],
            "resourceRules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "namespaces": ["*"]}],
        }],
    }})).await;
    trip.cluster::<flowcontrol::PriorityLevelConfiguration>(
        "x",
        json!({"spec": {
            "type": "Limited",
            "limited": {"nominalConcurrencyShares": 7, "limitResponse": {"type": "Reject"}},
        }}),
    )
    .await;
}

async fn extensions(trip: &mut Trip) {
    let rule = json!({"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["deployments"]});
    let webhooks = json!({"webhooks": [{
        "name": "a.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
        "clientConfig": {"url": "https://a.example.com/"}, "rules": [rule],
    }]});
    trip.cluster::<admission::ValidatingWebhookConfiguration>("x", webhooks.clone()).await;
    trip.cluster::<admission::MutatingWebhookConfiguration>("x", webhooks).await;
    let constraints = json!({"resourceRules": [rule]});
    trip.cluster::<admission::ValidatingAdmissionPolicy>("x", json!({"spec": {
        "matchConstraints": constraints, "validations": [{"expression": "true", "message": "m"}],
        "variables": [{"name": "v", "expression": "1"}],
    }})).await;
    trip.cluster::<admission::ValidatingAdmissionPolicyBinding>(
        "x",
        json!({"spec": {
            "policyName": "x", "validationActions": ["Deny"],
        }}),
    )
    .await;
    trip.cluster::<admission::MutatingAdmissionPolicy>("x", json!({"spec": {
        "matchConstraints": constraints, "reinvocationPolicy": "Never",
        "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": "Object{}"}}],
    }})).await;
    trip.cluster::<admission::MutatingAdmissionPolicyBinding>(
        "x",
        json!({"spec": {"policyName": "x"}}),
    )
    .await;
    trip.cluster::<apiextensions::CustomResourceDefinition>(
        "widgets.example.com",
        json!({"spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {
                    "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                    "properties": {"size": {"type": "integer", "default": 1, "enum": [1, 2]}},
                }}}},
            }],
        }}),
    )
    .await;
    trip.cluster::<apiregistration::APIService>("v1.remote.example", json!({"spec": {
        "group": "remote.example", "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 15,
        "insecureSkipTLSVerify": true, "service": {"name": "s", "namespace": "default"},
    }})).await;
}

/// A certificate signing request as it is sent: PEM, then base64.
fn signing_request() -> String {
    use base64::Engine;
    let key = rcgen::KeyPair::generate().unwrap();
    let request = rcgen::CertificateParams::default().serialize_request(&key).unwrap();
    base64::engine::general_purpose::STANDARD.encode(request.pem().unwrap())
}
