//! Resource quotas: the limits of a namespace.
//!
//! River: validation → **quota** → store → the quota's status. Usage is counted in the watch cache, or in
//! the store while the cache is behind, not in the quota's status, so it cannot drift; the status is for
//! display.
//! Promise: concurrent creates cannot exceed a quota together. Writes that need quota are serialized
//! per namespace: each also writes the turn of the namespace, a key that no resource serves, guarded by
//! its revision. So several servers over one store need no lock: if two count at the same time, one
//! transaction fails and is counted again. The new status of the first quota is in the transaction too;
//! those of further quotas follow before the response, since a write changes at most one object of a
//! resource (see `commit`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use headwater_api::{Object, Revision, Status};
use headwater_cache::{Cache, Resource};
use headwater_json::{Map, Value, json};
use headwater_store::{Action, Guard, Key, Op, Record, Write, key};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use super::Attempt;
use super::resources::{Amounts, add, amounts};
use crate::answer::status;
use crate::backend::Backend;
use crate::commit::{CommitOutcome, OWN_GROUP, commit};
use crate::kinds::registry::{Registry, Served};
use crate::lock::lock;
use crate::object::{Current, canonical, is_deleting, meta, tree};
use crate::recent::{Recent, RecentPages};

mod usage;

use usage::{Scopes, counts, usage};

const PREFIX: &str = "/registry/core/resourcequotas/";

const NAMESPACES: &str = "/registry/core/namespaces/";

/// The key prefix of the turns of namespaces.
fn shared_turns() -> String {
    key::collection(OWN_GROUP, "quotaturns")
}

/// The maximum number of namespaces with cached usage; beyond it, idle ones are dropped.
const NAMESPACES_MAX: usize = 1024;

/// Serializes the writers of each namespace with quotas.
pub(crate) struct Quotas {
    quotas: Arc<Resource>,
    turns: Mutex<HashMap<String, Arc<AsyncMutex<Counted>>>>,
}

/// The cached usage of objects, by kind and name; unchanged objects are not parsed again.
#[derive(Default)]
pub(crate) struct Counted(HashMap<String, HashMap<String, Known>>);

/// The cached usage of one object.
struct Known {
    revision: Revision,
    /// The properties that quota scopes select by.
    essence: Value,
    usage: Amounts,
}

/// What a write in a namespace with quotas is counted with.
struct Counting<'a> {
    quotas: Vec<(Arc<Object>, Value)>,
    /// The write of the namespace's turn.
    turn: Op,
    recent: Recent<'a>,
}

/// The lock of a namespace, if quotas apply: while it is held, no other write is counted.
#[derive(Default)]
pub(crate) struct QuotaReservation {
    _turn: Option<OwnedMutexGuard<Counted>>,
    /// The turn and the new status of the first quota, to be committed with the object.
    beside: Vec<Op>,
}

impl QuotaReservation {
    /// The companion writes of the object.
    pub(crate) fn take_beside(&mut self) -> Vec<Op> {
        std::mem::take(&mut self.beside)
    }
}

impl Quotas {
    pub(crate) fn new(cache: &Cache) -> Quotas {
        Quotas { quotas: cache.resource(PREFIX), turns: Mutex::default() }
    }

    /// The newest quotas of a namespace, its turn, and where to count: a transaction reaches the cache
    /// one kind after the other, and counting needs the quota and the object together. A write that is
    /// counted after the turn was read makes the turn's guard fail.
    async fn seen<'a>(&self, cache: &'a Cache, namespace: &str) -> Result<Counting<'a>, Status> {
        // The previous write must be visible.
        let recent = Recent::of(cache).await?;
        let turn = take_turn(&recent, namespace).await?;
        let mut quotas = Vec::new();
        let mut pages = recent.objects(PREFIX, namespace);
        while let Some(objects) = pages.next().await? {
            let read = |quota: Arc<Object>| tree(quota.as_slice()).ok().map(|tree| (quota, tree));
            quotas.extend(objects.into_iter().filter_map(read));
        }
        Ok(Counting { quotas, turn, recent: Recent::of(cache).await? })
    }

    /// Deletes the turn of a namespace together with the namespace.
    pub(crate) async fn drop_turn(
        &self,
        backend: &Backend,
        kind: &Served,
        name: &str,
    ) -> Result<Option<Op>, Status> {
        if kind.prefix != NAMESPACES {
            return Ok(None);
        }
        let key = Key::in_collection(&shared_turns(), name);
        let record = backend.store().get(&key).await;
        let record = record.map_err(|error| status::from_store(&error))?;
        let guard = |record: Record| Guard::At(record.revision);
        Ok(record.map(guard).map(|guard| Op { key, guard, action: Action::Delete }))
    }

    async fn turn(&self, namespace: &str) -> OwnedMutexGuard<Counted> {
        let turn = {
            let mut turns = lock(&self.turns);
            if turns.len() >= NAMESPACES_MAX {
                turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            }
            Arc::clone(turns.entry(namespace.to_owned()).or_default())
        };
        turn.lock_owned().await
    }

    /// Rejects a write that would exceed a quota. The caller holds the lock until the object is stored.
    pub(super) async fn admit(
        &self,
        backend: &Backend,
        attempt: &Attempt<'_>,
    ) -> Result<QuotaReservation, Status> {
        let kind = attempt.kind.storage_row();
        if !self.limit(backend, attempt.namespace) || !counts(kind) {
            return Ok(QuotaReservation::default());
        }
        if attempt.old.is_some_and(is_deleting) {
            return Ok(QuotaReservation::default());
        }
        let (new, old) = (usage(kind, attempt.new), attempt.old.map(|old| usage(kind, old)));
        let mut counted = self.turn(attempt.namespace).await;
        let Counting { quotas, turn: shared_turn, recent } =
            self.seen(backend.cache(), attempt.namespace).await?;
        let mut beside = Vec::new();
        for (object, quota) in quotas {
            let scopes = Scopes::of(&quota);
            if !scopes.cover(kind, attempt.new) {
                continue;
            }
            let before =
                old.as_ref().filter(|_| attempt.old.is_some_and(|old| scopes.cover(kind, old)));
            let hard = amounts(&quota["spec"]["hard"]);
            let asked = difference(&new, before, &hard);
            if before.is_none() {
                usage::constraints(kind, attempt.new, &hard).map_err(|why| {
                    refusal(attempt, &format!("failed quota: {}: {why}", meta(&quota, "name")))
                })?;
            }
            if asked.is_empty() {
                continue;
            }
            let mut used =
                counted.used(backend, &recent, &quota, &scopes, attempt.namespace).await?;
            check(attempt, &quota, &hard, &used, &asked)?;
            add(&mut used, &asked);
            if beside.is_empty() {
                beside.push(shared_turn.clone());
                if kind.prefix != PREFIX {
                    beside.push(counting(&object, standing(&quota, &hard, &used))?);
                }
            }
        }
        let turn = (!beside.is_empty()).then_some(counted);
        Ok(QuotaReservation { _turn: turn, beside })
    }

    /// Whether a namespace has quotas. Without any quota in the cluster this is one atomic load.
    pub(crate) fn limit(&self, backend: &Backend, namespace: &str) -> bool {
        !namespace.is_empty()
            && self.quotas.changed() != Revision::ZERO
            && backend.cache().snapshot(&self.quotas).count(namespace, None) > 0
    }

    /// Whether a write to an object of this kind may change the status of a quota.
    pub(crate) fn concern(&self, backend: &Backend, kind: &Served, namespace: &str) -> bool {
        // The cache may not have a quota that was written a moment ago.
        let writes_quota = kind.prefix == PREFIX && !namespace.is_empty();
        writes_quota || self.limit(backend, namespace)
    }

    /// Updates the status of the quotas of a namespace.
    pub(crate) async fn settle(&self, backend: &Backend, namespace: &str) {
        if let Err(status) = self.settle_all(backend, namespace).await {
            tracing::warn!(namespace, "cannot update the status of ResourceQuotas: {status}");
        }
    }

    async fn settle_all(&self, backend: &Backend, namespace: &str) -> Result<(), Status> {
        let mut counted = self.turn(namespace).await;
        let cache = backend.cache();
        loop {
            let mut forestalled = false;
            let Counting { quotas, recent, .. } = self.seen(cache, namespace).await?;
            for (object, quota) in quotas {
                let hard = amounts(&quota["spec"]["hard"]);
                let scopes = Scopes::of(&quota);
                let used = counted.used(backend, &recent, &quota, &scopes, namespace).await?;
                let status = standing(&quota, &hard, &used);
                if quota["status"] != status {
                    forestalled |= write(backend, &object, status).await?;
                }
            }
            if !forestalled {
                return Ok(());
            }
        }
    }
}

/// The write of a namespace's turn, which fails if another counted write was first.
async fn take_turn(recent: &Recent<'_>, namespace: &str) -> Result<Op, Status> {
    let there = recent.revision(&shared_turns(), namespace).await?;
    let turn = json!({
        "apiVersion": "headwater/v1", "kind": "QuotaTurn", "metadata": {"name": namespace},
    });
    Ok(Op {
        key: Key::in_collection(&shared_turns(), namespace),
        guard: there.map_or(Guard::Absent, Guard::At),
        action: Action::Put { value: canonical(&turn).into(), ttl: None },
    })
}

/// Writes the status of a quota; returns whether the write conflicted.
async fn write(backend: &Backend, quota: &Object, status: Value) -> Result<bool, Status> {
    let write = Write { ops: vec![counting(quota, status)?] };
    Ok(matches!(commit(backend.store(), write).await?, CommitOutcome::Conflict(_)))
}

/// The write of a quota's status, guarded by its revision.
fn counting(quota: &Object, status: Value) -> Result<Op, Status> {
    let Current { mut value, revision } = Current::of(quota)?;
    value["status"] = status;
    let action = Action::Put { value: canonical(&value).into(), ttl: None };
    Ok(Op { key: Key::in_collection(PREFIX, quota.key()), guard: Guard::At(revision), action })
}

/// The status of a quota.
fn standing(quota: &Value, hard: &Amounts, used: &Amounts) -> Value {
    json!({
        "hard": quota["spec"]["hard"].as_object().cloned().unwrap_or_default(),
        "used": shown(hard, used),
    })
}

/// The usage of every limited resource, including zero.
fn shown(hard: &Amounts, used: &Amounts) -> Map {
    let zero = headwater_api::quantity::Quantity::count(0);
    let shown = |name: &String| used.get(name).unwrap_or(&zero).to_string();
    hard.keys().map(|name| (name.clone(), shown(name))).collect()
}

/// The additional usage of limited resources.
fn difference(new: &Amounts, old: Option<&Amounts>, hard: &Amounts) -> Amounts {
    let mut asked = Amounts::new();
    for (name, amount) in new.iter().filter(|(name, _)| hard.contains_key(*name)) {
        let more = match old.and_then(|old| old.get(name)) {
            Some(before) => amount.minus(*before),
            None => *amount,
        };
        if more.nano() > 0 {
            asked.insert(name.clone(), more);
        }
    }
    asked
}

fn check(
    attempt: &Attempt<'_>,
    quota: &Value,
    hard: &Amounts,
    used: &Amounts,
    asked: &Amounts,
) -> Result<(), Status> {
    let mut total = used.clone();
    add(&mut total, asked);
    let exceeded: Vec<&String> =
        asked.keys().filter(|name| total[*name].nano() > hard[*name].nano()).collect();
    if exceeded.is_empty() || attempt.subresource == "status" {
        return Ok(());
    }
    let zero = headwater_api::quantity::Quantity::count(0);
    let list = |from: &Amounts| {
        let pair = |name: &&String| format!("{name}={}", from.get(*name).unwrap_or(&zero));
        exceeded.iter().map(pair).collect::<Vec<_>>().join(",")
    };
    let why = format!(
        "exceeded quota: {}, requested: {}, used: {}, limited: {}",
        meta(quota, "name"),
        list(asked),
        list(used),
        list(hard)
    );
    Err(refusal(attempt, &why))
}

fn refusal(attempt: &Attempt<'_>, why: &str) -> Status {
    let kind = attempt.kind;
    status::forbidden(&kind.group, &kind.plural, meta(attempt.new, "name"), why)
}

impl Counted {
    /// The usage of a quota by the objects of a namespace.
    async fn used(
        &mut self,
        backend: &Backend,
        recent: &Recent<'_>,
        quota: &Value,
        scopes: &Scopes,
        namespace: &str,
    ) -> Result<Amounts, Status> {
        let hard = amounts(&quota["spec"]["hard"]);
        let registry = backend.registry();
        let mut total = Amounts::new();
        for kind in usage::counted_kinds(&registry, &hard) {
            let objects = recent.objects(&kind.prefix, namespace);
            let used = match usage::is_plain(&kind) && scopes.is_empty() {
                true => usage::of_count(&kind, objects.count().await? as u64),
                false => self.sum(&kind, objects, scopes).await?,
            };
            add(&mut total, &used);
        }
        total.retain(|name, _| hard.contains_key(name));
        Ok(total)
    }

    async fn sum(
        &mut self,
        kind: &Served,
        mut pages: RecentPages<'_>,
        scopes: &Scopes,
    ) -> Result<Amounts, Status> {
        let mut total = Amounts::new();
        // The usage of deleted objects is dropped.
        let mut before = self.0.remove(&kind.prefix).unwrap_or_default();
        let now = self.0.entry(kind.prefix.to_string()).or_default();
        while let Some(objects) = pages.next().await? {
            for object in objects {
                let revision = object.revision();
                let known = before.remove_entry(object.key());
                let (key, known) = match known.filter(|(_, known)| known.revision == revision) {
                    Some(known) => known,
                    None => {
                        let Ok(value) = tree(object.as_slice()) else { continue };
                        let (essence, usage) = (usage::essence(kind, &value), usage(kind, &value));
                        (object.key().to_owned(), Known { revision, essence, usage })
                    }
                };
                if scopes.cover(kind, &known.essence) {
                    add(&mut total, &known.usage);
                }
                now.insert(key, known);
            }
        }
        Ok(total)
    }
}

/// The row of a kind by name.
pub(super) fn row<'a>(
    registry: &'a Registry,
    group: &str,
    plural: &str,
) -> Option<&'a Arc<Served>> {
    let mut rows = registry.kinds().iter().filter(|row| row.group == group && row.plural == plural);
    rows.find(|row| row.stored.is_none())
}
