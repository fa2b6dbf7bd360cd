//! The fault test: three etcd members, two API servers, writers and two hundred watchers on each,
//! and one fault after the other. Quotas count the objects, so a create is a write of several
//! operations.
//!
//! After each fault the system must have recovered: every watcher received each change exactly once
//! and in order, or one 410; all acknowledged writes and no rejected ones are stored, each with its
//! companions; no reader that changes between the servers saw an older state (R22, R26, R35, R90,
//! R93).
//!
//! `HEADWATER_TORTURE_MINUTES` and `HEADWATER_TORTURE_SEED` choose a longer run or another order:
//! `HEADWATER_TORTURE_MINUTES=30 cargo test -p headwater-store-etcd torture -- --nocapture`.

mod client;
mod replica;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures::StreamExt;
use headwater_api::Revision;
use headwater_store::{ChangeKind, ChangeStream, Store, key};
use headwater_store_etcd::{EtcdStore, Options};
use headwater_testkit::history::{
    EndBounds, History, ObjectBody, ObjectChange, WatchItem, WatchRecord, WatchStart,
};
use headwater_testkit::proxy::Proxy;
use headwater_testkit::{etcd, ledger};
use serde_json::json;
use tokio::task::{JoinSet, block_in_place};

use crate::fixture::until;
use client::{Dice, Run};
use replica::Replica;

/// Watchers and writers of each server.
const WATCHERS: usize = 200;
const WRITERS: usize = 3;

/// Watchers of each server that pause during a compaction.
const SLEEPERS: usize = 20;

/// Written together with every object that the quotas count.
const TURN: &str = "/registry/headwater/quotaturns/default";

/// The faults.
#[derive(Clone, Copy, Debug)]
enum Fault {
    LeaderStops,
    FollowerStops,
    /// It resumes as a former leader and must not serve stale data.
    LeaderPauses,
    Defragmentation,
    ServerIsCutOff,
    CompactionUnderSleepers,
    ServerRestarts,
}

const FAULTS: [Fault; 7] = [
    Fault::LeaderStops,
    Fault::FollowerStops,
    Fault::LeaderPauses,
    Fault::Defragmentation,
    Fault::ServerIsCutOff,
    Fault::CompactionUnderSleepers,
    Fault::ServerRestarts,
];

/// R22, R26, R35, R90, R92, R93
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_watcher_gets_every_change_once_and_nothing_is_lost_through_all_faults() {
    let setting = |name| std::env::var(name).ok().and_then(|text: String| text.parse().ok());
    let seed = setting("HEADWATER_TORTURE_SEED").unwrap_or_else(|| std::process::id().into());
    let minutes: u64 = setting("HEADWATER_TORTURE_MINUTES").unwrap_or(0);
    eprintln!("HEADWATER_TORTURE_SEED={seed} HEADWATER_TORTURE_MINUTES={minutes}");
    let Some(mut torture) = Torture::start(seed).await else { return };
    let until = Instant::now() + Duration::from_secs(60 * minutes);
    let mut rounds = 0;
    while rounds == 0 || Instant::now() < until {
        for fault in torture.shuffled() {
            let began = Instant::now();
            torture.suffer(fault).await;
            let Settled { writes, told, sent_away } = torture.settle(fault).await;
            let seconds = began.elapsed().as_secs_f32();
            eprintln!(
                "{fault:?}: {writes} writes so far, {told} events told, {sent_away} times 410; \
                 all is well after {seconds:.1} s"
            );
        }
        rounds += 1;
    }
    torture.finish().await;
}

/// The result of a check.
struct Settled {
    /// Since the start.
    writes: usize,
    /// Events sent to all watchers since the last check.
    told: usize,
    /// Watchers that had to list again since the last check.
    sent_away: usize,
}

struct Torture {
    run: Arc<Run>,
    dice: Dice,
    tasks: JoinSet<()>,
    servers: [Option<Replica>; 2],
    /// Proxies between the second server and each member.
    proxies: Vec<Proxy>,
    options: [Options; 2],
    /// A direct connection to etcd, for the reference history.
    witness: EtcdStore,
    changes: ChangeStream,
    truth: History,
    start: Revision,
    members: etcd::EtcdCluster,
}

impl Torture {
    async fn start(seed: u64) -> Option<Torture> {
        let members = etcd::EtcdCluster::cluster(3, etcd::Options::default())?;
        let mut proxies = Vec::new();
        for member in 0..3 {
            proxies.push(Proxy::start(members.port(member)).await);
        }
        // Little is kept in memory, so that lagging watchers soon read from etcd.
        let options = |endpoints| Options {
            endpoints,
            deadline: Duration::from_secs(2),
            compaction: None,
            history_bytes_max: 16 << 10,
            ..Options::default()
        };
        let options =
            [options(members.endpoints()), options(proxies.iter().map(Proxy::url).collect())];
        let run = Arc::new(Run::new(seed));
        let mut servers = [None, None];
        for n in 0..2 {
            servers[n] = Some(Replica::start(options[n].clone(), &run.places[n]).await);
        }
        let witness = Options { history_bytes_max: 256 << 20, ..options[0].clone() };
        let witness = EtcdStore::connect(witness).await.unwrap();
        client::count(&run).await;
        let start = witness.revision().await.unwrap();
        let changes = witness.watch(key::ROOT, start).await.unwrap();
        let mut tasks = JoinSet::new();
        for server in 0..2 {
            for n in 0..WRITERS {
                tasks.spawn(client::write(run.clone(), server, n as u64));
            }
            for n in 0..WATCHERS {
                tasks.spawn(client::watch(run.clone(), server, n < SLEEPERS));
            }
        }
        tasks.spawn(client::read(run.clone()));
        let (dice, truth) = (Dice(seed), History::default());
        Some(Torture {
            run,
            dice,
            tasks,
            servers,
            proxies,
            options,
            witness,
            changes,
            truth,
            start,
            members,
        })
    }

    fn shuffled(&mut self) -> Vec<Fault> {
        let mut faults = FAULTS.to_vec();
        for n in (1..faults.len()).rev() {
            let other = usize::try_from(self.dice.below(n as u64 + 1)).unwrap();
            faults.swap(n, other);
        }
        faults
    }

    async fn suffer(&mut self, fault: Fault) {
        self.progress().await;
        match fault {
            Fault::LeaderStops => {
                let leader = block_in_place(|| self.members.leader());
                self.stop_member(leader).await;
            }
            Fault::FollowerStops => {
                let leader = block_in_place(|| self.members.leader());
                self.stop_member((leader + 1) % 3).await;
            }
            Fault::LeaderPauses => {
                let leader = block_in_place(|| self.members.leader());
                self.members.pause(leader);
                self.progress().await;
                self.members.resume(leader);
            }
            Fault::Defragmentation => {
                for member in 0..3 {
                    let path = "/v3/maintenance/defragment";
                    block_in_place(|| self.members.post(member, path, &json!({}))).unwrap();
                }
            }
            Fault::ServerIsCutOff => self.cut_off().await,
            Fault::CompactionUnderSleepers => self.compact().await,
            Fault::ServerRestarts => {
                let server = usize::try_from(self.dice.below(2)).unwrap();
                self.run.places[server].set(None);
                self.servers[server] = None;
                let options = self.options[server].clone();
                let replica = Replica::start(options, &self.run.places[server]).await;
                self.servers[server] = Some(replica);
            }
        }
        self.progress().await;
    }

    /// Writes continue through both servers while a member is stopped.
    async fn stop_member(&mut self, member: usize) {
        block_in_place(|| self.members.kill(member));
        self.progress().await;
        block_in_place(|| self.members.restart(member));
    }

    /// The second server reports that it is cut off, and still serves reads from its cache.
    async fn cut_off(&mut self) {
        self.proxies.iter().for_each(Proxy::cut);
        let cut = &self.run.places[1];
        until("the server is not ready", async || {
            cut.ask("GET", "/readyz", None).await.is_some_and(|(code, _)| code == 500)
        })
        .await;
        let cached = cut.ask("GET", &format!("{}?resourceVersion=0", client::MAPS), None).await;
        assert_eq!(cached.map(|(code, _)| code), Some(200));
        self.proxies.iter().for_each(Proxy::heal);
    }

    /// Some watchers pause; when they resume, the changes they missed are compacted.
    async fn compact(&mut self) {
        self.run.asleep.send_replace(true);
        for _ in 0..3 {
            self.progress().await; // past the changes in memory
        }
        let newest = self.witness.revision().await.unwrap();
        self.witness.compact(newest).await.unwrap();
        self.run.compacted.fetch_max(newest.0, Ordering::Relaxed);
        self.run.asleep.send_replace(false);
    }

    /// Waits for acknowledged writes through both servers that started after this call.
    async fn progress(&self) {
        let count = |n: usize| self.run.acknowledged[n].load(Ordering::Relaxed);
        let before = [count(0), count(1)];
        until("writes through both servers go on", async || {
            (0..2).all(|n| count(n) >= before[n] + 10)
        })
        .await;
    }

    /// Stops the writers and checks all guarantees.
    async fn settle(&mut self, fault: Fault) -> Settled {
        let run = self.run.clone();
        let _stopped = run.writing.write().await;
        let last = run.sentinel().await;
        self.learn(last).await;
        let entries = run.ledger.lock().unwrap().clone();
        if let Err(broken) = ledger::verify(&entries, &self.truth, self.start, &mark) {
            panic!("{fault:?}: {broken}");
        }
        let all_told =
            async || run.clients.lock().unwrap().iter().all(|c| c.position() >= Some(last));
        until("every watcher has been told everything", all_told).await;
        let expected = self.truth.expect(Box::new(|_| true));
        let compacted = Revision(run.compacted.load(Ordering::Relaxed));
        let ends = EndBounds { complete_to: last, compacted };
        let (mut told, mut sent_away) = (0, 0);
        for (n, client) in run.clients.lock().unwrap().iter_mut().enumerate() {
            match client.check(&expected, ends) {
                Ok(count) => told += count,
                Err(broken) => panic!("{fault:?}: watcher {n}: {broken}"),
            }
            let errors =
                client.streams.iter().filter(|s| s.seen.last() == Some(&WatchItem::Error(410)));
            sent_away += errors.count();
            client.streams = vec![WatchRecord { start: WatchStart::After(last), seen: Vec::new() }];
        }
        for (at, found) in run.lists.lock().unwrap().drain(..) {
            let state = self.truth.state_at(at);
            let expected: Vec<_> = state.iter().map(|(key, v)| (key.clone(), v.revision)).collect();
            assert_eq!(found, expected, "{fault:?}: a list at {at}");
        }
        run.parsed.lock().unwrap().clear();
        let is_compaction = matches!(fault, Fault::CompactionUnderSleepers);
        assert!(sent_away > 0 || !is_compaction, "nobody missed what was compacted");
        Settled { writes: entries.len(), told, sent_away }
    }

    /// Reads the reference history up to a revision.
    async fn learn(&mut self, upto: Revision) {
        let prefix = key::collection("", "configmaps");
        let mut reached = self.truth.newest();
        while reached < upto {
            let batch = self.changes.next().await.unwrap().unwrap();
            let turns = batch.changes.iter().filter(|change| change.key.as_str() == TURN);
            let turns: HashSet<Revision> = turns.map(|change| change.revision).collect();
            for change in batch.changes {
                let Some(key) = change.key.as_str().strip_prefix(&prefix) else { continue };
                let is_counted = turns.contains(&change.revision);
                assert_eq!(is_counted, change.kind == ChangeKind::Created, "{change:?}");
                let after = (change.kind != ChangeKind::Deleted)
                    .then(|| ObjectBody::new(serde_json::from_slice(&change.value).unwrap()));
                self.truth.record(change.revision, key, after);
            }
            reached = batch.complete_to;
        }
    }

    async fn finish(mut self) {
        self.run.over.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
    }
}

/// The writer's text in a change.
fn mark(change: &ObjectChange) -> Option<String> {
    change.after.as_ref()?.value()["data"]["text"].as_str().map(str::to_owned)
}
