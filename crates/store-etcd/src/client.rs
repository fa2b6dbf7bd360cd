//! Calls to whichever member answers.
//!
//! River: engine → **client** → etcd. Promise: every call ends within its deadline; a read is tried
//! with the other members, a write is sent once (R42): it is sent again only if it certainly never
//! left. What members answer is remembered: the newest revision, and whether this is still the same
//! cluster (R37).

use std::error::Error as _;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::stream;
use headwater_api::Revision;
use http::uri::PathAndQuery;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};
use tonic::client::Grpc;
use tonic::codec::Streaming;
use tonic::metadata::{AsciiMetadataValue, MetadataMap};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Status};

use crate::backoff::Backoff;
use crate::convert::revision;
use crate::proto::{
    AUTHENTICATE, Answer, AuthenticateRequest, AuthenticateResponse, Header, RANGE, TXN, WATCH,
    Watch, WatchCreate, WatchRequest, WatchResponse, Wire,
};

/// Files for TLS, as PEM.
#[derive(Clone, Default)]
pub struct Tls {
    /// Whom to trust.
    pub ca: Vec<u8>,
    /// Who we are: a certificate and its key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

/// A user of etcd.
#[derive(Clone)]
pub struct Login {
    /// Its name.
    pub name: String,
    /// Its password.
    pub password: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Why a call did not do what it was to do.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// That history is gone.
    #[error("the revision was compacted")]
    Compacted,
    /// That revision has not been reached.
    #[error("the revision is in the future")]
    Future,
    /// The lease has run out.
    #[error("the lease is gone")]
    NoLease,
    /// The token was valid once, or never.
    #[error("the login is not valid any more")]
    StaleToken,
    /// etcd will not do this.
    #[error("etcd refuses: {0}")]
    Refused(String),
    /// Nothing can be written until an operator makes room.
    #[error("etcd is full: {0}")]
    Full(String),
    /// Nobody answered.
    #[error("{why}")]
    Unreachable {
        why: String,
        /// Whether it may have been done all the same.
        may_be_done: bool,
    },
}

/// Whether a call may be made again when its answer does not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Calls {
    /// Any number of times.
    Freely,
    /// Only if it certainly was not made.
    Once,
}

/// The members of a cluster.
pub(crate) struct Client {
    members: Vec<Member>,
    /// The member that is asked first: the last that answered.
    current: AtomicUsize,
    login: Option<Login>,
    token: Mutex<Option<AsciiMetadataValue>>,
    deadline: Duration,
    seen: watch::Sender<Seen>,
    cluster: AtomicU64,
    trouble: Mutex<Trouble>,
}

/// Why calls fail at the moment. Only calls that need a quorum say anything about it: a member that
/// is alone still answers others.
#[derive(Debug, Default)]
struct Trouble {
    unreachable: Option<String>,
    /// Reads work then, and say nothing about it.
    full: Option<String>,
}

/// How far the cluster is known to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) revision: Revision,
    /// Grows each time the cluster turns out not to be what it was: what was known before is not
    /// true any more.
    pub(crate) epoch: u64,
}

struct Member {
    url: String,
    calls: Channel,
    /// The watch of the process has a connection of its own: a long answer to a read does not hold
    /// it up, nor do readers of history who do not read on.
    live: Channel,
    history: Channel,
}

/// What a watch is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// It is read as fast as it comes.
    Live,
    /// It may be left unread for long.
    History,
}

/// How long a connection may take.
const CONNECT_MAX: Duration = Duration::from_secs(2);

/// A connection on which nothing is heard is asked for a sign of life after this, and has as long to
/// give it. etcd takes more frequent pings than every five seconds for an attack.
const PING_EVERY: Duration = Duration::from_secs(6);

/// Bytes that may be on their way to us: a page of a list.
const CONNECTION_WINDOW: u32 = 8 << 20;
const STREAM_WINDOW: u32 = 4 << 20;

/// Bytes that wait for one reader of history. What it leaves unread counts for its whole connection,
/// so that has room for thousands of them.
const HISTORY_STREAM_WINDOW: u32 = 256 << 10;
const HISTORY_CONNECTION_WINDOW: u32 = (1 << 31) - 1;

impl Client {
    pub(crate) fn new(
        urls: &[String],
        tls: Option<&Tls>,
        login: Option<Login>,
        deadline: Duration,
    ) -> Result<Client, String> {
        let members = urls.iter().map(|url| Member::new(url, tls)).collect::<Result<_, _>>()?;
        Ok(Client {
            members,
            current: AtomicUsize::new(0),
            login,
            token: Mutex::new(None),
            deadline,
            seen: watch::Sender::new(Seen::default()),
            cluster: AtomicU64::new(0),
            trouble: Mutex::default(),
        })
    }

    pub(crate) fn members(&self) -> usize {
        self.members.len()
    }

    pub(crate) fn url(&self, member: usize) -> &str {
        &self.members[member % self.members.len()].url
    }

    /// The member that answers at the moment.
    pub(crate) fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed)
    }

    /// How far the cluster is known to be.
    pub(crate) fn seen(&self) -> Seen {
        *self.seen.borrow()
    }

    pub(crate) fn follow_seen(&self) -> watch::Receiver<Seen> {
        self.seen.subscribe()
    }

    /// Why calls fail at the moment, if they do.
    pub(crate) fn trouble(&self) -> Option<String> {
        let trouble = self.trouble_mut();
        trouble.unreachable.clone().or_else(|| trouble.full.clone())
    }

    /// Whether nothing can be written for lack of space.
    pub(crate) fn is_full(&self) -> bool {
        self.trouble_mut().full.is_some()
    }

    fn trouble_mut(&self) -> MutexGuard<'_, Trouble> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers how a call that needs a quorum went.
    fn note_trouble(&self, path: &str, failure: Option<&Failure>) {
        let mut trouble = self.trouble_mut();
        trouble.unreachable = match failure {
            Some(Failure::Unreachable { why, .. }) => Some(why.clone()),
            _ => None,
        };
        if path == TXN {
            trouble.full = match failure {
                Some(Failure::Full(why)) => Some(why.clone()),
                _ => None,
            };
        }
    }

    /// Makes a call to the first member that answers.
    pub(crate) async fn call<Req, Res>(
        &self,
        path: &'static str,
        request: Req,
        calls: Calls,
    ) -> Result<Res, Failure>
    where
        Req: prost::Message + Clone + 'static,
        Res: Answer,
    {
        let known = self.seen();
        let answer = self.persist(path, request, calls).await;
        // Only these ask a quorum; others may be answered by a member that lags.
        let is_fresh = path == RANGE || path == TXN;
        if is_fresh {
            self.note_trouble(path, answer.as_ref().err());
        }
        let answer: Res = answer?;
        self.note(answer.header(), known.revision, is_fresh);
        Ok(answer)
    }

    async fn persist<Req, Res>(
        &self,
        path: &'static str,
        request: Req,
        calls: Calls,
    ) -> Result<Res, Failure>
    where
        Req: prost::Message + Clone + 'static,
        Res: Answer,
    {
        let until = Instant::now() + self.deadline;
        // A member that keeps silent must leave time to ask another.
        let patience = match calls {
            Calls::Freely if self.members.len() > 1 => self.deadline / 2,
            _ => self.deadline,
        };
        let (mut backoff, mut renewed) = (Backoff::default(), false);
        loop {
            let member = self.current();
            let left = until.saturating_duration_since(Instant::now()).min(patience);
            let failure = match self.once(member, path, request.clone(), left).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            let again = match &failure {
                Failure::Unreachable { may_be_done, .. } => {
                    self.move_on(member);
                    calls == Calls::Freely || !may_be_done
                }
                // It was refused before anything was done.
                Failure::StaleToken => {
                    self.forget_token();
                    !std::mem::replace(&mut renewed, true)
                }
                _ => false,
            };
            let pause = backoff.next();
            if !again || Instant::now() + pause >= until {
                return Err(failure);
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// One call to one member.
    pub(crate) async fn once<Req, Res>(
        &self,
        member: usize,
        path: &'static str,
        request: Req,
        patience: Duration,
    ) -> Result<Res, Failure>
    where
        Req: prost::Message + 'static,
        Res: Answer,
    {
        let member = &self.members[member % self.members.len()];
        let exchange = async {
            let metadata = self.metadata(member).await?;
            member.exchange(path, request, metadata).await.map_err(|status| failure(&status))
        };
        match timeout(patience, exchange).await {
            Ok(answer) => answer.map_err(|failure| failure.at(&member.url)),
            Err(_) => {
                let why = format!("{} did not answer in time", member.url);
                Err(Failure::Unreachable { why, may_be_done: true })
            }
        }
    }

    /// Opens a watch with one member; the sender takes further requests.
    pub(crate) async fn watch(
        &self,
        member: usize,
        create: WatchCreate,
        purpose: Purpose,
    ) -> Result<(mpsc::Sender<WatchRequest>, Streaming<WatchResponse>), Failure> {
        let member = &self.members[member % self.members.len()];
        let opened = async {
            let mut metadata = self.metadata(member).await?;
            // Without it a member cut off from the others would keep a watch that never moves.
            metadata.insert("hasleader", AsciiMetadataValue::from_static("true"));
            let (sender, receiver) = mpsc::channel(REQUESTS_MAX);
            let create = WatchRequest { request: Some(Watch::Create(create)) };
            sender.try_send(create).expect("a new channel has room");
            let opened = member.watch(receiver, metadata, purpose).await;
            Ok::<_, Failure>((sender, opened.map_err(|status| failure(&status))?))
        };
        match timeout(self.deadline, opened).await {
            Ok(opened) => opened.map_err(|failure| failure.at(&member.url)),
            Err(_) => {
                let why = format!("{} did not open a watch in time", member.url);
                Err(Failure::Unreachable { why, may_be_done: false })
            }
        }
    }

    /// Asks another member first from now on, unless somebody has decided so already.
    fn move_on(&self, member: usize) {
        let next = (member + 1) % self.members.len();
        let _ = self.current.compare_exchange(member, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    async fn metadata(&self, member: &Member) -> Result<MetadataMap, Failure> {
        let mut metadata = MetadataMap::new();
        if let Some(login) = &self.login {
            metadata.insert("token", self.token(member, login).await?);
        }
        Ok(metadata)
    }

    async fn token(&self, member: &Member, login: &Login) -> Result<AsciiMetadataValue, Failure> {
        if let Some(token) = &*self.token.lock().unwrap_or_else(PoisonError::into_inner) {
            return Ok(token.clone());
        }
        let (name, password) = (login.name.clone(), login.password.clone());
        let request = AuthenticateRequest { name, password };
        let answer = member.exchange(AUTHENTICATE, request, MetadataMap::new()).await;
        let answer: AuthenticateResponse = answer.map_err(|status| match failure(&status) {
            // Nothing but the login was sent.
            Failure::Unreachable { why, .. } => Failure::Unreachable { why, may_be_done: false },
            failure => failure,
        })?;
        let token = AsciiMetadataValue::try_from(answer.token.as_str());
        let token = token.map_err(|_| Failure::Refused("its token is not text".into()))?;
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = Some(token.clone());
        Ok(token)
    }

    pub(crate) fn forget_token(&self) {
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Remembers what an answer says about the cluster. `known` was the newest revision before the
    /// question was asked: a fresh answer cannot be older.
    pub(crate) fn note(&self, header: Option<&Header>, known: Revision, is_fresh: bool) {
        let Some(header) = header else { return };
        let at = revision(header.revision);
        let before = self.cluster.swap(header.cluster_id, Ordering::Relaxed);
        let is_other = before != 0 && before != header.cluster_id;
        let is_older = is_fresh && at < known;
        self.seen.send_if_modified(|seen| {
            // Of several answers that were under way, the first finds out.
            if is_other || (is_older && at < seen.revision) {
                tracing::error!(known = %seen.revision, newest = %at, "etcd is not what it was");
                *seen = Seen { revision: at, epoch: seen.epoch + 1 };
                return true;
            }
            let is_news = at > seen.revision;
            seen.revision = seen.revision.max(at);
            is_news
        });
    }
}

/// Requests on one watch that wait to be sent; further questions about progress are not needed then.
const REQUESTS_MAX: usize = 4;

impl Member {
    fn new(url: &str, tls: Option<&Tls>) -> Result<Member, String> {
        let malformed = |error: tonic::transport::Error| format!("{url}: {}", innermost(&error));
        let mut endpoint = Endpoint::from_shared(url.to_owned()).map_err(malformed)?;
        endpoint = endpoint
            .connect_timeout(CONNECT_MAX)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_EVERY)
            .keep_alive_while_idle(true)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .initial_stream_window_size(STREAM_WINDOW);
        if let Some(tls) = tls {
            let mut config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&tls.ca));
            if let Some((certificate, key)) = &tls.identity {
                config = config.identity(Identity::from_pem(certificate, key));
            }
            endpoint = endpoint.tls_config(config).map_err(malformed)?;
        }
        let (calls, live) = (endpoint.connect_lazy(), endpoint.connect_lazy());
        let history = endpoint
            .initial_connection_window_size(HISTORY_CONNECTION_WINDOW)
            .initial_stream_window_size(HISTORY_STREAM_WINDOW)
            .connect_lazy();
        Ok(Member { url: url.to_owned(), calls, live, history })
    }

    async fn exchange<Req, Res>(
        &self,
        path: &'static str,
        request: Req,
        metadata: MetadataMap,
    ) -> Result<Res, Status>
    where
        Req: prost::Message + 'static,
        Res: Answer,
    {
        let mut grpc = Grpc::new(self.calls.clone()).max_decoding_message_size(usize::MAX);
        grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
        let request = tonic::Request::from_parts(metadata, tonic::Extensions::default(), request);
        let path = PathAndQuery::from_static(path);
        let answer = grpc.unary(request, path, Wire::<Req, Res>::default()).await?;
        Ok(answer.into_inner())
    }

    async fn watch(
        &self,
        requests: mpsc::Receiver<WatchRequest>,
        metadata: MetadataMap,
        purpose: Purpose,
    ) -> Result<Streaming<WatchResponse>, Status> {
        let channel = match purpose {
            Purpose::Live => self.live.clone(),
            Purpose::History => self.history.clone(),
        };
        let mut grpc = Grpc::new(channel).max_decoding_message_size(usize::MAX);
        grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
        let requests =
            stream::unfold(requests, async |mut requests| Some((requests.recv().await?, requests)));
        let request = tonic::Request::from_parts(metadata, tonic::Extensions::default(), requests);
        let path = PathAndQuery::from_static(WATCH);
        let answer = grpc.streaming(request, path, Wire::default()).await?;
        Ok(answer.into_inner())
    }
}

impl Failure {
    /// Says which member it was.
    fn at(self, url: &str) -> Failure {
        match self {
            Failure::Unreachable { why, may_be_done } => {
                Failure::Unreachable { why: format!("{url}: {why}"), may_be_done }
            }
            failure => failure,
        }
    }
}

/// What an answer that is not one means: the only place that reads codes of gRPC and texts of etcd.
pub(crate) fn failure(status: &Status) -> Failure {
    let text = status.message();
    let says = |part: &str| text.contains(part);
    match status.code() {
        Code::OutOfRange if says("compacted") => Failure::Compacted,
        Code::OutOfRange if says("future revision") => Failure::Future,
        Code::NotFound if says("lease not found") => Failure::NoLease,
        Code::Unauthenticated => Failure::StaleToken,
        Code::ResourceExhausted if says("space exceeded") => Failure::Full(text.to_owned()),
        Code::InvalidArgument
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::NotFound
        | Code::Unimplemented
        | Code::ResourceExhausted => Failure::Refused(text.to_owned()),
        _ => {
            let why = match status.source() {
                Some(source) => innermost(source),
                None => text.to_owned(),
            };
            Failure::Unreachable { why, may_be_done: !is_unsent(status) }
        }
    }
}

/// Whether there never was a connection to send it on.
fn is_unsent(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// The cause of the causes: it says most.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(code: Code, text: &str, expected: &str) {
        let found = format!("{:?}", failure(&Status::new(code, text)));
        assert!(found.starts_with(expected), "{found}");
    }

    #[test]
    fn what_etcd_says_is_told_apart() {
        check(
            Code::OutOfRange,
            "etcdserver: mvcc: required revision has been compacted",
            "Compacted",
        );
        check(
            Code::OutOfRange,
            "etcdserver: mvcc: required revision is a future revision",
            "Future",
        );
        check(Code::NotFound, "etcdserver: requested lease not found", "NoLease");
        check(Code::Unauthenticated, "etcdserver: invalid auth token", "StaleToken");
        check(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded", "Full");
        check(Code::InvalidArgument, "etcdserver: request is too large", "Refused");
        check(Code::PermissionDenied, "etcdserver: permission denied", "Refused");
        // Whether a write happened is then unknown.
        for code in [Code::Unavailable, Code::DeadlineExceeded, Code::Cancelled, Code::Unknown] {
            let unknown = failure(&Status::new(code, "etcdserver: request timed out"));
            assert!(matches!(unknown, Failure::Unreachable { may_be_done: true, .. }), "{code:?}");
        }
    }

    #[test]
    fn only_what_never_had_a_connection_is_certainly_not_done() {
        let refused = tonic::ConnectError("refused".into());
        let unsent = failure(&Status::from_error(Box::new(refused)));
        assert!(matches!(unsent, Failure::Unreachable { may_be_done: false, .. }), "{unsent:?}");
        let broken = std::io::Error::other("reset");
        let unknown = failure(&Status::from_error(Box::new(broken)));
        assert!(matches!(unknown, Failure::Unreachable { may_be_done: true, .. }), "{unknown:?}");
    }
}
