//! The metrics of a named work queue, with the names that Kubernetes uses.
//!
//! River: work queue → **metrics**. A queue without a name has none.

use std::collections::BTreeMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::time::Instant;

use crate::metrics::{Computed, Counter, Definition, Histogram, Metrics};

use super::QueueInner;
use super::core::Core;

const DEPTH: Definition =
    Definition { name: "workqueue_depth", help: "Current depth of workqueue" };
const ADDS: Definition =
    Definition { name: "workqueue_adds_total", help: "Total number of adds handled by workqueue" };
const QUEUE_DURATION: Definition = Definition {
    name: "workqueue_queue_duration_seconds",
    help: "How long in seconds an item stays in workqueue before being requested",
};
const WORK_DURATION: Definition = Definition {
    name: "workqueue_work_duration_seconds",
    help: "How long in seconds processing an item from workqueue takes",
};
const UNFINISHED: Definition = Definition {
    name: "workqueue_unfinished_work_seconds",
    help: "Seconds of work in progress that work_duration has not seen yet",
};
const LONGEST: Definition = Definition {
    name: "workqueue_longest_running_processor_seconds",
    help: "How many seconds the longest running processor has been running",
};
const RETRIES: Definition = Definition {
    name: "workqueue_retries_total",
    help: "Total number of retries handled by workqueue",
};

pub(super) struct Observer {
    name: String,
    metrics: Metrics,
    pub(super) adds: Counter,
    pub(super) retries: Counter,
    pub(super) queue_duration: Histogram,
    pub(super) work_duration: Histogram,
    /// One gauge without a priority label until priorities are used, then one per priority.
    depth: Mutex<BTreeMap<Option<i32>, Computed>>,
    /// Gauges that are computed when the metrics are rendered.
    _running: [Computed; 2],
}

impl Observer {
    pub(super) fn new<T>(name: &str, metrics: &Metrics, queue: &Weak<QueueInner<T>>) -> Observer
    where
        T: Hash + Eq + Clone + Send + 'static,
    {
        let labels = &[("name", name)];
        let depth =
            metrics.computed(&DEPTH, labels, reading(queue, |core| core.ready_len() as f64));
        let sum =
            reading(queue, |core| core.running(Instant::now()).sum::<Duration>().as_secs_f64());
        let longest = reading(queue, |core| {
            core.running(Instant::now()).max().unwrap_or_default().as_secs_f64()
        });
        Observer {
            name: name.to_owned(),
            metrics: metrics.clone(),
            adds: metrics.counter(&ADDS, labels),
            retries: metrics.counter(&RETRIES, labels),
            queue_duration: metrics.histogram(&QUEUE_DURATION, labels),
            work_duration: metrics.histogram(&WORK_DURATION, labels),
            depth: Mutex::new(BTreeMap::from([(None, depth)])),
            _running: [
                metrics.computed(&UNFINISHED, labels, sum),
                metrics.computed(&LONGEST, labels, longest),
            ],
        }
    }

    /// Splits the depth by priority once a priority is used.
    pub(super) fn priority_seen<T>(&self, priority: i32, queue: &Arc<QueueInner<T>>)
    where
        T: Hash + Eq + Clone + Send + 'static,
    {
        let mut depth = self.depth.lock().expect("metrics code does not panic");
        let plain = depth.contains_key(&None);
        if (plain && priority == 0) || depth.contains_key(&Some(priority)) {
            return;
        }
        if depth.remove(&None).is_some() && priority != 0 {
            depth.insert(Some(0), self.depth_at(0, queue));
        }
        depth.insert(Some(priority), self.depth_at(priority, queue));
    }

    fn depth_at<T>(&self, priority: i32, queue: &Arc<QueueInner<T>>) -> Computed
    where
        T: Hash + Eq + Clone + Send + 'static,
    {
        let text = priority.to_string();
        let labels = &[("name", self.name.as_str()), ("priority", text.as_str())];
        let queue = Arc::downgrade(queue);
        self.metrics.computed(
            &DEPTH,
            labels,
            reading(&queue, move |core| core.ready_len_at(priority) as f64),
        )
    }
}

fn reading<T>(
    queue: &Weak<QueueInner<T>>,
    read: impl Fn(&Core<T>) -> f64 + Send + Sync + 'static,
) -> impl Fn() -> f64 + Send + Sync + 'static
where
    T: Hash + Eq + Clone + Send + 'static,
{
    let queue = Weak::clone(queue);
    move || match queue.upgrade() {
        Some(queue) => read(&queue.core.lock().expect("the queue's own steps do not panic")),
        None => 0.0,
    }
}
