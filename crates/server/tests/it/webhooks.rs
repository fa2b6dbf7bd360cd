//! Admission webhooks: a real HTTPS server that responds correctly, incorrectly, slowly or not at
//! all.

use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use headwater_api::SystemClock;
use headwater_cache::Options as CacheOptions;
use headwater_json::{Value, json};
use headwater_server::pki::{self, Pki};
use headwater_server::{Forwarding, Settings};
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::api::{Api, CMS, DEPLOYMENTS, PODS, config_map, deployment, labelled, pod};
use crate::policies;

const MUTATING: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
pub(crate) const VALIDATING: &str =
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";

/// The response of a webhook.
pub(crate) enum Reply {
    /// The `response` of a review; its uid is added if it has none.
    Response(Value),
    /// These bytes with this code.
    Raw(u16, Vec<u8>),
    /// No response.
    Silence,
    /// The end of the connection.
    Hangup,
}

type Behaviour = dyn Fn(&Value) -> Reply + Send + Sync;

/// A webhook.
pub(crate) struct Hook {
    pub(crate) port: u16,
    pub(crate) authority: String,
    /// The certificate that it presents.
    certificate: String,
    seen: Arc<Mutex<Vec<Value>>>,
    _serving: JoinSet<()>,
}

impl Hook {
    pub(crate) async fn start(behaviour: impl Fn(&Value) -> Reply + Send + Sync + 'static) -> Hook {
        let names = pki::names("127.0.0.1".parse().unwrap(), &["hook.ns.svc".to_owned()]);
        let keys = Pki::in_memory(&names, &SystemClock).unwrap();
        let certificate = CertificateDer::from_pem_slice(keys.server.certificate.as_bytes());
        let key = PrivateKeyDer::from_pem_slice(keys.server.key.reveal().as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.unwrap()], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let behaviour: Arc<Behaviour> = Arc::new(behaviour);
        let mut serving = JoinSet::new();
        serving.spawn(accept(listener, acceptor, behaviour, Arc::clone(&seen)));
        let certificate = STANDARD.encode(&keys.server.certificate);
        Hook { port, authority: STANDARD.encode(keys.ca), certificate, seen, _serving: serving }
    }

    /// The reviews received since the last call.
    pub(crate) fn asked(&self) -> Vec<Value> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }

    /// A webhook for the creation of ConfigMaps.
    pub(crate) fn webhook(&self) -> Value {
        json!({
            "name": "hook.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {
                "url": format!("https://127.0.0.1:{}/hook", self.port), "caBundle": self.authority,
            },
            "rules": [rule("CREATE", "", "configmaps")],
            "timeoutSeconds": 5,
        })
    }
}

pub(crate) fn rule(operation: &str, group: &str, resource: &str) -> Value {
    json!({
        "operations": [operation], "apiGroups": [group], "apiVersions": ["*"],
        "resources": [resource],
    })
}

async fn accept(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    behaviour: Arc<Behaviour>,
    seen: Arc<Mutex<Vec<Value>>>,
) {
    let mut connections = JoinSet::new();
    while let Ok((socket, _)) = listener.accept().await {
        let (acceptor, behaviour, seen) = (acceptor.clone(), behaviour.clone(), seen.clone());
        connections.spawn(async move {
            let Ok(stream) = acceptor.accept(socket).await else { return };
            let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
                let (behaviour, seen) = (behaviour.clone(), seen.clone());
                async move {
                    let body = request.into_body().collect().await.unwrap().to_bytes();
                    let review: Value = serde_json::from_slice(&body).unwrap();
                    let reply = behaviour(&review);
                    seen.lock().unwrap().push(review.clone());
                    answer(&review, reply).await
                }
            });
            let http = hyper::server::conn::http1::Builder::new();
            let _ = http.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(review: &Value, reply: Reply) -> std::io::Result<hyper::Response<Full<Bytes>>> {
    let (code, bytes) = match reply {
        Reply::Silence => std::future::pending().await,
        Reply::Hangup => return Err(std::io::ErrorKind::ConnectionAborted.into()),
        Reply::Raw(code, bytes) => (code, bytes),
        Reply::Response(mut response) => {
            if response["uid"].is_null() {
                response["uid"] = review["request"]["uid"].clone();
            }
            let answer = json!({
                "apiVersion": review["apiVersion"], "kind": review["kind"], "response": response,
            });
            (200, answer.to_string().into_bytes())
        }
    };
    let mut response = hyper::Response::new(Full::new(Bytes::from(bytes)));
    *response.status_mut() = code.try_into().unwrap();
    Ok(response)
}

pub(crate) fn allow() -> Reply {
    Reply::Response(json!({"allowed": true}))
}

fn patch(operations: Value) -> Reply {
    let patch = STANDARD.encode(operations.to_string());
    Reply::Response(json!({"allowed": true, "patchType": "JSONPatch", "patch": patch}))
}

pub(crate) async fn configure(api: &Api, target: &str, name: &str, webhooks: Value) {
    api.create(target, &json!({"metadata": {"name": name}, "webhooks": webhooks})).await;
}

/// A server with one webhook, whose configuration the test may change.
async fn with(target: &str, hook: &Hook, change: impl FnOnce(&mut Value)) -> Api {
    let api = Api::start().await;
    let mut webhook = hook.webhook();
    change(&mut webhook);
    configure(&api, target, "hooks", json!([webhook])).await;
    api
}

/// S2.36
#[tokio::test]
async fn a_mutating_webhook_receives_the_review_and_changes_the_stored_object() {
    let hook = Hook::start(|_| {
        let patch = STANDARD
            .encode(json!([{"op": "add", "path": "/data", "value": {"added": "yes"}}]).to_string());
        Reply::Response(json!({
            "allowed": true, "patchType": "JSONPatch", "patch": patch,
            "warnings": ["mind the gap"], "auditAnnotations": {"a": "b"},
        }))
    })
    .await;
    let api = with(MUTATING, &hook, |_| {}).await;
    let answer = api.post(CMS, &config_map("a")).await;
    answer.is(201, "");
    assert_eq!(answer.header("warning"), "299 - \"mind the gap\"");
    assert_eq!(answer.json()["data"]["added"], "yes");
    assert_eq!(api.get(&format!("{CMS}/a")).await.json()["data"]["added"], "yes");
    let [review] = &hook.asked()[..] else { panic!() };
    let request = &review["request"];
    assert_eq!(review["apiVersion"], "admission.k8s.io/v1");
    assert_eq!(request["operation"], "CREATE");
    assert_eq!(request["kind"], json!({"group": "", "version": "v1", "kind": "ConfigMap"}));
    assert_eq!(
        request["requestResource"],
        json!({"group": "", "version": "v1", "resource": "configmaps"})
    );
    assert_eq!((&request["name"], &request["namespace"]), (&json!("a"), &json!("ns")));
    assert_eq!(request["userInfo"]["username"], "kubernetes-admin");
    assert_eq!(request["dryRun"], false);
    assert_eq!(request["options"]["kind"], "CreateOptions");
    assert_eq!(request["object"]["metadata"]["name"], "a");
    assert_eq!(request["oldObject"], Value::Null);
}

/// S2.36
#[tokio::test]
async fn a_validating_webhook_rejects_with_its_own_message() {
    let hook = Hook::start(|review| match review["request"]["object"]["data"]["bad"].is_null() {
        true => allow(),
        false => Reply::Response(json!({
            "allowed": false, "status": {"code": 409, "reason": "Conflict", "message": "too bad"},
        })),
    })
    .await;
    let api = with(VALIDATING, &hook, |webhook| {
        webhook["rules"] = json!([rule("*", "", "configmaps")]);
    })
    .await;
    let mut good = config_map("a");
    good["data"] = json!({"good": "x"});
    api.create(CMS, &good).await;
    let mut bad = config_map("b");
    bad["data"] = json!({"bad": "x"});
    let message = "admission webhook \"hook.example.com\" denied the request: too bad";
    api.post(CMS, &bad).await.fails(409, "Conflict", message);
    api.get(&format!("{CMS}/b")).await.is(404, "");
    hook.asked();
    api.merge(&format!("{CMS}/a"), &json!({"data": {"x": "y"}})).await.is(200, "");
    let [review] = &hook.asked()[..] else { panic!() };
    assert_eq!(review["request"]["operation"], "UPDATE");
    assert_eq!(review["request"]["object"]["data"]["x"], "y");
    assert_eq!(review["request"]["oldObject"]["metadata"]["name"], "a");
    let managers = &review["request"]["oldObject"]["metadata"]["managedFields"];
    assert!(managers.is_array(), "{managers}");
    api.delete(&format!("{CMS}/a")).await.is(200, "");
    let [review] = &hook.asked()[..] else { panic!() };
    assert_eq!(review["request"]["operation"], "DELETE");
    assert_eq!(review["request"]["object"], Value::Null);
    assert_eq!(review["request"]["oldObject"]["data"]["x"], "y");
}

#[tokio::test]
async fn a_webhook_can_reject_single_and_collection_deletes() {
    let hook = Hook::start(|_| Reply::Response(json!({"allowed": false}))).await;
    let api = with(VALIDATING, &hook, |webhook| {
        webhook["rules"] = json!([rule("DELETE", "", "configmaps")]);
    })
    .await;
    api.config_maps(&["a", "b"]).await;
    let message = "admission webhook \"hook.example.com\" denied the request without explanation";
    api.delete(&format!("{CMS}/a")).await.fails(400, "", message);
    api.delete(CMS).await.fails(400, "", message);
    api.get(CMS).await.lists("a b");
}

#[tokio::test]
async fn invalid_webhook_responses_follow_the_failure_policy() {
    let response = |response: Value| move || Reply::Response(response.clone());
    let raw = |code: u16, text: &'static str| move || Reply::Raw(code, text.into());
    type Make = Box<dyn Fn() -> Reply + Send + Sync>;
    let rows: Vec<(Make, &str)> = vec![
        (
            Box::new(response(json!({"allowed": true, "uid": "other"}))),
            "received invalid webhook response: expected response.uid=",
        ),
        (
            Box::new(response(json!({"allowed": true, "patch": "W10=", "patchType": "Strange"}))),
            "received invalid webhook response: webhook returned invalid response.patchType of \"Strange\"",
        ),
        (
            Box::new(response(json!({"allowed": true, "patch": "e30", "patchType": "JSONPatch"}))),
            "received invalid webhook response: received undecodable patch",
        ),
        (Box::new(raw(200, "hello")), "failed to call webhook: the answer is not JSON"),
        (Box::new(raw(200, "")), "failed to call webhook: the answer is not JSON"),
        (
            Box::new(raw(200, "{}")),
            "received invalid webhook response: expected webhook response of",
        ),
        (
            Box::new(raw(500, "broken")),
            "failed to call webhook: an error on the server (\"broken\") has prevented the request from succeeding",
        ),
        (
            Box::new(raw(302, "")),
            "failed to call webhook: the server responded with the status code 302",
        ),
        (
            Box::new(|| Reply::Raw(200, vec![b' '; 4 << 20])),
            "failed to call webhook: the answer is larger than 3145728 bytes",
        ),
    ];
    for (reply, expected) in rows {
        let hook = Hook::start(move |_| reply()).await;
        let api = with(MUTATING, &hook, |_| {}).await;
        let message = format!(
            "Internal error occurred: failed calling webhook \"hook.example.com\": {expected}"
        );
        api.post(CMS, &config_map("a")).await.fails(500, "InternalError", &message);
        let change = json!({"webhooks": [{"name": "hook.example.com", "failurePolicy": "Ignore"}]});
        let strategic = "application/strategic-merge-patch+json";
        api.patch(strategic, &format!("{MUTATING}/hooks"), change.to_string()).await.is(200, "");
        api.create(CMS, &config_map("a")).await;
    }
}

#[tokio::test]
async fn an_unreachable_or_untrusted_webhook_fails_the_request() {
    let hook = Hook::start(|_| allow()).await;
    let other = Hook::start(|_| allow()).await;
    let api = with(VALIDATING, &hook, |webhook| {
        webhook["clientConfig"]["caBundle"] = other.authority.clone().into();
    })
    .await;
    let url = format!("Post \"https://127.0.0.1:{}/hook?timeout=5s\": ", hook.port);
    let failed = "Internal error occurred: failed calling webhook \"hook.example.com\": failed to call webhook: ";
    let message = format!(
        "{failed}{url}tls: failed to verify certificate: x509: certificate signed by unknown authority"
    );
    api.post(CMS, &config_map("a")).await.fails(500, "InternalError", &message);
    assert!(hook.asked().is_empty());
    let port = hook.port;
    drop(hook);
    let message = format!("{failed}{url}dial tcp 127.0.0.1:{port}: connect: connection refused");
    // Until the listener is closed, a connection may still succeed.
    let mut answer = api.post(CMS, &config_map("a")).await;
    while !answer.text().contains("refused") {
        answer = api.post(CMS, &config_map("a")).await;
    }
    answer.fails(500, "InternalError", &message);
}

#[tokio::test]
async fn a_webhook_may_be_its_own_authority_and_its_path_is_normalized() {
    // As envtest of controller-runtime configures it: no CA in the bundle, two slashes.
    let hook = Hook::start(|_| allow()).await;
    let api = with(VALIDATING, &hook, |webhook| {
        webhook["clientConfig"] = json!({
            "url": format!("https://127.0.0.1:{}//hook", hook.port), "caBundle": hook.certificate,
        });
    })
    .await;
    api.create(CMS, &config_map("a")).await;
    assert_eq!(hook.asked().len(), 1);
    drop(hook);
    let answer = api.post(CMS, &config_map("b")).await;
    assert!(answer.text().contains("/hook?timeout=5s"), "{}", answer.text());
}

#[tokio::test(start_paused = true)]
async fn a_slow_webhook_times_out() {
    let hook = Hook::start(|_| Reply::Silence).await;
    let api = with(VALIDATING, &hook, |webhook| webhook["timeoutSeconds"] = 1.into()).await;
    let answer = api.post(CMS, &config_map("a")).await;
    answer.is(500, "context deadline exceeded");
    api.merge(CMS, &json!({})).await;
    api.get(CMS).await.lists("");
}

#[tokio::test]
async fn a_webhook_that_received_a_review_does_not_get_it_again() {
    let calls = std::sync::atomic::AtomicUsize::new(0);
    let hook =
        Hook::start(move |_| match calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            // The second review arrives on the connection of the first.
            1 => Reply::Hangup,
            _ => allow(),
        })
        .await;
    let api = with(VALIDATING, &hook, |_| {}).await;
    api.create(CMS, &config_map("first")).await;
    api.post(CMS, &config_map("second")).await.is(500, "failed calling webhook");
    assert_eq!(hook.asked().len(), 2);
    api.create(CMS, &config_map("third")).await;
}

#[tokio::test]
async fn webhooks_are_called_according_to_their_rules() {
    let hook = Hook::start(|_| allow()).await;
    let check = async |change: fn(&mut Value), expected: &[&str]| {
        let api = with(VALIDATING, &hook, change).await;
        hook.asked();
        api.send(
            "POST /api/v1/namespaces\nContent-Type: application/json",
            r#"{"metadata": {"name": "team", "labels": {"team": "a"}}}"#,
        )
        .await
        .is(201, "");
        api.create(CMS, &labelled("plain", "")).await;
        api.create(CMS, &labelled("marked", "mark=yes")).await;
        api.create("/api/v1/namespaces/team/configmaps", &config_map("teams")).await;
        api.create(PODS, &pod("p", "")).await;
        let status = json!({"status": {"phase": "Running"}});
        api.merge(&format!("{PODS}/p/status"), &status).await.is(200, "");
        let asked = hook.asked();
        let asked: Vec<&str> =
            asked.iter().map(|review| review["request"]["name"].as_str().unwrap()).collect();
        assert_eq!(asked, expected);
    };
    check(|_| {}, &["plain", "marked", "teams"]).await;
    check(
        |webhook| webhook["objectSelector"] = json!({"matchLabels": {"mark": "yes"}}),
        &["marked"],
    )
    .await;
    check(
        |webhook| {
            webhook["namespaceSelector"] =
                json!({"matchExpressions": [{"key": "team", "operator": "Exists"}]});
        },
        &["teams"],
    )
    .await;
    check(|webhook| webhook["rules"] = json!([rule("*", "", "pods")]), &["p"]).await;
    check(|webhook| webhook["rules"] = json!([rule("*", "", "pods/*")]), &["p", "p"]).await;
    check(|webhook| webhook["rules"] = json!([rule("UPDATE", "", "*/status")]), &["p"]).await;
    check(|webhook| webhook["rules"][0]["scope"] = "Cluster".into(), &[]).await;
    check(
        |webhook| {
            webhook["rules"] = json!([rule("*", "*", "*")]);
            webhook["rules"][0]["scope"] = "Cluster".into();
        },
        &["team"],
    )
    .await;
    check(
        |webhook| {
            webhook["matchConditions"] = json!([
                {"name": "a", "expression": "request.operation == 'CREATE'"},
                {"name": "b", "expression": "object.metadata.name.startsWith('m')"},
            ]);
        },
        &["marked"],
    )
    .await;
    check(|webhook| webhook["rules"][0]["apiVersions"] = json!(["v2"]), &[]).await;
}

#[tokio::test]
async fn failing_match_conditions_follow_the_failure_policy() {
    let hook = Hook::start(|_| allow()).await;
    let condition = json!([{"name": "c", "expression": "object.data.x == 'y'"}]);
    let api =
        with(VALIDATING, &hook, |webhook| webhook["matchConditions"] = condition.clone()).await;
    let message = "configmaps \"a\" is forbidden: no such key: data";
    api.post(CMS, &config_map("a")).await.fails(403, "Forbidden", message);
    let api = with(VALIDATING, &hook, |webhook| {
        webhook["matchConditions"] = condition;
        webhook["failurePolicy"] = "Ignore".into();
    })
    .await;
    api.create(CMS, &config_map("a")).await;
    assert!(hook.asked().is_empty());
}

#[tokio::test]
async fn a_rule_about_another_version_matches_the_same_objects() {
    let hook = Hook::start(|_| allow()).await;
    let target = "/apis/autoscaling/v1/namespaces/ns/horizontalpodautoscalers";
    let scaler = json!({
        "apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"},
        "spec": {"maxReplicas": 3, "targetCPUUtilizationPercentage": 50,
            "scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"}},
    });
    let about = |webhook: &mut Value| {
        webhook["rules"] = json!([rule("*", "autoscaling", "horizontalpodautoscalers")]);
        webhook["rules"][0]["apiVersions"] = json!(["v2"]);
    };
    let api = with(VALIDATING, &hook, about).await;
    api.create(target, &scaler).await;
    let [review] = &hook.asked()[..] else { panic!() };
    let request = &review["request"];
    assert_eq!(request["kind"]["version"], "v2");
    assert_eq!(request["requestKind"]["version"], "v1");
    assert_eq!(request["object"]["apiVersion"], "autoscaling/v2");
    assert!(request["object"]["spec"]["metrics"].is_array(), "{request}");
    let api = with(VALIDATING, &hook, |webhook| {
        about(webhook);
        webhook["matchPolicy"] = "Exact".into();
    })
    .await;
    api.create(target, &scaler).await;
    assert!(hook.asked().is_empty());
}

/// S2.36
#[tokio::test]
async fn a_webhook_with_reinvocation_is_called_again_after_later_changes() {
    let counts = |review: &Value| {
        let data = &review["request"]["object"]["data"];
        data.as_object().map_or(0, |data| data.len())
    };
    let add = |key: &str| {
        json!([
            {"op": "add", "path": format!("/data/{key}"), "value": "1"},
        ])
    };
    let first =
        Hook::start(move |review| match review["request"]["object"]["data"]["first"].is_null() {
            true => patch(add("first")),
            false => allow(),
        })
        .await;
    let second = Hook::start(move |_| patch(add("second"))).await;
    let api = Api::start().await;
    let (mut one, mut two) = (first.webhook(), second.webhook());
    one["name"] = "one.example.com".into();
    one["reinvocationPolicy"] = "IfNeeded".into();
    two["name"] = "two.example.com".into();
    configure(&api, MUTATING, "hooks", json!([one, two])).await;
    let mut object = config_map("a");
    object["data"] = json!({"own": "1"});
    let made = api.create(CMS, &object).await;
    assert_eq!(made["data"], json!({"own": "1", "first": "1", "second": "1"}));
    let seen: Vec<usize> = first.asked().iter().map(counts).collect();
    assert_eq!(seen, [1, 3], "asked again after the other's change");
    assert_eq!(second.asked().len(), 1, "never asked again");
}

#[tokio::test]
async fn an_object_changed_by_a_webhook_must_be_valid() {
    let hook =
        Hook::start(|_| patch(json!([{"op": "replace", "path": "/spec/replicas", "value": -1}])))
            .await;
    let api = with(MUTATING, &hook, |webhook| {
        webhook["rules"] = json!([rule("CREATE", "apps", "deployments")]);
    })
    .await;
    api.post(DEPLOYMENTS, &deployment("d")).await.is(422, "spec.replicas");
    let hook = Hook::start(|_| {
        patch(json!([{"op": "replace", "path": "/spec/replicas", "value": "many"}]))
    })
    .await;
    let api = with(MUTATING, &hook, |webhook| {
        webhook["rules"] = json!([rule("CREATE", "apps", "deployments")]);
    })
    .await;
    api.post(DEPLOYMENTS, &deployment("d")).await.is(500, "");
    api.get(DEPLOYMENTS).await.lists("");
}

/// S2.4, B089
#[tokio::test]
async fn name_generation_gives_up_after_repeated_conflicts() {
    let hook = Hook::start(|_| {
        patch(json!([{"op": "replace", "path": "/metadata/name", "value": "taken"}]))
    })
    .await;
    let api = with(MUTATING, &hook, |_| {}).await;
    let generated = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "any-"},
    });
    assert_eq!(api.create(CMS, &generated).await["metadata"]["name"], "taken");
    hook.asked();
    let answer = api.post(CMS, &generated).await;
    answer.is(409, "AlreadyExists");
    answer.is(409, "not able to generate a unique name");
    assert_eq!(answer.header("retry-after"), "1");
    assert_eq!(answer.json()["details"]["retryAfterSeconds"], 1);
    assert_eq!(hook.asked().len(), 8, "so many tries and no more");
}

/// S2.36
#[tokio::test]
async fn a_dry_run_is_marked_in_the_review_and_stores_nothing() {
    let hook = Hook::start(|_| allow()).await;
    let api = with(VALIDATING, &hook, |_| {}).await;
    api.post(&format!("{CMS}?dryRun=All"), &config_map("a")).await.is(201, "");
    let [review] = &hook.asked()[..] else { panic!() };
    assert_eq!(review["request"]["dryRun"], true);
    assert_eq!(review["request"]["options"]["dryRun"], json!(["All"]));
    api.get(CMS).await.lists("");
}

#[tokio::test]
async fn a_webhook_service_is_resolved_by_endpoints_or_external_name() {
    let hook = Hook::start(|_| allow()).await;
    let api = with(VALIDATING, &hook, |webhook| {
        webhook["clientConfig"] = json!({
            "service": {"namespace": "ns", "name": "hook", "path": "/x"}, "caBundle": hook.authority,
        });
    })
    .await;
    let failed = "Internal error occurred: failed calling webhook \"hook.example.com\": failed to call webhook: Post \"https://hook.ns.svc:443/x?timeout=5s\": ";
    let answer = api.post(CMS, &config_map("a")).await;
    answer.fails(500, "InternalError", &format!("{failed}service \"hook\" not found"));
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "hook"},
        "spec": {"ports": [{"port": 443, "targetPort": 9443}]},
    });
    api.create("/api/v1/namespaces/ns/services", &service).await;
    let answer = api.post(CMS, &config_map("a")).await;
    answer.fails(500, "InternalError", &format!("{failed}no endpoints available for service"));
    // An address that is never called; the error shows that it was resolved.
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "hook-1", "labels": {"kubernetes.io/service-name": "hook"}},
        "endpoints": [{"addresses": ["255.255.255.255"]}], "ports": [{"name": "", "port": 1}],
    });
    api.create("/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices", &slice).await;
    api.post(CMS, &config_map("a"))
        .await
        .is(500, "dial tcp 255.255.255.255:1: the address may not be called");
    let target = "/api/v1/namespaces/ns/services/hook";
    api.delete(target).await.is(200, "");
    let other = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "hook"},
        "spec": {"type": "ExternalName", "externalName": "localhost",
            "ports": [{"port": 443, "targetPort": hook.port}]},
    });
    api.create("/api/v1/namespaces/ns/services", &other).await;
    api.create(CMS, &config_map("a")).await;
    assert_eq!(hook.asked().len(), 1);
}

/// A Service whose one pod runs on a simulated node.
async fn simulated_service(api: &Api) {
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "node-0", "labels": {"headwater.dev/simulated": ""}},
    });
    api.create("/api/v1/nodes", &node).await;
    api.create(PODS, &pod("hook-0", "node-0")).await;
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "hook"},
        "spec": {"ports": [{"port": 443, "targetPort": 9443}]},
    });
    api.create(SERVICES, &service).await;
    let target = json!({"kind": "Pod", "namespace": "ns", "name": "hook-0"});
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "hook-1", "labels": {"kubernetes.io/service-name": "hook"}},
        "endpoints": [{"addresses": ["10.64.0.2"], "nodeName": "node-0", "targetRef": target}],
        "ports": [{"name": "", "port": 9443}],
    });
    api.create("/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices", &slice).await;
}

const SERVICES: &str = "/api/v1/namespaces/ns/services";

/// A validating webhook at the Service `hook`, with simulated pods.
async fn with_simulated_service(hook: &Hook, forwarding: Forwarding, policy: &str) -> Api {
    let settings = Settings { forwarding, ..Settings::default() };
    let api = Api::with(settings, CacheOptions::default()).await;
    simulated_service(&api).await;
    let mut webhook = hook.webhook();
    webhook["failurePolicy"] = policy.into();
    webhook["clientConfig"] = json!({
        "service": {"namespace": "ns", "name": "hook"}, "caBundle": hook.authority,
    });
    let object = json!({"metadata": {"name": "hooks"}, "webhooks": [webhook]});
    api.create(VALIDATING, &object).await;
    api
}

fn forward_to(address: &str) -> Value {
    json!({"metadata": {"annotations": {"headwater.dev/forward-to": address}}})
}

#[tokio::test]
async fn a_webhook_in_simulated_pods_is_not_called_and_an_event_tells_how_to_route_it() {
    let hook = Hook::start(|_| allow()).await;
    let api = with_simulated_service(&hook, Forwarding::Honored, "Fail").await;
    let answer = api.post(CMS, &config_map("a")).await;
    answer.is(500, "the pods of service ns/hook are simulated");
    answer.is(500, "headwater.dev/forward-to=127.0.0.1:PORT");
    let events = "/api/v1/namespaces/ns/events?fieldSelector=involvedObject.name=hook";
    let mut list = api.get(events).await.json();
    while list["items"].as_array().is_none_or(Vec::is_empty) {
        tokio::task::yield_now().await;
        list = api.get(events).await.json();
    }
    let event = &list["items"][0];
    assert_eq!(
        (&event["type"], &event["involvedObject"]["kind"]),
        (&json!("Warning"), &json!("Service"))
    );
    assert!(event["message"].as_str().unwrap().contains("headwater.dev/forward-to"), "{event}");
    let ignoring = with_simulated_service(&hook, Forwarding::Ignored, "Ignore").await;
    ignoring.create(CMS, &config_map("a")).await;
    assert_eq!(hook.asked().len(), 0);
}

#[tokio::test]
async fn an_annotation_of_the_service_or_pod_routes_a_webhook_to_a_process_on_loopback() {
    let hook = Hook::start(|_| allow()).await;
    let here = format!("127.0.0.1:{}", hook.port);
    for target in [format!("{SERVICES}/hook"), format!("{PODS}/hook-0")] {
        let api = with_simulated_service(&hook, Forwarding::Honored, "Fail").await;
        for elsewhere in ["10.0.0.1:9443", "169.254.169.254:80", "localhost:9443", "127.0.0.1"] {
            api.merge(&target, &forward_to(elsewhere)).await.is(200, "");
            api.post(CMS, &config_map("a")).await.is(500, "must be a loopback address with a port");
        }
        api.merge(&target, &forward_to(&here)).await.is(200, "");
        api.create(CMS, &config_map("a")).await;
        assert_eq!(hook.asked().len(), 1, "{target}");
        // The next call follows the annotation, not the connection of the last one.
        api.merge(&target, &forward_to("nowhere")).await.is(200, "");
        api.post(CMS, &config_map("b")).await.is(500, "must be a loopback address with a port");
        // Only `headwater dev` honours it.
        let api = with_simulated_service(&hook, Forwarding::Ignored, "Fail").await;
        api.merge(&target, &forward_to(&here)).await.is(200, "");
        api.post(CMS, &config_map("a")).await.is(500, "are simulated");
        assert_eq!(hook.asked().len(), 0);
    }
}

#[tokio::test]
async fn a_configuration_that_rejects_everything_can_be_deleted() {
    let hook = Hook::start(|_| Reply::Response(json!({"allowed": false}))).await;
    let api = with(VALIDATING, &hook, |webhook| {
        webhook["rules"] = json!([rule("*", "*", "*/*")]);
        webhook["rules"].as_array_mut().unwrap().push(rule("*", "*", "*"));
    })
    .await;
    api.post(CMS, &config_map("a")).await.is(400, "denied");
    api.delete(&format!("{VALIDATING}/hooks")).await.is(200, "");
    api.create(CMS, &config_map("a")).await;
}

#[tokio::test]
async fn an_invalid_webhook_configuration_is_rejected() {
    let api = Api::start().await;
    let webhook = json!({
        "name": "short", "clientConfig": {"url": "http://x"}, "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
    });
    let object = json!({"metadata": {"name": "hooks"}, "webhooks": [webhook]});
    api.post(VALIDATING, &object).await.fails(
        422,
        "Invalid",
        "ValidatingWebhookConfiguration.admissionregistration.k8s.io \"hooks\" is invalid: [webhooks[0].name: Invalid value: \"short\"",
    );
}

#[tokio::test]
async fn a_policy_with_reinvocation_sees_changes_of_webhooks() {
    let hook = Hook::start(|review| match review["request"]["object"]["data"]["hook"].is_null() {
        true => patch(json!([{"op": "add", "path": "/data/hook", "value": "1"}])),
        false => allow(),
    })
    .await;
    let count = |policy: &str| {
        let expression =
            "Object{metadata: Object.metadata{labels: {'keys': string(object.data.size())}}}";
        json!({
            "matchConstraints": policies::rule("", "configmaps"),
            "reinvocationPolicy": policy,
            "mutations": [{
                "patchType": "ApplyConfiguration",
                "applyConfiguration": {"expression": expression},
            }],
        })
    };
    for (policy, keys, asked) in [("Never", "1", 1), ("IfNeeded", "2", 1)] {
        let api = with(MUTATING, &hook, |_| {}).await;
        policies::add(&api, "mutating", &count(policy), &json!({})).await;
        let mut object = config_map("a");
        object["data"] = json!({"own": "1"});
        let made = api.create(CMS, &object).await;
        assert_eq!(made["metadata"]["labels"]["keys"], keys, "{policy}");
        assert_eq!(hook.asked().len(), asked, "{policy}");
    }
    // A webhook with reinvocation receives the changes of the policy.
    let api = with(MUTATING, &hook, |webhook| webhook["reinvocationPolicy"] = "IfNeeded".into());
    let api = api.await;
    policies::add(&api, "mutating", &count("IfNeeded"), &json!({})).await;
    let mut object = config_map("a");
    object["data"] = json!({"own": "1"});
    api.create(CMS, &object).await;
    let seen: Vec<Value> = hook
        .asked()
        .iter()
        .map(|review| review["request"]["object"]["metadata"]["labels"]["keys"].clone())
        .collect();
    assert_eq!(seen, ["1", "2"]);
}

#[tokio::test]
async fn fields_changed_by_a_webhook_have_no_manager() {
    let hook =
        Hook::start(|_| patch(json!([{"op": "add", "path": "/data/hook", "value": "1"}]))).await;
    let api = with(MUTATING, &hook, |webhook| {
        webhook["rules"] = json!([rule("*", "", "configmaps")]);
    })
    .await;
    let owned = |object: &Value| -> Vec<String> {
        let entries = object["metadata"]["managedFields"].as_array().unwrap();
        let fields = entries.iter().filter_map(|entry| entry["fieldsV1"]["f:data"].as_object());
        fields
            .flat_map(|fields| fields.keys().map(ToString::to_string))
            .filter(|key| key != ".")
            .collect()
    };
    let mut object = config_map("a");
    object["data"] = json!({"own": "1"});
    let made = api.create(CMS, &object).await;
    assert_eq!(made["data"], json!({"own": "1", "hook": "1"}));
    assert_eq!(owned(&made), ["f:own"]);
    let patch = json!({"data": {"hook": null, "more": "1"}});
    let changed = api.merge(&format!("{CMS}/a"), &patch).await.json();
    assert_eq!(changed["data"], json!({"own": "1", "more": "1", "hook": "1"}));
    assert_eq!(owned(&changed), ["f:more", "f:own"]);
    let config = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b"}, "data": {"own": "1"},
    });
    let target = format!("{CMS}/b?fieldManager=m");
    let applied = api.patch("application/apply-patch+yaml", &target, config.to_string()).await;
    assert_eq!(applied.json()["data"], json!({"own": "1", "hook": "1"}));
    assert_eq!(owned(&applied.json()), ["f:own"]);
}

#[tokio::test]
async fn loopback_webhooks_are_called_only_if_allowed() {
    let hook = Hook::start(|_| allow()).await;
    let options = Settings {
        webhooks_on_loopback: headwater_server::Loopback::Refused,
        ..Settings::default()
    };
    let api = Api::with(options, CacheOptions::default()).await;
    configure(&api, VALIDATING, "hooks", json!([hook.webhook()])).await;
    let port = hook.port;
    api.post(CMS, &config_map("a")).await.is(
        500,
        &format!(
            "dial tcp 127.0.0.1:{port}: loopback may not be called, see --webhooks-on-loopback"
        ),
    );
    assert!(hook.asked().is_empty());
}

#[tokio::test]
async fn webhook_calls_are_counted_in_metrics() {
    let hook = Hook::start(|review| {
        match review["request"]["object"]["metadata"]["name"].as_str().unwrap() {
            "refused" => Reply::Response(json!({"allowed": false, "status": {"code": 409}})),
            "failed" => Reply::Raw(500, Vec::new()),
            _ => allow(),
        }
    })
    .await;
    let api = Api::start().await;
    let mut hooks = json!([hook.webhook(), hook.webhook()]);
    hooks[1]["name"] = "lenient.example.com".into();
    hooks[1]["failurePolicy"] = "Ignore".into();
    hooks[1]["matchConditions"] =
        json!([{"name": "skip", "expression": "object.metadata.name != 'skipped'"}]);
    configure(&api, VALIDATING, "hooks", hooks).await;
    for name in ["good", "refused", "failed", "skipped"] {
        api.post(CMS, &config_map(name)).await;
    }
    let text = api.get("/metrics").await.text();
    for line in [
        r#"webhook_request_total{name="hook.example.com",type="validate",operation="CREATE",code="200",rejected="false"} 2"#,
        r#"webhook_request_total{name="hook.example.com",type="validate",operation="CREATE",code="409",rejected="true"} 1"#,
        r#"webhook_request_total{name="hook.example.com",type="validate",operation="CREATE",code="500",rejected="true"} 1"#,
        r#"webhook_rejection_count{name="hook.example.com",type="validate",operation="CREATE",error_type="no_error",rejection_code="409"} 1"#,
        r#"webhook_rejection_count{name="hook.example.com",type="validate",operation="CREATE",error_type="calling_webhook_error",rejection_code="0"} 1"#,
        r#"webhook_fail_open_count{name="lenient.example.com",type="validate"} 1"#,
        r#"webhook_admission_duration_seconds_count{name="hook.example.com",type="validate",operation="CREATE",rejected="false"} 2"#,
        r#"match_condition_exclusions_total{name="lenient.example.com",kind="webhook",type="validate",operation="CREATE"} 1"#,
        r#"step_admission_duration_seconds_count{type="validate",operation="CREATE",rejected="true"} 2"#,
        r#"controller_admission_duration_seconds_count{name="ValidatingAdmissionWebhook",type="validate",operation="CREATE",rejected="false"} 2"#,
    ] {
        let line = format!("apiserver_admission_{line}\n");
        assert!(text.contains(&line), "no {line} in {text}");
    }
}
