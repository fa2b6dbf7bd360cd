//! The options of an informer.
//!
//! River: before the informer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::backoff::Delays;
use crate::http;
use crate::list_watch;
use crate::metrics::Metrics;
use crate::object::ResourceType;
use crate::query::Selection;
use crate::reflector::machine::NotServed;

/// How current the initial list must be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum InitialRead {
    /// It may come from the server's cache.
    #[default]
    CacheOk,
    /// It must be the newest version.
    Consistent,
}

/// A function that is called for each failure with the informer's name and the error.
type ErrorHandler = Arc<dyn Fn(&str, &list_watch::Error) + Send + Sync>;

/// The options of an informer. The defaults suit most programs.
#[derive(Clone)]
pub struct Options {
    /// The name in logs, metrics and errors.
    pub name: String,
    /// The resource type, for metrics and errors.
    pub resource: ResourceType,
    /// The objects to read.
    pub selection: Selection,
    /// The resync period of subscribers that set none; zero disables resyncs.
    pub resync: Duration,
    /// The page size of all lists; `None` uses the defaults of client-go.
    pub page_size: Option<u32>,
    /// How current the initial list must be.
    pub initial_read: InitialRead,
    /// The minimum duration of a watch, if above 300 s; the maximum is twice as long.
    pub watch_timeout_min: Duration,
    /// How long internal errors in a stream are retried at the same version.
    pub internal_error_retry: Option<Duration>,
    /// What to do when the resource type is not served.
    pub not_served: NotServed,
    /// The delays of the reflector after failures.
    pub delays: Delays,
    /// Whether to start with a watch-list, if the server supports it.
    pub watch_list: bool,
    /// The maximum length of a frame or item; a longer one ends the stream with an error.
    pub max_frame: usize,
    /// How long subscribers may handle pending changes at stop.
    pub drain: Option<Duration>,
    /// The metrics to count in.
    pub metrics: Option<Metrics>,
    /// The function that is called for each failure.
    pub on_watch_error: Option<ErrorHandler>,
    /// Limits how many informers fetch their initial state at the same time.
    pub fetch_slots: Option<Arc<Semaphore>>,
    /// The seed of the jitter, for reproducible tests.
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
            watch_list: true,
            max_frame: http::MAX_FRAME,
            drain: None,
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
