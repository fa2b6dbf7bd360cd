//! The reflector: lists a collection, then watches it, and recovers from failures.
//!
//! River: source → **reflector** → delta queue.
//! Promise: deltas enter the queue in the server's order; a list becomes visible in one step; an
//! interrupted watch is resumed at the last version; a new list is made only when necessary.
//! Stopping ends it at once, in every state.

pub(crate) mod machine;
pub(crate) mod source;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::change::Gone;
use crate::delta_queue::{Closed, Delta, Producer, Replacement};
use crate::health::FailureLog;
use crate::indexer::writer::LaneScope;
use crate::informer::{InitialRead, LaneHost};
use crate::key::Key;
use crate::list_watch::{Class, Error, Event, EventStream, Skipped, Undecodable};
use crate::object::AnyObject;
use crate::query::{At, ListQuery, WatchQuery};
use crate::version::ResourceVersion;

use self::machine::{
    Action, Effect, EventKind, Input, ListPlan, Machine, RequestFailure, Settings, WatchPlan,
};
use self::source::{AnyPage, AnySource, Received};

pub(crate) struct Reflector {
    informer: Arc<dyn LaneHost>,
    scope: LaneScope,
    source: Arc<dyn AnySource>,
    queue: Producer<AnyObject>,
    machine: Machine,
    /// A saved state to start from.
    saved: Option<Replacement<AnyObject>>,
    /// A resync is due.
    resync: Arc<Notify>,
    /// The objects of the current watch-list so far.
    collection: Collection,
    /// The failure that the machine decides on next.
    error: Option<Error>,
    failure_log: FailureLog,
}

#[derive(Default)]
struct Collection {
    objects: BTreeMap<Key, Arc<AnyObject>>,
    undecodable: BTreeMap<Key, Undecodable>,
}

/// A list that takes longer is logged.
const SLOW_LIST: Duration = Duration::from_secs(10);
/// How often a watch-list without events is logged.
const WATCH_LIST_WARNING: Duration = Duration::from_secs(10);
/// A list with more pages is an error of the server.
const PAGES_MAX: usize = 1_000_000;
const DISCOVERY_EVERY: Duration = Duration::from_secs(60);

impl Reflector {
    pub(crate) fn new(
        informer: Arc<dyn LaneHost>,
        scope: LaneScope,
        source: Arc<dyn AnySource>,
        queue: Producer<AnyObject>,
        saved: Option<Replacement<AnyObject>>,
        resync: Arc<Notify>,
    ) -> Reflector {
        let options = informer.options();
        let machine = Machine::new(Settings {
            page_size: options.page_size,
            watch_list: source.supports_watch_list(),
            consistent_start: options.initial_read == InitialRead::Consistent,
            watch_timeout_min: options.watch_timeout_min,
            internal_error_retry: options.internal_error_retry,
            not_served: options.not_served,
            delays: options.delays,
        });
        Reflector {
            informer,
            scope,
            source,
            queue,
            machine,
            saved,
            resync,
            collection: Collection::default(),
            error: None,
            failure_log: FailureLog::default(),
        }
    }

    /// Runs until `stop`, or until [`NotServed::Stop`](machine::NotServed::Stop) ends it.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = self.run_cycles() => {}
        }
    }

    async fn run_cycles(&mut self) {
        let mut input = self.begin().await;
        loop {
            let action = self.decide(input);
            input = match action {
                Action::List(plan) => {
                    let span = tracing::debug_span!("list", informer = self.name());
                    self.list(plan).instrument(span).await
                }
                Action::Watch(plan) => {
                    let span = tracing::debug_span!("watch", informer = self.name());
                    self.watch(plan).instrument(span).await
                }
                Action::Wait(delay) => {
                    sleep(delay).await;
                    Input::DelayOver
                }
                Action::AwaitDiscovery => self.await_discovery().await,
                Action::Stop => return,
                Action::Read => unreachable!("only `read` receives this action"),
            };
        }
    }

    fn name(&self) -> &str {
        &self.informer.options().name
    }

    /// Starts from the saved state, if there is one.
    async fn begin(&mut self) -> Input {
        if let Some(saved) = self.saved.take() {
            self.machine.resume_from(saved.version.clone());
            self.informer.frame_arrived(&self.scope, Some(&saved.version));
            self.queue.put(Delta::ReplacedAll(saved)).await.ok();
        }
        Input::Start
    }

    /// Makes one decision and reports its failure, if any.
    fn decide(&mut self, input: Input) -> Action {
        let step = self.machine.step(Instant::now(), self.informer.random(), input);
        let error = self.error.take();
        if step.failed {
            let error = error.unwrap_or(Error::Cut);
            self.log_failure(&error);
            self.informer.failed(&self.scope, &error);
        }
        if let Some(observer) = self.informer.observer() {
            if let Some(reason) = step.relist {
                observer.relisted(reason.as_str());
            }
            if step.fell_back {
                observer.fallbacks.inc();
            }
        }
        step.action
    }

    fn log_failure(&mut self, error: &Error) {
        let class = error.class();
        let Some(repeated) = self.failure_log.failed(class, Instant::now()) else { return };
        let name = &self.informer.options().name;
        let error = error as &dyn std::error::Error;
        match class {
            Class::Expired => tracing::debug!(
                informer = name,
                repeated,
                error,
                "the server compacted the watch position; listing again"
            ),
            Class::Broken => tracing::info!(
                informer = name,
                repeated,
                error,
                "the watch was interrupted; resuming"
            ),
            _ => tracing::warn!(informer = name, repeated, error, "list or watch failed; retrying"),
        }
    }

    /// Stores the error for the report and returns its class.
    fn failure(&mut self, error: Error) -> RequestFailure {
        let failure = RequestFailure { class: error.class(), retry_after: error.retry_after() };
        self.error = Some(error);
        failure
    }

    async fn await_discovery(&self) -> Input {
        loop {
            sleep(DISCOVERY_EVERY).await;
            if self.source.is_served().await {
                return Input::Served;
            }
        }
    }

    /// Waits for a slot to fetch the initial state; held only during a request.
    async fn fetch_slot(&self) -> Option<OwnedSemaphorePermit> {
        let slots = self.informer.options().fetch_slots.clone()?;
        slots.acquire_owned().await.ok()
    }

    async fn list(&mut self, plan: ListPlan) -> Input {
        let slot = self.fetch_slot().await;
        let started = Instant::now();
        let at = at_name(&plan.at);
        let listed = self.pages(&plan).await;
        drop(slot);
        let fetched = started.elapsed();
        let outcome = if listed.is_ok() { "ok" } else { "error" };
        if let Some(observer) = self.informer.observer() {
            observer.listed(outcome, at);
            observer.list_duration.observe_time(fetched);
        }
        let (replacement, paginated) = match listed {
            Ok(listed) => listed,
            Err((error, later_page)) => {
                return Input::ListFailed { failure: self.failure(error), later_page };
            }
        };
        let count = replacement.items.len();
        let version = replacement.version.clone();
        self.report_undecodable(&replacement.undecodable);
        if let Some(observer) = self.informer.observer() {
            observer.list_items.set(count as i64);
        }
        if self.queue.put(Delta::ReplacedAll(replacement)).await.is_err() {
            return Input::ListFailed { failure: self.failure(Error::Cut), later_page: false };
        }
        self.informer.frame_arrived(&self.scope, Some(&version));
        let total = started.elapsed();
        if total > SLOW_LIST {
            let replace = total - fetched;
            tracing::warn!(informer = self.name(), count, ?fetched, ?replace, "the list was slow");
        }
        Input::Listed { version, paginated }
    }

    /// Reads all pages of a list. Returns whether there was more than one; an error includes
    /// whether a later page failed.
    async fn pages(
        &self,
        plan: &ListPlan,
    ) -> Result<(Replacement<AnyObject>, bool), (Error, bool)> {
        let mut query = ListQuery {
            selection: self.informer.options().selection.clone(),
            at: plan.at.clone(),
            limit: plan.limit,
            continue_token: None,
        };
        let mut all = Listed { objects: Vec::new(), undecodable: Vec::new(), version: None };
        for number in 0..PAGES_MAX {
            let later = number > 0;
            let page = self.source.list(query.clone()).await.map_err(|error| (error, later))?;
            let Some(token) = all.take(page) else { return Ok((all.finish(), later)) };
            if query.continue_token.as_ref() == Some(&token) {
                break;
            }
            query.continue_token = Some(token);
        }
        Err((Error::EndlessPages, true))
    }

    fn report_undecodable(&self, undecodable: &[Undecodable]) {
        for bad in undecodable {
            let name = &self.informer.options().name;
            let error = format!("{} cannot be decoded: {}", bad.key, bad.error);
            tracing::error!(informer = name, error);
            if let Some(observer) = self.informer.observer() {
                observer.undecodable.inc();
            }
            self.informer.report(&Error::Malformed(error));
        }
    }

    async fn watch(&mut self, plan: WatchPlan) -> Input {
        let slot = if plan.initial_events { self.fetch_slot().await } else { None };
        self.collection = Collection::default();
        let query = WatchQuery {
            selection: self.informer.options().selection.clone(),
            at: plan.at,
            initial_events: plan.initial_events,
            timeout_seconds: plan.timeout_seconds,
        };
        let deadline = self.machine.deadline().unwrap_or_else(Instant::now);
        let opened = timeout_at(deadline, self.source.watch(query)).await;
        let stream = match opened {
            Err(_) => return Input::Silent,
            Ok(Err(error)) => return Input::OpenFailed(self.failure(error)),
            Ok(Ok(stream)) => stream,
        };
        let started = Instant::now();
        self.decide(Input::Opened);
        if let Some(observer) = self.informer.observer() {
            observer.watches.inc();
        }
        if !plan.initial_events {
            self.established();
        }
        let end = self.read(stream, slot).await;
        if let Some(observer) = self.informer.observer() {
            observer.watch_ended(end_name(&end), started.elapsed());
        }
        end
    }

    fn established(&mut self) {
        if self.failure_log.succeeded() {
            tracing::info!(informer = self.name(), "the watch works again");
        }
        self.informer.established(&self.scope);
    }

    /// Reads a stream to its end and returns why it ended.
    async fn read(
        &mut self,
        mut stream: EventStream<Received>,
        mut slot: Option<OwnedSemaphorePermit>,
    ) -> Input {
        let deadline = sleep_until(self.wake_at());
        tokio::pin!(deadline);
        let resync = Arc::clone(&self.resync);
        loop {
            tokio::select! {
                biased;
                event = stream.next() => match event {
                    None => return Input::StreamEnded,
                    Some(Err(error)) => return Input::StreamBroken(self.failure(error)),
                    Some(Ok(event)) => {
                        if let Some(end) = self.event(event).await {
                            return end;
                        }
                        if !self.machine.is_collecting() {
                            slot = None;
                        }
                    }
                },
                () = &mut deadline => {
                    if self.machine.deadline().is_none_or(|at| Instant::now() >= at) {
                        return Input::Silent;
                    }
                    if self.machine.is_collecting() {
                        tracing::warn!(informer = self.name(), "no initial events yet; still waiting");
                    }
                    deadline.as_mut().reset(self.wake_at());
                }
                () = resync.notified(), if slot.is_none() => {
                    if self.queue.put(Delta::SyncAll).await.is_err() {
                        return Input::StreamBroken(self.failure(Error::Cut));
                    }
                }
            }
        }
    }

    /// When to check the deadline again; every event moves the deadline, but not the timer.
    fn wake_at(&self) -> Instant {
        let deadline = self.machine.deadline().unwrap_or_else(Instant::now);
        if self.machine.is_collecting() {
            return deadline.min(Instant::now() + WATCH_LIST_WARNING);
        }
        deadline
    }

    /// Handles one event; returns an input if it ends the stream.
    async fn event(&mut self, event: Event<Received>) -> Option<Input> {
        let (seen, version) = match &event {
            Event::Added(object) => (EventKind::Added, object.version.clone()),
            Event::Modified(object) => (EventKind::Modified, object.version.clone()),
            Event::Deleted(object) => (EventKind::Deleted, object.version.clone()),
            Event::Bookmark { resource_version, initial_events_end } => {
                (EventKind::Bookmark { marker: *initial_events_end }, resource_version.clone())
            }
            Event::Undecodable(bad) => (EventKind::Modified, bad.resource_version.clone()),
            Event::Error(status) => {
                let internal = status.code == 500;
                let failure = self.failure(Error::Status(status.clone()));
                return Some(Input::StreamError { failure, internal });
            }
            Event::Skipped(why) => {
                tracing::warn!(informer = self.name(), %why, "skipped an event");
                if let Skipped::Failed(why) = why {
                    self.informer.report(&Error::Malformed(why.clone()));
                }
                self.informer.frame_arrived(&self.scope, None);
                if let Some(observer) = self.informer.observer() {
                    observer.skipped.inc();
                }
                return None;
            }
        };
        self.informer.frame_arrived(&self.scope, Some(&version));
        if let Some(observer) = self.informer.observer() {
            observer.event(event_index(seen));
        }
        let input = Input::Event { seen, version: version.clone() };
        let step = self.machine.step(Instant::now(), self.informer.random(), input);
        let done = match step.effect {
            Effect::None | Effect::Ignore => Ok(()),
            Effect::Collect => {
                self.collect(event);
                Ok(())
            }
            Effect::Apply => self.apply(event).await,
            Effect::Replace => self.replace(version).await,
        };
        done.err().map(|Closed| Input::StreamBroken(self.failure(Error::Cut)))
    }

    fn collect(&mut self, event: Event<Received>) {
        match event {
            Event::Added(Received { key, object, .. })
            | Event::Modified(Received { key, object, .. }) => {
                self.collection.undecodable.remove(&key);
                self.collection.objects.insert(key, object);
            }
            Event::Deleted(Received { key, .. }) => {
                self.collection.undecodable.remove(&key);
                self.collection.objects.remove(&key);
            }
            Event::Undecodable(bad) => {
                self.collection.objects.remove(&bad.key);
                self.collection.undecodable.insert(bad.key.clone(), bad);
            }
            Event::Bookmark { .. } | Event::Error(_) | Event::Skipped(_) => {}
        }
    }

    /// Handles the marker of a watch-list: the collected objects are the state at its version.
    async fn replace(&mut self, version: ResourceVersion) -> Result<(), Closed> {
        let Collection { objects, undecodable } = std::mem::take(&mut self.collection);
        let items: Vec<(Key, Arc<AnyObject>)> = objects.into_iter().collect();
        let undecodable: Vec<Undecodable> = undecodable.into_values().collect();
        self.report_undecodable(&undecodable);
        if let Some(observer) = self.informer.observer() {
            observer.list_items.set(items.len() as i64);
        }
        self.established();
        self.enqueue(Delta::ReplacedAll(Replacement { items, undecodable, version })).await
    }

    async fn apply(&mut self, event: Event<Received>) -> Result<(), Closed> {
        let delta = match event {
            Event::Added(Received { key, object, .. })
            | Event::Modified(Received { key, object, .. }) => Delta::Set { key, object },
            Event::Deleted(Received { key, object, .. }) => Delta::Deleted(Gone::seen(key, object)),
            Event::Bookmark { resource_version, .. } => Delta::Bookmark(resource_version),
            Event::Undecodable(bad) => {
                self.report_undecodable(std::slice::from_ref(&bad));
                Delta::Deleted(Gone::undecodable(bad))
            }
            Event::Error(_) | Event::Skipped(_) => return Ok(()),
        };
        self.enqueue(delta).await
    }

    /// Enqueues a delta and measures the wait for space in the queue.
    async fn enqueue(&self, delta: Delta<AnyObject>) -> Result<(), Closed> {
        let Some(observer) = self.informer.observer() else { return self.queue.put(delta).await };
        let started = Instant::now();
        let done = self.queue.put(delta).await;
        observer.queue_wait.observe_time(started.elapsed());
        done
    }
}

/// The pages of a list so far.
struct Listed {
    objects: Vec<(Key, Arc<AnyObject>)>,
    undecodable: Vec<Undecodable>,
    version: Option<ResourceVersion>,
}

impl Listed {
    /// Adds a page; returns the token of the next one.
    fn take(&mut self, page: AnyPage) -> Option<String> {
        self.objects.extend(page.items);
        self.undecodable.extend(page.undecodable);
        self.version.get_or_insert(page.resource_version);
        page.continue_token
    }

    fn finish(self) -> Replacement<AnyObject> {
        Replacement {
            items: self.objects,
            undecodable: self.undecodable,
            version: self.version.unwrap_or_else(|| "".into()),
        }
    }
}

fn at_name(at: &At) -> &'static str {
    match at {
        At::Unset => "unset",
        At::Any => "any",
        At::AtLeast(_) => "at_least",
        At::Exact(_) => "exact",
    }
}

fn end_name(end: &Input) -> &'static str {
    match end {
        Input::StreamEnded => "end",
        Input::StreamError { .. } => "error",
        Input::Silent => "silent",
        _ => "broken",
    }
}

fn event_index(seen: EventKind) -> usize {
    match seen {
        EventKind::Added => 0,
        EventKind::Modified => 1,
        EventKind::Deleted => 2,
        EventKind::Bookmark { .. } => 3,
    }
}
