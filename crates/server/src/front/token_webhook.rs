//! Webhook token authentication: another program says who a token belongs to (S8.18).
//!
//! River: bearer token → **token webhook** → identity. Promise: answers are kept for a while, by the
//! digest of the token; neither tokens nor the text of an answer are logged.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use headwater_cache::Cache;
use headwater_json::{Value, json};
use tokio::time::Instant;

use crate::front::compare::{SecretDigest, sha256};
use crate::front::identity::Identity;
use crate::lock::lock;
use crate::outgoing::upstream::{ReviewKind, ReviewTarget, Upstream};
use crate::outgoing::{Caller, kubeconfig};

/// How long a call may take.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum number of answers that are kept.
const ANSWERS_MAX: usize = 4096;

/// A webhook for tokens.
#[derive(Debug)]
pub struct TokenWebhook {
    target: ReviewTarget,
    keep: Duration,
    answers: Mutex<HashMap<SecretDigest, KeptAnswer>>,
}

#[derive(Clone, Debug)]
struct KeptAnswer {
    user: Option<WebhookUser>,
    until: Instant,
}

/// A user that the webhook named, and the audiences for which it did.
#[derive(Clone, Debug)]
pub(crate) struct WebhookUser {
    pub(crate) identity: Arc<Identity>,
    pub(crate) audiences: Vec<String>,
}

/// The kubeconfig of the webhook cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the token webhook: {0}")]
pub struct WebhookUnusable(String);

impl TokenWebhook {
    /// The webhook of a kubeconfig; its answers are kept for a time.
    pub fn open(path: &Path, keep: Duration) -> Result<TokenWebhook, WebhookUnusable> {
        let endpoint = kubeconfig::endpoint(path).map_err(WebhookUnusable)?;
        let target = ReviewTarget::Webhook(Box::new(endpoint));
        Ok(TokenWebhook { target, keep, answers: Mutex::default() })
    }

    /// The upstream of a relay, which knows its own tokens.
    pub fn upstream(upstream: Arc<dyn Upstream>, keep: Duration) -> TokenWebhook {
        TokenWebhook { target: ReviewTarget::Upstream(upstream), keep, answers: Mutex::default() }
    }

    pub(crate) fn is_upstream(&self) -> bool {
        self.target.is_upstream()
    }

    /// The user of a token for any of these audiences; `None` if the webhook does not know it, or
    /// does not answer.
    pub(crate) async fn identify(
        &self,
        token: &str,
        audiences: &[String],
        own: &str,
        (caller, cache): (&Caller, &Cache),
    ) -> Option<WebhookUser> {
        let key = sha256(json!([token, audiences]).to_string().as_bytes());
        let now = Instant::now();
        if let Some(kept) = lock(&self.answers).get(&key).filter(|kept| now < kept.until) {
            return kept.user.clone();
        }
        // An API server that is asked for no audience means itself.
        let asked = if self.is_upstream() { &[] } else { audiences };
        let review = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
            "metadata": { "creationTimestamp": null },
            "spec": { "token": token, "audiences": asked },
        });
        let body = review.to_string().into_bytes();
        let sent = self.target.send(ReviewKind::Token, body, TIMEOUT, (caller, cache));
        let mut answer = match sent.await {
            Ok(answer) => answer,
            Err(why) => {
                tracing::error!(why, "the token webhook cannot be called");
                return None;
            }
        };
        if self.is_upstream() {
            answer["status"]["audiences"] = json!([own]);
        }
        let user = read(&answer["status"], audiences, own);
        self.keep(key, KeptAnswer { user: user.clone(), until: Instant::now() + self.keep });
        user
    }

    fn keep(&self, key: SecretDigest, answer: KeptAnswer) {
        if self.keep.is_zero() {
            return;
        }
        let mut answers = lock(&self.answers);
        if answers.len() >= ANSWERS_MAX {
            let now = Instant::now();
            answers.retain(|_, kept| now < kept.until);
        }
        if answers.len() >= ANSWERS_MAX {
            answers.clear();
        }
        answers.insert(key, answer);
    }
}

/// The user in the status of a review.
fn read(status: &Value, wanted: &[String], own: &str) -> Option<WebhookUser> {
    if status["authenticated"] != true {
        return None;
    }
    let texts = |list: &Value| -> Vec<String> {
        let all = list.as_array().into_iter().flatten();
        all.filter_map(|text| text.as_str().map(str::to_owned)).collect()
    };
    let user = &status["user"];
    let name = user["username"].as_str().filter(|name| !name.is_empty())?;
    let mut identity = Identity::authenticated(name, texts(&user["groups"]));
    identity.uid = user["uid"].as_str().unwrap_or_default().to_owned();
    for (key, values) in user["extra"].as_object().into_iter().flatten() {
        identity.extra.insert(key.as_str().to_owned(), texts(values));
    }
    // A webhook that knows nothing of audiences speaks for this server.
    let named = match texts(&status["audiences"]) {
        none if none.is_empty() => vec![own.to_owned()],
        named => named,
    };
    let audiences: Vec<String> =
        named.into_iter().filter(|audience| wanted.contains(audience)).collect();
    (!audiences.is_empty()).then(|| WebhookUser { identity: Arc::new(identity), audiences })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S8.18
    #[test]
    fn an_answer_is_read_for_the_wanted_audiences() {
        let user = json!({
            "username": "alice", "uid": "7", "groups": ["dev"], "extra": { "scopes": ["a"] },
        });
        let check = |status: Value, expected: Option<&[&str]>| {
            let wanted = ["own".to_owned(), "vault".to_owned()];
            let found = read(&status, &wanted, "own");
            assert_eq!(found.is_some(), expected.is_some(), "{status}");
            let Some(found) = found else { return };
            assert_eq!((found.identity.user.as_str(), found.identity.uid.as_str()), ("alice", "7"));
            assert_eq!(found.identity.groups, ["dev", "system:authenticated"]);
            assert_eq!(found.identity.extra["scopes"], ["a"]);
            assert_eq!(found.audiences, expected.unwrap());
        };
        check(json!({ "authenticated": true, "user": user }), Some(&["own"]));
        let both = json!({ "authenticated": true, "user": user, "audiences": ["x", "vault"] });
        check(both, Some(&["vault"]));
        check(json!({ "authenticated": true, "user": user, "audiences": ["x"] }), None);
        check(json!({ "authenticated": false, "user": user }), None);
        check(json!({ "authenticated": "true", "user": user }), None);
        check(json!({ "authenticated": true, "user": { "groups": ["system:masters"] } }), None);
        check(json!(null), None);
    }
}
