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
use rustix::process::{Pid, Signal};

use crate::process::{Process, headwater, run};
use crate::python::python;

/// A relay process that is killed when dropped.
pub(crate) struct RelayProcess {
    child: Child,
    /// The port it serves on.
    pub(crate) port: u16,
    /// A kubeconfig with the token of [`TOKENS`].
    pub(crate) kubeconfig: PathBuf,
}

/// The only user of the servers that are relayed: an administrator.
pub(crate) const TOKENS: &str = "secret-token,jane,1,system:masters\n";

impl RelayProcess {
    /// Starts a relay of everything, in a directory; 0 is a free port. `None` if it ends at its start.
    pub(crate) fn start(
        upstream: &Path,
        dir: &Path,
        port: u16,
        more: &[&str],
    ) -> Option<RelayProcess> {
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let kubeconfig = dir.join("relay-clients");
        let mut command = headwater(&["relay", "--bind", &format!("127.0.0.1:{port}")]);
        command.args(["--upstream", &text(upstream), "--data-dir", &text(&dir.join("relay-data"))]);
        command.args(["--kubeconfig-out", &text(&kubeconfig)]).args(more);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        let Some(rest) = ready.strip_prefix("ready at https://127.0.0.1:") else {
            child.wait().unwrap();
            return None;
        };
        let port = rest.split(';').next().unwrap().parse().unwrap();
        let given = fs::read_to_string(&kubeconfig).unwrap();
        let user = "users:\n- name: user\n  user:\n    token: secret-token\n";
        fs::write(&kubeconfig, given.replace("users: []\n", user)).unwrap();
        Some(RelayProcess { child, port, kubeconfig })
    }

    /// Ends it with a signal.
    pub(crate) fn end(mut self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for RelayProcess {
    fn drop(&mut self) {
        // It may have exited.
        let _ = (self.child.kill(), self.child.wait());
    }
}

/// Starts a server that knows [`TOKENS`]; also returns the kubeconfig of its administrator.
pub(crate) fn upstream(dir: &Path, storage: &[&str]) -> (Process, PathBuf) {
    let (admin, tokens) = (dir.join("admin"), dir.join("tokens"));
    fs::write(&tokens, TOKENS).unwrap();
    fs::set_permissions(&tokens, fs::Permissions::from_mode(0o600)).unwrap();
    let files = [
        "--kubeconfig-out",
        admin.to_str().unwrap(),
        "--token-auth-file",
        tokens.to_str().unwrap(),
    ];
    (Process::serve(&[storage, &files].concat()), admin)
}

/// A server, a relay in front of it, and a kubeconfig for the relay.
struct Relayed {
    _upstream: Process,
    relay: RelayProcess,
    dir: tempfile::TempDir,
}

impl Relayed {
    fn start() -> Relayed {
        let dir = tempfile::tempdir().unwrap();
        let (upstream, admin) = upstream(dir.path(), &["--memory"]);
        let relay = RelayProcess::start(&admin, dir.path(), 0, &["--all"]).unwrap();
        Relayed { _upstream: upstream, relay, dir }
    }

    #[track_caller]
    fn kubectl(&self, line: &str) -> String {
        let output = Command::new("kubectl")
            .args(line.split_whitespace())
            .env("KUBECONFIG", &self.relay.kubeconfig)
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

/// A process that is killed when dropped.
struct KilledChild(Child);

impl Drop for KilledChild {
    fn drop(&mut self) {
        // It may have exited.
        let _ = (self.0.kill(), self.0.wait());
    }
}

#[test]
fn controllers_and_examples_run_on_a_relay_unchanged() {
    if !has_kubectl() {
        return;
    }
    let relayed = Relayed::start();
    let kubeconfig = relayed.relay.kubeconfig.to_str().unwrap();
    let mut command = headwater(&["controllers", "--no-leader-election", "--nodes", "2"]);
    command.args(["--kubeconfig", kubeconfig]).stdout(Stdio::null());
    let _controllers = KilledChild(command.spawn().unwrap());
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/breathing.yaml");
    relayed.kubectl(&format!("apply -f {example}"));
    relayed.kubectl("rollout status deployment/breathing --timeout=120s");
    let pods = relayed.kubectl("get pods -l app=breathing -o name");
    assert!(pods.contains("pod/breathing-"), "{pods}");
    relayed.kubectl(&format!("delete --wait -f {example}"));
}

#[test]
fn the_python_client_works_through_a_relay() {
    let Some(python) = python() else { return };
    let relayed = Relayed::start();
    let scripts = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/python"));
    let output = Command::new(python)
        .arg(scripts.join("client.py"))
        .env("KUBECONFIG", &relayed.relay.kubeconfig)
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
    let read = Kubeconfig::read_from(&relayed.relay.kubeconfig).unwrap();
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
    assert!(
        unknown.contains("cannot read kubeconfig /nonexistent: there is no such file; --upstream"),
        "{unknown}"
    );
}
