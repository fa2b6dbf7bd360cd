//! The scripted world: a model of a server that answers the requests of a [`Script`].

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use headwater_client::Cached;
use headwater_client::script::{
    self, At, Error, Event, ListQuery, ListWatch, Query, Script, StatusError, WatchQuery, WatchStep,
};
use k8s_openapi::api::core::v1::ConfigMap;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{Asked, Begin, Kind, NAMESPACE, Refusal, World, Written, take_refusal};
use crate::support::with_uid;

pub struct Scripted {
    model: Arc<Model>,
    source: Mutex<Source>,
    written: Vec<Written>,
    _player: JoinSet<()>,
}

/// The source, before and after it was taken.
enum Source {
    New(Option<script::ScriptSource<ConfigMap>>),
    Given(Arc<dyn ListWatch<Object = ConfigMap>>),
}

/// The state that the player of the script and the test share.
struct Model {
    state: Mutex<State>,
    down: watch::Sender<bool>,
    asked: watch::Sender<Vec<Asked>>,
}

#[derive(Default)]
struct State {
    version: u64,
    objects: BTreeMap<String, ConfigMap>,
    history: Vec<Past>,
    /// History up to here was compacted.
    forgotten: u64,
    streams: Vec<WatchStep<ConfigMap>>,
    refusals: Vec<(Kind, Refusal)>,
    cut_in_next_frame: bool,
}

#[derive(Clone)]
struct Past {
    version: u64,
    change: Change,
    object: ConfigMap,
}

#[derive(Clone, Copy)]
enum Change {
    Added,
    Modified,
    Deleted,
}

impl Past {
    fn event(&self) -> Event<ConfigMap> {
        let object = self.object.clone();
        match self.change {
            Change::Added => Event::Added(object),
            Change::Modified => Event::Modified(object),
            Change::Deleted => Event::Deleted(object),
        }
    }
}

impl World for Scripted {
    async fn open() -> Scripted {
        let (script, source) = Script::new();
        let model = Arc::new(Model {
            state: Mutex::default(),
            down: watch::Sender::new(false),
            asked: watch::Sender::default(),
        });
        let mut player = JoinSet::new();
        player.spawn(play(script, Arc::clone(&model)));
        let source = Mutex::new(Source::New(Some(source)));
        Scripted { model, source, written: Vec::new(), _player: player }
    }

    fn source(&self, begin: Begin) -> Arc<dyn ListWatch<Object = ConfigMap>> {
        let mut source = self.source.lock().unwrap();
        if let Source::New(new) = &mut *source {
            let new = new.take().expect("it is there until it is given");
            *source = Source::Given(match begin {
                Begin::WatchList => Arc::new(new),
                Begin::List => Arc::new(new.without_watch_list()),
            });
        }
        let Source::Given(source) = &*source else { unreachable!("it was just given") };
        Arc::clone(source)
    }

    async fn put(&mut self, name: &str, value: &str) {
        let version = self.model.state().put(name, value);
        self.written.push(Written::put(name, &version.to_string()));
    }

    async fn delete(&mut self, name: &str) {
        self.model.state().delete(name);
        self.written.push(Written::deleted(name));
    }

    async fn churn(&mut self, names: &[String], count: usize) {
        for (turn, name) in (0..count).zip(names.iter().cycle()) {
            self.put(name, &turn.to_string()).await;
        }
    }

    async fn truth(&mut self) -> BTreeMap<String, String> {
        let state = self.model.state();
        let version = |map: &ConfigMap| map.resource_version().to_string();
        state.objects.iter().map(|(name, map)| (name.clone(), version(map))).collect()
    }

    fn written(&self) -> &[Written] {
        &self.written
    }

    fn asked(&self) -> watch::Receiver<Vec<Asked>> {
        self.model.asked.subscribe()
    }

    fn cut(&self) {
        for stream in self.model.state().streams.drain(..) {
            stream.breaks();
        }
    }

    fn cut_in_next_frame(&self) {
        self.model.state().cut_in_next_frame = true;
    }

    fn garbage(&self) {
        for stream in self.model.state().streams.drain(..) {
            stream.fails(Error::Malformed("garbage".into()));
        }
    }

    fn silence(&self) {
        // The other end is dropped without closing the connection.
        self.model.state().streams.clear();
    }

    fn down(&self) {
        self.model.down.send_replace(true);
        self.cut();
    }

    fn up(&self) {
        self.model.down.send_replace(false);
    }

    fn refuse(&self, kind: Kind, refusal: Refusal) {
        self.model.state().refusals.push((kind, refusal));
    }

    async fn restart(&mut self) {
        for stream in self.model.state().streams.drain(..) {
            stream.ends();
        }
    }

    async fn forget(&mut self) {
        self.model.state().forget();
        self.restart().await;
    }
}

impl Model {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl State {
    fn put(&mut self, name: &str, value: &str) -> u64 {
        self.version += 1;
        let known = self.objects.get(name);
        let uid = known.map_or_else(|| format!("uid-{}", self.version), |map| map.uid().to_owned());
        let change = if known.is_some() { Change::Modified } else { Change::Added };
        let key = format!("{NAMESPACE}/{name}");
        let mut object = with_uid(&key, &self.version.to_string(), &uid);
        object.data = Some([("value".to_owned(), value.to_owned())].into());
        self.objects.insert(name.to_owned(), object.clone());
        self.record(change, object);
        self.version
    }

    fn delete(&mut self, name: &str) {
        self.version += 1;
        let mut object = self.objects.remove(name).expect("only what exists is deleted");
        object.metadata.resource_version = Some(self.version.to_string());
        self.record(Change::Deleted, object);
    }

    fn forget(&mut self) {
        self.forgotten = self.version;
    }

    fn record(&mut self, change: Change, object: ConfigMap) {
        let past = Past { version: self.version, change, object };
        if std::mem::take(&mut self.cut_in_next_frame) {
            for stream in self.streams.drain(..) {
                stream.breaks();
            }
        }
        for stream in &self.streams {
            stream.event(past.event());
        }
        self.history.push(past);
    }

    fn answer_list(&self, script: &Script<ConfigMap>, query: &ListQuery) {
        let skip = query.continue_token.as_ref().map_or(0, |token| token.parse().unwrap());
        // A cache that may return any version ignores the limit.
        let limit = query.limit.filter(|_| query.at != At::Any);
        let limit = limit.map_or(usize::MAX, |limit| limit as usize);
        let items: Vec<_> = self.objects.values().skip(skip).take(limit).cloned().collect();
        let (next, version) = (skip + items.len(), self.version.to_string());
        match next < self.objects.len() {
            true => script.expect_list().answers_part(items, &version, &next.to_string()),
            false => script.expect_list().answers(items, &version),
        }
    }

    fn answer_watch(&mut self, script: &Script<ConfigMap>, query: &WatchQuery) {
        if query.initial_events {
            let stream = script.expect_watch_list();
            for object in self.objects.values() {
                stream.added(object.clone());
            }
            stream.marker(&self.version.to_string());
            return self.streams.push(stream);
        }
        let stream = script.expect_watch();
        let At::AtLeast(after) = &query.at else { panic!("a watch resumes: {query:?}") };
        let after: u64 = after.to_string().parse().unwrap();
        if after < self.forgotten {
            stream.error(410, "Expired").ends();
            return;
        }
        for past in self.history.iter().filter(|past| past.version > after) {
            stream.event(past.event());
        }
        self.streams.push(stream);
    }
}

/// Answers requests one after the other while the server is up.
async fn play(script: Script<ConfigMap>, model: Arc<Model>) {
    let mut down = model.down.subscribe();
    for number in 0.. {
        script.requested(number + 1).await;
        let request = script.requests().swap_remove(number);
        let kind = match &request.query {
            Query::List(_) => Kind::List,
            Query::Watch(query) if query.initial_events => Kind::WatchList,
            Query::Watch(_) => Kind::Watch,
        };
        model.asked.send_modify(|asked| asked.push(Asked { kind, at: request.at }));
        if down.wait_for(|down| !*down).await.is_err() {
            return;
        }
        let mut state = model.state();
        let refusal = take_refusal(&mut state.refusals, kind).map(status);
        match (refusal, &request.query) {
            (Some(error), Query::List(_)) => script.expect_list().fails(error),
            (Some(error), Query::Watch(query)) if query.initial_events => {
                script.expect_watch_list().fails(error);
            }
            (Some(error), Query::Watch(_)) => script.expect_watch().fails(error),
            (None, Query::List(query)) => state.answer_list(&script, query),
            (None, Query::Watch(query)) => state.answer_watch(&script, query),
        }
    }
}

fn status(refusal: Refusal) -> Error {
    let Refusal { code, reason, cause, retry_after } = refusal;
    Error::Status(StatusError {
        causes: cause.map(|cause| (cause.to_owned(), String::new())).into_iter().collect(),
        retry_after,
        ..StatusError::new(code, reason, "refused by the test")
    })
}
