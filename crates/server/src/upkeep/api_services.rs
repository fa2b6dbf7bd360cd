//! APIServices: one for each group version, and the state of the extension servers behind the others.
//!
//! River: registry, APIService objects → **API services** → their conditions, proxy, discovery.
//! Promise: requests are forwarded to an extension server only while it answers; a check changes an object
//! only if its condition changes.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use headwater_api::clock::rfc3339;
use headwater_api::{Object, Status};
use headwater_json::{Value, json};
use headwater_store::{Guard, Key};
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::answer::status;
use crate::commit;
use crate::front::identity::Identity;
use crate::kinds::openapi::merge;
use crate::kinds::registry::{Registry, Served};
use crate::kinds::remote::{PREFIX, RemoteVersion, aggregated};
use crate::object::{canonical, tree};
use crate::server::Server;
use crate::upkeep::follow::ObjectChanges;
use crate::verbs::proxy::user_headers;

/// The maximum time of a check.
const CHECK_MAX: Duration = Duration::from_secs(5);
/// The time between checks while every extension server answers, and while one does not.
const CHECK_EVERY: Duration = Duration::from_secs(30);
const RETRY_EVERY: Duration = Duration::from_secs(1);
/// The number of concurrent writes.
const WRITES_MAX: usize = 64;

/// The label of an APIService that this server made: `onstart` for built-in kinds, `true` for others.
const AUTOMANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";

/// The priorities of built-in groups. A version comes before the others of its group by its own.
const PRIORITIES: &[(&str, i64)] = &[
    ("", 18000),
    ("apps", 17800),
    ("events.k8s.io", 17750),
    ("authentication.k8s.io", 17700),
    ("authorization.k8s.io", 17600),
    ("autoscaling", 17500),
    ("batch", 17400),
    ("certificates.k8s.io", 17300),
    ("networking.k8s.io", 17200),
    ("policy", 17100),
    ("rbac.authorization.k8s.io", 17000),
    ("storage.k8s.io", 16800),
    ("admissionregistration.k8s.io", 16700),
    ("apiextensions.k8s.io", 16700),
    ("scheduling.k8s.io", 16600),
    ("coordination.k8s.io", 16500),
    ("node.k8s.io", 16300),
    ("discovery.k8s.io", 16200),
    ("flowcontrol.apiserver.k8s.io", 16100),
    ("resource.k8s.io", 15900),
];

/// A condition `Available`.
struct Availability {
    is_available: bool,
    reason: &'static str,
    message: String,
}

impl Availability {
    fn local() -> Availability {
        let message = "Local APIServices are always available".to_owned();
        Availability { is_available: true, reason: "Local", message }
    }

    fn passed() -> Availability {
        let message = "all checks passed".to_owned();
        Availability { is_available: true, reason: "Passed", message }
    }

    fn failed(reason: &'static str, message: String) -> Availability {
        Availability { is_available: false, reason, message }
    }

    /// Sets the condition; its time changes only with its status. False if nothing changed.
    fn set(&self, object: &mut Value, now: impl FnOnce() -> Timestamp) -> bool {
        let word = if self.is_available { "True" } else { "False" };
        let old = &object["status"]["conditions"][0];
        let has = |key: &str, text: &str| old[key] == text;
        if has("status", word) && has("reason", self.reason) && has("message", &self.message) {
            return false;
        }
        let since = match has("status", word) {
            true => old["lastTransitionTime"].clone(),
            false => rfc3339(now()).into(),
        };
        object["status"]["conditions"] = json!([{
            "type": "Available", "status": word, "reason": self.reason, "message": self.message,
            "lastTransitionTime": since,
        }]);
        true
    }
}

/// The APIService of a group version that this server serves itself.
fn local(registry: &Registry, group: &str, version: &str, place: usize) -> Value {
    let priority = PRIORITIES.iter().find(|(name, _)| *name == group);
    let is_custom = !registry.has_builtin_group(group);
    let (group_priority, version_priority) = match priority {
        Some((_, priority)) if group.is_empty() => (*priority, 1),
        // The preferred version of a group is the first one.
        Some((_, priority)) => (*priority, 30 - 15 * place.min(1)),
        None => (1000, 100),
    };
    json!({
        "metadata": {
            "name": format!("{version}.{group}"),
            "labels": { AUTOMANAGED: if is_custom { "true" } else { "onstart" } },
        },
        "spec": {
            "group": group, "version": version,
            "groupPriorityMinimum": group_priority, "versionPriority": version_priority,
        },
    })
}

impl Server {
    /// Creates the missing APIServices of the group versions that this server serves, and deletes those
    /// of definitions that are gone.
    pub(crate) async fn ensure_api_services(&self) -> Result<(), Status> {
        self.cache().consistent().await.map_err(|error| status::from_cache(&error))?;
        let registry = self.registry();
        let Some(kind) = registry.find("apiregistration.k8s.io", "v1", "apiservices") else {
            return Ok(());
        };
        let snapshot = self.cache().snapshot(&self.cache().resource(PREFIX));
        let mut missing = Vec::new();
        for (group, versions) in registry.groups() {
            for (place, version) in versions.iter().enumerate() {
                if snapshot.get(&format!("{version}.{group}")).is_none() {
                    let mut value = local(&registry, group, version, place);
                    Availability::local().set(&mut value, || self.now());
                    value["kind"] = kind.kind.kind.to_string().into();
                    value["apiVersion"] = kind.api_version().into();
                    missing.push(value);
                }
            }
        }
        let creates = missing.into_iter().map(|value| async move {
            let name = value["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            self.put_own(kind, &name, value, None).await
        });
        futures::stream::iter(creates).buffer_unordered(WRITES_MAX).try_collect::<()>().await?;
        let gone = snapshot.iter("", None).filter(|object| {
            let is_served = || {
                let (version, group) = object.name().split_once('.').unwrap_or_default();
                registry.has_version(group, version)
            };
            object.label(AUTOMANAGED) == Some("true") && !is_served()
        });
        for object in gone {
            let key = Key::in_collection(PREFIX, object.name());
            commit::remove(self.store(), key, object.revision()).await?;
        }
        Ok(())
    }

    /// Follows APIServices, definitions and extension servers until stopped.
    pub(crate) async fn keep_api_services(self, stop: CancellationToken) {
        let mut objects = ObjectChanges::new(&self, PREFIX);
        let mut services = ObjectChanges::new(&self, "/registry/core/services/");
        while let Some(next) = stop.run_until_cancelled(self.look_after_api_services()).await {
            let has_remotes = !self.remotes().all().is_empty();
            let is_open = tokio::select! {
                biased;
                () = stop.cancelled() => false,
                is_open = objects.next(&self) => is_open,
                is_open = services.next(&self), if has_remotes => is_open,
                () = self.registry_change() => true,
                () = tokio::time::sleep(next.unwrap_or_default()), if next.is_some() => true,
            };
            if !is_open {
                break;
            }
        }
    }

    /// Checks everything; returns when to check again without a change.
    async fn look_after_api_services(&self) -> Option<Duration> {
        let done = async {
            self.ensure_api_services().await?;
            self.check_api_services().await
        };
        match done.await {
            Ok(next) => next,
            Err(status) => {
                tracing::warn!("cannot reconcile APIServices, will retry: {status}");
                Some(RETRY_EVERY)
            }
        }
    }

    async fn check_api_services(&self) -> Result<Option<Duration>, Status> {
        self.cache().consistent().await.map_err(|error| status::from_cache(&error))?;
        let registry = self.registry();
        let Some(kind) = registry.find("apiregistration.k8s.io", "v1", "apiservices") else {
            return Ok(None);
        };
        let snapshot = self.cache().snapshot(&self.cache().resource(PREFIX));
        let known = self.remotes().all();
        let mut checks = Vec::new();
        for object in snapshot.iter("", None) {
            let value = tree(object.as_slice())?;
            match RemoteVersion::read(&value, self.front_proxy()) {
                Some(remote) => checks.push((Arc::clone(object), value, remote)),
                None => self.show(kind, object, value, &Availability::local()).await?,
            }
        }
        // New ones are known before they are checked: a check may take seconds.
        let before = |remote: &RemoteVersion| {
            let old = known.iter().find(|old| old.name == remote.name);
            let old = old.filter(|old| old.endpoint == remote.endpoint);
            let (is_available, resources, openapi) = old.map_or_else(Default::default, |old| {
                (old.is_available, old.resources.clone(), old.openapi.clone())
            });
            Arc::new(RemoteVersion { is_available, resources, openapi, ..remote.clone() })
        };
        self.remotes().replace(checks.iter().map(|(.., remote)| before(remote)).collect());
        if checks.is_empty() {
            return Ok(None);
        }
        let before = &before;
        let checked = checks.into_iter().map(|(object, value, remote)| async move {
            let last = before(&remote);
            let (mut remote, availability) = self.check(remote, last.resources.clone()).await;
            remote.openapi = match remote.is_available {
                true => self.openapi_of(&remote, last.openapi.as_ref()).await,
                false => last.openapi.clone(),
            };
            (object, value, Arc::new(remote), availability)
        });
        let checked: Vec<_> =
            futures::stream::iter(checked).buffer_unordered(WRITES_MAX).collect().await;
        let is_complete = checked.iter().all(|(.., remote, _)| remote.is_available);
        // What a condition says holds when it is seen.
        self.remotes().replace(checked.iter().map(|(.., remote, _)| Arc::clone(remote)).collect());
        for (object, value, _, availability) in checked {
            self.show(kind, &object, value, &availability).await?;
        }
        Ok(Some(if is_complete { CHECK_EVERY } else { RETRY_EVERY }))
    }

    /// Asks an extension server for its discovery document; `last` are its resources of the last check.
    async fn check(
        &self,
        remote: RemoteVersion,
        last: Vec<Value>,
    ) -> (RemoteVersion, Availability) {
        let failed = |reason, message| {
            let remote = RemoteVersion { resources: last.clone(), ..remote.clone() };
            (remote, Availability::failed(reason, message))
        };
        let (namespace, name, port) = &remote.service;
        let services = self.cache().resource("/registry/core/services/");
        let service = self.cache().snapshot(&services).get(&format!("{namespace}/{name}")).cloned();
        let Some(service) = service.and_then(|service| tree(service.as_slice()).ok()) else {
            let message = format!("service/{name} in {namespace:?} is not present");
            return failed("ServiceNotFound", message);
        };
        let mut ports = service["spec"]["ports"].as_array().into_iter().flatten();
        let is_external = service["spec"]["type"] == "ExternalName";
        if !is_external && !ports.any(|found| found["port"] == *port) {
            let message =
                format!("service/{name} in {namespace:?} is not listening on port {port}");
            return failed("ServicePortError", message);
        }
        let endpoint = match &remote.endpoint {
            Ok(endpoint) => endpoint,
            Err(why) => return failed("FailedDiscoveryCheck", why.clone()),
        };
        let aggregator =
            Identity::authenticated("system:kube-aggregator", vec!["system:masters".to_owned()]);
        let path = format!("/apis/{}/{}", remote.group, remote.version);
        let asked = (path.as_str(), user_headers(&aggregator));
        match self.caller().document(self.cache(), endpoint, asked, CHECK_MAX).await {
            Ok(list) => {
                let resources = aggregated(&list, &remote.group, &remote.version);
                (RemoteVersion { is_available: true, resources, ..remote }, Availability::passed())
            }
            Err(why) if why.starts_with("no endpoints available") => {
                let message =
                    format!("endpoints for service/{name} in {namespace:?} have no addresses");
                failed("MissingEndpoints", message)
            }
            Err(why) => {
                let url = format!("https://{name}.{namespace}.svc:{port}{path}");
                let message = format!("failing or missing response from {url}: Get {url:?}: {why}");
                failed("FailedDiscoveryCheck", message)
            }
        }
    }

    /// The part of an extension server in the OpenAPI document of version 2. A server without such a
    /// document has none.
    async fn openapi_of(
        &self,
        remote: &RemoteVersion,
        last: Option<&Arc<Value>>,
    ) -> Option<Arc<Value>> {
        let endpoint = remote.endpoint.as_ref().ok()?;
        let aggregator =
            Identity::authenticated("system:aggregator", vec!["system:masters".to_owned()]);
        let asked = ("/openapi/v2", user_headers(&aggregator));
        let document = self.caller().document(self.cache(), endpoint, asked, CHECK_MAX).await;
        let prefix = format!("/apis/{}/{}/", remote.group, remote.version);
        let part = merge::part(&document.ok()?, &prefix)?;
        match last {
            Some(last) if **last == part => Some(Arc::clone(last)),
            _ => Some(Arc::new(part)),
        }
    }

    /// Writes the condition of an APIService, if it changed. A conflict is resolved by the next check.
    async fn show(
        &self,
        kind: &Served,
        object: &Object,
        mut value: Value,
        availability: &Availability,
    ) -> Result<(), Status> {
        if !availability.set(&mut value, || self.now()) {
            return Ok(());
        }
        let key = Key::in_collection(PREFIX, object.name());
        let guard = Guard::At(object.revision());
        commit::put(self.store(), kind, key, guard, canonical(&value).into()).await.map(drop)
    }
}
