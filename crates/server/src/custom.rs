//! Custom kinds: definitions become rows of the registry, and go again.
//!
//! River: a definition object is written → **custom** → status, registry, cache. Whoever writes a
//! definition settles it before the answer, so that what is acknowledged is served; a task does
//! the same for what other servers wrote, and clears away what deleted definitions leave.
//! Promise: rows, discovery and the cache's idea of a kind change together, and the watchers of a
//! kind whose definition changed end cleanly (S9.32).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use headwater_api::clock::rfc3339;
use headwater_api::json::{Value, json};
use headwater_api::structural::Schema;
use headwater_api::{Object, Status};
use headwater_cache::{Filter, Shape, Snapshot, Start, Step, Watcher};
use headwater_store::{Guard, Key};
use http::Method;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::object::{canonical, metadata, tree};
use crate::registry::{Registry, Served};
use crate::route::Resource;
use crate::server::{Call, Server};
use crate::status;
use crate::write::{Stored, put};

pub(crate) mod admit;
pub(crate) mod check;
mod cleanup;
pub(crate) mod conversion;
mod definition;
pub(crate) mod form;
mod gate;
mod names;
mod rows;

use conversion::Conversion;
use definition::{Definition, Names, Scale};
pub(crate) use gate::Gate;
use rows::Compiled;

/// Where definitions are kept.
pub(crate) const PREFIX: &str = "/registry/apiextensions.k8s.io/customresourcedefinitions/";

/// How long to wait before objects that still hold a definition are looked at again (S9.30).
const RETRY: Duration = Duration::from_secs(1);

/// What a row of a custom kind has beyond that of a built-in one.
#[derive(Debug)]
pub(crate) struct Custom {
    /// Objects are created through it.
    pub(crate) gate: Arc<Gate>,
    /// What objects of this version are held to.
    pub(crate) schema: Arc<Schema>,
    /// How stored objects are read.
    pub(crate) form: Arc<form::Stored>,
    /// How objects get from one version to another, if by a webhook.
    pub(crate) conversion: Option<Arc<Conversion>>,
    /// How the bytes of an object of this version begin.
    pub(crate) head: Vec<u8>,
    /// The fields that this version lets selectors name.
    pub(crate) fields: Vec<String>,
    /// Where the figures of a Scale are.
    pub(crate) scale: Option<Scale>,
}

/// Whether objects of this kind define other kinds.
pub(crate) fn is_definition(kind: &Served) -> bool {
    kind.prefix == PREFIX
}

/// Whether a request is about a custom kind across all namespaces and does not only read: a path
/// that is not there (S1.5).
pub(crate) fn is_out_of_scope(call: &Call, resource: &Resource) -> bool {
    let kind = &resource.kind;
    kind.custom
        && kind.namespaced
        && resource.namespace.is_empty()
        && !matches!(call.method, Method::GET | Method::HEAD)
}

/// A method that means nothing here, in the words for custom kinds (S1.7).
pub(crate) fn no_such_verb(call: &Call, resource: &Resource) -> Status {
    match call.method {
        Method::PUT | Method::PATCH => status::bad_request("name must be provided"),
        Method::POST => status::verb_not_supported(&resource.kind, "create"),
        Method::DELETE => status::verb_not_supported(&resource.kind, "delete"),
        _ => status::verb_not_supported(&resource.kind, ""),
    }
}

/// What is known of the definitions, by name.
pub(crate) struct Definitions {
    builtin: Registry,
    known: BTreeMap<String, Arc<Definition>>,
    served: BTreeMap<String, Kept>,
}

/// A definition that is served.
struct Kept {
    definition: Arc<Definition>,
    gate: Arc<Gate>,
    rows: Vec<Arc<Served>>,
}

impl Kept {
    /// Whether these rows are still what the definition says.
    fn is_current(&self, definition: &Definition) -> bool {
        let mine = &self.definition;
        mine.uid == definition.uid
            && mine.generation == definition.generation
            && mine.status.accepted_names == definition.status.accepted_names
    }
}

/// A definition to be compiled.
struct Outdated {
    definition: Arc<Definition>,
    object: Arc<Object>,
    gate: Arc<Gate>,
}

impl Outdated {
    /// Compiles the definition. One that cannot be compiled is not served.
    fn compile(&self) -> Option<Compiled> {
        let compiled = tree(self.object.as_slice()).map_err(|status| status.message);
        let compiled =
            compiled.and_then(|object| rows::compile(&self.definition, &object, &self.gate));
        match compiled {
            Ok(compiled) => Some(compiled),
            Err(why) => {
                tracing::error!(name = self.definition.name, "a definition is not served: {why}");
                None
            }
        }
    }
}

/// What has to be told to the cache after the registry changed.
#[derive(Default)]
struct News {
    registry: Option<Registry>,
    reshaped: Vec<(String, Shape)>,
    retired: Vec<String>,
    /// Definitions whose objects are to be deleted.
    closing: Vec<Arc<Gate>>,
}

impl Definitions {
    /// No definitions beside these built-in kinds.
    pub(crate) fn new(builtin: Registry) -> Definitions {
        Definitions { builtin, known: BTreeMap::new(), served: BTreeMap::new() }
    }

    /// Reads the definitions of a snapshot; those that did not change are not read again.
    fn read(&mut self, snapshot: &Snapshot) {
        self.known.retain(|name, _| snapshot.get(name).is_some());
        for object in snapshot.iter("", None) {
            let known = self.known.get(object.name());
            if known.is_some_and(|known| known.revision == object.revision()) {
                continue;
            }
            let read = tree(object.as_slice()).map_err(|status| status.message).and_then(|tree| {
                Definition::read(&tree, object.revision()).map_err(|error| error.to_string())
            });
            match read {
                Ok(definition) => {
                    self.known.insert(object.name().to_owned(), Arc::new(definition));
                }
                Err(why) => {
                    tracing::error!(name = object.name(), "a definition is unreadable: {why}")
                }
            }
        }
    }

    /// The definitions whose status has to change, and how.
    fn unsettled(&self) -> Vec<(Arc<Definition>, names::Wanted)> {
        let mut taken = names::Taken::by(self.known.values().map(|definition| &**definition));
        let mut unsettled = Vec::new();
        for definition in self.known.values() {
            if let Some(wanted) = names::wanted(definition, &taken) {
                taken.take(&definition.spec.group, &wanted.accepted);
                unsettled.push((Arc::clone(definition), wanted));
            }
        }
        unsettled
    }

    /// The definitions whose rows are not there or not current.
    fn outdated(&self, snapshot: &Snapshot) -> Vec<Outdated> {
        let established = self.known.values().filter(|known| known.is("Established"));
        established
            .filter_map(|definition| {
                let kept = self.served.get(&definition.name);
                if kept.is_some_and(|kept| kept.is_current(definition)) {
                    return None;
                }
                let gate = kept.filter(|kept| kept.definition.uid == definition.uid);
                Some(Outdated {
                    definition: Arc::clone(definition),
                    object: Arc::clone(snapshot.get(&definition.name)?),
                    gate: gate.map(|kept| Arc::clone(&kept.gate)).unwrap_or_default(),
                })
            })
            .collect()
    }

    /// Brings the rows up to date with the definitions, of which these were compiled anew.
    fn serve(&mut self, compiled: Vec<Compiled>) -> News {
        let mut news = News::default();
        let mut changed = !compiled.is_empty();
        self.served.retain(|name, kept| {
            let stays = self.known.get(name).is_some_and(|known| known.uid == kept.definition.uid);
            if !stays {
                news.retired.push(rows::prefix(&kept.definition));
                changed = true;
            }
            stays
        });
        for Compiled { definition, gate, rows, shape } in compiled {
            news.reshaped.push((rows::prefix(&definition), shape));
            self.served.insert(definition.name.clone(), Kept { definition, gate, rows });
        }
        let deleting = self.known.values().filter(|known| known.is_deleting);
        let closing = deleting.filter_map(|known| self.served.get(&known.name));
        news.closing = closing.map(|kept| Arc::clone(&kept.gate)).collect();
        news.registry = changed.then(|| self.registry());
        news
    }

    /// Built-in kinds, then custom ones by group, version and name.
    fn registry(&self) -> Registry {
        let mut rows: Vec<Arc<Served>> =
            self.served.values().flat_map(|kept| kept.rows.iter().cloned()).collect();
        rows.sort_by(|a, b| {
            let versions = rows::compare(&b.version, &a.version);
            a.group.cmp(&b.group).then(versions).then_with(|| a.plural.cmp(&b.plural))
        });
        self.builtin.with(rows)
    }
}

/// Marks a definition for deletion: its objects hold it until they are gone (S9.30).
pub(crate) fn begin_deletion(definition: &mut Value, now: Timestamp) {
    let condition = names::condition(
        "Terminating",
        "True",
        "InstanceDeletionPending",
        "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
    );
    set_condition(definition, &condition, now);
    let metadata = metadata(definition);
    metadata.insert("deletionTimestamp".into(), rfc3339(now).into());
    let finalizers = metadata.entry("finalizers").or_insert_with(|| json!([]));
    if let Value::Array(finalizers) = finalizers
        && !finalizers.iter().any(|finalizer| finalizer == definition::CLEANUP)
    {
        finalizers.push(definition::CLEANUP.into());
    }
}

impl Server {
    /// Serves what the definitions in the cache define, before the first request.
    pub(crate) fn serve_definitions(&self) -> Result<(), headwater_cache::Error> {
        let mut definitions = self
            .definitions()
            .try_lock()
            .expect("nobody else has the server yet, so nobody settles definitions");
        let snapshot = self.cache().snapshot(&self.cache().resource(PREFIX));
        definitions.read(&snapshot);
        let outdated = definitions.outdated(&snapshot);
        let news = definitions.serve(outdated.iter().filter_map(Outdated::compile).collect());
        self.announce(news.registry, &news.retired);
        news.reshaped
            .into_iter()
            .try_for_each(|(prefix, shape)| self.cache().reshape(&prefix, shape).map(drop))
    }

    /// Settles definitions after one was written. What fails now is tried again by the task that
    /// follows them.
    pub(crate) async fn after_definition(&self) {
        if let Err(status) = self.settle_definitions().await {
            tracing::warn!("definitions could not be settled: {status}");
        }
    }

    /// Settles every definition: its names, its conditions, its rows.
    pub(crate) async fn settle_definitions(&self) -> Result<(), Status> {
        let mut definitions = self.definitions().lock().await;
        let snapshot = loop {
            let consistent = self.cache().consistent().await;
            consistent.map_err(|error| status::from_cache(&error))?;
            let snapshot = self.cache().snapshot(&self.cache().resource(PREFIX));
            definitions.read(&snapshot);
            let unsettled = definitions.unsettled();
            if unsettled.is_empty() {
                break snapshot;
            }
            for (definition, wanted) in unsettled {
                self.put_definition(&definition, |tree, now| conclude(tree, &wanted, now)).await?;
            }
        };
        let outdated = definitions.outdated(&snapshot);
        let compiled =
            aside(move || outdated.iter().filter_map(Outdated::compile).collect::<Vec<_>>())
                .await?;
        let news = definitions.serve(compiled);
        self.announce(news.registry, &news.retired);
        let cache = self.cache().clone();
        let reshaped = aside(move || {
            let mut reshaped = news.reshaped.into_iter();
            reshaped.try_for_each(|(prefix, shape)| cache.reshape(&prefix, shape).map(drop))
        });
        reshaped.await?.map_err(|error| status::from_cache(&error))?;
        for gate in news.closing {
            gate.close().await;
        }
        Ok(())
    }

    /// The registry first: a watch that begins before the cache follows finds that its row is an
    /// old one.
    fn announce(&self, registry: Option<Registry>, retired: &[String]) {
        if let Some(registry) = registry {
            self.replace_registry(registry);
        }
        for prefix in retired {
            self.cache().retire(prefix);
        }
    }

    /// Writes a definition, if it is still what was read. Who forestalls us is seen next time.
    async fn put_definition(
        &self,
        definition: &Definition,
        change: impl FnOnce(&mut Value, Timestamp),
    ) -> Result<(), Status> {
        let registry = self.registry();
        let kind = registry.find("apiextensions.k8s.io", "v1", "customresourcedefinitions");
        let snapshot = self.cache().snapshot(&self.cache().resource(PREFIX));
        let (Some(kind), Some(object)) = (kind, snapshot.get(&definition.name)) else {
            return Ok(());
        };
        let mut value = tree(object.as_slice())?;
        change(&mut value, self.now());
        let key = Key::in_collection(PREFIX, &definition.name);
        let guard = Guard::At(definition.revision);
        match put(self, kind, key, guard, canonical(&value).into()).await? {
            Stored::At(_) | Stored::Forestalled(_) | Stored::Contended => Ok(()),
        }
    }

    /// Follows definitions until stopped: what other servers write, and what waits for objects to
    /// go.
    pub async fn follow_definitions(self, stop: CancellationToken) {
        let resource = self.cache().resource(PREFIX);
        let mut changes = None::<Watcher>;
        while !stop.is_cancelled() {
            // The watch begins before the state is looked at, so that nothing falls in between.
            let watcher = changes.get_or_insert_with(|| {
                self.cache().watch(&resource, &Filter::default(), Start::Now)
            });
            let waiting = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                waiting = self.look_after_definitions() => waiting,
            };
            let retry = async {
                match waiting {
                    true => tokio::time::sleep(RETRY).await,
                    false => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                step = watcher.next() => {
                    if matches!(step, Step::Closed | Step::Expired { .. } | Step::Failed(_)) {
                        changes = None;
                    }
                }
                () = retry => {}
            }
        }
    }

    /// Settles and clears away; answers whether something is left to try again.
    async fn look_after_definitions(&self) -> bool {
        let done = async {
            self.settle_definitions().await?;
            self.clean_up_definitions().await
        };
        done.await.unwrap_or_else(|status| {
            tracing::warn!("definitions could not be settled: {status}");
            true
        })
    }
}

/// Long work, away from the threads that serve.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Status> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| status::internal(format!("work on definitions failed: {error}")))
}

/// Writes what is wanted into the status of a definition.
fn conclude(object: &mut Value, wanted: &names::Wanted, now: Timestamp) {
    object["status"]["acceptedNames"] = show(&wanted.accepted);
    for condition in &wanted.conditions {
        set_condition(object, condition, now);
    }
}

fn show(names: &Names) -> Value {
    let mut shown = json!({ "plural": names.plural, "kind": names.kind });
    for (key, text) in [("singular", &names.singular), ("listKind", &names.list_kind)] {
        if !text.is_empty() {
            shown[key] = json!(text);
        }
    }
    for (key, list) in [("shortNames", &names.short_names), ("categories", &names.categories)] {
        if !list.is_empty() {
            shown[key] = json!(list);
        }
    }
    shown
}

/// Sets a condition; the time moves only when its status does.
fn set_condition(object: &mut Value, condition: &definition::Condition, now: Timestamp) {
    let conditions = &mut object["status"]["conditions"];
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let Some(list) = conditions.as_array_mut() else { return };
    let at = list.iter().position(|other| other["type"] == condition.kind.as_str());
    let before =
        at.map(|at| &list[at]).filter(|before| before["status"] == condition.status.as_str());
    let since = before.and_then(|before| before["lastTransitionTime"].as_str());
    let shown = json!({
        "type": condition.kind,
        "status": condition.status,
        "lastTransitionTime": since.map_or_else(|| rfc3339(now), str::to_owned),
        "reason": condition.reason,
        "message": condition.message,
    });
    match at {
        Some(at) => list[at] = shown,
        None => list.push(shown),
    }
}
