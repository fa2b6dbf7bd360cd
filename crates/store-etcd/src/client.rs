//! Calls to whichever member answers.
//!
//! River: engine → **client** → etcd. Promise: every call ends within its deadline; a read is tried
//! with the other members, a write is sent once (R42): it is sent again only if it certainly never
//! left. What members answer is remembered: the newest revision, and whether this is still the same
//! cluster (R37).

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use headwater_api::Revision;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};
use tonic::codec::Streaming;
use tonic::metadata::{AsciiMetadataValue, MetadataMap};

use crate::backoff::Backoff;
use crate::convert::revision;
use crate::failure::{Failure, failure};
use crate::member::{Member, Purpose, Tls};
use crate::proto::{
    AUTHENTICATE, Answer, AuthenticateRequest, AuthenticateResponse, Header, RANGE, TXN, Watch,
    WatchCreate, WatchRequest, WatchResponse,
};

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
                let why = format!("{} did not respond in time", member.url);
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
        let token =
            token.map_err(|_| Failure::Refused("the authentication token is not ASCII".into()))?;
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
                tracing::error!(
                    known = %seen.revision, newest = %at,
                    "etcd was replaced or restored; reloading the cache and expiring all watches"
                );
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
