//! The configured webhooks and policies, compiled once per change.
//!
//! River: configurations in the watch cache → **extensions** → every write.
//! Promise: without any configuration, a write costs a few atomic loads.

use std::sync::{Arc, Mutex};

use arc_swap::ArcSwapOption;
use headwater_api::Revision;
use headwater_cache::{Cache, Resource};

use super::policy::Bound;
use super::webhook::Hook;
use crate::lock::lock;

const GROUP: &str = "/registry/admissionregistration.k8s.io/";

/// The kinds of the configurations, in the order of [`Compiled::at`].
const KINDS: [&str; 6] = [
    "mutatingwebhookconfigurations",
    "validatingwebhookconfigurations",
    "mutatingadmissionpolicies",
    "mutatingadmissionpolicybindings",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
];

/// The current configuration.
pub(crate) struct Compiled {
    at: [Revision; KINDS.len()],
    pub(super) mutating: Vec<Hook>,
    pub(super) validating: Vec<Hook>,
    pub(super) mutating_policies: Vec<Bound>,
    pub(super) validating_policies: Vec<Bound>,
}

impl Compiled {
    fn is_empty(&self) -> bool {
        self.mutating.is_empty()
            && self.validating.is_empty()
            && self.mutating_policies.is_empty()
            && self.validating_policies.is_empty()
    }
}

/// Compiles the configuration when it changes.
pub(crate) struct Extensions {
    cache: Cache,
    resources: [Arc<Resource>; KINDS.len()],
    current: ArcSwapOption<Compiled>,
    /// One caller compiles at a time; the others use its result.
    compiling: Mutex<()>,
}

impl Extensions {
    pub(crate) fn new(cache: &Cache) -> Extensions {
        Extensions {
            cache: cache.clone(),
            resources: KINDS.map(|kind| cache.resource(&format!("{GROUP}{kind}/"))),
            current: ArcSwapOption::empty(),
            compiling: Mutex::new(()),
        }
    }

    /// The current configuration; `None` if it is empty.
    pub(crate) fn current(&self) -> Option<Arc<Compiled>> {
        let known = self.current.load();
        if let Some(known) = &*known
            && known.at == self.changed()
        {
            return (!known.is_empty()).then(|| Arc::clone(known));
        }
        let compiled = self.compile();
        (!compiled.is_empty()).then_some(compiled)
    }

    fn changed(&self) -> [Revision; KINDS.len()] {
        std::array::from_fn(|index| self.resources[index].changed())
    }

    fn compile(&self) -> Arc<Compiled> {
        let _compiling = lock(&self.compiling);
        // Read before the snapshots, so that a concurrent change is detected later.
        let at = self.changed();
        if let Some(known) = self.current.load_full().filter(|known| known.at == at) {
            return known;
        }
        let seen = self.resources.each_ref().map(|kind| self.cache.snapshot(kind));
        let compiled = Arc::new(Compiled {
            at,
            mutating: Hook::all(&seen[0]),
            validating: Hook::all(&seen[1]),
            mutating_policies: Bound::all(&seen[2], &seen[3]),
            validating_policies: Bound::all(&seen[4], &seen[5]),
        });
        self.current.store(Some(Arc::clone(&compiled)));
        compiled
    }
}
