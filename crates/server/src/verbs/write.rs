//! Writes: create, update and patch.
//!
//! River: body → decode → **write** → admission → store.
//! Promise: a write is computed from one state and committed only if that state is still the latest;
//! otherwise it is computed again (S6.6). An acknowledged write is durable.

use bytes::Bytes;
use headwater_api::options::WriteOptions;
use headwater_api::status::FieldError;
use headwater_api::{Revision, Status, status as api_status};
use headwater_json::Value;
use headwater_schema::{managed, warnings};
use headwater_store::{Guard, Key, Op, Record};
use http::StatusCode;
use jiff::Timestamp;

use crate::admission::claims;
use crate::admission::manage::Manager;
use crate::admission::manage::track::{LEARN_MAX, LearnedVersion, Unfinished, learn, track};
use crate::admission::subresource::restrict_to_subresource;
use crate::admission::{Attempt, Origin, admit, is_released};
use crate::answer::status;
use crate::commit::{CommitOutcome, CompanionWrites};
use crate::kinds::custom;
use crate::kinds::registry::Served;
use crate::kinds::versions::{self, Forms, from_storage, to_storage};
use crate::object::object_key;
use crate::object::{Answer, Current, canonical, meta, metadata, stamp};
use crate::random::generate_name;
use crate::recent::PATIENCE;
use crate::request::authorize::{AccessRequest, Attributes};
use crate::request::call::Call;
use crate::request::decode;
use crate::request::route::ResourcePath;
use crate::server::Server;
use crate::verbs::newest::{self, Basis};
use crate::verbs::uncontrolled;

const NAMESPACES: &str = "/registry/core/namespaces/";

/// The maximum number of generated names to try.
const NAME_TRIES: usize = 8;

/// The result of a write.
pub(crate) struct Written {
    pub(crate) code: StatusCode,
    /// The object in its stored version, or as converted by a webhook for the response.
    pub(crate) answer: Answer,
}

/// POST on a collection.
pub(crate) async fn create(
    server: &Server,
    call: &Call,
    resource: &ResourcePath,
    body: Bytes,
) -> Result<Written, Status> {
    let options = WriteOptions::create(&call.query)?;
    let value = decode::body(&resource.kind, call, options.field_validation, &body)?;
    if custom::is_definition(&resource.kind) {
        call.warn(custom::check::warnings(&value));
    }
    if server.containers().is_some() {
        call.warn(uncontrolled::warning(&resource.kind, &value));
    }
    let mut create = Create { server, call, resource, options, value, is_managed: false };
    create.check_type()?;
    let answer = create.run().await?;
    Ok(Written { code: StatusCode::CREATED, answer })
}

struct Create<'a> {
    server: &'a Server,
    call: &'a Call,
    resource: &'a ResourcePath,
    options: WriteOptions,
    value: Value,
    /// Whether an apply has computed `managedFields` already.
    is_managed: bool,
}

impl Create<'_> {
    fn check_type(&mut self) -> Result<(), Status> {
        let kind = &self.resource.kind;
        check_namespace(kind, &self.resource.namespace, &mut self.value)?;
        let name = &self.resource.name;
        if name.is_empty() {
            return Ok(());
        }
        // An update that creates: the uid that it expects does not exist.
        check_name(name, &mut self.value)?;
        match meta(&self.value, "uid") {
            "" => Ok(()),
            uid => Err(wrong_uid(kind, name, uid, "")),
        }
    }

    /// Computes and commits; repeats if a concurrent write intervenes or a generated name is taken.
    async fn run(&mut self) -> Result<Answer, Status> {
        let prefix = meta(&self.value, "generateName").to_owned();
        let is_generated = meta(&self.value, "name").is_empty() && !prefix.is_empty();
        let mut taken = 0;
        loop {
            if is_generated {
                metadata(&mut self.value).insert("name".into(), generate_name(&prefix).into());
            }
            match self.attempt().await {
                Ok(Some(answer)) => return Ok(answer),
                Ok(None) => {}
                Err(mut status) if is_generated && status.reason == "AlreadyExists" => {
                    taken += 1;
                    if taken == NAME_TRIES {
                        let why =
                            ", the server was not able to generate a unique name for the object";
                        status.message.push_str(why);
                        return Err(status.retry_after(1));
                    }
                }
                Err(status) => return Err(status),
            }
        }
    }

    /// One attempt; `None` if a concurrent write changed what it depends on.
    async fn attempt(&mut self) -> Result<Option<Answer>, Status> {
        let kind = &self.resource.kind;
        // So that the cache has what this process wrote before.
        self.server.cache().settle(PATIENCE).await;
        let is_namespace_new = self.is_namespace_new().await?;
        let _passing = match &kind.definition {
            Some(custom) => Some(custom.gate.enter(kind, meta(&self.value, "name")).await?),
            None => None,
        };
        // Only a write that depends on other objects is retried with the same value.
        let is_kept = !meta(&self.value, "generateName").is_empty()
            || depends_on_others(self.server, self.resource);
        let mut stored = if is_kept { self.value.clone() } else { std::mem::take(&mut self.value) };
        to_storage(kind, &mut stored);
        let is_versioned = !matches!(meta(&stored, "resourceVersion"), "" | "0");
        let attempt = Attempt {
            cache: self.server.cache(),
            kind,
            namespace: &self.resource.namespace,
            is_namespace_new,
            subresource: "",
            new: &mut stored,
            old: None,
            untouched: None,
            now: self.server.now(),
        };
        let (server, call, options) = (self.server, self.call, &self.options);
        let admission = server.admission();
        let origin =
            Origin { backend: server, admission, call, options, is_managed: self.is_managed };
        let mut admitted = admit(attempt, origin).await?;
        self.call.warn(warnings::on_create(kind, &stored));
        if !self.is_managed {
            let mut manager = Manager::new(self.server, self.call, kind, "", &self.options);
            let made = admitted.untouched;
            track(self.server, &mut manager, kind, None, &mut stored, made).await?;
        }
        let name = meta(&stored, "name").to_owned();
        let companions = claims::beside(self.server, kind, None, Some(&stored)).await?;
        let mut beside = CompanionWrites(companions);
        let forms = Forms::of(self.server.converter(), kind, stored).await?;
        if self.options.dry_run {
            return self.dry_run(&name, forms).await.map(Some);
        }
        // The reference checks this in its store: validation errors come first, and a dry run may
        // have a version (S2.5).
        if is_versioned && self.resource.name.is_empty() {
            let why = "resourceVersion should not be set on objects to be created";
            return Err(status::bad_request(why));
        }
        let key = Key::in_collection(&kind.prefix, &object_key(&self.resource.namespace, &name));
        beside.0.extend(admitted.held.take_beside());
        let write = beside.put(kind, key, Guard::Absent, forms.stored.clone());
        match self.call.commit(self.server.store(), write).await? {
            CommitOutcome::Stored(revision) => Ok(Some(forms.answer(revision))),
            CommitOutcome::Conflict(actual) => Err(self.exists(&name, actual)),
            CommitOutcome::Contended(_) => Ok(None),
        }
    }

    /// Whether the store has the namespace, and the cache does not have it yet.
    async fn is_namespace_new(&self) -> Result<bool, Status> {
        let (cache, namespace) = (self.server.cache(), &self.resource.namespace);
        let namespaces = cache.resource(NAMESPACES);
        if namespace.is_empty() || cache.snapshot(&namespaces).get(namespace).is_some() {
            return Ok(false);
        }
        let key = Key::in_collection(NAMESPACES, namespace);
        let record = self.server.store().get(&key).await;
        let record = record.map_err(|error| status::from_store(&error))?;
        let object = record.and_then(|record| namespaces.object_of(&record).ok());
        Ok(object.is_some_and(|object| !object.is_deleting()))
    }

    async fn dry_run(&self, name: &str, forms: Forms) -> Result<Answer, Status> {
        let kind = &self.resource.kind;
        let key = Key::in_collection(&kind.prefix, &object_key(&self.resource.namespace, name));
        let record = self.server.store().get(&key).await;
        if record.map_err(|error| status::from_store(&error))?.is_some() {
            return Err(status::already_exists(kind, name));
        }
        Ok(forms.answer(Revision::ZERO))
    }

    fn exists(&self, name: &str, actual: Option<Record>) -> Status {
        let mut status = status::already_exists(&self.resource.kind, name);
        let deleting = actual
            .and_then(|record| versions::read_stored(&self.resource.kind, &record).ok())
            .is_some_and(|current| crate::object::is_deleting(&current.value));
        if deleting {
            status.message = format!("object is being deleted: {}", status.message);
        }
        status
    }
}

/// Checks that the object has the namespace of the path (S2.6).
pub(crate) fn check_namespace(
    kind: &Served,
    namespace: &str,
    value: &mut Value,
) -> Result<(), Status> {
    let metadata = metadata(value);
    let given = metadata.get("namespace").and_then(Value::as_str).unwrap_or_default();
    if !kind.namespaced {
        metadata.remove("namespace");
    } else if given.is_empty() {
        metadata.insert("namespace".into(), namespace.into());
    } else if given != namespace {
        let message =
            "the namespace of the provided object does not match the namespace sent on the request";
        return Err(status::bad_request(message));
    }
    Ok(())
}

/// Checks that the object has the name of the path (S2.13).
pub(crate) fn check_name(name: &str, value: &mut Value) -> Result<(), Status> {
    let metadata = metadata(value);
    let given = metadata.get("name").and_then(Value::as_str).unwrap_or_default();
    if given == name {
        return Ok(());
    }
    Err(status::bad_request(match given {
        "" => format!(
            "the name of the object ({name} based on URL) was undeterminable: name must be provided"
        ),
        given => {
            format!("the name of the object ({given}) does not match the name on the URL ({name})")
        }
    }))
}

/// Whether a write may have to be computed again although the object did not change.
fn depends_on_others(server: &Server, resource: &ResourcePath) -> bool {
    claims::is_service(&resource.kind)
        || server.admission().quotas.limit(server, &resource.namespace)
}

/// How an update changes the current object; called again if the object changed meanwhile.
pub(crate) trait Mutation: Send {
    /// The requested object, in the version of the request, computed from the current one.
    fn apply(&mut self, current: &Value) -> Result<Value, Status>;
    /// The same, for mutations that may need objects in other versions first.
    fn attempt(&mut self, current: &Value) -> Result<Value, Unfinished> {
        Ok(self.apply(current)?)
    }
    /// Receives an object in another version, which `attempt` asked for.
    fn learn(&mut self, _: LearnedVersion) {}
    /// Whether the request contains the entire object: then its uid is a precondition. In a patch
    /// the uid is an immutable field.
    fn is_whole(&self) -> bool {
        false
    }
    /// The object to create if none exists; `None` is 404.
    fn absent(&mut self) -> Result<Option<Value>, Status> {
        Ok(None)
    }
    /// Whether it has computed `managedFields` already.
    fn is_managed(&self) -> bool {
        false
    }
}

/// Applies the mutation; converts objects to other versions as it asks for them.
pub(crate) async fn changed(
    server: &Server,
    kind: &Served,
    change: &mut impl Mutation,
    current: &Value,
) -> Result<Value, Status> {
    for _ in 0..LEARN_MAX {
        match change.attempt(current) {
            Ok(new) => return Ok(new),
            Err(Unfinished::Refused(status)) => return Err(status),
            Err(Unfinished::Unconverted { object, to }) => {
                change.learn(learn(server, kind, *object, to).await?);
            }
        }
    }
    Err(status::internal("managed fields are in too many versions"))
}

/// PUT: replaces the current object.
pub(crate) struct Replace<F> {
    /// The replacement, until it is used.
    value: Option<Value>,
    /// Decodes it again: few writes need a second attempt.
    read: F,
    create: bool,
}

impl<F: Fn() -> Result<Value, Status> + Send> Replace<F> {
    fn take(&mut self) -> Result<Value, Status> {
        self.value.take().map_or_else(|| (self.read)(), Ok)
    }
}

impl<F: Fn() -> Result<Value, Status> + Send> Mutation for Replace<F> {
    fn is_whole(&self) -> bool {
        true
    }

    fn apply(&mut self, _: &Value) -> Result<Value, Status> {
        self.take()
    }

    fn absent(&mut self) -> Result<Option<Value>, Status> {
        self.create.then(|| self.take()).transpose()
    }
}

/// PUT on an object.
pub(crate) async fn update(
    server: &Server,
    call: &Call,
    resource: &ResourcePath,
    body: Bytes,
) -> Result<Written, Status> {
    let options = WriteOptions::update(&call.query)?;
    let kind = &resource.kind;
    let validation = options.field_validation;
    let read = || {
        let mut value = decode::body(kind, call, validation, &body)?;
        check_name(&resource.name, &mut value)?;
        check_namespace(kind, &resource.namespace, &mut value)?;
        Ok(value)
    };
    let create = kind.traits.create_on_update && resource.subresource.is_empty();
    let change = Replace { value: Some(read()?), read, create };
    Update { server, call, resource, options }.run(change).await
}

/// One update of one object.
pub(crate) struct Update<'a> {
    pub(crate) server: &'a Server,
    pub(crate) call: &'a Call,
    pub(crate) resource: &'a ResourcePath,
    pub(crate) options: WriteOptions,
}

/// The outcome of one attempt.
enum Tried {
    Done(Written),
    /// Nothing is to be stored.
    Unchanged(Written),
    /// Another writer was first; this is the current record.
    Again(Option<Current>),
}

impl Update<'_> {
    /// Computes and commits; repeats until no concurrent write intervenes.
    pub(crate) async fn run(&self, mut change: impl Mutation) -> Result<Written, Status> {
        let mut basis = self.read().await?;
        loop {
            let tried = match &basis.current {
                Some(current) => self.replace(current, &mut change).await,
                None => self.create(&mut change).await,
            };
            let outcome = match tried {
                Ok(Tried::Done(written)) => return Ok(written),
                Ok(Tried::Again(now)) => {
                    let revision = now.as_ref().map(|now| now.revision);
                    basis = Basis::newest(now, revision);
                    continue;
                }
                Ok(Tried::Unchanged(written)) => Ok(written),
                Err(status) => Err(status),
            };
            if basis.is_newest {
                return outcome;
            }
            let newest = self.read_store().await?;
            if newest.revision == basis.revision {
                return outcome;
            }
            basis = newest;
        }
    }

    async fn read(&self) -> Result<Basis<Current>, Status> {
        let cache = self.server.cache();
        cache.settle(PATIENCE).await;
        let resource = cache.resource(&self.resource.kind.prefix);
        let snapshot = cache.snapshot(&resource);
        let Some(object) = snapshot.get(&self.resource.key()) else {
            return self.read_store().await;
        };
        let current = self.seen(Current::of(object)?).await?;
        Ok(Basis::cached(current, object.revision()))
    }

    async fn read_store(&self) -> Result<Basis<Current>, Status> {
        let key = self.resource.key();
        let Some(object) = newest::stored(self.server, &self.resource.kind, &key).await? else {
            return Ok(Basis::newest(None, None));
        };
        let current = self.seen(Current::of(&object)?).await?;
        Ok(Basis::newest(Some(current), Some(object.revision())))
    }

    /// The current object in the version that the request changes.
    async fn seen(&self, mut current: Current) -> Result<Current, Status> {
        current.value =
            versions::tree(self.server.converter(), &self.resource.kind, current.value).await?;
        Ok(current)
    }

    async fn create(&self, change: &mut impl Mutation) -> Result<Tried, Status> {
        let kind = &self.resource.kind;
        let Some(value) = change.absent()? else {
            return Err(status::not_found(kind, &self.resource.name));
        };
        self.check_may_create().await?;
        let mut create = Create {
            server: self.server,
            call: self.call,
            resource: self.resource,
            options: self.options.clone(),
            value,
            is_managed: change.is_managed(),
        };
        create.check_type()?;
        match create.run().await {
            Err(status) if status.reason == "AlreadyExists" => {
                Ok(Tried::Again(self.read_store().await?.current))
            }
            Err(status) => Err(status),
            Ok(answer) => Ok(Tried::Done(Written { code: StatusCode::CREATED, answer })),
        }
    }

    /// The right to change an object is not the right to create it.
    async fn check_may_create(&self) -> Result<(), Status> {
        let ResourcePath { kind, namespace, name, .. } = self.resource;
        let request = AccessRequest {
            version: &kind.version,
            ..AccessRequest::about(Attributes::Resource {
                verb: "create",
                group: &kind.group,
                resource: &kind.plural,
                subresource: "",
                namespace,
                name,
            })
        };
        self.server.access().authorize(&self.call.identity, &request).await
    }

    async fn replace(
        &self,
        current: &Current,
        change: &mut impl Mutation,
    ) -> Result<Tried, Status> {
        let kind = &self.resource.kind;
        let old = &current.value;
        let mut new = if kind.is_converted() {
            let mut seen = old.clone();
            from_storage(kind, &mut seen);
            changed(self.server, kind, change, &seen).await?
        } else {
            changed(self.server, kind, change, old).await?
        };
        let (uid, actual) = (meta(&new, "uid"), meta(old, "uid"));
        if change.is_whole() && !uid.is_empty() && uid != actual {
            return Err(wrong_uid(kind, &self.resource.name, uid, actual));
        }
        self.check_preconditions(&mut new, current)?;
        to_storage(kind, &mut new);
        restrict_to_subresource(kind, &self.resource.subresource, &mut new, old);
        if !depends_on_others(self.server, self.resource) {
            let tried = self.admit_and_store(current, new, change.is_managed()).await?;
            return tried
                .ok_or_else(|| status::internal("conflict on a key other than the object's"));
        }
        loop {
            let tried = self.admit_and_store(current, new.clone(), change.is_managed()).await?;
            if let Some(tried) = tried {
                return Ok(tried);
            }
        }
    }

    /// One attempt; `None` if a concurrent write changed what it depends on.
    async fn admit_and_store(
        &self,
        current: &Current,
        mut new: Value,
        is_managed: bool,
    ) -> Result<Option<Tried>, Status> {
        let (kind, old) = (&self.resource.kind, &current.value);
        let attempt = Attempt {
            cache: self.server.cache(),
            kind,
            namespace: &self.resource.namespace,
            is_namespace_new: false,
            subresource: &self.resource.subresource,
            new: &mut new,
            old: Some(old),
            untouched: None,
            now: self.server.now(),
        };
        let (server, call, options) = (self.server, self.call, &self.options);
        let admission = server.admission();
        let origin = Origin { backend: server, admission, call, options, is_managed };
        let mut admitted = admit(attempt, origin).await?;
        if self.resource.subresource.is_empty() {
            self.call.warn(warnings::on_update(kind, &new, old));
        }
        stamp(&mut new, current.revision);
        if is_managed {
            managed::keep_times(old, &mut new);
        } else {
            let subresource = &self.resource.subresource;
            let mut manager =
                Manager::new(self.server, self.call, kind, subresource, &self.options);
            let made = admitted.untouched;
            track(self.server, &mut manager, kind, Some(old), &mut new, made).await?;
        }
        let is_noop = new == *old && !self.is_stale();
        if is_noop || self.options.dry_run {
            let stored = versions::as_read(kind, canonical(&new).into());
            let answer = Answer { stored, revision: current.revision };
            return Ok(Some(Tried::Unchanged(self.written(answer))));
        }
        self.store(current, new, admitted.held.take_beside()).await
    }

    async fn store(
        &self,
        current: &Current,
        new: Value,
        counted: Vec<Op>,
    ) -> Result<Option<Tried>, Status> {
        let kind = &self.resource.kind;
        let key = Key::in_collection(&kind.prefix, &self.resource.key());
        let released = is_released(kind, &new);
        let left = (!released).then_some(&new);
        let companions = claims::beside(self.server, kind, Some(&current.value), left).await?;
        let mut beside = CompanionWrites(companions);
        beside.0.extend(counted);
        if released {
            let quotas = &self.server.admission().quotas;
            beside.0.extend(quotas.drop_turn(self.server, kind, &self.resource.name).await?);
        }
        let forms = Forms::of(self.server.converter(), kind, new).await?;
        let write = match released {
            true => beside.remove(key, current.revision),
            false => beside.put(kind, key, Guard::At(current.revision), forms.stored.clone()),
        };
        match self.call.commit(self.server.store(), write).await? {
            CommitOutcome::Stored(revision) => {
                // A deleted object is returned as submitted, with its old version (S2.43).
                let revision = if released { current.revision } else { revision };
                Ok(Some(Tried::Done(self.written(forms.answer(revision)))))
            }
            CommitOutcome::Conflict(actual) => {
                let Some(record) = actual else { return Ok(Some(Tried::Again(None))) };
                let current = self.seen(versions::read_stored(kind, &record)?).await?;
                Ok(Some(Tried::Again(Some(current))))
            }
            CommitOutcome::Contended(_) => Ok(None),
        }
    }

    /// Whether the stored bytes are in another version than the cached object: then it is written
    /// although nothing changes, which migrates stored versions.
    fn is_stale(&self) -> bool {
        let (kind, key) = (&self.resource.kind, self.resource.key());
        let (cache, is_custom) = (self.server.cache(), kind.custom);
        let resource = is_custom.then(|| cache.resource(&kind.prefix));
        resource.is_some_and(|resource| {
            let of_another_version = |object| versions::is_stale(kind, object);
            resource.is_stale(&key)
                || cache.snapshot(&resource).get(&key).is_some_and(|o| of_another_version(o))
        })
    }

    fn written(&self, answer: Answer) -> Written {
        Written { code: StatusCode::OK, answer }
    }

    /// Checks the resourceVersion of the request, if it has one.
    fn check_preconditions(&self, new: &mut Value, current: &Current) -> Result<(), Status> {
        let kind = &self.resource.kind;
        let name = &self.resource.name;
        match meta(new, "resourceVersion") {
            "" | "0" if kind.traits.update_needs_version || kind.custom => {
                let field = "metadata.resourceVersion";
                let error =
                    FieldError::invalid(field, &0.into(), "must be specified for an update");
                // Named after the resource, not the kind: the reference checks it in its store.
                Err(api_status::invalid(&kind.group, &kind.plural, name, &[error]))
            }
            "" | "0" => Ok(()),
            text => match Revision::parse(text) {
                Some(revision) if revision == current.revision => Ok(()),
                Some(_) => Err(status::modified(kind, name)),
                None => Err(status::bad_request(format!(
                    "strconv.ParseUint: parsing {text:?}: invalid syntax"
                ))),
            },
        }
    }
}

/// 409 for a uid that differs from that of the object.
fn wrong_uid(kind: &Served, name: &str, asked: &str, actual: &str) -> Status {
    let why = format!("UID in precondition: {asked}, UID in object meta: {actual}");
    status::conflict(kind, name, &format!("Precondition failed: {why}"))
}

/// The time of a write.
pub(crate) fn seconds_from(now: Timestamp, seconds: i64) -> Timestamp {
    now.checked_add(jiff::SignedDuration::from_secs(seconds)).unwrap_or(now)
}
