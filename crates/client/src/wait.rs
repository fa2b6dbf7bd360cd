//! Waits for conditions on objects, for programs without a controller.
//!
//! River: source or informer → **wait** → scripts and tests.
//! Promise: no change between the first check and the wait is missed.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use tokio::time::{Instant, sleep_until, timeout};

use crate::error::Error;
use crate::informer::Informer;
use crate::list_watch::{self, Class, Event, EventStream, ListWatch};
use crate::object::Cached;
use crate::query::{At, Selection, WatchQuery};
use crate::version::ResourceVersion;

/// The minimum time between two connections of a resuming watch.
const REOPEN: Duration = Duration::from_secs(1);
const TIMEOUT_SECONDS: u32 = 300;

/// A watch that reconnects at the last version. It does not return bookmarks. It ends with an error
/// when the server has compacted the version (410) or denies access (401, 403), and retries after
/// all other failures.
///
/// It runs only while the stream is polled; dropping it ends the watch.
///
/// # Errors
/// [`Error::Invalid`] if the version is empty or `0`.
pub fn resuming_watch<K: Cached>(
    source: Arc<dyn ListWatch<Object = K>>,
    selection: Selection,
    version: ResourceVersion,
) -> Result<BoxStream<'static, Result<Event<K>, list_watch::Error>>, Error> {
    if version.is_empty() || version.text() == "0" {
        let why = "a resuming watch needs the resourceVersion of a list or object";
        return Err(Error::Invalid(why.to_owned()));
    }
    let watch =
        ResumingWatch { source, selection, version, stream: None, not_before: None, over: false };
    Ok(stream::unfold(watch, ResumingWatch::next).boxed())
}

struct ResumingWatch<K: Cached> {
    source: Arc<dyn ListWatch<Object = K>>,
    selection: Selection,
    version: ResourceVersion,
    stream: Option<EventStream<K>>,
    not_before: Option<Instant>,
    over: bool,
}

type StreamItem<K> = Result<Event<K>, list_watch::Error>;

impl<K: Cached> ResumingWatch<K> {
    async fn next(mut self) -> Option<(StreamItem<K>, ResumingWatch<K>)> {
        if self.over {
            return None;
        }
        loop {
            let read = match self.open().await {
                Ok(stream) => stream.next().await,
                Err(error) => Some(Err(error)),
            };
            match read {
                Some(Ok(event)) => {
                    if let Some(event) = self.take(event) {
                        self.over = event.is_err();
                        return Some((event, self));
                    }
                }
                Some(Err(error)) if is_final(error.class()) => {
                    self.over = true;
                    return Some((Err(error), self));
                }
                Some(Err(error)) => self.close(error.retry_after()),
                None => self.close(None),
            }
        }
    }

    async fn open(&mut self) -> Result<&mut EventStream<K>, list_watch::Error> {
        if self.stream.is_none() {
            if let Some(at) = self.not_before {
                sleep_until(at).await;
            }
            self.not_before = Some(Instant::now() + REOPEN);
            let query = WatchQuery {
                selection: self.selection.clone(),
                at: At::AtLeast(self.version.clone()),
                initial_events: false,
                timeout_seconds: TIMEOUT_SECONDS,
            };
            self.stream = Some(self.source.watch(query).await?);
        }
        Ok(self.stream.as_mut().expect("it was just opened"))
    }

    /// Stores the version of an event; returns the event if the caller should receive it.
    fn take(&mut self, event: Event<K>) -> Option<StreamItem<K>> {
        match &event {
            Event::Added(object) | Event::Modified(object) | Event::Deleted(object) => {
                self.version = object.resource_version();
            }
            Event::Bookmark { resource_version, .. } => {
                self.version = resource_version.clone();
                return None;
            }
            Event::Undecodable(bad) => self.version = bad.resource_version.clone(),
            Event::Skipped(_) => return None,
            Event::Error(status) if is_final(status.class()) => {
                return Some(Err(list_watch::Error::Status(status.clone())));
            }
            Event::Error(status) => {
                let advice = status.retry_after;
                self.close(advice);
                return None;
            }
        }
        Some(Ok(event))
    }

    fn close(&mut self, advice: Option<Duration>) {
        self.stream = None;
        let wait = advice.unwrap_or_default().max(REOPEN);
        let later = Instant::now() + wait;
        self.not_before = Some(self.not_before.map_or(later, |at| match advice {
            Some(_) => at.max(later),
            None => at,
        }));
    }
}

/// Whether a retry would fail again.
fn is_final(class: Class) -> bool {
    matches!(class, Class::Expired | Class::Forbidden | Class::Unauthorized)
}

/// A condition on events; returns `Ok(true)` when it is met.
pub type EventCondition<'a, K> = Box<dyn FnMut(&Event<K>) -> Result<bool, Error> + Send + 'a>;

/// Waits until the conditions are met one after the other; each is first checked against the event
/// that met the previous one. Returns the last event.
///
/// # Errors
/// The watch ended, a condition failed, or the deadline passed.
pub async fn until<K: Cached>(
    mut events: BoxStream<'static, Result<Event<K>, list_watch::Error>>,
    conditions: Vec<EventCondition<'_, K>>,
    deadline: Duration,
) -> Result<Option<Event<K>>, Error> {
    let met = async {
        let mut last: Option<Event<K>> = None;
        for mut condition in conditions {
            if let Some(event) = &last
                && condition(event)?
            {
                continue;
            }
            loop {
                let Some(event) = events.next().await else {
                    return Err(Error::Stopped("the watch".to_owned()));
                };
                let event = event?;
                let done = condition(&event)?;
                last = Some(event);
                if done {
                    break;
                }
            }
        }
        Ok(last)
    };
    match timeout(deadline, met).await {
        Ok(result) => result,
        Err(_) => Err(Error::Timeout { what: "the condition".to_owned(), after: deadline }),
    }
}

/// Waits for a condition on the store of an informer. After the informer has synced, `precondition`
/// is checked once and ends the wait if it returns a value or an error; then `condition` is checked
/// after each change of the store.
///
/// # Errors
/// The error of `precondition`; the informer stopped; the deadline passed.
pub async fn until_synced<K: Cached, T>(
    informer: &Informer<K>,
    precondition: impl FnOnce(&crate::indexer::Snapshot<K>) -> Result<Option<T>, Error>,
    mut condition: impl FnMut(&crate::indexer::Snapshot<K>) -> Option<T>,
    deadline: Duration,
) -> Result<T, Error> {
    let met = async {
        informer.synced().await?;
        if let Some(found) = precondition(&informer.snapshot())? {
            return Ok(found);
        }
        let store = informer.store().clone();
        store.wait_until(|_| condition(&store.snapshot())).await
    };
    match timeout(deadline, met).await {
        Ok(result) => result,
        Err(_) => Err(Error::Timeout { what: "the condition".to_owned(), after: deadline }),
    }
}

/// Whether the object exists.
pub fn exists<K>(object: Option<&K>) -> bool {
    object.is_some()
}

/// Whether the object with this UID was deleted; another object with the same name may exist.
pub fn deleted<K: Cached>(uid: &str) -> impl Fn(Option<&K>) -> bool + use<'_, K> {
    move |object| object.is_none_or(|object| object.uid() != uid)
}

/// Whether the object has a condition of this type with status `True`; `conditions` returns its
/// conditions.
pub fn condition_true<'a, K: Cached>(
    kind: &'a str,
    conditions: impl Fn(&K) -> Vec<Condition> + 'a,
) -> impl Fn(Option<&K>) -> bool + 'a {
    move |object| {
        object.is_some_and(|object| {
            conditions(object).iter().any(|known| known.type_ == kind && known.status == "True")
        })
    }
}

/// Whether the object's controller has observed the current generation; `observed` returns
/// `status.observedGeneration`.
pub fn generation_observed<'a, K: Cached>(
    observed: impl Fn(&K) -> Option<i64> + 'a,
) -> impl Fn(Option<&K>) -> bool + 'a {
    move |object| {
        object.is_some_and(|object| {
            let generation = object.metadata().generation;
            observed(object).is_some_and(|seen| generation.is_none_or(|wanted| seen >= wanted))
        })
    }
}
