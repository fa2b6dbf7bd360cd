//! The StatefulSet controller: pods with an identity and claims of their own.
//!
//! River: StatefulSets, pods, claims and ControllerRevisions → **statefulset** → pods, claims,
//! ControllerRevisions and a status.
//! Promise: there are never two pods with the same ordinal. Every write is decided from the caches
//! alone, so a rollout that is interrupted after any write resumes where it was.

mod claim_owners;
mod plan;
mod pods;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use headwater_api::Clock;
use headwater_client::controller::{Context, Controller, Failure, Next, Prepared, Reconcile};
use headwater_client::informer::Informer;
use headwater_client::{Cached, Error, Index, Key, Selector};
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet, StatefulSetStatus};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod as CorePod};
use serde_json::json;

use crate::cluster::{Cluster, Pods};
use crate::difference::difference;
use crate::ownership::{ControllerRefManager, controller_of, requeue_or_fail, selector};
use crate::pod::Pod;
use crate::revisions::{self, RevisionHistory, RevisionOwner};
use crate::slow_start::is_namespace_terminating;

use self::plan::{SetState, SetWrite, TemplateRevision, revision};
use self::pods::{ordinal, spec};

const WORKERS: usize = 4;

pub(crate) fn prepare(cluster: &Cluster) -> Result<Prepared, Error> {
    let (sets, pods) = (cluster.informer::<StatefulSet>()?, cluster.pods()?);
    let claims = cluster.informer::<PersistentVolumeClaim>()?;
    let revisions = cluster.informer::<ControllerRevision>()?;
    let controller = StatefulSetController {
        pods: pods.clone(),
        claims: claims.clone(),
        revisions: revisions.index("statefulset/revisions", revisions::owner_key)?,
        clock: Arc::clone(cluster.clock()),
    };
    let (adopters, claimants) = (sets.clone(), sets.clone());
    Ok(Controller::new("statefulset", &sets)
        .watches(&pods.informer, move |pod: &Pod| affected_sets(&adopters, pod))
        .watches(&claims, move |claim: &PersistentVolumeClaim| claiming_sets(&claimants, claim))
        .watches(&revisions, |revision: &ControllerRevision| {
            let owner = controller_of(&revision.metadata).filter(|it| it.kind == "StatefulSet")?;
            Some(Key::namespaced(revision.namespace().unwrap_or_default(), &owner.name))
        })
        .workers(WORKERS)
        .with(controller))
}

/// The sets that a pod affects: its controller, or those that may adopt it.
fn affected_sets(sets: &Informer<StatefulSet>, pod: &Pod) -> Vec<Key> {
    let namespace = pod.namespace().unwrap_or_default();
    match controller_of(&pod.metadata) {
        Some(owner) if owner.kind == "StatefulSet" => vec![Key::namespaced(namespace, &owner.name)],
        Some(_) => Vec::new(),
        None if pod.is_deleting() => Vec::new(),
        None => {
            let snapshot = sets.snapshot();
            let sets = snapshot.in_namespace(namespace);
            sets.filter(|(_, set)| ordinal(set, pod.name()).is_some())
                .map(|(key, _)| key.clone())
                .collect()
        }
    }
}

/// The sets with a claim template of which a claim may be.
fn claiming_sets(sets: &Informer<StatefulSet>, claim: &PersistentVolumeClaim) -> Vec<Key> {
    let snapshot = sets.snapshot();
    let sets = snapshot.in_namespace(claim.namespace().unwrap_or_default());
    let claims = |set: &StatefulSet| {
        let mut templates = spec(set).volume_claim_templates.iter().flatten();
        templates.any(|template| {
            let pod = claim.name().strip_prefix(template.name());
            let pod = pod.and_then(|rest| rest.strip_prefix('-'));
            pod.is_some_and(|pod| ordinal(set, pod).is_some())
        })
    };
    sets.filter(|(_, set)| claims(set)).map(|(key, _)| key.clone()).collect()
}

struct StatefulSetController {
    pods: Pods,
    claims: Informer<PersistentVolumeClaim>,
    revisions: Index<ControllerRevision, String>,
    clock: Arc<dyn Clock>,
}

impl Reconcile<StatefulSet> for StatefulSetController {
    async fn reconcile(&self, set: Arc<StatefulSet>, cx: Context) -> Result<Next, Failure> {
        let selector = selector(set.spec.as_ref().map(|spec| &spec.selector));
        let selector = selector.map_err(Failure::terminal)?;
        let pods = match self.claim(&set, &selector, &cx).await {
            Ok(pods) => pods,
            Err(error) => return requeue_or_fail(error),
        };
        let status = set.status.clone().unwrap_or_default();
        let collisions = status.collision_count.unwrap_or(0);
        let owner = RevisionOwner {
            owner: &*set,
            selector: &selector,
            template: &spec(&set).template,
            collisions,
            history_limit: spec(&set).revision_history_limit,
            hash_label: revisions::REVISION_HASH,
        };
        let history = match owner.sync(&self.revisions, &cx).await {
            Ok(Some(history)) => history,
            Ok(None) => return count_collision(&set, &status, &cx).await,
            Err(error) if is_namespace_terminating(&error) => return Ok(Next::Done),
            Err(error) => return requeue_or_fail(error),
        };
        let (current, update) = revisions_of(&set, &status, &history);
        let state = SetState {
            set: &set,
            current: &current,
            update: &update,
            pods: &pods,
            claims: &self.claims_of(&set),
            now: self.clock.now(),
        };
        let failure = carry_out(&set, state.writes(), &cx).await;
        let new_status = state.status(collisions);
        if let Err(error) = write_status(&set, &status, &new_status, &cx).await {
            return requeue_or_fail(error);
        }
        let mut used: BTreeSet<&str> = pods.iter().map(|pod| revision(pod)).collect();
        used.extend([current.name.as_str(), update.name.as_str()]);
        owner.clean_up(&history.revisions, &used, &cx).await?;
        match (failure, state.next_check()) {
            (Some(error), _) => requeue_or_fail(error),
            (None, Some(wait)) => Ok(Next::After(wait)),
            (None, None) => Ok(Next::Done),
        }
    }
}

impl StatefulSetController {
    async fn claim(
        &self,
        set: &StatefulSet,
        selector: &Selector,
        cx: &Context,
    ) -> Result<Vec<Arc<Pod>>, Error> {
        let mut candidates = self.pods.by_controller.get(set.uid());
        let orphans = self.pods.orphans.get(set.namespace().unwrap_or_default());
        // A pod without an ordinal cannot be a member.
        candidates.extend(orphans.into_iter().filter(|pod| ordinal(set, pod.name()).is_some()));
        let refs = ControllerRefManager { owner: set, selector, cx };
        refs.claim::<Pod, CorePod>(candidates).await
    }

    /// The claims of the set's namespace; none if the set has no claim templates.
    fn claims_of(&self, set: &StatefulSet) -> BTreeMap<String, Arc<PersistentVolumeClaim>> {
        if spec(set).volume_claim_templates.as_ref().is_none_or(Vec::is_empty) {
            return BTreeMap::new();
        }
        let snapshot = self.claims.snapshot();
        let claims = snapshot.in_namespace(set.namespace().unwrap_or_default());
        claims.map(|(_, claim)| (claim.name().to_owned(), Arc::clone(claim))).collect()
    }
}

/// The current revision and the one that the set is updated to.
fn revisions_of(
    set: &StatefulSet,
    status: &StatefulSetStatus,
    history: &RevisionHistory,
) -> (TemplateRevision, TemplateRevision) {
    let name = history.newest.name().to_owned();
    let update = TemplateRevision { name, template: spec(set).template.clone() };
    let current = status.current_revision.as_deref();
    let current = current.and_then(|name| history.revisions.named(name)).and_then(|revision| {
        let template = revisions::template_of(revision)?;
        Some(TemplateRevision { name: revision.name().to_owned(), template })
    });
    (current.unwrap_or_else(|| update.clone()), update)
}

async fn count_collision(
    set: &StatefulSet,
    status: &StatefulSetStatus,
    cx: &Context,
) -> Result<Next, Failure> {
    let count = status.collision_count.unwrap_or(0).saturating_add(1);
    let counted = StatefulSetStatus { collision_count: Some(count), ..status.clone() };
    write_status(set, status, &counted, cx).await?;
    Ok(Next::Again)
}

/// Applies writes in order; stops at the first failure and returns it.
async fn carry_out(set: &StatefulSet, writes: Vec<SetWrite>, cx: &Context) -> Option<Error> {
    for write in writes {
        match apply(set, write, cx).await {
            Ok(()) => {}
            // The object exists, or this state is old: a newer one is on its way to the cache.
            Err(error) if error.is_exists() || is_namespace_terminating(&error) => return None,
            Err(error) => return Some(error),
        }
    }
    None
}

async fn apply(set: &StatefulSet, write: SetWrite, cx: &Context) -> Result<(), Error> {
    let owner = set.name();
    match write {
        SetWrite::CreateClaim { claim, pod } => {
            let what = format!("Claim {} Pod {pod} in StatefulSet {owner}", claim.name());
            let created = cx.of::<PersistentVolumeClaim>().create(&claim).await;
            report(set, "create", &what, "success", created.map(drop), cx)
        }
        SetWrite::CreatePod(pod) => {
            let what = format!("Pod {} in StatefulSet {owner}", pod.name());
            let created = cx.of::<CorePod>().create(&pod).await;
            report(set, "create", &what, "successful", created.map(drop), cx)
        }
        SetWrite::DeletePod(pod) => {
            let what = format!("Pod {} in StatefulSet {owner}", pod.name());
            let options = json!({ "preconditions": { "uid": pod.uid() } });
            match cx.of::<CorePod>().delete_with(&pod.key(), &options).await {
                Err(error) if error.is_conflict() => Ok(()), // another pod has this name now
                deleted => report(set, "delete", &what, "successful", deleted.map(drop), cx),
            }
        }
        SetWrite::SetClaimOwners { claim, owners } => {
            let patch = json!({ "metadata": {
                "resourceVersion": claim.resource_version().text(), "ownerReferences": owners,
            }});
            cx.of::<PersistentVolumeClaim>().merge(&claim.key(), &patch).await.map(drop)
        }
    }
}

/// Records the event of a write.
fn report(
    set: &StatefulSet,
    verb: &str,
    what: &str,
    success: &str,
    result: Result<(), Error>,
    cx: &Context,
) -> Result<(), Error> {
    let reason = if verb == "create" { "Create" } else { "Delete" };
    match &result {
        Ok(()) => {
            cx.normal(set, &format!("Successful{reason}"), format_args!("{verb} {what} {success}"));
        }
        Err(error) if error.is_exists() || is_namespace_terminating(error) => {}
        Err(error) => {
            let why = error.status().map_or_else(|| error.to_string(), |it| it.message.clone());
            let message = format_args!("{verb} {what} failed error: {why}");
            cx.warning(set, &format!("Failed{reason}"), message);
        }
    }
    result
}

async fn write_status(
    set: &StatefulSet,
    before: &StatefulSetStatus,
    after: &StatefulSetStatus,
    cx: &Context,
) -> Result<(), Error> {
    let Some(status) = difference(before, after) else { return Ok(()) };
    let patch = json!({
        "metadata": { "resourceVersion": set.resource_version().text() },
        "status": status,
    });
    cx.of::<StatefulSet>().merge_status(&set.key(), &patch).await.map(drop)
}
