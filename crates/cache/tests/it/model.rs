//! Random scripts of writes, compactions, redefinitions, disconnects and slow reads. The history
//! checker verifies that every watcher receives exactly the events of the history, and that every
//! state follows from it.

use std::collections::BTreeMap;
use std::time::Duration;

use headwater_api::{EventType, Object, Revision};
use headwater_cache::window::Bounds;
use headwater_cache::{Error, Filter, Options, Snapshot, WatchStart, WatchStep, Watcher};
use headwater_store::{Action, Guard, Key, Op, Write, key};
use headwater_testkit::history::{
    self, BodyPredicate, ClientRecord, EndBounds, History, ObjectBody, WatchItem, WatchRecord,
};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::Value;

use crate::fixture::{Pod, Pond, filter, node_field, pod, pods, ready};

const NAMES: [&str; 6] = ["a/x", "a/y", "b/x", "b/z", "ab/x", "c/w"];
const APPS: [&str; 3] = ["", "web", "db"];
const NODES: [&str; 3] = ["", "n1", "n2"];
const FILTERS: usize = 13;
const SLOTS: usize = 4;

#[derive(Clone, Debug)]
enum Act {
    /// Writes pods; the cache applies them when its task runs. A write changes at most one object of
    /// a resource, so of several pods each is in one commit with an object of another resource.
    Write(Vec<Put>),
    /// Writes another resource, which uses a revision.
    Elsewhere,
    /// Waits until the cache shows every write, and compares the states.
    Settle,
    /// Runs the sweep.
    Sweep,
    /// Compacts at a revision between the first and the newest.
    Compact(u8),
    /// Changes the selectable fields and changes them back: every watcher ends.
    Redefine,
    /// Starts a watch in a slot and drops the previous one.
    Open { slot: usize, filter: usize, from: From },
    /// A watcher reads at most this many steps.
    Read { slot: usize, steps: usize },
    /// Asks a watcher for its progress, as for a bookmark.
    Bookmark(usize),
    /// Disconnects a watcher and resumes from its position.
    Resume(usize),
    /// Reads a past state.
    Recall(u8),
    /// Keeps a snapshot for the next page of a list.
    Keep,
}

#[derive(Clone, Debug)]
struct Put {
    name: usize,
    app: usize,
    node: usize,
    data: u8,
    delete: bool,
}

#[derive(Clone, Copy, Debug)]
enum From {
    Initial,
    Now,
    /// After a revision between the first and one in the near future.
    After(u8),
}

fn act() -> impl Strategy<Value = Act> {
    let put = (0..NAMES.len(), 0..APPS.len(), 0..NODES.len(), any::<u8>(), any::<u8>())
        .prop_map(|(name, app, node, data, dice)| Put { name, app, node, data, delete: dice < 50 });
    let from = prop_oneof![
        2 => Just(From::Initial),
        1 => Just(From::Now),
        3 => any::<u8>().prop_map(From::After),
    ];
    prop_oneof![
        12 => vec(put, 1..4).prop_map(Act::Write),
        2 => Just(Act::Elsewhere),
        3 => Just(Act::Settle),
        2 => Just(Act::Sweep),
        1 => any::<u8>().prop_map(Act::Compact),
        1 => prop::bool::weighted(0.3).prop_map(|really| if really { Act::Redefine } else { Act::Keep }),
        5 => (0..SLOTS, 0..FILTERS, from)
            .prop_map(|(slot, filter, from)| Act::Open { slot, filter, from }),
        8 => (0..SLOTS, 1..4_usize).prop_map(|(slot, steps)| Act::Read { slot, steps }),
        3 => (0..SLOTS).prop_map(Act::Bookmark),
        3 => (0..SLOTS).prop_map(Act::Resume),
        2 => any::<u8>().prop_map(Act::Recall),
    ]
}

fn bounds() -> impl Strategy<Value = Bounds> {
    let bytes = prop_oneof![3 => Just(1 << 20), 1 => Just(900_usize)];
    let age = prop_oneof![3 => Just(3600), 1 => Just(4_u64)];
    (0..5_usize, bytes, age).prop_map(|(count, bytes, age)| Bounds {
        age: Duration::from_secs(age),
        count,
        bytes,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases()) })]

    /// S5.20, R17
    #[test]
    fn watches_of_any_script_keep_every_watch_guarantee(
        acts in vec(act(), 20..120),
        bounds in bounds(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(run(&acts, bounds));
    }
}

/// The number of cases; `PROPTEST_CASES` overrides it.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(400)
}

async fn run(acts: &[Act], bounds: Bounds) {
    let mut script = Script::new(bounds).await;
    for act in acts {
        script.act(act).await;
    }
    script.finish().await;
}

/// A filter, and the same selection implemented naively.
fn selection(index: usize) -> (Filter, BodyPredicate) {
    fn app(body: &ObjectBody) -> Option<&str> {
        body.value()["metadata"]["labels"]["app"].as_str()
    }
    fn node(body: &ObjectBody) -> &str {
        body.value()["spec"]["nodeName"].as_str().unwrap_or("")
    }
    fn name(body: &ObjectBody) -> &str {
        body.value()["metadata"]["name"].as_str().unwrap()
    }
    fn namespace(body: &ObjectBody) -> &str {
        body.value()["metadata"]["namespace"].as_str().unwrap()
    }
    let (namespace_, labels, fields, matches): (_, _, _, fn(&ObjectBody) -> bool) = match index {
        0 => ("", "", "", |_| true),
        1 => ("a", "", "", |b| namespace(b) == "a"),
        2 => ("", "app=web", "", |b| app(b) == Some("web")),
        3 => ("", "app in (web,db)", "", |b| app(b).is_some()),
        4 => ("", "app!=web", "", |b| app(b) != Some("web")),
        5 => ("", "", "spec.nodeName=n1", |b| node(b) == "n1"),
        6 => ("", "", "spec.nodeName!=n1", |b| node(b) != "n1"),
        7 => ("a", "", "metadata.name=x", |b| namespace(b) == "a" && name(b) == "x"),
        8 => ("", "", "metadata.name=x", |b| name(b) == "x"),
        9 => ("", "!app", "", |b| app(b).is_none()),
        10 => ("", "", "spec.nodeName=", |b| node(b).is_empty()),
        11 => ("b", "app=web", "spec.nodeName=n1", |b| {
            namespace(b) == "b" && app(b) == Some("web") && node(b) == "n1"
        }),
        12 => ("", "app", "metadata.namespace=b", |b| namespace(b) == "b" && app(b).is_some()),
        _ => unreachable!("there are so many filters"),
    };
    (filter(namespace_, labels, fields), Box::new(matches))
}

/// A watcher, and the record of its slot.
struct Slot {
    filter: usize,
    client: ClientRecord,
    watcher: Option<Watcher>,
}

struct Script {
    pond: Pond,
    truth: History,
    slots: [Option<Slot>; SLOTS],
    /// Clients whose slot was reused.
    past: Vec<Slot>,
    /// The highest revision that the cache claimed.
    claimed: Revision,
}

impl Script {
    async fn new(bounds: Bounds) -> Script {
        let options =
            Options { window: bounds, wait_max: Duration::from_secs(1), ..Options::default() };
        let pond = Pond::new(options).await;
        let slots = Default::default();
        Script { pond, truth: History::default(), slots, past: Vec::new(), claimed: Revision::ZERO }
    }

    async fn newest(&self) -> Revision {
        self.pond.store.revision().await.unwrap()
    }

    fn compacted(&self) -> Revision {
        self.pond.store.condition().compacted
    }

    /// A revision between the first and a little after the newest.
    async fn scale(&self, choice: u8) -> Revision {
        let newest = self.newest().await.0;
        Revision((newest + 2) * (u64::from(choice) + 1) / 256)
    }

    async fn act(&mut self, act: &Act) {
        match act {
            Act::Write(puts) => self.write(puts).await,
            Act::Elsewhere => self.elsewhere().await,
            Act::Settle => self.settle().await,
            Act::Sweep => self.pond.sweep().await,
            Act::Compact(at) => {
                let at = self.scale(*at).await.min(self.newest().await);
                self.pond.store.compact(at).await.unwrap();
            }
            Act::Redefine => {
                self.pond.cache.set_fields(&pods(), &[]).unwrap();
                self.pond.cache.set_fields(&pods(), &node_field()).unwrap();
            }
            Act::Open { slot, filter, from } => self.open(*slot, *filter, *from).await,
            Act::Read { slot, steps } => {
                if let Some(slot) = &mut self.slots[*slot] {
                    let compacted = self.pond.store.condition().compacted;
                    (0..*steps).for_each(|_| slot.read(compacted));
                }
            }
            Act::Bookmark(slot) => {
                if let Some(slot) = &mut self.slots[*slot] {
                    slot.bookmark();
                }
            }
            Act::Resume(slot) => self.resume(*slot),
            Act::Recall(at) => self.recall(*at).await,
            Act::Keep => self.pond.pods().keep(&self.pond.cache.snapshot(&self.pond.pods())),
        }
        let applied = self.pond.cache.applied();
        assert!(applied >= self.claimed, "the cache went back");
        self.claimed = applied;
    }

    async fn write(&mut self, puts: &[Put]) {
        let mut ops: BTreeMap<Key, (Op, Option<ObjectBody>)> = BTreeMap::new();
        for put in puts {
            let pod = put.pod();
            let there = self.truth.state().get(NAMES[put.name]);
            let guard = there.map_or(Guard::Absent, |version| Guard::At(version.revision));
            if put.delete && there.is_none() {
                continue;
            }
            let action = match put.delete {
                true => Action::Delete,
                false => Action::Put { value: pod.bytes().into(), ttl: None },
            };
            let body: Value = serde_json::from_str(&pod.bytes()).unwrap();
            let body = (!put.delete).then(|| ObjectBody::new(body));
            ops.insert(pod.key(), (Op { key: pod.key(), guard, action }, body));
        }
        let is_joint = ops.len() > 1;
        for (n, (op, body)) in ops.into_values().enumerate() {
            let name = op.key.as_str().strip_prefix(&pods()).unwrap().to_owned();
            let mut write = Write { ops: vec![op] };
            if is_joint {
                write.ops.insert(n % 2, self.node().await);
            }
            let done = self.pond.store.commit(write).await.unwrap();
            assert_eq!(done.first, done.last, "this engine gives a write one revision");
            self.truth.record(done.last, &name, body);
        }
    }

    /// A write of another resource.
    async fn node(&self) -> Op {
        let key = Key::in_collection(&key::collection("", "nodes"), "n");
        let there = self.pond.store.get(&key).await.unwrap();
        let guard = there.map_or(Guard::Absent, |record| Guard::At(record.revision));
        let value = r#"{"metadata":{"name":"n"}}"#.into();
        Op { key, guard, action: Action::Put { value, ttl: None } }
    }

    async fn elsewhere(&mut self) {
        let ops = vec![self.node().await];
        self.pond.store.commit(Write { ops }).await.unwrap();
    }

    /// Waits until the cache has reached the store, and compares the states.
    async fn settle(&mut self) {
        let reached = self.pond.cache.consistent().await.unwrap();
        assert!(reached >= self.newest().await);
        self.check_state(&self.pond.cache.snapshot(&self.pond.pods()));
    }

    fn check_state(&self, snapshot: &Snapshot) {
        let seen = |object: &std::sync::Arc<Object>| {
            (object.key().to_owned(), object.revision(), body_of(object))
        };
        let found: Vec<_> = snapshot.iter("", None).map(seen).collect();
        let state = self.truth.state_at(snapshot.revision());
        let expected: Vec<_> =
            state.into_iter().map(|(key, version)| (key, version.revision, version.body)).collect();
        assert_eq!(found, expected, "the state at {}", snapshot.revision());
    }

    async fn recall(&mut self, at: u8) {
        let at = self.scale(at).await;
        let (newest, compacted) = (self.newest().await, self.compacted());
        match self.pond.cache.snapshot_at(&self.pond.pods(), at).await {
            Ok(snapshot) => {
                assert_eq!(snapshot.revision(), at);
                assert!(at >= compacted, "{at} was compacted at {compacted}");
                self.check_state(&snapshot);
            }
            Err(Error::Expired { asked, oldest }) => {
                assert_eq!((asked, oldest), (at, compacted));
                assert!(at < compacted);
            }
            Err(Error::TooLarge { asked, .. }) => assert!(asked == at && at > newest),
            Err(error) => panic!("{error}"),
        }
    }

    async fn open(&mut self, slot: usize, index: usize, from: From) {
        let (filter, _) = selection(index);
        let start = match from {
            From::Initial => WatchStart::Initial,
            From::Now => WatchStart::Now,
            From::After(at) => WatchStart::After(self.scale(at).await),
        };
        let mut watcher = self.pond.watch(&filter, start);
        let asked = match start {
            WatchStart::Initial => history::WatchStart::Initial(self.pond.cache.applied()),
            WatchStart::Now | WatchStart::After(_) => {
                history::WatchStart::After(watcher.position())
            }
        };
        let is_gone = matches!(start, WatchStart::After(at) if at < self.compacted());
        let mut stream = WatchRecord { start: asked, seen: Vec::new() };
        let mut watching = true;
        if is_gone {
            // The window edge is exact, so this is known at once.
            let step = ready(&mut watcher);
            assert!(
                matches!(step, Some(WatchStep::Expired { .. })),
                "it began below the compaction"
            );
            stream.seen.push(WatchItem::Error(410));
            watching = false;
        }
        let client = ClientRecord { streams: vec![stream] };
        let new = Slot { filter: index, client, watcher: watching.then_some(watcher) };
        self.past.extend(self.slots[slot].replace(new));
    }

    fn resume(&mut self, slot: usize) {
        let Some(slot) = &mut self.slots[slot] else { return };
        let Some(position) = slot.client.position() else { return };
        if position < self.pond.store.condition().compacted {
            return; // it would be refused, which `open` covers
        }
        let (filter, _) = selection(slot.filter);
        slot.watcher = Some(self.pond.watch(&filter, WatchStart::After(position)));
        let start = history::WatchStart::After(position);
        slot.client.streams.push(WatchRecord { start, seen: Vec::new() });
    }

    /// Drains all watchers and checks every client.
    async fn finish(mut self) {
        self.settle().await;
        let newest = self.newest().await;
        let compacted = self.compacted();
        for mut slot in std::mem::take(&mut self.slots).into_iter().flatten() {
            let complete = slot.drain(newest, compacted).await;
            slot.check(&self.truth, EndBounds { complete_to: complete, compacted });
        }
        for slot in self.past {
            slot.check(&self.truth, EndBounds { complete_to: Revision::ZERO, compacted });
        }
    }
}

impl Slot {
    fn seen(&mut self) -> &mut Vec<WatchItem> {
        &mut self.client.streams.last_mut().unwrap().seen
    }

    /// Records one step, if there is one.
    fn read(&mut self, compacted: Revision) {
        let Some(step) = self.watcher.as_mut().and_then(ready) else { return };
        self.write_down(step, compacted);
    }

    fn write_down(&mut self, step: WatchStep, compacted: Revision) {
        match step {
            WatchStep::Initial(objects) => {
                let frames = objects.iter().map(|object| object.frame(EventType::Added));
                self.seen().extend(frames.map(|frame| WatchItem::parse(&frame).unwrap()));
            }
            WatchStep::Synced(revision) => self.seen().push(WatchItem::InitialEventsEnd(revision)),
            WatchStep::Events(events) => {
                assert!(!events.is_empty());
                let frames = events.iter().map(|event| event.frame());
                self.seen().extend(frames.map(|frame| WatchItem::parse(&frame).unwrap()));
            }
            WatchStep::Expired { asked, oldest } => {
                assert!(asked < oldest && oldest <= compacted, "{asked} {oldest} {compacted}");
                self.seen().push(WatchItem::Error(410));
                self.watcher = None;
            }
            WatchStep::Closed => self.watcher = None,
            WatchStep::Failed(error) => panic!("{error}"),
            WatchStep::Stopping(_) => panic!("nobody stops the cache"),
        }
    }

    fn bookmark(&mut self) {
        let Some(revision) = self.watcher.as_mut().and_then(Watcher::progress) else { return };
        self.seen().push(WatchItem::Bookmark(revision));
    }

    /// Reads until no step is left; returns the revision up to which the record must be complete.
    async fn drain(&mut self, newest: Revision, compacted: Revision) -> Revision {
        loop {
            let Some(watcher) = &mut self.watcher else { return Revision::ZERO };
            let step = match ready(watcher) {
                Some(step) => step,
                None if watcher.position() > newest || watcher.progress() == Some(newest) => {
                    return newest;
                }
                None => tokio::time::timeout(Duration::from_secs(600), watcher.next())
                    .await
                    .expect("a watcher that is not up to date has something to read"),
            };
            self.write_down(step, compacted);
        }
    }

    fn check(&self, truth: &History, ends: EndBounds) {
        let (filter, matches) = selection(self.filter);
        if let Err(broken) = self.client.check(&truth.expect(matches), ends) {
            panic!("{broken}\n{filter:?}\n{:#?}", self.client);
        }
    }
}

impl Put {
    fn pod(&self) -> Pod {
        let pod = pod(NAMES[self.name]).on(NODES[self.node]).data(self.data);
        match APPS[self.app] {
            "" => pod,
            app => pod.label("app", app),
        }
    }
}

fn body_of(object: &Object) -> ObjectBody {
    ObjectBody::new(serde_json::from_slice(object.as_slice()).unwrap())
}
