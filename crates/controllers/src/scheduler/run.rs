//! The scheduling loop: informers feed the cache and the queue, the next pod from the queue is
//! scheduled, and bindings are written concurrently.

use std::collections::BTreeMap;
use std::sync::Arc;

use headwater_api::Clock;
use headwater_api::clock::rfc3339;
use headwater_client::calls::Calls;
use headwater_client::controller::Env;
use headwater_client::informer::{Informer, Subscribe, Subscription};
use headwater_client::recorder::{self, EventType, Recorder};
use headwater_client::{Cached, Change, Error, Key};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::{CSINode, StorageClass};
use serde_json::{Value, json};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};

use crate::pod::Pod;
use crate::volumes::{SELECTED_NODE, claim_ref, is_reserved};

use super::NAME;
use super::cache::SchedulerCache;
use super::pod_info::PodInfo;
use super::preemption::Preemption;
use super::queue::SchedulingQueue;
use super::reason::ClusterEvent;
use super::schedule_one::{FitError, ScheduleResult, schedule_pod};
use super::volumes::{ClaimChoice, selected_node};

/// Concurrent writes; while this many are under way, no further pod is scheduled.
const WRITES_MAX: usize = 64;

pub(crate) async fn run(
    pods: Informer<Pod>,
    nodes: Informer<Node>,
    budgets: Informer<PodDisruptionBudget>,
    storage: StorageInformers,
    clock: Arc<dyn Clock>,
    env: Env,
) -> Result<(), Error> {
    let changes = Changes {
        pods: pods.subscribe(Subscribe::named("scheduler").split_recreate(true))?,
        nodes: nodes.subscribe(Subscribe::named("scheduler"))?,
        budgets: budgets.subscribe(Subscribe::named("scheduler"))?,
        claims: storage.claims.subscribe(Subscribe::named("scheduler"))?,
        volumes: storage.volumes.subscribe(Subscribe::named("scheduler"))?,
        classes: storage.classes.subscribe(Subscribe::named("scheduler"))?,
        drivers: storage.nodes.subscribe(Subscribe::named("scheduler"))?,
    };
    // Events name the component that users know from Kubernetes.
    let mut options = recorder::Options::new(NAME, NAME);
    options.clock = Arc::clone(&clock);
    let (recorder, runner) = recorder::new(env.calls().clone(), options);
    let recording = runner.run(env.stop().clone());
    let scheduler = Scheduler::new(Writer { calls: env.calls().clone(), recorder, clock });
    tokio::join!(scheduler.run(changes, env), recording);
    Ok(())
}

/// The informers of storage.
pub(crate) struct StorageInformers {
    pub(crate) claims: Informer<PersistentVolumeClaim>,
    pub(crate) volumes: Informer<PersistentVolume>,
    pub(crate) classes: Informer<StorageClass>,
    pub(crate) nodes: Informer<CSINode>,
}

/// The changes from the informers.
struct Changes {
    pods: Subscription<Pod>,
    nodes: Subscription<Node>,
    budgets: Subscription<PodDisruptionBudget>,
    claims: Subscription<PersistentVolumeClaim>,
    volumes: Subscription<PersistentVolume>,
    classes: Subscription<StorageClass>,
    drivers: Subscription<CSINode>,
}

impl Changes {
    fn has_synced(&self) -> bool {
        let has_storage = self.claims.has_synced()
            && self.volumes.has_synced()
            && self.classes.has_synced()
            && self.drivers.has_synced();
        self.pods.has_synced()
            && self.nodes.has_synced()
            && self.budgets.has_synced()
            && has_storage
    }
}

/// Applies a change to the objects of a kind of storage.
fn follow<K: Cached>(known: &mut BTreeMap<Key, Arc<K>>, change: &Change<K>) -> ClusterEvent {
    match (change, change.object()) {
        (Change::Deleted(gone), _) => drop(known.remove(gone.key())),
        (_, Some(object)) => drop(known.insert(object.key(), Arc::clone(object))),
        (_, None) => return ClusterEvent::NONE,
    }
    ClusterEvent::STORAGE
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

struct Scheduler {
    cache: SchedulerCache,
    queue: SchedulingQueue,
    /// The node of the last pod; the next search starts after it.
    last: String,
    writer: Arc<Writer>,
    writes: JoinSet<WriteOutcome>,
    /// The events that the queue has not processed yet.
    events: ClusterEvent,
}

/// The outcome of a write.
enum WriteOutcome {
    Bound {
        key: Key,
        uid: String,
        result: Result<(), Error>,
    },
    /// The claims of a pod are bound for a node by the controller of volumes.
    ClaimsChosen {
        key: Key,
        result: Result<(), Error>,
    },
    /// The reason was reported, or failed to be; neither needs a reaction.
    StatusWritten,
}

impl Scheduler {
    fn new(writer: Writer) -> Scheduler {
        Scheduler {
            cache: SchedulerCache::default(),
            queue: SchedulingQueue::default(),
            last: String::new(),
            writer: Arc::new(writer),
            writes: JoinSet::new(),
            events: ClusterEvent::NONE,
        }
    }

    async fn run(mut self, mut changes: Changes, mut env: Env) {
        let stop = env.stop().clone();
        let mut leads = false;
        loop {
            let may_act = leads && changes.has_synced();
            let can_schedule = may_act && self.has_work();
            let due = self.queue.next_due();
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Some(change) = changes.pods.next() => self.handle_pod(&change),
                Some(change) = changes.nodes.next() => self.handle_node(&change),
                Some(change) = changes.budgets.next() => self.handle_budget(&change),
                Some(change) = changes.claims.next() => {
                    self.events = self.events | follow(&mut self.cache.storage.claims, &change);
                }
                Some(change) = changes.volumes.next() => {
                    self.events = self.events | follow(&mut self.cache.storage.volumes, &change);
                }
                Some(change) = changes.classes.next() => {
                    self.events = self.events | follow(&mut self.cache.storage.classes, &change);
                }
                Some(change) = changes.drivers.next() => {
                    self.events = self.events | follow(&mut self.cache.storage.nodes, &change);
                }
                Some(ended) = self.writes.join_next() => self.handle_outcome(joined(ended)),
                leading = env.leading(), if !leads => leads = leading,
                // Yields, so that other tasks run between two decisions.
                () = tokio::task::yield_now(), if can_schedule => self.schedule_next(),
                () = until(due), if may_act && !can_schedule => self.queue.flush(Instant::now()),
            }
        }
    }

    fn has_work(&mut self) -> bool {
        if self.events != ClusterEvent::NONE {
            let events = std::mem::take(&mut self.events);
            self.queue.move_on_event(events, Instant::now());
        }
        self.writes.len() < WRITES_MAX && self.queue.has_active()
    }

    fn handle_pod(&mut self, change: &Change<Pod>) {
        let Some(key) = change.key() else { return };
        match change {
            Change::Deleted(_) => self.remove_pod(&key),
            _ => {
                if let Some(pod) = change.object() {
                    self.update_pod(&key, pod);
                }
            }
        }
    }

    fn remove_pod(&mut self, key: &Key) {
        self.queue.remove(key);
        self.cache.remove_nomination(key);
        if self.cache.remove_pod(key) {
            self.events = self.events | ClusterEvent::POD_REMOVED;
        }
    }

    fn update_pod(&mut self, key: &Key, pod: &Arc<Pod>) {
        match pod.node() {
            _ if pod.is_finished() => self.remove_pod(key),
            Some(node) => {
                self.queue.remove(key);
                self.cache.remove_nomination(key);
                let pod_info = Arc::new(PodInfo::new(Arc::clone(pod)));
                self.events = self.events | self.cache.assign(&pod_info, node);
            }
            // Its binding is under way: it stays in flight.
            None if self.cache.is_assumed(key) => {
                self.queue.add(Arc::new(PodInfo::new(Arc::clone(pod))));
            }
            None if is_ours(pod) => {
                let pod_info = Arc::new(PodInfo::new(Arc::clone(pod)));
                if let Some(node) = &pod.status.nominated_node_name {
                    self.cache.nominate(&pod_info, node);
                }
                self.queue.add(pod_info);
            }
            None => self.remove_pod(key),
        }
    }

    fn handle_node(&mut self, change: &Change<Node>) {
        match change {
            Change::Deleted(gone) => self.cache.remove_node(gone.key().name()),
            _ => {
                if let Some(node) = change.object() {
                    self.events = self.events | self.cache.set_node(node);
                }
            }
        }
    }

    fn handle_budget(&mut self, change: &Change<PodDisruptionBudget>) {
        match change {
            Change::Deleted(gone) => self.cache.budgets.remove(gone.key()),
            _ => {
                if let Some(budget) = change.object() {
                    self.cache.budgets.put(budget);
                }
            }
        }
    }

    fn schedule_next(&mut self) {
        let now = Instant::now();
        let Some(pod_info) = self.queue.pop(now) else { return };
        match schedule_pod(&pod_info, &self.cache, &mut self.last) {
            ScheduleResult::Bind(node) => self.bind(&pod_info, node),
            ScheduleResult::BindClaims { node, choices } => {
                self.bind_claims(&pod_info, node, choices, now);
            }
            ScheduleResult::Unschedulable(fit_error) => {
                self.mark_unschedulable(&pod_info, fit_error, now)
            }
        }
    }

    fn bind(&mut self, pod_info: &Arc<PodInfo>, node: String) {
        self.cache.assume(pod_info, &node);
        let (writer, pod) = (Arc::clone(&self.writer), Arc::clone(&pod_info.pod));
        self.writes.spawn(async move {
            let result = writer.bind(&pod, &node).await;
            WriteOutcome::Bound { key: pod.key(), uid: pod.uid().to_owned(), result }
        });
    }

    /// Has the claims of a pod bound for a node. The pod waits for that as an unschedulable one waits
    /// for events; meanwhile the node counts it as it counts nominated pods.
    fn bind_claims(
        &mut self,
        pod_info: &Arc<PodInfo>,
        node: String,
        choices: Vec<ClaimChoice>,
        now: Instant,
    ) {
        self.cache.nominate(pod_info, &node);
        self.queue.add_unschedulable(&pod_info.key, ClusterEvent::STORAGE, now);
        let (writer, key) = (Arc::clone(&self.writer), pod_info.key.clone());
        self.writes.spawn(async move {
            let mut result = Ok(());
            for choice in &choices {
                result = result.and(writer.bind_claim(choice, &node).await);
            }
            WriteOutcome::ClaimsChosen { key, result }
        });
    }

    fn mark_unschedulable(&mut self, pod_info: &Arc<PodInfo>, fit_error: FitError, now: Instant) {
        self.queue.add_unschedulable(&pod_info.key, fit_error.resolved_by, now);
        let nominated = fit_error.preemption.as_ref().map(|preemption| preemption.node.clone());
        if let Some(node) = &nominated {
            self.cache.nominate(pod_info, node);
        }
        let (writer, pod) = (Arc::clone(&self.writer), Arc::clone(&pod_info.pod));
        self.writes.spawn(async move {
            writer.report_unschedulable(&pod, &fit_error.message, nominated.as_deref()).await;
            if let Some(preemption) = &fit_error.preemption {
                writer.delete_victims(&pod, preemption).await;
            }
            WriteOutcome::StatusWritten
        });
    }

    fn handle_outcome(&mut self, outcome: WriteOutcome) {
        let (key, uid, result) = match outcome {
            WriteOutcome::Bound { key, uid, result } => (key, uid, result),
            WriteOutcome::ClaimsChosen { key, result: Err(error) } => {
                tracing::warn!(pod = %key, %error, "cannot bind claims; retrying after a backoff");
                return self.queue.add_backoff(&key, Instant::now());
            }
            WriteOutcome::ClaimsChosen { .. } | WriteOutcome::StatusWritten => return,
        };
        let Err(error) = result else { return };
        tracing::warn!(pod = %key, %error, "cannot bind pod; retrying after its backoff");
        // The watch may have been faster: the pod is assigned, or another pod has its name.
        let is_same = self.cache.pod(&key).is_some_and(|pod_info| pod_info.pod.uid() == uid);
        if is_same && self.cache.is_assumed(&key) {
            self.cache.forget(&key);
            self.events = self.events | ClusterEvent::POD_REMOVED;
            match error.is_not_found() {
                true => self.queue.remove(&key),
                false => self.queue.add_backoff(&key, Instant::now()),
            }
        }
    }
}

/// Whether the pod is pending and this scheduler is responsible for it.
fn is_ours(pod: &Pod) -> bool {
    let scheduler = pod.spec.scheduler_name.as_deref().unwrap_or(NAME);
    scheduler == NAME && !pod.is_deleting() && pod.spec.scheduling_gates.is_empty()
}

/// Writes bindings, conditions and preemptions.
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

    /// Gives the chosen volume to a claim, or names the node for which its volume is provisioned.
    async fn bind_claim(&self, choice: &ClaimChoice, node: &str) -> Result<(), Error> {
        let ClaimChoice { claim, volume } = choice;
        match volume {
            Some(volume) if is_reserved(claim, volume) => {}
            Some(volume) => {
                let patch = json!({
                    "metadata": {"resourceVersion": volume.resource_version().text()},
                    "spec": {"claimRef": claim_ref(claim)},
                });
                self.calls.of::<PersistentVolume>().merge(&volume.key(), &patch).await?;
            }
            None if selected_node(claim).is_none() => {
                let patch = json!({ "metadata": {
                    "resourceVersion": claim.resource_version().text(),
                    "annotations": {SELECTED_NODE: node},
                }});
                self.calls.of::<PersistentVolumeClaim>().merge(&claim.key(), &patch).await?;
            }
            None => {}
        }
        Ok(())
    }

    /// Reports in the pod's status and in an event why no node fits.
    async fn report_unschedulable(&self, pod: &Pod, message: &str, nominated: Option<&str>) {
        self.recorder.record(pod, EventType::Warning, "FailedScheduling", &message);
        let Some(patch) = unschedulable_patch(pod, message, nominated, &rfc3339(self.clock.now()))
        else {
            return;
        };
        // On a conflict the pod has changed and is scheduled again.
        if let Err(error) = self.calls.of::<Pod>().merge_status(&pod.key(), &patch).await
            && !error.is_conflict()
            && !error.is_not_found()
        {
            tracing::warn!(pod = %pod.key(), %error, "cannot write condition PodScheduled=False");
        }
    }

    async fn delete_victims(&self, pod: &Pod, preemption: &Preemption) {
        for victim in &preemption.victims {
            let options = json!({
                "kind": "DeleteOptions", "apiVersion": "v1",
                "preconditions": {"uid": victim.pod.uid()},
            });
            match self.calls.of::<Pod>().delete_with(&victim.key, &options).await {
                Ok(_) => {
                    let message =
                        format_args!("Preempted by pod {} on node {}", pod.uid(), preemption.node);
                    let about = &*victim.pod;
                    self.recorder.record(about, EventType::Normal, "Preempted", &message);
                }
                Err(error) => {
                    tracing::warn!(pod = %victim.key, %error, "cannot delete preempted pod");
                }
            }
        }
    }
}

/// The patch for the condition `PodScheduled` of an unschedulable pod; `None` if the pod has it.
fn unschedulable_patch(
    pod: &Pod,
    message: &str,
    nominated: Option<&str>,
    now: &str,
) -> Option<Value> {
    let known = pod.condition("PodScheduled").filter(|known| known.status == "False");
    let is_reported = known.is_some_and(|known| known.message.as_deref() == Some(message));
    let nominated = nominated.or(pod.status.nominated_node_name.as_deref());
    if is_reported && nominated == pod.status.nominated_node_name.as_deref() {
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

    /// A scheduler with a server that replies with these codes, and the paths it received.
    fn scheduler(codes: &[u16]) -> (Scheduler, Arc<Mutex<Vec<String>>>) {
        let (requests, mut codes) = (Arc::new(Mutex::new(Vec::new())), codes.to_vec());
        codes.reverse();
        let (codes, record) = (Mutex::new(codes), Arc::clone(&requests));
        let service = tower::service_fn(move |request: Request<Body>| {
            let code = codes.lock().unwrap().pop().expect("one more request than expected");
            record.lock().unwrap().push(request.uri().path().to_owned());
            let body = json!({"kind": "Status", "metadata": {}, "code": code}).to_string();
            let response = Response::builder().status(code).body(Body::from(body.into_bytes()));
            async move { Ok::<_, std::convert::Infallible>(response.unwrap()) }
        });
        let calls = Calls::new(kube::Client::new(service, "default"));
        let (recorder, _) = recorder::new(calls.clone(), recorder::Options::new(NAME, NAME));
        let writer = Writer { calls, recorder, clock: Arc::new(SystemClock) };
        (Scheduler::new(writer), requests)
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

    async fn schedule_and_write(scheduler: &mut Scheduler) {
        scheduler.queue.flush(Instant::now());
        assert!(scheduler.has_work());
        scheduler.schedule_next();
        let ended = scheduler.writes.join_next().await.expect("one write is under way");
        scheduler.handle_outcome(joined(ended));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_binding_is_forgotten_and_retried() {
        let (mut scheduler, requests) = scheduler(&[500, 201]);
        let key = Key::namespaced("a", "p");
        scheduler.cache.set_node(&node());
        scheduler.update_pod(&key, &pod(json!({})));
        schedule_and_write(&mut scheduler).await;
        assert!(scheduler.cache.pod(&key).is_none(), "the assumed pod is forgotten");
        assert!(!scheduler.has_work(), "the retry waits for the backoff");
        tokio::time::advance(Duration::from_secs(1)).await;
        schedule_and_write(&mut scheduler).await;
        assert!(scheduler.cache.is_assumed(&key));
        assert_eq!(*requests.lock().unwrap(), ["/api/v1/namespaces/a/pods/p/binding"; 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_was_deleted_before_it_was_bound_is_not_retried() {
        let (mut scheduler, _) = scheduler(&[404]);
        let key = Key::namespaced("a", "p");
        scheduler.cache.set_node(&node());
        scheduler.update_pod(&key, &pod(json!({})));
        schedule_and_write(&mut scheduler).await;
        assert!(scheduler.cache.pod(&key).is_none());
        assert_eq!(scheduler.queue.next_due(), None);
    }

    #[test]
    fn an_unschedulable_pod_gets_its_condition_once() {
        let patch =
            unschedulable_patch(&pod(json!({})), "why", None, "2026-01-01T00:00:00Z").unwrap();
        assert_eq!(patch["metadata"]["resourceVersion"], "1", "a newer status is not overwritten");
        let condition = &patch["status"]["conditions"][0];
        assert_eq!(
            (&condition["reason"], &condition["status"]),
            (&json!("Unschedulable"), &json!("False"))
        );
        let reported = pod(patch["status"].clone());
        assert_eq!(unschedulable_patch(&reported, "why", None, "later"), None);
        let again = unschedulable_patch(&reported, "another reason", None, "later").unwrap();
        let since = &again["status"]["conditions"][0]["lastTransitionTime"];
        assert_eq!(since, "2026-01-01T00:00:00Z", "the transition time is kept");
        let nominated = unschedulable_patch(&reported, "why", Some("n"), "later").unwrap();
        assert_eq!(nominated["status"]["nominatedNodeName"], "n");
    }
}
