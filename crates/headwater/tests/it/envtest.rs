//! The programs for controller-runtime's envtest, with the flags and files that envtest uses.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use headwater_api::SystemClock;
use headwater_server::pki::{Pki, names};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ServiceAccount};
use kube::api::{Api, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::json;

use crate::process::run;

/// A process that is killed when dropped.
struct Started(Child);

impl Started {
    fn new(program: &Path, flags: &[String]) -> Started {
        let mut command = Command::new(program);
        Started(command.args(flags).stdout(Stdio::null()).spawn().unwrap())
    }

    /// Stops it as envtest does; returns whether it exited with success.
    fn stop(mut self) -> bool {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args(["-s", "TERM", &pid]).status().unwrap().success());
        self.0.wait().unwrap().success()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // It may have exited.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn flags(list: &[(&str, String)]) -> Vec<String> {
    list.iter().map(|(name, value)| format!("--{name}={value}")).collect()
}

fn health(port: u16) -> String {
    loop {
        let mut answer = String::new();
        if let Ok(mut socket) = TcpStream::connect(("127.0.0.1", port)) {
            let request = "GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
            socket.write_all(request.as_bytes()).unwrap();
            socket.read_to_string(&mut answer).unwrap();
            return answer;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[tokio::test]
async fn the_flags_and_files_of_envtest_work_unchanged() {
    let home = tempfile::tempdir().unwrap();
    let assets = home.path().join("assets");
    let linked = run(&["envtest", assets.to_str().unwrap()]);
    let text = String::from_utf8(linked.stdout).unwrap();
    assert!(text.starts_with("export KUBEBUILDER_ASSETS=/"), "{text}");
    assert!(run(&["envtest", assets.to_str().unwrap()]).status.success(), "twice is once");

    // envtest first reads the flags from the help.
    for name in ["kube-apiserver", "etcd"] {
        let help = Command::new(assets.join(name)).arg("--help").output().unwrap();
        assert!(help.status.success());
        assert!(!String::from_utf8(help.stdout).unwrap().contains("--insecure-port"));
    }

    let [etcd_port, peer_port, port] = headwater_testkit::ports::free(3)[..] else { panic!() };
    let etcd_url = format!("http://127.0.0.1:{etcd_port}");
    let data = home.path().join("etcd").display().to_string();
    let etcd = Started::new(
        &assets.join("etcd"),
        &flags(&[
            ("advertise-client-urls", etcd_url.clone()),
            ("data-dir", data),
            ("listen-client-urls", etcd_url.clone()),
            ("listen-peer-urls", format!("http://127.0.0.1:{peer_port}")),
        ]),
    );
    assert!(health(etcd_port).starts_with("HTTP/1.1 200"));

    // Its files: a serving certificate, an authority for clients, keys of service accounts.
    let certificates = home.path().join("certs");
    std::fs::create_dir(&certificates).unwrap();
    let serving = Pki::in_memory(&names("127.0.0.1".parse().unwrap(), &[]), &SystemClock).unwrap();
    let clients = Pki::in_memory(&names("127.0.0.1".parse().unwrap(), &[]), &SystemClock).unwrap();
    for (name, text) in [
        ("apiserver.crt", serving.server.certificate.as_str()),
        ("apiserver.key", serving.server.key.reveal()),
        ("client-cert-auth-ca.crt", &clients.ca),
        ("sa-signer.crt", &serving.ca),
        ("sa-signer.key", serving.service_account_key.reveal()),
    ] {
        let path = certificates.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    }
    let file = |name: &str| certificates.join(name).display().to_string();
    let server = Started::new(
        &assets.join("kube-apiserver"),
        &flags(&[
            ("allow-privileged", "true".into()),
            ("authorization-mode", "RBAC".into()),
            ("bind-address", "127.0.0.1".into()),
            ("cert-dir", certificates.display().to_string()),
            ("client-ca-file", file("client-cert-auth-ca.crt")),
            ("disable-admission-plugins", "ServiceAccount".into()),
            ("etcd-servers", etcd_url),
            ("secure-port", port.to_string()),
            ("service-account-issuer", format!("https://127.0.0.1:{port}/")),
            ("service-account-key-file", file("sa-signer.crt")),
            ("service-account-signing-key-file", file("sa-signer.key")),
            ("service-cluster-ip-range", "10.0.0.0/24".into()),
        ]),
    );

    let client = client(port, &serving, &clients).await;
    while client
        .request_text(http::Request::get("/healthz").body(Vec::new()).unwrap())
        .await
        .is_err()
    {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Api::<Namespace>::all(client.clone()).get("default").await.unwrap();
    let maps = Api::<ConfigMap>::default_namespaced(client.clone());
    let map = serde_json::from_value(json!({"metadata": {"name": "a"}})).unwrap();
    maps.create(&PostParams::default(), &map).await.unwrap();
    let accounts = Api::<ServiceAccount>::default_namespaced(client);
    let account = serde_json::from_value(json!({"metadata": {"name": "robot"}})).unwrap();
    accounts.create(&PostParams::default(), &account).await.unwrap();
    let request =
        serde_json::from_value(json!({"metadata": {}, "spec": {"audiences": []}})).unwrap();
    accounts.create_token_request("robot", &PostParams::default(), &request).await.unwrap();

    assert!(server.stop(), "it ends well when it is told to");
    assert!(etcd.stop());
}

/// A client like that of envtest: the server's authority and a client certificate.
async fn client(port: u16, serving: &Pki, clients: &Pki) -> Client {
    let encode = |text: &str| STANDARD.encode(text);
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "envtest",
        "clusters": [{"name": "envtest", "cluster": {
            "server": format!("https://127.0.0.1:{port}"),
            "certificate-authority-data": encode(&serving.ca),
        }}],
        "users": [{"name": "envtest", "user": {
            "client-certificate-data": encode(&clients.admin.certificate),
            "client-key-data": encode(clients.admin.key.reveal()),
        }}],
        "contexts": [{"name": "envtest", "context": {"cluster": "envtest", "user": "envtest"}}],
    });
    let kubeconfig: Kubeconfig = serde_json::from_value(config).unwrap();
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
    Client::try_from(config).unwrap()
}

#[test]
fn kubectl_runs_the_next_kubectl_on_the_path() {
    let home = tempfile::tempdir().unwrap();
    assert!(run(&["envtest", home.path().to_str().unwrap()]).status.success());
    let link = home.path().join("kubectl");
    let output = Command::new(&link).env("PATH", home.path()).output().unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("no kubectl found on the PATH"), "{text}");

    let other = tempfile::tempdir().unwrap();
    let real = other.path().join("kubectl");
    std::fs::write(&real, "#!/bin/sh\necho \"real $*\"\n").unwrap();
    std::fs::set_permissions(&real, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = std::env::join_paths([home.path(), other.path()]).unwrap();
    let output = Command::new(&link).args(["get", "pods"]).env("PATH", path).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "real get pods\n");
}

#[test]
fn an_existing_file_is_not_replaced_by_a_link() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("etcd"), "precious").unwrap();
    assert!(!run(&["envtest", home.path().to_str().unwrap()]).status.success());
    assert_eq!(std::fs::read_to_string(home.path().join("etcd")).unwrap(), "precious");
}
