//! The client of a cluster: sends each call to a member that responds.
//!
//! River: session → **client** → etcd.
//! Promise: every call ends within its deadline. A read is retried with other members; a write is
//! sent again only if it certainly was not sent before (R42). The client tracks the newest revision
//! of all responses, and whether they come from the same cluster (R37).

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use headwater_api::Revision;
use headwater_api::backoff::Backoff;
use headwater_api::random::Random;
use headwater_store::lock::lock;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};
use tonic::codec::Streaming;
use tonic::metadata::{AsciiMetadataValue, MetadataMap};

use crate::call_error::{CallError, call_error};
use crate::convert::revision;
use crate::member::{Member, Tls, WatchPurpose};
use crate::proto::{
    AUTHENTICATE, AuthenticateRequest, AuthenticateResponse, EtcdResponse, Header, RANGE, TXN,
    Watch, WatchCreate, WatchRequest, WatchResponse,
};

/// The credentials of an etcd user.
#[derive(Clone)]
pub struct Login {
    /// The user name.
    pub name: String,
    /// The password.
    pub password: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("name", &self.name).finish_non_exhaustive()
    }
}

/// When to send a call again after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    /// After every failure, until the deadline.
    Always,
    /// Only if the call certainly was not sent.
    IfUnsent,
}

/// The delays between attempts. The jitter keeps replicas that lost the same member from
/// reconnecting at the same time.
pub(crate) fn backoff() -> Backoff {
    Backoff::new(Duration::from_millis(20), Duration::from_secs(2), 0.5..1.0)
}

/// A client of all members of a cluster.
pub(crate) struct Client {
    members: Vec<Member>,
    /// The member to call first: the last one that responded.
    current: AtomicUsize,
    login: Option<Login>,
    token: Mutex<Option<AsciiMetadataValue>>,
    deadline: Duration,
    /// The newest revision of any response.
    known: watch::Sender<EpochRevision>,
    cluster: AtomicU64,
    trouble: Mutex<Trouble>,
}

/// Why calls fail at the moment. Only calls that need a quorum count: an isolated member still
/// responds to others.
#[derive(Debug, Default)]
struct Trouble {
    unreachable: Option<String>,
    /// Set and cleared by writes only: reads succeed while etcd is full.
    full: Option<String>,
}

/// A revision, and the epoch of the cluster in which it is valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EpochRevision {
    pub(crate) revision: Revision,
    /// Incremented when the cluster was replaced or restored, which invalidates all known
    /// revisions.
    pub(crate) epoch: u64,
}

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
            known: watch::Sender::new(EpochRevision::default()),
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

    /// The member that responded last.
    pub(crate) fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed)
    }

    /// The newest known revision of the cluster.
    pub(crate) fn known(&self) -> EpochRevision {
        *self.known.borrow()
    }

    pub(crate) fn subscribe_known(&self) -> watch::Receiver<EpochRevision> {
        self.known.subscribe()
    }

    /// Why calls fail at the moment, if they do.
    pub(crate) fn trouble(&self) -> Option<String> {
        let trouble = self.trouble_mut();
        trouble.unreachable.clone().or_else(|| trouble.full.clone())
    }

    /// Whether etcd rejects writes for lack of space.
    pub(crate) fn is_full(&self) -> bool {
        self.trouble_mut().full.is_some()
    }

    fn trouble_mut(&self) -> MutexGuard<'_, Trouble> {
        lock(&self.trouble)
    }

    /// Records the outcome of a call that needs a quorum.
    fn note_trouble(&self, path: &str, failure: Option<&CallError>) {
        let mut trouble = self.trouble_mut();
        trouble.unreachable = match failure {
            Some(CallError::Unreachable { why, .. }) => Some(why.clone()),
            _ => None,
        };
        if path == TXN {
            trouble.full = match failure {
                Some(CallError::Full(why)) => Some(why.clone()),
                _ => None,
            };
        }
    }

    /// Sends a call to the first member that responds.
    pub(crate) async fn call<Req, Res>(
        &self,
        path: &'static str,
        request: Req,
        retry: Retry,
    ) -> Result<Res, CallError>
    where
        Req: prost::Message + Clone + 'static,
        Res: EtcdResponse,
    {
        let known = self.known();
        let response = self.call_with_retries(path, request, retry).await;
        // Only these need a quorum; a lagging member may respond to others.
        let is_fresh = path == RANGE || path == TXN;
        if is_fresh {
            self.note_trouble(path, response.as_ref().err());
        }
        let response: Res = response?;
        self.note(response.header(), known.revision, is_fresh);
        Ok(response)
    }

    async fn call_with_retries<Req, Res>(
        &self,
        path: &'static str,
        request: Req,
        retry: Retry,
    ) -> Result<Res, CallError>
    where
        Req: prost::Message + Clone + 'static,
        Res: EtcdResponse,
    {
        let until = Instant::now() + self.deadline;
        // A member that does not respond must leave time to try another.
        let patience = match retry {
            Retry::Always if self.members.len() > 1 => self.deadline / 2,
            _ => self.deadline,
        };
        let (mut backoff, mut renewed) = (backoff(), false);
        loop {
            let member = self.current();
            let left = until.saturating_duration_since(Instant::now()).min(patience);
            let failure = match self.once(member, path, request.clone(), left).await {
                Ok(response) => return Ok(response),
                Err(failure) => failure,
            };
            let again = match &failure {
                CallError::Unreachable { may_be_done, .. } => {
                    self.move_on(member);
                    retry == Retry::Always || !may_be_done
                }
                // etcd rejected it before it executed anything.
                CallError::StaleToken => {
                    self.forget_token();
                    !std::mem::replace(&mut renewed, true)
                }
                _ => false,
            };
            let pause = backoff.next(&Random::from_entropy());
            if !again || Instant::now() + pause >= until {
                return Err(failure);
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Sends one call to one member.
    pub(crate) async fn once<Req, Res>(
        &self,
        member: usize,
        path: &'static str,
        request: Req,
        patience: Duration,
    ) -> Result<Res, CallError>
    where
        Req: prost::Message + 'static,
        Res: EtcdResponse,
    {
        let member = &self.members[member % self.members.len()];
        let exchange = async {
            let metadata = self.metadata(member).await?;
            member.exchange(path, request, metadata).await.map_err(|status| call_error(&status))
        };
        match timeout(patience, exchange).await {
            Ok(response) => response.map_err(|failure| failure.at(&member.url)),
            Err(_) => {
                let why = format!("{} did not respond in time", member.url);
                Err(CallError::Unreachable { why, may_be_done: true })
            }
        }
    }

    /// Opens a watch on one member; the sender takes further requests.
    pub(crate) async fn watch(
        &self,
        member: usize,
        create: WatchCreate,
        purpose: WatchPurpose,
    ) -> Result<(mpsc::Sender<WatchRequest>, Streaming<WatchResponse>), CallError> {
        let member = &self.members[member % self.members.len()];
        let opened = async {
            let mut metadata = self.metadata(member).await?;
            // Without it, a member cut off from the others keeps a watch that never progresses.
            metadata.insert("hasleader", AsciiMetadataValue::from_static("true"));
            let (sender, receiver) = mpsc::channel(REQUESTS_MAX);
            let create = WatchRequest { request: Some(Watch::Create(create)) };
            sender.try_send(create).expect("a new channel has room");
            let opened = member.watch(receiver, metadata, purpose).await;
            Ok::<_, CallError>((sender, opened.map_err(|status| call_error(&status))?))
        };
        match timeout(self.deadline, opened).await {
            Ok(opened) => opened.map_err(|failure| failure.at(&member.url)),
            Err(_) => {
                let why = format!("{} did not open a watch in time", member.url);
                Err(CallError::Unreachable { why, may_be_done: false })
            }
        }
    }

    /// Makes the next member the first to call, unless another call already did.
    fn move_on(&self, member: usize) {
        let next = (member + 1) % self.members.len();
        let _ = self.current.compare_exchange(member, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    async fn metadata(&self, member: &Member) -> Result<MetadataMap, CallError> {
        let mut metadata = MetadataMap::new();
        if let Some(login) = &self.login {
            metadata.insert("token", self.token(member, login).await?);
        }
        Ok(metadata)
    }

    async fn token(&self, member: &Member, login: &Login) -> Result<AsciiMetadataValue, CallError> {
        if let Some(token) = &*lock(&self.token) {
            return Ok(token.clone());
        }
        let (name, password) = (login.name.clone(), login.password.clone());
        let request = AuthenticateRequest { name, password };
        let response = member.exchange(AUTHENTICATE, request, MetadataMap::new()).await;
        let response: AuthenticateResponse =
            response.map_err(|status| match call_error(&status) {
                // Only the login was sent, not the call.
                CallError::Unreachable { why, .. } => {
                    CallError::Unreachable { why, may_be_done: false }
                }
                failure => failure,
            })?;
        let token = AsciiMetadataValue::try_from(response.token.as_str());
        let token = token
            .map_err(|_| CallError::Refused("the authentication token is not ASCII".into()))?;
        *lock(&self.token) = Some(token.clone());
        Ok(token)
    }

    pub(crate) fn forget_token(&self) {
        *lock(&self.token) = None;
    }

    /// Records what a response reveals about the cluster. `known` is the newest revision known
    /// before the request was sent: a fresh response cannot be older.
    pub(crate) fn note(&self, header: Option<&Header>, known: Revision, is_fresh: bool) {
        let Some(header) = header else { return };
        let at = revision(header.revision);
        let before = self.cluster.swap(header.cluster_id, Ordering::Relaxed);
        let is_other = before != 0 && before != header.cluster_id;
        let is_older = is_fresh && at < known;
        self.known.send_if_modified(|known| {
            // Of several concurrent responses, only the first starts a new epoch.
            if is_other || (is_older && at < known.revision) {
                tracing::error!(
                    known = %known.revision, newest = %at,
                    "etcd was replaced or restored; reloading the cache and expiring all watches"
                );
                *known = EpochRevision { revision: at, epoch: known.epoch + 1 };
                return true;
            }
            let is_newer = at > known.revision;
            known.revision = known.revision.max(at);
            is_newer
        });
    }
}

/// Unsent requests on one watch. When it is full, further progress requests are dropped: those that
/// wait are enough.
const REQUESTS_MAX: usize = 4;
