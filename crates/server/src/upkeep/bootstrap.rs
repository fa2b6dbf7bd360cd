//! Bootstrap objects: namespaces, priority classes, flow control, the `kubernetes` Service (S10.20 to
//! S10.22, S7.4).
//!
//! River: start-up → **bootstrap** → store, through the same admission as every other create.

use headwater_api::{Object, Status};
use headwater_json::{Value, json};
use headwater_store::{Guard, Key};
use jiff::Timestamp;

use crate::admission::claims;
use crate::admission::service_ranges::ServiceRanges;
use crate::admission::subresource::copy;
use crate::admission::{Attempt, admit_own};
use crate::answer::status;
use crate::commit::put;
use crate::kinds::registry::Served;
use crate::object::object_key;
use crate::object::{Current, canonical, meta, stamp};
use crate::request::flow;
use crate::server::Server;
use crate::upkeep::flow_objects;

/// The Service of the API server. Its address is the first of the range.
pub(crate) const OWN_SERVICE: &str = "kubernetes";

impl Server {
    /// Creates missing objects; idempotent. Returns whether the store was empty.
    pub async fn bootstrap(&self) -> Result<bool, Status> {
        let mut is_first = true;
        for own in objects(self.now(), &self.settings().admission.services) {
            is_first &= self.ensure(own).await?;
        }
        self.ensure_roles().await?;
        claims::repair(self).await?;
        Ok(is_first)
    }

    /// Creates a bootstrap object, or updates the parts that this server owns. Returns whether it was
    /// missing.
    pub(crate) async fn ensure(&self, own: Own) -> Result<bool, Status> {
        let Own { resource: (group, version, plural), mut value, corrected } = own;
        let registry = self.registry();
        let Some(kind) = registry.find(group, version, plural) else { return Ok(false) };
        value["kind"] = kind.kind.kind.to_string().into();
        value["apiVersion"] = kind.api_version().into();
        let key = object_key(meta(&value, "namespace"), meta(&value, "name"));
        if kind.namespaced {
            // Its namespace may have been created just now.
            self.cache().consistent().await.map_err(|error| status::from_cache(&error))?;
        }
        let resource = self.cache().resource(&kind.prefix);
        let state = self.cache().snapshot(&resource);
        let there = state.get(&key);
        match there {
            None => self.put_own(kind, &key, value, None).await?,
            Some(_) if corrected.is_empty() => {}
            Some(there) => self.correct(kind, &key, there, &value, corrected).await?,
        }
        Ok(there.is_none())
    }

    async fn correct(
        &self,
        kind: &Served,
        key: &str,
        there: &Object,
        value: &Value,
        parts: &[&[&str]],
    ) -> Result<(), Status> {
        let there = Current::of(there)?;
        let mut new = there.value.clone();
        parts.iter().for_each(|part| copy(&mut new, value, part));
        match new == there.value {
            true => Ok(()),
            false => self.put_own(kind, key, new, Some(there)).await,
        }
    }

    pub(super) async fn put_own(
        &self,
        kind: &Served,
        key: &str,
        mut value: Value,
        old: Option<Current>,
    ) -> Result<(), Status> {
        let namespace = meta(&value, "namespace").to_owned();
        // Admission drops the status of a new object, which clients cannot set.
        let status = value.get("status").cloned();
        admit_own(Attempt {
            cache: self.cache(),
            kind,
            namespace: &namespace,
            is_namespace_new: false,
            subresource: "",
            new: &mut value,
            old: old.as_ref().map(|old| &old.value),
            untouched: None,
            now: self.now(),
        })?;
        let guard = match &old {
            None => {
                if let Some(status) = status {
                    value["status"] = status;
                }
                Guard::Absent
            }
            Some(old) => {
                stamp(&mut value, old.revision);
                Guard::At(old.revision)
            }
        };
        // A conflict means that another server writes the same object.
        let key = Key::in_collection(&kind.prefix, key);
        put(self.store(), kind, key, guard, canonical(&value).into()).await.map(drop)
    }
}

/// A bootstrap object.
pub(crate) struct Own {
    /// The group, version and plural.
    pub(crate) resource: (&'static str, &'static str, &'static str),
    pub(crate) value: Value,
    /// The paths of the parts that are updated if the object exists.
    pub(crate) corrected: &'static [&'static [&'static str]],
}

fn objects(now: Timestamp, services: &ServiceRanges) -> Vec<Own> {
    let mut rows = Vec::new();
    let mut add = |group, version, plural, value| {
        rows.push(Own { resource: (group, version, plural), value, corrected: &[] });
    };
    for name in ["kube-system", "kube-public", "kube-node-lease", "default"] {
        add("", "v1", "namespaces", json!({ "metadata": { "name": name } }));
    }
    for (name, value, text) in [
        (
            "system-node-critical",
            2_000_001_000,
            "Used for system critical pods that must not be moved from their current node.",
        ),
        (
            "system-cluster-critical",
            2_000_000_000,
            "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
        ),
    ] {
        let class = json!({
            "metadata": { "name": name }, "value": value, "description": text,
            "preemptionPolicy": "PreemptLowerPriority",
        });
        add("scheduling.k8s.io", "v1", "priorityclasses", class);
    }
    for level in flow::defaults::priority_levels() {
        add(flow::GROUP, "v1", "prioritylevelconfigurations", level);
    }
    for schema in flow::defaults::flow_schemas() {
        add(flow::GROUP, "v1", "flowschemas", flow_objects::in_force(schema, now));
    }
    let cidrs: Vec<String> = services.addresses().iter().map(ToString::to_string).collect();
    let range = json!({ "metadata": { "name": OWN_SERVICE }, "spec": { "cidrs": cidrs } });
    add("networking.k8s.io", "v1", "servicecidrs", range);
    // `presence` sets the endpoints.
    rows.push(Own { corrected: &[], ..own_service(6443, services) });
    rows
}

/// The `kubernetes` Service for a server that listens on `port`.
pub(crate) fn own_service(port: u16, services: &ServiceRanges) -> Own {
    let range = services.primary();
    let address = range.first();
    let labels = json!({ "component": "apiserver", "provider": "kubernetes" });
    let value = json!({
        "metadata": { "name": OWN_SERVICE, "namespace": "default", "labels": labels },
        "spec": {
            "clusterIP": address, "clusterIPs": [address], "type": "ClusterIP",
            "ipFamilies": [range.family()], "ipFamilyPolicy": "SingleStack",
            "ports": [{ "name": "https", "port": 443, "protocol": "TCP", "targetPort": port }],
        },
    });
    Own { resource: ("", "v1", "services"), value, corrected: &[&["spec", "ports"]] }
}
