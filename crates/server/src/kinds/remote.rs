//! Group versions that an extension server serves, by its APIService.
//!
//! River: APIService → **remote** → proxy, discovery. The table changes with the objects; requests in
//! flight keep the old one.

use std::sync::Arc;

use arc_swap::ArcSwap;
use headwater_json::{Value, json};

use crate::outgoing::{ClientCredential, WebhookEndpoint};

/// The prefix of APIServices.
pub(crate) const PREFIX: &str = "/registry/apiregistration.k8s.io/apiservices/";

/// A group version of an extension server.
#[derive(Clone, Debug)]
pub(crate) struct RemoteVersion {
    /// The name of the APIService.
    pub(crate) name: String,
    pub(crate) group: String,
    pub(crate) version: String,
    /// The order of groups and of versions: the highest comes first.
    pub(crate) priorities: (i64, i64),
    /// Namespace, name and port of the Service.
    pub(crate) service: (String, String, u64),
    pub(crate) endpoint: Result<WebhookEndpoint, String>,
    /// Whether the last check succeeded.
    pub(crate) is_available: bool,
    /// Its resources, as in aggregated discovery.
    pub(crate) resources: Vec<Value>,
    /// Its part of its OpenAPI document of version 2. The same one as before if nothing changed.
    pub(crate) openapi: Option<Arc<Value>>,
}

impl RemoteVersion {
    /// None for an APIService without a Service, which this server serves itself.
    pub(crate) fn read(object: &Value, credential: Option<&ClientCredential>) -> Option<Self> {
        let spec = &object["spec"];
        let service = spec.get("service").filter(|service| service.is_object())?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let config = json!({ "service": service, "caBundle": spec["caBundle"] });
        let endpoint = WebhookEndpoint::read(&config).map(|endpoint| {
            let endpoint = match spec["insecureSkipTLSVerify"] == true {
                true => endpoint.unverified(),
                false => endpoint,
            };
            match credential {
                Some(credential) => endpoint.with_credential(credential.clone()),
                None => endpoint,
            }
        });
        Some(RemoteVersion {
            name: text(&object["metadata"]["name"]),
            group: text(&spec["group"]),
            version: text(&spec["version"]),
            priorities: (
                spec["groupPriorityMinimum"].as_i64().unwrap_or_default(),
                spec["versionPriority"].as_i64().unwrap_or_default(),
            ),
            service: (
                text(&service["namespace"]),
                text(&service["name"]),
                service["port"].as_u64().unwrap_or(443),
            ),
            endpoint,
            is_available: false,
            resources: Vec::new(),
            openapi: None,
        })
    }
}

/// The group versions of extension servers, in the order of discovery.
#[derive(Default)]
pub(crate) struct RemoteVersions(ArcSwap<Vec<Arc<RemoteVersion>>>);

impl RemoteVersions {
    pub(crate) fn all(&self) -> Arc<Vec<Arc<RemoteVersion>>> {
        self.0.load_full()
    }

    pub(crate) fn replace(&self, mut versions: Vec<Arc<RemoteVersion>>) {
        versions.sort_by(|a, b| b.priorities.cmp(&a.priorities).then_with(|| a.name.cmp(&b.name)));
        self.0.store(Arc::new(versions));
    }

    /// The extension server of a path: `/apis/GROUP/VERSION` and everything below it.
    pub(crate) fn of_path(&self, path: &str) -> Option<Arc<RemoteVersion>> {
        let versions = self.0.load();
        if versions.is_empty() {
            return None;
        }
        let mut words = path.strip_prefix("/apis/")?.split('/');
        let (group, version) = (words.next()?, words.next()?);
        let mut found = versions.iter();
        found.find(|found| found.group == group && found.version == version).map(Arc::clone)
    }
}

/// The resources of a discovery document in the form of the aggregated one.
pub(crate) fn aggregated(list: &Value, group: &str, version: &str) -> Vec<Value> {
    let response_kind = |entry: &Value| {
        let or = |key: &str, other: &str| match entry[key].as_str() {
            None | Some("") => other.to_owned(),
            Some(text) => text.to_owned(),
        };
        json!({ "group": or("group", group), "version": or("version", version),
            "kind": entry["kind"] })
    };
    let entries = || list["resources"].as_array().into_iter().flatten();
    let name = |entry: &Value| entry["name"].as_str().unwrap_or_default().to_owned();
    let mut resources = Vec::new();
    for entry in entries().filter(|entry| !name(entry).contains('/')) {
        let plural = name(entry);
        let mut resource = json!({
            "resource": plural,
            "responseKind": response_kind(entry),
            "scope": if entry["namespaced"] == true { "Namespaced" } else { "Cluster" },
            "singularResource": entry["singularName"],
            "verbs": entry["verbs"],
        });
        for key in ["shortNames", "categories"] {
            if let Some(names) = entry.get(key) {
                resource[key] = names.clone();
            }
        }
        let below = entries().filter_map(|sub| {
            let name = name(sub);
            let subresource = name.strip_prefix(&plural)?.strip_prefix('/')?;
            Some(json!({ "subresource": subresource, "responseKind": response_kind(sub),
                "verbs": sub["verbs"] }))
        });
        let below: Vec<Value> = below.collect();
        if !below.is_empty() {
            resource["subresources"] = below.into();
        }
        resources.push(resource);
    }
    resources
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_discovery_document_becomes_an_aggregated_one() {
        let list = json!({ "resources": [
            { "name": "pods", "singularName": "pod", "namespaced": true, "kind": "PodMetrics",
              "verbs": ["get"], "shortNames": ["pm"] },
            { "name": "pods/scale", "kind": "Scale", "group": "autoscaling", "version": "v1",
              "verbs": ["get", "update"] },
            { "name": "nodes", "singularName": "", "namespaced": false, "kind": "NodeMetrics",
              "verbs": ["list"] },
        ]});
        let found = aggregated(&list, "metrics.k8s.io", "v1beta1");
        assert_eq!(found.len(), 2);
        assert_eq!(found[0]["shortNames"], json!(["pm"]));
        assert_eq!(
            found[0]["subresources"],
            json!([{ "subresource": "scale", "verbs": ["get", "update"],
                "responseKind": { "group": "autoscaling", "version": "v1", "kind": "Scale" } }])
        );
        assert_eq!(found[1]["scope"], "Cluster");
        assert_eq!(found[1]["responseKind"]["group"], "metrics.k8s.io");
    }

    #[test]
    fn paths_below_a_group_version_belong_to_its_server() {
        let versions = RemoteVersions::default();
        let object = json!({
            "metadata": { "name": "v1.a.b" },
            "spec": { "group": "a.b", "version": "v1", "service": { "namespace": "n", "name": "s" } },
        });
        let local = json!({ "metadata": { "name": "v1.apps" }, "spec": { "group": "apps" } });
        assert!(RemoteVersion::read(&local, None).is_none());
        let remote = RemoteVersion::read(&object, None).unwrap();
        assert_eq!(remote.service, ("n".to_owned(), "s".to_owned(), 443));
        versions.replace(vec![Arc::new(remote)]);
        for path in ["/apis/a.b/v1", "/apis/a.b/v1/", "/apis/a.b/v1/namespaces/x/pods"] {
            assert!(versions.of_path(path).is_some(), "{path}");
        }
        for path in ["/apis/a.b", "/apis/a.b/v2", "/api/a.b/v1", "/apis/a.bc/v1", "/"] {
            assert!(versions.of_path(path).is_none(), "{path}");
        }
    }
}
