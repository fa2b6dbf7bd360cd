//! The health of the components of a control plane, as the deprecated kind ComponentStatus.
//!
//! River: the store, leases → **components** → the store of live resources. The store has the name that
//! Kubernetes gives the first etcd server. A scheduler and a controller manager elsewhere are known by
//! their leases, without which nothing is said about them.

use std::collections::BTreeMap;

use bytes::Bytes;
use headwater_cache::Cache;
use headwater_json::{Value, json};
use headwater_store::{Key, key};
use jiff::{SignedDuration, Timestamp};

use crate::object::{canonical, tree};

/// The plural of the kind, in the core group.
pub(crate) const PLURAL: &str = "componentstatuses";

/// Components with the names of their leases.
const ELECTED: [(&str, &str); 2] =
    [("controller-manager", "kube-controller-manager"), ("scheduler", "kube-scheduler")];

pub(super) fn objects(cache: &Cache, now: Timestamp) -> BTreeMap<Key, Bytes> {
    let leases = cache.snapshot(&cache.resource(&key::collection("coordination.k8s.io", "leases")));
    let mut found = vec![("etcd-0", cache.store().condition().trouble)];
    for (name, lease) in ELECTED {
        let lease = leases.get(&format!("kube-system/{lease}"));
        if let Some(lease) = lease.and_then(|lease| tree(lease.as_slice()).ok()) {
            found.push((name, trouble(&lease["spec"], now)));
        }
    }
    let prefix = key::collection("", PLURAL);
    let described = found
        .into_iter()
        .map(|(name, trouble)| (Key::in_collection(&prefix, name), component(name, trouble)));
    described.collect()
}

/// Why the holder of a lease seems not to work, if so.
fn trouble(lease: &Value, now: Timestamp) -> Option<String> {
    let renewed: Option<Timestamp> = lease["renewTime"].as_str().and_then(|at| at.parse().ok());
    let seconds = lease["leaseDurationSeconds"].as_i64().unwrap_or(0);
    let is_held = lease["holderIdentity"].as_str().is_some_and(|holder| !holder.is_empty());
    match renewed {
        Some(renewed)
            if is_held && now.duration_since(renewed) <= SignedDuration::from_secs(seconds) =>
        {
            None
        }
        Some(renewed) => Some(format!("its lease was last renewed at {renewed}")),
        None => Some("nobody holds its lease".to_owned()),
    }
}

fn component(name: &str, trouble: Option<String>) -> Bytes {
    let mut healthy = json!({ "type": "Healthy", "status": "True", "message": "ok" });
    if let Some(why) = trouble {
        healthy = json!({ "type": "Healthy", "status": "False", "message": why.as_str(), "error": why.as_str() });
    }
    let object = json!({
        "apiVersion": "v1",
        "kind": "ComponentStatus",
        "metadata": { "name": name },
        "conditions": [healthy],
    });
    canonical(&object).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_component_is_healthy_while_its_lease_is_renewed() {
        let lease = |holder: &str| {
            json!({
                "holderIdentity": holder, "leaseDurationSeconds": 15,
                "renewTime": "2026-01-01T00:00:00.000000Z",
            })
        };
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let (fresh, late) = (at("2026-01-01T00:00:15Z"), at("2026-01-01T00:00:16Z"));
        assert_eq!(trouble(&lease("a"), fresh), None);
        let expired = Some("its lease was last renewed at 2026-01-01T00:00:00Z".to_owned());
        assert_eq!(trouble(&lease("a"), late), expired);
        assert_eq!(trouble(&lease(""), fresh), expired);
        assert_eq!(trouble(&json!({}), fresh), Some("nobody holds its lease".to_owned()));
    }
}
