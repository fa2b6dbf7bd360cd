//! Slim metadata for projections: the fields that informers and most reconcilers need.
//!
//! River: inside the decoder of a projection.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use kube::core::ObjectMeta;
use serde::{Deserialize, Deserializer};

/// Decodes only name, namespace, UID, resourceVersion, generation, labels, owner references,
/// finalizers and deletion timestamp of the metadata, and skips the rest.
///
/// ```
/// use headwater_client::Cached;
/// use k8s_openapi::api::core::v1::Pod;
/// use kube::core::ObjectMeta;
/// use serde::Deserialize;
///
/// #[derive(kube::Resource, Deserialize)]
/// #[resource(inherit = Pod)] // kind, group and scope are those of Pod
/// struct PodLite {
///     #[serde(deserialize_with = "headwater_client::slim")]
///     metadata: ObjectMeta,
///     spec: SpecLite,
/// }
///
/// #[derive(Deserialize)]
/// #[serde(rename_all = "camelCase")]
/// struct SpecLite {
///     node_name: Option<String>,
/// }
///
/// let text = r#"{"metadata":{"name":"a","annotations":{"long":"text"}},"spec":{"nodeName":"n7"}}"#;
/// let pod = PodLite::decode(text)?;
/// assert_eq!(pod.metadata.annotations, None);
/// assert_eq!(pod.spec.node_name.as_deref(), Some("n7"));
/// # Ok::<(), serde_json::Error>(())
/// ```
///
/// # Errors
/// The metadata does not decode.
pub fn slim<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let slim = Slim::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: slim.name,
        namespace: slim.namespace,
        uid: slim.uid,
        resource_version: slim.resource_version,
        generation: slim.generation,
        labels: slim.labels,
        owner_references: slim.owner_references,
        finalizers: slim.finalizers,
        deletion_timestamp: slim.deletion_timestamp,
        ..ObjectMeta::default()
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Slim {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    namespace: Option<String>,
    #[serde(default)]
    uid: Option<String>,
    #[serde(default)]
    resource_version: Option<String>,
    #[serde(default)]
    generation: Option<i64>,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    owner_references: Option<Vec<OwnerReference>>,
    #[serde(default)]
    finalizers: Option<Vec<String>>,
    #[serde(default)]
    deletion_timestamp: Option<Time>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Cached;
    use k8s_openapi::api::core::v1::Pod;

    #[derive(kube::Resource, Deserialize)]
    #[resource(inherit = Pod)]
    struct Lite {
        #[serde(deserialize_with = "slim")]
        metadata: ObjectMeta,
        spec: SpecLite,
    }

    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct SpecLite {
        node_name: Option<String>,
    }

    /// C15.4, C15.10
    #[test]
    fn slim_metadata_keeps_what_informers_need_and_nothing_else() {
        let text = r#"{"metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"1","generation":3,"labels":{"x":"y"},"annotations":{"big":"text"},"creationTimestamp":"2026-01-01T00:00:00Z","managedFields":[{"manager":"m","fieldsV1":{"f:a":{}}}],"finalizers":["f"],"ownerReferences":[{"apiVersion":"v1","kind":"K","name":"o","uid":"ou"}],"deletionTimestamp":"2026-01-01T00:00:00Z"},"spec":{"nodeName":"n1","containers":[{"name":"c"}]}}"#;
        let lite = Lite::decode(text).unwrap();
        let mut full = Pod::decode(text).unwrap().metadata;
        (full.annotations, full.managed_fields, full.creation_timestamp) = (None, None, None);
        assert_eq!(lite.metadata, full);
        assert_eq!(lite.spec.node_name.as_deref(), Some("n1"));
    }
}
