//! `headwater relay` with real clients: kubectl, kube-rs, Python.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use futures::{StreamExt, TryStreamExt};
use headwater_testkit::tools::has_kubectl;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ObjectMeta, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Config};

use crate::process::{Process, headwater, run};
use crate::python::python;

/// A server, a relay in front of it, and a kubeconfig for the relay.
struct Relayed {
    _upstream: Process,
    relay: Child,
    dir: tempfile::TempDir,
    kubeconfig: PathBuf,
}

impl Relayed {
    fn start() -> Relayed {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name);
        let (admin, tokens) = (file("admin"), file("tokens"));
        fs::write(&tokens, "secret-token,jane,1,system:masters\n").unwrap();
        fs::set_permissions(&tokens, fs::Permissions::from_mode(0o600)).unwrap();
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let upstream = Process::serve(&[
            "--memory",
            "--kubeconfig-out",
            &text(&admin),
            "--token-auth-file",
            &text(&tokens),
        ]);
        let kubeconfig = file("relay");
        let args = ["relay", "--all", "--bind", "127.0.0.1:0"];
        let mut command = headwater(&args);
        command.args(["--upstream", &text(&admin), "--data-dir", &text(&file("data"))]);
        command.args(["--kubeconfig-out", &text(&kubeconfig)]);
        let mut relay = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(relay.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        assert!(ready.starts_with("ready at https://127.0.0.1:"), "{ready}");
        let given = fs::read_to_string(&kubeconfig).unwrap();
        let user = "users:\n- name: user\n  user:\n    token: secret-token\n";
        fs::write(&kubeconfig, given.replace("users: []\n", user)).unwrap();
        Relayed { _upstream: upstream, relay, dir, kubeconfig }
    }

    #[track_caller]
    fn kubectl(&self, line: &str) -> String {
        let output = Command::new("kubectl")
            .args(line.split_whitespace())
            .env("KUBECONFIG", &self.kubeconfig)
            .env("HOME", self.dir.path())
            .env_remove("http_proxy")
            .env_remove("https_proxy")
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{line}: {text}{errors}");
        text
    }
}

impl Drop for Relayed {
    fn drop(&mut self) {
        let _ = (self.relay.kill(), self.relay.wait());
    }
}

#[test]
fn kubectl_reads_and_writes_through_a_relay() {
    if !has_kubectl() {
        return;
    }
    let relayed = Relayed::start();
    relayed.kubectl("create namespace shop");
    relayed.kubectl("create configmap settings -n shop --from-literal=a=b");
    let table = relayed.kubectl("get configmaps -n shop");
    assert!(table.contains("settings") && table.contains("DATA"), "{table}");
    relayed.kubectl("label configmap settings -n shop tier=web");
    assert!(relayed.kubectl("get configmaps -A -l tier=web -o name").contains("settings"));
    assert!(relayed.kubectl("describe configmap settings -n shop").contains("tier=web"));
    assert!(relayed.kubectl("api-resources").contains("deployments"));
    assert!(relayed.kubectl("explain configmap.data").contains("FIELD"));
    relayed.kubectl("create deployment web -n shop --image=web");
    assert!(relayed.kubectl("get all -n shop").contains("deployment.apps/web"));
    relayed.kubectl("delete configmap settings -n shop");
    assert!(!relayed.kubectl("get configmaps -n shop -o name").contains("settings"));
    assert!(relayed.kubectl("auth can-i list pods").contains("yes"));
}

#[test]
fn the_python_client_works_through_a_relay() {
    let Some(python) = python() else { return };
    let relayed = Relayed::start();
    let scripts = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/python"));
    let output = Command::new(python)
        .arg(scripts.join("client.py"))
        .env("KUBECONFIG", &relayed.kubeconfig)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("NO_PROXY", "*")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said.trim(), "ok", "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn kube_rs_watches_through_a_relay() {
    let relayed = tokio::task::block_in_place(Relayed::start);
    let read = Kubeconfig::read_from(&relayed.kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(Client::try_from(config).unwrap(), "default");
    let stream = watcher(maps.clone(), watcher::Config::default().streaming_lists());
    let mut seen = stream.applied_objects().boxed();
    for n in 0..10 {
        let name = Some(format!("m{n}"));
        let map = ConfigMap {
            metadata: ObjectMeta { name: name.clone(), ..ObjectMeta::default() },
            ..ConfigMap::default()
        };
        maps.create(&PostParams::default(), &map).await.unwrap();
        while seen.try_next().await.unwrap().unwrap().metadata.name != name {}
    }
}

#[test]
fn what_to_relay_must_be_said() {
    let error = |args: &[&str]| String::from_utf8(run(args).stderr).unwrap();
    let missing = error(&["relay", "--upstream", "x"]);
    assert!(missing.contains("--resources") && missing.contains("--all"), "{missing}");
    let unknown = error(&["relay", "--upstream", "/nonexistent", "--all"]);
    assert!(unknown.contains("cannot read --upstream /nonexistent"), "{unknown}");
}
