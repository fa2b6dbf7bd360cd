//! The service account of a new pod: its name, token volume and image pull secrets (S10.23).
//!
//! River: defaults → **account** → webhooks. As in Kubernetes, a pod whose account does not exist is
//! refused; but only where controllers create accounts, or a flag asks for it. Elsewhere the pod is
//! admitted unchanged.

use std::time::Duration;

use headwater_api::Status;
use headwater_cache::Cache;
use headwater_json::{Map, Value, json};

use super::pods::{is_new_pod, spec};
use super::{Admit, Attempt};
use crate::answer::status;
use crate::object::{meta, tree};
use crate::random::generate_name;
use crate::request::authorize::node::references::MIRROR;

/// The account of pods that name none.
const ACCOUNT: &str = "default";

/// The name prefix of token volumes.
const VOLUME: &str = "kube-api-access-";

/// The mount path of the token.
const MOUNTED_AT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The lifetime of a token: an hour and seven seconds, by which Kubernetes recognizes it.
const TOKEN_SECONDS: i64 = 3607;

/// A pod that names no account runs as `default`.
pub(super) struct Account;

impl Admit for Account {
    fn admit(&self, attempt: &mut Attempt<'_>) -> Result<(), Status> {
        // A node runs a mirror pod on its own; its spec must not change.
        let is_mirror = attempt.new["metadata"]["annotations"].get(MIRROR).is_some();
        if !is_new_pod(attempt) || is_mirror {
            return Ok(());
        }
        let (cache, namespace) = (attempt.cache, attempt.namespace);
        let Some(spec) = spec(attempt) else { return Ok(()) };
        let account = Offer::of(cache, namespace, &name_account(spec))?;
        if let Some(offer) = account {
            offer.give(spec);
        }
        Ok(())
    }
}

/// How often, and at which intervals, the account `default` is looked for: a controller creates it
/// soon after its namespace.
const ATTEMPTS: u32 = 10;
const INTERVAL: Duration = Duration::from_millis(150);

/// Refuses a pod whose account does not exist, and a mirror pod that names one.
pub(super) async fn check(attempt: &Attempt<'_>) -> Result<(), Status> {
    let pod = &attempt.new;
    let spec = &pod["spec"];
    let given = |key: &str| spec[key].as_str().filter(|name| !name.is_empty());
    let name = given("serviceAccountName").or_else(|| given("serviceAccount"));
    let refuse = |why: &str| Err(status::forbidden("", "pods", meta(pod, "name"), why));
    if pod["metadata"]["annotations"].get(MIRROR).is_some() {
        return match name {
            Some(_) => refuse("a mirror pod may not reference service accounts"),
            None => Ok(()),
        };
    }
    let name = name.unwrap_or(ACCOUNT);
    let resource = attempt.cache.resource("/registry/core/serviceaccounts/");
    let key = format!("{}/{name}", attempt.namespace);
    let attempts = if name == ACCOUNT { ATTEMPTS } else { 1 };
    for round in 0..attempts {
        if round > 0 {
            tokio::time::sleep(INTERVAL).await;
        }
        if attempt.cache.snapshot(&resource).get(&key).is_some() {
            return Ok(());
        }
    }
    refuse(&format!("error looking up service account {key}: serviceaccount {name:?} not found"))
}

/// Sets the name of the account in both fields that contain it.
fn name_account(spec: &mut Map) -> String {
    let given = |key: &str| spec.get(key).and_then(Value::as_str).filter(|name| !name.is_empty());
    let name = given("serviceAccountName").or_else(|| given("serviceAccount"));
    let name = name.unwrap_or(ACCOUNT).to_owned();
    for key in ["serviceAccountName", "serviceAccount"] {
        spec.insert(key.into(), name.clone().into());
    }
    name
}

/// The additions of an account to its pods.
struct Offer {
    has_token: bool,
    pull_secrets: Value,
}

impl Offer {
    /// The additions of an account, if it exists. Most accounts set none of these fields and are not
    /// parsed: stored bytes are canonical, so a key is found as quoted text.
    fn of(cache: &Cache, namespace: &str, name: &str) -> Result<Option<Offer>, Status> {
        let accounts = cache.snapshot(&cache.resource("/registry/core/serviceaccounts/"));
        let Some(account) = accounts.get(&format!("{namespace}/{name}")) else { return Ok(None) };
        let says = |key: &str| {
            std::str::from_utf8(account.as_slice()).is_ok_and(|text| text.contains(key))
        };
        if !says("\"automountServiceAccountToken\"") && !says("\"imagePullSecrets\"") {
            return Ok(Some(Offer { has_token: true, pull_secrets: Value::Null }));
        }
        let mut account = tree(account.as_slice())?;
        let has_token = account["automountServiceAccountToken"] != false;
        Ok(Some(Offer { has_token, pull_secrets: account["imagePullSecrets"].take() }))
    }

    fn give(self, spec: &mut Map) {
        let wanted = spec.get("automountServiceAccountToken").and_then(Value::as_bool);
        if wanted.unwrap_or(self.has_token) {
            mount_token(spec);
        }
        let offered = self.pull_secrets.as_array().is_some_and(|secrets| !secrets.is_empty());
        if offered && list(spec, "imagePullSecrets").is_empty() {
            spec.insert("imagePullSecrets".into(), self.pull_secrets);
        }
    }
}

/// Mounts the token volume into every container that has no mount at that path.
fn mount_token(spec: &mut Map) {
    let names = list(spec, "volumes").iter().filter_map(|volume| volume["name"].as_str());
    let known = names.into_iter().find(|name| name.starts_with(VOLUME)).map(str::to_owned);
    let is_known = known.is_some();
    let volume = known.unwrap_or_else(|| generate_name(VOLUME));
    let mut is_needed = false;
    for key in ["initContainers", "containers"] {
        for container in list(spec, key).iter_mut().filter_map(Value::as_object_mut) {
            let mounts = list(container, "volumeMounts");
            if mounts.iter().all(|mount| mount["mountPath"] != MOUNTED_AT) {
                mounts.push(json!({ "name": volume, "readOnly": true, "mountPath": MOUNTED_AT }));
                is_needed = true;
            }
            drop_empty(container, "volumeMounts");
        }
        drop_empty(spec, key);
    }
    if is_needed && !is_known {
        list(spec, "volumes").push(token_volume(&volume));
    }
    drop_empty(spec, "volumes");
}

fn token_volume(name: &str) -> Value {
    let field = json!({ "apiVersion": "v1", "fieldPath": "metadata.namespace" });
    json!({
        "name": name,
        "projected": {
            "sources": [
                { "serviceAccountToken": { "expirationSeconds": TOKEN_SECONDS, "path": "token" } },
                { "configMap": {
                    "name": "kube-root-ca.crt", "items": [{ "key": "ca.crt", "path": "ca.crt" }],
                } },
                { "downwardAPI": { "items": [{ "path": "namespace", "fieldRef": field }] } },
            ],
            "defaultMode": 420,
        },
    })
}

/// A list of an object; added if absent.
fn list<'a>(object: &'a mut Map, key: &str) -> &'a mut Vec<Value> {
    let list = object.entry(key).or_insert(Value::Null);
    if !list.is_array() {
        *list = Value::Array(Vec::new());
    }
    list.as_array_mut().expect("it was made a list above")
}

/// Removes an empty list.
fn drop_empty(object: &mut Map, key: &str) {
    if object.get(key).and_then(Value::as_array).is_some_and(Vec::is_empty) {
        object.remove(key);
    }
}
