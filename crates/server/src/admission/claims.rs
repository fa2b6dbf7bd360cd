//! Claims: the addresses of a Service as separate keys in the store.
//!
//! River: addresses → **claims** → store. A claim is created in the same transaction as its Service,
//! provided that the key does not exist, and deleted with it. If two servers over one store choose the
//! same address at the same time, one transaction fails and is computed again.
//!
//! A cluster IP is an `IPAddress`, as in Kubernetes; a node port is a key that no resource serves. A
//! second cluster IP is claimed and released right after its Service is written (see `commit`).
//! Promise: no claim is created without its Service. Leftovers (of a version without claims, of a
//! manual deletion, of a server that died) are repaired at the start of a server.

use std::collections::{BTreeMap, BTreeSet};

use headwater_api::{Object, Status};
use headwater_json::{Value, json};
use headwater_store::{Action, Guard, Key, Op, Write, key};
use jiff::{SignedDuration, Timestamp};

use crate::admission::{Attempt, admit_own};
use crate::answer::status;
use crate::backend::Backend;
use crate::commit::OWN_GROUP;
use crate::kinds::registry::Served;
use crate::object::{canonical, meta, tree};

const MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
const ALLOCATOR: &str = "ipallocator.k8s.io";

/// A younger claim may belong to a Service that is not in the cache yet.
const SETTLED: SignedDuration = SignedDuration::from_mins(1);

/// One address of a Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Claim {
    Ip(String),
    Port(i64),
}

impl Claim {
    fn key(&self) -> Key {
        match self {
            Claim::Ip(ip) => Key::in_collection(&ips(), ip),
            Claim::Port(port) => Key::in_collection(&ports(), &port.to_string()),
        }
    }

    /// The stored value.
    fn value(&self, backend: &Backend, service: &Value) -> Result<Vec<u8>, Status> {
        let (namespace, name) = (meta(service, "namespace"), meta(service, "name"));
        match self {
            Claim::Ip(ip) => address(backend, ip, namespace, name),
            Claim::Port(port) => Ok(canonical(&json!({
                "apiVersion": "headwater/v1", "kind": "NodePort",
                "metadata": {
                    "name": port.to_string(),
                    "creationTimestamp": headwater_api::clock::rfc3339(backend.now()),
                },
                "service": format!("{namespace}/{name}"),
            }))),
        }
    }
}

/// The key prefix of claims of cluster IPs.
pub(crate) fn ips() -> String {
    key::collection("networking.k8s.io", "ipaddresses")
}

/// The key prefix of claims of node ports.
pub(crate) fn ports() -> String {
    key::collection(OWN_GROUP, "nodeports")
}

pub(crate) fn is_service(kind: &Served) -> bool {
    kind.plural == "services" && kind.group.is_empty()
}

/// The cluster IPs of a Service.
pub(crate) fn ips_of(service: &Value) -> impl Iterator<Item = &str> {
    let list = service["spec"]["clusterIPs"].as_array().into_iter().flatten();
    list.filter_map(Value::as_str).filter(|ip| !matches!(*ip, "" | "None"))
}

/// The node ports of a Service.
pub(crate) fn ports_of(service: &Value) -> impl Iterator<Item = i64> {
    let spec = &service["spec"];
    let listed = spec["ports"].as_array().into_iter().flatten();
    let all = listed.map(|port| &port["nodePort"]).chain([&spec["healthCheckNodePort"]]);
    all.filter_map(Value::as_i64).filter(|port| *port > 0)
}

/// The claims of a Service, the first cluster IP first, without repeats: TCP and UDP may share a
/// port.
fn claims(service: &Value) -> Vec<Claim> {
    let ips = ips_of(service).map(|ip| Claim::Ip(ip.to_owned()));
    let mut all: Vec<Claim> = ips.chain(ports_of(service).map(Claim::Port)).collect();
    let mut known = BTreeSet::new();
    all.retain(|claim| known.insert(claim.clone()));
    all
}

/// The companion writes of a Service that changes from `old` to `new`.
pub(crate) async fn beside(
    backend: &Backend,
    kind: &Served,
    old: Option<&Value>,
    new: Option<&Value>,
) -> Result<Vec<Op>, Status> {
    if !is_service(kind) {
        return Ok(Vec::new());
    }
    let (had, has) = (old.map(claims).unwrap_or_default(), new.map(claims).unwrap_or_default());
    let [before, after] = [&had, &has].map(|claims| claims.iter().collect::<BTreeSet<_>>());
    let mut ops = Vec::new();
    for claim in has.iter().filter(|claim| !before.contains(claim)) {
        let value = claim.value(backend, new.unwrap_or(&Value::Null))?.into();
        let action = Action::Put { value, ttl: None };
        ops.push(Op { key: claim.key(), guard: Guard::Absent, action });
    }
    for claim in had.iter().filter(|claim| !after.contains(claim)) {
        // Not from the cache, which may be behind. A missing claim was removed manually.
        let record = backend.store().get(&claim.key()).await;
        let record = record.map_err(|error| status::from_store(&error))?;
        ops.extend(record.map(|record| Op {
            guard: Guard::At(record.revision),
            key: record.key,
            action: Action::Delete,
        }));
    }
    Ok(ops)
}

fn there(backend: &Backend, claim: &Claim) -> Option<std::sync::Arc<Object>> {
    let (prefix, name) = match claim {
        Claim::Ip(ip) => (ips(), ip.clone()),
        Claim::Port(port) => (ports(), port.to_string()),
    };
    let cache = backend.cache();
    cache.snapshot(&cache.resource(&prefix)).get(&name).cloned()
}

/// The `IPAddress` of a Service.
fn address(backend: &Backend, ip: &str, namespace: &str, name: &str) -> Result<Vec<u8>, Status> {
    let registry = backend.registry();
    let Some(kind) = registry.find("networking.k8s.io", "v1", "ipaddresses") else {
        return Err(status::internal("addresses have no kind"));
    };
    let family = if ip.contains(':') { "IPv6" } else { "IPv4" };
    let mut value = json!({
        "apiVersion": kind.api_version(), "kind": "IPAddress",
        "metadata": {
            "name": ip,
            "labels": {"ipaddress.kubernetes.io/ip-family": family, MANAGED_BY: ALLOCATOR},
        },
        "spec": {"parentRef": {
            "resource": "services", "namespace": namespace, "name": name,
        }},
    });
    admit_own(Attempt {
        cache: backend.cache(),
        kind,
        namespace: "",
        is_namespace_new: false,
        subresource: "",
        new: &mut value,
        old: None,
        untouched: None,
        now: backend.now(),
    })?;
    Ok(canonical(&value))
}

/// Creates missing claims and deletes those without a Service.
pub(crate) async fn repair(backend: &Backend) -> Result<(), Status> {
    let cache = backend.cache();
    let mut missing: BTreeMap<Claim, Value> = BTreeMap::new();
    let mut leaked = leftovers(backend)?;
    // A Service and its claims are both visible only after a consistent read.
    cache.consistent().await.map_err(|error| status::from_cache(&error))?;
    let services = cache.snapshot(&cache.resource(&key::collection("", "services")));
    for object in services.iter("", None) {
        let service = tree(object.as_slice())?;
        for claim in claims(&service) {
            leaked.remove(&claim);
            if there(backend, &claim).is_none() {
                missing.insert(claim, service.clone());
            }
        }
    }
    for (claim, service) in missing {
        let value = claim.value(backend, &service)?.into();
        let action = Action::Put { value, ttl: None };
        settle(backend, Write::one(claim.key(), Guard::Absent, action)).await?;
    }
    for (claim, object) in leaked {
        tracing::info!(?claim, "deleting the address claim of a Service that no longer exists");
        let guard = Guard::At(object.revision());
        settle(backend, Write::one(claim.key(), guard, Action::Delete)).await?;
    }
    Ok(())
}

/// Claims without a Service that are older than the longest write.
fn leftovers(backend: &Backend) -> Result<BTreeMap<Claim, std::sync::Arc<Object>>, Status> {
    let cache = backend.cache();
    let mut found = BTreeMap::new();
    for object in cache.snapshot(&cache.resource(&ips())).iter("", None) {
        let value = tree(object.as_slice())?;
        if value["metadata"]["labels"][MANAGED_BY] == ALLOCATOR && is_settled(backend, &value) {
            found.insert(Claim::Ip(object.name().to_owned()), object.clone());
        }
    }
    for object in cache.snapshot(&cache.resource(&ports())).iter("", None) {
        let is_old = is_settled(backend, &tree(object.as_slice())?);
        if let Some(port) = object.name().parse().ok().filter(|_| is_old) {
            found.insert(Claim::Port(port), object.clone());
        }
    }
    Ok(found)
}

fn is_settled(backend: &Backend, value: &Value) -> bool {
    let made: Option<Timestamp> = meta(value, "creationTimestamp").parse().ok();
    made.is_none_or(|made| backend.now().duration_since(made) > SETTLED)
}

/// Commits a repair; a conflict means that another server does the same.
async fn settle(backend: &Backend, write: Write) -> Result<(), Status> {
    match backend.store().commit(write).await {
        Ok(_) | Err(headwater_store::Error::Conflict { .. }) => Ok(()),
        Err(error) => Err(status::from_store(&error)),
    }
}
