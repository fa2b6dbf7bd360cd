//! The kinds that a cluster serves, and the words by which people name them.
//!
//! River: discovery → **kinds** → paths. One request on servers with aggregated discovery, one per group
//! version on others.

use anyhow::{Result, anyhow, bail};
use headwater_client::ResourceType;
use headwater_json::Value;

use super::{RemoteCluster, ResponseForm, together};

/// A kind of a cluster, in the version that its server prefers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RemoteKind {
    pub(crate) resource: ResourceType,
    pub(crate) singular: String,
    pub(crate) short_names: Vec<String>,
    pub(crate) namespaced: bool,
    pub(crate) verbs: Vec<String>,
    pub(crate) subresources: Vec<String>,
}

impl RemoteKind {
    /// Whether the server has this verb for it.
    pub(crate) fn allows(&self, verb: &str) -> bool {
        self.verbs.iter().any(|allowed| allowed == verb)
    }

    pub(crate) fn has_status(&self) -> bool {
        self.subresources.iter().any(|name| name == "status")
    }

    /// The path of a collection; without a namespace, of all namespaces.
    pub(crate) fn collection(&self, namespace: Option<&str>) -> String {
        self.resource.path(namespace.filter(|_| self.namespaced))
    }

    /// The path of an object.
    pub(crate) fn object(&self, namespace: &str, name: &str) -> String {
        format!("{}/{name}", self.collection(Some(namespace)))
    }

    /// Whether a word names it: its plural, singular, short name or kind, also followed by its group.
    fn is_called(&self, word: &str) -> bool {
        let ResourceType { group, version, kind, plural } = &self.resource;
        let (name, rest) = word.split_once('.').unwrap_or((word, ""));
        let is_group = rest.is_empty()
            || rest == group
            || rest.strip_prefix(version.as_str()) == Some(&format!(".{group}"));
        let names = [plural, &self.singular, kind];
        is_group
            && (names.iter().any(|known| known.eq_ignore_ascii_case(name))
                || self.short_names.iter().any(|short| short == name))
    }
}

/// The kinds of a cluster, the core group first.
pub(crate) struct RemoteKinds(Vec<RemoteKind>);

impl RemoteKinds {
    /// Asks the server.
    pub(crate) async fn discover(cluster: &RemoteCluster) -> Result<RemoteKinds> {
        let (core, groups) = tokio::try_join!(
            cluster.get_as("/api", ResponseForm::Discovery),
            cluster.get_as("/apis", ResponseForm::Discovery)
        )?;
        if groups["kind"] == "APIGroupDiscoveryList" {
            return Ok(RemoteKinds::aggregated(&[core, groups]));
        }
        let mut versions = vec![(String::new(), "v1".to_owned())];
        for group in items(&groups["groups"]) {
            let name = text(&group["name"]);
            let all = std::iter::once(&group["preferredVersion"]).chain(items(&group["versions"]));
            versions.extend(all.map(|version| (name.clone(), text(&version["version"]))));
        }
        let lists = together(versions.iter().map(async |(group, version)| {
            let path = match group.as_str() {
                "" => format!("/api/{version}"),
                group => format!("/apis/{group}/{version}"),
            };
            (group, version, cluster.get(&path).await)
        }));
        let mut kinds = RemoteKinds(Vec::new());
        for (group, version, list) in lists.await {
            // A group whose extension server does not answer must not hide the others.
            match list {
                Ok(list) => kinds.add_list(group, version, &list),
                Err(error) => {
                    tracing::warn!(group, version, "cannot discover: {error:#}");
                }
            }
        }
        Ok(kinds)
    }

    fn aggregated(documents: &[Value]) -> RemoteKinds {
        let mut kinds = RemoteKinds(Vec::new());
        for group in documents.iter().flat_map(|document| items(&document["items"])) {
            let name = text(&group["metadata"]["name"]);
            for version in items(&group["versions"]) {
                for found in items(&version["resources"]) {
                    kinds.add(RemoteKind {
                        resource: ResourceType {
                            group: name.clone(),
                            version: text(&version["version"]),
                            kind: text(&found["responseKind"]["kind"]),
                            plural: text(&found["resource"]),
                        },
                        singular: text(&found["singularResource"]),
                        short_names: texts(&found["shortNames"]),
                        namespaced: found["scope"] == "Namespaced",
                        verbs: texts(&found["verbs"]),
                        subresources: items(&found["subresources"])
                            .map(|sub| text(&sub["subresource"]))
                            .collect(),
                    });
                }
            }
        }
        kinds
    }

    fn add_list(&mut self, group: &str, version: &str, list: &Value) {
        let (parents, children): (Vec<_>, Vec<_>) =
            items(&list["resources"]).partition(|found| !text(&found["name"]).contains('/'));
        for found in parents {
            let plural = text(&found["name"]);
            let names = children.iter().filter_map(|child| {
                let name = child["name"].as_str()?;
                name.strip_prefix(&plural)?.strip_prefix('/').map(str::to_owned)
            });
            self.add(RemoteKind {
                subresources: names.collect(),
                resource: ResourceType {
                    group: group.to_owned(),
                    version: version.to_owned(),
                    kind: text(&found["kind"]),
                    plural,
                },
                singular: text(&found["singularName"]),
                short_names: texts(&found["shortNames"]),
                namespaced: found["namespaced"] == true,
                verbs: texts(&found["verbs"]),
            });
        }
    }

    /// Adds a kind unless a preferred version of it is known.
    fn add(&mut self, kind: RemoteKind) {
        let is_same = |known: &RemoteKind| {
            known.resource.group == kind.resource.group
                && known.resource.plural == kind.resource.plural
        };
        if !self.0.iter().any(is_same) {
            self.0.push(kind);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &RemoteKind> {
        self.0.iter()
    }

    /// The kind that a word names.
    pub(crate) fn named(&self, word: &str) -> Result<&RemoteKind> {
        let found = self.0.iter().find(|kind| kind.is_called(word));
        found.ok_or_else(|| anyhow!("the server has no resource type {word:?}"))
    }

    /// The kind of an object, by its `apiVersion` and `kind`. Other versions of a group count too.
    pub(crate) fn of(&self, api_version: &str, kind: &str) -> Option<&RemoteKind> {
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        self.0.iter().find(|known| known.resource.group == group && known.resource.kind == kind)
    }

    /// The kinds that words name, or all kinds that can be listed and watched if there are no words.
    /// Kinds that no server stores, and those that repeat another group's objects, are left out.
    pub(crate) fn selected(&self, words: &[String]) -> Result<Vec<RemoteKind>> {
        if !words.is_empty() {
            let mut found: Vec<RemoteKind> = Vec::new();
            for word in words {
                let kind = self.named(word)?;
                if !found.contains(kind) {
                    found.push(kind.clone());
                }
            }
            return Ok(found);
        }
        let stored = |kind: &&RemoteKind| {
            kind.allows("list") && kind.allows("watch") && !is_repeated(&kind.resource)
        };
        Ok(self.0.iter().filter(stored).cloned().collect())
    }

    /// The kind and the name in `deployment/web` or `deployment web`.
    pub(crate) fn object(&self, words: &[String]) -> Result<(&RemoteKind, String)> {
        let (kind, name) = match words {
            [both] => both.split_once('/').unwrap_or((both, "")),
            [kind, name] => (kind.as_str(), name.as_str()),
            _ => ("", ""),
        };
        if kind.is_empty() || name.is_empty() || name.contains('/') {
            bail!("name one object, such as deployment/web");
        }
        Ok((self.named(kind)?, name.to_owned()))
    }
}

/// Whether another group has the same objects, or they are views of the moment.
fn is_repeated(resource: &ResourceType) -> bool {
    let (group, plural) = (resource.group.as_str(), resource.plural.as_str());
    (group, plural) == ("events.k8s.io", "events")
        || ["metrics.k8s.io", "headwater.dev"].contains(&group)
}

pub(crate) fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn texts(value: &Value) -> Vec<String> {
    items(value).map(text).collect()
}

#[cfg(test)]
mod tests {
    use headwater_json::json;

    use super::*;

    fn kinds() -> RemoteKinds {
        let resource = |plural: &str, kind: &str, short: &[&str]| {
            json!({
                "resource": plural, "responseKind": {"kind": kind}, "scope": "Namespaced",
                "singularResource": kind.to_lowercase(), "shortNames": short,
                "verbs": ["get", "list", "watch"], "subresources": [{"subresource": "status"}],
            })
        };
        let core = json!({"items": [{"metadata": {}, "versions": [
            {"version": "v1", "resources": [resource("pods", "Pod", &["po"]), resource("events", "Event", &["ev"])]},
        ]}]});
        let apps = json!({"items": [{"metadata": {"name": "apps"}, "versions": [
            {"version": "v1", "resources": [resource("deployments", "Deployment", &["deploy"])]},
            {"version": "v1beta1", "resources": [resource("deployments", "Deployment", &[])]},
        ]}]});
        RemoteKinds::aggregated(&[core, apps])
    }

    #[test]
    fn a_kind_is_found_by_each_of_its_names() {
        let kinds = kinds();
        for word in ["deployments", "deployment", "deploy", "Deployment", "deployments.apps"] {
            let found = kinds.named(word).unwrap();
            assert_eq!(found.resource.version, "v1", "{word}: the preferred version");
        }
        assert_eq!(kinds.named("deploy.v1.apps").unwrap().resource.group, "apps");
        for word in ["deployments.extensions", "d", ""] {
            assert!(kinds.named(word).is_err(), "{word}");
        }
    }

    #[test]
    fn an_object_is_one_word_or_two() {
        let kinds = kinds();
        let named = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            kinds.object(&words).map(|(kind, name)| kind.object("shop", &name))
        };
        let path = "/apis/apps/v1/namespaces/shop/deployments/web";
        assert_eq!(named(&["deployment/web"]).unwrap(), path);
        assert_eq!(named(&["deploy", "web"]).unwrap(), path);
        for wrong in
            [&["deployment"][..], &["deployment/"], &["/web"], &["a", "b", "c"], &["a/b/c"]]
        {
            assert!(named(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_server_without_aggregated_discovery_is_read_too() {
        let mut kinds = RemoteKinds(Vec::new());
        let list = json!({"resources": [
            {"name": "pods", "kind": "Pod", "namespaced": true, "verbs": ["list"], "shortNames": ["po"]},
            {"name": "pods/status", "kind": "Pod", "namespaced": true, "verbs": ["get"]},
        ]});
        kinds.add_list("", "v1", &list);
        let pods = kinds.named("po").unwrap();
        assert!(pods.has_status() && pods.namespaced);
        assert_eq!(pods.collection(None), "/api/v1/pods");
    }
}
