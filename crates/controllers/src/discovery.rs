//! Deletable resources: every resource that a server can list, watch and delete, by discovery.
//!
//! River: discovery → **deletable resources** → the garbage collector and the namespace controller.
//! Promise: a later call returns resources that appeared since; both controllers share one
//! metadata watch per resource.

use std::collections::BTreeMap;
use std::fmt;

use headwater_client::informer::{Informer, NotServed};
use headwater_client::{Error, Factory, ResourceType};
use kube::Client;
use kube::core::{ApiResource, DynamicObject, PartialObjectMeta};
use kube::discovery::{ApiCapabilities, Discovery, Scope, verbs};

/// The metadata of an object of any kind.
pub(crate) type ObjectMetadata = PartialObjectMeta<DynamicObject>;

/// A kind as owner references name it, without its version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct GroupKind {
    pub(crate) group: String,
    pub(crate) kind: String,
}

impl GroupKind {
    /// The kind that an object reference names.
    pub(crate) fn of(api_version: &str, kind: &str) -> GroupKind {
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        GroupKind { group: group.to_owned(), kind: kind.to_owned() }
    }
}

impl fmt::Display for GroupKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.group.as_str() {
            "" => f.write_str(&self.kind),
            group => write!(f, "{}.{group}", self.kind),
        }
    }
}

/// A resource that can be listed, watched and deleted.
#[derive(Clone, Debug)]
pub(crate) struct DeletableResource {
    pub(crate) api: ApiResource,
    pub(crate) namespaced: bool,
    /// Whether the server supports `deletecollection`.
    pub(crate) deletes_collections: bool,
}

impl DeletableResource {
    pub(crate) fn resource(&self) -> ResourceType {
        ResourceType::of::<DynamicObject>(&self.api)
    }

    /// The shared informer of the objects' metadata. It stops when the server no longer serves the
    /// resource; if its definition is created again, a new informer has to be opened.
    pub(crate) fn informer(&self, factory: &Factory) -> Result<Informer<ObjectMetadata>, Error> {
        let builder = factory.informer_of::<DynamicObject>(self.resource()).metadata_only();
        let builder = builder.configure(|options| options.not_served = NotServed::Stop);
        builder.named(format!("metadata/{}", self.resource().resource())).open()
    }
}

/// Every deletable resource that the server serves now.
pub(crate) async fn deletable_resources(
    client: &Client,
) -> Result<BTreeMap<GroupKind, DeletableResource>, Error> {
    let found = Discovery::new(client.clone()).run_aggregated().await?;
    let all = found.groups().flat_map(|group| group.resources_by_stability());
    Ok(all.filter(is_deletable).map(entry).collect())
}

/// Events are left out: they are many, expire by themselves and own nothing.
fn is_deletable((api, can): &(ApiResource, ApiCapabilities)) -> bool {
    let needed = [verbs::LIST, verbs::WATCH, verbs::DELETE];
    api.kind != "Event" && needed.iter().all(|verb| can.supports_operation(verb))
}

fn entry((api, can): (ApiResource, ApiCapabilities)) -> (GroupKind, DeletableResource) {
    let id = GroupKind { group: api.group.clone(), kind: api.kind.clone() };
    let kind = DeletableResource {
        api,
        namespaced: can.scope == Scope::Namespaced,
        deletes_collections: can.supports_operation(verbs::DELETE_COLLECTION),
    };
    (id, kind)
}
