//! Writes objects of another cluster to this one, with ordinary requests.
//!
//! River: objects in order → **placer** → POST, PUT, DELETE.
//! Promise: an owner's uid is that of the object of the same name here; a write is retried after a
//! conflict with others, and refused writes are returned, not hidden.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, bail};
use headwater_json::{Value, json};
use http::Method;

use super::plain::{OwnerName, adopt, owners, plain};
use crate::remote::follow::version;
use crate::remote::kinds::{RemoteKind, RemoteKinds, items};
use crate::remote::{Refused, RemoteCluster};

const JSON: &str = "application/json";

/// How often a write is tried again after somebody else changed the object.
const CONFLICTS_MAX: usize = 5;

/// How long a new definition may take until its kind is served.
const ESTABLISH_MAX: Duration = Duration::from_secs(30);

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placed {
    Created,
    Updated,
    Unchanged,
}

/// An object that was written here.
struct KnownObject {
    /// What was asked for the last time.
    wanted: Value,
    /// The server's last answer.
    current: Value,
}

/// Writes objects to a cluster.
pub(crate) struct Placer {
    cluster: RemoteCluster,
    kinds: RemoteKinds,
    known: BTreeMap<String, KnownObject>,
    /// Whether status, nodes of pods and deletions in progress are written too.
    state: bool,
    /// References to owners that do not exist here.
    pub(crate) owners_dropped: usize,
}

impl Placer {
    pub(crate) async fn new(cluster: RemoteCluster, state: bool) -> Result<Placer> {
        let kinds = RemoteKinds::discover(&cluster).await?;
        Ok(Placer { cluster, kinds, known: BTreeMap::new(), state, owners_dropped: 0 })
    }

    /// The kind of an object here.
    fn kind_of(&self, object: &Value) -> Result<RemoteKind> {
        let word = |name: &str| object[name].as_str().unwrap_or_default();
        let (api_version, kind) = (word("apiVersion"), word("kind"));
        let Some(found) = self.kinds.of(api_version, kind) else {
            bail!("the server has no kind {kind} of {api_version}");
        };
        // In the version of the object, if that is another one.
        let mut found = found.clone();
        let version = api_version.rsplit('/').next().unwrap_or(api_version);
        found.resource.version = version.to_owned();
        Ok(found)
    }

    fn path_of(&self, kind: &RemoteKind, object: &Value) -> String {
        let meta = &object["metadata"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        kind.object(&text(&meta["namespace"]), &text(&meta["name"]))
    }

    /// Whether an object of this name exists.
    pub(crate) async fn exists(&self, object: &Value) -> Result<bool> {
        let kind = self.kind_of(object)?;
        Ok(self.cluster.find(&self.path_of(&kind, object)).await?.is_some())
    }

    /// Creates an object, or changes it into this one.
    pub(crate) async fn put(&mut self, object: &Value) -> Result<Placed> {
        let kind = self.kind_of(object)?;
        let path = self.path_of(&kind, object);
        let mut wanted = object.clone();
        plain(&mut wanted, self.state);
        self.adopt(&mut wanted).await;
        let status = wanted.as_object_mut().and_then(|members| members.remove("status"));
        let node = match kind.resource.kind == "Pod" {
            true => wanted["spec"].as_object_mut().and_then(|spec| spec.remove("nodeName")),
            false => None,
        };
        let mut placed = self.put_main(&kind, &path, &wanted).await?;
        if let Some(node) = node {
            self.bind(&path, &node).await?;
        }
        if let Some(status) = status.filter(|_| kind.has_status()) {
            placed = match (placed, self.put_status(&path, &status).await?) {
                (Placed::Unchanged, true) => Placed::Updated,
                (placed, _) => placed,
            };
        }
        if let Some(known) = self.known.get_mut(&path) {
            known.wanted = wanted;
        }
        if kind.resource.kind == "CustomResourceDefinition" && placed != Placed::Unchanged {
            self.establish(&path).await?;
        }
        let is_deleted = object["metadata"]["deletionTimestamp"].is_string();
        if self.state && is_deleted && !self.is_deleting(&path) {
            self.request_deletion(&path, &object["metadata"]["deletionGracePeriodSeconds"]).await?;
        }
        Ok(placed)
    }

    async fn put_main(&mut self, kind: &RemoteKind, path: &str, wanted: &Value) -> Result<Placed> {
        if let Some(known) = self.known.get(path)
            && known.wanted == *wanted
        {
            return Ok(Placed::Unchanged);
        }
        if !self.known.contains_key(path) {
            let namespace = wanted["metadata"]["namespace"].as_str();
            let created =
                self.cluster.send(Method::POST, &kind.collection(namespace), JSON, wanted).await;
            match created {
                Ok(current) => {
                    self.note(path, current);
                    return Ok(Placed::Created);
                }
                Err(error) if Refused::code_of(&error) == Some(409) => {
                    let current = self.cluster.get(path).await?;
                    self.note(path, current);
                }
                Err(error) => return Err(error),
            }
        }
        self.update(path, "", |current| merged(current, wanted)).await?;
        Ok(Placed::Updated)
    }

    /// Writes the status; whether that changed anything.
    async fn put_status(&mut self, path: &str, status: &Value) -> Result<bool> {
        if self.known.get(path).is_some_and(|known| known.current["status"] == *status) {
            return Ok(false);
        }
        self.update(path, "/status", |current| {
            let mut body = current.clone();
            body["status"] = status.clone();
            body
        })
        .await?;
        Ok(true)
    }

    /// PUTs what is made of the current object; again if somebody changed it meanwhile.
    async fn update(
        &mut self,
        path: &str,
        subresource: &str,
        make: impl Fn(&Value) -> Value,
    ) -> Result<()> {
        let target = format!("{path}{subresource}");
        let mut tries = 0;
        loop {
            let Some(known) = self.known.get(path) else { bail!("{path} was not read") };
            let body = make(&known.current);
            match self.cluster.send(Method::PUT, &target, JSON, &body).await {
                Ok(current) => {
                    self.note(path, current);
                    return Ok(());
                }
                Err(error) if Refused::code_of(&error) == Some(409) && tries < CONFLICTS_MAX => {
                    tries += 1;
                    let current = self.cluster.get(path).await?;
                    self.note(path, current);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Binds a pod to its node, if it has none.
    async fn bind(&mut self, path: &str, node: &Value) -> Result<()> {
        let Some(known) = self.known.get(path) else { return Ok(()) };
        if known.current["spec"]["nodeName"].is_string() {
            return Ok(());
        }
        let body = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": { "name": known.current["metadata"]["name"].as_str() },
            "target": { "apiVersion": "v1", "kind": "Node", "name": node.as_str() },
        });
        self.cluster.send(Method::POST, &format!("{path}/binding"), JSON, &body).await?;
        let current = self.cluster.get(path).await?;
        self.note(path, current);
        Ok(())
    }

    fn is_deleting(&self, path: &str) -> bool {
        let known = self.known.get(path);
        known.is_some_and(|known| known.current["metadata"]["deletionTimestamp"].is_string())
    }

    async fn request_deletion(&mut self, path: &str, grace: &Value) -> Result<()> {
        let mut options = json!({ "propagationPolicy": "Background" });
        if let Some(seconds) = grace.as_i64() {
            options["gracePeriodSeconds"] = json!(seconds);
        }
        match self.cluster.send(Method::DELETE, path, JSON, &options).await {
            Ok(_) => {}
            Err(error) if Refused::code_of(&error) == Some(404) => {}
            Err(error) => return Err(error),
        }
        match self.cluster.find(path).await? {
            Some(current) => self.note(path, current),
            None => drop(self.known.remove(path)),
        }
        Ok(())
    }

    /// Deletes an object at once, whatever its finalizers.
    pub(crate) async fn delete(&mut self, object: &Value) -> Result<Placed> {
        let kind = self.kind_of(object)?;
        let path = self.path_of(&kind, object);
        self.request_deletion(&path, &json!(0)).await?;
        if self.known.contains_key(&path) {
            let is_namespace = kind.resource.kind == "Namespace";
            let subresource = if is_namespace { "/finalize" } else { "" };
            let without = |current: &Value| {
                let mut body = current.clone();
                let place = if is_namespace { "spec" } else { "metadata" };
                if let Some(members) = body[place].as_object_mut() {
                    members.remove("finalizers");
                }
                body
            };
            match self.update(&path, subresource, without).await {
                Ok(()) => {}
                Err(error) if Refused::code_of(&error) == Some(404) => {}
                Err(error) => return Err(error),
            }
        }
        self.known.remove(&path);
        Ok(Placed::Updated)
    }

    fn note(&mut self, path: &str, current: Value) {
        let entry = self.known.entry(path.to_owned());
        let known =
            entry.or_insert_with(|| KnownObject { wanted: Value::Null, current: Value::Null });
        known.current = current;
    }

    /// Gives the owners of an object their uids here.
    async fn adopt(&mut self, object: &mut Value) {
        let names = owners(object);
        if names.is_empty() {
            return;
        }
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
        let mut uids = Vec::new();
        for owner in &names {
            uids.push(self.uid_of(owner, &namespace).await);
        }
        self.owners_dropped += adopt(object, &uids);
    }

    async fn uid_of(&self, owner: &OwnerName, namespace: &str) -> Option<String> {
        let kind = self.kinds.of(&owner.api_version, &owner.kind)?;
        let mut kind = kind.clone();
        let version = owner.api_version.rsplit('/').next().unwrap_or_default();
        kind.resource.version = version.to_owned();
        let path = kind.object(namespace, &owner.name);
        let found = match self.known.get(&path) {
            Some(known) => known.current.clone(),
            None => self.cluster.find(&path).await.ok()??,
        };
        found["metadata"]["uid"].as_str().map(str::to_owned)
    }

    /// Waits until a definition's kind is served.
    async fn establish(&mut self, path: &str) -> Result<()> {
        let wait = async {
            loop {
                let found = self.cluster.get(path).await?;
                let is_established = items(&found["status"]["conditions"]).any(|condition| {
                    condition["type"] == "Established" && condition["status"] == "True"
                });
                if is_established {
                    self.kinds = RemoteKinds::discover(&self.cluster).await?;
                    let spec = &found["spec"];
                    let group = spec["group"].as_str().unwrap_or_default();
                    let kind = spec["names"]["kind"].as_str().unwrap_or_default();
                    if self.kinds.of(&format!("{group}/v1"), kind).is_some() {
                        return Ok(());
                    }
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        match tokio::time::timeout(ESTABLISH_MAX, wait).await {
            Ok(ended) => ended,
            Err(_) => bail!("{path} is not served after {} s", ESTABLISH_MAX.as_secs()),
        }
    }
}

/// The wanted object with what this server must keep of its own: the version, and what it assigned.
fn merged(current: &Value, wanted: &Value) -> Value {
    let mut body = wanted.clone();
    body["metadata"]["resourceVersion"] = version(current).into();
    let assigned: &[&str] = match current["kind"].as_str() {
        Some("Service") => &["clusterIP", "clusterIPs", "healthCheckNodePort"],
        Some("Pod") => &["nodeName"],
        Some("Job") => &["selector"],
        Some("Namespace") => &["finalizers"],
        _ => &[],
    };
    for field in assigned {
        let value = &current["spec"][*field];
        if !value.is_null() && body["spec"][*field].is_null() {
            body["spec"][*field] = value.clone();
        }
    }
    if current["kind"] == "Job" {
        let assigned = &current["spec"]["template"]["metadata"]["labels"];
        for label in super::plain::CONTROLLER_UID {
            if assigned[label].is_string() {
                body["spec"]["template"]["metadata"]["labels"][label] = assigned[label].clone();
            }
        }
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_update_keeps_what_the_server_assigned() {
        let current = json!({"kind": "Service", "metadata": {"resourceVersion": "7"},
            "spec": {"clusterIP": "10.0.0.9", "ports": [1]}});
        let wanted = json!({"kind": "Service", "metadata": {"name": "a"}, "spec": {"ports": [2]}});
        assert_eq!(
            merged(&current, &wanted),
            json!({"kind": "Service", "metadata": {"name": "a", "resourceVersion": "7"},
                "spec": {"clusterIP": "10.0.0.9", "ports": [2]}})
        );
    }
}
