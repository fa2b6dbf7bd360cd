//! Pod control: creates and deletes the pods of a controller, with slow start and events.

use std::sync::Arc;

use headwater_client::controller::Context;
use headwater_client::{Cached, Error};
use k8s_openapi::api::core::v1 as core;
use kube::Resource;
use kube::core::ObjectMeta;
use serde_json::json;

use crate::ownership::controller_reference;
use crate::pod::Pod;
use crate::slow_start::{is_namespace_terminating, slow_start_batch};

/// A pod controlled by `owner`, with a generated name.
pub(crate) fn pod_from_template<O: Resource<DynamicType = ()>>(
    owner: &O,
    template: &core::PodTemplateSpec,
) -> core::Pod {
    let wanted = template.metadata.clone().unwrap_or_default();
    let name = owner.meta().name.as_deref().unwrap_or_default();
    core::Pod {
        metadata: ObjectMeta {
            generate_name: Some(format!("{name}-")),
            namespace: owner.meta().namespace.clone(),
            labels: wanted.labels,
            annotations: wanted.annotations,
            finalizers: wanted.finalizers,
            owner_references: Some(vec![controller_reference(owner)]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

/// Creates a pod for each item; returns the first failure.
pub(crate) async fn create_pods<O: Cached, I>(
    owner: &O,
    items: Vec<I>,
    pod: impl Fn(I) -> core::Pod,
    cx: &Context,
) -> Option<Error> {
    let pods = &cx.of::<core::Pod>();
    let create = |item| {
        let pod = pod(item);
        async move { pods.create(&pod).await }
    };
    let (created, failure) = slow_start_batch(items, create).await;
    for pod in created {
        cx.normal(owner, "SuccessfulCreate", format_args!("Created pod: {}", pod.name()));
    }
    failure.filter(|error| !is_namespace_terminating(error))
}

/// Deletes pods; returns the first failure.
pub(crate) async fn delete_pods<O: Cached>(
    owner: &O,
    pods: Vec<Arc<Pod>>,
    cx: &Context,
) -> Option<Error> {
    let collection = &cx.of::<core::Pod>();
    let delete = |pod: Arc<Pod>| async move {
        let options = json!({ "preconditions": { "uid": pod.uid() } });
        match collection.delete_with(&pod.key(), &options).await {
            Err(error) if error.is_conflict() => Ok(None), // another pod has this name now
            deleted => deleted.map(|_| Some(pod)),
        }
    };
    let (deleted, failure) = slow_start_batch(pods, delete).await;
    for pod in deleted.into_iter().flatten() {
        cx.normal(owner, "SuccessfulDelete", format_args!("Deleted pod: {}", pod.name()));
    }
    failure
}
