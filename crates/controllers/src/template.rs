//! Pods from a template.

use k8s_openapi::api::core::v1 as core;
use kube::Resource;
use kube::core::ObjectMeta;

use crate::ownership::controller_reference;

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
