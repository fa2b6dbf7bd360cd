//! Service account tokens over HTTP: issued, reviewed, expired, forged (S2.55, S8.14, B072).

use std::io::{Read, Write};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use crate::process::Process;

const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const SELF: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

/// A server, and the requests of these tests.
struct Api(Process);

struct Answer {
    code: u16,
    head: String,
    body: Value,
}

impl Api {
    fn start() -> Api {
        Api(Process::serve(&["--memory"]))
    }

    /// Sends a request with a token, or as the administrator without one.
    fn send(&self, method: &str, path: &str, token: Option<&str>, body: Option<&Value>) -> Answer {
        let body = body.map(Value::to_string).unwrap_or_default();
        let authorization = match token {
            Some(token) => format!("Authorization: Bearer {token}\r\n"),
            None => String::new(),
        };
        let mut socket = self.0.connect();
        let length = body.len();
        write!(
            socket,
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{authorization}\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let code = head.split(' ').nth(1).unwrap().parse().unwrap();
        let body = serde_json::from_str(body).unwrap_or(Value::Null);
        Answer { code, head: head.to_owned(), body }
    }

    #[track_caller]
    fn create(&self, path: &str, body: &Value) -> Value {
        let answer = self.send("POST", path, None, Some(body));
        assert_eq!(answer.code, 201, "{}", answer.body);
        answer.body
    }

    #[track_caller]
    fn delete(&self, path: &str) {
        assert_eq!(self.send("DELETE", path, None, None).code, 200);
        // Authentication reads the cache without waiting; this waits until the cache is current.
        assert_eq!(self.send("GET", path, None, None).code, 404);
    }

    #[track_caller]
    fn account(&self, name: &str) -> Value {
        let path = "/api/v1/namespaces/default/serviceaccounts";
        self.create(path, &json!({"metadata": {"name": name}}))
    }

    #[track_caller]
    fn token(&self, account: &str, spec: &Value) -> String {
        let made = self.create(&token_path(account), &json!({ "spec": spec }));
        made["status"]["token"].as_str().unwrap().to_owned()
    }

    /// The user that a token authenticates; `None` for 401.
    fn user(&self, token: &str) -> Option<String> {
        let answer = self.send("POST", SELF, Some(token), Some(&json!({})));
        match answer.code {
            201 => answer.body["status"]["userInfo"]["username"].as_str().map(str::to_owned),
            401 => None,
            other => panic!("{other}: {}", answer.body),
        }
    }
}

fn token_path(account: &str) -> String {
    format!("/api/v1/namespaces/default/serviceaccounts/{account}/token")
}

fn claims(token: &str) -> Value {
    let part = token.split('.').nth(1).unwrap();
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap()
}

fn pod(account: &str) -> Value {
    json!({
        "metadata": {"name": "p"},
        "spec": {"serviceAccountName": account, "containers": [{"name": "c", "image": "i"}]},
    })
}

/// S2.55, S8.2
#[test]
fn a_token_is_valid_until_its_account_is_deleted() {
    let api = Api::start();
    let account = api.account("robot");
    let uid = &account["metadata"]["uid"];
    let made = api.create(&token_path("robot"), &json!({}));
    let metadata = &made["metadata"];
    assert_eq!(made["kind"], "TokenRequest");
    assert_eq!((&metadata["name"], &metadata["uid"]), (&json!("robot"), uid));
    assert_eq!(made["spec"]["audiences"], json!([ISSUER]));
    assert_eq!(made["spec"]["expirationSeconds"], 3600);
    assert!(made["status"]["expirationTimestamp"].is_string());

    let token = made["status"]["token"].as_str().unwrap();
    let said = claims(token);
    let names: Vec<&String> = said.as_object().unwrap().keys().collect();
    assert_eq!(names, ["aud", "exp", "iat", "iss", "jti", "kubernetes.io", "nbf", "sub"]);
    assert_eq!(said["exp"].as_i64().unwrap() - said["iat"].as_i64().unwrap(), 3600);
    assert_eq!(said["sub"], "system:serviceaccount:default:robot");
    let bound = json!({"namespace": "default", "serviceaccount": {"name": "robot", "uid": uid}});
    assert_eq!(said["kubernetes.io"], bound);

    let info = api.send("POST", SELF, Some(token), Some(&json!({}))).body;
    let expected = json!({
        "username": "system:serviceaccount:default:robot",
        "uid": uid,
        "groups": [
            "system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated",
        ],
        "extra": {"authentication.kubernetes.io/credential-id":
            [format!("JTI={}", said["jti"].as_str().unwrap())]},
    });
    assert_eq!(info["status"]["userInfo"], expected);
    let refused = api.send("GET", "/api/v1/namespaces/default/secrets", Some(token), None);
    assert_eq!(refused.code, 403);
    let message = refused.body["message"].as_str().unwrap();
    assert!(message.contains("\"system:serviceaccount:default:robot\" cannot list"), "{message}");

    api.delete("/api/v1/namespaces/default/serviceaccounts/robot");
    assert_eq!(api.user(token), None);
    api.account("robot");
    assert_eq!(api.user(token), None, "another account has the name now");
    assert!(api.user(&api.token("robot", &json!({}))).is_some());
}

/// S8.2
#[test]
fn a_bound_token_is_valid_until_its_object_is_deleted() {
    let api = Api::start();
    api.account("robot");
    let pods = "/api/v1/namespaces/default/pods";
    let secrets = "/api/v1/namespaces/default/secrets";
    let made = [
        ("Pod", api.create(pods, &pod("robot")), format!("{pods}/p")),
        (
            "Secret",
            api.create(secrets, &json!({"metadata": {"name": "s"}})),
            format!("{secrets}/s"),
        ),
        (
            "Node",
            api.create("/api/v1/nodes", &json!({"metadata": {"name": "n"}})),
            "/api/v1/nodes/n".to_owned(),
        ),
    ];
    for (kind, object, path) in made {
        let (name, uid) = (&object["metadata"]["name"], &object["metadata"]["uid"]);
        let reference = json!({"apiVersion": "v1", "kind": kind, "name": name, "uid": uid});
        let token = api.token("robot", &json!({ "boundObjectRef": reference }));
        let bound = &claims(&token)["kubernetes.io"][kind.to_lowercase()];
        assert_eq!(*bound, json!({"name": name, "uid": uid}), "{kind}");
        assert!(api.user(&token).is_some(), "{kind}");
        api.delete(&path);
        assert_eq!(api.user(&token), None, "{kind}");
    }
}

/// S8.14, B072
#[test]
fn a_token_is_valid_for_its_audiences_only() {
    let api = Api::start();
    api.account("robot");
    let token = api.token("robot", &json!({"audiences": ["vault"]}));
    assert_eq!(api.user(&token), None);
    let review = |spec: Value| api.create(REVIEWS, &json!({ "spec": spec }))["status"].clone();
    let known = review(json!({"token": token, "audiences": ["vault", "other"]}));
    assert_eq!(known["authenticated"], true);
    assert_eq!(known["audiences"], json!(["vault"]));
    assert_eq!(known["user"]["username"], "system:serviceaccount:default:robot");
    let unknown = review(json!({ "token": token }));
    assert_eq!(unknown["authenticated"], Value::Null);
    let why = unknown["error"].as_str().unwrap();
    assert!(why.starts_with("[invalid bearer token, token audiences"), "{why}");
    let own = review(json!({"token": api.token("robot", &json!({}))}));
    assert_eq!((&own["authenticated"], &own["audiences"]), (&json!(true), &json!([ISSUER])));
}

/// B072
#[test]
fn a_forged_token_is_unauthenticated() {
    let api = Api::start();
    api.account("robot");
    let token = api.token("robot", &json!({}));
    let parts: Vec<&str> = token.split('.').collect();
    let encode = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let mut other = claims(&token);
    other["sub"] = "system:serviceaccount:kube-system:admin".into();
    let none = encode(json!({"alg": "none"}));
    let path = encode(json!({"alg": "ES256", "kid": "../../dev/null"}));
    for forged in [
        format!("{none}.{}.", parts[1]),
        format!("{none}.{}.{}", parts[1], parts[2]),
        format!("{path}.{}.{}", parts[1], parts[2]),
        format!("{}.{}.{}", parts[0], encode(other), parts[2]),
        format!("{}.{}", parts[0], parts[1]),
        format!("{token}{token}"),
    ] {
        assert_eq!(api.user(&forged), None, "{forged}");
    }
    assert!(api.user(&token).is_some());
}

/// S2.55
#[test]
fn an_invalid_token_request_is_refused_with_a_reason() {
    let api = Api::start();
    api.account("robot");
    api.create("/api/v1/namespaces/default/pods", &pod("somebody"));
    let check = |account: &str, body: Value, code: u16, expected: &str| {
        let answer = api.send("POST", &token_path(account), None, Some(&body));
        let message = answer.body["message"].as_str().unwrap();
        assert_eq!(answer.code, code, "{message}");
        assert!(message.contains(expected), "{message}");
    };
    let lasting = |seconds: i64| json!({"spec": {"expirationSeconds": seconds}});
    let bound = |kind: &str, name: &str, uid: &str| {
        json!({"spec": {"boundObjectRef": {
            "apiVersion": "v1", "kind": kind, "name": name, "uid": uid,
        }}})
    };
    check("nobody", json!({}), 404, "serviceaccounts \"nobody\" not found");
    check(
        "robot",
        lasting(599),
        422,
        "spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 10 minutes",
    );
    check("robot", lasting((1 << 32) + 1), 422, "larger than 2^32 seconds");
    check("robot", json!({"metadata": {"name": "x"}}), 422, "must match the service account name");
    check("robot", json!({"metadata": {"uid": "x"}}), 409, "does not match the UID of the service");
    check("robot", bound("Pod", "missing", ""), 404, "pods \"missing\" not found");
    check("robot", bound("Pod", "p", ""), 400, "different serviceaccount name");
    check("somebody", bound("Pod", "p", ""), 404, "serviceaccounts \"somebody\" not found");
    check("robot", bound("ConfigMap", "c", ""), 400, "cannot bind token to object of type");
    api.account("somebody");
    check("somebody", bound("Pod", "p", "x"), 409, "does not match the UID in record");
}

/// S10.23
#[test]
fn a_pod_gets_a_service_account_and_the_priority_of_its_class() {
    let api = Api::start();
    let pods = "/api/v1/namespaces/default/pods";
    let classes = "/apis/scheduling.k8s.io/v1/priorityclasses";
    let pod = |name: &str, spec: Value| {
        let mut pod = json!({
            "metadata": {"name": name},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        });
        pod["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        api.send("POST", pods, None, Some(&pod))
    };
    let check = |name: &str, spec: Value, expected: Value| {
        let answer = pod(name, spec);
        assert_eq!(answer.code, 201, "{}", answer.body);
        for (key, value) in expected.as_object().unwrap() {
            assert_eq!(answer.body["spec"][key], *value, "{name}: {key}");
        }
    };
    let refused = |spec: Value, expected: &str| {
        let answer = pod("refused", spec);
        assert_eq!((answer.code, &answer.body["reason"]), (403, &json!("Forbidden")));
        let message = answer.body["message"].as_str().unwrap();
        assert_eq!(message, format!("pods \"refused\" is forbidden: {expected}"));
    };
    check(
        "plain",
        json!({}),
        json!({
            "serviceAccountName": "default", "serviceAccount": "default",
            "priority": 0, "preemptionPolicy": "PreemptLowerPriority", "priorityClassName": null,
        }),
    );
    check("old", json!({"serviceAccount": "mine"}), json!({"serviceAccountName": "mine"}));
    let system = json!({"priorityClassName": "system-node-critical"});
    check("system", system, json!({"priority": 2_000_001_000}));
    let wrong = json!({"priorityClassName": "none"});
    refused(wrong, "no PriorityClass with name none was found");
    refused(
        json!({"priority": 7}),
        "the integer value of priority (7) must not be provided in pod spec; priority admission \
         controller computed 0 from the given PriorityClass name",
    );
    let class = |name: &str, value: i64, default: bool| {
        json!({
            "metadata": {"name": name}, "value": value, "globalDefault": default,
            "preemptionPolicy": "Never",
        })
    };
    api.create(classes, &class("low", 5, false));
    api.create(classes, &class("usual", 10, true));
    check(
        "low",
        json!({"priorityClassName": "low"}),
        json!({
            "priority": 5, "preemptionPolicy": "Never",
        }),
    );
    check("usual", json!({}), json!({"priority": 10, "priorityClassName": "usual"}));
    let second = api.send("POST", classes, None, Some(&class("second", 1, true)));
    assert_eq!(second.code, 403);
    let message = second.body["message"].as_str().unwrap();
    assert!(
        message.ends_with(
            "PriorityClass usual is already marked as default. Only one default can exist"
        ),
        "{message}"
    );
}

/// S1.13
#[test]
fn the_issuer_publishes_its_key() {
    let api = Api::start();
    api.account("robot");
    let token = api.token("robot", &json!({}));
    let about = api.send("GET", "/.well-known/openid-configuration", None, None);
    assert_eq!(about.body["issuer"], ISSUER);
    assert_eq!(about.body["jwks_uri"], format!("{ISSUER}/openid/v1/jwks"));
    let keys = api.send("GET", "/openid/v1/jwks", None, None);
    assert!(keys.head.contains("application/jwk-set+json"), "{}", keys.head);
    let header = URL_SAFE_NO_PAD.decode(token.split('.').next().unwrap()).unwrap();
    let header: Value = serde_json::from_slice(&header).unwrap();
    assert_eq!(keys.body["keys"][0]["kid"], header["kid"]);
    assert_eq!(keys.body["keys"][0]["alg"], header["alg"]);
}

#[test]
fn a_token_is_valid_after_a_restart_with_the_same_data() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let args = ["--data-dir", data.to_str().unwrap()];
    let mut api = Api(Process::serve(&args));
    api.account("robot");
    let token = api.token("robot", &json!({}));
    api.0.signal("TERM");
    assert!(api.0.wait().success());
    assert!(Api(Process::serve(&args)).user(&token).is_some());
}
