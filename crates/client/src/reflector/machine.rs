//! The state machine of a reflector: a pure function from state and input to the next action.
//!
//! River: inside the reflector, which executes the actions and reports the results.
//! Promise: a list is made only without a version, after the server compacted the version, or after
//! a number of failures; two cycles are always separated by a delay; the backoff limits the request
//! rate whatever the server returns.

use std::time::Duration;

use tokio::time::Instant;

use crate::backoff::{Delays, ReflectorBackoff};
use crate::list_watch::Class;
use crate::query::At;
use crate::random::Random;
use crate::version::ResourceVersion;

/// The options that affect decisions.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The page size of all lists; `None` uses the defaults of client-go.
    pub(crate) page_size: Option<u32>,
    /// Whether the source supports watch-lists.
    pub(crate) watch_list: bool,
    /// Whether the first list must be consistent.
    pub(crate) consistent_start: bool,
    /// The minimum duration of a watch, if above 300 s; the maximum is twice as long.
    pub(crate) watch_timeout_min: Duration,
    /// How long internal errors in a stream are retried at the same version.
    pub(crate) internal_error_retry: Option<Duration>,
    pub(crate) not_served: NotServed,
    pub(crate) delays: Delays,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            page_size: None,
            watch_list: true,
            consistent_start: false,
            watch_timeout_min: Duration::ZERO,
            internal_error_retry: None,
            not_served: NotServed::default(),
            delays: Delays::default(),
        }
    }
}

/// What to do when the server does not serve the resource type, for example because its
/// definition was deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NotServed {
    /// Retry with the longest delay.
    #[default]
    Retry,
    /// Stop the informer.
    Stop,
    /// Check discovery once a minute and restart when the type is served.
    AwaitDiscovery,
}

/// An input of the state machine.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Input {
    Start,
    DelayOver,
    /// Discovery lists the type again.
    Served,
    Listed {
        version: ResourceVersion,
        paginated: bool,
    },
    ListFailed {
        failure: RequestFailure,
        later_page: bool,
    },
    /// The response of a watch has status 200.
    Opened,
    OpenFailed(RequestFailure),
    Event {
        seen: EventKind,
        version: ResourceVersion,
    },
    /// The server ended the stream with an ERROR event.
    StreamError {
        failure: RequestFailure,
        internal: bool,
    },
    /// The stream was interrupted, or could not be read.
    StreamBroken(RequestFailure),
    StreamEnded,
    /// The deadline of the stream passed.
    Silent,
}

/// The properties of a failure that decisions depend on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RequestFailure {
    pub(crate) class: Class,
    pub(crate) retry_after: Option<Duration>,
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    Added,
    Modified,
    Deleted,
    Bookmark { marker: bool },
}

/// The next action.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    List(ListPlan),
    Watch(WatchPlan),
    /// Continue to read the open stream.
    Read,
    Wait(Duration),
    AwaitDiscovery,
    Stop,
}

/// What to do with the event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Effect {
    #[default]
    None,
    /// Add it to the collected initial state.
    Collect,
    /// Replace the store by the collected state.
    Replace,
    /// Enqueue it.
    Apply,
    /// Ignore a bookmark with an old version.
    Ignore,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ListPlan {
    pub(crate) at: At,
    pub(crate) limit: Option<u32>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WatchPlan {
    pub(crate) at: At,
    pub(crate) initial_events: bool,
    pub(crate) timeout_seconds: u32,
}

/// The result of one decision.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MachineOutput {
    pub(crate) action: Action,
    pub(crate) effect: Effect,
    /// Whether a list or watch failed; reported before the delay.
    pub(crate) failed: bool,
    /// Why a new cycle starts; for the metric.
    pub(crate) relist: Option<Relist>,
    /// Whether a list replaces a watch-list.
    pub(crate) fell_back: bool,
}

/// Why the complete state is fetched again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Relist {
    Expired,
    FailedResumes,
    ShortWatches,
    ListFailed,
    Other,
}

impl Relist {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Relist::Expired => "expired",
            Relist::FailedResumes => "failed_resumes",
            Relist::ShortWatches => "short_watches",
            Relist::ListFailed => "list_failed",
            Relist::Other => "other",
        }
    }
}

/// The page size of lists without a known version.
const PAGE_SIZE: u32 = 500;
/// A watch that ends sooner without an event is a short watch.
const SHORT: Duration = Duration::from_secs(1);
/// This many short watches in a row start a new cycle.
const SHORT_MAX: u32 = 3;
/// This many failed resumes in a row start a new cycle.
const FAILED_RESUMES_MAX: u32 = 5;
/// A stream that lasted this long counts as successful even without an event.
const GOOD_AFTER: Duration = Duration::from_secs(60);
/// A watch-list without a frame for this time is given up.
const WATCH_LIST_PATIENCE: Duration = Duration::from_secs(60);
/// How long watch-lists are disabled after the server failed to serve one.
const WATCH_LIST_OFF: Duration = Duration::from_secs(600);
/// A stream without frames is dropped this long after its timeout.
const TIMEOUT_GRACE: Duration = Duration::from_secs(30);
/// A stream with bookmarks is dropped after this time without frames, or after three bookmark
/// intervals.
const BOOKMARK_SILENCE: Duration = Duration::from_secs(90);
/// Early ends may affect many clients at once; reconnects are spread over this time.
const SPREAD: Duration = Duration::from_secs(1);
/// The window of internal errors restarts after this time without one.
const INTERNAL_ERROR_QUIET: Duration = Duration::from_secs(60);
const WATCH_TIMEOUT_MIN: u64 = 300;

#[derive(Debug)]
pub(crate) struct Machine {
    settings: Settings,
    last_version: Option<ResourceVersion>,
    /// The server does not have the last version: request the newest until that succeeds.
    version_unavailable: bool,
    /// The server paginates lists from its cache.
    paginated: bool,
    watch_list_off_until: Option<Instant>,
    /// Consecutive watch-lists that ended without the marker.
    cut_watch_lists: u32,
    short_watches: u32,
    failed_resumes: u32,
    internal_errors: Option<InternalErrors>,
    backoff: ReflectorBackoff,
    after_delay: AfterDelay,
    list: Option<ListAttempt>,
    stream: Option<WatchState>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum AfterDelay {
    Cycle,
    Resume,
}

#[derive(Clone, Debug)]
struct ListAttempt {
    plan: ListPlan,
    /// Whether the list was already repeated with the newest version.
    retried_newest: bool,
    /// Whether the list was already repeated without pages.
    retried_whole: bool,
}

#[derive(Clone, Copy, Debug)]
struct InternalErrors {
    first: Instant,
    last: Instant,
}

/// The watch that is open or is being opened.
#[derive(Debug)]
struct WatchState {
    opened: Instant,
    timeout: Duration,
    phase: WatchPhase,
    events: u64,
    last_frame: Instant,
    bookmarks: u32,
    last_bookmark: Instant,
    bookmark_distance: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WatchPhase {
    /// Before the marker of a watch-list.
    Collecting,
    /// The server may send unordered ADDED events; their versions are not used.
    Unordered,
    Watching,
}

impl WatchState {
    fn new(plan: &WatchPlan, now: Instant) -> WatchState {
        let phase = match (&plan.at, plan.initial_events) {
            (_, true) => WatchPhase::Collecting,
            (At::Unset | At::Any, false) => WatchPhase::Unordered,
            _ => WatchPhase::Watching,
        };
        WatchState {
            opened: now,
            timeout: Duration::from_secs(u64::from(plan.timeout_seconds)),
            phase,
            events: 0,
            last_frame: now,
            bookmarks: 0,
            last_bookmark: now,
            bookmark_distance: Duration::ZERO,
        }
    }

    fn frame(&mut self, now: Instant, seen: EventKind) {
        self.events += 1;
        self.last_frame = now;
        if matches!(seen, EventKind::Bookmark { .. }) {
            if self.bookmarks > 0 {
                self.bookmark_distance = now.saturating_duration_since(self.last_bookmark);
            }
            self.bookmarks += 1;
            self.last_bookmark = now;
        }
    }

    fn deadline(&self) -> Instant {
        if self.phase == WatchPhase::Collecting {
            return self.last_frame + WATCH_LIST_PATIENCE;
        }
        let over = (self.opened + self.timeout).max(self.last_frame) + TIMEOUT_GRACE;
        if self.bookmarks < 2 {
            return over;
        }
        over.min(self.last_frame + BOOKMARK_SILENCE.max(self.bookmark_distance * 3))
    }
}

impl Machine {
    pub(crate) fn new(settings: Settings) -> Machine {
        let backoff = ReflectorBackoff::new(settings.delays);
        Machine {
            settings,
            last_version: None,
            version_unavailable: false,
            paginated: false,
            watch_list_off_until: None,
            cut_watch_lists: 0,
            short_watches: 0,
            failed_resumes: 0,
            internal_errors: None,
            backoff,
            after_delay: AfterDelay::Cycle,
            list: None,
            stream: None,
        }
    }

    #[cfg(test)]
    pub(crate) fn last_version(&self) -> Option<&ResourceVersion> {
        self.last_version.as_ref()
    }

    /// Starts from a known version: the first action resumes the watch there.
    pub(crate) fn resume_from(&mut self, version: ResourceVersion) {
        self.last_version = Some(version);
        self.after_delay = AfterDelay::Resume;
    }

    /// When the open stream is dropped unless a frame arrives.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.stream.as_ref().map(WatchState::deadline)
    }

    /// Whether the open stream is a watch-list before its marker.
    pub(crate) fn is_collecting(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.phase == WatchPhase::Collecting)
    }

    /// Makes one decision.
    pub(crate) fn step(&mut self, now: Instant, random: &Random, input: Input) -> MachineOutput {
        let mut turn = Decision { now, random, step: MachineOutput::new() };
        turn.step.action = match input {
            Input::Start => match self.after_delay {
                AfterDelay::Cycle => self.begin_cycle(&turn),
                AfterDelay::Resume => self.resume(&turn),
            },
            Input::DelayOver => match self.after_delay {
                AfterDelay::Cycle => self.begin_cycle(&turn),
                AfterDelay::Resume => self.resume(&turn),
            },
            Input::Served => self.begin_cycle(&turn),
            Input::Listed { version, paginated } => self.listed(&turn, version, paginated),
            Input::ListFailed { failure, later_page } => {
                self.list_failed(&mut turn, failure, later_page)
            }
            Input::Opened => {
                self.opened(now);
                Action::Read
            }
            Input::Event { seen, version } => self.event(&mut turn, seen, version),
            Input::OpenFailed(failure) => self.open_failed(&mut turn, failure),
            Input::StreamError { failure, internal } => {
                self.stream_error(&mut turn, failure, internal)
            }
            Input::StreamBroken(failure) => self.stream_broken(&mut turn, failure),
            Input::StreamEnded => self.stream_ended(&mut turn),
            Input::Silent => self.silent(&mut turn),
        };
        turn.step
    }

    fn begin_cycle(&mut self, turn: &Decision<'_>) -> Action {
        self.short_watches = 0;
        self.failed_resumes = 0;
        if self.may_watch_list(turn.now) { self.watch_list(turn) } else { self.first_list() }
    }

    fn may_watch_list(&self, now: Instant) -> bool {
        self.settings.watch_list && self.watch_list_off_until.is_none_or(|until| now >= until)
    }

    fn watch_list(&mut self, turn: &Decision<'_>) -> Action {
        let at = match &self.last_version {
            Some(version) if !self.version_unavailable => At::AtLeast(version.clone()),
            _ => At::Unset,
        };
        self.open(turn, at, true)
    }

    fn first_list(&mut self) -> Action {
        let at = match &self.last_version {
            _ if self.version_unavailable => At::Unset,
            None if self.settings.consistent_start => At::Unset,
            None => At::Any,
            Some(version) => At::AtLeast(version.clone()),
        };
        let limit = match (&at, self.settings.page_size) {
            (_, Some(size)) => Some(size),
            // The server's cache serves a list without a limit; with one, the server may read etcd.
            (At::AtLeast(_), None) if !self.paginated => None,
            _ => Some(PAGE_SIZE),
        };
        self.start_list(ListPlan { at, limit })
    }

    fn start_list(&mut self, plan: ListPlan) -> Action {
        self.stream = None;
        let attempt =
            ListAttempt { plan: plan.clone(), retried_newest: false, retried_whole: false };
        self.list = Some(attempt);
        Action::List(plan)
    }

    fn listed(&mut self, turn: &Decision<'_>, version: ResourceVersion, paginated: bool) -> Action {
        let asked_any = matches!(&self.list, Some(list) if list.plan.at == At::Any);
        self.paginated |= paginated && asked_any;
        self.version_unavailable = false;
        self.last_version = Some(version);
        self.list = None;
        self.resume(turn)
    }

    fn list_failed(
        &mut self,
        turn: &mut Decision<'_>,
        failure: RequestFailure,
        later_page: bool,
    ) -> Action {
        let gone = matches!(failure.class, Class::Expired | Class::TooLarge);
        if let Some(list) = &mut self.list {
            if later_page && failure.class == Class::Expired && !list.retried_whole {
                list.retried_whole = true;
                return Action::List(ListPlan { at: list.plan.at.clone(), limit: None });
            }
            if gone && !list.retried_newest {
                list.retried_newest = true;
                self.version_unavailable = true;
                return Action::List(ListPlan { at: At::Unset, limit: list.plan.limit });
            }
        }
        self.list = None;
        self.fail(turn, failure, AfterDelay::Cycle, Some(Relist::ListFailed))
    }

    /// Opens a watch at the last version, or starts a cycle without one.
    fn resume(&mut self, turn: &Decision<'_>) -> Action {
        match self.last_version.clone() {
            Some(version) => self.open(turn, At::AtLeast(version), false),
            None => self.begin_cycle(turn),
        }
    }

    fn open(&mut self, turn: &Decision<'_>, at: At, initial_events: bool) -> Action {
        let low = self.settings.watch_timeout_min.as_secs().clamp(WATCH_TIMEOUT_MIN, 1 << 30);
        let timeout_seconds = turn.random.between(low, low * 2) as u32;
        let plan = WatchPlan { at, initial_events, timeout_seconds };
        self.stream = Some(WatchState::new(&plan, turn.now));
        Action::Watch(plan)
    }

    fn opened(&mut self, now: Instant) {
        if let Some(stream) = &mut self.stream {
            stream.opened = now;
            stream.last_frame = now;
        }
    }

    fn event(
        &mut self,
        turn: &mut Decision<'_>,
        seen: EventKind,
        version: ResourceVersion,
    ) -> Action {
        let past = self.is_past(&version);
        let Some(stream) = &mut self.stream else { return Action::Read };
        stream.frame(turn.now, seen);
        turn.step.effect = match (stream.phase, seen) {
            (WatchPhase::Collecting, EventKind::Bookmark { marker: true }) => {
                stream.phase = WatchPhase::Watching;
                self.version_unavailable = false;
                self.cut_watch_lists = 0;
                self.last_version = Some(version);
                Effect::Replace
            }
            (WatchPhase::Collecting, EventKind::Bookmark { marker: false }) => Effect::None,
            (WatchPhase::Collecting, _) => Effect::Collect,
            (_, EventKind::Bookmark { .. }) if past => Effect::Ignore,
            (phase, _) => {
                if phase == WatchPhase::Unordered && seen == EventKind::Added {
                    turn.step.effect = Effect::Apply;
                    return Action::Read;
                }
                stream.phase = WatchPhase::Watching;
                self.last_version = Some(version);
                self.short_watches = 0;
                self.failed_resumes = 0;
                Effect::Apply
            }
        };
        Action::Read
    }

    fn is_past(&self, version: &ResourceVersion) -> bool {
        self.last_version.as_ref().is_some_and(|last| version.is_before(last))
    }

    fn open_failed(&mut self, turn: &mut Decision<'_>, failure: RequestFailure) -> Action {
        if self.is_collecting() {
            return self.watch_list_failed(turn, failure);
        }
        match failure.class {
            Class::Refused | Class::TooManyRequests | Class::Unauthorized | Class::Forbidden => {
                self.fail(turn, failure, AfterDelay::Resume, None)
            }
            Class::Broken | Class::TooLarge => self.failed_resume(turn, failure),
            Class::Expired => self.fail(turn, failure, AfterDelay::Cycle, Some(Relist::Expired)),
            Class::NotServed | Class::NotUnderstood | Class::Other => {
                self.fail(turn, failure, AfterDelay::Cycle, Some(Relist::Other))
            }
        }
    }

    fn stream_error(
        &mut self,
        turn: &mut Decision<'_>,
        failure: RequestFailure,
        internal: bool,
    ) -> Action {
        if self.is_collecting() {
            return self.watch_list_failed(turn, failure);
        }
        match failure.class {
            Class::TooManyRequests => self.fail(turn, failure, AfterDelay::Resume, None),
            Class::Expired => self.fail(turn, failure, AfterDelay::Cycle, Some(Relist::Expired)),
            _ if internal && self.settings.internal_error_retry.is_some() => {
                self.internal_error(turn, failure)
            }
            _ => self.failed_resume(turn, failure),
        }
    }

    /// Retries internal errors at the same version for the configured time.
    fn internal_error(&mut self, turn: &mut Decision<'_>, failure: RequestFailure) -> Action {
        let now = turn.now;
        let patience = self.settings.internal_error_retry.unwrap_or_default();
        let window = match self.internal_errors {
            Some(window) if now.saturating_duration_since(window.last) < INTERNAL_ERROR_QUIET => {
                InternalErrors { last: now, ..window }
            }
            _ => InternalErrors { first: now, last: now },
        };
        self.internal_errors = Some(window);
        if now.saturating_duration_since(window.first) < patience {
            return self.fail(turn, failure, AfterDelay::Resume, None);
        }
        self.internal_errors = None;
        self.fail(turn, failure, AfterDelay::Cycle, Some(Relist::Other))
    }

    fn stream_broken(&mut self, turn: &mut Decision<'_>, failure: RequestFailure) -> Action {
        if self.is_collecting() {
            return self.watch_list_failed(turn, failure);
        }
        self.failed_resume(turn, failure)
    }

    /// Resumes at the last version; the fifth failure in a row starts a new cycle.
    fn failed_resume(&mut self, turn: &mut Decision<'_>, failure: RequestFailure) -> Action {
        let good = self.stream.as_ref().is_some_and(|stream| {
            stream.events > 0 || turn.now.saturating_duration_since(stream.opened) >= GOOD_AFTER
        });
        self.failed_resumes = if good { 1 } else { self.failed_resumes + 1 };
        if self.failed_resumes < FAILED_RESUMES_MAX {
            return self.fail(turn, failure, AfterDelay::Resume, None);
        }
        self.fail(turn, failure, AfterDelay::Cycle, Some(Relist::FailedResumes))
    }

    fn watch_list_failed(&mut self, turn: &mut Decision<'_>, failure: RequestFailure) -> Action {
        match failure.class {
            Class::Refused | Class::TooManyRequests => {
                self.fail(turn, failure, AfterDelay::Cycle, None)
            }
            Class::Expired | Class::TooLarge if !self.version_unavailable => {
                self.version_unavailable = true;
                self.watch_list(turn)
            }
            // Not even the newest version is available: wait.
            Class::Expired | Class::TooLarge => self.fail(turn, failure, AfterDelay::Cycle, None),
            Class::NotUnderstood => self.give_up_watch_list(turn),
            _ => self.fall_back(turn),
        }
    }

    fn give_up_watch_list(&mut self, turn: &mut Decision<'_>) -> Action {
        self.watch_list_off_until = Some(turn.now + WATCH_LIST_OFF);
        self.cut_watch_lists = 0;
        self.fall_back(turn)
    }

    fn fall_back(&mut self, turn: &mut Decision<'_>) -> Action {
        turn.step.fell_back = true;
        self.first_list()
    }

    fn stream_ended(&mut self, turn: &mut Decision<'_>) -> Action {
        let Some(stream) = self.stream.take() else { return self.resume(turn) };
        if stream.phase == WatchPhase::Collecting {
            return self.cut_watch_list(turn);
        }
        let lived = turn.now.saturating_duration_since(stream.opened);
        if lived < SHORT && stream.events == 0 {
            return self.short_watch(turn);
        }
        self.short_watches = 0;
        self.failed_resumes = 0;
        if lived < stream.timeout.mul_f64(0.9) {
            return self.wait(AfterDelay::Resume, turn.random.part_of(SPREAD, 1.0));
        }
        self.resume(turn)
    }

    fn cut_watch_list(&mut self, turn: &mut Decision<'_>) -> Action {
        self.cut_watch_lists += 1;
        if self.cut_watch_lists > 1 {
            return self.give_up_watch_list(turn);
        }
        let cut = RequestFailure { class: Class::Broken, retry_after: None };
        self.fail(turn, cut, AfterDelay::Cycle, None)
    }

    fn short_watch(&mut self, turn: &mut Decision<'_>) -> Action {
        self.short_watches += 1;
        let short = RequestFailure { class: Class::Broken, retry_after: None };
        if self.short_watches < SHORT_MAX {
            return self.fail(turn, short, AfterDelay::Resume, None);
        }
        self.fail(turn, short, AfterDelay::Cycle, Some(Relist::ShortWatches))
    }

    fn silent(&mut self, turn: &mut Decision<'_>) -> Action {
        match self.stream.take() {
            Some(stream) if stream.phase == WatchPhase::Collecting => self.give_up_watch_list(turn),
            _ => self.wait(AfterDelay::Resume, turn.random.part_of(SPREAD, 1.0)),
        }
    }

    /// Reports the failure and waits; `not_served` decides about 404.
    fn fail(
        &mut self,
        turn: &mut Decision<'_>,
        failure: RequestFailure,
        after: AfterDelay,
        relist: Option<Relist>,
    ) -> Action {
        turn.step.failed = true;
        turn.step.relist = relist;
        self.stream = None;
        let delay = match (failure.class, self.settings.not_served) {
            (Class::NotServed, NotServed::Stop) => return Action::Stop,
            (Class::NotServed, NotServed::AwaitDiscovery) => return Action::AwaitDiscovery,
            (Class::NotServed, NotServed::Retry) => self.backoff.longest(turn.now, turn.random),
            _ => self.backoff.next(turn.now, turn.random, failure.retry_after),
        };
        self.wait(after, delay)
    }

    fn wait(&mut self, after: AfterDelay, delay: Duration) -> Action {
        self.stream = None;
        self.after_delay = after;
        Action::Wait(delay)
    }
}

/// The inputs of a decision and its result so far.
struct Decision<'a> {
    now: Instant,
    random: &'a Random,
    step: MachineOutput,
}

impl MachineOutput {
    fn new() -> MachineOutput {
        MachineOutput {
            action: Action::Read,
            effect: Effect::None,
            failed: false,
            relist: None,
            fell_back: false,
        }
    }
}

#[cfg(test)]
mod tests;
