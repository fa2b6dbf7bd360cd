//! The census: every kind of object that a server has, found by discovery, seen by its metadata.
//!
//! River: discovery → **census** → those who care for objects of any kind: the garbage collector
//! and the namespaces.
//! Promise: kinds that appear later are found by asking again; two who look at a kind share one
//! watch.

use std::collections::BTreeMap;

use headwater_client::informer::Informer;
use headwater_client::object::ResourceType;
use headwater_client::{Error, Factory};
use kube::Client;
use kube::core::{ApiResource, DynamicObject, PartialObjectMeta};
use kube::discovery::{ApiCapabilities, Discovery, Scope, verbs};

/// An object of any kind, as far as these two need it.
pub(crate) type Meta = PartialObjectMeta<DynamicObject>;

/// What owner references call a kind. The version does not matter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Id {
    pub(crate) group: String,
    pub(crate) kind: String,
}

impl Id {
    /// The kind of an object reference.
    pub(crate) fn of(api_version: &str, kind: &str) -> Id {
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        Id { group: group.to_owned(), kind: kind.to_owned() }
    }
}

/// A kind of objects that can be listed, watched and deleted.
#[derive(Clone, Debug)]
pub(crate) struct Kind {
    pub(crate) api: ApiResource,
    pub(crate) namespaced: bool,
    /// Whether all objects of a namespace can be deleted with one call.
    pub(crate) deletes_collections: bool,
}

impl Kind {
    pub(crate) fn resource(&self) -> ResourceType {
        ResourceType::of::<DynamicObject>(&self.api)
    }

    /// Its objects.
    pub(crate) fn objects(&self, factory: &Factory) -> Result<Informer<Meta>, Error> {
        let builder = factory.informer_of::<DynamicObject>(self.resource()).metadata_only();
        builder.named(format!("metadata/{}", self.resource().resource())).open()
    }
}

/// Every kind that the server has now.
pub(crate) async fn kinds(client: &Client) -> Result<BTreeMap<Id, Kind>, Error> {
    let found = Discovery::new(client.clone()).run_aggregated().await?;
    let all = found.groups().flat_map(|group| group.resources_by_stability());
    Ok(all.filter(is_counted).map(entry).collect())
}

/// Events come and go by themselves, many of them, and own nothing.
fn is_counted((api, can): &(ApiResource, ApiCapabilities)) -> bool {
    let needed = [verbs::LIST, verbs::WATCH, verbs::DELETE];
    api.kind != "Event" && needed.iter().all(|verb| can.supports_operation(verb))
}

fn entry((api, can): (ApiResource, ApiCapabilities)) -> (Id, Kind) {
    let id = Id { group: api.group.clone(), kind: api.kind.clone() };
    let kind = Kind {
        api,
        namespaced: can.scope == Scope::Namespaced,
        deletes_collections: can.supports_operation(verbs::DELETE_COLLECTION),
    };
    (id, kind)
}
