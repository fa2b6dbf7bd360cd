//! Deployments: a template rolled out over ReplicaSets, one step at a time.
//!
//! River: Deployments, ReplicaSets and pods → **deployment** → ReplicaSets and a status.
//! Promise: every step is decided from what the caches hold, so a rollout that is stopped after any
//! write goes on where it was; there are never more pods than the surge allows nor fewer than may
//! be missing, as far as ReplicaSets tell.

mod rollout;
mod sets;
mod status;
#[cfg(test)]
mod simulation;

use std::sync::Arc;

use headwater_api::Clock;
use headwater_client::controller::{Context, Controller, Failure, Next, Prepared, Reconcile};
use headwater_client::indexer::Index;
use headwater_client::informer::Informer;
use headwater_client::{Cached, Error, Key, Selector};
use k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus, ReplicaSet};
use serde_json::{Value, json};

use crate::burst::namespace_ends;
use crate::cluster::{Cluster, Pods};
use crate::difference::difference;
use crate::ownership::{Claims, after, controller_of, selector};
use crate::pod::Pod;

use self::rollout::{Rollout, Step, is_recreate};
use self::sets::{REVISION, Sets, annotation, is_of, replicas, revision, spec};
use self::status::{Pass, is_complete, look_again, status};

const WORKERS: usize = 4;

pub(crate) fn prepare(cluster: &Cluster) -> Result<Prepared, Error> {
    let deployments = cluster.informer::<Deployment>()?;
    let (sets, pods) = (cluster.informer::<ReplicaSet>()?, cluster.pods()?);
    let by_owner = sets.index("deployment/owner", |set: &ReplicaSet| {
        let owner = controller_of(&set.metadata).map(|owner| owner.uid.clone());
        Some(owner.unwrap_or_else(|| orphans_of(set.namespace().unwrap_or_default())))
    })?;
    let (candidates, owners) = (deployments.clone(), sets.clone());
    let recreating = deployments.clone();
    let rollouts = Deployments { by_owner, pods: pods.clone(), clock: Arc::clone(cluster.clock()) };
    Ok(Controller::new("deployment", &deployments)
        .watches(&sets, move |set: &ReplicaSet| interested(&candidates, set))
        // Only the last pod of an old template matters, and only to those that wait for it.
        .watches(&pods.informer, move |pod: &Pod| waiting(&recreating, &owners, pod))
        .workers(WORKERS)
        .with(rollouts))
}

/// The bucket of the sets that nobody controls.
fn orphans_of(namespace: &str) -> String {
    format!("orphans/{namespace}")
}

/// The Deployments a set concerns: the one that controls it, or those that would like to.
fn interested(deployments: &Informer<Deployment>, set: &ReplicaSet) -> Vec<Key> {
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

/// The Deployment that waits for a pod to go before it makes new ones.
fn waiting(
    deployments: &Informer<Deployment>,
    sets: &Informer<ReplicaSet>,
    pod: &Pod,
) -> Option<Key> {
    let namespace = pod.namespace().unwrap_or_default();
    let set = controller_of(&pod.metadata).filter(|owner| owner.kind == "ReplicaSet")?;
    let set = sets.store().get(&Key::namespaced(namespace, &set.name))?;
    let owner = controller_of(&set.metadata).filter(|owner| owner.kind == "Deployment")?;
    let key = Key::namespaced(namespace, &owner.name);
    let deployment = deployments.store().get(&key)?;
    is_recreate(spec(&deployment)).then_some(key)
}

struct Deployments {
    by_owner: Index<ReplicaSet, String>,
    pods: Pods,
    clock: Arc<dyn Clock>,
}

impl Reconcile<Deployment> for Deployments {
    async fn reconcile(&self, deployment: Arc<Deployment>, cx: Context) -> Result<Next, Failure> {
        let selector = selector(deployment.spec.as_ref().map(|spec| &spec.selector));
        let selector = selector.map_err(Failure::terminal)?;
        let sets = match self.claim(&deployment, &selector, &cx).await {
            Ok(sets) => sets,
            Err(error) => return after(error),
        };
        let now = self.clock.now();
        let counted = status(&deployment, &sets, &Pass::Counted, now);
        let mut pass = self.pass(&deployment);
        let mut failure = None;
        if deployment.metadata.deletion_timestamp.is_none() {
            let rollout = Rollout {
                deployment: &deployment,
                sets: &sets,
                old_pods_run: self.old_pods_run(&sets),
                is_complete: is_complete(&deployment, &counted),
            };
            for step in rollout.steps() {
                match self.take(&deployment, step, &mut pass, &cx).await {
                    Ok(()) => {}
                    Err(error) => drop(failure.get_or_insert(error)),
                }
            }
        }
        let told = status(&deployment, &sets, &pass, now);
        if let Err(error) = write_status(&deployment, &sets, &told, &cx).await {
            return after(error);
        }
        match (failure, look_again(&deployment, &told, now)) {
            (Some(error), _) => after(error),
            (None, Some(wait)) => Ok(Next::After(wait)),
            (None, None) => Ok(Next::Done),
        }
    }
}

impl Deployments {
    async fn claim(
        &self,
        deployment: &Deployment,
        selector: &Selector,
        cx: &Context,
    ) -> Result<Sets, Error> {
        let mut candidates = self.by_owner.get(deployment.uid());
        let namespace = deployment.namespace().unwrap_or_default();
        candidates.extend(self.by_owner.get(&orphans_of(namespace)));
        let claims = Claims { owner: deployment, selector, cx };
        let own = claims.settle::<ReplicaSet, ReplicaSet>(candidates).await?;
        Ok(Sets::of(deployment, &own))
    }

    fn pass(&self, deployment: &Deployment) -> Pass {
        let ends = deployment.metadata.deletion_timestamp.is_some();
        if ends || spec(deployment).paused == Some(true) { Pass::Counted } else { Pass::Rolled }
    }

    fn old_pods_run(&self, sets: &Sets) -> bool {
        sets.old.iter().any(|set| {
            sets::counts(set).replicas > 0
                || self.pods.by_controller.get(set.uid()).iter().any(|pod| !pod.is_finished())
        })
    }

    async fn take(
        &self,
        deployment: &Deployment,
        step: Step,
        pass: &mut Pass,
        cx: &Context,
    ) -> Result<(), Error> {
        match step {
            Step::Create(set) => create(deployment, &set, pass, cx).await,
            Step::Change { set, size, annotations } => {
                change(deployment, &set, size, &annotations, cx).await
            }
            Step::Delete(set) => {
                let options = json!({
                    "preconditions": { "uid": set.uid(), "resourceVersion": set.resource_version().text() },
                });
                match cx.of::<ReplicaSet>().delete_with(&set.key(), &options).await {
                    Err(error) if error.is_conflict() => Ok(()), // it changed: look again
                    deleted => deleted.map(drop),
                }
            }
        }
    }
}

async fn create(
    deployment: &Deployment,
    set: &ReplicaSet,
    pass: &mut Pass,
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
            *pass = Pass::Created(name.to_owned());
            Ok(())
        }
        Err(error) if error.is_exists() => match sets.get(&set.key()).await? {
            // The cache has not seen it yet, or another process was quicker.
            Some(there) if is_of(&there, deployment) && is_owned(&there, deployment) => Ok(()),
            _ => {
                count_collision(deployment, cx).await?;
                Err(error)
            }
        },
        Err(error) if namespace_ends(&error) => Ok(()),
        Err(error) => {
            let why = error.status().map_or_else(|| error.to_string(), |it| it.message.clone());
            let name = set.name().to_owned();
            let text = format_args!("Failed to create new replica set {name:?}: {why}");
            cx.warning(deployment, "ReplicaSetCreateError", text);
            *pass = Pass::Refused { name, why };
            Err(error)
        }
    }
}

fn is_owned(set: &ReplicaSet, deployment: &Deployment) -> bool {
    controller_of(&set.metadata).is_some_and(|owner| owner.uid == deployment.uid())
}

/// Another template has the same hash: the next try gets another name.
async fn count_collision(deployment: &Deployment, cx: &Context) -> Result<(), Error> {
    let known = deployment.status.as_ref().and_then(|status| status.collision_count).unwrap_or(0);
    let patch = json!({
        "metadata": { "resourceVersion": deployment.resource_version().text() },
        "status": { "collisionCount": known + 1 },
    });
    cx.of::<Deployment>().merge_status(&deployment.key(), &patch).await.map(drop)
}

async fn change(
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

/// Writes what changed of the status, and which revision is rolled out.
async fn write_status(
    deployment: &Deployment,
    sets: &Sets,
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
    // A status that was decided from an old state must not overwrite a newer one.
    patch["metadata"]["resourceVersion"] = deployment.resource_version().text().into();
    match cx.of::<Deployment>().merge_status(&deployment.key(), &patch).await {
        Err(error) if error.is_conflict() => Ok(()), // the change that was quicker is on its way
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

    /// A set of a template; sets are as old as their names are early.
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
