//! Warnings about objects that nothing acts on in a simulated cluster.
//!
//! Promise: pure; a table. Whoever creates such an object learns that it stays as it is.

use headwater_api::Kind;
use headwater_json::Value;

/// What nothing acts on: group, resource, and what that means.
const UNCONTROLLED: &[(&str, &str, &str)] = &[
    (
        "networking.k8s.io",
        "ingresses",
        "no ingress controller runs here; the Ingress gets no address",
    ),
    ("gateway.networking.k8s.io", "gateways", "no gateway controller runs here"),
    ("networking.k8s.io", "networkpolicies", "pods are simulated; the NetworkPolicy has no effect"),
    (
        "resource.k8s.io",
        "resourceclaims",
        "no driver allocates devices here; the claim stays pending",
    ),
    ("storage.k8s.io", "volumeattachments", "volumes are simulated; nothing attaches them"),
    ("autoscaling.k8s.io", "verticalpodautoscalers", "no vertical autoscaler runs here"),
];

const LOAD_BALANCER: &str =
    "no load balancer of this class runs here; the Service gets no external address";

/// The warning about a new object in a simulated cluster.
pub(crate) fn warning(kind: &Kind, object: &Value) -> Option<&'static str> {
    if kind.group.is_empty() && kind.plural == "services" {
        let has_class = object["spec"]["loadBalancerClass"].as_str().is_some();
        return has_class.then_some(LOAD_BALANCER);
    }
    let is =
        |(group, plural, _): &&(&str, &str, &str)| kind.group == *group && kind.plural == *plural;
    UNCONTROLLED.iter().find(is).map(|(_, _, why)| *why)
}

#[cfg(test)]
mod tests {
    use headwater_json::json;

    use super::*;

    fn kind(group: &str, plural: &'static str) -> Kind {
        Kind { group: group.to_owned().into(), plural: plural.into(), ..Kind::default() }
    }

    #[test]
    fn objects_that_nothing_acts_on_are_named() {
        let of_class =
            json!({ "spec": { "type": "LoadBalancer", "loadBalancerClass": "example.com/x" } });
        assert_eq!(warning(&kind("", "services"), &of_class), Some(LOAD_BALANCER));
        let balanced = json!({ "spec": { "type": "LoadBalancer" } });
        assert_eq!(warning(&kind("", "services"), &balanced), None);
        assert!(warning(&kind("networking.k8s.io", "ingresses"), &json!({})).is_some());
        assert_eq!(warning(&kind("apps", "deployments"), &json!({})), None);
    }
}
