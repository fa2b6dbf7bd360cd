//! A store with a running cache over it, and helpers to write and to watch.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use headwater_api::kind::{Field, Kind};
use headwater_api::selector::{FieldSelector, LabelSelector};
use headwater_api::{Object, Revision};
use headwater_cache::window::Bounds;
use headwater_cache::{
    Cache, Cacher, Filter, Options, Resource, WatchEvent, WatchStart, WatchStep, Watcher,
};
use headwater_store::{Action, Guard, Key, Memory, Store, Write, key};
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The prefix of pods, which tests use unless stated otherwise.
pub(crate) fn pods() -> String {
    key::collection("", "pods")
}

pub(crate) fn node_field() -> Vec<Field> {
    vec![Field::new("spec.nodeName", &["spec", "nodeName"], "")]
}

/// A window of this many changes, without other effective bounds.
pub(crate) fn window(count: usize) -> Options {
    let bounds = Bounds { age: Duration::from_secs(3600), count, bytes: 64 << 20 };
    Options { window: bounds, ..Options::default() }
}

/// A store and its cache.
pub(crate) struct Pond {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) cache: Cache,
    pub(crate) stop: CancellationToken,
    pub(crate) tasks: JoinSet<Result<(), headwater_cache::Error>>,
}

impl Pond {
    pub(crate) async fn new(options: Options) -> Pond {
        Pond::over(Arc::new(Memory::default()), options).await
    }

    pub(crate) async fn over(store: Arc<dyn Store>, options: Options) -> Pond {
        let mut cacher = Cacher::new(Arc::clone(&store), options);
        let cache = cacher.handle();
        cache.set_fields(&pods(), &node_field()).unwrap();
        cacher.load().await.unwrap();
        let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
        tasks.spawn(cacher.run(stop.clone()));
        Pond { store, cache, stop, tasks }
    }

    pub(crate) fn pods(&self) -> Arc<Resource> {
        self.cache.resource(&pods())
    }

    /// Writes a key unconditionally and waits until the cache shows it.
    pub(crate) async fn put(&self, pod: &Pod) -> Revision {
        let at = self.commit(&pod.key(), Some(pod.bytes())).await;
        self.cache.reach(at).await.unwrap();
        at
    }

    pub(crate) async fn delete(&self, pod: &Pod) -> Revision {
        let at = self.commit(&pod.key(), None).await;
        self.cache.reach(at).await.unwrap();
        at
    }

    /// Writes a key unconditionally; the cache may not show it yet.
    pub(crate) async fn commit(&self, key: &Key, value: Option<String>) -> Revision {
        let guard = match self.store.get(key).await.unwrap() {
            None => Guard::Absent,
            Some(record) => Guard::At(record.revision),
        };
        let action = match value {
            Some(value) => Action::Put { value: value.into(), ttl: None },
            None => Action::Delete,
        };
        self.store.commit(Write::one(key.clone(), guard, action)).await.unwrap().last
    }

    /// Waits for a sweep of the cache, which runs once per second.
    pub(crate) async fn sweep(&self) {
        tokio::time::sleep(Duration::from_millis(2500)).await;
    }

    pub(crate) fn watch(&self, filter: &Filter, start: WatchStart) -> Watcher {
        self.cache.watch(&self.pods(), filter, start)
    }

    /// The pod as the cache shows it now.
    pub(crate) fn object(&self, pod: &Pod) -> Arc<Object> {
        Arc::clone(self.cache.snapshot(&self.pods()).get(&pod.name).unwrap())
    }
}

/// The selectable parts of a pod. The name is `namespace/name`.
#[derive(Clone, Debug)]
pub(crate) struct Pod {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<&'static str, &'static str>,
    pub(crate) node: &'static str,
    pub(crate) data: String,
}

pub(crate) fn pod(name: &str) -> Pod {
    Pod { name: name.to_owned(), labels: BTreeMap::new(), node: "", data: String::new() }
}

impl Pod {
    pub(crate) fn label(mut self, key: &'static str, value: &'static str) -> Pod {
        self.labels.insert(key, value);
        self
    }

    pub(crate) fn on(self, node: &'static str) -> Pod {
        Pod { node, ..self }
    }

    pub(crate) fn data(self, data: impl std::fmt::Display) -> Pod {
        Pod { data: format!("{data}"), ..self }
    }

    pub(crate) fn key(&self) -> Key {
        Key::in_collection(&pods(), &self.name)
    }

    pub(crate) fn bytes(&self) -> String {
        let (namespace, name) = self.name.split_once('/').unwrap();
        let mut object = json!({
            "metadata": { "name": name, "namespace": namespace, "labels": self.labels },
            "data": self.data,
        });
        if !self.node.is_empty() {
            object["spec"] = json!({ "nodeName": self.node });
        }
        object.to_string()
    }
}

/// Parses a filter as a request contains it.
pub(crate) fn filter(namespace: &str, labels: &str, fields: &str) -> Filter {
    let kind = Kind { namespaced: true, fields: node_field(), ..Kind::default() };
    Filter {
        namespace: namespace.to_owned(),
        labels: LabelSelector::parse(labels).unwrap(),
        fields: FieldSelector::parse(fields, &kind).unwrap(),
        shard: None,
    }
}

pub(crate) fn all() -> Filter {
    Filter::default()
}

/// The next step, if it is available without waiting.
pub(crate) fn ready(watcher: &mut Watcher) -> Option<WatchStep> {
    watcher.next().now_or_never()
}

/// The next step. A watcher that waits for ever fails the test.
pub(crate) async fn step(watcher: &mut Watcher) -> WatchStep {
    let step = tokio::time::timeout(Duration::from_secs(60), watcher.next()).await;
    step.expect("the watcher received no event and was not ended")
}

/// The next events as `TYPE name@revision`.
pub(crate) async fn events(watcher: &mut Watcher) -> Vec<String> {
    match step(watcher).await {
        WatchStep::Events(events) => events.iter().map(brief).collect(),
        other => panic!("{}", describe(&other)),
    }
}

pub(crate) fn brief(event: &WatchEvent) -> String {
    let object = event.object();
    assert_eq!(object.revision(), event.revision(), "an event shows the revision of its change");
    format!("{} {}@{}", event.event_type().as_str(), object.key(), event.revision())
}

/// A step as text.
pub(crate) fn describe(step: &WatchStep) -> String {
    match step {
        WatchStep::Initial(objects) => {
            let names: Vec<String> =
                objects.iter().map(|o| format!("{}@{}", o.key(), o.revision())).collect();
            format!("initial {}", names.join(" "))
        }
        WatchStep::Synced(revision) => format!("synced {revision}"),
        WatchStep::Events(events) => events.iter().map(brief).collect::<Vec<_>>().join(" "),
        WatchStep::Expired { asked, oldest } => format!("expired {asked}, oldest {oldest}"),
        WatchStep::Failed(error) => format!("failed: {error}"),
        WatchStep::Closed => "closed".to_owned(),
        WatchStep::Stopping(Some(reached)) => format!("stopping at {reached}"),
        WatchStep::Stopping(None) => "stopping".to_owned(),
    }
}

/// The next steps as text, until the watcher has to wait.
pub(crate) fn ready_steps(watcher: &mut Watcher) -> Vec<String> {
    let mut steps = Vec::new();
    while let Some(step) = ready(watcher) {
        steps.push(describe(&step));
        match step {
            WatchStep::Initial(_) | WatchStep::Synced(_) | WatchStep::Events(_) => {}
            _ => break,
        }
    }
    steps
}
