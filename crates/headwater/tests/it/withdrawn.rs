//! `headwater pki revoke` against a running server with controllers.

use std::path::Path;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::{Api, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::json;

use crate::process::{Process, run};

/// Timeout: only a hang reaches it.
const HANG: Duration = Duration::from_secs(600);

async fn client(kubeconfig: &Path) -> Client {
    let file = Kubeconfig::read_from(kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

/// Waits for a condition on the server.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < HANG, "never: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// S5, S11: the controllers and the kubeconfig get new certificates without a restart.
#[tokio::test]
async fn a_revoked_administrator_is_replaced_while_the_server_and_its_controllers_run() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let _server = Process::dev(&["--data-dir", data.to_str().unwrap(), "--nodes", "1"]);
    let kubeconfig = data.join("admin.kubeconfig");
    let stolen = dir.path().join("stolen.kubeconfig");
    std::fs::copy(&kubeconfig, &stolen).unwrap();
    let thief: Api<Namespace> = Api::all(client(&stolen).await);
    thief.get("default").await.unwrap();

    let before = std::fs::read(&kubeconfig).unwrap();
    let revoked =
        run(&["pki", "revoke", stolen.to_str().unwrap(), "--data-dir", data.to_str().unwrap()]);
    assert!(revoked.status.success(), "{revoked:?}");
    until("another kubeconfig", async || std::fs::read(&kubeconfig).unwrap() != before).await;
    until("the end of the stolen one", async || {
        matches!(thief.get("default").await, Err(kube::Error::Api(status)) if status.code == 401)
    })
    .await;

    // The controllers work with the new one: a namespace gets its service account.
    let admin = client(&kubeconfig).await;
    let namespace: Namespace =
        serde_json::from_value(json!({"metadata": {"name": "later"}})).unwrap();
    Api::all(admin.clone()).create(&PostParams::default(), &namespace).await.unwrap();
    let accounts: Api<ServiceAccount> = Api::namespaced(admin, "later");
    until("a service account", async || accounts.get_opt("default").await.unwrap().is_some()).await;
}
