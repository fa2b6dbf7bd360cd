//! Ownership: which objects a controller owns, adopts or releases.
//!
//! River: store → **ownership** → the decisions of every controller that owns objects.
//! Promise: an object has at most one controller. Only a patch with the object's resourceVersion
//! changes its controller, so two owners cannot both adopt the same object.

use std::sync::Arc;

use headwater_api::selector::{LabelExpression, StructuredSelector};
use headwater_client::controller::{Context, Failure, Next};
use headwater_client::{Cached, Error, Key, ResourceType, Selector};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, OwnerReference};
use kube::Resource;
use kube::core::ObjectMeta;
use serde::de::DeserializeOwned;
use serde_json::json;

/// The owner reference of an object's controller.
pub(crate) fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// An owner reference that makes `owner` the controller.
pub(crate) fn controller_reference<O: Resource<DynamicType = ()>>(owner: &O) -> OwnerReference {
    let (kind, meta) = (ResourceType::of::<O>(&()), owner.meta());
    OwnerReference {
        api_version: kind.api_version(),
        kind: kind.kind,
        name: meta.name.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// The selector of an object. An absent one matches nothing; an invalid one is an error.
pub(crate) fn selector(wanted: Option<&LabelSelector>) -> Result<Selector, Error> {
    let Some(wanted) = wanted else { return Ok(Selector::nothing()) };
    let labels = wanted.match_labels.iter().flatten();
    let expressions = wanted.match_expressions.iter().flatten();
    let selector = StructuredSelector::new(
        labels.map(|(key, value)| (key.as_str(), value.as_str())),
        expressions.map(|expression| LabelExpression {
            key: &expression.key,
            operator: &expression.operator,
            values: expression.values.iter().flatten().map(String::as_str).collect(),
        }),
    );
    selector.map_err(Error::Invalid)?.to_string().parse()
}

/// The result after a failed write: requeue after a conflict or a 404, because the cache is about
/// to receive the newer state; otherwise fail.
pub(crate) fn requeue_or_fail(error: Error) -> Result<Next, Failure> {
    match error.is_conflict() || error.is_not_found() {
        true => Ok(Next::Again),
        false => Err(error.into()),
    }
}

/// What a controller does with a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimAction {
    /// The owner controls it and its labels match.
    Keep,
    /// It has no controller and its labels match: becomes owned.
    Adopt,
    /// The owner controls it and its labels no longer match: the owner reference is removed.
    Release,
    /// It belongs to another owner, or does not match.
    Ignore,
}

/// Decides about one candidate; `fits` is whether the owner's selector matches its labels.
pub(crate) fn claim(owner: &ObjectMeta, child: &ObjectMeta, fits: bool) -> ClaimAction {
    let is_owner_deleted = owner.deletion_timestamp.is_some();
    match controller_of(child) {
        Some(controller) if Some(&controller.uid) != owner.uid.as_ref() => ClaimAction::Ignore,
        Some(_) if fits => ClaimAction::Keep,
        // An owner that is being deleted releases nothing; the garbage collector takes over.
        Some(_) if is_owner_deleted => ClaimAction::Ignore,
        Some(_) => ClaimAction::Release,
        None if fits && !is_owner_deleted && child.deletion_timestamp.is_none() => {
            ClaimAction::Adopt
        }
        None => ClaimAction::Ignore,
    }
}

/// Claims objects of type `C` for an owner. They are written as `W`: the same type, or the full
/// type of which `C` is a projection.
pub(crate) struct ControllerRefManager<'a, O> {
    pub(crate) owner: &'a O,
    pub(crate) selector: &'a Selector,
    pub(crate) cx: &'a Context,
}

impl<O> ControllerRefManager<'_, O>
where
    O: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
{
    /// Adopts and releases candidates; returns those that the owner controls.
    pub(crate) async fn claim<C, W>(&self, candidates: Vec<Arc<C>>) -> Result<Vec<Arc<C>>, Error>
    where
        C: Cached,
        W: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
    {
        let mut own = Vec::with_capacity(candidates.len());
        let mut may_adopt = None;
        for child in candidates {
            let meta = child.metadata();
            match claim(self.owner.meta(), &meta, self.selector.matches(&*child)) {
                ClaimAction::Keep => own.push(Arc::clone(&child)),
                ClaimAction::Ignore => {}
                ClaimAction::Adopt => {
                    let may = match may_adopt {
                        Some(may) => may,
                        None => *may_adopt.insert(self.may_adopt().await?),
                    };
                    if may
                        && self
                            .set_reference::<W>(&meta, Some(controller_reference(self.owner)))
                            .await?
                    {
                        own.push(Arc::clone(&child));
                    }
                }
                ClaimAction::Release => drop(self.set_reference::<W>(&meta, None).await?),
            }
        }
        Ok(own)
    }

    /// Whether the owner still exists and is not being deleted, according to the server. The caches
    /// of owners and objects are not in step: objects that were orphaned on purpose may appear
    /// before the owner's deletion does, and adopting them would delete them with the owner.
    async fn may_adopt(&self) -> Result<bool, Error> {
        let meta = self.owner.meta();
        let key = Key::new(meta.namespace.as_deref(), meta.name.as_deref().unwrap_or_default());
        let now = self.cx.of::<O>().get(&key).await?;
        Ok(now.is_some_and(|now| {
            now.meta().uid == meta.uid && now.meta().deletion_timestamp.is_none()
        }))
    }

    /// Replaces the owner's reference by `reference`; returns whether the object still exists.
    async fn set_reference<W>(
        &self,
        child: &ObjectMeta,
        reference: Option<OwnerReference>,
    ) -> Result<bool, Error>
    where
        W: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
    {
        let own = self.owner.meta().uid.as_deref().unwrap_or_default();
        let others = child.owner_references.iter().flatten().filter(|owner| owner.uid != own);
        let references: Vec<OwnerReference> = others.cloned().chain(reference).collect();
        let name = child.name.as_deref().unwrap_or_default();
        let key = Key::new(child.namespace.as_deref(), name);
        let patch = json!({
            "metadata": { "resourceVersion": child.resource_version, "ownerReferences": references },
        });
        match self.cx.of::<W>().merge(&key, &patch).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelectorRequirement, Time};

    use super::*;

    fn owned_by(uid: Option<&str>) -> ObjectMeta {
        let reference = |uid: &str| OwnerReference {
            uid: uid.into(),
            controller: Some(true),
            ..OwnerReference::default()
        };
        ObjectMeta {
            owner_references: uid.map(|uid| vec![reference(uid)]),
            ..ObjectMeta::default()
        }
    }

    fn ending(mut meta: ObjectMeta) -> ObjectMeta {
        meta.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
        meta
    }

    #[test]
    fn objects_are_kept_adopted_released_or_ignored() {
        let owner = ObjectMeta { uid: Some("me".into()), ..ObjectMeta::default() };
        let check = |owner: &ObjectMeta, child: ObjectMeta, fits, expected| {
            assert_eq!(claim(owner, &child, fits), expected, "{child:?}, fits: {fits}");
        };
        check(&owner, owned_by(Some("me")), true, ClaimAction::Keep);
        check(&owner, owned_by(Some("me")), false, ClaimAction::Release);
        check(&owner, owned_by(Some("other")), true, ClaimAction::Ignore);
        check(&owner, owned_by(None), true, ClaimAction::Adopt);
        check(&owner, owned_by(None), false, ClaimAction::Ignore);
        check(&owner, ending(owned_by(None)), true, ClaimAction::Ignore);
        check(&owner, ending(owned_by(Some("me"))), true, ClaimAction::Keep);
        let owner = ending(owner);
        check(&owner, owned_by(None), true, ClaimAction::Ignore);
        check(&owner, owned_by(Some("me")), false, ClaimAction::Ignore);
        check(&owner, owned_by(Some("me")), true, ClaimAction::Keep);
    }

    #[test]
    fn selectors_select_what_they_say() {
        let rule = |key: &str, operator: &str, values: &[&str]| LabelSelectorRequirement {
            key: key.into(),
            operator: operator.into(),
            values: Some(values.iter().map(|value| (*value).to_owned()).collect()),
        };
        let wanted = LabelSelector {
            match_labels: Some([("app".to_owned(), "web".to_owned())].into()),
            match_expressions: Some(vec![
                rule("tier", "In", &["a", "b"]),
                rule("env", "NotIn", &["dev"]),
                rule("x", "Exists", &[]),
                rule("y", "DoesNotExist", &[]),
            ]),
        };
        let selector = selector(Some(&wanted)).unwrap();
        let matches = |labels: &[(&str, &str)]| {
            let labels = labels.iter().map(|(key, value)| ((*key).into(), (*value).into()));
            let mut map = ConfigMap::default();
            map.metadata.labels = Some(labels.collect());
            selector.matches(&map)
        };
        assert!(matches(&[("app", "web"), ("tier", "a"), ("x", "")]));
        assert!(!matches(&[("app", "web"), ("tier", "c"), ("x", "")]));
        assert!(!matches(&[("app", "web"), ("tier", "a"), ("x", ""), ("env", "dev")]));
        assert!(!matches(&[("app", "web"), ("tier", "a"), ("x", ""), ("y", "")]));
        assert!(!super::selector(None).unwrap().matches(&ConfigMap::default()), "nothing");
        let unknown = LabelSelector {
            match_expressions: Some(vec![rule("x", "Near", &[])]),
            ..LabelSelector::default()
        };
        assert!(super::selector(Some(&unknown)).is_err());
        assert!(super::selector(Some(&LabelSelector::default())).unwrap().is_everything());
    }
}
