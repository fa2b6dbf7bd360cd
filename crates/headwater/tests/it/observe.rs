//! `watch` and `tree` against a server: what they print of changes and of owners.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};

use serde_json::{Value, json};

use crate::process::{Process, headwater, run};

/// A server, and the path of an administrator's kubeconfig for it.
pub(crate) fn served(dir: &Path) -> (Process, String) {
    let kubeconfig = dir.join("kubeconfig").to_str().unwrap().to_owned();
    (Process::serve(&["--memory", "--kubeconfig-out", &kubeconfig]), kubeconfig)
}

/// A command that prints lines until it is dropped.
pub(crate) struct LineReader {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl LineReader {
    pub(crate) fn start(args: &[&str]) -> LineReader {
        let mut child = headwater(args).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        LineReader { child, lines }
    }

    /// The next line that satisfies a condition.
    #[track_caller]
    pub(crate) fn wait(&mut self, condition: impl Fn(&str) -> bool) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.lines.read_line(&mut line).unwrap(), 0, "it ended");
            if condition(&line) {
                return line.trim_end().to_owned();
            }
        }
    }
}

impl Drop for LineReader {
    fn drop(&mut self) {
        // It may have exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn configmap(name: &str, value: &str, owner: Option<&Value>) -> String {
    let owners: Vec<Value> = owner
        .map(|owner| {
            json!({
                "apiVersion": "v1", "kind": "ConfigMap", "name": owner["metadata"]["name"],
                "uid": owner["metadata"]["uid"], "controller": true,
            })
        })
        .into_iter()
        .collect();
    let metadata = json!({"name": name, "labels": {"app": "web"}, "ownerReferences": owners});
    json!({"metadata": metadata, "data": {"k": value}}).to_string()
}

pub(crate) const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// The object in a response.
pub(crate) fn object(answer: &str) -> Value {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 20"), "{answer}");
    serde_json::from_str(body).unwrap()
}

#[test]
fn a_watch_prints_the_fields_of_each_event() {
    let dir = tempfile::tempdir().unwrap();
    let (server, kubeconfig) = served(dir.path());
    server.post(MAPS, &configmap("a", "1", None));
    let args = ["watch", "cm", "-A", "-l", "app=web", "--diff", "--kubeconfig", &kubeconfig];
    let mut text = LineReader::start(&args);
    text.wait(|line| line.contains("LISTED   configmap/default/a"));
    let mut json = LineReader::start(&[
        "watch",
        "configmap/a",
        "-n",
        "default",
        "-o",
        "json",
        "--kubeconfig",
        &kubeconfig,
    ]);
    let first = json.wait(|_| true);
    let first: Value = serde_json::from_str(&first).unwrap();
    assert_eq!((&first["type"], &first["initial"]), (&json!("ADDED"), &json!(true)));

    server.put(&format!("{MAPS}/a"), &configmap("a", "2", None));
    text.wait(|line| line.contains("MODIFIED configmap/default/a"));
    assert_eq!(text.wait(|_| true), r#"  ~ data.k: "1" → "2""#);
    let change: Value = serde_json::from_str(&json.wait(|_| true)).unwrap();
    assert_eq!(change["type"], "MODIFIED");
    let expected = json!([{"path": "data.k", "op": "replace", "old": "1", "new": "2"}]);
    assert_eq!(change["changes"], expected);
    assert_eq!(change["apiVersion"], "v1");
}

#[test]
fn a_tree_shows_owners_above_and_owned_objects_below() {
    let dir = tempfile::tempdir().unwrap();
    let (server, kubeconfig) = served(dir.path());
    let root = object(&server.post(MAPS, &configmap("root", "1", None)));
    let middle = object(&server.post(MAPS, &configmap("middle", "1", Some(&root))));
    server.post(MAPS, &configmap("leaf", "1", Some(&middle)));
    server.post(MAPS, &configmap("other", "1", Some(&root)));
    let tree = run(&["tree", "cm/middle", "-n", "default", "--kubeconfig", &kubeconfig]);
    let text = String::from_utf8(tree.stdout).unwrap();
    let names: Vec<&str> =
        text.lines().map(|line| line.split("  - ").next().unwrap().trim_end()).collect();
    assert_eq!(
        names,
        ["ConfigMap/root", "└─ ConfigMap/middle", "   └─ ConfigMap/leaf"],
        "{text}{}",
        String::from_utf8_lossy(&tree.stderr)
    );
}

#[test]
fn what_does_not_exist_is_an_error_with_the_servers_message() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, kubeconfig) = served(dir.path());
    let fails = |args: &[&str], expected: &str| {
        let ended = run(&[args, &["--kubeconfig", &kubeconfig]].concat());
        let text = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(1), "{text}");
        assert!(text.contains(expected), "{text}");
    };
    fails(&["watch", "toasters"], "no resource type \"toasters\"");
    fails(&["tree", "cm/none"], "configmaps \"none\" not found");
    fails(&["tree", "cm"], "name one object");
    fails(&["watch", "cm", "-l", "a=("], "unable to parse");
}

#[test]
fn top_prints_figures_once() {
    let dir = tempfile::tempdir().unwrap();
    let (server, kubeconfig) = served(dir.path());
    let mut watch = LineReader::start(&["watch", "configmaps", "-A", "--kubeconfig", &kubeconfig]);
    server.post(MAPS, &configmap("a", "1", None));
    watch.wait(|line| line.contains("configmap/default/a"));
    let top = run(&["top", "--once", "--interval", "500ms", "--kubeconfig", &kubeconfig]);
    let text = String::from_utf8(top.stdout).unwrap();
    assert_eq!(top.status.code(), Some(0), "{}", String::from_utf8_lossy(&top.stderr));
    for expected in ["requests  ", "memory ", "HOTTEST KINDS", "kubernetes-admin", "configmaps"] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
}
