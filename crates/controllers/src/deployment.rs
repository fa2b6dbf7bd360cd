//! The Deployment controller: rolls a template out over ReplicaSets.
//!
//! River: Deployments, ReplicaSets and pods → **deployment** → ReplicaSets and a status.
//! Promise: every write is decided from the caches alone, so a rollout that is interrupted after
//! any write resumes where it was. According to the status of the ReplicaSets, there are never more
//! pods than `maxSurge` allows, nor fewer available ones than `maxUnavailable` requires.

mod rollout;
mod sets;
mod status;
#[cfg(test)]
mod simulation;

use std::sync::Arc;

use headwater_api::Clock;
use headwater_client::controller::{Context, Controller, Failure, Next, Prepared, Reconcile};
use headwater_client::informer::Informer;
use headwater_client::{Cached, Error, Index, Key, Selector};
use k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus, ReplicaSet};
use serde_json::{Value, json};

use crate::cluster::{Cluster, Pods};
use crate::difference::difference;
use crate::ownership::{ControllerRefManager, controller_of, requeue_or_fail, selector};
use crate::pod::Pod;
use crate::slow_start::is_namespace_terminating;

use self::rollout::{Rollout, SetWrite, is_recreate};
use self::sets::{
    REVISION, ReplicaSets, annotation, has_current_template, replicas, revision, spec,
};
use self::status::{SyncResult, is_complete, next_check, status};

const WORKERS: usize = 4;

pub(crate) fn prepare(cluster: &Cluster) -> Result<Prepared, Error> {
    let deployments = cluster.informer::<Deployment>()?;
    let (sets, pods) = (cluster.informer::<ReplicaSet>()?, cluster.pods()?);
    let by_owner = sets.index("deployment/owner", |set: &ReplicaSet| {
        let owner = controller_of(&set.metadata).map(|owner| owner.uid.clone());
        Some(owner.unwrap_or_else(|| orphans_key(set.namespace().unwrap_or_default())))
    })?;
    let (candidates, owners) = (deployments.clone(), sets.clone());
    let recreating = deployments.clone();
    let controller =
        DeploymentController { by_owner, pods: pods.clone(), clock: Arc::clone(cluster.clock()) };
    Ok(Controller::new("deployment", &deployments)
        .watches(&sets, move |set: &ReplicaSet| affected_deployments(&candidates, set))
        // Only `Recreate` waits for pods: until the last pod of an old template is deleted.
        .watches(&pods.informer, move |pod: &Pod| recreating_owner(&recreating, &owners, pod))
        .workers(WORKERS)
        .with(controller))
}

/// The index key of ReplicaSets without a controller.
fn orphans_key(namespace: &str) -> String {
    format!("orphans/{namespace}")
}

/// The Deployments that a set affects: its controller, or those that may adopt it.
fn affected_deployments(deployments: &Informer<Deployment>, set: &ReplicaSet) -> Vec<Key> {
    let namespace = set.namespace().unwrap_or_default();
    match controller_of(&set.metadata) {
        Some(owner) if owner.kind == "Deployment" => vec![Key::namespaced(namespace, &owner.name)],
        Some(_) => Vec::new(),
        None => {
            let snapshot = deployments.snapshot();
            let all = snapshot.in_namespace(namespace);
            all.filter(|(_, deployment)| {
                let wanted = deployment.spec.as_ref().map(|spec| &spec.selector);
                selector(wanted).is_ok_and(|selector| selector.matches(set))
            })
            .map(|(key, _)| key.clone())
            .collect()
        }
    }
}

/// The `Recreate` Deployment that waits for the deletion of a pod.
fn recreating_owner(
    deployments: &Informer<Deployment>,
    sets: &Informer<ReplicaSet>,
    pod: &Pod,
) -> Option<Key> {
    let namespace = pod.namespace().unwrap_or_default();
    let set = controller_of(&pod.metadata).filter(|owner| owner.kind == "ReplicaSet")?;
    let set = sets.snapshot().get(&Key::namespaced(namespace, &set.name)).cloned()?;
    let owner = controller_of(&set.metadata).filter(|owner| owner.kind == "Deployment")?;
    let key = Key::namespaced(namespace, &owner.name);
    let deployment = deployments.snapshot().get(&key).cloned()?;
    is_recreate(spec(&deployment)).then_some(key)
}

struct DeploymentController {
    by_owner: Index<ReplicaSet, String>,
    pods: Pods,
    clock: Arc<dyn Clock>,
}

impl Reconcile<Deployment> for DeploymentController {
    async fn reconcile(&self, deployment: Arc<Deployment>, cx: Context) -> Result<Next, Failure> {
        let selector = selector(deployment.spec.as_ref().map(|spec| &spec.selector));
        let selector = selector.map_err(Failure::terminal)?;
        let sets = match self.claim(&deployment, &selector, &cx).await {
            Ok(sets) => sets,
            Err(error) => return requeue_or_fail(error),
        };
        let now = self.clock.now();
        let counted = status(&deployment, &sets, &SyncResult::StatusOnly, now);
        let mut result = initial_result(&deployment);
        let mut failure = None;
        if deployment.metadata.deletion_timestamp.is_none() {
            let rollout = Rollout {
                deployment: &deployment,
                sets: &sets,
                old_pods_run: self.old_pods_run(&sets),
                is_complete: is_complete(&deployment, &counted),
            };
            for write in rollout.writes() {
                match self.apply(&deployment, write, &mut result, &cx).await {
                    Ok(()) => {}
                    Err(error) => drop(failure.get_or_insert(error)),
                }
            }
        }
        let new_status = status(&deployment, &sets, &result, now);
        if let Err(error) = write_status(&deployment, &sets, &new_status, &cx).await {
            return requeue_or_fail(error);
        }
        match (failure, next_check(&deployment, &new_status, now)) {
            (Some(error), _) => requeue_or_fail(error),
            (None, Some(wait)) => Ok(Next::After(wait)),
            (None, None) => Ok(Next::Done),
        }
    }
}

impl DeploymentController {
    async fn claim(
        &self,
        deployment: &Deployment,
        selector: &Selector,
        cx: &Context,
    ) -> Result<ReplicaSets, Error> {
        let mut candidates = self.by_owner.get(deployment.uid());
        let namespace = deployment.namespace().unwrap_or_default();
        candidates.extend(self.by_owner.get(&orphans_key(namespace)));
        let refs = ControllerRefManager { owner: deployment, selector, cx };
        let own = refs.claim::<ReplicaSet, ReplicaSet>(candidates).await?;
        Ok(ReplicaSets::of(deployment, &own))
    }

    fn old_pods_run(&self, sets: &ReplicaSets) -> bool {
        sets.old.iter().any(|set| {
            sets::counts(set).replicas > 0
                || self.pods.by_controller.get(set.uid()).iter().any(|pod| !pod.is_finished())
        })
    }

    async fn apply(
        &self,
        deployment: &Deployment,
        write: SetWrite,
        result: &mut SyncResult,
        cx: &Context,
    ) -> Result<(), Error> {
        match write {
            SetWrite::Create(set) => create(deployment, &set, result, cx).await,
            SetWrite::Update { set, size, annotations } => {
                update(deployment, &set, size, &annotations, cx).await
            }
            SetWrite::Delete(set) => {
                let options = json!({
                    "preconditions": { "uid": set.uid(), "resourceVersion": set.resource_version().text() },
                });
                match cx.of::<ReplicaSet>().delete_with(&set.key(), &options).await {
                    Err(error) if error.is_conflict() => Ok(()), // it changed: the next pass decides
                    deleted => deleted.map(drop),
                }
            }
        }
    }
}

/// What a pass without writes reports.
fn initial_result(deployment: &Deployment) -> SyncResult {
    let is_deleted = deployment.metadata.deletion_timestamp.is_some();
    if is_deleted || spec(deployment).paused == Some(true) {
        SyncResult::StatusOnly
    } else {
        SyncResult::RolledOut
    }
}

async fn create(
    deployment: &Deployment,
    set: &ReplicaSet,
    result: &mut SyncResult,
    cx: &Context,
) -> Result<(), Error> {
    let sets = cx.of::<ReplicaSet>();
    match sets.create(set).await {
        Ok(created) => {
            let (name, size) = (created.name(), replicas(&created));
            if size > 0 {
                let message = format_args!("Scaled up replica set {name} from 0 to {size}");
                cx.normal(deployment, "ScalingReplicaSet", message);
            }
            *result = SyncResult::Created(name.to_owned());
            Ok(())
        }
        Err(error) if error.is_exists() => match sets.get(&set.key()).await? {
            // The cache has not received it yet, or another process created it.
            Some(there)
                if has_current_template(&there, deployment) && is_owned(&there, deployment) =>
            {
                Ok(())
            }
            _ => {
                count_collision(deployment, cx).await?;
                Err(error)
            }
        },
        Err(error) if is_namespace_terminating(&error) => Ok(()),
        Err(error) => {
            let why = error.status().map_or_else(|| error.to_string(), |it| it.message.clone());
            let name = set.name().to_owned();
            let text = format_args!("Failed to create new replica set {name:?}: {why}");
            cx.warning(deployment, "ReplicaSetCreateError", text);
            *result = SyncResult::CreateFailed { name, why };
            Err(error)
        }
    }
}

fn is_owned(set: &ReplicaSet, deployment: &Deployment) -> bool {
    controller_of(&set.metadata).is_some_and(|owner| owner.uid == deployment.uid())
}

/// Another template has the same hash: the next attempt uses another name.
async fn count_collision(deployment: &Deployment, cx: &Context) -> Result<(), Error> {
    let known = deployment.status.as_ref().and_then(|status| status.collision_count).unwrap_or(0);
    let patch = json!({
        "metadata": { "resourceVersion": deployment.resource_version().text() },
        "status": { "collisionCount": known + 1 },
    });
    cx.of::<Deployment>().merge_status(&deployment.key(), &patch).await.map(drop)
}

async fn update(
    deployment: &Deployment,
    set: &ReplicaSet,
    size: i32,
    annotations: &std::collections::BTreeMap<String, String>,
    cx: &Context,
) -> Result<(), Error> {
    let patch = json!({
        "metadata": {
            "resourceVersion": set.resource_version().text(),
            "annotations": annotations,
        },
        "spec": { "replicas": size, "minReadySeconds": spec(deployment).min_ready_seconds },
    });
    cx.of::<ReplicaSet>().merge(&set.key(), &patch).await?;
    let (name, before) = (set.name(), replicas(set));
    let word = match size.cmp(&before) {
        std::cmp::Ordering::Equal => return Ok(()),
        std::cmp::Ordering::Greater => "up",
        std::cmp::Ordering::Less => "down",
    };
    let message = format_args!("Scaled {word} replica set {name} from {before} to {size}");
    cx.normal(deployment, "ScalingReplicaSet", message);
    Ok(())
}

/// Writes the changed fields of the status, and the current revision.
async fn write_status(
    deployment: &Deployment,
    sets: &ReplicaSets,
    after: &DeploymentStatus,
    cx: &Context,
) -> Result<(), Error> {
    let before = deployment.status.clone().unwrap_or_default();
    let mut patch = json!({});
    if let Some(status) = difference(&before, after) {
        patch["status"] = status;
    }
    if let Some(new) = sets.new.as_ref().filter(|new| revision(new) > 0) {
        let now = revision(new).to_string();
        if annotation(&deployment.metadata, REVISION) != Some(&now) {
            patch["metadata"] = json!({ "annotations": { REVISION: now } });
        }
    }
    if patch == Value::Object(serde_json::Map::new()) {
        return Ok(());
    }
    // A status computed from an old state must not overwrite a newer one.
    patch["metadata"]["resourceVersion"] = deployment.resource_version().text().into();
    match cx.of::<Deployment>().merge_status(&deployment.key(), &patch).await {
        Err(error) if error.is_conflict() => Ok(()), // a newer state is on its way to the cache
        written => written.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn deployment(replicas: i32, image: &str) -> Deployment {
        serde_json::from_value(json!({
            "metadata": {
                "name": "web", "namespace": "shop", "uid": "deployment", "generation": 1,
                "annotations": { "team": "shop", REVISION: "7" },
            },
            "spec": {
                "replicas": replicas,
                "selector": { "matchLabels": { "app": "web" } },
                "template": {
                    "metadata": { "labels": { "app": "web" } },
                    "spec": { "containers": [{ "name": "c", "image": image }] },
                },
            },
        }))
        .unwrap()
    }

    pub(super) fn with(deployment: Deployment, change: Value) -> Deployment {
        let mut value = serde_json::to_value(deployment).unwrap();
        crate::fixture::merge(&mut value, &change);
        serde_json::from_value(value).unwrap()
    }

    /// A set of a template; sets are created in the alphabetical order of their names.
    pub(super) fn set(name: &str, image: &str, replicas: i32) -> Arc<ReplicaSet> {
        let template = serde_json::to_value(&spec(&deployment(1, image)).template).unwrap();
        let second = name.bytes().next().unwrap() % 60;
        let set = json!({
            "metadata": {
                "name": name, "namespace": "shop", "uid": name,
                "creationTimestamp": format!("2025-01-01T00:00:{second:02}Z"),
            },
            "spec": { "replicas": replicas, "selector": {}, "template": template },
        });
        Arc::new(serde_json::from_value(set).unwrap())
    }
}
