//! Ownership: which children an owner has, takes over, or lets go.
//!
//! River: store → **ownership** → the decisions of every controller with children.
//! Promise: a child has at most one controller, and only a patch that carries the child's version
//! changes who that is; so two owners that want the same child cannot both get it.

use std::sync::Arc;

use headwater_client::controller::{Context, Failure, Next};
use headwater_client::object::ResourceType;
use headwater_client::{Cached, Error, Key, Selector};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, OwnerReference};
use kube::Resource;
use kube::core::ObjectMeta;
use serde::de::DeserializeOwned;
use serde_json::json;

/// The reference to an object's controller.
pub(crate) fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// A reference that makes `owner` the controller of something.
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

/// A selector as objects carry it. One that is not there selects nothing; one that nobody can
/// parse is an error of whoever wrote it.
pub(crate) fn selector(wanted: Option<&LabelSelector>) -> Result<Selector, Error> {
    let Some(wanted) = wanted else { return Ok(Selector::nothing()) };
    let equal = wanted.match_labels.iter().flatten().map(|(key, value)| format!("{key}={value}"));
    let others = wanted.match_expressions.iter().flatten().map(|rule| {
        let (key, values) = (&rule.key, rule.values.as_deref().unwrap_or_default().join(","));
        match rule.operator.as_str() {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "Exists" => key.clone(),
            _ => format!("!{key}"),
        }
    });
    equal.chain(others).collect::<Vec<_>>().join(",").parse()
}

/// What to do after a write that failed: that something was changed or deleted meanwhile is no
/// failure, only news that has not come yet.
pub(crate) fn after(error: Error) -> Result<Next, Failure> {
    match error.is_conflict() || error.is_not_found() {
        true => Ok(Next::Again),
        false => Err(error.into()),
    }
}

/// What becomes of a child that an owner looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// It is the owner's.
    Keep,
    /// It is nobody's and fits: the owner takes it.
    Adopt,
    /// It is the owner's and does not fit any more: the owner lets go.
    Release,
    /// It is no business of this owner.
    Ignore,
}

/// Decides about one child; `fits` says whether the owner's selector matches its labels.
pub(crate) fn claim(owner: &ObjectMeta, child: &ObjectMeta, fits: bool) -> Claim {
    let own_end = owner.deletion_timestamp.is_some();
    match controller_of(child) {
        Some(controller) if Some(&controller.uid) != owner.uid.as_ref() => Claim::Ignore,
        Some(_) if fits => Claim::Keep,
        // What ends keeps what it has: the garbage collector decides about it.
        Some(_) if own_end => Claim::Ignore,
        Some(_) => Claim::Release,
        None if fits && !own_end && child.deletion_timestamp.is_none() => Claim::Adopt,
        None => Claim::Ignore,
    }
}

/// An owner that claims children of type `C`, which are written as `W`: the same type, or what `C`
/// is a projection of.
pub(crate) struct Claims<'a, O> {
    pub(crate) owner: &'a O,
    pub(crate) selector: &'a Selector,
    pub(crate) cx: &'a Context,
}

impl<O> Claims<'_, O>
where
    O: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
{
    /// The candidates that are the owner's, after adopting and releasing.
    pub(crate) async fn settle<C, W>(&self, candidates: Vec<Arc<C>>) -> Result<Vec<Arc<C>>, Error>
    where
        C: Cached,
        W: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
    {
        let mut own = Vec::with_capacity(candidates.len());
        let mut may_adopt = None;
        for child in candidates {
            let meta = child.metadata();
            match claim(self.owner.meta(), &meta, self.selector.matches(&*child)) {
                Claim::Keep => own.push(Arc::clone(&child)),
                Claim::Ignore => {}
                Claim::Adopt => {
                    let may = match may_adopt {
                        Some(may) => may,
                        None => *may_adopt.insert(self.may_adopt().await?),
                    };
                    if may
                        && self.rewrite::<W>(&meta, Some(controller_reference(self.owner))).await?
                    {
                        own.push(Arc::clone(&child));
                    }
                }
                Claim::Release => drop(self.rewrite::<W>(&meta, None).await?),
            }
        }
        Ok(own)
    }

    /// Whether the owner is still there and stays. The caches of owner and children are not of one
    /// moment: children that were orphaned on purpose may be seen before the owner's end is, and
    /// whoever adopted them then would have them deleted with itself. So the server is asked.
    async fn may_adopt(&self) -> Result<bool, Error> {
        let meta = self.owner.meta();
        let key = Key::new(meta.namespace.as_deref(), meta.name.as_deref().unwrap_or_default());
        let now = self.cx.of::<O>().get(&key).await?;
        Ok(now.is_some_and(|now| {
            now.meta().uid == meta.uid && now.meta().deletion_timestamp.is_none()
        }))
    }

    /// Puts `reference` in the place of the owner's own; whether the child is still there.
    async fn rewrite<W>(
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
    fn children_are_kept_adopted_and_released() {
        let owner = ObjectMeta { uid: Some("me".into()), ..ObjectMeta::default() };
        let check = |owner: &ObjectMeta, child: ObjectMeta, fits, expected| {
            assert_eq!(claim(owner, &child, fits), expected, "{child:?}, fits: {fits}");
        };
        check(&owner, owned_by(Some("me")), true, Claim::Keep);
        check(&owner, owned_by(Some("me")), false, Claim::Release);
        check(&owner, owned_by(Some("other")), true, Claim::Ignore);
        check(&owner, owned_by(None), true, Claim::Adopt);
        check(&owner, owned_by(None), false, Claim::Ignore);
        check(&owner, ending(owned_by(None)), true, Claim::Ignore);
        check(&owner, ending(owned_by(Some("me"))), true, Claim::Keep);
        let owner = ending(owner);
        check(&owner, owned_by(None), true, Claim::Ignore);
        check(&owner, owned_by(Some("me")), false, Claim::Ignore);
        check(&owner, owned_by(Some("me")), true, Claim::Keep);
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
        assert!(super::selector(None).unwrap().is_nothing());
        assert!(super::selector(Some(&LabelSelector::default())).unwrap().is_everything());
    }
}
