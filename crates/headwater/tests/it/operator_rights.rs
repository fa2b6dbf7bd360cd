//! The example of an operator, with a service account and a Role of its own.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use headwater_client::Factory;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::rbac::v1::Role;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::credentials::client;
use crate::process::{Process, run};

#[path = "../../../client/examples/operator.rs"]
#[expect(dead_code, unreachable_pub, reason = "a program of its own, whose main is for people")]
mod operator;

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const USER: &str = "system:serviceaccount:default:operator";
const PATIENCE: Duration = Duration::from_secs(600);

fn rule(group: &str, resource: &str, verbs: &[&str]) -> Value {
    json!({ "apiGroups": [group], "resources": [resource], "verbs": verbs })
}

/// What the operator may do in its namespace.
fn rules(config_maps: &[&str]) -> Value {
    json!([
        rule("example.com", "webapps", &["patch"]),
        rule("example.com", "webapps/finalizers", &["update"]),
        rule("apps", "deployments", &["create", "patch"]),
        rule("", "configmaps", config_maps),
        rule("events.k8s.io", "events", &["create", "patch"]),
        rule("", "events", &["create", "patch"]),
    ])
}

fn make(server: &Process, path: &str, body: &Value) {
    let made = server.post(path, &body.to_string());
    assert!(made.starts_with("HTTP/1.1 201 "), "{made}");
}

fn bind(server: &Process, path: &str, kind: &str) {
    let role = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": "operator" });
    let subject = json!({ "kind": "ServiceAccount", "name": "operator", "namespace": "default" });
    let binding =
        json!({ "metadata": { "name": "operator" }, "roleRef": role, "subjects": [subject] });
    make(server, path, &binding);
}

/// The requests of the operator that were refused: verb, resource and message.
fn refused(log: &Path) -> Vec<(String, String, String)> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let complete = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let ours = complete.filter(|event| {
        event["user"]["username"] == USER && event["responseStatus"]["code"] == 403
    });
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    ours.map(|event| {
        let message = word(&event["responseStatus"]["message"]);
        (word(&event["verb"]), word(&event["objectRef"]["resource"]), message)
    })
    .collect()
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !holds().await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect(what);
}

/// S8.10: it works with the rights that its Role names, and a verb that is taken away makes exactly
/// that call fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_runs_with_its_role_and_a_verb_taken_away_fails_one_call() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (data, policy, log) = (place("data"), place("policy.json"), place("audit.log"));
    let written = json!({
        "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
        "rules": [{ "level": "Metadata" }],
    });
    std::fs::write(&policy, written.to_string()).unwrap();
    let flags = ["--data-dir", &data, "--audit-policy-file", &policy, "--audit-log-path", &log];
    let server = Process::serve(&flags);
    let log = Path::new(&log);
    make(
        &server,
        "/api/v1/namespaces/default/serviceaccounts",
        &json!({ "metadata": { "name": "operator" } }),
    );
    let reads = json!([
        rule("apiextensions.k8s.io", "customresourcedefinitions", &["create", "patch"]),
        rule("example.com", "webapps", &["list", "watch"]),
        rule("apps", "deployments", &["list", "watch"]),
    ]);
    let name = json!({ "name": "operator" });
    make(&server, &format!("{RBAC}/clusterroles"), &json!({ "metadata": name, "rules": reads }));
    bind(&server, &format!("{RBAC}/clusterrolebindings"), "ClusterRole");
    let all = rules(&["create", "patch"]);
    let roles = format!("{RBAC}/namespaces/default/roles");
    make(&server, &roles, &json!({ "metadata": name, "rules": all }));
    bind(&server, &format!("{RBAC}/namespaces/default/rolebindings"), "Role");

    let admin = format!("{data}/admin.kubeconfig");
    let token = ["kubeconfig", "--service-account", "default/operator", "--kubeconfig", &admin];
    let made = run(&token);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let own = client(&String::from_utf8(made.stdout).unwrap()).await;
    let stop = Arc::new(Notify::new());
    let mut parts = JoinSet::new();
    let stopped = Arc::clone(&stop);
    parts.spawn(async move {
        operator::operate(&Factory::new(own), stopped.notified()).await.unwrap();
    });

    let admin = client(&std::fs::read_to_string(&admin).unwrap()).await;
    let apps = Api::<operator::WebApp>::namespaced(admin.clone(), "default");
    let maps = Api::<ConfigMap>::namespaced(admin.clone(), "default");
    let deployments = Api::<Deployment>::namespaced(admin.clone(), "default");
    let roles = Api::<Role>::namespaced(admin, "default");
    let app: operator::WebApp = serde_json::from_value(json!({
        "apiVersion": "example.com/v1", "kind": "WebApp",
        "metadata": { "name": "shop", "namespace": "default" },
        "spec": { "image": "shop:1", "replicas": 1 },
    }))
    .unwrap();
    until("the definition is served", async || {
        apps.create(&PostParams::default(), &app).await.is_ok()
    })
    .await;
    let listed = async |image: &str| {
        let map = maps.get_opt("directory").await.unwrap();
        let shop = map.and_then(|map| map.data?.remove("shop"));
        shop.as_deref() == Some(image)
    };
    until("the operator works", async || listed("shop:1").await).await;
    assert_eq!(refused(log), [], "it needs no other right");

    let change = async |config_maps: &[&str]| {
        let merge = Patch::Merge(json!({ "rules": rules(config_maps) }));
        roles.patch("operator", &PatchParams::default(), &merge).await.unwrap();
    };
    change(&["create"]).await;
    let newer = Patch::Merge(json!({ "spec": { "image": "shop:2", "replicas": 3 } }));
    apps.patch("shop", &PatchParams::default(), &newer).await.unwrap();
    until("a call is refused", async || !refused(log).is_empty()).await;
    // The call before it succeeded.
    until("the Deployment has changed", async || {
        let deployment = deployments.get("shop").await.unwrap();
        deployment.spec.and_then(|spec| spec.replicas) == Some(3)
    })
    .await;
    let message = format!(
        "configmaps \"directory\" is forbidden: User \"{USER}\" cannot patch resource \
         \"configmaps\" in API group \"\" in the namespace \"default\""
    );
    for call in refused(log) {
        assert_eq!(call, ("patch".to_owned(), "configmaps".to_owned(), message.clone()));
    }
    assert!(!listed("shop:2").await);

    change(&["create", "patch"]).await;
    until("it works again", async || listed("shop:2").await).await;
    stop.notify_one();
    until("the operator stops", async || parts.try_join_next().is_some()).await;
}
