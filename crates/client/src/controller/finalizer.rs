//! The finalizer of a controller: runs a cleanup before an object is deleted.
//!
//! River: worker → **finalizer** → the reconciler or its cleanup.
//! Promise: an object has the finalizer before its first reconcile and until its cleanup has
//! succeeded; adding and removing it changes no other finalizer and loses no concurrent change.

use std::future::Future;
use std::sync::Arc;

use futures::future::BoxFuture;
use headwater_api::name;
use http::Method;

use crate::calls::Calls;
use crate::error::Error;
use crate::object::{Cached, ResourceType};
use crate::track::TrackedWrite;
use crate::version::ResourceVersion;

use super::{Context, Failure, Next};

pub(super) struct Finalizer<K> {
    name: String,
    cleanup: Box<Cleanup<K>>,
}

type Cleanup<K> =
    dyn Fn(Arc<K>, Context) -> BoxFuture<'static, Result<Next, Failure>> + Send + Sync;

/// What the finalizer of an object requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Add,
    Reconcile,
    CleanUp,
    /// It is being deleted without the finalizer: nothing to do.
    LeaveAlone,
}

impl<K: Cached> Finalizer<K> {
    pub(super) fn new<F, E>(
        name: &str,
        cleanup: impl Fn(Arc<K>, Context) -> F + Send + Sync + 'static,
    ) -> Result<Finalizer<K>, Error>
    where
        F: Future<Output = Result<Next, E>> + Send + 'static,
        E: Into<Failure>,
    {
        if !name::qualified(name).is_empty() || !name.contains('/') {
            let why = format!("{name:?} is not a finalizer name; use one such as example.com/dns");
            return Err(Error::Invalid(why));
        }
        let cleanup = Box::new(move |object: Arc<K>, cx: Context| {
            let running = cleanup(object, cx);
            Box::pin(async move { running.await.map_err(Into::into) })
                as BoxFuture<'static, Result<Next, Failure>>
        });
        Ok(Finalizer { name: name.to_owned(), cleanup })
    }

    pub(super) fn stage(&self, object: &K) -> Stage {
        let metadata = object.metadata();
        let has = metadata.finalizers.iter().flatten().any(|known| *known == self.name);
        match (metadata.deletion_timestamp.is_some(), has) {
            (false, false) => Stage::Add,
            (false, true) => Stage::Reconcile,
            (true, true) => Stage::CleanUp,
            (true, false) => Stage::LeaveAlone,
        }
    }

    pub(super) fn clean_up(
        &self,
        object: Arc<K>,
        cx: Context,
    ) -> BoxFuture<'static, Result<Next, Failure>> {
        (self.cleanup)(object, cx)
    }

    /// Adds the finalizer, if the object has not changed since it was read.
    pub(super) async fn add(
        &self,
        resource: &ResourceType,
        object: &K,
        calls: &Calls,
    ) -> Result<(), Error> {
        self.set(resource, object, calls, |names| names.push(self.name.clone())).await
    }

    /// Removes the finalizer, if the object has not changed since it was read.
    pub(super) async fn remove(
        &self,
        resource: &ResourceType,
        object: &K,
        calls: &Calls,
    ) -> Result<(), Error> {
        self.set(resource, object, calls, |names| names.retain(|name| *name != self.name)).await
    }

    async fn set(
        &self,
        resource: &ResourceType,
        object: &K,
        calls: &Calls,
        change: impl FnOnce(&mut Vec<String>),
    ) -> Result<(), Error> {
        let mut names = object.metadata().finalizers.clone().unwrap_or_default();
        change(&mut names);
        // With a resourceVersion the server refuses the patch if the object changed meanwhile.
        let patch = serde_json::json!({
            "metadata": {
                "finalizers": names,
                "resourceVersion": object.resource_version().to_string(),
            },
        });
        let key = object.key();
        let path = format!("{}/{}", resource.path(key.namespace()), key.name());
        let body = patch.to_string().into_bytes();
        let content_type = "application/merge-patch+json";
        let answer = calls.exchange(Method::PATCH, &path, content_type, body).await?;
        let answer: serde_json::Value = serde_json::from_slice(&answer)
            .map_err(|error| Error::Invalid(format!("cannot decode the response: {error}")))?;
        let version = answer["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        if let Some(tracker) = calls.tracker() {
            let version = ResourceVersion::new(version);
            tracker.remember(TrackedWrite::version(Arc::new(resource.clone()), key, version));
        }
        Ok(())
    }
}
