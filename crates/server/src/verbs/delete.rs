//! DELETE of one object and of a collection.
//!
//! River: DELETE → **delete** → store. An object with a finalizer or a grace period is
//! marked, which is an update; any other object is removed (S2.40–S2.47).

use std::sync::Arc;

use bytes::Bytes;
use headwater_api::clock::rfc3339;
use headwater_api::options::{DeleteOptions, Freshness, ListOptions, Propagation, ReadAt};
use headwater_api::status::Details;
use headwater_api::{Object, Revision, Status};
use headwater_cache::Filter;
use headwater_json::Value;
use headwater_store::{Guard, Key, Record, Write};
use http::StatusCode;

use crate::admission::claims;
use crate::admission::{Removal, admit_removal, is_namespace, is_released, node_restriction};
use crate::answer::body::Response;
use crate::answer::status;
use crate::commit::{CommitOutcome, CompanionWrites, commit, remove};
use crate::kinds::custom;
use crate::kinds::registry::Served;
use crate::kinds::versions;
use crate::object::{Current, canonical, finalizers, is_deleting, meta, metadata};
use crate::object::{object_key, packed_tree, partial_tree, wire, with_metadata};
use crate::recent::PATIENCE;
use crate::request::authorize::{AccessRequest, Attributes};
use crate::request::call::Call;
use crate::request::decode;
use crate::request::route::ResourcePath;
use crate::server::Server;
use crate::verbs::encode;
use crate::verbs::newest::{self, Basis};
use crate::verbs::read::{self, ListPage};
use crate::verbs::write::seconds_from;

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// Namespaces that cannot be deleted (S10.3).
const PROTECTED: &[&str] = &["default", "kube-system", "kube-public"];

/// The default grace period of a pod, in seconds.
const POD_GRACE_SECONDS: i64 = 30;

/// DELETE on an object.
pub(crate) async fn one(
    server: &Server,
    call: &Call,
    resource: &ResourcePath,
    body: &Bytes,
) -> Result<Response, Status> {
    let options = decode::delete_options(call, &resource.kind, body)?;
    let kind = &resource.kind;
    warn_of_orphans(call, kind, &options);
    let (key, name) = (resource.key(), resource.name.as_str());
    let delete = Delete { server, call: Some(call), kind, key, name, options };
    let deleted = match delete.run().await {
        Err(status) if status.reason == status::UNREADABLE && delete.options.ignores_read_error => {
            return delete.remove_unreadable(call, resource).await;
        }
        deleted => deleted?,
    };
    let code = match deleted.is_gone {
        false if delete.options.orphan_dependents == Some(false) => StatusCode::ACCEPTED,
        _ => StatusCode::OK,
    };
    if deleted.is_gone && !kind.traits.delete_returns_object {
        let details = Details {
            name: resource.name.clone(),
            group: kind.group.to_string(),
            kind: kind.plural.to_string(),
            uid: deleted.object.uid().to_owned(),
            ..Details::default()
        };
        let success = Status::success(0, Some(details));
        return Ok(encode::success(call, code, &success));
    }
    let seen = versions::converted(kind, &deleted.object)?;
    Ok(encode::one(server, call, kind, code, &seen))
}

/// Deletes an object on behalf of another request.
pub(crate) async fn run(
    server: &Server,
    resource: &ResourcePath,
    options: DeleteOptions,
) -> Result<(), Status> {
    let (kind, name) = (&resource.kind, resource.name.as_str());
    Delete { server, call: None, kind, key: resource.key(), name, options }.run().await.map(drop)
}

/// DELETE on a collection: not atomic, and the first error ends it (S2.46).
pub(crate) async fn collection(
    server: &Server,
    call: &Call,
    resource: &ResourcePath,
    body: &Bytes,
) -> Result<Response, Status> {
    let list = ListOptions::parse(&call.query, &resource.kind, resource.kind.storage())?;
    resource.kind.check_fields(&list.fields)?;
    let options = decode::delete_options(call, &resource.kind, body)?;
    warn_of_orphans(call, &resource.kind, &options);
    let filter = Filter {
        namespace: resource.namespace.clone(),
        labels: list.labels.clone(),
        fields: list.fields.clone(),
        shard: list.shard.clone(),
    };
    let at = match &list.at {
        ReadAt::Fresh(Freshness::Any) => &ReadAt::Fresh(Freshness::Latest),
        // Collections are deleted page by page, and all pages are of one state (S3.2).
        ReadAt::Fresh(Freshness::NotOlderThan(at))
            if call.query.text("resourceVersionMatch").is_empty() =>
        {
            &ReadAt::Exact(*at)
        }
        at => at,
    };
    let snapshot = read::snapshot(server, resource, at).await?;
    let mut page = ListPage::new(snapshot, resource, filter, &list);
    let (kind, objects) = (&resource.kind, page.selection.read_all().to_vec());
    // The response is built first: if that fails, nothing is deleted.
    page.convert(server, kind).await?;
    for object in &objects {
        let key = object_key(object.namespace(), object.name());
        let options = options.clone();
        let call = Some(call);
        match (Delete { server, call, kind, key, name: object.name(), options }).run().await {
            Ok(_) => {}
            Err(status) if status.code == 404 => {} // somebody else was faster
            Err(status) => return Err(status),
        }
    }
    Ok(encode::list(server, call, kind, page, None).await)
}

/// Deletes an object whose kind is being removed; a missing object is a success.
pub(crate) async fn forget(
    server: &Server,
    kind: &Served,
    object: Arc<Object>,
) -> Result<(), Status> {
    let key = object.key().to_owned();
    let options = DeleteOptions::default();
    let call = None;
    match (Delete { server, call, kind, key, name: object.name(), options }).run().await {
        Err(status) if status.code != 404 => Err(status),
        _ => Ok(()),
    }
}

/// An object to delete.
struct Target {
    /// Complete, or only what a deletion reads.
    current: Current,
    /// The stored bytes, if only their metadata is parsed.
    bytes: Option<Bytes>,
}

impl Target {
    /// The bytes to store for a changed value.
    fn print(&self, value: &Value) -> Bytes {
        match &self.bytes {
            Some(bytes) => with_metadata(bytes, value).into(),
            None => canonical(value).into(),
        }
    }
}

/// What the deletion of a pod reads besides its metadata.
const READ: [[&str; 2]; 3] =
    [["spec", "nodeName"], ["spec", "terminationGracePeriodSeconds"], ["status", "phase"]];

/// One deletion.
struct Delete<'a> {
    server: &'a Server,
    /// The request; `None` if the server itself deletes.
    call: Option<&'a Call>,
    kind: &'a Served,
    key: String,
    name: &'a str,
    options: DeleteOptions,
}

/// The outcome of a deletion.
struct Deleted {
    object: Object,
    is_gone: bool,
}

/// The outcome of one attempt.
enum Tried {
    Done(Deleted),
    /// Nothing is to be stored.
    Unchanged(Deleted),
    /// Another writer was first.
    Again {
        actual: Option<Record>,
        /// The object with the mark of this deletion, if that is stored already.
        marked: Option<Object>,
    },
}

/// The decision about the current object.
enum Plan {
    /// It is already marked, and the marks do not change.
    Keep,
    /// Mark it; it stays until its finalizers are removed and its grace period ends.
    Mark(Value),
    /// Remove it.
    Remove,
    /// Mark it, then remove it at once: watchers see both (S2.45).
    MarkAndRemove(Value),
}

impl Delete<'_> {
    /// Removes an object that cannot be read, whatever its finalizers are.
    async fn remove_unreadable(
        &self,
        call: &Call,
        resource: &ResourcePath,
    ) -> Result<Response, Status> {
        let request = AccessRequest {
            version: &self.kind.version,
            ..AccessRequest::about(Attributes::Resource {
                verb: "unsafe-delete-ignore-read-errors",
                group: &self.kind.group,
                resource: &self.kind.plural,
                subresource: "",
                namespace: &resource.namespace,
                name: self.name,
            })
        };
        self.server.access().authorize(&call.identity, &request).await?;
        let (store, key) = (self.server.store(), self.store_key());
        let record = store.get(&key).await.map_err(|error| status::from_store(&error))?;
        let record = record.ok_or_else(|| status::not_found(self.kind, self.name))?;
        match remove(store, key, record.revision).await? {
            CommitOutcome::Stored(_) => {
                tracing::warn!(key = %record.key, "an object that could not be read was removed");
                Ok(encode::success(call, StatusCode::OK, &Status::success(0, None)))
            }
            CommitOutcome::Conflict(_) | CommitOutcome::Contended(_) => {
                Err(status::modified(self.kind, self.name))
            }
        }
    }

    async fn run(&self) -> Result<Deleted, Status> {
        if is_namespace(self.kind) && PROTECTED.contains(&self.name) {
            let why = "this namespace may not be deleted";
            return Err(status::forbidden("", "namespaces", self.name, why));
        }
        let mut basis = self.find().await?;
        // The object with the mark of this deletion, which is stored before it is removed.
        let mut marked: Option<Object> = None;
        loop {
            let state = match (&basis.current, marked.take()) {
                (Some(state), None) => state,
                (Some(state), Some(own)) if meta(&state.current.value, "uid") == own.uid() => {
                    marked = Some(own);
                    state
                }
                // Another client finished the deletion that the mark began.
                (_, Some(object)) => return Ok(Deleted { object, is_gone: true }),
                (None, None) => return Err(status::not_found(self.kind, self.name)),
            };
            let outcome = match self.check_and_attempt(state, marked.is_some()).await {
                Ok(Tried::Done(deleted)) => return Ok(deleted),
                Ok(Tried::Again { actual, marked: own }) => {
                    let read = |record| versions::read_stored(self.kind, record);
                    let actual = actual.as_ref().map(read).transpose()?;
                    let revision = actual.as_ref().map(|current| current.revision);
                    let target = actual.map(|current| Target { current, bytes: None });
                    basis = Basis::newest(target, revision);
                    marked = own.or(marked);
                    continue;
                }
                Ok(Tried::Unchanged(deleted)) => Ok(deleted),
                Err(status) => Err(status),
            };
            if basis.is_newest {
                return outcome;
            }
            let newest = self.find_in_store().await?;
            if newest.revision == basis.revision {
                return outcome;
            }
            basis = newest;
        }
    }

    async fn find(&self) -> Result<Basis<Target>, Status> {
        let cache = self.server.cache();
        cache.settle(PATIENCE).await;
        let snapshot = cache.snapshot(&cache.resource(&self.kind.prefix));
        match snapshot.get(&self.key) {
            Some(object) => Ok(Basis::cached(self.read(object)?, object.revision())),
            None => self.find_in_store().await,
        }
    }

    async fn find_in_store(&self) -> Result<Basis<Target>, Status> {
        let object = newest::stored(self.server, self.kind, &self.key).await?;
        let target = object.as_ref().map(|object| self.read(object)).transpose()?;
        Ok(Basis::newest(target, object.map(|object| object.revision())))
    }

    async fn check_and_attempt(&self, target: &Target, is_marked: bool) -> Result<Tried, Status> {
        // The mark changed the resourceVersion: preconditions were checked before it.
        if !is_marked {
            self.check_preconditions(&target.current)?;
        }
        self.admit(target).await?;
        self.attempt(target).await
    }

    /// Reads a cached object; only its metadata, if the deletion of its kind concerns nothing else.
    fn read(&self, object: &Object) -> Result<Target, Status> {
        let kind = self.kind;
        let is_changed = is_namespace(kind) || custom::is_definition(kind);
        if is_changed || claims::is_service(kind) || kind.conversion().is_some() {
            return Ok(Target { current: Current::of(object)?, bytes: None });
        }
        let fields = if kind.traits.graceful { &READ[..] } else { &[] };
        let value = partial_tree(object.as_slice(), fields)?;
        let current = Current { value, revision: object.revision() };
        Ok(Target { current, bytes: Some(object.bytes()) })
    }

    async fn admit(&self, target: &Target) -> Result<(), Status> {
        let Some(call) = self.call else { return Ok(()) };
        let kind = (&*self.kind.group, &*self.kind.plural);
        if call.identity.node().is_some() {
            let whole = target.bytes.as_ref().map(|bytes| packed_tree(bytes)).transpose()?;
            let object = whole.as_ref().unwrap_or(&target.current.value);
            node_restriction::check_deletion(&call.identity, kind, object)?;
        }
        let admission = self.server.admission();
        if admission.extensions.current().is_none() {
            return Ok(());
        }
        let whole = target.bytes.as_ref().map(|bytes| packed_tree(bytes)).transpose()?;
        let object = whole.as_ref().unwrap_or(&target.current.value);
        let removal = Removal {
            kind: self.kind,
            namespace: meta(object, "namespace"),
            name: self.name,
            object,
            dry_run: self.options.dry_run,
        };
        admit_removal(self.server, admission, call, removal).await
    }

    async fn attempt(&self, target: &Target) -> Result<Tried, Status> {
        let current = &target.current;
        let plan = self.plan(&current.value);
        let is_gone = matches!(plan, Plan::Remove | Plan::MarkAndRemove(_));
        let (value, marks) = match plan {
            Plan::Keep => {
                let bytes = target.print(&current.value);
                let shown = self.shown(&current.value, bytes, false).await?;
                let object = wire(&shown, current.revision)?;
                return Ok(Tried::Unchanged(Deleted { object, is_gone: false }));
            }
            Plan::Remove => (current.value.clone(), false),
            Plan::Mark(value) | Plan::MarkAndRemove(value) => (value, true),
        };
        let bytes = target.print(&value);
        // Before the commit: if the response cannot be built, nothing is deleted.
        let shown = self.shown(&value, bytes.clone(), is_gone).await?;
        if self.options.dry_run {
            let object = wire(&shown, current.revision)?;
            return Ok(Tried::Unchanged(Deleted { object, is_gone }));
        }
        let mut marked = None;
        let mut revision = current.revision;
        if marks {
            let guard = Guard::At(revision);
            let marking = CompanionWrites::default();
            let marking = marking.put(self.kind, self.store_key(), guard, bytes);
            match self.commit(marking).await? {
                CommitOutcome::Stored(at) => revision = at,
                CommitOutcome::Conflict(actual) => {
                    return Ok(Tried::Again { actual, marked: None });
                }
                CommitOutcome::Contended(key) => return Err(status::unexpected_conflict(&key)),
            }
            let object = wire(&shown, revision)?;
            if !is_gone {
                return Ok(Tried::Done(Deleted { object, is_gone }));
            }
            marked = Some(object);
        }
        match (self.remove(current, revision).await?, marked) {
            (CommitOutcome::Stored(removed), _) => self.done(&shown, removed, is_gone),
            (CommitOutcome::Conflict(actual), marked) => Ok(Tried::Again { actual, marked }),
            (CommitOutcome::Contended(key), _) => Err(status::unexpected_conflict(&key)),
        }
    }

    /// The object of the response, of which `bytes` are the stored form; converted by webhook if the
    /// kind has one. A removed object is not shown, and deletions of the server itself have no
    /// response.
    async fn shown(&self, value: &Value, bytes: Bytes, is_gone: bool) -> Result<Bytes, Status> {
        if self.kind.conversion().is_none() || is_gone || self.call.is_none() {
            return Ok(bytes);
        }
        let converted = versions::tree(self.server.converter(), self.kind, value.clone()).await?;
        Ok(canonical(&converted).into())
    }

    /// Removes the object with its companions.
    async fn remove(&self, current: &Current, at: Revision) -> Result<CommitOutcome, Status> {
        loop {
            let current = Some(&current.value);
            let mut beside = claims::beside(self.server, self.kind, current, None).await?;
            let quotas = &self.server.admission().quotas;
            beside.extend(quotas.drop_turn(self.server, self.kind, self.name).await?);
            let write = CompanionWrites(beside).remove(self.store_key(), at);
            match self.commit(write).await? {
                CommitOutcome::Contended(_) => {}
                stored => return Ok(stored),
            }
        }
    }

    /// Commits a write of the request, or of the server itself.
    async fn commit(&self, write: Write) -> Result<CommitOutcome, Status> {
        match self.call {
            Some(call) => call.commit(self.server.store(), write).await,
            None => commit(self.server.store(), write).await,
        }
    }

    fn done(&self, shown: &[u8], revision: Revision, is_gone: bool) -> Result<Tried, Status> {
        let object = wire(shown, revision)?;
        Ok(Tried::Done(Deleted { object, is_gone }))
    }

    fn store_key(&self) -> Key {
        Key::in_collection(&self.kind.prefix, &self.key)
    }

    fn check_preconditions(&self, current: &Current) -> Result<(), Status> {
        let conflict = |why: String| {
            let kind = &self.kind.kind.kind;
            let name = self.name;
            let message = format!("Operation cannot be fulfilled on {kind} \"{name}\": {why}");
            let details = Details {
                name: name.into(),
                group: self.kind.group.to_string(),
                kind: kind.to_string(),
                ..Details::default()
            };
            Status::failure(409, "Conflict", message).with_details(details)
        };
        let wanted = &self.options.preconditions;
        let uid = meta(&current.value, "uid");
        if let Some(asked) = wanted.uid.as_deref().filter(|asked| *asked != uid) {
            return Err(conflict(format!(
                "the UID in the precondition ({asked}) does not match the UID in record ({uid}). The object might have been deleted and then recreated"
            )));
        }
        let version = current.revision.to_string();
        let asked = wanted.resource_version.as_deref();
        if let Some(asked) = asked.filter(|asked| *asked != version) {
            return Err(conflict(format!(
                "the ResourceVersion in the precondition ({asked}) does not match the ResourceVersion in record ({version}). The object might have been modified"
            )));
        }
        Ok(())
    }

    fn plan(&self, current: &Value) -> Plan {
        let mut value = current.clone();
        self.propagate(&mut value);
        if self.kind.traits.graceful {
            return self.plan_graceful(current, value);
        }
        if is_deleting(current) {
            return match (is_released(self.kind, &value), value == *current) {
                (true, _) => Plan::Remove,
                (false, true) => Plan::Keep,
                (false, false) => Plan::Mark(value),
            };
        }
        self.stamp(&mut value, 0);
        if is_released(self.kind, &value) { Plan::Remove } else { Plan::Mark(value) }
    }

    /// Pods: the period of the options, else of the pod; an unscheduled pod is removed at once.
    fn plan_graceful(&self, current: &Value, mut value: Value) -> Plan {
        let phase = current["status"]["phase"].as_str().unwrap_or_default();
        let idle = current["spec"]["nodeName"].as_str().unwrap_or_default().is_empty()
            || matches!(phase, "Succeeded" | "Failed");
        let own = current["spec"]["terminationGracePeriodSeconds"].as_i64();
        let asked = self.options.grace_period_seconds;
        let period = match asked.or(own).unwrap_or(POD_GRACE_SECONDS) {
            _ if idle => 0,
            negative if negative < 0 => 1,
            period => period,
        };
        if is_deleting(current) {
            let before = current["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
            // Only an explicit, shorter period changes a deletion in progress.
            if period < before && asked.is_some() {
                self.shorten(&mut value, before, period);
            } else if before > 0 && value == *current {
                return Plan::Keep;
            }
        } else {
            self.stamp(&mut value, period);
        }
        match (is_released(self.kind, &value), value == *current) {
            (true, true) => Plan::Remove,
            (true, false) => Plan::MarkAndRemove(value),
            (false, true) => Plan::Keep,
            (false, false) => Plan::Mark(value),
        }
    }

    /// Sets the deletion timestamp and the grace period.
    fn stamp(&self, value: &mut Value, period: i64) {
        if custom::is_definition(self.kind) {
            return custom::conditions::begin_deletion(value, self.server.now());
        }
        let when = rfc3339(seconds_from(self.server.now(), period));
        let is_namespace = is_namespace(self.kind);
        if is_namespace {
            value["status"]["phase"] = "Terminating".into();
        }
        let metadata = metadata(value);
        metadata.insert("deletionTimestamp".into(), when.into());
        if !is_namespace {
            metadata.insert("deletionGracePeriodSeconds".into(), period.into());
        }
        let generation = metadata.get("generation").and_then(Value::as_i64).unwrap_or(0);
        if generation > 0 {
            metadata.insert("generation".into(), (generation + 1).into());
        }
    }

    fn shorten(&self, value: &mut Value, before: i64, period: i64) {
        let metadata = metadata(value);
        let when = metadata.get("deletionTimestamp").and_then(Value::as_str);
        let when = when.and_then(|text| text.parse().ok()).unwrap_or_else(|| self.server.now());
        let when = rfc3339(seconds_from(when, period - before));
        metadata.insert("deletionTimestamp".into(), when.into());
        metadata.insert("deletionGracePeriodSeconds".into(), period.into());
    }

    /// Sets the finalizers of the garbage collector that the policy requires (S2.44).
    fn propagate(&self, value: &mut Value) {
        if self.kind.traits.no_garbage_collection {
            return;
        }
        let policy = match (self.options.propagation, self.options.orphan_dependents) {
            (Some(policy), _) => policy,
            (None, Some(true)) => Propagation::Orphan,
            (None, Some(false)) => Propagation::Background,
            (None, None) if self.kind.traits.orphans && !is_decided(value) => Propagation::Orphan,
            (None, None) => return, // the finalizers that are there decide
        };
        let wanted = match policy {
            Propagation::Orphan => Some(ORPHAN),
            Propagation::Foreground => Some(FOREGROUND),
            Propagation::Background => None,
        };
        let mut list: Vec<String> = finalizers(value)
            .into_iter()
            .filter(|finalizer| ![ORPHAN, FOREGROUND].contains(finalizer))
            .map(str::to_owned)
            .collect();
        list.extend(wanted.map(str::to_owned));
        let metadata = metadata(value);
        if list.is_empty() {
            metadata.remove("finalizers");
        } else {
            metadata.insert("finalizers".into(), list.into());
        }
    }
}

/// Warns that deleting a Job orphans its pods by default.
fn warn_of_orphans(call: &Call, kind: &Served, options: &DeleteOptions) {
    let is_silent = options.propagation.is_none() && options.orphan_dependents.is_none();
    if is_silent && kind.traits.orphans && kind.plural == "jobs" {
        call.warn(["child pods are preserved by default when jobs are deleted; set \
             propagationPolicy=Background to remove them or set propagationPolicy=Orphan to \
             suppress this warning"]);
    }
}

/// Whether a finalizer of the garbage collector already decides about dependents.
fn is_decided(value: &Value) -> bool {
    finalizers(value).iter().any(|finalizer| [ORPHAN, FOREGROUND].contains(finalizer))
}
