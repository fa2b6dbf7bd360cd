//! Credentials of other programs: OIDC issuers, webhooks, bootstrap tokens, tokens in Secrets.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use headwater_api::SystemClock;
use headwater_json::{Value, json};
use headwater_server::authenticator::Authenticator;
use headwater_server::oidc::config::AuthenticationConfiguration;
use headwater_server::oidc::file::Authentication;
use headwater_server::pki::{self, Pki, Secret};
use headwater_server::token_file::Tokens;
use headwater_server::token_webhook::TokenWebhook;
use jiff::Timestamp;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};

use crate::api::{Answer, Api, NOW};
use crate::https::TestHttps;

const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const SELF: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const OWN: &str = "https://kubernetes.default.svc.cluster.local";

fn encoded(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// A key that signs tokens.
struct SigningKey {
    id: String,
    pair: EcdsaKeyPair,
}

impl SigningKey {
    fn new(id: &str) -> SigningKey {
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let random = SystemRandom::new();
        let made = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, made.as_ref(), &random).unwrap();
        SigningKey { id: id.to_owned(), pair }
    }

    /// The key of a server.
    fn of(secret: &Secret) -> SigningKey {
        let pair = rcgen::KeyPair::from_pem(secret.reveal()).unwrap().serialize_der();
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, &pair, &SystemRandom::new()).unwrap();
        SigningKey { id: String::new(), pair }
    }

    fn published(&self) -> Value {
        let point = &self.pair.public_key().as_ref()[1..];
        json!({
            "kty": "EC", "crv": "P-256", "kid": self.id, "alg": "ES256", "use": "sig",
            "x": encoded(&point[..32]), "y": encoded(&point[32..]),
        })
    }

    fn sign(&self, claims: &Value) -> String {
        let header = match self.id.as_str() {
            "" => json!({ "alg": "ES256" }),
            id => json!({ "alg": "ES256", "kid": id }),
        };
        self.sign_with(&header, claims)
    }

    fn sign_with(&self, header: &Value, claims: &Value) -> String {
        let message = format!("{}.{}", encoded(header.to_string()), encoded(claims.to_string()));
        let signature = self.pair.sign(&SystemRandom::new(), message.as_bytes()).unwrap();
        format!("{message}.{}", encoded(signature))
    }
}

/// A small real issuer: discovery, keys, tokens.
struct TestIssuer {
    https: TestHttps,
    keys: Arc<Mutex<Vec<Value>>>,
    /// Whether it answers with errors.
    is_down: Arc<Mutex<bool>>,
}

impl TestIssuer {
    async fn start(keys: &[&SigningKey]) -> TestIssuer {
        let keys: Vec<Value> = keys.iter().map(|key| key.published()).collect();
        let keys = Arc::new(Mutex::new(keys));
        let is_down = Arc::new(Mutex::new(false));
        let (published, down) = (Arc::clone(&keys), Arc::clone(&is_down));
        let https = TestHttps::start(move |url| {
            let url = url.to_owned();
            Box::new(move |path, _| match path {
                _ if *down.lock().unwrap() => (503, json!({})),
                "/.well-known/openid-configuration" => {
                    (200, json!({ "issuer": url, "jwks_uri": format!("{url}/keys") }))
                }
                "/keys" => (200, json!({ "keys": *published.lock().unwrap() })),
                _ => (404, json!({})),
            })
        })
        .await;
        TestIssuer { https, keys, is_down }
    }

    /// Claims of a user that are valid now.
    fn claims(&self, change: Value) -> Value {
        let mut claims = json!({
            "iss": self.https.url, "aud": "headwater", "sub": "alice", "roles": ["dev"],
            "iat": now(), "nbf": now(), "exp": now() + 600, "jti": "7",
        });
        for (key, value) in change.as_object().unwrap() {
            match value {
                Value::Null => drop(claims.as_object_mut().unwrap().remove(key.as_str())),
                value => claims[key.as_str()] = value.clone(),
            }
        }
        claims
    }

    fn config(&self) -> Value {
        json!({
            "issuer": {
                "url": self.https.url, "audiences": ["headwater"],
                "certificateAuthority": self.https.authority,
            },
            "claimMappings": {
                "username": { "claim": "sub", "prefix": "oidc:" },
                "groups": { "claim": "roles", "prefix": "oidc:" },
            },
            "userValidationRules": [
                { "expression": "!user.username.startsWith('oidc:system:')", "message": "reserved" },
            ],
        })
    }
}

fn now() -> i64 {
    NOW.parse::<Timestamp>().unwrap().as_second()
}

fn authentication(jwt: &[Value]) -> Authentication {
    let file = json!({
        "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration",
        "jwt": jwt,
    });
    let read = AuthenticationConfiguration::parse(file.to_string().as_bytes()).unwrap();
    Authentication::new(read).unwrap()
}

fn key() -> Secret {
    Secret::new(rcgen::KeyPair::generate().unwrap().serialize_pem())
}

async fn accepting(authenticator: Authenticator) -> Api {
    Api::accepting(authenticator, &key()).await
}

async fn ask(api: &Api, token: &str) -> Answer {
    let head =
        format!("POST {SELF}\nContent-Type: application/json\nAuthorization: Bearer {token}");
    api.as_anonymous().send(&head, "{}").await
}

/// The user of a token; `None` for 401.
async fn user(api: &Api, token: &str) -> Option<Value> {
    let answer = ask(api, token).await;
    match answer.code {
        201 => Some(answer.json()["status"]["userInfo"].clone()),
        401 => {
            assert_eq!(answer.json()["message"], "Unauthorized");
            None
        }
        other => panic!("{other}: {}", answer.text()),
    }
}

/// Lets the time pass after which the keys of an issuer may be fetched again.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// S8.16, S8.14, B072
#[tokio::test]
async fn a_token_of_an_issuer_names_its_user() {
    let (first, second) = (SigningKey::new("a"), SigningKey::new("b"));
    let (one, two) = (TestIssuer::start(&[&first]).await, TestIssuer::start(&[&second]).await);
    let tokens = Tokens::parse("static,bob,1\n").unwrap();
    let issuers = authentication(&[one.config(), two.config()]);
    let api = accepting(Authenticator::new(tokens).with_authentication(issuers)).await;

    let token = first.sign(&one.claims(json!({})));
    let found = user(&api, &token).await.unwrap();
    let expected = json!({
        "username": "oidc:alice", "groups": ["oidc:dev", "system:authenticated"],
        "extra": { "authentication.kubernetes.io/credential-id": ["JTI=7"] },
    });
    assert_eq!(found, expected);
    let other = second.sign(&two.claims(json!({ "aud": ["x", "headwater"], "sub": "carol" })));
    assert_eq!(user(&api, &other).await.unwrap()["username"], "oidc:carol");
    assert_eq!(user(&api, "static").await.unwrap()["username"], "bob");

    let review = async |token: &str, audiences: Value| {
        let spec = json!({ "spec": { "token": token, "audiences": audiences } });
        api.create(REVIEWS, &spec).await["status"].clone()
    };
    let known = review(&token, json!([])).await;
    assert_eq!((&known["authenticated"], &known["audiences"]), (&json!(true), &json!([OWN])));
    assert_eq!(known["user"]["username"], "oidc:alice");
    // The audience of a review is one of this server, not one of the issuer.
    assert_eq!(review(&token, json!(["headwater"])).await["authenticated"], Value::Null);

    let signed = |change: Value| first.sign(&one.claims(change));
    let es = |claims: Value| encoded(claims.to_string());
    let parts: Vec<&str> = token.split('.').collect();
    let none = encoded(r#"{"alg":"none"}"#);
    let public = first.pair.public_key().as_ref();
    let hmac_head = encoded(r#"{"alg":"HS256","kid":"a"}"#);
    let hmac_message = format!("{hmac_head}.{}", parts[1]);
    let hmac = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, public);
    let keyed = encoded(ring::hmac::sign(&hmac, hmac_message.as_bytes()));
    for (what, wrong) in [
        ("expired", signed(json!({ "exp": now() }))),
        ("no expiry", signed(json!({ "exp": null }))),
        ("expiry is text", signed(json!({ "exp": "9999999999" }))),
        ("not yet", signed(json!({ "nbf": now() + 61 }))),
        ("another audience", signed(json!({ "aud": "other" }))),
        ("no audience", signed(json!({ "aud": null }))),
        ("unknown issuer", signed(json!({ "iss": "https://127.0.0.1:1" }))),
        ("issuer as a prefix", signed(json!({ "iss": format!("{}/", one.https.url) }))),
        ("the key of the other issuer", second.sign(&one.claims(json!({})))),
        ("a token of the other issuer's key", first.sign(&two.claims(json!({})))),
        ("a rule", signed(json!({ "sub": "system:admin" }))),
        ("no name", signed(json!({ "sub": null }))),
        ("our own issuer", signed(json!({ "iss": OWN }))),
        ("alg none", format!("{none}.{}.", parts[1])),
        ("alg none, signed", format!("{none}.{}.{}", parts[1], parts[2])),
        ("public key as a secret", format!("{hmac_message}.{keyed}")),
        (
            "changed claims",
            format!("{}.{}.{}", parts[0], es(one.claims(json!({"sub": "eve"}))), parts[2]),
        ),
        ("cut off", format!("{}.{}", parts[0], parts[1])),
    ] {
        assert_eq!(user(&api, &wrong).await, None, "{what}");
        let refused = review(&wrong, json!([])).await;
        assert_eq!(refused["authenticated"], Value::Null, "{what}");
        let why = refused["error"].as_str().unwrap();
        assert!(!why.contains(parts[1]) && !why.contains(parts[2]), "{what}: {why}");
    }
}

/// S8.16
#[tokio::test]
async fn keys_are_fetched_when_they_change_and_not_more_often() {
    let (first, second) = (SigningKey::new("a"), SigningKey::new("b"));
    let issuer = TestIssuer::start(&[&first]).await;
    let issuers = authentication(&[issuer.config()]);
    let api = accepting(Authenticator::new(Tokens::default()).with_authentication(issuers)).await;
    assert_eq!(issuer.https.count("/keys"), 0, "nobody asked yet");
    let old = first.sign(&issuer.claims(json!({})));
    let new = second.sign(&issuer.claims(json!({})));
    let (a, b) = tokio::join!(user(&api, &old), user(&api, &old));
    assert!(a.is_some() && b.is_some());
    assert_eq!(issuer.https.count("/keys"), 1, "requests share a fetch");

    // Unknown keys cost one fetch per interval, however many tokens arrive.
    for _ in 0..20 {
        assert_eq!(user(&api, &new).await, None);
    }
    assert_eq!(issuer.https.count("/keys"), 1);
    *issuer.keys.lock().unwrap() = vec![first.published(), second.published()];
    pass(Duration::from_secs(10)).await;
    assert!(user(&api, &new).await.is_some() && user(&api, &old).await.is_some());
    assert_eq!(issuer.https.count("/keys"), 2);

    // A withdrawn key ends when the keys are old, and an issuer that is down changes nothing.
    *issuer.is_down.lock().unwrap() = true;
    pass(Duration::from_secs(600)).await;
    assert!(user(&api, &old).await.is_some());
    *issuer.is_down.lock().unwrap() = false;
    *issuer.keys.lock().unwrap() = vec![second.published()];
    pass(Duration::from_secs(60)).await;
    assert_eq!(user(&api, &old).await, None);
    assert!(user(&api, &new).await.is_some());
}

/// S8.16
#[tokio::test]
async fn an_issuer_that_cannot_be_trusted_has_no_users() {
    let key = SigningKey::new("a");
    let issuer = TestIssuer::start(&[&key]).await;
    let token = key.sign(&issuer.claims(json!({})));
    let with = async |change: (&str, Value)| {
        let mut config = issuer.config();
        config["issuer"][change.0] = change.1;
        let issuers = authentication(&[config]);
        let known = Authenticator::new(Tokens::default()).with_authentication(issuers);
        user(&accepting(known).await, &token).await
    };
    assert!(with(("audiences", json!(["headwater"]))).await.is_some());
    // The certificate is of another authority.
    let other =
        Pki::in_memory(&pki::names("127.0.0.1".parse().unwrap(), &[]), &SystemClock).unwrap();
    assert_eq!(with(("certificateAuthority", json!(other.ca))).await, None);
    // The discovery document is one of another issuer.
    let impostor = TestIssuer::start(&[&key]).await;
    let discovery = format!("{}/.well-known/openid-configuration", impostor.https.url);
    let mut config = issuer.config();
    config["issuer"]["discoveryURL"] = discovery.into();
    config["issuer"]["certificateAuthority"] = impostor.https.authority.clone().into();
    let issuers = authentication(&[config]);
    let known = Authenticator::new(Tokens::default()).with_authentication(issuers);
    assert_eq!(user(&accepting(known).await, &token).await, None);
    assert_eq!(impostor.https.count("/keys"), 0);
}

/// S8.18
#[tokio::test]
async fn a_webhook_is_asked_for_tokens_that_nothing_else_knows() {
    let https = TestHttps::start(|_| {
        Box::new(|path, review| {
            let token = review["spec"]["token"].as_str().unwrap();
            assert_eq!((path, &review["kind"]), ("/review", &json!("TokenReview")));
            assert_eq!(review["spec"]["audiences"], json!([OWN]));
            match token {
                "alice-token" => {
                    let user = json!({ "username": "alice", "groups": ["dev"] });
                    (200, json!({ "status": { "authenticated": true, "user": user } }))
                }
                "broken" => (500, review.clone()),
                _ => (200, json!({ "status": { "authenticated": false } })),
            }
        })
    })
    .await;
    let directory = tempfile::tempdir().unwrap();
    let path = https.kubeconfig(directory.path(), "/review");
    let webhook = TokenWebhook::open(&path, Duration::from_secs(120)).unwrap();
    let tokens = Tokens::parse("static,bob,1\n").unwrap();
    let api = accepting(Authenticator::new(tokens).with_webhook(webhook)).await;

    assert_eq!(user(&api, "static").await.unwrap()["username"], "bob");
    assert_eq!(https.count("/review"), 0);
    for _ in 0..3 {
        let found = user(&api, "alice-token").await.unwrap();
        assert_eq!(found["groups"], json!(["dev", "system:authenticated"]));
        assert_eq!(user(&api, "unknown").await, None);
    }
    assert_eq!(https.count("/review"), 2, "answers are kept");
    // An error is not an answer.
    for _ in 0..2 {
        assert_eq!(user(&api, "broken").await, None);
    }
    assert_eq!(https.count("/review"), 4);
    pass(Duration::from_secs(120)).await;
    assert!(user(&api, "alice-token").await.is_some());
    assert_eq!(https.count("/review"), 5);
    drop(https);
    assert!(user(&api, "alice-token").await.is_some(), "the kept answer needs no webhook");
    pass(Duration::from_secs(120)).await;
    assert_eq!(user(&api, "alice-token").await, None);
}

const SECRETS: &str = "/api/v1/namespaces/ns/secrets";

fn data(pairs: &[(&str, &str)]) -> Value {
    let pairs = pairs.iter().map(|(key, value)| (*key, Value::from(STANDARD.encode(value))));
    Value::from_iter(pairs)
}

/// S8.17
#[tokio::test(start_paused = true)]
async fn a_bootstrap_token_lives_as_long_as_its_secret() {
    let secrets = "/api/v1/namespaces/kube-system/secrets";
    let token = "abcdef.0123456789abcdef";
    let secret = json!({
        "metadata": { "name": "bootstrap-token-abcdef" }, "type": "bootstrap.kubernetes.io/token",
        "data": data(&[
            ("token-id", "abcdef"), ("token-secret", "0123456789abcdef"),
            ("usage-bootstrap-authentication", "true"), ("expiration", "2026-01-03T00:00:00Z"),
            ("auth-extra-groups", "system:bootstrappers:kubeadm"),
        ]),
    });
    let with = Authenticator::new(Tokens::default()).with_bootstrap_tokens();
    let api = accepting(with).await;
    assert_eq!(user(&api, token).await, None);
    api.create(secrets, &secret).await;
    let path = format!("{secrets}/bootstrap-token-abcdef");
    assert_eq!(api.get(&path).await.code, 200); // until the cache is current
    let found = user(&api, token).await.unwrap();
    assert_eq!(found["username"], "system:bootstrap:abcdef");
    let groups = ["system:bootstrappers", "system:bootstrappers:kubeadm", "system:authenticated"];
    assert_eq!(found["groups"], json!(groups));
    assert_eq!(user(&api, "abcdef.0123456789abcdeg").await, None);
    let late = json!({ "data": data(&[("expiration", "2026-01-01T00:00:00Z")]) });
    assert_eq!(api.merge(&path, &late).await.code, 200);
    assert_eq!(api.get(&path).await.code, 200); // until the cache is current
    assert_eq!(user(&api, token).await, None);
    let back = json!({ "data": data(&[("expiration", "2026-01-03T00:00:00Z")]) });
    assert_eq!(api.merge(&path, &back).await.code, 200);
    assert_eq!(api.get(&path).await.code, 200);
    assert!(user(&api, token).await.is_some());
    api.delete(&path).await.is(200, "");
    assert_eq!(api.get(&path).await.code, 404);
    assert_eq!(user(&api, token).await, None);

    // They are off by default.
    let without = accepting(Authenticator::new(Tokens::default())).await;
    without.create(secrets, &secret).await;
    assert_eq!(user(&without, token).await, None);
}

/// S2.55
#[tokio::test(start_paused = true)]
async fn a_token_in_a_secret_is_valid_as_long_as_the_secret_contains_it() {
    let key = key();
    let signer = SigningKey::of(&key);
    let api = Api::accepting(Authenticator::new(Tokens::default()), &key).await;
    let accounts = "/api/v1/namespaces/ns/serviceaccounts";
    let account = api.create(accounts, &json!({ "metadata": { "name": "robot" } })).await;
    let uid = account["metadata"]["uid"].as_str().unwrap();
    let claims = |change: &[(&str, &str)]| {
        let prefix = "kubernetes.io/serviceaccount";
        let mut claims = json!({
            "iss": "kubernetes/serviceaccount", "sub": "system:serviceaccount:ns:robot",
        });
        let own = [
            ("namespace", "ns"),
            ("secret.name", "s"),
            ("service-account.name", "robot"),
            ("service-account.uid", uid),
        ];
        for (key, value) in own.iter().chain(change) {
            match *key {
                "sub" | "iss" => claims[*key] = (*value).into(),
                key => claims[format!("{prefix}/{key}")] = (*value).into(),
            }
        }
        claims
    };
    let token = signer.sign(&claims(&[]));
    assert_eq!(user(&api, &token).await, None, "no Secret contains it");
    let secret = json!({ "metadata": { "name": "s" }, "data": data(&[("token", &token)]) });
    api.create(SECRETS, &secret).await;
    assert_eq!(api.get(&format!("{SECRETS}/s")).await.code, 200); // until the cache is current
    let found = user(&api, &token).await.unwrap();
    assert_eq!(found["username"], "system:serviceaccount:ns:robot");
    assert_eq!((&found["uid"], found.get("extra")), (&json!(uid), None));
    for wrong in [
        &[("sub", "system:serviceaccount:kube-system:admin")][..],
        &[("iss", "kubernetes/other")],
        &[("secret.name", "t")],
        &[("service-account.uid", "x")],
        &[("namespace", "kube-system"), ("sub", "system:serviceaccount:kube-system:robot")],
    ] {
        assert_eq!(user(&api, &signer.sign(&claims(wrong))).await, None, "{wrong:?}");
    }
    let foreign = SigningKey::new("").sign(&claims(&[]));
    let path = format!("{SECRETS}/s");
    let change = json!({ "data": data(&[("token", &foreign)]) });
    assert_eq!(api.merge(&path, &change).await.code, 200);
    assert_eq!(api.get(&path).await.code, 200); // until the cache is current
    assert_eq!(user(&api, &foreign).await, None, "writing a Secret is not enough");
    assert_eq!(user(&api, &token).await, None, "the Secret contains another token");
    let back = json!({ "data": data(&[("token", &token)]) });
    assert_eq!(api.merge(&path, &back).await.code, 200);
    assert_eq!(api.get(&path).await.code, 200);
    assert!(user(&api, &token).await.is_some());
    api.delete(&format!("{accounts}/robot")).await.is(200, "");
    assert_eq!(api.get(&format!("{accounts}/robot")).await.code, 404);
    assert_eq!(user(&api, &token).await, None, "the account is deleted");
}
