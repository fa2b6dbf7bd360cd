//! Predicates: which changes enqueue a key.
//!
//! River: subscriber → **predicate** → work queue.
//! Promise: predicates compare the two states of a change and have no state of their own. They
//! limit what is enqueued, not what is cached: to cache less, use selectors and projections of the
//! informer.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::change::{Change, Gone};
use crate::key::Key;
use crate::object::Cached;
use crate::selector::Selector;

/// The input of a predicate.
pub enum ChangeEvent<'a, K> {
    /// An object was added.
    Added(&'a K),
    /// An object changed.
    Updated {
        /// The state before.
        old: &'a K,
        /// The state now.
        new: &'a K,
    },
    /// An object was deleted.
    Deleted(&'a Gone<K>),
    /// [`Requests`](crate::controller::Requests) enqueues a key.
    Manual(&'a Key),
}

impl<'a, K> ChangeEvent<'a, K> {
    pub(crate) fn of(change: &'a Change<K>) -> Option<ChangeEvent<'a, K>> {
        match change {
            Change::Added { object, .. } => Some(ChangeEvent::Added(object)),
            Change::Updated { old, new } => Some(ChangeEvent::Updated { old, new }),
            Change::Deleted(gone) => Some(ChangeEvent::Deleted(gone)),
            Change::Synced => None,
        }
    }
}

impl<K> fmt::Debug for ChangeEvent<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ChangeEvent::Added(_) => "Added",
            ChangeEvent::Updated { .. } => "Updated",
            ChangeEvent::Deleted(_) => "Deleted",
            ChangeEvent::Manual(_) => "Manual",
        })
    }
}

/// Decides which changes enqueue a key. It limits what is enqueued, not what is cached.
///
/// ```
/// use headwater_client::predicate::{Predicate, generation_changed, labels_changed};
/// use k8s_openapi::api::core::v1::Pod;
///
/// let spec_or_labels: Predicate<Pod> = generation_changed().or(labels_changed());
/// ```
pub struct Predicate<K> {
    passes: Arc<Passes<K>>,
}

type Passes<K> = dyn Fn(&ChangeEvent<'_, K>) -> bool + Send + Sync;

impl<K: Cached> Predicate<K> {
    /// A predicate from a function.
    pub fn new(
        passes: impl Fn(&ChangeEvent<'_, K>) -> bool + Send + Sync + 'static,
    ) -> Predicate<K> {
        Predicate { passes: Arc::new(passes) }
    }

    /// Passes events that both pass.
    #[must_use]
    pub(crate) fn and(self, other: Predicate<K>) -> Predicate<K> {
        Predicate::new(move |event| (self.passes)(event) && (other.passes)(event))
    }

    /// Passes events that either passes.
    #[must_use]
    pub fn or(self, other: Predicate<K>) -> Predicate<K> {
        Predicate::new(move |event| (self.passes)(event) || (other.passes)(event))
    }

    /// Whether an event passes. If the predicate panics, the event passes: an unnecessary reconcile
    /// is better than a missing one.
    pub(crate) fn passes(&self, event: &ChangeEvent<'_, K>) -> bool {
        catch_unwind(AssertUnwindSafe(|| (self.passes)(event))).unwrap_or_else(|_| {
            tracing::error!(?event, "the predicate panicked; the event passes");
            true
        })
    }
}

impl<K> Clone for Predicate<K> {
    fn clone(&self) -> Predicate<K> {
        Predicate { passes: Arc::clone(&self.passes) }
    }
}

impl<K> fmt::Debug for Predicate<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Predicate")
    }
}

/// Passes updates for which `changed` returns true, and all other events.
fn on_update<K: Cached>(changed: impl Fn(&K, &K) -> bool + Send + Sync + 'static) -> Predicate<K> {
    Predicate::new(move |event| match event {
        ChangeEvent::Updated { old, new } => changed(old, new),
        _ => true,
    })
}

/// Passes updates that changed the generation: the spec, not the status. Adds and deletions always
/// pass. It limits what is enqueued, not what is cached.
pub fn generation_changed<K: Cached>() -> Predicate<K> {
    on_update(|old: &K, new: &K| old.metadata().generation != new.metadata().generation)
}

/// Passes updates that changed labels. Adds and deletions always pass. It limits what is enqueued,
/// not what is cached.
pub fn labels_changed<K: Cached>() -> Predicate<K> {
    on_update(|old: &K, new: &K| old.metadata().labels != new.metadata().labels)
}

/// Passes only updates that set the deletion timestamp; a controller with a
/// finalizer adds it.
pub(crate) fn deletion_started<K: Cached>() -> Predicate<K> {
    Predicate::new(|event: &ChangeEvent<'_, K>| match event {
        ChangeEvent::Updated { old, new } => {
            old.metadata().deletion_timestamp.is_none()
                && new.metadata().deletion_timestamp.is_some()
        }
        _ => false,
    })
}

/// Passes events whose object matches a label selector; for a deletion, its last known state. It
/// limits what is enqueued, not what is cached.
pub fn label_selector<K: Cached>(selector: Selector) -> Predicate<K> {
    Predicate::new(move |event| match event {
        ChangeEvent::Added(object) | ChangeEvent::Updated { new: object, .. } => {
            selector.matches(*object)
        }
        ChangeEvent::Deleted(gone) => gone.last().is_none_or(|last| selector.matches(&**last)),
        ChangeEvent::Manual(_) => true,
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn object(change: impl Fn(&mut ConfigMap)) -> ConfigMap {
        let mut map = ConfigMap::default();
        map.metadata.name = Some("a".into());
        map.metadata.resource_version = Some("1".into());
        change(&mut map);
        map
    }

    #[track_caller]
    fn check(predicate: &Predicate<ConfigMap>, change: impl Fn(&mut ConfigMap), expected: bool) {
        let (old, new) = (object(|_| ()), object(change));
        assert_eq!(predicate.passes(&ChangeEvent::Updated { old: &old, new: &new }), expected);
    }

    fn always_passes(predicate: &Predicate<ConfigMap>) {
        let map = object(|_| ());
        let gone = Gone::inferred(Key::cluster("a"), None);
        assert!(predicate.passes(&ChangeEvent::Added(&map)));
        assert!(predicate.passes(&ChangeEvent::Deleted(&gone)));
        assert!(predicate.passes(&ChangeEvent::Manual(&Key::cluster("a"))));
    }

    fn labels(map: &mut ConfigMap) {
        map.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
    }

    fn deleting(map: &mut ConfigMap) {
        map.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
    }

    /// C23.1, C23.2
    #[test]
    fn built_in_predicates_compare_two_states_and_let_adds_and_deletions_pass() {
        for predicate in [generation_changed(), labels_changed()] {
            always_passes(&predicate);
            check(&predicate, |_| (), false);
        }
        check(&generation_changed(), |map| map.metadata.generation = Some(2), true);
        check(&generation_changed(), labels, false);
        check(&labels_changed(), labels, true);
    }

    /// C23.1
    #[test]
    fn predicates_combine() {
        let both = || labels_changed().and(generation_changed());
        let either = || labels_changed().or(generation_changed());
        check(&both(), labels, false);
        check(&either(), labels, true);
    }

    /// C23.3
    #[test]
    fn a_selector_looks_at_the_new_state_or_the_last_one() {
        let predicate = label_selector("a=b".parse().unwrap());
        check(&predicate, labels, true);
        check(&predicate, |_| (), false);
        let gone = |map| Gone::inferred(Key::cluster("a"), Some(Arc::new(map)));
        assert!(predicate.passes(&ChangeEvent::Deleted(&gone(object(labels)))));
        assert!(!predicate.passes(&ChangeEvent::Deleted(&gone(object(|_| ())))));
    }

    /// C23.4, C23.6
    #[test]
    fn the_start_of_a_deletion_passes_although_the_generation_is_unchanged() {
        check(&generation_changed(), deleting, false);
        check(&generation_changed().or(deletion_started()), deleting, true);
        let predicate: Predicate<ConfigMap> = deletion_started();
        let map = object(deleting);
        assert!(
            !predicate.passes(&ChangeEvent::Updated { old: &map, new: &map }),
            "only when it starts"
        );
        for _ in 0..3 {
            check(&predicate, deleting, true); // no memory: the same event passes every time
        }
    }

    /// C31.8
    #[test]
    fn a_predicate_that_panics_passes() {
        check(&Predicate::new(|_| panic!("a predicate's bug")), |_| (), true);
    }

    /// C23.5
    #[test]
    fn every_built_in_predicate_documents_that_it_does_not_limit_the_cache() {
        let source = include_str!("predicate.rs");
        for function in source.split("\npub fn ").skip(1) {
            let name = function.split('<').next().unwrap();
            let before = source.split(&format!("\npub fn {name}<")).next().unwrap();
            let doc: String =
                before.lines().rev().take_while(|line| line.starts_with("///")).collect();
            assert!(doc.contains("not what is cached") || doc.contains("what is cached"), "{name}");
        }
    }
}
