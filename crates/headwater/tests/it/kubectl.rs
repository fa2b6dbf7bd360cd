//! kubectl with a running server.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use headwater_testkit::tools::has_kubectl;

use crate::process::Process;

/// A server, and a kubectl configured for it.
pub(crate) struct Kubectl {
    _server: Process,
    pub(crate) dir: tempfile::TempDir,
    kubeconfig: PathBuf,
}

impl Kubectl {
    /// `None` if the machine has no kubectl.
    pub(crate) fn start() -> Option<Kubectl> {
        if !has_kubectl() {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let kubeconfig = dir.path().join("kubeconfig");
        let server =
            Process::serve(&["--memory", "--kubeconfig-out", kubeconfig.to_str().unwrap()]);
        Some(Kubectl { _server: server, dir, kubeconfig })
    }

    pub(crate) fn command(&self, line: &str) -> Command {
        let mut command = Command::new("kubectl");
        command
            .args(line.split_whitespace())
            .env("KUBECONFIG", &self.kubeconfig)
            .env("HOME", self.dir.path())
            .env_remove("http_proxy")
            .env_remove("https_proxy");
        command
    }

    pub(crate) fn output(&self, line: &str) -> Output {
        self.command(line).output().unwrap()
    }

    /// Fails unless the command succeeds and prints all of these.
    #[track_caller]
    pub(crate) fn expect(&self, line: &str, expected: &[&str]) -> String {
        let output = self.output(line);
        let text = String::from_utf8(output.stdout).unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{line}: {text}{errors}");
        for part in expected {
            assert!(text.contains(part), "{line}: no {part:?} in {text}{errors}");
        }
        text
    }

    #[track_caller]
    pub(crate) fn expect_failure(&self, line: &str, expected: &str) {
        let output = self.output(line);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{line}");
        assert!(errors.contains(expected), "{line}: {errors}");
    }
}

/// S11.20
#[test]
fn kubectl_reads_and_writes() {
    let Some(kubectl) = Kubectl::start() else { return };
    kubectl.expect("get namespaces", &["NAME", "STATUS", "default", "kube-system", "Active"]);
    kubectl.expect("create namespace team", &["namespace/team created"]);
    kubectl.expect("create configmap a -n team --from-literal=x=1", &["configmap/a created"]);
    kubectl.expect_failure("create configmap a -n team --from-literal=x=1", "already exists");
    kubectl.expect("get configmaps -n team", &["NAME", "DATA", "AGE", "a"]);
    kubectl.expect("get cm a -n team -o jsonpath={.data.x}", &["1"]);
    kubectl.expect("get cm -A -l nothing=here -o name", &[]);
    kubectl.expect("label configmap a -n team env=prod", &["configmap/a labeled"]);
    kubectl.expect("get cm -n team -l env=prod -o name", &["configmap/a"]);
    kubectl.expect("annotate configmap a -n team note=hello", &["configmap/a annotated"]);
    kubectl.expect(
        "patch configmap a -n team --type=merge -p {\"data\":{\"x\":\"2\"}}",
        &["configmap/a patched"],
    );
    kubectl.expect("get cm a -n team -o yaml", &["x: \"2\"", "env: prod", "note: hello"]);
    kubectl.expect("create secret generic s -n team --from-literal=k=v", &["secret/s created"]);
    kubectl.expect("delete configmap a -n team", &["configmap \"a\" deleted"]);
    kubectl.expect_failure("get configmap a -n team", "NotFound");
    kubectl.expect("auth can-i create pods", &["yes"]);
}

#[test]
fn kubectl_discovers_the_served_resources() {
    let Some(kubectl) = Kubectl::start() else { return };
    kubectl.expect("api-resources", &["configmaps", "cm", "deployments", "apps/v1", "Deployment"]);
    kubectl.expect("api-resources --namespaced=false -o name", &["nodes", "namespaces"]);
    kubectl.expect("api-versions", &["apps/v1", "batch/v1", "v1"]);
    kubectl.expect("version", &["Server Version: v1.36."]);
}

/// S11.20
#[test]
fn kubectl_waits_and_watches() {
    let Some(kubectl) = Kubectl::start() else { return };
    kubectl.expect("create deployment web --image=img:1", &["deployment.apps/web created"]);
    kubectl.expect("scale deployment web --replicas=3", &["deployment.apps/web scaled"]);
    kubectl.expect("get deployment web -o jsonpath={.spec.replicas}", &["3"]);
    kubectl.expect(
        "wait deployment/web --for=jsonpath={.spec.replicas}=3 --timeout=600s",
        &["condition met"],
    );
    let mut watch =
        kubectl.command("get configmaps -w -o name").stdout(Stdio::piped()).spawn().unwrap();
    kubectl.expect("create configmap seen --from-literal=x=1", &["created"]);
    let lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let found = lines.map_while(Result::ok).find(|line| line == "configmap/seen");
    assert!(found.is_some());
    watch.kill().unwrap();
    watch.wait().unwrap();
    kubectl.expect("delete configmap seen --wait=true", &["deleted"]);
    kubectl.expect("delete deployment web", &["deleted"]);
}

#[test]
fn kubectl_proxies() {
    let Some(kubectl) = Kubectl::start() else { return };
    let mut proxy = kubectl.command("proxy --port=0").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(proxy.stdout.take().unwrap()).lines();
    let line = lines.next().unwrap().unwrap();
    let address = line.rsplit(' ').next().unwrap();
    let url = format!("http://{address}/api/v1/namespaces/default");
    let answer = Command::new("curl").args(["-s", "--noproxy", "*", &url]).output().unwrap();
    proxy.kill().unwrap();
    proxy.wait().unwrap();
    let text = String::from_utf8(answer.stdout).unwrap();
    assert!(text.contains("\"kind\": \"Namespace\""), "{text}");
}
