//! The account that a pod runs as, and what the account gives it: a token, the cluster's authority
//! and its own namespace in a volume, secrets to pull images with (S10.23).
//!
//! River: defaults → **account** → webhooks. The reference refuses a pod whose account is not there;
//! here such a pod passes as it is, because a server by itself has nobody who makes accounts.

use headwater_api::Status;
use headwater_api::json::{Map, Value, json};
use headwater_cache::Cache;

use super::pods::{is_new_pod, spec};
use super::{Admit, Attempt};
use crate::object::tree;
use crate::random::generate_name;

/// The account of pods that name none.
const ACCOUNT: &str = "default";

/// Pods that a node runs on its own and only shows to us: their spec is not ours to change.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// What the names of token volumes begin with.
const VOLUME: &str = "kube-api-access-";

/// Where containers find their token.
const MOUNTED_AT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// How long a token is good: an hour, and seven seconds by which the reference knows it.
const TOKEN_SECONDS: i64 = 3607;

/// A pod that names no account runs as `default`.
pub(super) struct Account;

impl Admit for Account {
    fn admit(&self, attempt: &mut Attempt<'_>) -> Result<(), Status> {
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

/// The name of the account, in both fields that say it.
fn name_account(spec: &mut Map) -> String {
    let given = |key: &str| spec.get(key).and_then(Value::as_str).filter(|name| !name.is_empty());
    let name = given("serviceAccountName").or_else(|| given("serviceAccount"));
    let name = name.unwrap_or(ACCOUNT).to_owned();
    for key in ["serviceAccountName", "serviceAccount"] {
        spec.insert(key.into(), name.clone().into());
    }
    name
}

/// What an account gives to its pods.
struct Offer {
    has_token: bool,
    pull_secrets: Value,
}

impl Offer {
    /// Of an account, if it is there. Most say nothing about it, and are not read for that: stored
    /// bytes are canonical, and inside a string the quotes would be escaped.
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

/// Gives every container that has nothing there the token volume.
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

/// A list of an object; made if it is not there.
fn list<'a>(object: &'a mut Map, key: &str) -> &'a mut Vec<Value> {
    let list = object.entry(key).or_insert(Value::Null);
    if !list.is_array() {
        *list = Value::Array(Vec::new());
    }
    list.as_array_mut().expect("it was made a list above")
}

/// Removes a list that nothing was put into.
fn drop_empty(object: &mut Map, key: &str) {
    if object.get(key).and_then(Value::as_array).is_some_and(Vec::is_empty) {
        object.remove(key);
    }
}
