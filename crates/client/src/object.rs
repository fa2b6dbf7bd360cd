//! The objects that an informer can store: typed, dynamic, projected and packed ones.
//!
//! River: decoder → **object** → delta queue, store, handlers.
//! Promise: any type with kube's `Resource` and serde's `Deserialize` works; it need not be
//! `Clone`, `Debug` or `Default`. Stored objects are behind an `Arc` and immutable.

use std::any::Any;
use std::borrow::Cow;
use std::sync::Arc;

use kube::Resource;
use kube::core::ObjectMeta;
use serde::de::DeserializeOwned;

use crate::key::Key;
use crate::version::ResourceVersion;

/// An object that an informer can store.
///
/// It is implemented for every type with kube's [`Resource`] and serde's `Deserialize` (the types
/// of `k8s-openapi`, derived custom resources, your own projections, `DynamicObject`) and for
/// [`Packed`](crate::Packed). It cannot be implemented otherwise.
pub trait Cached: sealed::Sealed + Send + Sync + Sized + 'static {
    /// The API type: the type itself, or the unpacked type of a packed object.
    type Resource: Resource;

    /// The name; empty if it has none.
    fn name(&self) -> &str;

    /// The namespace; `None` for cluster-scoped objects.
    fn namespace(&self) -> Option<&str>;

    /// The UID; empty if it has none.
    fn uid(&self) -> &str;

    /// The version of this state.
    fn resource_version(&self) -> ResourceVersion;

    /// All metadata: borrowed from typed objects, decoded from packed ones.
    fn metadata(&self) -> Cow<'_, ObjectMeta>;

    /// The value of one label.
    fn label(&self, key: &str) -> Option<Cow<'_, str>>;

    /// Decodes an object from its JSON text.
    ///
    /// # Errors
    /// The text is not JSON, or not of this type.
    fn decode(text: &str) -> Result<Self, serde_json::Error>;

    /// An estimate of the memory that the object takes when it is decoded from `text`.
    fn approx_bytes(text: &str) -> usize;

    /// `namespace/name`, or `name`.
    fn key(&self) -> Key {
        Key::new(self.namespace(), self.name())
    }

    /// Whether the object keeps the text that it was decoded from.
    #[doc(hidden)]
    const KEEPS_TEXT: bool = false;

    /// The text that it was decoded from, if it keeps it.
    #[doc(hidden)]
    fn shared_text(&self) -> Option<Arc<str>> {
        None
    }
}

/// An object of any type, for the stages that need not know it.
pub(crate) type AnyObject = dyn Any + Send + Sync;

/// The object with its type.
pub(crate) fn typed<K: Cached>(object: Arc<AnyObject>) -> Arc<K> {
    object.downcast().expect("the objects of an informer have the type of its source")
}

mod sealed {
    use super::{DeserializeOwned, Resource};

    pub trait Sealed {}

    impl<K: Resource + DeserializeOwned> Sealed for K {}

    impl<K> Sealed for crate::packed::Packed<K> {}
}

impl<K> Cached for K
where
    K: Resource + DeserializeOwned + Send + Sync + 'static,
{
    type Resource = K;

    fn name(&self) -> &str {
        self.meta().name.as_deref().unwrap_or_default()
    }

    fn namespace(&self) -> Option<&str> {
        self.meta().namespace.as_deref().filter(|namespace| !namespace.is_empty())
    }

    fn uid(&self) -> &str {
        self.meta().uid.as_deref().unwrap_or_default()
    }

    fn resource_version(&self) -> ResourceVersion {
        ResourceVersion::new(self.meta().resource_version.as_deref().unwrap_or_default())
    }

    fn metadata(&self) -> Cow<'_, ObjectMeta> {
        Cow::Borrowed(self.meta())
    }

    fn label(&self, key: &str) -> Option<Cow<'_, str>> {
        self.meta().labels.as_ref()?.get(key).map(|value| Cow::Borrowed(value.as_str()))
    }

    fn decode(text: &str) -> Result<K, serde_json::Error> {
        serde_json::from_str(text)
    }

    fn approx_bytes(text: &str) -> usize {
        size_of::<K>() + TYPED_BYTES_PER_TEXT_BYTE * text.len()
    }
}

/// What the strings, vectors and maps of a typed object take for each byte of its JSON text,
/// measured on pods.
const TYPED_BYTES_PER_TEXT_BYTE: usize = 8;

/// A resource type: group, version, kind and plural name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ResourceType {
    /// API group; empty for the core group.
    pub group: String,
    /// Version, such as `v1`.
    pub version: String,
    /// Kind, such as `Pod`.
    pub kind: String,
    /// Plural resource name, such as `pods`.
    pub plural: String,
}

impl ResourceType {
    /// The resource type of `K`.
    pub fn of<K: Resource>(dynamic: &K::DynamicType) -> ResourceType {
        ResourceType {
            group: K::group(dynamic).into_owned(),
            version: K::version(dynamic).into_owned(),
            kind: K::kind(dynamic).into_owned(),
            plural: K::plural(dynamic).into_owned(),
        }
    }

    /// `v1`, or `apps/v1`.
    pub fn api_version(&self) -> String {
        match self.group.as_str() {
            "" => self.version.clone(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// `pods`, or `deployments.apps`; for messages.
    pub fn resource(&self) -> String {
        match self.group.as_str() {
            "" => self.plural.clone(),
            group => format!("{}.{group}", self.plural),
        }
    }

    /// The URL path of the collection in one namespace, or in all.
    pub fn path(&self, namespace: Option<&str>) -> String {
        let root = if self.group.is_empty() { "api" } else { "apis" };
        let inside = namespace.map(|name| format!("namespaces/{name}/")).unwrap_or_default();
        format!("/{root}/{}/{inside}{}", self.api_version(), self.plural)
    }
}

#[cfg(test)]
pub(crate) mod fixture {
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::core::ObjectMeta;

    /// A cluster-scoped object with this name and version.
    pub(crate) fn object(name: &str, version: &str) -> Arc<ConfigMap> {
        Arc::new(ConfigMap {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                uid: Some(format!("uid-{name}")),
                resource_version: Some(version.to_owned()),
                ..ObjectMeta::default()
            },
            ..ConfigMap::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::apps::v1::Deployment;
    use k8s_openapi::api::core::v1::Pod;

    #[test]
    fn paths_are_those_of_the_api() {
        let pods = ResourceType::of::<Pod>(&());
        assert_eq!(pods.path(None), "/api/v1/pods");
        assert_eq!(pods.path(Some("shop")), "/api/v1/namespaces/shop/pods");
        let deployments = ResourceType::of::<Deployment>(&());
        assert_eq!(deployments.path(Some("a")), "/apis/apps/v1/namespaces/a/deployments");
        assert_eq!(deployments.resource(), "deployments.apps");
    }

    /// C31.6
    #[test]
    fn a_type_with_resource_and_decode_is_enough() {
        #[derive(kube::Resource, serde::Deserialize)]
        #[resource(inherit = Pod)]
        struct Bare {
            metadata: ObjectMeta,
        }
        let text = r#"{"metadata":{"name":"a","namespace":"ns","labels":{"x":"y"}},"spec":{}}"#;
        let bare = <Bare as Cached>::decode(text).unwrap();
        assert_eq!(bare.key().as_str(), "ns/a");
        assert_eq!(bare.label("x").as_deref(), Some("y"));
    }
}
