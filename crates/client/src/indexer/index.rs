//! Indexes: objects by the values that a function returns for them.
//!
//! River: inside the store, updated together with the objects.
//! Promise: a lookup equals a filter over the objects; empty buckets are removed; an update that
//! keeps a value does not touch its bucket; an object for which the function fails or panics is
//! missing from that index only.

use std::any::{Any, TypeId};
use std::borrow::Borrow;
use std::collections::BTreeSet;
use std::fmt;
use std::hash::Hash;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};

use crate::key::Key;
use crate::object::Cached;

use super::{Store, StoreState};

/// An index function: returns the values of an object.
pub(crate) type Values<K, V> = dyn Fn(&K) -> Vec<V> + Send + Sync;

/// The states of an object before and after a change.
pub(crate) struct IndexChange<'a, K> {
    pub(crate) key: &'a Key,
    pub(crate) old: Option<&'a Arc<K>>,
    pub(crate) new: Option<&'a Arc<K>>,
}

/// A failure of an index function.
pub(crate) struct IndexFailure {
    pub(crate) index: String,
    pub(crate) key: Key,
    pub(crate) why: String,
}

/// An index with values of any type.
pub(crate) trait AnyIndex<K>: Send + Sync + 'static {
    fn name(&self) -> &str;
    /// The function, if its type identifies it: the type of a closure without captured values does.
    fn function(&self) -> Option<TypeId>;
    /// The index after these changes; `None` if it does not change.
    fn after(
        &self,
        moved: &[IndexChange<'_, K>],
        failures: &mut Vec<IndexFailure>,
    ) -> Option<Arc<dyn AnyIndex<K>>>;
    /// The same index over other objects.
    fn over(
        &self,
        objects: &OrdMap<Key, Arc<K>>,
        failures: &mut Vec<IndexFailure>,
    ) -> Arc<dyn AnyIndex<K>>;
    fn as_any(&self) -> &dyn Any;
    fn approx_bytes(&self) -> usize;
}

/// An index with values of one type.
pub(crate) struct ValueIndex<K, V> {
    name: Arc<str>,
    function: Option<TypeId>,
    values: Arc<Values<K, V>>,
    buckets: imbl::HashMap<V, Bucket>,
}

/// The keys of one value. Many indexes have one key per value, so that case takes less memory.
#[derive(Clone)]
enum Bucket {
    One(Key),
    Many(OrdSet<Key>),
}

impl Bucket {
    fn iter(&self) -> Box<dyn Iterator<Item = &Key> + '_> {
        match self {
            Bucket::One(key) => Box::new(std::iter::once(key)),
            Bucket::Many(keys) => Box::new(keys.iter()),
        }
    }

    fn insert(&mut self, key: &Key) {
        match self {
            Bucket::One(only) if only == key => {}
            Bucket::One(only) => {
                *self = Bucket::Many(OrdSet::from_iter([only.clone(), key.clone()]));
            }
            Bucket::Many(keys) => {
                keys.insert(key.clone());
            }
        }
    }

    /// Removes a key; returns whether the bucket is empty.
    fn remove(&mut self, key: &Key) -> bool {
        match self {
            Bucket::One(only) => only == key,
            Bucket::Many(keys) => {
                keys.remove(key);
                keys.is_empty()
            }
        }
    }
}

impl<K, V> ValueIndex<K, V>
where
    K: Cached,
    V: Hash + Eq + Clone + Send + Sync + 'static,
{
    pub(crate) fn new<F, I>(name: &str, values: F) -> ValueIndex<K, V>
    where
        F: Fn(&K) -> I + Send + Sync + 'static,
        I: IntoIterator<Item = V>,
    {
        let function = (size_of::<F>() == 0).then(TypeId::of::<F>);
        let values = move |object: &K| values(object).into_iter().collect::<Vec<V>>();
        let (name, values) = (name.into(), Arc::new(values));
        ValueIndex { name, function, values, buckets: imbl::HashMap::new() }
    }

    /// The values of an object, each once; an error if the function panics.
    fn values_of(&self, object: &K) -> Result<Vec<V>, String> {
        let answer = catch_unwind(AssertUnwindSafe(|| (self.values)(object)));
        let mut values = answer.map_err(|panic| panic_text(&*panic))?;
        let mut seen = std::collections::HashSet::with_capacity(values.len());
        values.retain(|value| seen.insert(value.clone()));
        Ok(values)
    }

    fn apply(&mut self, moved: &IndexChange<'_, K>, failures: &mut Vec<IndexFailure>) -> bool {
        let old = moved.old.and_then(|old| self.values_of(old).ok()).unwrap_or_default();
        let new = match moved.new.map(|new| self.values_of(new)) {
            None => Vec::new(),
            Some(Ok(values)) => values,
            Some(Err(why)) => {
                let index = self.name.to_string();
                failures.push(IndexFailure { index, key: moved.key.clone(), why });
                Vec::new()
            }
        };
        let mut touched = false;
        for value in old.iter().filter(|value| !new.contains(value)) {
            self.remove(value, moved.key);
            touched = true;
        }
        for value in new {
            if !old.contains(&value) {
                self.insert(value, moved.key);
                touched = true;
            }
        }
        touched
    }

    fn insert(&mut self, value: V, key: &Key) {
        match self.buckets.get_mut(&value) {
            Some(bucket) => bucket.insert(key),
            None => {
                self.buckets.insert(value, Bucket::One(key.clone()));
            }
        }
    }

    fn remove(&mut self, value: &V, key: &Key) {
        if self.buckets.get_mut(value).is_some_and(|bucket| bucket.remove(key)) {
            self.buckets.remove(value);
        }
    }

    fn fork(&self) -> ValueIndex<K, V> {
        ValueIndex {
            name: Arc::clone(&self.name),
            function: self.function,
            values: Arc::clone(&self.values),
            buckets: self.buckets.clone(),
        }
    }
}

pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("panicked: {}", text.unwrap_or_else(|| "no message".to_owned()))
}

impl<K, V> AnyIndex<K> for ValueIndex<K, V>
where
    K: Cached,
    V: Hash + Eq + Clone + Send + Sync + 'static,
{
    fn name(&self) -> &str {
        &self.name
    }

    fn function(&self) -> Option<TypeId> {
        self.function
    }

    fn after(
        &self,
        moved: &[IndexChange<'_, K>],
        failures: &mut Vec<IndexFailure>,
    ) -> Option<Arc<dyn AnyIndex<K>>> {
        let mut next = self.fork();
        let mut touched = false;
        for moved in moved {
            touched |= next.apply(moved, failures);
        }
        touched.then(|| Arc::new(next) as Arc<dyn AnyIndex<K>>)
    }

    fn over(
        &self,
        objects: &OrdMap<Key, Arc<K>>,
        failures: &mut Vec<IndexFailure>,
    ) -> Arc<dyn AnyIndex<K>> {
        let mut next = self.fork();
        next.buckets = imbl::HashMap::new();
        for (key, object) in objects {
            next.apply(&IndexChange { key, old: None, new: Some(object) }, failures);
        }
        Arc::new(next)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn approx_bytes(&self) -> usize {
        // Keys are shared with the store; tree nodes are about half full.
        let keys: usize = self
            .buckets
            .values()
            .map(|bucket| match bucket {
                Bucket::One(_) => 0,
                Bucket::Many(keys) => 2 * size_of::<Key>() * keys.len() + 64,
            })
            .sum();
        keys + self.buckets.len() * 2 * (size_of::<V>() + size_of::<Bucket>())
    }
}

/// A handle to an index, with the types of its objects and values.
///
/// ```
/// # use headwater_client::{Cached, Index};
/// # use k8s_openapi::api::core::v1::Pod;
/// fn pods_on(by_node: &Index<Pod, String>, node: &str) -> usize {
///     by_node.get(node).len()
/// }
/// ```
pub struct Index<K: Cached, V> {
    store: Store<K>,
    /// Keeps the informer running while the index exists.
    keep_alive: Arc<dyn Any + Send + Sync>,
    slot: usize,
    value: PhantomData<fn() -> V>,
}

impl<K, V> Index<K, V>
where
    K: Cached,
    V: Hash + Eq + Clone + Send + Sync + 'static,
{
    pub(crate) fn new(
        store: Store<K>,
        keep_alive: Arc<dyn Any + Send + Sync>,
        slot: usize,
    ) -> Index<K, V> {
        Index { store, keep_alive, slot, value: PhantomData }
    }

    fn in_state<'a>(&self, state: &'a StoreState<K>) -> Option<&'a ValueIndex<K, V>> {
        state.indexes.get(self.slot)?.as_any().downcast_ref()
    }

    /// The objects that have a value, ordered by key.
    pub fn get<Q>(&self, value: &Q) -> Vec<Arc<K>>
    where
        V: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.objects_in(&self.store.snapshot().state, value)
    }

    pub(crate) fn objects_in<Q>(&self, state: &StoreState<K>, value: &Q) -> Vec<Arc<K>>
    where
        V: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let bucket = self.in_state(state).and_then(|index| index.buckets.get(value));
        objects_of(state, bucket)
    }

    /// The keys of the objects that have a value, in order.
    pub fn keys<Q>(&self, value: &Q) -> Vec<Key>
    where
        V: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let state = self.store.snapshot().state;
        let bucket = self.in_state(&state).and_then(|index| index.buckets.get(value));
        bucket.into_iter().flat_map(|bucket| bucket.iter().cloned()).collect()
    }

    /// All values that occur.
    pub fn values(&self) -> Vec<V> {
        let state = self.store.snapshot().state;
        self.in_state(&state).into_iter().flat_map(|index| index.buckets.keys().cloned()).collect()
    }

    /// A lookup that can be combined with others; see
    /// [`Snapshot::by_all`](super::Snapshot::by_all).
    pub fn is(&self, value: V) -> Lookup<K> {
        let slot = self.slot;
        Lookup {
            keys: Box::new(move |state| {
                let index: &ValueIndex<K, V> = state.indexes.get(slot)?.as_any().downcast_ref()?;
                index.buckets.get(&value).map(|bucket| bucket.iter().collect())
            }),
        }
    }
}

fn objects_of<K>(state: &StoreState<K>, bucket: Option<&Bucket>) -> Vec<Arc<K>> {
    let keys = bucket.into_iter().flat_map(Bucket::iter);
    keys.filter_map(|key| state.objects.get(key).cloned()).collect()
}

impl<K: Cached, V> Clone for Index<K, V> {
    fn clone(&self) -> Index<K, V> {
        Index {
            store: self.store.clone(),
            keep_alive: Arc::clone(&self.keep_alive),
            slot: self.slot,
            value: PhantomData,
        }
    }
}

impl<K: Cached, V> fmt::Debug for Index<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Index").field(&self.slot).finish()
    }
}

type KeysIn<K> = dyn for<'a> Fn(&'a StoreState<K>) -> Option<BTreeSet<&'a Key>> + Send + Sync;

/// The condition that an object has a value in an index; made by [`Index::is`].
pub struct Lookup<K> {
    keys: Box<KeysIn<K>>,
}

impl<K> Lookup<K> {
    pub(crate) fn keys_in<'a>(&self, state: &'a StoreState<K>) -> Option<BTreeSet<&'a Key>> {
        (self.keys)(state)
    }
}

impl<K> fmt::Debug for Lookup<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lookup")
    }
}
