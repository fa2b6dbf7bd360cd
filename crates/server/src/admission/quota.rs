//! Resource quotas: the limits of a namespace.
//!
//! River: validation → **quota** → store → the quota's status. Usage is counted in the watch cache, not
//! in the quota's status, so it cannot drift; the status is for display.
//! Promise: concurrent creates cannot exceed a quota together. Writes that need quota are serialized
//! per namespace: each also writes the turn of the namespace, a key that no resource serves, guarded by
//! its revision. So several servers over one store need no lock: if two count at the same time, one
//! transaction fails and is counted again. The new status of the first quota is in the transaction too;
//! those of further quotas follow before the response, since a write changes at most one object of a
//! resource (see `commit`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use headwater_api::{Object, Revision, Status};
use headwater_cache::{Cache, Resource, Snapshot};
use headwater_json::{Map, Value, json};
use headwater_store::{Action, Guard, Key, Op, Write, key};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use super::Attempt;
use super::resources::{Amounts, add, amounts};
use crate::answer::status;
use crate::backend::Backend;
use crate::commit::{CommitOutcome, OWN_GROUP, commit};
use crate::kinds::registry::{Registry, Served};
use crate::lock::lock;
use crate::object::{Current, canonical, is_deleting, meta, tree};

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
    /// The turn of each namespace.
    shared_turns: Arc<Resource>,
    turns: Mutex<HashMap<String, Arc<AsyncMutex<Counted>>>>,
}

/// The cached usage of objects; unchanged objects are not parsed again.
#[derive(Default)]
pub(crate) struct Counted(HashMap<String, Known>);

/// The cached usage of one object.
struct Known {
    revision: Revision,
    /// The properties that quota scopes select by.
    essence: Value,
    usage: Amounts,
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
        let shared_turns = cache.resource(&shared_turns());
        Quotas { quotas: cache.resource(PREFIX), shared_turns, turns: Mutex::default() }
    }

    /// The quotas of a namespace. Without any quota in the cluster this is one atomic load.
    fn of(&self, cache: &Cache, namespace: &str) -> Vec<(Arc<Object>, Value)> {
        if namespace.is_empty() || self.quotas.changed() == Revision::ZERO {
            return Vec::new();
        }
        let snapshot = cache.snapshot(&self.quotas);
        let quotas = snapshot.iter(namespace, None).map(Arc::clone);
        quotas
            .filter_map(|quota| Some((Arc::clone(&quota), tree(quota.as_slice()).ok()?)))
            .collect()
    }

    /// The newest quotas of a namespace and its turn, after a consistent read: a transaction reaches the
    /// cache one kind after the other, and counting needs the quota and the object together.
    async fn seen(
        &self,
        cache: &Cache,
        namespace: &str,
    ) -> Result<(Vec<(Arc<Object>, Value)>, Op), Status> {
        // The previous write must be visible.
        cache.consistent().await.map_err(|error| status::from_cache(&error))?;
        let (quotas, turn) = (self.of(cache, namespace), self.take_turn(cache, namespace));
        cache.consistent().await.map_err(|error| status::from_cache(&error))?;
        Ok((quotas, turn))
    }

    /// The write of a namespace's turn, which fails if another counted write was first.
    fn take_turn(&self, cache: &Cache, namespace: &str) -> Op {
        let there = cache.snapshot(&self.shared_turns).get(namespace).map(|turn| turn.revision());
        let turn = json!({
            "apiVersion": "headwater/v1", "kind": "QuotaTurn", "metadata": {"name": namespace},
        });
        Op {
            key: Key::in_collection(self.shared_turns.prefix(), namespace),
            guard: there.map_or(Guard::Absent, Guard::At),
            action: Action::Put { value: canonical(&turn).into(), ttl: None },
        }
    }

    /// Deletes the turn of a namespace together with the namespace.
    pub(crate) fn drop_turn(&self, cache: &Cache, kind: &Served, name: &str) -> Option<Op> {
        if kind.prefix != NAMESPACES {
            return None;
        }
        let at = cache.snapshot(&self.shared_turns).get(name)?.revision();
        let key = Key::in_collection(self.shared_turns.prefix(), name);
        Some(Op { key, guard: Guard::At(at), action: Action::Delete })
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
        let cache = backend.cache();
        let kind = attempt.kind.storage_row();
        if self.of(cache, attempt.namespace).is_empty() || !counts(kind) {
            return Ok(QuotaReservation::default());
        }
        if attempt.old.is_some_and(is_deleting) {
            return Ok(QuotaReservation::default());
        }
        let (new, old) = (usage(kind, attempt.new), attempt.old.map(|old| usage(kind, old)));
        let mut counted = self.turn(attempt.namespace).await;
        let (quotas, shared_turn) = self.seen(cache, attempt.namespace).await?;
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
            let mut used = counted.used(backend, &quota, &scopes, attempt.namespace);
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

    /// Whether a namespace has quotas.
    pub(crate) fn limit(&self, backend: &Backend, namespace: &str) -> bool {
        !self.of(backend.cache(), namespace).is_empty()
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
            for (object, quota) in self.seen(cache, namespace).await?.0 {
                let hard = amounts(&quota["spec"]["hard"]);
                let used = counted.used(backend, &quota, &Scopes::of(&quota), namespace);
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
    fn used(
        &mut self,
        backend: &Backend,
        quota: &Value,
        scopes: &Scopes,
        namespace: &str,
    ) -> Amounts {
        let hard = amounts(&quota["spec"]["hard"]);
        let registry = backend.registry();
        let mut total = Amounts::new();
        for kind in usage::counted_kinds(&registry, &hard) {
            let cache = backend.cache();
            let snapshot = cache.snapshot(&cache.resource(&kind.prefix));
            let used = match usage::is_plain(&kind) && scopes.is_empty() {
                true => usage::of_count(&kind, snapshot.iter(namespace, None).count() as u64),
                false => self.sum(&kind, &snapshot, scopes, namespace),
            };
            add(&mut total, &used);
        }
        total.retain(|name, _| hard.contains_key(name));
        total
    }

    fn sum(
        &mut self,
        kind: &Served,
        snapshot: &Snapshot,
        scopes: &Scopes,
        namespace: &str,
    ) -> Amounts {
        let mut total = Amounts::new();
        // Drops the cached usage of deleted objects.
        self.0.retain(|key, _| {
            !key.starts_with(&kind.prefix) || snapshot.get(&key[kind.prefix.len()..]).is_some()
        });
        for object in snapshot.iter(namespace, None) {
            let key = format!("{}{}", kind.prefix, object.key());
            let is_known = |known: &Known| known.revision == object.revision();
            if !self.0.get(&key).is_some_and(is_known) {
                let Ok(value) = tree(object.as_slice()) else { continue };
                let (essence, usage) = (usage::essence(kind, &value), usage(kind, &value));
                self.0.insert(key.clone(), Known { revision: object.revision(), essence, usage });
            }
            if let Some(known) = self.0.get(&key).filter(|known| scopes.cover(kind, &known.essence))
            {
                add(&mut total, &known.usage);
            }
        }
        total
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
