//! Claims: what a Service has of the cluster's addresses, as keys of their own in the store.
//!
//! River: addresses → **claims** → store. A claim is written with its Service, in one write, if nobody
//! has one of that name, and goes with it in one write. So two servers over one store that choose the
//! same address at the same instant meet in the store: one of them computes again.
//!
//! A cluster IP is an `IPAddress`, as in Kubernetes; a node port is a key that no resource serves.
//! Promise: a claim without its Service is made by nobody here. What others left behind (a version
//! without claims, a deletion by hand) is put right when a server starts.

use std::collections::BTreeMap;

use headwater_api::json::{Value, json};
use headwater_api::{Object, Status};
use headwater_store::{Action, Guard, Key, Op, Write, key};
use jiff::{SignedDuration, Timestamp};

use crate::admission::{Attempt, admit_own};
use crate::answer::status;
use crate::backend::Backend;
use crate::kinds::registry::Served;
use crate::object::{canonical, meta, tree};

const MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
const ALLOCATOR: &str = "ipallocator.k8s.io";

/// A group without a dot: no custom resource can have it.
const OWN_GROUP: &str = "headwater";

/// A claim that is younger may belong to a Service that is still on its way into the cache.
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

    /// What is stored for it.
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

/// Where claims of cluster IPs are.
pub(crate) fn ips() -> String {
    key::collection("networking.k8s.io", "ipaddresses")
}

/// Where claims of node ports are.
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

/// What a Service claims; one port may be there for TCP and for UDP.
fn claims(service: &Value) -> Vec<Claim> {
    let ips = ips_of(service).map(|ip| Claim::Ip(ip.to_owned()));
    let mut all: Vec<Claim> = ips.chain(ports_of(service).map(Claim::Port)).collect();
    all.sort();
    all.dedup();
    all
}

/// What is to be written together with a Service that becomes `new` and was `old`.
pub(crate) fn beside(
    backend: &Backend,
    kind: &Served,
    old: Option<&Value>,
    new: Option<&Value>,
) -> Result<Vec<Op>, Status> {
    if !is_service(kind) {
        return Ok(Vec::new());
    }
    let (had, has) = (old.map(claims).unwrap_or_default(), new.map(claims).unwrap_or_default());
    let mut ops = Vec::new();
    for claim in has.iter().filter(|claim| !had.contains(claim)) {
        let value = claim.value(backend, new.unwrap_or(&Value::Null))?.into();
        let action = Action::Put { value, ttl: None };
        ops.push(Op { key: claim.key(), guard: Guard::Absent, action });
    }
    for claim in had.iter().filter(|claim| !has.contains(claim)) {
        // One that is not there was removed by hand.
        let there = there(backend, claim);
        let remove = |object: &Object| Op {
            key: claim.key(),
            guard: Guard::At(object.revision()),
            action: Action::Delete,
        };
        ops.extend(there.as_deref().map(remove));
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
            "group": "", "resource": "services", "namespace": namespace, "name": name,
        }},
    });
    admit_own(Attempt {
        cache: backend.cache(),
        kind,
        namespace: "",
        subresource: "",
        new: &mut value,
        old: None,
        untouched: None,
        now: backend.now(),
    })?;
    Ok(canonical(&value))
}

/// Makes claims that are missing and removes those whose Service is gone.
pub(crate) async fn repair(backend: &Backend) -> Result<(), Status> {
    let cache = backend.cache();
    let mut missing: BTreeMap<Claim, Value> = BTreeMap::new();
    let mut leaked = leftovers(backend)?;
    // What is written together is seen together only after a consistent read.
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
        tracing::info!(?claim, "the claim of a Service that is gone is removed");
        let guard = Guard::At(object.revision());
        settle(backend, Write::one(claim.key(), guard, Action::Delete)).await?;
    }
    Ok(())
}

/// Claims of ours that are older than any write can take.
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

/// Writes, unless another server is at the same.
async fn settle(backend: &Backend, write: Write) -> Result<(), Status> {
    match backend.store().commit(write).await {
        Ok(_) | Err(headwater_store::Error::Conflict { .. }) => Ok(()),
        Err(error) => Err(status::from_store(&error)),
    }
}
