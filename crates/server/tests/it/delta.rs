//! Delta watches (`docs/spec/delta-watch.md`) and responses without managed fields.

use std::collections::BTreeMap;
use std::time::Duration;

use headwater_api::EventType;
use headwater_api::delta::Delta;
use headwater_api::frame::Frame;
use headwater_cache::Options as CacheOptions;
use headwater_cache::window::Bounds;
use headwater_json::scan::{Malformed, Scanner, find};
use headwater_json::{Value, json};
use headwater_server::Settings;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::api::{Api, CMS, PODS, Watch, config_map, escaped, pod, version, word};
use crate::custom::{WIDGETS, World, widget};

const DELTA: &str = "Accept: application/json;delta=v1";
const DROP: &str = "Accept: application/json;drop=metadata.managedFields";

/// Everything a client holds: the text of each object by name, as the lines of its watch say.
#[derive(Default)]
struct State {
    texts: BTreeMap<String, String>,
    /// The version to resume at.
    at: String,
    /// The object's text is of this kind, for the items of lists.
    type_meta: String,
    deltas: usize,
    /// Whether the initial state is complete: until then, there is no version to resume at.
    is_synced: bool,
    is_expired: bool,
}

impl State {
    fn take(&mut self, line: &str) {
        if Delta::is(line.as_bytes()) {
            return self.change(&Delta::decode(line).unwrap());
        }
        let frame = Frame::decode(line).unwrap();
        let object: Value = serde_json::from_str(frame.object).unwrap();
        let name = object["metadata"]["name"].as_str().map(str::to_owned);
        match EventType::parse(&frame.event).unwrap() {
            EventType::Error => {
                assert_eq!(object["code"], 410, "{line}");
                self.is_expired = true;
                return;
            }
            EventType::Bookmark => self.is_synced = true,
            EventType::Deleted => drop(self.texts.remove(&name.unwrap()).expect(line)),
            EventType::Added | EventType::Modified => {
                self.texts.insert(name.unwrap(), frame.object.to_owned());
            }
        }
        self.at = version(&object);
    }

    fn change(&mut self, delta: &Delta<'_>) {
        let marker = format!("\"resourceVersion\":\"{}\"", delta.from);
        let is_base = |text: &&mut String| text.contains(&marker);
        let base = self.texts.values_mut().find(is_base).expect("the client has the version");
        *base = delta.apply(base).unwrap();
        self.at = delta.to.to_string();
        self.deltas += 1;
    }

    /// Takes the items of a list.
    fn list(&mut self, body: &str) {
        let whole: Value = serde_json::from_str(body).unwrap();
        (self.at, self.is_synced) = (version(&whole), true);
        let mut items =
            Scanner::at(body.as_bytes(), find(body.as_bytes(), &["items"]).unwrap().start);
        let mut texts = Vec::new();
        items
            .array::<Malformed>(|at| {
                let item = at.value()?;
                texts.push(body[item.start as usize..item.end as usize].to_owned());
                Ok(())
            })
            .unwrap();
        for text in texts {
            let object: Value = serde_json::from_str(&text).unwrap();
            let name = object["metadata"]["name"].as_str().unwrap().to_owned();
            self.texts.insert(name, text.replacen('{', &self.type_meta, 1));
        }
    }

    /// Takes every line that arrives now.
    async fn settle(&mut self, watch: &mut Watch) {
        let quiet = Duration::from_millis(100);
        while let Ok(Some(line)) = tokio::time::timeout(quiet, watch.line()).await {
            self.take(&line);
        }
    }
}

/// S4.60, S4.61
#[tokio::test(start_paused = true)]
async fn a_modified_object_is_sent_as_a_delta_to_watchers_that_asked() {
    let api = Api::start().await;
    let mut map = config_map("a");
    map["data"] = json!({ "long": "x".repeat(300), "v": "one" });
    map["metadata"]["labels"]["app"] = "web".into();
    let old = version(&api.create(CMS, &map).await);
    let target = format!("{CMS}?watch=true&labelSelector=app");
    let mut whole = api.watch(&target).await;
    let mut delta = api.watch(&format!("{target}\n{DELTA}")).await;
    let mut unknown = api.watch(&format!("{target}\nAccept: application/json;delta=v9")).await;
    let first = whole.line().await.unwrap();
    assert_eq!(delta.line().await.unwrap(), first);
    assert_eq!(unknown.line().await.unwrap(), first);

    let new = api.merge(&format!("{CMS}/a"), &json!({ "data": { "v": "two" } })).await.version();
    let full = whole.line().await.unwrap();
    assert_eq!(unknown.line().await.unwrap(), full);
    let line = delta.line().await.unwrap();
    assert!(line.starts_with(&format!("{{\"delta\":[\"{old}\",\"{new}\",")), "{line}");
    // Some deltas have a digest.
    assert!(line.contains("\"two\"") && line.len() < 90, "{line}");
    let mut state = State::default();
    state.take(&first);
    state.take(&line);
    assert_eq!(state.texts["a"], Frame::decode(&full).unwrap().object);

    // Most of the object changes: the complete object is shorter than its delta.
    let body = json!({ "data": { "long": null, "v": null, "w": "\\\"".repeat(500) } });
    api.merge(&format!("{CMS}/a"), &body).await.is(200, "");
    assert_eq!(delta.line().await.unwrap(), whole.line().await.unwrap());
    // An object that leaves the selection or enters it, and one that is deleted, are complete.
    for label in [Value::Null, "db".into()] {
        let body = json!({ "metadata": { "labels": { "app": label } } });
        api.merge(&format!("{CMS}/a"), &body).await.is(200, "");
        assert_eq!(delta.line().await.unwrap(), whole.line().await.unwrap());
    }
    api.delete(&format!("{CMS}/a")).await.is(200, "");
    let line = delta.line().await.unwrap();
    assert!(line.starts_with("{\"type\":\"DELETED\""), "{line}");
    assert_eq!(line, whole.line().await.unwrap());
}

/// S4.61
#[tokio::test(start_paused = true)]
async fn a_watch_without_initial_state_receives_complete_objects() {
    let api = Api::start().await;
    let mut map = config_map("a");
    map["data"] = json!({ "long": "x".repeat(300) });
    let made = version(&api.create(CMS, &map).await);
    let without = "sendInitialEvents=false&resourceVersionMatch=NotOlderThan";
    let mut stateless = api.watch(&format!("{CMS}?watch=true&{without}\n{DELTA}")).await;
    let mut resumed =
        api.watch(&format!("{CMS}?watch=true&{without}&resourceVersion={made}\n{DELTA}")).await;
    let change = json!({ "data": { "v": "2" } });
    api.merge(&format!("{CMS}/a"), &change).await.is(200, "");
    assert_eq!(stateless.take(1).await, "MODIFIED/a");
    assert!(resumed.line().await.unwrap().starts_with("{\"delta\":"));
}

/// S4.62
#[tokio::test(start_paused = true)]
async fn deltas_have_a_digest_now_and_then_and_always_for_custom_kinds() {
    let world = World::with_widgets(|_| {}).await;
    let text = "x".repeat(200);
    world.create(WIDGETS, &widget("w", json!({ "size": 1, "colour": text }))).await;
    let mut map = config_map("a");
    map["data"] = json!({ "long": text });
    world.create(CMS, &map).await;
    let mut widgets = world.watch(&format!("{WIDGETS}?watch=true\n{DELTA}")).await;
    let mut maps =
        world.watch(&format!("{CMS}?watch=true&fieldSelector=metadata.name=a\n{DELTA}")).await;
    let mut state = State::default();
    let mut digests = 0;
    widgets.line().await.unwrap();
    state.take(&maps.line().await.unwrap());
    for round in 2..66 {
        let size = json!({ "spec": { "size": round } });
        world.merge(&format!("{WIDGETS}/w"), &size).await.is(200, "");
        let line = widgets.line().await.unwrap();
        assert!(Delta::decode(&line).unwrap().has_digest(), "{line}");
        let body = json!({ "data": { "v": round.to_string() } });
        world.merge(&format!("{CMS}/a"), &body).await.is(200, "");
        let line = maps.line().await.unwrap();
        digests += usize::from(Delta::decode(&line).unwrap().has_digest());
        state.take(&line); // checks the digest
    }
    assert!((1..20).contains(&digests), "{digests} of 64");
}

/// S1.36
#[tokio::test(start_paused = true)]
async fn managed_fields_are_left_out_on_request() {
    let world = World::with_widgets(|_| {}).await;
    let mut large = config_map("large");
    large["data"] = json!({ "v": "x".repeat(5000) });
    let table = "as=Table;g=meta.k8s.io;v=v1";
    let partial = "as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let accept =
        |shape: &str| format!("Accept: application/json;{shape};drop=metadata.managedFields");
    let posted = world.send(&format!("POST {CMS}\n{DROP}"), large.to_string()).await;
    assert!(!posted.is(201, "").text().contains("managedFields"));
    let mut small = config_map("small");
    small["data"]["v"] = "1".into();
    assert!(world.create(CMS, &small).await["metadata"]["managedFields"].is_array());
    world.create(WIDGETS, &widget("w", json!({ "size": 1 }))).await;
    let mut held = Vec::new();
    for target in [CMS, &format!("{CMS}/small"), WIDGETS, &format!("{WIDGETS}/w")] {
        let kept = world.get(target).await.json();
        assert!(kept.to_string().contains("managedFields"), "{target}");
        let dropped = world.send(&format!("GET {target}\n{DROP}"), "").await.json();
        let mut expected = kept.clone();
        let drop = |object: &mut Value| {
            object["metadata"].as_object_mut().unwrap().remove("managedFields");
        };
        match kept["items"].is_array() {
            true => expected["items"].as_array_mut().unwrap().iter_mut().for_each(drop),
            false => drop(&mut expected),
        }
        assert_eq!(dropped, expected);
        held.push(dropped);
    }
    for request in [
        format!("GET {CMS}\nAccept: application/yaml;drop=metadata.managedFields"),
        format!("GET {CMS}?includeObject=Object\n{}", accept(table)),
        format!("GET {CMS}\n{}", accept(table)),
        format!("GET {CMS}\n{}", accept(partial)),
        format!("PUT {CMS}/small\n{DROP}\nContent-Type: application/json"),
    ] {
        let body = if request.starts_with("PUT") { small.to_string() } else { String::new() };
        let answer = world.send(&request, body).await;
        assert!(answer.is(200, "small").text().contains("resourceVersion"), "{request}");
        assert!(!answer.text().contains("managedFields"), "{request}");
    }
    let mut watch = world.watch(&format!("{CMS}?watch=true\n{DROP}")).await;
    for _ in 0..2 {
        let event = watch.next().await.unwrap();
        let items = held[0]["items"].as_array().unwrap();
        let name = &event["object"]["metadata"]["name"];
        let item = items.iter().find(|item| item["metadata"]["name"] == *name).unwrap();
        assert_eq!(event["object"]["data"], item["data"]);
        assert!(event["object"]["metadata"].get("managedFields").is_none(), "{event}");
    }
    world.merge(&format!("{CMS}/small"), &json!({ "data": { "v": "2" } })).await.is(200, "");
    let event = watch.next().await.unwrap();
    assert_eq!(word(&event), "MODIFIED/small");
    assert!(event["object"]["metadata"].get("managedFields").is_none(), "{event}");
}

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const SELECTIONS: [&str; 5] = [
    "",
    "labelSelector=app%3Dweb",
    "labelSelector=app%21%3Dweb",
    "fieldSelector=spec.nodeName%3Dn1",
    "fieldSelector=metadata.name%3Da",
];
const FORMS: [&str; 3] = [
    "application/json",
    "application/json;drop=metadata.managedFields",
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
];
const SLOTS: usize = 3;

#[derive(Clone, Debug)]
enum Act {
    /// Creates a pod, or changes one.
    Write {
        name: usize,
        change: Change,
    },
    Delete(usize),
    /// Starts two watches of a selection, one of them with deltas.
    Open {
        slot: usize,
        selection: usize,
        form: usize,
        from_list: bool,
    },
    /// One of the two watches of a slot reads a few lines.
    Read {
        slot: usize,
        delta: bool,
        lines: usize,
    },
    /// One of the two is disconnected and resumes.
    Resume {
        slot: usize,
        delta: bool,
    },
    /// The history before now is forgotten.
    Compact,
}

#[derive(Clone, Debug)]
enum Change {
    Label(Option<String>),
    Annotation(Option<String>),
    Conditions(Vec<(usize, bool)>),
    Phase(usize),
}

fn act() -> impl Strategy<Value = Act> {
    let label = prop_oneof![Just(None), Just(Some("web".into())), Just(Some("db".into()))];
    let change = prop_oneof![
        3 => label.prop_map(Change::Label),
        3 => prop::option::of(r#"[aé"<\\]{0,6}|x{200,300}"#).prop_map(Change::Annotation),
        3 => vec((0..4_usize, any::<bool>()), 0..4).prop_map(Change::Conditions),
        2 => (0..3_usize).prop_map(Change::Phase),
    ];
    prop_oneof![
        12 => (0..NAMES.len(), change).prop_map(|(name, change)| Act::Write { name, change }),
        2 => (0..NAMES.len()).prop_map(Act::Delete),
        3 => (0..SLOTS, 0..SELECTIONS.len(), 0..FORMS.len(), any::<bool>())
            .prop_map(|(slot, selection, form, from_list)| {
                // A list of metadata has another media type.
                Act::Open { slot, selection, form, from_list: from_list && form < 2 }
            }),
        5 => (0..SLOTS, any::<bool>(), 1..6_usize)
            .prop_map(|(slot, delta, lines)| Act::Read { slot, delta, lines }),
        3 => (0..SLOTS, any::<bool>()).prop_map(|(slot, delta)| Act::Resume { slot, delta }),
        1 => Just(Act::Compact),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases()) })]

    /// S4.63
    #[test]
    fn a_delta_watcher_has_the_state_of_a_full_watcher_byte_for_byte(
        acts in vec(act(), 10..50),
        window in 1..6_usize,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(run(&acts, window));
    }
}

/// The number of cases; `PROPTEST_CASES` overrides it.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(24)
}

async fn run(acts: &[Act], window: usize) {
    let bounds = Bounds { count: window, ..Bounds::default() };
    let cache = CacheOptions { window: bounds, ..CacheOptions::default() };
    let api = Api::with(Settings::default(), cache).await;
    let mut slots: [Option<Pair>; SLOTS] = Default::default();
    for act in acts {
        match act {
            Act::Write { name, change } => write(&api, NAMES[*name], change).await,
            Act::Delete(name) => {
                api.delete(&format!("{PODS}/{}?gracePeriodSeconds=0", NAMES[*name])).await;
            }
            Act::Open { slot, selection, form, from_list } => {
                if let Some(pair) = &mut slots[*slot] {
                    pair.compare(&api).await;
                }
                slots[*slot] = Some(Pair::open(&api, *selection, *form, *from_list).await);
            }
            Act::Read { slot, delta, lines } => {
                if let Some(pair) = &mut slots[*slot] {
                    pair.watcher(*delta).read(&api, *lines).await;
                }
            }
            Act::Resume { slot, delta } => {
                if let Some(pair) = &mut slots[*slot] {
                    pair.watcher(*delta).resume(&api).await;
                }
            }
            Act::Compact => {
                let newest = api.get(PODS).await.version();
                api.compact(&newest).await;
            }
        }
    }
    for pair in slots.iter_mut().flatten() {
        pair.compare(&api).await;
    }
    api.stop().await;
}

async fn write(api: &Api, name: &str, change: &Change) {
    let target = format!("{PODS}/{name}");
    if api.get(&target).await.code == 404 {
        let mut made = pod(name, if name < "c" { "n1" } else { "" });
        made["metadata"]["labels"]["app"] = "web".into();
        api.create(PODS, &made).await;
    }
    let (target, body) = match change {
        Change::Label(label) => (target, json!({ "metadata": { "labels": { "app": label } } })),
        Change::Annotation(text) => {
            (target, json!({ "metadata": { "annotations": { "note": text } } }))
        }
        Change::Conditions(conditions) => {
            let conditions: Vec<Value> = conditions
                .iter()
                .map(|(kind, status)| {
                    let status = if *status { "True" } else { "False" };
                    json!({ "type": format!("T{kind}"), "status": status, "message": "m" })
                })
                .collect();
            (format!("{target}/status"), json!({ "status": { "conditions": conditions } }))
        }
        Change::Phase(phase) => {
            let phase = ["Pending", "Running", "Unknown"][*phase];
            (format!("{target}/status"), json!({ "status": { "phase": phase } }))
        }
    };
    api.merge(&target, &body).await;
}

/// Two watchers of one selection: without deltas, and with.
struct Pair {
    whole: Watcher,
    delta: Watcher,
}

struct Watcher {
    target: String,
    accept: String,
    state: State,
    watch: Watch,
}

impl Pair {
    async fn open(api: &Api, selection: usize, form: usize, from_list: bool) -> Pair {
        let target = format!("{PODS}?{}", SELECTIONS[selection]);
        let form = FORMS[form];
        let whole = Watcher::open(api, &target, form.to_owned(), from_list).await;
        let delta = Watcher::open(api, &target, format!("{form};delta=v1"), from_list).await;
        Pair { whole, delta }
    }

    fn watcher(&mut self, delta: bool) -> &mut Watcher {
        if delta { &mut self.delta } else { &mut self.whole }
    }

    async fn compare(&mut self, api: &Api) {
        self.whole.settle(api).await;
        self.delta.settle(api).await;
        assert_eq!(self.delta.state.texts, self.whole.state.texts, "{}", self.whole.target);
        assert_eq!(self.whole.state.deltas, 0);
    }
}

impl Watcher {
    async fn open(api: &Api, target: &str, accept: String, from_list: bool) -> Watcher {
        let type_meta = r#"{"kind":"Pod","apiVersion":"v1","#.to_owned();
        let mut state = State { type_meta, ..State::default() };
        if from_list {
            let list = api.send(&format!("GET {target}\nAccept: {accept}"), "").await;
            state.list(&list.text());
        }
        let watch = start(api, target, &accept, &state.at).await;
        Watcher { target: target.to_owned(), accept, state, watch }
    }

    async fn read(&mut self, api: &Api, lines: usize) {
        for _ in 0..lines {
            let next = tokio::time::timeout(Duration::from_millis(100), self.watch.line()).await;
            let Ok(Some(line)) = next else { break };
            self.state.take(&line);
        }
        self.recover(api).await;
    }

    async fn settle(&mut self, api: &Api) {
        self.state.settle(&mut self.watch).await;
        self.recover(api).await;
    }

    async fn resume(&mut self, api: &Api) {
        if !self.state.is_synced {
            return self.restart(api).await;
        }
        self.watch = start(api, &self.target, &self.accept, &self.state.at).await;
    }

    async fn restart(&mut self, api: &Api) {
        self.state = State::default();
        self.watch = start(api, &self.target, &self.accept, "").await;
    }

    /// Starts from the beginning after a 410.
    async fn recover(&mut self, api: &Api) {
        if self.state.is_expired {
            self.restart(api).await;
            self.state.settle(&mut self.watch).await;
        }
    }
}

async fn start(api: &Api, target: &str, accept: &str, at: &str) -> Watch {
    let initial = match at {
        "" => format!("&sendInitialEvents=true&resourceVersionMatch={}", escaped("NotOlderThan")),
        at => format!("&resourceVersion={at}"),
    };
    let query = format!("{target}&watch=true&allowWatchBookmarks=true{initial}");
    api.watch(&format!("{query}\nAccept: {accept}")).await
}
