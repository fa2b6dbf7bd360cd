//! Protection: claims that pods use, volumes that claims are bound to, and attribute classes that either
//! names are deleted later.
//!
//! The finalizers are added when the objects are created; these controllers remove them from
//! objects that are being deleted and are not used any more.

use std::collections::BTreeSet;
use std::sync::Arc;

use headwater_client::controller::{Context, Controller, Failure, Next, Prepared};
use headwater_client::{Cached, Error, Key};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::VolumeAttributesClass;
use kube::Resource;
use kube::core::ObjectMeta;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::cluster::Cluster;
use crate::ownership::requeue_or_fail;

use super::claims_of;

const CLAIM: &str = "kubernetes.io/pvc-protection";
const VOLUME: &str = "kubernetes.io/pv-protection";
const ATTRIBUTES: &str = "kubernetes.io/vac-protection";

/// Releases claims that no unfinished pod uses.
pub(crate) fn prepare_claims(cluster: &Cluster) -> Result<Prepared, Error> {
    let claims = cluster.informer::<PersistentVolumeClaim>()?;
    let pods = cluster.pods()?.informer;
    let by_claim = pods.index("volumes/protection", claims_of)?;
    let reconcile = move |claim: Arc<PersistentVolumeClaim>, cx: Context| {
        let users = by_claim.get(&claim.key());
        let is_used = users.iter().any(|pod| !pod.is_finished());
        async move { release(&*claim, CLAIM, is_used, &cx).await }
    };
    Ok(Controller::new("persistentvolumeclaim-protection", &claims)
        .watches(&pods, claims_of)
        .with(reconcile))
}

/// Releases volumes that are not bound.
pub(crate) fn prepare_volumes(cluster: &Cluster) -> Result<Prepared, Error> {
    let volumes = cluster.informer::<PersistentVolume>()?;
    let reconcile = |volume: Arc<PersistentVolume>, cx: Context| async move {
        let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
        release(&*volume, VOLUME, phase == Some("Bound"), &cx).await
    };
    Ok(Controller::new("persistentvolume-protection", &volumes).with(reconcile))
}

/// Releases attribute classes that no claim and no volume names.
pub(crate) fn prepare_attribute_classes(cluster: &Cluster) -> Result<Prepared, Error> {
    let classes = cluster.informer::<VolumeAttributesClass>()?;
    let claims = cluster.informer::<PersistentVolumeClaim>()?;
    let volumes = cluster.informer::<PersistentVolume>()?;
    let by_claim = claims.index("volumes/attributes", classes_of_claim)?;
    let by_volume = volumes.index("volumes/attributes", classes_of_volume)?;
    let reconcile = move |class: Arc<VolumeAttributesClass>, cx: Context| {
        let key = class.key();
        let is_used = !by_claim.get(&key).is_empty() || !by_volume.get(&key).is_empty();
        async move { release(&*class, ATTRIBUTES, is_used, &cx).await }
    };
    Ok(Controller::new("volumeattributesclass-protection", &classes)
        .watches(&claims, classes_of_claim)
        .watches(&volumes, classes_of_volume)
        .with(reconcile))
}

/// The attribute classes of a claim: the wanted one, the current one, and the one that it changes to.
fn classes_of_claim(claim: &PersistentVolumeClaim) -> Vec<Key> {
    let wanted = claim.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.as_ref());
    let status = claim.status.as_ref();
    let current = status.and_then(|status| status.current_volume_attributes_class_name.as_ref());
    let change = status.and_then(|status| status.modify_volume_status.as_ref());
    let target = change.and_then(|change| change.target_volume_attributes_class_name.as_ref());
    named([wanted, current, target])
}

fn classes_of_volume(volume: &PersistentVolume) -> Vec<Key> {
    named([volume.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.as_ref())])
}

fn named<const N: usize>(names: [Option<&String>; N]) -> Vec<Key> {
    let names = names.into_iter().flatten().filter(|name| !name.is_empty());
    let keys: BTreeSet<Key> = names.map(|name| Key::cluster(name)).collect();
    keys.into_iter().collect()
}

/// The finalizers without one, if an object that is being deleted has it.
fn released<'a>(meta: &'a ObjectMeta, finalizer: &str) -> Option<Vec<&'a str>> {
    let all = meta.finalizers.as_ref().filter(|_| meta.deletion_timestamp.is_some())?;
    let others = all.iter().map(String::as_str).filter(|it| *it != finalizer);
    let others: Vec<&str> = others.collect();
    (others.len() < all.len()).then_some(others)
}

async fn release<K>(
    object: &K,
    finalizer: &str,
    is_used: bool,
    cx: &Context,
) -> Result<Next, Failure>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
{
    let Some(finalizers) = released(object.meta(), finalizer).filter(|_| !is_used) else {
        return Ok(Next::Done);
    };
    let patch = json!({ "metadata": {
        "resourceVersion": object.resource_version().text(), "finalizers": finalizers,
    }});
    let written = cx.of::<K>().merge(&object.key(), &patch).await;
    written.map_or_else(requeue_or_fail, |_| Ok(Next::Done))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    #[test]
    fn only_an_object_that_is_being_deleted_loses_the_finalizer() {
        let mut meta = ObjectMeta {
            finalizers: Some(vec![CLAIM.to_owned(), "example.com/other".to_owned()]),
            ..ObjectMeta::default()
        };
        assert_eq!(released(&meta, CLAIM), None);
        meta.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
        assert_eq!(released(&meta, CLAIM), Some(vec!["example.com/other"]));
        assert_eq!(released(&meta, VOLUME), None);
        meta.finalizers = None;
        assert_eq!(released(&meta, CLAIM), None);
    }
}
