//! The pods and claims of a StatefulSet: their names, and the objects that are created.

use std::sync::LazyLock;

use headwater_client::Cached;
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec};
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, PodTemplateSpec, Volume,
};

use crate::pod_control::pod_from_template;
use crate::revisions::POD_REVISION;

const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
const POD_INDEX: &str = "apps.kubernetes.io/pod-index";

pub(super) fn spec(set: &StatefulSet) -> &StatefulSetSpec {
    static NOTHING: LazyLock<StatefulSetSpec> = LazyLock::new(StatefulSetSpec::default);
    set.spec.as_ref().unwrap_or(&NOTHING)
}

/// The number of pods that the set desires.
pub(super) fn replicas(set: &StatefulSet) -> i32 {
    spec(set).replicas.unwrap_or(1).max(0)
}

/// The first ordinal.
pub(super) fn start(set: &StatefulSet) -> i32 {
    spec(set).ordinals.as_ref().and_then(|ordinals| ordinals.start).unwrap_or(0).max(0)
}

/// The ordinals of the desired pods. Extreme numbers of a client do not overflow.
pub(super) fn ordinals(set: &StatefulSet) -> std::ops::Range<i32> {
    start(set)..start(set).saturating_add(replicas(set))
}

/// The ordinal of a pod of the set, from its name.
pub(super) fn ordinal(set: &StatefulSet, pod_name: &str) -> Option<i32> {
    let digits = pod_name.strip_prefix(set.name())?.strip_prefix('-')?;
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok()).flatten()
}

pub(super) fn pod_name(set: &StatefulSet, ordinal: i32) -> String {
    format!("{}-{ordinal}", set.name())
}

/// The name of the claim of a template for one pod.
pub(super) fn claim_name(
    template: &PersistentVolumeClaim,
    set: &StatefulSet,
    ordinal: i32,
) -> String {
    format!("{}-{}", template.name(), pod_name(set, ordinal))
}

/// The claims of one pod.
pub(super) fn claims(set: &StatefulSet, ordinal: i32) -> Vec<PersistentVolumeClaim> {
    let labels = spec(set).selector.match_labels.clone().unwrap_or_default();
    let templates = spec(set).volume_claim_templates.iter().flatten();
    let claim = |template: &PersistentVolumeClaim| {
        let mut claim = template.clone();
        claim.status = None;
        claim.metadata.name = Some(claim_name(template, set, ordinal));
        claim.metadata.namespace.clone_from(&set.metadata.namespace);
        claim.metadata.labels.get_or_insert_default().extend(labels.clone());
        claim
    };
    templates.map(claim).collect()
}

/// The pod with an ordinal, from the template of a revision.
pub(super) fn pod(
    set: &StatefulSet,
    template: &PodTemplateSpec,
    revision: &str,
    ordinal: i32,
) -> Pod {
    let mut pod = pod_from_template(set, template);
    let name = pod_name(set, ordinal);
    pod.metadata.generate_name = None;
    pod.metadata.name = Some(name.clone());
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(POD_NAME.to_owned(), name.clone());
    labels.insert(POD_INDEX.to_owned(), ordinal.to_string());
    labels.insert(POD_REVISION.to_owned(), revision.to_owned());
    let pod_spec = pod.spec.get_or_insert_default();
    pod_spec.hostname = Some(name);
    pod_spec.subdomain = spec(set).service_name.clone().filter(|name| !name.is_empty());
    let templates = spec(set).volume_claim_templates.as_deref().unwrap_or_default();
    let volumes = pod_spec.volumes.get_or_insert_default();
    // A claim takes precedence over a volume of the same name.
    volumes.retain(|volume| templates.iter().all(|template| template.name() != volume.name));
    volumes.extend(templates.iter().map(|template| Volume {
        name: template.name().to_owned(),
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name: claim_name(template, set, ordinal),
            read_only: Some(false),
        }),
        ..Volume::default()
    }));
    pod
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::plan::tests::set;
    use super::*;

    #[test]
    fn the_ordinal_is_the_number_at_the_end_of_the_name() {
        let set = set(json!({}));
        for (name, expected) in [
            ("db-0", Some(0)),
            ("db-12", Some(12)),
            ("db-", None),
            ("db", None),
            ("db--1", None),
            ("db-+1", None),
            ("other-1", None),
            ("db-x-1", None),
            ("db-99999999999", None),
        ] {
            assert_eq!(ordinal(&set, name), expected, "{name}");
        }
    }

    #[test]
    fn a_pod_has_an_identity_and_the_claims_of_its_ordinal() {
        let set = set(json!({
            "serviceName": "peers",
            "volumeClaimTemplates": [{"metadata": {"name": "data", "labels": {"tier": "ssd"}},
                "spec": {"accessModes": ["ReadWriteOnce"]}, "status": {"phase": "Pending"}}],
            "template": {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [],
                "volumes": [{"name": "data", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]}},
        }));
        let pod = pod(&set, &spec(&set).template, "db-abc", 2);
        assert_eq!(pod.metadata.name.as_deref(), Some("db-2"));
        let labels = pod.metadata.labels.unwrap();
        assert_eq!((&*labels[POD_NAME], &*labels[POD_INDEX]), ("db-2", "2"));
        assert_eq!((&*labels[POD_REVISION], &*labels["app"]), ("db-abc", "db"));
        let spec = pod.spec.unwrap();
        assert_eq!(
            (spec.hostname.as_deref(), spec.subdomain.as_deref()),
            (Some("db-2"), Some("peers"))
        );
        let volumes = spec.volumes.unwrap();
        assert_eq!(volumes.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), ["tmp", "data"]);
        let claim = volumes[1].persistent_volume_claim.as_ref().unwrap();
        assert_eq!(claim.claim_name, "data-db-2");
        let claims = claims(&set, 2);
        assert_eq!((claims[0].name(), &claims[0].status), ("data-db-2", &None));
        let labels = claims[0].metadata.labels.as_ref().unwrap();
        assert_eq!((&*labels["tier"], &*labels["app"]), ("ssd", "db"));
    }
}
