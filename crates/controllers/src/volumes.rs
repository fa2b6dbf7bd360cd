//! The volume controllers: bind claims to volumes, provision simulated volumes, and protect both
//! while they are used.
//!
//! River: PersistentVolumeClaims, PersistentVolumes, StorageClasses and pods → **volumes** → bound
//! claims and volumes.
//! Promise: a claim and its volume name each other. A binding that was interrupted is completed
//! from the side that was written first, the volume's `claimRef`.

mod binding;
mod protection;
mod storage_class;

use std::sync::Arc;

use headwater_client::controller::{Context, Controller, Failure, Next, Prepared, Reconcile};
use headwater_client::informer::Informer;
use headwater_client::{Cached, Error, Index, Key};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::difference::difference;
use crate::ownership::requeue_or_fail;
use crate::pod::Pod;

use self::binding::{
    BIND_COMPLETED, BOUND_BY_CONTROLLER, ClaimAction, ClaimState, PROVISIONED_BY, PROVISIONER,
    amount, capacity, is_reclaimed, phase, requested,
};
pub(crate) use self::binding::{
    SELECTED_NODE, capacity_nano, claim_ref, class_name, fits, is_bound, is_reserved,
    waits_for_node,
};
pub(crate) use self::protection::{
    prepare_attribute_classes as attribute_class_protection, prepare_claims as claim_protection,
    prepare_volumes as volume_protection,
};
pub(crate) use self::storage_class::prepare as default_class;

/// One worker: two claims never choose the same volume at the same time.
const WORKERS: usize = 1;

/// The pods that use each claim.
pub(crate) type PodsByClaim = Index<Pod, Key>;

/// The keys of the claims of a pod.
fn claims_of(pod: &Pod) -> Vec<Key> {
    let namespace = pod.namespace().unwrap_or_default();
    pod.claims().map(|claim| Key::namespaced(namespace, claim)).collect()
}

/// Binds claims.
pub(crate) fn prepare(cluster: &Cluster) -> Result<Prepared, Error> {
    let claims = cluster.informer::<PersistentVolumeClaim>()?;
    let volumes = cluster.informer::<PersistentVolume>()?;
    let classes = cluster.informer::<StorageClass>()?;
    let pods = cluster.pods()?.informer;
    let controller = ClaimBinder {
        volumes: volumes.clone(),
        pods_by_claim: pods.index("volumes/claim", claims_of)?,
    };
    let (pending, waiting) = (claims.clone(), claims.clone());
    Ok(Controller::new("persistentvolume-binder", &claims)
        .watches(&volumes, move |volume: &PersistentVolume| {
            let named = named_claim(volume);
            named.map_or_else(|| unbound(&pending), |key| vec![key])
        })
        .watches(&classes, move |_: &StorageClass| unbound(&waiting))
        .watches(&pods, claims_of)
        .workers(WORKERS)
        .with(controller))
}

/// The claim that a volume's `claimRef` names.
fn named_claim(volume: &PersistentVolume) -> Option<Key> {
    let claim_ref = volume.spec.as_ref()?.claim_ref.as_ref()?;
    Some(Key::namespaced(claim_ref.namespace.as_deref()?, claim_ref.name.as_deref()?))
}

fn unbound(claims: &Informer<PersistentVolumeClaim>) -> Vec<Key> {
    let snapshot = claims.snapshot();
    let is_bound = |claim: &PersistentVolumeClaim| {
        let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
        phase == Some("Bound")
    };
    snapshot.iter().filter(|(_, claim)| !is_bound(claim)).map(|(key, _)| key.clone()).collect()
}

struct ClaimBinder {
    volumes: Informer<PersistentVolume>,
    pods_by_claim: PodsByClaim,
}

impl Reconcile<PersistentVolumeClaim> for ClaimBinder {
    async fn reconcile(
        &self,
        claim: Arc<PersistentVolumeClaim>,
        cx: Context,
    ) -> Result<Next, Failure> {
        let volumes: Vec<Arc<PersistentVolume>> =
            self.volumes.snapshot().iter().map(|(_, volume)| Arc::clone(volume)).collect();
        let class = cx.lister::<StorageClass>()?.get("", &class_name(&claim))?;
        let users = self.pods_by_claim.get(&claim.key());
        let state = ClaimState {
            claim: &claim,
            volumes: &volumes,
            class: class.as_deref(),
            // The scheduler chooses a node first.
            is_used: users.iter().any(|pod| pod.is_active() && pod.node().is_some()),
        };
        match Box::pin(carry_out(&claim, state.action(), &cx)).await {
            Ok(next) => Ok(next),
            Err(error) => requeue_or_fail(error),
        }
    }
}

async fn carry_out(
    claim: &PersistentVolumeClaim,
    action: ClaimAction,
    cx: &Context,
) -> Result<Next, Error> {
    match action {
        ClaimAction::Bind(volume) => bind(claim, &volume, cx).await?,
        ClaimAction::Provision(volume) => match cx.of::<PersistentVolume>().create(&volume).await {
            Err(error) if error.is_exists() => return Ok(Next::Again),
            Err(error) => return Err(error),
            Ok(created) => {
                let message = format!("Successfully provisioned volume {}", created.name());
                cx.normal(claim, "ProvisioningSucceeded", message);
                bind(claim, &created, cx).await?;
            }
        },
        ClaimAction::Lose => {
            let status = json!({ "phase": "Lost", "capacity": null });
            if phase_of(claim) != Some("Lost") {
                let why = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
                write_claim_status(claim, &status, cx).await?;
                cx.warning(claim, "ClaimLost", why);
            }
        }
        ClaimAction::Wait(event) => {
            if phase_of(claim) != Some("Pending") {
                write_claim_status(claim, &json!({ "phase": "Pending" }), cx).await?;
            }
            if let Some((reason, message)) = event {
                match reason {
                    "ProvisioningFailed" => cx.warning(claim, reason, message),
                    reason => cx.normal(claim, reason, message),
                }
            }
        }
    }
    Ok(Next::Done)
}

fn phase_of(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.status.as_ref()?.phase.as_deref()
}

/// Writes the volume, then the claim, then the claim's status; each only as far as it differs.
async fn bind(
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
    cx: &Context,
) -> Result<(), Error> {
    let volume = bind_volume(claim, volume, cx).await?;
    let mut bound = claim.clone();
    let annotations = bound.metadata.annotations.get_or_insert_default();
    annotations.insert(BIND_COMPLETED.to_owned(), "yes".to_owned());
    let spec = bound.spec.get_or_insert_default();
    if spec.volume_name.as_deref() != Some(volume.name()) {
        annotations.insert(BOUND_BY_CONTROLLER.to_owned(), "yes".to_owned());
        spec.volume_name = Some(volume.name().to_owned());
    }
    if let Some(mut patch) = difference(claim, &bound) {
        patch["metadata"]["resourceVersion"] = json!(claim.resource_version().text());
        bound = cx.of::<PersistentVolumeClaim>().merge(&claim.key(), &patch).await?;
    }
    let mut status = bound.status.clone().unwrap_or_default();
    status.phase = Some("Bound".to_owned());
    status.access_modes = volume.spec.as_ref().and_then(|spec| spec.access_modes.clone());
    status.capacity = volume.spec.as_ref().and_then(|spec| spec.capacity.clone());
    if let Some(patch) = difference(&bound.status.clone().unwrap_or_default(), &status) {
        write_claim_status(&bound, &patch, cx).await?;
    }
    Ok(())
}

async fn bind_volume(
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
    cx: &Context,
) -> Result<PersistentVolume, Error> {
    let mut bound = volume.clone();
    let spec = bound.spec.get_or_insert_default();
    let known = spec.claim_ref.as_ref().and_then(|known| known.uid.as_deref());
    if known.is_none_or(str::is_empty) {
        if spec.claim_ref.is_none() {
            let annotations = bound.metadata.annotations.get_or_insert_default();
            annotations.insert(BOUND_BY_CONTROLLER.to_owned(), "yes".to_owned());
        }
        spec.claim_ref = Some(claim_ref(claim));
    }
    // A simulated volume grows with its claim.
    let annotations = volume.metadata.annotations.as_ref();
    let is_simulated = annotations.and_then(|all| all.get(PROVISIONED_BY)).map(String::as_str)
        == Some(PROVISIONER);
    let wanted = requested(claim);
    if let (true, Some(wanted), Some(size)) = (is_simulated, wanted, capacity(volume))
        && amount(&wanted) > amount(&size)
    {
        spec.capacity.get_or_insert_default().insert("storage".to_owned(), wanted);
    }
    match difference(volume, &bound) {
        None => Ok(bound),
        Some(mut patch) => {
            patch["metadata"]["resourceVersion"] = json!(volume.resource_version().text());
            cx.of::<PersistentVolume>().merge(&volume.key(), &patch).await
        }
    }
}

async fn write_claim_status(
    claim: &PersistentVolumeClaim,
    status: &Value,
    cx: &Context,
) -> Result<(), Error> {
    let patch = json!({
        "metadata": { "resourceVersion": claim.resource_version().text() }, "status": status,
    });
    cx.of::<PersistentVolumeClaim>().merge_status(&claim.key(), &patch).await.map(drop)
}

/// Maintains the phase of volumes, and deletes released ones.
pub(crate) fn prepare_phases(cluster: &Cluster) -> Result<Prepared, Error> {
    let volumes = cluster.informer::<PersistentVolume>()?;
    let claims = cluster.informer::<PersistentVolumeClaim>()?;
    let by_claim = volumes.index("volumes/claim", named_claim)?;
    Ok(Controller::new("persistentvolume-phases", &volumes)
        .watches(&claims, move |claim: &PersistentVolumeClaim| by_claim.keys(&claim.key()))
        .workers(WORKERS)
        .with(reconcile_phase))
}

async fn reconcile_phase(volume: Arc<PersistentVolume>, cx: Context) -> Result<Next, Failure> {
    let claim = match named_claim(&volume) {
        Some(key) => cx.lister::<PersistentVolumeClaim>()?.get_key(&key)?,
        None => None,
    };
    let mut wanted = phase(&volume, claim.as_deref());
    if wanted == "Released" && claim.is_none() {
        // A claim that this cache does not know yet must not lose its volume.
        let key = named_claim(&volume).unwrap_or_else(|| volume.key());
        let found = cx.of::<PersistentVolumeClaim>().get(&key).await?;
        wanted = phase(&volume, found.as_ref());
    }
    let known = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    if known != Some(wanted) {
        let patch = json!({
            "metadata": { "resourceVersion": volume.resource_version().text() },
            "status": { "phase": wanted },
        });
        let written = cx.of::<PersistentVolume>().merge_status(&volume.key(), &patch).await;
        return written.map_or_else(requeue_or_fail, |_| Ok(Next::Again));
    }
    if wanted == "Released" && is_reclaimed(&volume) {
        let options = json!({ "preconditions": { "uid": volume.uid() } });
        cx.of::<PersistentVolume>().delete_with(&volume.key(), &options).await?;
    }
    Ok(Next::Done)
}
