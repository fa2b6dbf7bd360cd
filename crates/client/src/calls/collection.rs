//! Reads and writes the objects of one type.
//!
//! River: reconciler → **collection** → the server.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use http::Method;
use kube::Resource;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::Error;
use crate::key::Key;
use crate::object::{Cached, ResourceType};
use crate::track::TrackedWrite;
use crate::version::ResourceVersion;

use super::Calls;
use super::conflict::retry_on_conflict;

const JSON: &str = "application/json";
const MERGE_PATCH: &str = "application/merge-patch+json";
const APPLY_PATCH: &str = "application/apply-patch+yaml";

/// Reads and writes the objects of one type. Cheap to clone.
pub struct Collection<K> {
    calls: Calls,
    resource: Arc<ResourceType>,
    object: PhantomData<fn() -> K>,
}

/// The result of a delete.
#[derive(Debug)]
pub enum Deleted<K> {
    /// The object does not exist any more.
    Gone,
    /// The object is being deleted and waits for its finalizers.
    Pending(K),
}

impl<K> Collection<K>
where
    K: Resource + DeserializeOwned + Send + Sync + 'static,
{
    pub(super) fn new(calls: Calls, resource: ResourceType) -> Collection<K> {
        Collection { calls, resource: Arc::new(resource), object: PhantomData }
    }

    fn path(&self, key: &Key) -> String {
        format!("{}/{}", self.resource.path(key.namespace()), key.name())
    }

    /// Reads an object from the server; `None` if it does not exist.
    ///
    /// # Errors
    /// The call failed or was refused.
    pub async fn get(&self, key: &Key) -> Result<Option<K>, Error> {
        match self.calls.exchange(Method::GET, &self.path(key), JSON, Vec::new()).await {
            Ok(answer) => Ok(Some(decode(&answer)?)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Creates an object.
    ///
    /// # Errors
    /// The call failed or was refused; [`Error::is_exists`] if an object with that name exists.
    pub async fn create(&self, object: &K) -> Result<K, Error>
    where
        K: Serialize,
    {
        let path = self.resource.path(object.namespace());
        self.write(Method::POST, &path, JSON, &self.body(object)?).await
    }

    /// Replaces an object. It must have the version at which it was read, so that no concurrent
    /// change is lost.
    ///
    /// # Errors
    /// [`Error::Invalid`] without a version; [`Error::is_conflict`] if the object has changed.
    pub async fn replace(&self, object: &K) -> Result<K, Error>
    where
        K: Serialize,
    {
        if object.resource_version().is_empty() {
            let why = "the object has no resourceVersion; read it first";
            return Err(Error::Invalid(why.to_owned()));
        }
        self.write(Method::PUT, &self.path(&object.key()), JSON, &self.body(object)?).await
    }

    /// Applies a JSON merge patch (RFC 7386) to an object. A `metadata.resourceVersion` in the
    /// patch makes it conditional.
    ///
    /// # Errors
    /// The call failed or was refused.
    pub async fn merge(&self, key: &Key, patch: &Value) -> Result<K, Error> {
        self.write(Method::PATCH, &self.path(key), MERGE_PATCH, patch).await
    }

    /// Applies a JSON merge patch to the status of an object.
    ///
    /// # Errors
    /// The call failed or was refused.
    pub async fn merge_status(&self, key: &Key, patch: &Value) -> Result<K, Error> {
        let path = format!("{}/status", self.path(key));
        self.write(Method::PATCH, &path, MERGE_PATCH, patch).await
    }

    /// Server-side apply as the field manager `manager`, with force: conflicting fields of other
    /// managers are taken over.
    ///
    /// # Errors
    /// The call failed or was refused.
    pub async fn apply(&self, wanted: &K, manager: &str) -> Result<K, Error>
    where
        K: Serialize,
    {
        let mut body = self.body(wanted)?;
        if let Some(metadata) = body.get_mut("metadata").and_then(Value::as_object_mut) {
            // An apply must not contain these fields.
            metadata.remove("resourceVersion");
            metadata.remove("managedFields");
        }
        let path = format!("{}?fieldManager={manager}&force=true", self.path(&wanted.key()));
        self.write(Method::PATCH, &path, APPLY_PATCH, &body).await
    }

    /// Reads an object, changes it, and writes it if it differs; retries after a conflict. `cached`
    /// replaces the first read. Returns `None` if the object does not exist.
    ///
    /// # Errors
    /// The call failed or was refused; the last conflict after five attempts.
    pub async fn update(
        &self,
        key: &Key,
        cached: Option<&K>,
        change: impl Fn(&mut K),
    ) -> Result<Option<K>, Error>
    where
        K: Serialize,
    {
        let mut known = cached.map(|object| self.body(object)).transpose()?;
        retry_on_conflict(|| {
            let before = known.take();
            let change = &change;
            async move {
                let (before, mut object) = match before {
                    Some(before) => {
                        let object = serde_json::from_value(before.clone())
                            .map_err(|error| undecodable(&error))?;
                        (before, object)
                    }
                    None => match self.get(key).await? {
                        Some(object) => (self.body(&object)?, object),
                        None => return Ok(None),
                    },
                };
                change(&mut object);
                if self.body(&object)? == before {
                    return Ok(Some(object));
                }
                self.replace(&object).await.map(Some)
            }
        })
        .await
    }

    /// Creates an object, or changes the existing one.
    ///
    /// # Errors
    /// The call failed or was refused; the last conflict after five attempts.
    pub async fn create_or_update(&self, fresh: &K, change: impl Fn(&mut K)) -> Result<K, Error>
    where
        K: Serialize,
    {
        let key = fresh.key();
        loop {
            if let Some(updated) = self.update(&key, None, &change).await? {
                return Ok(updated);
            }
            match self.create(fresh).await {
                Err(error) if error.is_exists() => {} // another client created it: change that one
                done => return done,
            }
        }
    }

    /// Deletes an object. The result is [`Deleted::Gone`] if it does not exist.
    ///
    /// # Errors
    /// The call failed or was refused.
    pub async fn delete(&self, key: &Key) -> Result<Deleted<K>, Error> {
        self.delete_if(key, None).await
    }

    /// Deletes an object if it still has the UID of `object`.
    ///
    /// # Errors
    /// [`Error::is_conflict`] if it has another UID; otherwise the call failed or was refused.
    pub async fn delete_this(&self, object: &K) -> Result<Deleted<K>, Error> {
        let uid = object.uid().to_owned();
        self.delete_if(&object.key(), Some(uid)).await
    }

    /// Deletes an object with `DeleteOptions`: grace period, propagation policy, preconditions.
    ///
    /// # Errors
    /// As [`Collection::delete_this`].
    pub async fn delete_with(&self, key: &Key, options: &Value) -> Result<Deleted<K>, Error> {
        let body = options.to_string().into_bytes();
        match self.calls.exchange(Method::DELETE, &self.path(key), JSON, body).await {
            Err(error) if error.is_not_found() => Ok(Deleted::Gone),
            answer => self.deleted(key, &answer?),
        }
    }

    /// Posts to a subresource, such as `binding` or `eviction`. The write is not remembered.
    ///
    /// # Errors
    /// The call failed or was refused.
    pub async fn post(&self, key: &Key, subresource: &str, body: &Value) -> Result<(), Error> {
        let path = format!("{}/{subresource}", self.path(key));
        let body = body.to_string().into_bytes();
        self.calls.exchange(Method::POST, &path, JSON, body).await.map(drop)
    }

    async fn delete_if(&self, key: &Key, uid: Option<String>) -> Result<Deleted<K>, Error> {
        let body = match &uid {
            Some(uid) => serde_json::json!({
                "kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": uid},
            })
            .to_string(),
            None => String::new(),
        };
        let path = self.path(key);
        let answer = match self.calls.exchange(Method::DELETE, &path, JSON, body.into_bytes()).await
        {
            Err(error) if error.is_not_found() => return Ok(Deleted::Gone),
            answer => answer?,
        };
        self.deleted(key, &answer)
    }

    fn deleted(&self, key: &Key, answer: &[u8]) -> Result<Deleted<K>, Error> {
        let value: Value = decode(answer)?;
        let version = value["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        let is_status = value["kind"] == "Status";
        if !version.is_empty() {
            self.remember(key, ResourceVersion::new(version));
        } else if is_status && let Some(uid) = value["details"]["uid"].as_str() {
            self.remember_gone(key, uid);
        }
        if is_status { Ok(Deleted::Gone) } else { Ok(Deleted::Pending(decode(answer)?)) }
    }

    /// Sends an object and remembers the version of the response.
    async fn write(
        &self,
        method: Method,
        path: &str,
        content_type: &'static str,
        body: &Value,
    ) -> Result<K, Error> {
        let body = body.to_string().into_bytes();
        let answer = self.calls.exchange(method, path, content_type, body).await?;
        let written: K = decode(&answer)?;
        self.remember(&written.key(), written.resource_version());
        Ok(written)
    }

    fn remember(&self, key: &Key, version: ResourceVersion) {
        if let Some(tracker) = self.calls.tracker() {
            let write = TrackedWrite::version(Arc::clone(&self.resource), key.clone(), version);
            tracker.remember(write);
        }
    }

    fn remember_gone(&self, key: &Key, uid: &str) {
        if let Some(tracker) = self.calls.tracker() {
            tracker.remember(TrackedWrite::gone(Arc::clone(&self.resource), key.clone(), uid));
        }
    }

    /// The JSON of an object, with its type: servers want it, typed objects may not have it.
    fn body(&self, object: &K) -> Result<Value, Error>
    where
        K: Serialize,
    {
        let mut body = serde_json::to_value(object)
            .map_err(|error| Error::Invalid(format!("the object cannot be encoded: {error}")))?;
        if let Some(members) = body.as_object_mut() {
            members.entry("kind").or_insert_with(|| self.resource.kind.clone().into());
            members.entry("apiVersion").or_insert_with(|| self.resource.api_version().into());
        }
        Ok(body)
    }
}

/// Decodes from text, as informers do: with another reader, the decoder of every type would be
/// compiled a second time.
fn decode<T: DeserializeOwned>(answer: &[u8]) -> Result<T, Error> {
    let text = std::str::from_utf8(answer).map_err(|error| undecodable(&error))?;
    serde_json::from_str(text).map_err(|error| undecodable(&error))
}

fn undecodable(error: &dyn fmt::Display) -> Error {
    Error::Invalid(format!("cannot decode the response: {error}"))
}

impl<K> Clone for Collection<K> {
    fn clone(&self) -> Collection<K> {
        Collection {
            calls: self.calls.clone(),
            resource: Arc::clone(&self.resource),
            object: PhantomData,
        }
    }
}

impl<K> fmt::Debug for Collection<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Collection({})", self.resource.resource())
    }
}
