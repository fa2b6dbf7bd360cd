//! The engine: the `Store` trait in etcd's words.
//!
//! River: server writes → **engine** → etcd. Promise: a write is one guarded transaction and is
//! acknowledged when etcd has; reads ask a quorum unless they are of the past. What cannot be known
//! in time is an error, never a guess.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream;
use headwater_api::Revision;
use headwater_store::key::ROOT;
use headwater_store::store::VALUE_MAX;
use headwater_store::{
    Action, ChangeStream, Committed, Condition, Error, Guard, Key, Op, Page, Range, Record, Store,
    Write,
};
use tokio::sync::watch as channel;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::client::{Calls, Client, Failure, Login, Tls};
use crate::compaction;
use crate::convert::{Space, number, revision};
use crate::journal::{Journal, Step};
use crate::lease::Lease;
use crate::proto::{
    COMPACT, CompactResponse, Compare, Event, KeyValue, LEASE_GRANT, LeaseGrantRequest,
    LeaseGrantResponse, PutRequest, RANGE, RangeRequest, RangeResponse, Request, RequestOp, STATUS,
    StatusRequest, StatusResponse, TXN, TxnRequest, TxnResponse,
};
use crate::recent::Recent;
use crate::start;
use crate::watch::{self, Cursor, Told};

/// How an [`Etcd`] is reached and behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// `http://host:port` or `https://host:port` of each member.
    pub endpoints: Vec<String>,
    /// What our keys in etcd begin with.
    pub prefix: String,
    /// What the store's keys begin with; it is replaced by the prefix.
    pub root: String,
    /// Needed for `https`.
    pub tls: Option<Tls>,
    /// Needed where etcd knows users.
    pub login: Option<Login>,
    /// How long any call may take.
    pub deadline: Duration,
    /// How often this replica offers to compact; `None` is never.
    pub compaction: Option<Duration>,
    /// The largest value a write may carry, in bytes. etcd has a limit of its own.
    pub value_max: usize,
    /// Whether notices of progress come in order with events; `None` is by etcd's version. Where
    /// they do not, everything in etcd is watched, so that each revision comes with an event.
    pub trusts_progress: Option<bool>,
    /// Bytes of recent changes kept in memory, so that watchers need not read them from etcd.
    pub history_bytes_max: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            endpoints: Vec::new(),
            prefix: "/registry".to_owned(),
            root: ROOT.to_owned(),
            tls: None,
            login: None,
            deadline: Duration::from_secs(5),
            compaction: Some(Duration::from_secs(300)),
            value_max: VALUE_MAX,
            trusts_progress: None,
            history_bytes_max: 32 << 20,
        }
    }
}

/// A store in etcd.
pub struct Etcd {
    shared: Arc<Shared>,
    /// The watch, the compactor and the pulse; they end with the engine.
    _tasks: Mutex<JoinSet<()>>,
}

/// How often the cluster is asked whether it is well.
const PULSE: Duration = Duration::from_secs(2);

/// Revisions that are read once more at the start, so that watchers who come back after a restart
/// find them in memory instead of each asking etcd.
const REPLAYED_MAX: u64 = 10_000;

/// Operations in one write: etcd takes 128 in a transaction.
const OPS_MAX: usize = 100;

/// Times a write is tried again because of others' unfinished writes.
const TRIES_MAX: usize = 32;

/// About how many bytes one answer to a range should have.
const PAGE_BYTES: usize = 4 << 20;
const PAGE_KEYS: std::ops::RangeInclusive<usize> = 100..=10_000;

impl Etcd {
    /// Connects to a cluster and checks that it can be used; nothing is written if not.
    pub async fn connect(options: Options) -> Result<Etcd, start::Error> {
        let client = start::client(&options)?;
        let found = start::check(&client, &options).await?;
        let space = Space::new(&options.prefix, &options.root);
        let begins_after = match found.compacted {
            Revision::ZERO => found.revision,
            oldest => oldest.max(Revision(found.revision.0.saturating_sub(REPLAYED_MAX))),
        };
        let shared = Arc::new(Shared {
            client,
            space,
            trusts_progress: options.trusts_progress.unwrap_or(found.trusts_progress),
            recent: Mutex::new(Recent::after(begins_after)),
            told: channel::Sender::new(Told { revision: begins_after, epoch: 0 }),
            compacted: AtomicU64::new(found.compacted.0),
            disk_bytes: AtomicU64::new(0),
            watch_trouble: Mutex::new(None),
            lease: tokio::sync::Mutex::new(None),
            turn: tokio::sync::Mutex::new((0, Ok(Revision::ZERO))),
            asked: AtomicU64::new(0),
            options,
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(watch::follow(shared.clone()));
        tasks.spawn(pulse(shared.clone()));
        if let Some(interval) = shared.options.compaction {
            tasks.spawn(compaction::run(shared.clone(), interval));
        }
        Ok(Etcd { shared, _tasks: Mutex::new(tasks) })
    }
}

/// Asks how the cluster is, so that trouble is known before somebody needs it.
async fn pulse(shared: Arc<Shared>) {
    loop {
        // What it finds is noted by the client.
        let _ = shared.newest().await;
        if shared.client.is_full() {
            let _ = shared.try_space().await;
        }
        let status = shared.client.call(STATUS, StatusRequest {}, Calls::Freely).await;
        if let Ok(StatusResponse { db_size, .. }) = status {
            shared.disk_bytes.store(u64::try_from(db_size).unwrap_or(0), Ordering::Relaxed);
        }
        tokio::time::sleep(PULSE).await;
    }
}

#[async_trait]
impl Store for Etcd {
    async fn revision(&self) -> Result<Revision, Error> {
        self.shared.newest().await
    }

    async fn get(&self, key: &Key) -> Result<Option<Record>, Error> {
        let key = self.shared.space.outer(key.as_str())?;
        let request = RangeRequest { key, ..RangeRequest::default() };
        let answer = self.shared.read(request).await.map_err(refused)?;
        answer.kvs.into_iter().next().map(|kv| self.shared.space.record(kv)).transpose()
    }

    async fn range(&self, range: Range) -> Result<Page, Error> {
        self.shared.range(&range).await
    }

    async fn commit(&self, write: Write) -> Result<Committed, Error> {
        write.check(self.shared.options.value_max)?;
        if write.ops.len() > OPS_MAX {
            return Err(Error::Refused(format!("it has more than {OPS_MAX} operations")));
        }
        self.shared.commit(&write).await
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<ChangeStream, Error> {
        let oldest = self.shared.compacted();
        if after < oldest {
            return Err(Error::Compacted { asked: after, oldest });
        }
        let cursor = Cursor::new(&self.shared, prefix, after);
        Ok(stream::unfold(Some(cursor), Cursor::step).boxed())
    }

    async fn compact(&self, at: Revision) -> Result<(), Error> {
        self.shared.compact(at).await
    }

    fn condition(&self) -> Condition {
        let shared = &self.shared;
        let watch_trouble = shared.watch_trouble.lock().unwrap_or_else(PoisonError::into_inner);
        Condition {
            revision: shared.client.seen().revision,
            compacted: shared.compacted(),
            disk_bytes: shared.disk_bytes.load(Ordering::Relaxed),
            trouble: shared.client.trouble().or_else(|| watch_trouble.clone()),
        }
    }
}

/// What the engine, its tasks and its watchers have in common.
pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) client: Client,
    pub(crate) space: Space,
    trusts_progress: bool,
    recent: Mutex<Recent>,
    pub(crate) told: channel::Sender<Told>,
    /// The newest compaction that is known of; others may compact too.
    compacted: AtomicU64,
    disk_bytes: AtomicU64,
    watch_trouble: Mutex<Option<String>>,
    lease: tokio::sync::Mutex<Option<Lease>>,
    /// Who asked for the newest revision last, and what the answer was.
    turn: tokio::sync::Mutex<(u64, Result<Revision, String>)>,
    asked: AtomicU64,
}

impl Shared {
    pub(crate) fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether notices of progress come in order with events.
    pub(crate) fn trusts_progress(&self) -> bool {
        self.trusts_progress
    }

    pub(crate) fn set_watch_trouble(&self, trouble: Option<String>) {
        *self.watch_trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    pub(crate) fn compacted(&self) -> Revision {
        Revision(self.compacted.load(Ordering::Acquire))
    }

    pub(crate) fn note_compacted(&self, at: Revision) {
        self.compacted.fetch_max(at.0, Ordering::AcqRel);
    }

    /// Nothing before this is known any more, whatever was compacted in another cluster.
    pub(crate) fn forget_before(&self, at: Revision) {
        self.compacted.store(at.0, Ordering::Release);
    }

    /// Another replica has compacted, if that is what an event says.
    pub(crate) fn note_compaction(&self, event: &Event) {
        if let Some(kv) = event.kv.as_ref().filter(|kv| kv.key == self.space.compaction()) {
            self.note_compacted(compaction::read(&kv.value));
        }
    }

    async fn read(&self, request: RangeRequest) -> Result<RangeResponse, Failure> {
        self.client.call(RANGE, request, Calls::Freely).await
    }

    /// The newest revision, asked of a quorum after this was called.
    pub(crate) async fn newest(&self) -> Result<Revision, Error> {
        let ticket = self.asked.fetch_add(1, Ordering::AcqRel) + 1;
        let answered = timeout(self.options.deadline, self.ask_together(ticket)).await;
        let late = || Err("etcd did not say its revision in time".to_owned());
        answered.unwrap_or_else(|_| late()).map_err(Error::Unavailable)
    }

    /// Those who come while a question is under way share the next one, and its failure too: many
    /// who wait for an etcd that does not answer must not wait one after the other.
    async fn ask_together(&self, ticket: u64) -> Result<Revision, String> {
        let mut turn = self.turn.lock().await;
        if turn.0 >= ticket {
            return turn.1.clone();
        }
        let covers = self.asked.load(Ordering::Acquire);
        let key = self.space.journal();
        let request = RangeRequest { key, count_only: true, ..RangeRequest::default() };
        let answer = self.read(request).await.map_err(|failure| failure.to_string());
        let newest = answer
            .map(|answer| answer.header.map_or(Revision::ZERO, |header| revision(header.revision)));
        *turn = (covers, newest.clone());
        newest
    }

    /// A write that etcd refuses while it has no space, and that is never done: no key is at a
    /// revision below zero.
    async fn try_space(&self) -> Result<TxnResponse, Failure> {
        let key = self.space.journal();
        let put = PutRequest { key: key.clone(), ..PutRequest::default() };
        let request = TxnRequest {
            compare: vec![Compare::mod_revision(key, -1)],
            success: vec![Request::Put(put).into()],
            failure: Vec::new(),
        };
        self.client.call(TXN, request, Calls::Freely).await
    }

    /// Reads pages of one state and puts them together.
    async fn range(&self, range: &Range) -> Result<Page, Error> {
        let oldest = self.compacted();
        if let Some(asked) = range.at.filter(|at| *at < oldest) {
            return Err(Error::Compacted { asked, oldest });
        }
        if range.at == Some(Revision::ZERO) {
            return Ok(Page::default()); // to etcd, zero would mean the newest
        }
        let (mut key, range_end) = self.space.objects(&range.prefix);
        if let Some(after) = &range.after {
            match after.as_str() >= range.prefix.as_str() {
                true if range.covers_after(after) => {
                    key = beyond(&self.space.outer(after.as_str())?)
                }
                true => return self.past_the_end(range).await,
                false => {}
            }
        }
        let mut page = Page::default();
        let (mut at, mut size) = (range.at, *PAGE_KEYS.start());
        loop {
            let left = range.limit.map(|limit| limit - page.records.len());
            let request = RangeRequest {
                key: key.clone(),
                range_end: range_end.clone(),
                // None asked for: one tells whether there are any.
                limit: i64::try_from(left.unwrap_or(size).min(size).max(1)).unwrap_or(i64::MAX),
                revision: at.map_or(0, number),
                keys_only: left == Some(0),
                ..RangeRequest::default()
            };
            let answer = match self.read(request).await {
                Ok(answer) => answer,
                Err(failure) => return Err(self.unreadable(failure, at).await),
            };
            let newest = answer.header.map_or(Revision::ZERO, |header| revision(header.revision));
            page.revision = *at.get_or_insert(newest);
            if left == Some(0) {
                page.more = !answer.kvs.is_empty();
                return Ok(page);
            }
            size = next_size(&answer.kvs);
            page.more = answer.more;
            if let Some(last) = answer.kvs.last() {
                key = beyond(&last.key);
            }
            for kv in answer.kvs {
                page.records.push(self.space.record(kv)?);
            }
            if !page.more || range.limit == Some(page.records.len()) {
                return Ok(page);
            }
        }
    }

    /// A range that begins after its own end.
    async fn past_the_end(&self, range: &Range) -> Result<Page, Error> {
        let revision = match range.at {
            Some(at) => at,
            None => self.newest().await?,
        };
        Ok(Page { revision, ..Page::default() })
    }

    async fn unreadable(&self, failure: Failure, at: Option<Revision>) -> Error {
        let asked = at.unwrap_or_default();
        match failure {
            Failure::Compacted => self.compacted_at(asked).await,
            Failure::Future => match self.newest().await {
                Ok(current) => Error::Future { asked, current },
                Err(error) => error,
            },
            failure => refused(failure),
        }
    }

    /// What to say about a revision that is compacted away.
    pub(crate) async fn compacted_at(&self, asked: Revision) -> Error {
        if self.compacted() <= asked {
            let learned = compaction::learn(&self.client, &self.space, asked).await;
            self.note_compacted(learned.unwrap_or_default());
        }
        Error::Compacted { asked, oldest: self.compacted().max(asked.next()) }
    }

    async fn commit(&self, write: &Write) -> Result<Committed, Error> {
        for _ in 0..TRIES_MAX {
            match self.attempt(write).await? {
                Attempt::Done(committed) => return Ok(committed),
                Attempt::Conflict(key, actual) => return Err(Error::Conflict { key, actual }),
                Attempt::Busy(journal) => {
                    let unfinished = Journal::read(&journal).map_err(|error| Error::Damaged {
                        place: "the journal of writes in etcd".into(),
                        why: error.to_string(),
                    })?;
                    self.finish(journal.mod_revision, unfinished).await?;
                }
                Attempt::NoLease => *self.lease.lock().await = None,
            }
        }
        Err(Error::Unavailable("others' writes are under way all the time".into()))
    }

    async fn attempt(&self, write: &Write) -> Result<Attempt, Error> {
        let mut steps = Vec::with_capacity(write.ops.len());
        for op in &write.ops {
            steps.push(self.step(op).await?);
        }
        let rest = Journal { steps: steps.split_off(1) };
        let first = &steps[0];
        let keys = || steps.iter().chain(&rest.steps).map(|step| step.key.clone());
        let look = |key: Bytes| Request::Range(RangeRequest { key, ..RangeRequest::default() });
        let journal = self.space.journal();
        let guards = keys().zip(&write.ops).map(|(key, op)| guard(key, op.guard));
        let mut success = vec![first.request()];
        if !rest.steps.is_empty() {
            success.push(rest.keep(journal.clone()));
        }
        let request = TxnRequest {
            compare: guards.chain([Compare::mod_revision(journal.clone(), 0)]).collect(),
            success,
            failure: keys().chain([journal]).map(look).map(RequestOp::from).collect(),
        };
        let answer: TxnResponse = match self.client.call(TXN, request, Calls::Once).await {
            Ok(answer) => answer,
            Err(Failure::NoLease) => return Ok(Attempt::NoLease),
            Err(failure) => return Err(refused(failure)),
        };
        let at = answer.header.map_or(0, |header| header.revision);
        if !answer.succeeded {
            return self.refusal(write, answer);
        }
        // If others finish it for us, nothing else can have come between.
        let last = Revision(revision(at).0 + rest.steps.len() as u64);
        let last = self.finish(at, rest).await?.unwrap_or(last);
        Ok(Attempt::Done(Committed { first: revision(at), last }))
    }

    /// Which guard did not hold; if all did, somebody's write is under way.
    fn refusal(&self, write: &Write, answer: TxnResponse) -> Result<Attempt, Error> {
        let found = answer
            .responses
            .into_iter()
            .map(|response| response.range.and_then(|range| range.kvs.into_iter().next()));
        let mut found: Vec<Option<KeyValue>> = found.collect();
        let journal = found.pop().flatten();
        for (op, kv) in write.ops.iter().zip(found) {
            let at = kv.as_ref().map(|kv| revision(kv.mod_revision));
            let holds = match op.guard {
                Guard::Absent => at.is_none(),
                Guard::At(expected) => at == Some(expected),
            };
            if !holds {
                let actual = kv.map(|kv| self.space.record(kv)).transpose()?;
                return Ok(Attempt::Conflict(op.key.clone(), actual));
            }
        }
        match journal {
            Some(journal) => Ok(Attempt::Busy(journal)),
            None => Err(Error::Unavailable("etcd refused a write without a reason".into())),
        }
    }

    /// Does what a journal says; the last revision, unless somebody else has done it meanwhile.
    async fn finish(&self, mut at: i64, mut journal: Journal) -> Result<Option<Revision>, Error> {
        while !journal.steps.is_empty() {
            let mut step = journal.steps.remove(0);
            let key = self.space.journal();
            let answer = loop {
                let request = TxnRequest {
                    compare: vec![Compare::mod_revision(key.clone(), at)],
                    success: vec![step.request(), journal.keep(key.clone())],
                    failure: Vec::new(),
                };
                match self.client.call::<_, TxnResponse>(TXN, request, Calls::Once).await {
                    // It was decided long ago; better that it stays than that nothing goes on.
                    Err(Failure::NoLease) => step.lease = 0,
                    answer => break answer.map_err(refused)?,
                }
            };
            if !answer.succeeded {
                return Ok(None);
            }
            at = answer.header.map_or(0, |header| header.revision);
        }
        Ok(Some(revision(at)))
    }

    async fn step(&self, op: &Op) -> Result<Step, Error> {
        let key = self.space.outer(op.key.as_str())?;
        Ok(match &op.action {
            Action::Delete => Step { key, is_delete: true, ..Step::default() },
            Action::Put { value, ttl } => {
                let lease = match ttl {
                    Some(ttl) => self.lease(*ttl).await?,
                    None => 0,
                };
                Step { key, value: value.clone(), lease, is_delete: false }
            }
        })
    }

    /// A lease for one more object.
    async fn lease(&self, ttl: Duration) -> Result<i64, Error> {
        let leased = timeout(self.options.deadline, self.take_lease(ttl)).await;
        leased.unwrap_or_else(|_| Err(Error::Unavailable("etcd gave no lease in time".into())))
    }

    async fn take_lease(&self, ttl: Duration) -> Result<i64, Error> {
        let mut lease = self.lease.lock().await;
        let now = Instant::now();
        if let Some(id) = lease.as_mut().and_then(|lease| lease.take(ttl, now)) {
            return Ok(id);
        }
        let request = LeaseGrantRequest { ttl: Lease::seconds(ttl) };
        // One that nobody uses runs out by itself.
        let granted = self.client.call(LEASE_GRANT, request, Calls::Freely).await;
        let granted: LeaseGrantResponse = granted.map_err(refused)?;
        let new = lease.insert(Lease::new(granted.id, ttl, now));
        new.take(ttl, now).ok_or_else(|| Error::Unavailable("a new lease has no room".into()))
    }

    pub(crate) async fn compact(&self, at: Revision) -> Result<(), Error> {
        if at <= self.compacted() {
            return Ok(());
        }
        let request = compaction::request(at);
        let answer = self.client.call(COMPACT, request, Calls::Freely).await;
        match answer.map(|_: CompactResponse| ()) {
            // Somebody else has compacted as far or further.
            Ok(()) | Err(Failure::Compacted) => {}
            Err(failure) => return Err(self.unreadable(failure, Some(at)).await),
        }
        self.note_compacted(at);
        Ok(())
    }
}

/// What became of one try of a write.
enum Attempt {
    Done(Committed),
    Conflict(Key, Option<Record>),
    /// Somebody's write is under way: this is left to do.
    Busy(KeyValue),
    /// The lease had run out.
    NoLease,
}

fn guard(key: Bytes, guard: Guard) -> Compare {
    match guard {
        Guard::Absent => Compare::mod_revision(key, 0),
        // No value is at revision zero, and to etcd zero would mean that there is none.
        Guard::At(Revision::ZERO) => Compare::mod_revision(key, -1),
        Guard::At(at) => Compare::mod_revision(key, number(at)),
    }
}

/// The first key after this one.
fn beyond(key: &Bytes) -> Bytes {
    let mut next = key.to_vec();
    next.push(0);
    next.into()
}

/// How many keys the next page should have, judging by this one.
fn next_size(kvs: &[KeyValue]) -> usize {
    let bytes: usize = kvs.iter().map(|kv| kv.key.len() + kv.value.len()).sum();
    let each = (bytes / kvs.len().max(1)).max(1);
    (PAGE_BYTES / each).clamp(*PAGE_KEYS.start(), *PAGE_KEYS.end())
}

/// A failure as the store's callers know it.
pub(crate) fn refused(failure: Failure) -> Error {
    match failure {
        Failure::Refused(why) if why.contains("too large") || why.contains("larger than max") => {
            let limit = "etcd's limit is --max-request-bytes";
            Error::Refused(format!("{why}; {limit}"))
        }
        failure => Error::Unavailable(failure.to_string()),
    }
}
