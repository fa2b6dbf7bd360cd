//! The DaemonSet controller: one pod on every node that fits.
//!
//! River: DaemonSets, pods, nodes and ControllerRevisions → **daemonset** → pods,
//! ControllerRevisions and a status.
//! Promise: every write is decided from the caches alone, so a rollout that is interrupted after
//! any write resumes where it was. The scheduler binds the pods; each is pinned to its node.

mod placement;
mod plan;

use std::collections::BTreeSet;
use std::sync::Arc;

use headwater_api::Clock;
use headwater_client::controller::{Context, Controller, Failure, Next, Prepared, Reconcile};
use headwater_client::informer::Informer;
use headwater_client::predicate::{ChangeEvent, Predicate};
use headwater_client::{Cached, Error, Index, Key, Selector};
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, DaemonSetStatus};
use k8s_openapi::api::core::v1::{Node, Pod as CorePod};
use serde_json::json;

use crate::cluster::{Cluster, Pods};
use crate::difference::difference;
use crate::ownership::{ControllerRefManager, controller_of, requeue_or_fail, selector};
use crate::pod::Pod;
use crate::pod_control::{create_pods, delete_pods};
use crate::revisions::{self, RevisionOwner};
use crate::slow_start::{BURST_MAX, is_namespace_terminating};

use self::plan::{DaemonPlan, SetState, revision};

const WORKERS: usize = 4;

pub(crate) fn prepare(cluster: &Cluster) -> Result<Prepared, Error> {
    let (sets, pods) = (cluster.informer::<DaemonSet>()?, cluster.pods()?);
    let nodes = cluster.informer::<Node>()?;
    let revisions = cluster.informer::<ControllerRevision>()?;
    let controller = DaemonSetController {
        pods: pods.clone(),
        nodes: nodes.clone(),
        revisions: revisions.index("daemonset/revisions", revisions::owner_key)?,
        clock: Arc::clone(cluster.clock()),
    };
    let (adopters, all) = (sets.clone(), sets.clone());
    Ok(Controller::new("daemonset", &sets)
        .watches(&pods.informer, move |pod: &Pod| affected_sets(&adopters, pod))
        .watches_when(&nodes, placement_changed(), move |_: &Node| {
            all.snapshot().iter().map(|(key, _)| key.clone()).collect::<Vec<_>>()
        })
        .watches(&revisions, |revision: &ControllerRevision| {
            let owner = controller_of(&revision.metadata).filter(|it| it.kind == "DaemonSet")?;
            Some(Key::namespaced(revision.namespace().unwrap_or_default(), &owner.name))
        })
        .workers(WORKERS)
        .with(controller))
}

/// Passes nodes whose labels or taints changed, and those that appear or disappear.
fn placement_changed() -> Predicate<Node> {
    Predicate::new(|event: &ChangeEvent<'_, Node>| match event {
        ChangeEvent::Updated { old, new } => {
            let taints = |node: &Node| node.spec.as_ref().and_then(|spec| spec.taints.clone());
            old.metadata.labels != new.metadata.labels || taints(old) != taints(new)
        }
        _ => true,
    })
}

/// The sets that a pod affects: its controller, or those that may adopt it.
fn affected_sets(sets: &Informer<DaemonSet>, pod: &Pod) -> Vec<Key> {
    let namespace = pod.namespace().unwrap_or_default();
    match controller_of(&pod.metadata) {
        Some(owner) if owner.kind == "DaemonSet" => vec![Key::namespaced(namespace, &owner.name)],
        Some(_) => Vec::new(),
        None if pod.is_deleting() => Vec::new(),
        None => {
            let snapshot = sets.snapshot();
            let sets = snapshot.in_namespace(namespace);
            let selects = |set: &DaemonSet| {
                let wanted = set.spec.as_ref().map(|spec| &spec.selector);
                selector(wanted).is_ok_and(|selector| selector.matches(pod))
            };
            sets.filter(|(_, set)| selects(set)).map(|(key, _)| key.clone()).collect()
        }
    }
}

struct DaemonSetController {
    pods: Pods,
    nodes: Informer<Node>,
    revisions: Index<ControllerRevision, String>,
    clock: Arc<dyn Clock>,
}

impl Reconcile<DaemonSet> for DaemonSetController {
    async fn reconcile(&self, set: Arc<DaemonSet>, cx: Context) -> Result<Next, Failure> {
        let Some(spec) = &set.spec else { return Ok(Next::Done) };
        let selector = selector(Some(&spec.selector)).map_err(Failure::terminal)?;
        let pods = match self.claim(&set, &selector, &cx).await {
            Ok(pods) => pods,
            Err(error) => return requeue_or_fail(error),
        };
        let status = set.status.clone().unwrap_or_default();
        let collisions = status.collision_count.unwrap_or(0);
        let owner = RevisionOwner {
            owner: &*set,
            selector: &selector,
            template: &spec.template,
            collisions,
            history_limit: spec.revision_history_limit,
            hash_label: revisions::POD_REVISION,
        };
        let history = match owner.sync(&self.revisions, &cx).await {
            Ok(Some(history)) => history,
            Ok(None) => {
                let collision_count = Some(collisions.saturating_add(1));
                let counted = DaemonSetStatus { collision_count, ..status.clone() };
                write_status(&set, &status, &counted, &cx).await?;
                return Ok(Next::Again);
            }
            Err(error) if is_namespace_terminating(&error) => return Ok(Next::Done),
            Err(error) => return requeue_or_fail(error),
        };
        let nodes: Vec<Arc<Node>> =
            self.nodes.snapshot().iter().map(|(_, node)| Arc::clone(node)).collect();
        // The revision's hash, as in Kubernetes, not its name.
        let revision_hash = revisions::hash_of(&history.newest);
        let (pods, now) = (pods.as_slice(), self.clock.now());
        let state = SetState { set: &set, revision: revision_hash, pods, nodes: &nodes, now };
        let plan = state.plan();
        let more = plan.create.len() > BURST_MAX || plan.delete.len() > BURST_MAX;
        let failure = carry_out(&set, revision_hash, &plan, &cx).await;
        if let Err(error) = write_status(&set, &status, &plan.status, &cx).await {
            return requeue_or_fail(error);
        }
        let mut used: BTreeSet<&str> = pods.iter().map(|pod| revision(pod)).collect();
        used.insert(revision_hash);
        owner.clean_up(&history.revisions, &used, &cx).await?;
        match (failure, plan.next_check) {
            (Some(error), _) => requeue_or_fail(error),
            _ if more => Ok(Next::Again),
            (None, Some(wait)) => Ok(Next::After(wait)),
            (None, None) => Ok(Next::Done),
        }
    }
}

impl DaemonSetController {
    async fn claim(
        &self,
        set: &DaemonSet,
        selector: &Selector,
        cx: &Context,
    ) -> Result<Vec<Arc<Pod>>, Error> {
        let mut candidates = self.pods.by_controller.get(set.uid());
        candidates.extend(self.pods.orphans.get(set.namespace().unwrap_or_default()));
        let refs = ControllerRefManager { owner: set, selector, cx };
        refs.claim::<Pod, CorePod>(candidates).await
    }
}

/// Creates and deletes pods; returns the first failure.
async fn carry_out(
    set: &DaemonSet,
    revision: &str,
    plan: &DaemonPlan,
    cx: &Context,
) -> Option<Error> {
    for pod in &plan.ended {
        let node = pod.node().unwrap_or_default();
        let (key, phase) = (pod.key(), pod.phase().to_lowercase());
        let message =
            format!("Found {phase} daemon pod {key} on node {node}, will try to delete it");
        match phase.as_str() {
            "failed" => cx.warning(set, "FailedDaemonPod", message),
            _ => cx.normal(set, "SucceededDaemonPod", message),
        }
    }
    let create = |node: String| placement::pod(set, revision, &node);
    let not_created = create_pods(set, plan.create.clone(), create, cx).await;
    if let Some(error) = &not_created {
        cx.warning(set, "FailedCreate", format_args!("Error creating: {error}"));
    }
    let delete = plan.ended.iter().chain(&plan.delete).cloned().collect();
    let not_deleted = delete_pods(set, delete, cx).await;
    not_created.or(not_deleted)
}

async fn write_status(
    set: &DaemonSet,
    before: &DaemonSetStatus,
    after: &DaemonSetStatus,
    cx: &Context,
) -> Result<(), Error> {
    let Some(status) = difference(before, after) else { return Ok(()) };
    let patch = json!({
        "metadata": { "resourceVersion": set.resource_version().text() },
        "status": status,
    });
    cx.of::<DaemonSet>().merge_status(&set.key(), &patch).await.map(drop)
}
