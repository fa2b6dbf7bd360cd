//! The ReplicaSets of a Deployment: which has the current template, their names and revisions.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use headwater_client::Cached;
use k8s_openapi::api::apps::v1::{
    Deployment, DeploymentSpec, ReplicaSet, ReplicaSetSpec, ReplicaSetStatus,
};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use kube::core::ObjectMeta;

use crate::ownership::controller_reference;
use crate::template_hash::hash;

pub(super) const REVISION: &str = "deployment.kubernetes.io/revision";
pub(super) const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
pub(super) const DESIRED_REPLICAS: &str = "deployment.kubernetes.io/desired-replicas";
pub(super) const MAX_REPLICAS: &str = "deployment.kubernetes.io/max-replicas";
pub(super) const TEMPLATE_HASH: &str = "pod-template-hash";

/// Annotations of a Deployment that are not copied to its ReplicaSets.
const NOT_COPIED: &[&str] = &[
    "kubectl.kubernetes.io/last-applied-configuration",
    "deprecated.deployment.rollback.to",
    REVISION,
    REVISION_HISTORY,
    DESIRED_REPLICAS,
    MAX_REPLICAS,
];

/// The maximum length of the annotation `revision-history`, in characters.
const HISTORY_LEN_MAX: usize = 2000;

/// The ReplicaSets of a Deployment, oldest first.
#[derive(Debug)]
pub(super) struct ReplicaSets {
    /// The set with the Deployment's current template.
    pub(super) new: Option<Arc<ReplicaSet>>,
    pub(super) old: Vec<Arc<ReplicaSet>>,
}

impl ReplicaSets {
    pub(super) fn of(deployment: &Deployment, sets: &[Arc<ReplicaSet>]) -> ReplicaSets {
        let mut old = sets.to_vec();
        old.sort_by(|one, other| age(one).cmp(&age(other)));
        let wanted = without_hash(&spec(deployment).template);
        let new = old.iter().position(|set| template(set).is_some_and(|it| it == wanted));
        ReplicaSets { new: new.map(|at| old.remove(at)), old }
    }

    /// All sets; the one with the current template is last.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<ReplicaSet>> {
        self.old.iter().chain(&self.new)
    }

    /// The sum of the desired sizes.
    pub(super) fn replicas(&self) -> i32 {
        self.total(replicas)
    }

    /// The sum of a number of all sets, at most `i32::MAX`: clients choose the numbers.
    pub(super) fn total(&self, of: fn(&ReplicaSet) -> i32) -> i32 {
        self.all().map(|set| of(set)).fold(0, i32::saturating_add)
    }

    /// Sets of older templates with a desired size above zero.
    pub(super) fn old_active(&self) -> impl Iterator<Item = &Arc<ReplicaSet>> {
        self.old.iter().filter(|set| replicas(set) > 0)
    }

    /// The revision of a new template.
    pub(super) fn next_revision(&self) -> i64 {
        self.old.iter().map(|set| revision(set)).max().unwrap_or(0) + 1
    }
}

/// Ordered by creation time, then by name.
fn age(set: &ReplicaSet) -> (Option<jiff::Timestamp>, &str) {
    (set.metadata.creation_timestamp.as_ref().map(|time| time.0), set.name())
}

pub(super) fn spec(deployment: &Deployment) -> &DeploymentSpec {
    static NOTHING: LazyLock<DeploymentSpec> = LazyLock::new(DeploymentSpec::default);
    deployment.spec.as_ref().unwrap_or(&NOTHING)
}

pub(super) fn replicas(set: &ReplicaSet) -> i32 {
    set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

pub(super) fn counts(set: &ReplicaSet) -> ReplicaSetStatus {
    set.status.clone().unwrap_or_default()
}

pub(super) fn available(set: &ReplicaSet) -> i32 {
    set.status.as_ref().and_then(|status| status.available_replicas).unwrap_or(0)
}

pub(super) fn annotation<'a>(meta: &'a ObjectMeta, name: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(name).map(String::as_str)
}

pub(super) fn revision(set: &ReplicaSet) -> i64 {
    annotation(&set.metadata, REVISION).and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn template(set: &ReplicaSet) -> Option<PodTemplateSpec> {
    set.spec.as_ref()?.template.as_ref().map(without_hash)
}

/// Whether a set has the Deployment's current template.
pub(super) fn has_current_template(set: &ReplicaSet, deployment: &Deployment) -> bool {
    template(set).is_some_and(|it| it == without_hash(&spec(deployment).template))
}

fn without_hash(template: &PodTemplateSpec) -> PodTemplateSpec {
    let mut template = template.clone();
    let meta = template.metadata.get_or_insert_default();
    if let Some(labels) = &mut meta.labels {
        labels.remove(TEMPLATE_HASH);
    }
    // The server may set it; it is not part of the template.
    meta.creation_timestamp = None;
    template
}

/// The set for the Deployment's current template, which has none yet.
pub(super) fn new_replica_set(
    deployment: &Deployment,
    sets: &ReplicaSets,
    limits: ReplicaLimits,
    size: i32,
) -> ReplicaSet {
    let wanted = spec(deployment);
    let collisions = deployment.status.as_ref().and_then(|status| status.collision_count);
    let hash = hash(&wanted.template, collisions.unwrap_or(0));
    let mut template = wanted.template.clone();
    let labels = template.metadata.get_or_insert_default().labels.get_or_insert_default();
    labels.insert(TEMPLATE_HASH.to_owned(), hash.clone());
    let labels = labels.clone();
    let mut selector = wanted.selector.clone();
    selector.match_labels.get_or_insert_default().insert(TEMPLATE_HASH.to_owned(), hash.clone());
    let mut set = ReplicaSet {
        metadata: ObjectMeta {
            name: Some(format!("{}-{hash}", deployment.name())),
            namespace: deployment.metadata.namespace.clone(),
            labels: Some(labels),
            owner_references: Some(vec![controller_reference(deployment)]),
            ..ObjectMeta::default()
        },
        spec: Some(ReplicaSetSpec {
            replicas: Some(size),
            min_ready_seconds: wanted.min_ready_seconds,
            selector,
            template: Some(template),
        }),
        status: None,
    };
    let mut annotations = annotations_for(deployment, &set, sets.next_revision());
    annotations.extend(limits.annotations());
    set.metadata.annotations = Some(annotations);
    set
}

/// The desired number of pods, and the maximum during a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReplicaLimits {
    pub(super) desired: i32,
    pub(super) max: i32,
}

impl ReplicaLimits {
    pub(super) fn annotations(self) -> [(String, String); 2] {
        [
            (DESIRED_REPLICAS.to_owned(), self.desired.to_string()),
            (MAX_REPLICAS.to_owned(), self.max.to_string()),
        ]
    }
}

/// The annotations for the set with the current template: the Deployment's, its revision, and its
/// earlier revisions if a rollback made it current again.
pub(super) fn annotations_for(
    deployment: &Deployment,
    set: &ReplicaSet,
    newest: i64,
) -> BTreeMap<String, String> {
    let mut wanted = set.metadata.annotations.clone().unwrap_or_default();
    let copied = deployment.metadata.annotations.iter().flatten();
    let copied = copied.filter(|(name, _)| !NOT_COPIED.contains(&name.as_str()));
    wanted.extend(copied.map(|(name, value)| (name.clone(), value.clone())));
    let before = revision(set);
    if before < newest {
        wanted.insert(REVISION.to_owned(), newest.to_string());
        if before > 0 {
            let history = wanted.remove(REVISION_HISTORY).unwrap_or_default();
            wanted.insert(REVISION_HISTORY.to_owned(), remember(&history, before));
        }
    }
    wanted
}

/// Appends a revision to the history; drops the oldest entries when it gets too long.
fn remember(history: &str, revision: i64) -> String {
    let revision = revision.to_string();
    let mut known: Vec<&str> = history.split(',').filter(|text| !text.is_empty()).collect();
    known.push(&revision);
    while known.join(",").len() > HISTORY_LEN_MAX {
        known.remove(0);
    }
    known.join(",")
}

#[cfg(test)]
mod tests {
    use super::super::tests::{deployment, set};
    use super::*;

    #[test]
    fn the_oldest_set_with_the_current_template_is_the_new_one() {
        let deployment = deployment(3, "v2");
        let (one, two) = (set("one", "v1", 1), set("two", "v2", 2));
        let mut undated = (*set("zzz", "v2", 3)).clone();
        undated.metadata.creation_timestamp = None;
        let sets = ReplicaSets::of(&deployment, &[Arc::clone(&two), one]);
        assert_eq!(sets.new.as_ref().unwrap().name(), "two");
        assert_eq!(sets.old.iter().map(|set| set.name()).collect::<Vec<_>>(), ["one"]);
        assert_eq!(sets.replicas(), 3);
        let sets = ReplicaSets::of(&deployment, &[Arc::new(undated), two]);
        assert_eq!(sets.new.as_ref().unwrap().name(), "zzz", "no time is before any");
    }

    #[test]
    fn a_new_set_belongs_to_its_deployment_and_selects_only_its_own_pods() {
        let deployment = deployment(3, "v1");
        let sets = ReplicaSets::of(&deployment, &[]);
        let set = new_replica_set(&deployment, &sets, ReplicaLimits { desired: 3, max: 4 }, 3);
        assert!(has_current_template(&set, &deployment));
        let spec = set.spec.clone().unwrap();
        let hash = &spec.selector.match_labels.as_ref().unwrap()[TEMPLATE_HASH];
        assert_eq!(set.name(), format!("web-{hash}"));
        assert_eq!(&set.metadata.labels.as_ref().unwrap()[TEMPLATE_HASH], hash);
        let template = spec.template.unwrap().metadata.unwrap().labels.unwrap();
        assert_eq!((&template[TEMPLATE_HASH], template["app"].as_str()), (hash, "web"));
        let annotations = set.metadata.annotations.unwrap();
        let pairs =
            [(REVISION, "1"), (DESIRED_REPLICAS, "3"), (MAX_REPLICAS, "4"), ("team", "shop")];
        for (name, value) in pairs {
            assert_eq!(annotations[name], value, "{name}");
        }
    }

    #[test]
    fn a_rollback_gives_the_set_the_next_revision_and_records_the_old_one() {
        let deployment = deployment(1, "v1");
        let mut set = (*set("one", "v1", 1)).clone();
        let annotations = set.metadata.annotations.get_or_insert_default();
        annotations.insert(REVISION.into(), "1".into());
        set.metadata.annotations = Some(annotations_for(&deployment, &set, 3));
        assert_eq!(annotation(&set.metadata, REVISION), Some("3"));
        assert_eq!(annotation(&set.metadata, REVISION_HISTORY), Some("1"));
        set.metadata.annotations = Some(annotations_for(&deployment, &set, 5));
        assert_eq!(annotation(&set.metadata, REVISION_HISTORY), Some("1,3"));
        let again = annotations_for(&deployment, &set, 5);
        assert_eq!(Some(again), set.metadata.annotations, "nothing to do twice");
    }
}
