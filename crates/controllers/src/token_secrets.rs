//! Secrets with tokens: fills those of service accounts, and deletes expired bootstrap tokens.
//!
//! River: Secrets and service accounts → **token secrets** → token, `ca.crt`, namespace; deletions.
//! Promise: no key is needed: the server issues each token (`serviceaccounts/token`), bound to its
//! Secret, so that it ends with the Secret and with the account.

use std::collections::BTreeMap;
use std::sync::Arc;

use headwater_client::controller::{Context, Controller, Failure, Next, Prepared, Reconcile};
use headwater_client::{Cached, Error, Key};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::Api;
use kube::api::PostParams;
use serde_json::{Map, Value, json};

use crate::cluster::Cluster;
use crate::time::until;

/// The type of Secrets with the token of a service account.
const ACCOUNT_TOKEN: &str = "kubernetes.io/service-account-token";
/// The type of Secrets with a bootstrap token.
const BOOTSTRAP_TOKEN: &str = "bootstrap.kubernetes.io/token";
/// The annotations that name the account.
const ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";

/// The longest lifetime that a token may have: it ends with its Secret.
const LIFETIME_SECONDS: i64 = 1 << 32;

/// Fills the Secrets of service accounts.
pub(crate) fn prepare(cluster: &Cluster) -> Result<Prepared, Error> {
    let builder = cluster.factory().informer::<Secret>().named("secrets/account-token");
    let secrets = builder.fields(format!("type={ACCOUNT_TOKEN}")).open()?;
    let accounts = cluster.informer::<ServiceAccount>()?;
    let by_account = secrets.index("account", account_of)?;
    let tokens = TokenSecrets { root_ca: cluster.root_ca().map(str::to_owned) };
    Ok(Controller::new("serviceaccount-token", &secrets)
        .watches(&accounts, move |account: &ServiceAccount| {
            by_account
                .get(&account.key())
                .into_iter()
                .map(|secret| secret.key())
                .collect::<Vec<_>>()
        })
        .with(tokens))
}

/// The account that a Secret belongs to.
fn account_of(secret: &Secret) -> Option<Key> {
    let name = annotation(secret, ACCOUNT_NAME).filter(|name| !name.is_empty())?;
    Some(Key::namespaced(secret.namespace()?, name))
}

fn annotation<'a>(secret: &'a Secret, key: &str) -> Option<&'a str> {
    secret.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

struct TokenSecrets {
    root_ca: Option<String>,
}

impl Reconcile<Secret> for TokenSecrets {
    async fn reconcile(&self, secret: Arc<Secret>, cx: Context) -> Result<Next, Failure> {
        let Some(key) = account_of(&secret) else { return Ok(Next::Done) };
        if secret.metadata.deletion_timestamp.is_some() {
            return Ok(Next::Done);
        }
        let known = cx.lister::<ServiceAccount>()?.get_key(&key)?;
        let account = match known.filter(|account| belongs_to(&secret, account)) {
            Some(account) => account,
            // The cache may not have it yet; a Secret is deleted only for what the server says.
            None => match cx.of::<ServiceAccount>().get(&key).await? {
                Some(account) if belongs_to(&secret, &account) => Arc::new(account),
                _ => {
                    cx.of::<Secret>().delete_this(&secret).await?;
                    return Ok(Next::Done);
                }
            },
        };
        let mut data = missing(&secret, self.root_ca.as_deref());
        if !has_data(&secret, "token") {
            let token = token(&account, &secret, &cx).await?;
            data.insert("token".to_owned(), json!(ByteString(token.into_bytes())));
        }
        let is_named = annotation(&secret, ACCOUNT_UID) == Some(account.uid());
        if data.is_empty() && is_named {
            return Ok(Next::Done);
        }
        let patch = json!({
            "metadata": {
                "resourceVersion": secret.resource_version(),
                "annotations": { ACCOUNT_UID: account.uid() },
            },
            "data": data,
        });
        cx.of::<Secret>().merge(&secret.key(), &patch).await?;
        Ok(Next::Done)
    }
}

/// Whether a Secret is for this account, and not for an earlier one of the same name.
fn belongs_to(secret: &Secret, account: &ServiceAccount) -> bool {
    annotation(secret, ACCOUNT_UID).is_none_or(|uid| uid.is_empty() || uid == account.uid())
}

fn has_data(secret: &Secret, key: &str) -> bool {
    data(secret).and_then(|data| data.get(key)).is_some_and(|value| !value.0.is_empty())
}

fn data(secret: &Secret) -> Option<&BTreeMap<String, ByteString>> {
    secret.data.as_ref()
}

/// What a Secret lacks besides its token.
fn missing(secret: &Secret, root_ca: Option<&str>) -> Map<String, Value> {
    let wanted = [("namespace", secret.namespace()), ("ca.crt", root_ca)];
    let is_there = |key: &str, value: &str| {
        data(secret).and_then(|data| data.get(key)).is_some_and(|held| held.0 == value.as_bytes())
    };
    let wanted = wanted.into_iter().filter_map(|(key, value)| Some((key, value?)));
    let lacking = wanted.filter(|(key, value)| !is_there(key, value));
    lacking.map(|(key, value)| (key.to_owned(), json!(ByteString(value.into())))).collect()
}

async fn token(account: &ServiceAccount, secret: &Secret, cx: &Context) -> Result<String, Failure> {
    let request = TokenRequest {
        spec: Some(TokenRequestSpec {
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Secret".to_owned()),
                name: Some(secret.name().to_owned()),
                uid: Some(secret.uid().to_owned()),
            }),
            expiration_seconds: Some(LIFETIME_SECONDS),
            ..TokenRequestSpec::default()
        }),
        ..TokenRequest::default()
    };
    let namespace = account.namespace().unwrap_or_default();
    let accounts = Api::<ServiceAccount>::namespaced(cx.calls().kube_client(), namespace);
    let parameters = PostParams::default();
    let made = accounts.create_token_request(account.name(), &parameters, &request).await?;
    let token = made.status.and_then(|status| status.token);
    token.ok_or_else(|| Failure::text("the server issued no token"))
}

/// Deletes expired bootstrap tokens.
pub(crate) fn prepare_cleaner(cluster: &Cluster) -> Result<Prepared, Error> {
    let builder = cluster.factory().informer::<Secret>().named("secrets/bootstrap-token");
    let secrets = builder.fields(format!("type={BOOTSTRAP_TOKEN}")).open()?;
    let clock = Arc::clone(cluster.clock());
    let reconcile = move |secret: Arc<Secret>, cx: Context| {
        let now = clock.now();
        async move {
            let Some(due) = expiry(&secret) else { return Ok::<Next, Failure>(Next::Done) };
            if now < due {
                return Ok(Next::After(until(now, due)));
            }
            cx.of::<Secret>().delete_this(&secret).await?;
            Ok(Next::Done)
        }
    };
    Ok(Controller::new("tokencleaner", &secrets).with(reconcile))
}

/// When a bootstrap token expires; one with an unreadable time has expired.
fn expiry(secret: &Secret) -> Option<Timestamp> {
    if secret.namespace() != Some("kube-system") {
        return None;
    }
    let text = data(secret)?.get("expiration").filter(|text| !text.0.is_empty())?;
    let time = std::str::from_utf8(&text.0).ok().and_then(|text| text.trim().parse().ok());
    Some(time.unwrap_or(Timestamp::MIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(value: Value) -> Secret {
        let mut object = json!({"metadata": {"name": "s", "namespace": "kube-system"}});
        crate::fixture::merge(&mut object, &value);
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_bootstrap_token_without_a_time_stays_and_one_with_a_broken_time_goes() {
        let check = |text: &str, expected: Option<&str>| {
            let found = expiry(&secret(json!({"data": {"expiration": ByteString(text.into())}})));
            assert_eq!(found, expected.map(|time| time.parse().unwrap()), "{text}");
        };
        check("", None);
        check("2026-01-01T00:00:00Z", Some("2026-01-01T00:00:00Z"));
        check("2026-01-01T02:00:00+02:00", Some("2026-01-01T00:00:00Z"));
        check("soon", Some(&Timestamp::MIN.to_string()));
        let elsewhere =
            json!({"metadata": {"namespace": "ns"}, "data": {"expiration": "c29vbg=="}});
        assert_eq!(expiry(&secret(elsewhere)), None);
    }

    #[test]
    fn only_what_is_missing_is_written() {
        let keys = |object: Value, ca: Option<&str>| -> Vec<String> {
            missing(&secret(object), ca).into_iter().map(|(key, _)| key).collect()
        };
        assert_eq!(keys(json!({}), Some("ca")), ["ca.crt", "namespace"]);
        assert_eq!(keys(json!({}), None), ["namespace"]);
        let full = json!({"data": {
            "ca.crt": ByteString("ca".into()), "namespace": ByteString("kube-system".into()),
        }});
        assert!(keys(full.clone(), Some("ca")).is_empty());
        assert_eq!(keys(full, Some("new")), ["ca.crt"]);
    }
}
