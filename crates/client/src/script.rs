//! A scripted source for tests: a list of expected requests and their responses.
//!
//! River: replaces the server in tests of informers and controllers.
//! Promise: requests are answered in the order of the script; an unexpected request fails the test
//! with the expected and the actual request.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::key::Key;
use crate::object::Cached;

pub use crate::http::{Http, Options as HttpOptions};
pub use crate::informer::run::Runner;
pub use crate::list_watch::{
    Error, Event, EventStream, ListWatch, Page, Skipped, StatusError, Undecodable,
};
pub use crate::query::{At, ListQuery, Selection, WatchQuery};
pub use crate::strip::Strip;
pub use crate::transform::TransformedSource;

/// The expected requests and their responses.
///
/// A request without a step waits until the script has one. Dropping the script checks that all
/// requests were expected.
///
/// ```
/// # use headwater_client::{ResourceType, informer, script::Script};
/// # use k8s_openapi::api::core::v1::Pod;
/// # use std::sync::Arc;
/// # use tokio_util::sync::CancellationToken;
/// # fn pod(name: &str, version: &str) -> Pod {
/// #     let mut pod = Pod::default();
/// #     pod.metadata.name = Some(name.into());
/// #     pod.metadata.resource_version = Some(version.into());
/// #     pod
/// # }
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let (script, source) = Script::<Pod>::new();
/// script.expect_watch_list().added(pod("a", "1")).marker("2");
///
/// let options = informer::Options::new("pods", ResourceType::of::<Pod>(&()));
/// let (pods, runner) = informer::from_source(Arc::new(source), options);
/// let stop = CancellationToken::new();
/// let test = async {
///     pods.synced().await.unwrap();
///     assert_eq!(pods.snapshot().len(), 1);
///     stop.cancel();
/// };
/// tokio::join!(runner.run(stop.clone()), test);
/// # });
/// ```
pub struct Script<K: Cached> {
    shared: Arc<ScriptInner<K>>,
}

/// The source that a [`Script`] controls.
pub struct ScriptSource<K: Cached> {
    shared: Arc<ScriptInner<K>>,
    watch_list: bool,
}

struct ScriptInner<K> {
    state: Mutex<ScriptState<K>>,
    changed: Notify,
}

struct ScriptState<K> {
    steps: VecDeque<Step<K>>,
    requests: Vec<RecordedRequest>,
    mistakes: Vec<String>,
    served: bool,
    open_streams: usize,
}

/// A request that the source received.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedRequest {
    /// The query.
    pub query: Query,
    /// The time.
    pub at: Instant,
}

/// The query of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Query {
    /// A list.
    List(ListQuery),
    /// A watch.
    Watch(WatchQuery),
}

enum Step<K> {
    List { expected: ExpectedList, answer: Answer<K> },
    Watch { expected: ExpectedWatch, play: Arc<Play<K>> },
}

type Answer<K> = Result<Page<K>, Error>;

#[derive(Clone, Debug, Default)]
struct ExpectedList {
    at: Option<At>,
    limit: Option<Option<u32>>,
    continue_token: Option<Option<String>>,
}

#[derive(Clone, Debug)]
struct ExpectedWatch {
    initial_events: bool,
    at: Option<At>,
}

/// One watch of the script; events can be added while it is open.
struct Play<K> {
    acts: Mutex<VecDeque<Act<K>>>,
    changed: Notify,
}

enum Act<K> {
    /// The request itself fails.
    Refuse(Error),
    Event(Event<K>),
    Break(Error),
    End,
}

impl<K: Cached> Script<K> {
    /// An empty script and its source.
    pub fn new() -> (Script<K>, ScriptSource<K>) {
        let shared = Arc::new(ScriptInner {
            state: Mutex::new(ScriptState {
                steps: VecDeque::new(),
                requests: Vec::new(),
                mistakes: Vec::new(),
                served: true,
                open_streams: 0,
            }),
            changed: Notify::new(),
        });
        (Script { shared: Arc::clone(&shared) }, ScriptSource { shared, watch_list: true })
    }

    /// Expects a list next; the step sets the response.
    pub fn expect_list(&self) -> ListStep<'_, K> {
        ListStep { script: self, expected: ExpectedList::default() }
    }

    /// Expects a watch without initial events next.
    pub fn expect_watch(&self) -> WatchStep<K> {
        self.expect_any_watch(false)
    }

    /// Expects a watch with initial events next.
    pub fn expect_watch_list(&self) -> WatchStep<K> {
        self.expect_any_watch(true)
    }

    fn expect_any_watch(&self, initial_events: bool) -> WatchStep<K> {
        let play = Arc::new(Play { acts: Mutex::default(), changed: Notify::new() });
        let expected = ExpectedWatch { initial_events, at: None };
        self.push(Step::Watch { expected, play: Arc::clone(&play) });
        WatchStep { script: Arc::clone(&self.shared), play }
    }

    fn push(&self, step: Step<K>) {
        self.shared.lock().steps.push_back(step);
        self.shared.changed.notify_waiters();
    }

    /// The requests so far.
    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.shared.lock().requests.clone()
    }

    /// The query strings of the requests so far.
    pub fn queries(&self) -> Vec<String> {
        let query = |request: &RecordedRequest| match &request.query {
            Query::List(query) => query.to_query(),
            Query::Watch(query) => query.to_query(),
        };
        self.shared.lock().requests.iter().map(query).collect()
    }

    /// Waits until this many requests were made. Cancel-safe.
    pub async fn requested(&self, count: usize) {
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.shared.lock().requests.len() >= count {
                return;
            }
            changed.await;
        }
    }

    /// Sets whether discovery lists the resource type.
    pub fn set_served(&self, served: bool) {
        self.shared.lock().served = served;
    }

    /// The number of open streams.
    pub fn open_streams(&self) -> usize {
        self.shared.lock().open_streams
    }

    /// The number of steps that were not requested yet.
    pub fn steps_left(&self) -> usize {
        self.shared.lock().steps.len()
    }
}

impl<K: Cached> Drop for Script<K> {
    fn drop(&mut self) {
        let mistakes = std::mem::take(&mut self.shared.lock().mistakes);
        assert!(mistakes.is_empty() || std::thread::panicking(), "{}", mistakes.join("\n"));
    }
}

impl<K: Cached> fmt::Debug for Script<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Script({} steps left)", self.steps_left())
    }
}

impl<K> ScriptInner<K> {
    fn lock(&self) -> MutexGuard<'_, ScriptState<K>> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// An expected list; its last method sets the response.
#[must_use = "set the response of the list"]
pub struct ListStep<'a, K: Cached> {
    script: &'a Script<K>,
    expected: ExpectedList,
}

impl<K: Cached> ListStep<'_, K> {
    /// Requires this version.
    pub fn at(mut self, at: At) -> Self {
        self.expected.at = Some(at);
        self
    }

    /// Requires this limit.
    pub fn limit(mut self, limit: Option<u32>) -> Self {
        self.expected.limit = Some(limit);
        self
    }

    /// Requires this continue token.
    pub fn continues(mut self, token: &str) -> Self {
        self.expected.continue_token = Some(Some(token.to_owned()));
        self
    }

    /// Returns these objects at this version, as the last page.
    pub fn answers(self, items: impl IntoIterator<Item = K>, version: &str) {
        self.answers_page(page(items, version));
    }

    /// Returns these objects at this version, with a token for the next page.
    pub fn answers_part(self, items: impl IntoIterator<Item = K>, version: &str, token: &str) {
        let page = Page { continue_token: Some(token.to_owned()), ..page(items, version) };
        self.answers_page(page);
    }

    /// Returns this page.
    pub fn answers_page(self, page: Page<K>) {
        self.script.push(Step::List { expected: self.expected, answer: Ok(page) });
    }

    /// Fails.
    pub fn fails(self, error: Error) {
        self.script.push(Step::List { expected: self.expected, answer: Err(error) });
    }

    /// Fails with a status.
    pub fn refuses(self, code: u16, reason: &str) {
        self.fails(Error::Status(StatusError::new(code, reason, "scripted")));
    }
}

fn page<K>(items: impl IntoIterator<Item = K>, version: &str) -> Page<K> {
    Page {
        items: items.into_iter().collect(),
        undecodable: Vec::new(),
        skipped: 0,
        resource_version: version.into(),
        continue_token: None,
        remaining: None,
    }
}

/// An expected watch. It stays open, and events can be added at any time.
pub struct WatchStep<K: Cached> {
    script: Arc<ScriptInner<K>>,
    play: Arc<Play<K>>,
}

impl<K: Cached> WatchStep<K> {
    /// Requires this version.
    pub fn at(self, at: impl Into<At>) -> Self {
        let at = at.into();
        let mut state = self.script.lock();
        for step in &mut state.steps {
            if let Step::Watch { expected, play } = step
                && Arc::ptr_eq(play, &self.play)
            {
                expected.at = Some(at.clone());
            }
        }
        drop(state);
        self
    }

    fn act(&self, act: Act<K>) -> &Self {
        let mut acts = self.play.acts.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        acts.push_back(act);
        drop(acts);
        self.play.changed.notify_waiters();
        self
    }

    /// Sends an event.
    pub fn event(&self, event: Event<K>) -> &Self {
        self.act(Act::Event(event))
    }

    /// Sends an ADDED event.
    pub fn added(&self, object: K) -> &Self {
        self.event(Event::Added(object))
    }

    /// Sends a MODIFIED event.
    pub fn modified(&self, object: K) -> &Self {
        self.event(Event::Modified(object))
    }

    /// Sends a DELETED event.
    pub fn deleted(&self, object: K) -> &Self {
        self.event(Event::Deleted(object))
    }

    /// Sends a bookmark.
    pub fn bookmark(&self, version: &str) -> &Self {
        let resource_version = version.into();
        self.event(Event::Bookmark { resource_version, initial_events_end: false })
    }

    /// Sends the bookmark that ends the initial events.
    pub fn marker(&self, version: &str) -> &Self {
        let resource_version = version.into();
        self.event(Event::Bookmark { resource_version, initial_events_end: true })
    }

    /// Sends an object that cannot be decoded.
    pub fn undecodable(&self, key: &str, version: &str) -> &Self {
        self.event(Event::Undecodable(Undecodable {
            key: key.parse().unwrap_or_else(|_| Key::cluster(key)),
            resource_version: version.into(),
            error: "scripted".to_owned(),
        }))
    }

    /// Sends an ERROR event.
    pub fn error(&self, code: u16, reason: &str) -> &Self {
        self.event(Event::Error(StatusError::new(code, reason, "scripted")))
    }

    /// Refuses the request with a status.
    pub fn refuses(&self, code: u16, reason: &str) {
        self.fails(Error::Status(StatusError::new(code, reason, "scripted")));
    }

    /// Fails the request.
    pub fn fails(&self, error: Error) {
        self.act(Act::Refuse(error));
    }

    /// Breaks the stream.
    pub fn breaks(&self) {
        self.act(Act::Break(Error::Cut));
    }

    /// Ends the stream, as a server does after the timeout.
    pub fn ends(&self) {
        self.act(Act::End);
    }
}

impl<K: Cached> fmt::Debug for WatchStep<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WatchStep")
    }
}

impl<K: Cached> fmt::Debug for ListStep<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ListStep({:?})", self.expected)
    }
}

impl<K: Cached> ScriptSource<K> {
    /// The same source without support for watch-lists.
    #[must_use]
    pub fn without_watch_list(mut self) -> Self {
        self.watch_list = false;
        self
    }

    /// Waits for the next step. A request that does not match it is recorded and then waits for
    /// ever, so that the test fails because of the mismatch and not because of a retry.
    async fn next_step(&self, query: Query) -> Step<K> {
        let request = RecordedRequest { query: query.clone(), at: Instant::now() };
        self.shared.lock().requests.push(request);
        self.shared.changed.notify_waiters();
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(step) = self.take_step(&query) {
                return step;
            }
            changed.await;
        }
    }

    fn take_step(&self, query: &Query) -> Option<Step<K>> {
        let mut state = self.shared.lock();
        let fits = state.steps.front()?.fits(query);
        if let Err(mistake) = fits {
            if !state.mistakes.contains(&mistake) {
                state.mistakes.push(mistake);
            }
            return None;
        }
        state.steps.pop_front()
    }
}

impl<K> Step<K> {
    fn fits(&self, query: &Query) -> Result<(), String> {
        let fits = match (self, query) {
            (Step::List { expected, .. }, Query::List(query)) => {
                expected.at.as_ref().is_none_or(|at| *at == query.at)
                    && expected.limit.is_none_or(|limit| limit == query.limit)
                    && expected
                        .continue_token
                        .as_ref()
                        .is_none_or(|token| *token == query.continue_token)
            }
            (Step::Watch { expected, .. }, Query::Watch(query)) => {
                expected.initial_events == query.initial_events
                    && expected.at.as_ref().is_none_or(|at| *at == query.at)
            }
            _ => false,
        };
        if fits {
            return Ok(());
        }
        Err(match self {
            Step::List { expected, .. } => format!("expected {expected:?}, got {query:?}"),
            Step::Watch { expected, .. } => format!("expected {expected:?}, got {query:?}"),
        })
    }
}

#[async_trait]
impl<K: Cached> ListWatch for ScriptSource<K> {
    type Object = K;

    async fn list(&self, query: ListQuery) -> Result<Page<K>, Error> {
        match self.next_step(Query::List(query)).await {
            Step::List { answer, .. } => answer,
            Step::Watch { .. } => unreachable!("a step fits its request"),
        }
    }

    async fn watch(&self, query: WatchQuery) -> Result<EventStream<K>, Error> {
        let Step::Watch { play, .. } = self.next_step(Query::Watch(query)).await else {
            unreachable!("a step fits its request")
        };
        if let Some(error) = play.refusal() {
            return Err(error);
        }
        let stream = PlayCursor { play, over: false, _open: OpenStream::new(&self.shared) };
        Ok(stream::unfold(stream, PlayCursor::next).boxed())
    }

    fn supports_watch_list(&self) -> bool {
        self.watch_list
    }

    async fn is_served(&self) -> bool {
        self.shared.lock().served
    }
}

impl<K> Play<K> {
    fn acts(&self) -> MutexGuard<'_, VecDeque<Act<K>>> {
        self.acts.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn refusal(&self) -> Option<Error> {
        let mut acts = self.acts();
        match acts.front() {
            Some(Act::Refuse(_)) => match acts.pop_front() {
                Some(Act::Refuse(error)) => Some(error),
                _ => None,
            },
            _ => None,
        }
    }

    async fn next(&self) -> Act<K> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(act) = self.acts().pop_front() {
                return act;
            }
            changed.await;
        }
    }
}

struct PlayCursor<K> {
    play: Arc<Play<K>>,
    over: bool,
    _open: OpenStream<K>,
}

impl<K: Cached> PlayCursor<K> {
    async fn next(mut self) -> Option<(Result<Event<K>, Error>, PlayCursor<K>)> {
        if self.over {
            return None;
        }
        match self.play.next().await {
            Act::Event(event) => Some((Ok(event), self)),
            Act::End => None,
            Act::Break(error) | Act::Refuse(error) => {
                self.over = true;
                Some((Err(error), self))
            }
        }
    }
}

/// Counts open streams.
struct OpenStream<K> {
    shared: Arc<ScriptInner<K>>,
}

impl<K> OpenStream<K> {
    fn new(shared: &Arc<ScriptInner<K>>) -> OpenStream<K> {
        shared.lock().open_streams += 1;
        OpenStream { shared: Arc::clone(shared) }
    }
}

impl<K> Drop for OpenStream<K> {
    fn drop(&mut self) {
        self.shared.lock().open_streams -= 1;
    }
}

impl<K: Cached> fmt::Debug for ScriptSource<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ScriptSource")
    }
}
