//! Pod Security admission: refusals, warnings and the labels of namespaces.

use headwater_json::{Value, json};

use crate::api::{Api, deployment, pod};

fn namespace(name: &str, labels: &Value) -> Value {
    let mut object = json!({ "metadata": { "name": name, "labels": {} } });
    for (key, value) in labels.as_object().unwrap() {
        let key = format!("pod-security.kubernetes.io/{key}");
        object["metadata"]["labels"][key.as_str()] = value.clone();
    }
    object
}

const NAMESPACES: &str = "/api/v1/namespaces";

#[tokio::test(start_paused = true)]
async fn pods_are_refused_and_controllers_are_warned_about() {
    let api = Api::start().await;
    api.create(NAMESPACES, &namespace("strict", &json!({ "enforce": "restricted" }))).await;
    api.create(NAMESPACES, &namespace("warned", &json!({ "warn": "baseline" }))).await;
    let mut host = pod("a", "");
    host["spec"]["hostNetwork"] = true.into();
    let strict = "/api/v1/namespaces/strict/pods";
    let why = "pods \"a\" is forbidden: violates PodSecurity \"restricted:latest\": host namespaces (hostNetwork=true), ";
    api.post(strict, &host).await.fails(403, "Forbidden", why);
    let warned = api.post("/api/v1/namespaces/warned/pods", &host).await;
    warned.is(201, "");
    let text = "would violate PodSecurity \"baseline:latest\": host namespaces (hostNetwork=true)";
    assert!(warned.header("warning").contains(&text.replace('"', "\\\"")));
    let made = api.post("/apis/apps/v1/namespaces/strict/deployments", &deployment("d")).await;
    made.is(201, "");
    assert!(made.header("warning").contains("would violate PodSecurity"));
    // Changes that cannot matter are not checked again.
    api.create(NAMESPACES, &namespace("later", &json!({}))).await;
    api.create("/api/v1/namespaces/later/pods", &host).await;
    let later = format!("{NAMESPACES}/later");
    let labels = namespace("later", &json!({ "enforce": "baseline" }));
    let changed = api.merge(&later, &labels).await;
    changed.is(200, "");
    assert!(changed.header("warning").contains("existing pods in namespace"));
    let labelled = json!({ "metadata": { "labels": { "a": "b" } } });
    api.merge("/api/v1/namespaces/later/pods/a", &labelled).await.is(200, "");
    let image = json!([{ "op": "replace", "path": "/spec/containers/0/image", "value": "new" }]);
    let path = "/api/v1/namespaces/later/pods/a";
    let patched = api.patch("application/json-patch+json", path, image.to_string()).await;
    patched.fails(403, "Forbidden", "pods \"a\" is forbidden: violates");
}

#[tokio::test(start_paused = true)]
async fn wrong_labels_of_a_namespace_are_refused() {
    let api = Api::start().await;
    let wrong = namespace("a", &json!({ "enforce": "strict", "warn-version": "1.2" }));
    let status = api.post(NAMESPACES, &wrong).await.fails(422, "Invalid", "Namespace \"a\"");
    let causes = status["details"]["causes"].as_array().unwrap();
    let fields: Vec<&str> = causes.iter().map(|cause| cause["field"].as_str().unwrap()).collect();
    let prefix = "metadata.labels[pod-security.kubernetes.io/";
    assert_eq!(fields, [format!("{prefix}enforce]"), format!("{prefix}warn-version]")]);
    api.create(NAMESPACES, &namespace("a", &json!({ "enforce": "baseline" }))).await;
    let wrong = namespace("a", &json!({ "audit": "strict" }));
    api.merge(&format!("{NAMESPACES}/a"), &wrong).await.fails(422, "Invalid", "");
}
