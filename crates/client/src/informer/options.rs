//! What can be chosen for an informer.
//!
//! River: before the informer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::backoff::Delays;
use crate::list_watch;
use crate::metrics::Metrics;
use crate::object::ResourceType;
use crate::query::Selection;
use crate::reflector::machine::NotServed;

/// Where the first list may come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum InitialRead {
    /// A cache of the server will do.
    #[default]
    CacheOk,
    /// It must be the newest state.
    Consistent,
}

/// Compares what watch-lists delivered with lists; for tests and continuous integration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsistencyCheck {
    /// Panic on a difference instead of reporting it.
    pub strict: bool,
}

/// What is told of each failure: the informer's name and the error.
pub type ErrorHandler = Arc<dyn Fn(&str, &list_watch::Error) + Send + Sync>;

/// How an informer works. The default suits most programs.
#[derive(Clone)]
pub struct Options {
    /// For logs, metrics and errors.
    pub name: String,
    /// What it holds; for metrics and errors.
    pub resource: ResourceType,
    /// Which objects it asks for.
    pub selection: Selection,
    /// How often objects are shown again to subscribers that did not say; zero means never.
    pub resync: Duration,
    /// Pages of this size for every list; `None` leaves it to the rules.
    pub page_size: Option<u32>,
    /// Where the first list may come from.
    pub initial_read: InitialRead,
    /// Watches last from this to twice this, if it is above 300 s.
    pub watch_timeout_min: Duration,
    /// How long in-stream internal errors are retried at the same version.
    pub internal_error_retry: Option<Duration>,
    /// What to do when the resource type is not served.
    pub not_served: NotServed,
    /// How long the reflector waits after failures.
    pub delays: Delays,
    /// Compare watch-lists with lists.
    pub consistency_check: Option<ConsistencyCheck>,
    /// At stop, let subscribers handle what is pending for at most so long.
    pub drain: Option<Duration>,
    /// Fail to start if there are more objects.
    pub refuse_above: Option<u64>,
    /// Where to count.
    pub metrics: Option<Metrics>,
    /// What is told of each failure.
    pub on_watch_error: Option<ErrorHandler>,
    /// InformerInner by informers that should not all fetch their first state at once.
    pub fetch_slots: Option<Arc<Semaphore>>,
    /// Draws jitter from a seed, so that a test can repeat it.
    pub seed: Option<u64>,
}

impl Options {
    /// Options for an informer of a resource type.
    pub fn new(name: impl Into<String>, resource: ResourceType) -> Options {
        Options {
            name: name.into(),
            resource,
            selection: Selection::default(),
            resync: Duration::ZERO,
            page_size: None,
            initial_read: InitialRead::default(),
            watch_timeout_min: Duration::ZERO,
            internal_error_retry: None,
            not_served: NotServed::default(),
            delays: Delays::default(),
            consistency_check: None,
            drain: None,
            refuse_above: None,
            metrics: None,
            on_watch_error: None,
            fetch_slots: None,
            seed: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("name", &self.name)
            .field("resource", &self.resource)
            .field("selection", &self.selection)
            .finish_non_exhaustive()
    }
}
