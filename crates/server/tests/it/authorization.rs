//! The configuration of authorizers: their order, and webhooks (S8.24).

use std::time::Duration;

use headwater_json::{Value, json};
use headwater_server::Authorization;
use headwater_server::authorization::configuration::AuthorizationConfiguration;

use crate::api::{Api, CMS, config_map};
use crate::https::TestHttps;

const REVIEWS: &str = "/apis/authorization.k8s.io/v1";

/// A webhook that allows what users named after a verb ask with that verb, and denies `mallory`.
async fn webhook() -> TestHttps {
    TestHttps::start(|_| {
        Box::new(|_, review| {
            assert_eq!(review["kind"], "SubjectAccessReview");
            let spec = &review["spec"];
            let user = spec["user"].as_str().unwrap();
            let verb = spec["resourceAttributes"]["verb"].as_str().unwrap_or_default();
            match user {
                "broken" => (500, json!({})),
                "mallory" => (200, json!({ "status": { "denied": true, "reason": "no mallory" } })),
                _ if verb == user => {
                    (200, json!({ "status": { "allowed": true, "reason": "by name" } }))
                }
                _ => (200, json!({ "status": { "allowed": false, "reason": "not by name" } })),
            }
        })
    })
    .await
}

async fn start(https: &TestHttps, failure_policy: &str, conditions: &Value) -> Api {
    let directory = tempfile::tempdir().unwrap();
    let webhook = json!({
        "authorizedTTL": "60s", "unauthorizedTTL": "10s", "timeout": "5s",
        "subjectAccessReviewVersion": "v1", "matchConditionSubjectAccessReviewVersion": "v1",
        "failurePolicy": failure_policy, "matchConditions": conditions,
        "connectionInfo": {
            "type": "KubeConfigFile", "kubeConfigFile": https.kubeconfig(directory.path(), "/authorize"),
        },
    });
    let file = json!({
        "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthorizationConfiguration",
        "authorizers": [
            { "type": "Webhook", "name": "hook", "webhook": webhook },
            { "type": "Node", "name": "node" }, { "type": "RBAC", "name": "rbac" },
        ],
    });
    let read = AuthorizationConfiguration::parse(file.to_string().as_bytes()).unwrap();
    Api::authorized_by(Authorization::new(read).unwrap()).await
}

/// S8.24
#[tokio::test]
async fn a_webhook_decides_before_roles_and_its_answers_are_kept() {
    let https = webhook().await;
    let api = start(&https, "Deny", &json!([])).await;
    api.allow("joe", &["list"], "", &["configmaps"]).await;
    api.allow("mallory", &["list"], "", &["configmaps"]).await;
    let list = format!("GET {CMS}");
    for _ in 0..3 {
        // `list` has no role, `joe` has one, `mallory`'s does not count.
        api.as_user("list", &[]).check(&list, &Value::Null, 200, "").await;
        api.as_user("joe", &[]).check(&list, &Value::Null, 200, "").await;
        let refused = "cannot list resource \"configmaps\" in API group \"\" in the namespace \
                       \"ns\": no mallory";
        api.as_user("mallory", &[]).check(&list, &Value::Null, 403, refused).await;
        api.as_user("jane", &[]).check(&list, &Value::Null, 403, "not by name").await;
    }
    assert_eq!(https.count("/authorize"), 4, "answers are kept");
    // Answers that do not allow are kept for a shorter time.
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(11)).await;
    tokio::time::resume();
    api.as_user("list", &[]).check(&list, &Value::Null, 200, "").await;
    api.as_user("jane", &[]).check(&list, &Value::Null, 403, "").await;
    assert_eq!(https.count("/authorize"), 5);

    // Administrators and health checks do not depend on it.
    let asked = https.count("/authorize");
    api.get(CMS).await.is(200, "");
    assert_eq!(https.count("/authorize"), asked);
    // A failure denies, and is not kept.
    let broken = api.as_user("broken", &[]);
    for count in 1..=2 {
        broken.check(&list, &Value::Null, 403, "").await;
        assert_eq!(https.count("/authorize"), asked + count);
    }
    // Reviews say so.
    let on = json!({ "verb": "list", "resource": "configmaps", "namespace": "ns" });
    let review = |user: &str| json!({ "spec": { "user": user, "resourceAttributes": on } });
    let target = format!("{REVIEWS}/subjectaccessreviews");
    let status = api.create(&target, &review("mallory")).await["status"].clone();
    assert_eq!(status, json!({ "allowed": false, "denied": true, "reason": "no mallory" }));
    let status = api.create(&target, &review("broken")).await["status"].clone();
    assert_eq!((&status["allowed"], &status["denied"]), (&json!(false), &json!(true)));
    assert!(status["evaluationError"].as_str().unwrap().contains("\"hook\" cannot be asked"));
}

/// S8.24
#[tokio::test]
async fn conditions_limit_what_a_webhook_is_asked_and_failures_may_be_passed_over() {
    let https = webhook().await;
    let conditions = json!([
        { "expression": "has(request.resourceAttributes)" },
        { "expression": "request.resourceAttributes.resource == 'configmaps'" },
        { "expression": "!('system:serviceaccounts' in request.groups)" },
    ]);
    let api = start(&https, "NoOpinion", &conditions).await;
    api.allow("broken", &["list"], "", &["configmaps"]).await;
    let list = api.as_user("list", &[]);
    list.check(&format!("GET {CMS}"), &Value::Null, 200, "").await;
    let asked = https.count("/authorize");
    list.check("GET /api/v1/namespaces/ns/secrets", &Value::Null, 403, "").await;
    list.check("GET /metrics", &Value::Null, 403, "").await;
    let robot = api.as_user("list", &["system:serviceaccounts"]);
    robot.check(&format!("GET {CMS}"), &Value::Null, 403, "").await;
    assert_eq!(https.count("/authorize"), asked);
    // The webhook fails; the role decides.
    api.as_user("broken", &[]).check(&format!("GET {CMS}"), &Value::Null, 200, "").await;
    let exclusions = api.metrics.authorization_exclusions.with(&["hook"]).get();
    assert_eq!(exclusions, 3);
}

/// An expression cannot wait: it is evaluated again with the answer.
#[tokio::test]
async fn expressions_of_policies_ask_the_webhook_too() {
    let https = webhook().await;
    let api = start(&https, "Deny", &json!([])).await;
    let group = "/apis/admissionregistration.k8s.io/v1";
    let expression = "authorizer.group('').resource('configmaps').namespace('ns').check('create').allowed() \
         && !authorizer.group('').resource('secrets').check('get').allowed()";
    let policy = json!({ "metadata": { "name": "p" }, "spec": {
        "matchConstraints": { "resourceRules": [{
            "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
            "resources": ["configmaps"],
        }] },
        "validations": [{ "expression": expression }],
    }});
    api.create(&format!("{group}/validatingadmissionpolicies"), &policy).await;
    let binding = json!({ "metadata": { "name": "b" }, "spec": {
        "policyName": "p", "validationActions": ["Deny"],
    }});
    api.create(&format!("{group}/validatingadmissionpolicybindings"), &binding).await;
    let post = format!("POST {CMS}");
    api.as_user("create", &[]).check(&post, &config_map("a"), 201, "").await;
    // The administrator may read secrets, so the policy denies.
    let denied = api.post(CMS, &config_map("b")).await;
    denied.is(422, "failed expression");
}

/// S8.24
#[tokio::test(start_paused = true)]
async fn without_an_authorizer_that_allows_only_administrators_may_do_anything() {
    let modes = |list: &[&str]| list.iter().map(|mode| (*mode).to_owned()).collect::<Vec<_>>();
    let from = |list: &[&str]| {
        let read = AuthorizationConfiguration::from_flags(&modes(list), None).unwrap();
        Authorization::new(read).unwrap()
    };
    let api = Api::authorized_by(from(&["AlwaysDeny"])).await;
    let list = format!("GET {CMS}");
    api.as_user("joe", &[]).check(&list, &Value::Null, 403, "Everything is forbidden.").await;
    api.get(CMS).await.is(200, "");
    let api = Api::authorized_by(from(&["AlwaysAllow"])).await;
    api.as_user("joe", &[]).check(&list, &Value::Null, 200, "").await;
    // Without node authorization a node has the rights of its roles.
    let api = Api::authorized_by(from(&["RBAC"])).await;
    let kubelet = api.as_user("system:node:n1", &["system:nodes"]);
    kubelet.check("GET /api/v1/nodes/n1", &Value::Null, 403, "cannot get").await;
}
