//! The builder of an informer: sets its options.
//!
//! River: before the informer.

use std::any::TypeId;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use kube::Resource;
use kube::core::PartialObjectMeta;
use serde::de::DeserializeOwned;

use crate::error::Error;
use crate::http::{self, Http};
use crate::indexer::writer::LaneScope;
use crate::informer::{self, Informer, Sources};
use crate::list_watch::ListWatch;
use crate::object::{Cached, ResourceType};
use crate::observe::SourceObserver;
use crate::packed::Packed;
use crate::strip::Strip;
use crate::transform::{Transform, TransformedSource};
use crate::version::ResourceVersion;

use super::{Factory, InformerIdentity, NewInformer};

/// Sets the options of an informer; [`Builder::open`] returns the informer.
///
/// A factory shares one informer among all callers that set the same options.
#[must_use = "nothing happens before `open`"]
pub struct Builder<K: Cached> {
    factory: Factory,
    resource: ResourceType,
    namespaces: Option<BTreeSet<String>>,
    http: http::Options,
    options: informer::Options,
    name: Option<String>,
    transform: Option<usize>,
    make: MakeSource<K>,
    saved: Option<(Vec<K>, ResourceVersion)>,
}

/// The arguments of a source.
struct SourceSpec<'a> {
    factory: &'a Factory,
    resource: &'a ResourceType,
    namespace: Option<&'a str>,
    http: http::Options,
    observer: Option<SourceObserver>,
}

type MakeSource<K> = Arc<dyn Fn(SourceSpec<'_>) -> Arc<dyn ListWatch<Object = K>> + Send + Sync>;

fn http_source<K: Cached>(ask: SourceSpec<'_>) -> Arc<dyn ListWatch<Object = K>> {
    let client = ask.factory.client().clone();
    let http = Http::new(client, ask.resource, ask.namespace, ask.http);
    Arc::new(http.observed(ask.observer))
}

impl<K> Builder<K>
where
    K: Resource + DeserializeOwned + Send + Sync + 'static,
{
    pub(super) fn http(factory: Factory, resource: ResourceType) -> Builder<K> {
        Builder::new(factory, resource, Arc::new(http_source::<K>))
    }

    /// Stores the JSON text and decodes it on demand: about an eighth of the memory of typed pods,
    /// and less CPU while syncing. For large caches that are read in part. Removes earlier
    /// transforms.
    pub fn packed(self) -> Builder<Packed<K>> {
        self.stored_as(Arc::new(http_source::<Packed<K>>))
    }

    /// Requests metadata only. Removes earlier transforms.
    pub fn metadata_only(mut self) -> Builder<PartialObjectMeta<K>> {
        self.http.metadata_only = true;
        self.stored_as(Arc::new(http_source::<PartialObjectMeta<K>>))
    }
}

impl<K: Cached> Builder<K> {
    fn new(factory: Factory, resource: ResourceType, make: MakeSource<K>) -> Builder<K> {
        let defaults = &factory.inner.defaults;
        let http = http::Options {
            component: defaults.component.clone(),
            strip: Strip { managed_fields: defaults.drop_managed_fields, last_applied: false },
            ..http::Options::default()
        };
        let mut options = informer::Options::new(resource.resource(), resource.clone());
        options.page_size = defaults.page_size;
        options.resync = defaults.resync;
        options.metrics = defaults.metrics.clone();
        options.fetch_slots = factory.inner.fetch_slots.clone();
        options.selection.shard = defaults.shard.clone();
        Builder {
            factory,
            resource,
            namespaces: None,
            http,
            options,
            name: None,
            transform: None,
            make,
            saved: None,
        }
    }

    pub(super) fn source(
        factory: Factory,
        resource: ResourceType,
        source: Arc<dyn ListWatch<Object = K>>,
    ) -> Builder<K> {
        let identity = Arc::as_ptr(&source).cast::<()>() as usize;
        let mut builder =
            Builder::new(factory, resource, Arc::new(move |_: SourceSpec<'_>| Arc::clone(&source)));
        builder.transform = Some(identity); // different sources never share an informer
        builder
    }

    fn stored_as<P: Cached>(self, make: MakeSource<P>) -> Builder<P> {
        Builder {
            factory: self.factory,
            resource: self.resource,
            namespaces: self.namespaces,
            http: self.http,
            options: self.options,
            name: self.name,
            transform: self.transform,
            make,
            saved: None,
        }
    }

    /// Applies a transform to every object before it is stored. Informers with clones of the same
    /// transform are shared.
    pub fn transform<P: Cached>(self, transform: &Transform<K, P>) -> Builder<P> {
        let (transform, inner) = (transform.clone(), Arc::clone(&self.make));
        let identity = transform.identity();
        let make: MakeSource<P> = Arc::new(move |ask: SourceSpec<'_>| {
            Arc::new(TransformedSource::new(inner(ask), transform.clone()))
        });
        let mut builder = self.stored_as(make);
        builder.transform = Some(identity);
        // The objects with the texts are not kept.
        builder.http.deltas = false;
        builder
    }

    /// The name in logs, metrics and errors; by default that of the resource.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Only these namespaces, with one watch each.
    pub fn namespaces<S: Into<String>>(mut self, namespaces: impl IntoIterator<Item = S>) -> Self {
        self.namespaces = Some(namespaces.into_iter().map(Into::into).collect());
        self
    }

    /// Only this namespace.
    pub fn namespace(self, namespace: impl Into<String>) -> Self {
        self.namespaces([namespace])
    }

    /// Only objects that match a label selector.
    pub fn labels(mut self, selector: impl Into<String>) -> Self {
        self.options.selection.labels = selector.into();
        self
    }

    /// Only objects that match a field selector.
    pub fn fields(mut self, selector: impl Into<String>) -> Self {
        self.options.selection.fields = selector.into();
        self
    }

    /// All objects, also in a factory of a shard ([`Factory::shard`]): for collections that the work
    /// on every shard reads.
    pub fn all_shards(mut self) -> Self {
        self.options.selection.shard = None;
        self
    }

    /// Keeps `metadata.managedFields`.
    pub fn keep_managed_fields(mut self) -> Self {
        self.http.strip.managed_fields = false;
        self
    }

    /// Removes the annotation in which `kubectl apply` stores the object.
    pub fn drop_last_applied(mut self) -> Self {
        self.http.strip.last_applied = true;
        self
    }

    /// Starts a new informer from a saved state instead of a list: the watch resumes at its version.
    /// If the server has compacted that version, a list follows. For informers over one collection.
    pub fn resume_from(
        mut self,
        objects: impl IntoIterator<Item = K>,
        version: ResourceVersion,
    ) -> Self {
        self.saved = Some((objects.into_iter().collect(), version));
        self
    }

    /// Changes any other option of the informer.
    pub fn configure(mut self, change: impl FnOnce(&mut informer::Options)) -> Self {
        change(&mut self.options);
        self
    }

    fn identity(&self) -> InformerIdentity {
        let options = &self.options;
        InformerIdentity {
            resource: self.resource.clone(),
            stored: TypeId::of::<K>(),
            namespaces: self.namespaces.as_ref().map(|set| set.iter().cloned().collect()),
            selection: options.selection.clone(),
            transform: self.transform,
            strip: self.http.strip.clone(),
            metadata_only: self.http.metadata_only,
            reading: format!(
                "{:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?}",
                options.resync,
                options.page_size,
                options.initial_read,
                options.watch_timeout_min,
                options.internal_error_retry,
                options.not_served,
                options.drain,
                options.watch_list,
                options.max_frame,
            ),
        }
    }

    /// The informer with these options: an existing one, or a new one. It runs while the factory
    /// runs.
    ///
    /// # Errors
    /// [`Error::Stopped`] if the factory has stopped.
    pub fn open(self) -> Result<Informer<K>, Error> {
        let identity = self.identity();
        let factory = self.factory.clone();
        let wanted = self.name.clone().unwrap_or_else(|| self.resource.resource());
        factory.open(identity, move |name| self.make(name), &wanted)
    }

    /// Makes a new informer with a free name.
    fn make(self, name: String) -> NewInformer<K> {
        let Builder { factory, resource, namespaces, mut http, mut options, make, saved, .. } =
            self;
        http.watch_list = options.watch_list;
        http.max_frame = options.max_frame;
        let observer = options.metrics.as_ref().map(|metrics| SourceObserver::new(metrics, &name));
        options.name = name;
        let open = move |namespace: Option<&str>| {
            make(SourceSpec {
                factory: &factory,
                resource: &resource,
                namespace,
                http: http.clone(),
                observer: observer.clone(),
            })
        };
        let sources: Sources<K> = match namespaces {
            None => vec![(LaneScope::All, open(None))],
            Some(namespaces) => {
                let each = namespaces.iter().map(|namespace| {
                    (LaneScope::Namespace(namespace.as_str().into()), open(Some(namespace)))
                });
                each.collect()
            }
        };
        let (informer, mut runner, gone) = informer::open(sources, options);
        if let Some((objects, version)) = saved {
            runner = runner.resume_from(objects, version);
        }
        NewInformer { informer, runner, gone }
    }
}

impl<K: Cached> fmt::Debug for Builder<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Builder({})", self.resource.resource())
    }
}
