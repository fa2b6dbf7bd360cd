//! Watch streams: a cursor of the cache as an endless body.
//!
//! River: watcher → frames → **watch** → HTTP. The stream reads from the cache only when the socket
//! has taken the previous chunk, so a slow client costs a cursor and delays no other (R30).
//! Promise: every chunk consists of complete frames (R40); an error after the 200 is one ERROR event
//! and the end of the stream (R41).

mod permission;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use futures::Stream;
use headwater_api::options::{Freshness, Start as Asked, WatchOptions};
use headwater_api::{Object, Revision, Status};
use headwater_cache::{Filter, WatchEvent, WatchStart, WatchStep, Watcher};
use http::StatusCode;
use http::header;
use tokio::time::{Instant, Sleep};

use crate::answer::body::{self, Data, Response};
use crate::answer::status;
use crate::front::identity::Peer;
use crate::front::listen;
use crate::kinds::versions;
use crate::live::watches::{WatchDescription, WatchEntry};
use crate::random;
use crate::request::call::Call;
use crate::request::flow::seat::{HeldSeat, Seat};
use crate::request::observe::{self, WatchMetrics};
use crate::request::route::{ResourcePath, Route, Verb};
use crate::server::Server;
use crate::verbs::encode::frames::Frames;
use crate::verbs::websocket;
use permission::WatchPermission;

/// A bookmark is sent this long before a stream ends by its timeout (S4.12).
const LAST_BOOKMARK: Duration = Duration::from_secs(2);

/// How often a watch that owes a prompt bookmark looks whether it has caught up.
const PROMPT: Duration = Duration::from_millis(2);

/// Starts a watch.
pub(crate) async fn start(
    server: &Server,
    call: &Call,
    (route, resource): (&Route, &ResourcePath),
    upgrade: Option<hyper::upgrade::OnUpgrade>,
    peer: &Peer,
    seat: &mut Seat,
) -> Result<Response, Status> {
    let kind = &resource.kind;
    if !Verb::Watch.is_served(resource, &call.method) {
        return Err(status::method_not_allowed());
    }
    call.warn(kind.deprecation.as_ref().map(ToString::to_string));
    if !kind.allows("watch") {
        return Err(match kind.allows("list") {
            true => status::verb_not_supported(kind, "watch"),
            false => status::method_not_allowed(),
        });
    }
    let options = WatchOptions::parse(&call.query, kind, kind.storage())?;
    kind.check_fields(&options.fields)?;
    let fields = match resource.name.as_str() {
        "" => options.fields.clone(),
        name => options.fields.clone().and_named(name)?,
    };
    let filter = Filter {
        namespace: resource.namespace.clone(),
        labels: options.labels.clone(),
        fields,
        shard: options.shard.clone(),
    };
    let has_state = !matches!(options.start, Asked::FromLatest | Asked::FromAny);
    let frames = Frames::new(kind, call.representation, server.clock(), has_state);
    let framed = (frames, call.representation.prompt_bookmark);
    let place = server.stream_limits().watch(&call.identity)?;
    let watched =
        WatchMetrics::new(server.metrics(), kind, &resource.namespace, &resource.name, place);
    let entry = server.live().watches().open(&WatchDescription {
        identity: &call.identity,
        kind,
        namespace: &resource.namespace,
        label_selector: call.query.text("labelSelector"),
        field_selector: match resource.name.as_str() {
            "" => call.query.text("fieldSelector"),
            name => name,
        },
        user_agent: call.header(header::USER_AGENT),
        address: peer.address,
        opened: server.now(),
    });
    // A stream must not outlive the credential that opened it.
    let credential = call.identity.expires.map(|expires| {
        Duration::try_from(expires.duration_since(server.now())).unwrap_or_default()
    });
    let mut stream =
        Streaming::new(server, resource, filter, &options, framed, (watched, entry), credential);
    if let Some(permission) = WatchPermission::new(server, call, route) {
        stream.confirm(permission);
    }
    if matches!(options.start, Asked::FromLatest | Asked::FromAny) {
        stream.begin_now().await;
    }
    let seat = seat.take();
    stream.seat = seat.filter(|_| matches!(options.start, Asked::Initial { .. }));
    if websocket::is_asked_for(call) {
        return websocket::upgrade(call, upgrade, peer, stream);
    }
    let body = body::stream(stream.chunks());
    let mut response = body::answer(StatusCode::OK, call.representation.stream_type(), body);
    response.extensions_mut().insert(listen::LongRunning);
    Ok(response)
}

/// One running watch.
pub(crate) struct Streaming {
    server: Server,
    resource: Arc<headwater_cache::Resource>,
    filter: Filter,
    asked: Asked,
    bookmarks: bool,
    /// The first bookmark is due as soon as the stream has caught up.
    is_prompt: bool,
    frames: Frames,
    watched: WatchMetrics,
    entry: WatchEntry,
    ends: Instant,
    /// Fires when a bookmark is due or the stream ends. It exists as long as the stream, so that an
    /// event needs no timer registration.
    timer: Pin<Box<Sleep>>,
    /// The highest revision on the stream so far.
    sent: Revision,
    phase: Phase,
    /// Held until the initial events are sent.
    seat: Option<HeldSeat>,
    /// Confirmed again while the watch is open, at a relay.
    permission: Option<Box<WatchPermission>>,
}

enum Phase {
    /// Not started.
    Starting,
    /// The cursor moves.
    Running(Box<Watcher>),
    /// The last frame was sent.
    Done,
}

impl Streaming {
    fn new(
        server: &Server,
        resource: &ResourcePath,
        filter: Filter,
        options: &WatchOptions,
        (frames, is_prompt): (Frames, bool),
        (watched, entry): (WatchMetrics, WatchEntry),
        credential: Option<Duration>,
    ) -> Streaming {
        let now = Instant::now();
        let asked = options.timeout.unwrap_or_else(|| spread(server.settings().watch_timeout));
        let lasts = credential.map_or(asked, |left| left.min(asked));
        let ends = now + lasts;
        let every = if is_prompt { PROMPT } else { server.settings().bookmark_every };
        let wake = wake(now, ends, every);
        Streaming {
            resource: server.cache_of(&resource.kind).resource(&resource.kind.prefix),
            server: server.clone(),
            filter,
            asked: options.start,
            bookmarks: options.bookmarks,
            is_prompt,
            frames,
            watched,
            entry,
            ends,
            timer: Box::pin(tokio::time::sleep_until(wake)),
            sent: Revision::ZERO,
            phase: Phase::Starting,
            seat: None,
            permission: None,
        }
    }

    /// Ends the watch when its reader loses this permission.
    fn confirm(&mut self, permission: Box<WatchPermission>) {
        self.permission = Some(permission);
        let next = self.next_wake(Instant::now());
        self.timer.as_mut().reset(next);
    }

    /// The next time of the timer.
    fn next_wake(&self, now: Instant) -> Instant {
        let every = if self.is_prompt { PROMPT } else { self.server.settings().bookmark_every };
        let next = wake(now, self.ends, every);
        self.permission.as_ref().map_or(next, |permission| next.min(permission.due()))
    }

    /// The stream of chunks, each with one or more complete frames. Boxed, because every chunk moves
    /// it twice.
    pub(crate) fn chunks(self) -> impl Stream<Item = Data> + Send {
        futures::stream::unfold(Box::new(self), |mut streaming| async move {
            let chunk = streaming.next().await?;
            Some((chunk, streaming))
        })
    }

    /// The next chunk; `None` is the clean end. A watch waits here most of the time, so rare work has
    /// a boxed future that is freed afterwards.
    pub(crate) async fn next(&mut self) -> Option<Data> {
        loop {
            match &mut self.phase {
                Phase::Done => return None,
                Phase::Starting => {
                    if let Some(chunk) = Box::pin(self.begin()).await {
                        return Some(chunk.into());
                    }
                }
                Phase::Running(watcher) => {
                    let woken = tokio::select! {
                        biased;
                        () = self.timer.as_mut() => Ok(None),
                        status = permission::lost(&mut self.permission) => Err(status),
                        step = watcher.next() => Ok(Some(step)),
                    };
                    self.entry.reached(watcher.position());
                    let step = match woken {
                        Ok(step) => step,
                        Err(status) => return Some(self.fail(&status).into()),
                    };
                    let chunk = match step {
                        Some(step) if self.frames.kind().conversion().is_some() => {
                            Box::pin(self.take_converted(step)).await
                        }
                        Some(step) => self.take(step, &[]),
                        None => self.tick().map(Data::from),
                    };
                    if let Some(chunk) = chunk {
                        self.entry.sent(chunk.remaining());
                        return Some(chunk);
                    }
                }
            }
        }
    }

    /// Whether the frames are binary.
    pub(crate) fn is_binary(&self) -> bool {
        self.frames.are_binary()
    }

    /// Starts before the response is sent, so that the next write of the client is not missed.
    async fn begin_now(&mut self) {
        if self.begin().await.is_some() {
            // The error occurs again in the stream, where the client sees it.
            self.phase = Phase::Starting;
        }
    }

    /// Waits for the requested freshness, then creates the cursor.
    async fn begin(&mut self) -> Option<Bytes> {
        let cache = self.server.sampled_cache(self.frames.kind()).await;
        let freshness = match self.asked {
            Asked::Initial { at, .. } => at,
            Asked::FromLatest => Freshness::Latest,
            Asked::FromAny | Asked::After(_) => Freshness::Any,
        };
        let wait = async {
            match freshness {
                Freshness::Any => Ok(Revision::ZERO),
                Freshness::Latest => cache.consistent().await,
                Freshness::NotOlderThan(revision) => cache.reach(revision).await,
            }
        };
        let metrics = self.server.metrics();
        let waited = observe::waiting(metrics, self.frames.kind(), freshness, wait).await;
        if let Err(error) = waited {
            return Some(self.fail(&status::from_cache(&error)));
        }
        let start = match self.asked {
            Asked::Initial { .. } => WatchStart::Initial,
            Asked::After(revision) => {
                self.sent = revision;
                WatchStart::After(revision)
            }
            Asked::FromLatest | Asked::FromAny => WatchStart::Now,
        };
        let watcher = cache.watch(&self.resource, &self.filter, start);
        // A changed definition may have other selectable fields. The registry changes before the
        // cache, so either this check sees it or the cache ends the watcher.
        if !self.server.registry().serves(self.frames.kind()) {
            self.phase = Phase::Done;
            return None;
        }
        self.entry.began(watcher.vantage(), watcher.position());
        self.phase = Phase::Running(Box::new(watcher));
        None
    }

    /// Converts the objects of a step by webhook if the kind has one. If that fails, the stream ends
    /// with the error; the client resumes at its last revision.
    async fn take_converted(&mut self, step: WatchStep) -> Option<Data> {
        let objects: Vec<Arc<Object>> = match &step {
            WatchStep::Initial(objects) => objects.clone(),
            WatchStep::Events(events) => {
                events.iter().map(|event| Arc::clone(event.object())).collect()
            }
            _ => return self.take(step, &[]),
        };
        let made = tokio::select! {
            biased;
            made = versions::objects(self.server.converter(), self.frames.kind(), &objects) => made,
            () = self.server.draining().cancelled() => {
                self.phase = Phase::Done;
                return None;
            }
        };
        match made {
            Ok(made) => self.take(step, &made),
            Err(status) => Some(self.fail(&status).into()),
        }
    }

    /// Frames of a step; `made` are its objects where a webhook was asked.
    fn take(&mut self, step: WatchStep, made: &[Arc<Object>]) -> Option<Data> {
        if !matches!(step, WatchStep::Initial(_)) {
            self.seat = None;
        }
        match step {
            WatchStep::Initial(objects) => {
                let objects = if made.is_empty() { &objects } else { made };
                let chunk = self.frames.initial(objects);
                self.count(objects.len(), &chunk);
                Some(chunk)
            }
            WatchStep::Synced(revision) => {
                self.sent = self.sent.max(revision);
                let mark = matches!(self.asked, Asked::Initial { mark: true, .. });
                mark.then(|| {
                    self.watched.listed(self.frames.kind());
                    self.frames.bookmark(revision, true).into()
                })
            }
            WatchStep::Events(events) => {
                self.sent = events.last().map_or(self.sent, WatchEvent::revision);
                let chunk = self.frames.events(&events, made);
                self.count(events.len(), &chunk);
                self.server.tracer().sent(self.resource.prefix(), &events);
                Some(chunk)
            }
            WatchStep::Expired { asked, oldest } => {
                Some(self.fail(&status::too_old(asked, oldest)).into())
            }
            WatchStep::Failed(error) => Some(self.fail(&status::from_cache(&error)).into()),
            WatchStep::Stopping(reached) => {
                self.phase = Phase::Done;
                self.bookmark(reached).map(Data::from)
            }
            WatchStep::Closed => {
                self.phase = Phase::Done;
                None
            }
        }
    }

    fn count(&self, events: usize, chunk: &Data) {
        self.watched.sent(events, chunk.remaining());
        self.entry.sent_events(events);
    }

    /// Handles the timer: a bookmark is due, or the stream ends.
    fn tick(&mut self) -> Option<Bytes> {
        let now = Instant::now();
        // Called without bookmarks too: it advances an idle watcher.
        let reached = match &mut self.phase {
            Phase::Running(watcher) => {
                let reached = watcher.progress();
                self.entry.reached(watcher.position());
                reached
            }
            Phase::Starting | Phase::Done => None,
        };
        let bookmark = self.bookmark(reached);
        if now >= self.ends {
            self.phase = Phase::Done;
        } else {
            self.is_prompt &= reached.is_none();
            if let Some(permission) = &mut self.permission {
                permission.tick(now);
            }
            let next = self.next_wake(now);
            self.timer.as_mut().reset(next);
        }
        bookmark
    }

    /// A bookmark, if bookmarks are enabled and the stream is behind the cache (S4.12).
    fn bookmark(&mut self, reached: Option<Revision>) -> Option<Bytes> {
        let revision = reached.filter(|revision| *revision > self.sent)?;
        if !self.bookmarks {
            return None;
        }
        self.sent = revision;
        Some(self.frames.bookmark(revision, false))
    }

    fn fail(&mut self, status: &Status) -> Bytes {
        self.phase = Phase::Done;
        self.frames.error(status)
    }
}

/// The next time of the timer: the next bookmark, shortly before the end, or the end.
fn wake(now: Instant, ends: Instant, bookmark_every: Duration) -> Instant {
    let last = ends.checked_sub(LAST_BOOKMARK).filter(|last| *last > now).unwrap_or(ends);
    last.min(now + bookmark_every)
}

/// A random duration between one and two times the given one, so that watches do not all end at
/// once.
fn spread(time: Duration) -> Duration {
    let random = f64::from(random::id().as_fields().0) / f64::from(u32::MAX);
    time.mul_f64(1.0 + random)
}
