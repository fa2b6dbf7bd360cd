//! The loop: what the informers tell goes into cache and queue, what the queue gives is decided,
//! what was decided is written beside.

use std::sync::Arc;

use headwater_api::Clock;
use headwater_api::clock::rfc3339;
use headwater_client::calls::Calls;
use headwater_client::change::Change;
use headwater_client::controller::Env;
use headwater_client::informer::{Informer, Subscribe, Subscription};
use headwater_client::recorder::{self, EventType, Recorder};
use headwater_client::{Cached, Error, Key};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde_json::{Value, json};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};

use crate::pod::Pod;

use super::NAME;
use super::ask::Ask;
use super::cache::Cache;
use super::decide::{Decision, Unfit, decide};
use super::preempt::Preemption;
use super::queue::Queue;
use super::reason::Happened;

/// How many writes are under way at once; when so many are, nothing more is decided.
const WRITES_MAX: usize = 64;

pub(crate) async fn run(
    pods: Informer<Pod>,
    nodes: Informer<Node>,
    budgets: Informer<PodDisruptionBudget>,
    clock: Arc<dyn Clock>,
    env: Env,
) -> Result<(), Error> {
    let changes = Changes {
        pods: pods.subscribe(Subscribe::named("scheduler").split_recreate(true))?,
        nodes: nodes.subscribe(Subscribe::named("scheduler"))?,
        budgets: budgets.subscribe(Subscribe::named("scheduler"))?,
    };
    // Events say who decided, in the name that people look for.
    let mut options = recorder::Options::new(NAME, NAME);
    options.clock = Arc::clone(&clock);
    let (recorder, runner) = recorder::new(env.calls().clone(), options);
    let recording = runner.run(env.stop().clone());
    let scheduler = Scheduler::new(Writer { calls: env.calls().clone(), recorder, clock });
    tokio::join!(scheduler.run(changes, env), recording);
    Ok(())
}

/// What the scheduler is told.
struct Changes {
    pods: Subscription<Pod>,
    nodes: Subscription<Node>,
    budgets: Subscription<PodDisruptionBudget>,
}

impl Changes {
    fn has_synced(&self) -> bool {
        self.pods.has_synced() && self.nodes.has_synced() && self.budgets.has_synced()
    }
}

fn joined<T>(ended: Result<T, JoinError>) -> T {
    ended.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// What the scheduler knows and does.
struct Scheduler {
    cache: Cache,
    queue: Queue,
    /// Where the last pod was placed; the next look around begins after it.
    last: String,
    writer: Arc<Writer>,
    writes: JoinSet<Written>,
    /// What happened since pods that wait were last told.
    happened: Happened,
}

/// What became of a write.
enum Written {
    Bound {
        key: Key,
        uid: String,
        result: Result<(), Error>,
    },
    /// The pod was told why it waits; that it could not be is no reason to do anything.
    Told,
}

impl Scheduler {
    fn new(writer: Writer) -> Scheduler {
        Scheduler {
            cache: Cache::default(),
            queue: Queue::default(),
            last: String::new(),
            writer: Arc::new(writer),
            writes: JoinSet::new(),
            happened: Happened::NOTHING,
        }
    }

    async fn run(mut self, mut changes: Changes, mut env: Env) {
        let stop = env.stop().clone();
        let mut leads = false;
        loop {
            let may_act = leads && changes.has_synced();
            let decides = may_act && self.has_work();
            let due = self.queue.next_due();
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Some(change) = changes.pods.next() => self.pod_changed(&change),
                Some(change) = changes.nodes.next() => self.node_changed(&change),
                Some(change) = changes.budgets.next() => self.budget_changed(&change),
                Some(ended) = self.writes.join_next() => self.written(joined(ended)),
                leading = env.leading(), if !leads => leads = leading,
                // Others have their turn between two decisions.
                () = tokio::task::yield_now(), if decides => self.decide_next(),
                () = until(due), if may_act && !decides => self.queue.settle(Instant::now()),
            }
        }
    }

    fn has_work(&mut self) -> bool {
        if self.happened != Happened::NOTHING {
            let happened = std::mem::take(&mut self.happened);
            self.queue.wake(happened, Instant::now());
        }
        self.writes.len() < WRITES_MAX && self.queue.has_ready()
    }

    fn pod_changed(&mut self, change: &Change<Pod>) {
        let Some(key) = change.key() else { return };
        match change {
            Change::Deleted(_) => self.pod_gone(&key),
            _ => {
                if let Some(pod) = change.object() {
                    self.pod_seen(&key, pod);
                }
            }
        }
    }

    fn pod_gone(&mut self, key: &Key) {
        self.queue.remove(key);
        self.cache.withdraw(key);
        if self.cache.remove_pod(key) {
            self.happened = self.happened | Happened::POD_GONE;
        }
    }

    fn pod_seen(&mut self, key: &Key, pod: &Arc<Pod>) {
        match pod.node() {
            _ if pod.is_finished() => self.pod_gone(key),
            Some(node) => {
                self.queue.remove(key);
                self.cache.withdraw(key);
                let ask = Arc::new(Ask::new(Arc::clone(pod)));
                self.happened = self.happened | self.cache.place(&ask, node);
            }
            // It is being bound; until that is known it stays in hand.
            None if self.cache.is_assumed(key) => {
                self.queue.put(Arc::new(Ask::new(Arc::clone(pod))));
            }
            None if is_ours(pod) => {
                let ask = Arc::new(Ask::new(Arc::clone(pod)));
                if let Some(node) = &pod.status.nominated_node_name {
                    self.cache.nominate(&ask, node);
                }
                self.queue.put(ask);
            }
            None => self.pod_gone(key),
        }
    }

    fn node_changed(&mut self, change: &Change<Node>) {
        match change {
            Change::Deleted(gone) => self.cache.remove_node(gone.key().name()),
            _ => {
                if let Some(node) = change.object() {
                    self.happened = self.happened | self.cache.set_node(node);
                }
            }
        }
    }

    fn budget_changed(&mut self, change: &Change<PodDisruptionBudget>) {
        match change {
            Change::Deleted(gone) => self.cache.budgets.remove(gone.key()),
            _ => {
                if let Some(budget) = change.object() {
                    self.cache.budgets.put(budget);
                }
            }
        }
    }

    fn decide_next(&mut self) {
        let now = Instant::now();
        let Some(ask) = self.queue.take(now) else { return };
        match decide(&ask, &self.cache, &mut self.last) {
            Decision::Bind(node) => self.bind(&ask, node),
            Decision::Wait(unfit) => self.wait(&ask, unfit, now),
        }
    }

    fn bind(&mut self, ask: &Arc<Ask>, node: String) {
        self.cache.assume(ask, &node);
        let (writer, pod) = (Arc::clone(&self.writer), Arc::clone(&ask.pod));
        self.writes.spawn(async move {
            let result = writer.bind(&pod, &node).await;
            Written::Bound { key: pod.key(), uid: pod.uid().to_owned(), result }
        });
    }

    fn wait(&mut self, ask: &Arc<Ask>, unfit: Unfit, now: Instant) {
        self.queue.park(&ask.key, unfit.helped_by, now);
        let nominated = unfit.preemption.as_ref().map(|preemption| preemption.room.clone());
        if let Some(room) = &nominated {
            self.cache.nominate(ask, room);
        }
        let (writer, pod) = (Arc::clone(&self.writer), Arc::clone(&ask.pod));
        self.writes.spawn(async move {
            writer.tell(&pod, &unfit.message, nominated.as_deref()).await;
            if let Some(preemption) = &unfit.preemption {
                writer.push_out(&pod, preemption).await;
            }
            Written::Told
        });
    }

    fn written(&mut self, written: Written) {
        let Written::Bound { key, uid, result } = written else { return };
        let Err(error) = result else { return };
        tracing::warn!(pod = %key, %error, "a pod could not be bound");
        // The watch may have been quicker: then it is placed, or another pod has its name.
        let is_same = self.cache.placed(&key).is_some_and(|ask| ask.pod.uid() == uid);
        if is_same && self.cache.is_assumed(&key) {
            self.cache.forget(&key);
            self.happened = self.happened | Happened::POD_GONE;
            match error.is_not_found() {
                true => self.queue.remove(&key),
                false => self.queue.retry(&key, Instant::now()),
            }
        }
    }
}

/// Whether it waits for this scheduler.
fn is_ours(pod: &Pod) -> bool {
    let scheduler = pod.spec.scheduler_name.as_deref().unwrap_or(NAME);
    scheduler == NAME && !pod.is_deleting() && pod.spec.scheduling_gates.is_empty()
}

/// Writes what was decided.
struct Writer {
    calls: Calls,
    recorder: Recorder,
    clock: Arc<dyn Clock>,
}

impl Writer {
    async fn bind(&self, pod: &Pod, node: &str) -> Result<(), Error> {
        let key = pod.key();
        let binding = json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": key.name(), "namespace": key.namespace(), "uid": pod.uid()},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        });
        self.calls.of::<Pod>().post(&key, "binding", &binding).await?;
        let message = format_args!("Successfully assigned {key} to {node}");
        self.recorder.record(pod, EventType::Normal, "Scheduled", &message);
        Ok(())
    }

    /// Says in the pod's status and in an event why it waits.
    async fn tell(&self, pod: &Pod, message: &str, nominated: Option<&str>) {
        self.recorder.record(pod, EventType::Warning, "FailedScheduling", &message);
        let Some(patch) = waiting(pod, message, nominated, &rfc3339(self.clock.now())) else {
            return;
        };
        // If it changed meanwhile, somebody else said something newer.
        if let Err(error) = self.calls.of::<Pod>().merge_status(&pod.key(), &patch).await
            && !error.is_conflict()
            && !error.is_not_found()
        {
            tracing::warn!(pod = %pod.key(), %error, "a pod could not be told why it waits");
        }
    }

    async fn push_out(&self, pod: &Pod, preemption: &Preemption) {
        for victim in &preemption.victims {
            let options = json!({
                "kind": "DeleteOptions", "apiVersion": "v1",
                "preconditions": {"uid": victim.pod.uid()},
            });
            let gone = self.calls.of::<Pod>().delete_with(&victim.key, &options).await;
            match gone {
                Ok(_) => {
                    let message =
                        format_args!("Preempted by pod {} on node {}", pod.uid(), preemption.room);
                    let about = &*victim.pod;
                    self.recorder.record(about, EventType::Normal, "Preempted", &message);
                }
                Err(error) => tracing::warn!(pod = %victim.key, %error, "a pod did not leave"),
            }
        }
    }
}

/// The patch that says why a pod waits; `None` if it says so already.
fn waiting(pod: &Pod, message: &str, nominated: Option<&str>, now: &str) -> Option<Value> {
    let known = pod.condition("PodScheduled").filter(|known| known.status == "False");
    let said = known.is_some_and(|known| known.message.as_deref() == Some(message));
    let nominated = nominated.or(pod.status.nominated_node_name.as_deref());
    if said && nominated == pod.status.nominated_node_name.as_deref() {
        return None;
    }
    let since = known.and_then(|known| known.last_transition_time.as_ref());
    let others = pod.status.conditions.iter().filter(|other| other.type_ != "PodScheduled");
    let mut conditions: Vec<Value> = others
        .map(|other| {
            json!({
                "type": other.type_, "status": other.status,
                "reason": other.reason, "message": other.message,
                "lastTransitionTime":
                    other.last_transition_time.as_ref().map(|time| rfc3339(time.0)),
            })
        })
        .collect();
    conditions.push(json!({
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": message, "lastProbeTime": null,
        "lastTransitionTime": since.map_or_else(|| now.to_owned(), |since| rfc3339(since.0)),
    }));
    let mut status = json!({"conditions": conditions});
    if let Some(node) = nominated {
        status["nominatedNodeName"] = json!(node);
    }
    let metadata = json!({"uid": pod.uid(), "resourceVersion": pod.metadata.resource_version});
    Some(json!({"metadata": metadata, "status": status}))
}

#[cfg(test)]
#[allow(clippy::needless_pass_by_value, reason = "tables write values where they are used")]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use headwater_api::SystemClock;
    use http::{Request, Response};
    use kube::client::Body;

    use super::*;

    /// A server that answers with these codes, one after the other, and remembers what it was
    /// asked.
    fn scheduler(codes: &[u16]) -> (Scheduler, Arc<Mutex<Vec<String>>>) {
        let (asked, mut codes) = (Arc::new(Mutex::new(Vec::new())), codes.to_vec());
        codes.reverse();
        let (codes, record) = (Mutex::new(codes), Arc::clone(&asked));
        let service = tower::service_fn(move |request: Request<Body>| {
            let code = codes.lock().unwrap().pop().expect("one more request than expected");
            record.lock().unwrap().push(request.uri().path().to_owned());
            let body = json!({"kind": "Status", "metadata": {}, "code": code}).to_string();
            let answer = Response::builder().status(code).body(Body::from(body.into_bytes()));
            async move { Ok::<_, std::convert::Infallible>(answer.unwrap()) }
        });
        let calls = Calls::new(kube::Client::new(service, "default"));
        let (recorder, _) = recorder::new(calls.clone(), recorder::Options::new(NAME, NAME));
        let writer = Writer { calls, recorder, clock: Arc::new(SystemClock) };
        (Scheduler::new(writer), asked)
    }

    fn pod(status: Value) -> Arc<Pod> {
        let text = json!({
            "metadata": {"name": "p", "namespace": "a", "uid": "u", "resourceVersion": "1"},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "3"}}}]},
            "status": status,
        });
        Arc::new(Pod::decode(&text.to_string()).unwrap())
    }

    fn node() -> Arc<Node> {
        let allocatable = json!({"cpu": "4", "memory": "1Gi", "pods": "10"});
        let node = json!({"metadata": {"name": "n"}, "status": {"allocatable": allocatable}});
        Arc::new(serde_json::from_value(node).unwrap())
    }

    async fn decide_and_write(scheduler: &mut Scheduler) {
        scheduler.queue.settle(Instant::now());
        assert!(scheduler.has_work());
        scheduler.decide_next();
        let ended = scheduler.writes.join_next().await.expect("something is written");
        scheduler.written(joined(ended));
    }

    #[tokio::test(start_paused = true)]
    async fn what_could_not_be_bound_is_forgotten_and_tried_again() {
        let (mut scheduler, asked) = scheduler(&[500, 201]);
        let key = Key::namespaced("a", "p");
        scheduler.cache.set_node(&node());
        scheduler.pod_seen(&key, &pod(json!({})));
        decide_and_write(&mut scheduler).await;
        assert!(scheduler.cache.placed(&key).is_none(), "forgotten");
        assert!(!scheduler.has_work(), "not at once");
        tokio::time::advance(Duration::from_secs(1)).await;
        decide_and_write(&mut scheduler).await;
        assert!(scheduler.cache.is_assumed(&key));
        assert_eq!(*asked.lock().unwrap(), ["/api/v1/namespaces/a/pods/p/binding"; 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_is_gone_when_it_is_bound_is_not_tried_again() {
        let (mut scheduler, _) = scheduler(&[404]);
        let key = Key::namespaced("a", "p");
        scheduler.cache.set_node(&node());
        scheduler.pod_seen(&key, &pod(json!({})));
        decide_and_write(&mut scheduler).await;
        assert!(scheduler.cache.placed(&key).is_none());
        assert_eq!(scheduler.queue.next_due(), None);
    }

    #[test]
    fn a_pod_is_told_why_it_waits_once() {
        let patch = waiting(&pod(json!({})), "why", None, "2026-01-01T00:00:00Z").unwrap();
        assert_eq!(patch["metadata"]["resourceVersion"], "1", "nothing newer is overwritten");
        let condition = &patch["status"]["conditions"][0];
        assert_eq!(
            (&condition["reason"], &condition["status"]),
            (&json!("Unschedulable"), &json!("False"))
        );
        let told = pod(patch["status"].clone());
        assert_eq!(waiting(&told, "why", None, "later"), None);
        let again = waiting(&told, "another reason", None, "later").unwrap();
        let since = &again["status"]["conditions"][0]["lastTransitionTime"];
        assert_eq!(since, "2026-01-01T00:00:00Z", "it waits since then");
        let promised = waiting(&told, "why", Some("n"), "later").unwrap();
        assert_eq!(promised["status"]["nominatedNodeName"], "n");
    }
}
