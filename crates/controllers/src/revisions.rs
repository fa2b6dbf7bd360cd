//! The revisions of a pod template, as ControllerRevisions.
//!
//! River: StatefulSets and DaemonSets → **revisions** → ControllerRevisions.
//! Promise: each template has one revision, and the newest revision is that of the current
//! template. `kubectl rollout history` and `kubectl rollout undo` read them.

use std::collections::BTreeSet;
use std::sync::Arc;

use headwater_client::controller::Context;
use headwater_client::{Cached, Error, Index, Selector};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use kube::Resource;
use kube::core::ObjectMeta;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::ownership::{ControllerRefManager, controller_of, controller_reference};
use crate::template_hash::hash;

/// The pod label with the revision of the pod's template; the revisions of a DaemonSet have it too.
pub(crate) const POD_REVISION: &str = "controller-revision-hash";
/// The label with the hash of a StatefulSet's revision.
pub(crate) const REVISION_HASH: &str = "controller.kubernetes.io/hash";
const HISTORY_DEFAULT: i32 = 10;

/// The index key of a revision: its controller, or its namespace if it has none.
pub(crate) fn owner_key(revision: &ControllerRevision) -> Option<String> {
    let owner = controller_of(&revision.metadata).map(|owner| owner.uid.clone());
    Some(owner.unwrap_or_else(|| orphans_key(revision.namespace().unwrap_or_default())))
}

fn orphans_key(namespace: &str) -> String {
    format!("orphans/{namespace}")
}

/// An owner of revisions, and the fields that they depend on.
pub(crate) struct RevisionOwner<'a, O> {
    pub(crate) owner: &'a O,
    pub(crate) selector: &'a Selector,
    pub(crate) template: &'a PodTemplateSpec,
    pub(crate) collisions: i32,
    pub(crate) history_limit: Option<i32>,
    /// The label of revisions with their hash.
    pub(crate) hash_label: &'static str,
}

/// The revisions of an owner, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Revisions {
    all: Vec<Arc<ControllerRevision>>,
}

/// The write that makes the revision of a template the newest.
#[derive(Debug, PartialEq)]
pub(crate) enum RevisionWrite {
    /// It is the newest.
    Keep(Arc<ControllerRevision>),
    /// It exists, but newer ones do as well: the owner was rolled back.
    Renumber { revision: Arc<ControllerRevision>, number: i64 },
    /// It does not exist.
    Create(Box<ControllerRevision>),
}

impl Revisions {
    pub(crate) fn of(mut all: Vec<Arc<ControllerRevision>>) -> Revisions {
        all.sort_by(|one, other| age(one).cmp(&age(other)));
        Revisions { all }
    }

    /// The revision with this name.
    pub(crate) fn named(&self, name: &str) -> Option<&Arc<ControllerRevision>> {
        self.all.iter().find(|revision| revision.name() == name)
    }

    fn write<O: Resource<DynamicType = ()>>(&self, wanted: &RevisionOwner<'_, O>) -> RevisionWrite {
        let template = normalized(wanted.template);
        let number = self.all.last().map_or(0, |newest| newest.revision).saturating_add(1);
        let mut known = self.all.iter().rev();
        match known.find(|revision| template_of(revision).as_ref() == Some(&template)) {
            None => RevisionWrite::Create(Box::new(new_revision(wanted, number))),
            Some(found) if found.revision + 1 == number => RevisionWrite::Keep(Arc::clone(found)),
            Some(found) => RevisionWrite::Renumber { revision: Arc::clone(found), number },
        }
    }

    /// The unused revisions beyond the history limit, oldest first.
    fn surplus(&self, used: &BTreeSet<&str>, limit: Option<i32>) -> Vec<Arc<ControllerRevision>> {
        let limit = usize::try_from(limit.unwrap_or(HISTORY_DEFAULT)).unwrap_or(0);
        let is_used = |revision: &ControllerRevision| {
            used.contains(revision.name()) || used.contains(hash_of(revision))
        };
        let unused = self.all.iter().filter(|revision| !is_used(revision));
        let unused: Vec<&Arc<ControllerRevision>> = unused.collect();
        let surplus = unused.len().saturating_sub(limit);
        unused.into_iter().take(surplus).cloned().collect()
    }
}

fn age(revision: &ControllerRevision) -> (i64, Option<jiff::Timestamp>, &str) {
    let created = revision.metadata.creation_timestamp.as_ref().map(|time| time.0);
    (revision.revision, created, revision.name())
}

/// The hash in the name of a revision.
pub(crate) fn hash_of(revision: &ControllerRevision) -> &str {
    let labels = revision.metadata.labels.as_ref();
    let hash = labels.and_then(|all| all.get(REVISION_HASH).or_else(|| all.get(POD_REVISION)));
    hash.map_or(revision.name(), String::as_str)
}

/// The template of a revision.
pub(crate) fn template_of(revision: &ControllerRevision) -> Option<PodTemplateSpec> {
    let data = &revision.data.as_ref()?.0;
    let template = data.get("spec")?.get("template")?.clone();
    Some(normalized(&serde_json::from_value(template).ok()?))
}

fn normalized(template: &PodTemplateSpec) -> PodTemplateSpec {
    let mut template = template.clone();
    // The server may set it; it is not part of the template.
    template.metadata.get_or_insert_default().creation_timestamp = None;
    template
}

fn new_revision<O: Resource<DynamicType = ()>>(
    wanted: &RevisionOwner<'_, O>,
    revision: i64,
) -> ControllerRevision {
    let meta = wanted.owner.meta();
    let hash = hash(wanted.template, wanted.collisions);
    let name = meta.name.as_deref().unwrap_or_default();
    let labels = wanted.template.metadata.as_ref().and_then(|meta| meta.labels.clone());
    let mut labels = labels.unwrap_or_default();
    labels.insert(wanted.hash_label.to_owned(), hash.clone());
    let mut template = json!(wanted.template);
    template["$patch"] = json!("replace");
    ControllerRevision {
        metadata: ObjectMeta {
            name: Some(format!("{name}-{hash}")),
            namespace: meta.namespace.clone(),
            labels: Some(labels),
            annotations: meta.annotations.clone(),
            owner_references: Some(vec![controller_reference(wanted.owner)]),
            ..ObjectMeta::default()
        },
        data: Some(RawExtension(json!({ "spec": { "template": template } }))),
        revision,
    }
}

/// The revisions of an owner after the write for its current template.
pub(crate) struct RevisionHistory {
    pub(crate) revisions: Revisions,
    pub(crate) newest: Arc<ControllerRevision>,
}

impl<O> RevisionOwner<'_, O>
where
    O: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
{
    /// Claims the owner's revisions and makes that of the current template the newest. `None` if
    /// another object has the name of the new revision: the owner counts a collision.
    pub(crate) async fn sync(
        &self,
        by_owner: &Index<ControllerRevision, String>,
        cx: &Context,
    ) -> Result<Option<RevisionHistory>, Error> {
        let meta = self.owner.meta();
        let mut candidates = by_owner.get(meta.uid.as_deref().unwrap_or_default());
        candidates
            .extend(by_owner.get(&orphans_key(meta.namespace.as_deref().unwrap_or_default())));
        let refs = ControllerRefManager { owner: self.owner, selector: self.selector, cx };
        let own = refs.claim::<ControllerRevision, ControllerRevision>(candidates).await?;
        let revisions = Revisions::of(own);
        let collection = cx.of::<ControllerRevision>();
        let newest = match revisions.write(self) {
            RevisionWrite::Keep(newest) => newest,
            RevisionWrite::Renumber { revision, number } => {
                let version = revision.resource_version();
                let patch = json!({ "metadata": { "resourceVersion": version.text() }, "revision": number });
                Arc::new(collection.merge(&revision.key(), &patch).await?)
            }
            RevisionWrite::Create(revision) => match collection.create(&revision).await {
                Ok(created) => Arc::new(created),
                Err(error) if error.is_exists() => match collection.get(&revision.key()).await? {
                    Some(found) if self.is_current(&found) => Arc::new(found),
                    _ => return Ok(None),
                },
                Err(error) => return Err(error),
            },
        };
        Ok(Some(RevisionHistory { revisions, newest }))
    }

    /// Whether a revision that the cache does not contain yet is that of the current template.
    fn is_current(&self, found: &ControllerRevision) -> bool {
        let owner = controller_of(&found.metadata).map(|owner| &owner.uid);
        owner == self.owner.meta().uid.as_ref()
            && template_of(found) == Some(normalized(self.template))
    }

    /// Deletes the revisions beyond the history limit that are not used, by name or by hash.
    pub(crate) async fn clean_up(
        &self,
        revisions: &Revisions,
        used: &BTreeSet<&str>,
        cx: &Context,
    ) -> Result<(), Error> {
        for revision in revisions.surplus(used, self.history_limit) {
            let options: Value = json!({ "preconditions": { "uid": revision.uid() } });
            cx.of::<ControllerRevision>().delete_with(&revision.key(), &options).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::StatefulSet;

    use super::*;

    fn template(image: &str) -> PodTemplateSpec {
        let labels = json!({"app": "db"});
        serde_json::from_value(json!({
            "metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": image}]},
        }))
        .unwrap()
    }

    fn owner() -> StatefulSet {
        serde_json::from_value(json!({
            "metadata": {"name": "db", "namespace": "shop", "uid": "set"},
            "spec": {"selector": {}, "template": {}},
        }))
        .unwrap()
    }

    fn write(revisions: &[(&str, i64)], image: &str) -> RevisionWrite {
        let owner = owner();
        let selector = Selector::nothing();
        let write = |image: &str, of: &dyn Fn(&RevisionOwner<'_, StatefulSet>) -> RevisionWrite| {
            of(&RevisionOwner {
                owner: &owner,
                selector: &selector,
                template: &template(image),
                collisions: 0,
                history_limit: None,
                hash_label: REVISION_HASH,
            })
        };
        let all = revisions.iter().map(|(image, number)| {
            let created = write(image, &|wanted| {
                RevisionWrite::Create(Box::new(new_revision(wanted, *number)))
            });
            let RevisionWrite::Create(revision) = created else { unreachable!() };
            Arc::new(*revision)
        });
        let all = Revisions::of(all.collect());
        write(image, &|wanted| all.write(wanted))
    }

    #[test]
    fn a_template_has_one_revision_and_the_current_one_is_the_newest() {
        let RevisionWrite::Create(first) = write(&[], "v1") else { panic!("it does not exist") };
        assert_eq!((first.revision, first.metadata.namespace.as_deref()), (1, Some("shop")));
        assert_eq!(first.metadata.labels.as_ref().unwrap()["app"], "db");
        assert_eq!(template_of(&first), Some(normalized(&template("v1"))));
        let data = &first.data.as_ref().unwrap().0;
        assert_eq!(data["spec"]["template"]["$patch"], "replace");
        let RevisionWrite::Keep(kept) = write(&[("v1", 1)], "v1") else { panic!("it is newest") };
        assert_eq!(kept.revision, 1);
        let RevisionWrite::Create(next) = write(&[("v1", 1)], "v2") else { panic!("it is new") };
        assert_eq!(next.revision, 2);
        let rolled_back = write(&[("v1", 1), ("v2", 2)], "v1");
        let RevisionWrite::Renumber { revision, number } = rolled_back else {
            panic!("it is renumbered")
        };
        assert_eq!((revision.revision, number), (1, 3));
    }

    #[test]
    fn unused_revisions_beyond_the_limit_are_deleted_oldest_first() {
        let revision = |number: i64| {
            let metadata = json!({"name": format!("r{number}")});
            let value = json!({"metadata": metadata, "revision": number});
            Arc::new(serde_json::from_value::<ControllerRevision>(value).unwrap())
        };
        let revisions = Revisions::of((1..=5).rev().map(revision).collect());
        let check = |used: &[&str], limit, expected: &[&str]| {
            let surplus = revisions.surplus(&used.iter().copied().collect(), limit);
            let names: Vec<&str> = surplus.iter().map(|revision| revision.name()).collect();
            assert_eq!(names, expected);
        };
        check(&[], None, &[]);
        check(&[], Some(5), &[]);
        check(&["r5"], Some(2), &["r1", "r2"]);
        check(&["r1", "r5"], Some(2), &["r2"]);
        check(&["r5"], Some(0), &["r1", "r2", "r3", "r4"]);
        assert_eq!(revisions.named("r3").map(|it| it.revision), Some(3));
    }
}
