//! The default roles and bindings: created at the start, and kept complete (S10.21).
//!
//! River: start-up → **roles** → store.
//! Promise: rules and subjects that somebody removed come back, those that somebody added stay;
//! an object with the annotation `rbac.authorization.kubernetes.io/autoupdate: "false"` is left alone.

use futures::{StreamExt, TryStreamExt};
use headwater_api::Status;
use headwater_json::{Map, Value, json};
use headwater_store::Key;

use crate::answer::status;
use crate::commit;
use crate::kinds::registry::Served;
use crate::object::{Current, meta, metadata, object_key, part};
use crate::request::authorize::rbac::GROUP;
use crate::request::authorize::rbac::defaults::{self, AUTOUPDATE, DefaultRole, TABLE};
use crate::request::authorize::rbac::rule::{PolicyRule, not_held};
use crate::server::Server;

/// What the controllers of Headwater need beyond them, in the same format as the table of defaults.
const COMPONENTS: &str = include_str!("components.txt");

/// The number of concurrent writes: they share the syncs of the log.
const WRITES_MAX: usize = 64;

impl Server {
    /// Creates missing default roles and bindings, and completes existing ones.
    pub(crate) async fn ensure_roles(&self) -> Result<(), Status> {
        self.cache().consistent().await.map_err(|error| status::from_cache(&error))?;
        self.ensure_all(defaults::read(TABLE)).await?;
        self.cache().consistent().await.map_err(|error| status::from_cache(&error))?;
        self.aggregate_roles().await
    }

    /// The same for what the controllers of Headwater need when they run beside this server.
    pub async fn ensure_component_roles(&self) -> Result<(), Status> {
        self.ensure_all(defaults::read(COMPONENTS)).await?;
        self.cache().consistent().await.map(drop).map_err(|error| status::from_cache(&error))
    }

    async fn ensure_all(&self, defaults: Vec<DefaultRole>) -> Result<(), Status> {
        let writes = defaults.into_iter().map(|default| self.ensure_role(default));
        futures::stream::iter(writes).buffer_unordered(WRITES_MAX).try_collect::<()>().await
    }

    async fn ensure_role(
        &self,
        DefaultRole { plural, mut value }: DefaultRole,
    ) -> Result<(), Status> {
        let registry = self.registry();
        let Some(kind) = registry.find(GROUP, "v1", plural) else { return Ok(()) };
        value["kind"] = kind.kind.kind.to_string().into();
        value["apiVersion"] = kind.api_version().into();
        let key = object_key(meta(&value, "namespace"), meta(&value, "name"));
        let snapshot = self.cache().snapshot(&self.cache().resource(&kind.prefix));
        let Some(there) = snapshot.get(&key) else {
            return self.put_own(kind, &key, value, None).await;
        };
        let there = Current::of(there)?;
        if there.value["metadata"]["annotations"][AUTOUPDATE] == "false" {
            return Ok(());
        }
        if there.value["roleRef"] != value["roleRef"] {
            return self.rebind(kind, &key, value, &there).await;
        }
        match completed(&there.value, &value) {
            None => Ok(()),
            Some(new) => self.put_own(kind, &key, new, Some(there)).await,
        }
    }

    /// Replaces a binding that names another role: `roleRef` is immutable.
    async fn rebind(
        &self,
        kind: &Served,
        key: &str,
        value: Value,
        there: &Current,
    ) -> Result<(), Status> {
        let stored = Key::in_collection(&kind.prefix, key);
        commit::remove(self.store(), stored, there.revision).await?;
        self.put_own(kind, key, value, None).await
    }
}

/// An existing object with what it lacks; `None` if it lacks nothing.
fn completed(there: &Value, wanted: &Value) -> Option<Value> {
    let mut new = there.clone();
    for place in ["labels", "annotations"] {
        let wanted = wanted["metadata"][place].as_object().into_iter().flatten();
        let missing: Vec<_> =
            wanted.filter(|(key, _)| there["metadata"][place].get(key).is_none()).collect();
        if missing.is_empty() {
            continue;
        }
        let held = metadata(&mut new).entry(place).or_insert_with(|| Value::Object(Map::new()));
        for (key, value) in missing {
            held[key.as_str()] = value.clone();
        }
    }
    let rules = |value: &Value| -> Vec<PolicyRule> { part(&value["rules"]).unwrap_or_default() };
    let missing = not_held(&rules(there), &rules(wanted));
    append(&mut new, &["rules"], missing.iter().map(|rule| json!(rule)));
    let lacks = |path: &[&str]| {
        let at = |value: &Value| {
            let found = path.iter().fold(value, |value, key| &value[*key]);
            found.as_array().cloned().unwrap_or_default()
        };
        let held = at(there);
        at(wanted).into_iter().filter(|item| !held.contains(item)).collect::<Vec<_>>()
    };
    for path in [&["subjects"][..], &["aggregationRule", "clusterRoleSelectors"]] {
        append(&mut new, path, lacks(path).into_iter());
    }
    (new != *there).then_some(new)
}

/// Adds items to a list, which is made if there is none.
fn append(value: &mut Value, path: &[&str], items: impl ExactSizeIterator<Item = Value>) {
    if items.len() == 0 {
        return;
    }
    let list = path.iter().fold(value, |value, key| &mut value[*key]);
    match list.as_array_mut() {
        Some(list) => list.extend(items),
        None => *list = Value::Array(items.collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(plural: &str, name: &str) -> Value {
        let mut all = defaults::read(TABLE).into_iter();
        let found = all.find(|role| role.plural == plural && meta(&role.value, "name") == name);
        found.unwrap().value
    }

    #[test]
    fn every_component_role_is_bound_once() {
        let all = defaults::read(COMPONENTS);
        let names = |plural: &str| {
            let of = all.iter().filter(|role| role.plural == plural);
            of.map(|role| meta(&role.value, "name").to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names("clusterroles"), names("clusterrolebindings"));
    }

    #[test]
    fn a_complete_object_stays_as_it_is_and_additions_are_kept() {
        let role = named("clusterroles", "system:discovery");
        assert_eq!(completed(&role, &role), None);
        let mut extended = role.clone();
        let more = json!({ "verbs": ["get"], "nonResourceURLs": ["/metrics"] });
        extended["rules"].as_array_mut().unwrap().push(more.clone());
        extended["metadata"]["labels"]["mine"] = "x".into();
        assert_eq!(completed(&extended, &role), None);

        let mut reduced = extended.clone();
        reduced["rules"].as_array_mut().unwrap().remove(0);
        reduced["metadata"]["labels"]
            .as_object_mut()
            .unwrap()
            .remove("kubernetes.io/bootstrapping");
        let new = completed(&reduced, &role).unwrap();
        assert_eq!(new["rules"][0], more);
        assert_eq!(completed(&new, &role), None);
        assert_eq!(new["metadata"]["labels"]["mine"], "x");
    }

    #[test]
    fn a_removed_subject_comes_back() {
        let binding = named("clusterrolebindings", "system:public-info-viewer");
        let mut reduced = binding.clone();
        let joe = json!({ "kind": "User", "name": "joe" });
        reduced["subjects"] = json!([joe]);
        let new = completed(&reduced, &binding).unwrap();
        assert_eq!(new["subjects"].as_array().unwrap().len(), 3);
        assert_eq!(new["subjects"][0], joe);
    }
}
