//! Recording a server, replaying it in three ways, and copying its state.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use headwater_recording::{RecordingLine, RecordingReader};
use serde_json::{Value, json};

use crate::observe::{LineReader, MAPS, configmap, object, served};
use crate::process::{Process, headwater, run};

/// A running `headwater record`.
struct RunningRecord(Child);

impl RunningRecord {
    /// Returns when it follows every kind.
    fn start(args: &[&str]) -> RunningRecord {
        let mut child = headwater(args).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let ready = lines.find(|line| line.as_ref().unwrap().starts_with("recording changes"));
        assert!(ready.is_some(), "it ended");
        // It must be able to write its last line.
        std::thread::spawn(move || lines.for_each(drop));
        RunningRecord(child)
    }

    fn is_running(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    fn stop(mut self) {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args(["-s", "TERM", &pid]).status().unwrap().success());
        assert_eq!(self.0.wait().unwrap().code(), Some(0));
    }
}

impl Drop for RunningRecord {
    fn drop(&mut self) {
        let _ = self.0.kill();
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// What a server has of the names that the tests write, by a watch that lists them.
fn listed(kubeconfig: &str, name: &str) -> Value {
    let mut lines = LineReader::start(&[
        "watch",
        &format!("configmap/{name}"),
        "-n",
        "default",
        "-o",
        "json",
        "--kubeconfig",
        kubeconfig,
    ]);
    let line: Value = serde_json::from_str(&lines.wait(|_| true)).unwrap();
    line["object"].clone()
}

fn without_version(mut object: Value) -> Value {
    object["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    object
}

const SECRETS: &str = "/api/v1/namespaces/default/secrets";

/// Records a few writes; returns the last states of two maps.
fn record(dir: &Path, file: &Path) -> (Value, Value) {
    let (server, kubeconfig) = served(dir);
    let owner = object(&server.post(MAPS, &configmap("owner", "1", None)));
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"password": "hunter2"}});
    server.post(SECRETS, &secret.to_string());
    let mut recording =
        RunningRecord::start(&["record", "-A", "-o", text(file), "--kubeconfig", &kubeconfig]);
    let owned = object(&server.post(MAPS, &configmap("owned", "1", Some(&owner))));
    server.put(&format!("{MAPS}/owner"), &configmap("owner", "2", None));
    let owner = object(&server.put(&format!("{MAPS}/owner"), &configmap("owner", "3", None)));
    server.post(MAPS, &configmap("short-lived", "1", None));
    server.send("DELETE", &format!("{MAPS}/short-lived"), "");
    // A kind that is new while it is recorded.
    let definition = json!({
        "metadata": {"name": "toasters.example.org"},
        "spec": {"group": "example.org", "scope": "Cluster",
            "names": {"plural": "toasters", "kind": "Toaster"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]},
    });
    server.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition.to_string());
    let toaster = json!({"apiVersion": "example.org/v1", "kind": "Toaster", "metadata": {"name": "t"}, "slots": 2});
    // The kind is served soon after its definition is accepted.
    while !server
        .post("/apis/example.org/v1/toasters", &toaster.to_string())
        .starts_with("HTTP/1.1 201")
    {}
    // Everything was recorded when the last write is in the file.
    let is_there = || {
        let lines = RecordingReader::new(File::open(file).unwrap()).filter_map(Result::ok);
        let names = lines.filter_map(|line| match line {
            RecordingLine::Change(change) => Some(change.key()),
            _ => None,
        });
        let names: Vec<String> = names.collect();
        ["t", "default/owner"].iter().all(|name| names.iter().any(|seen| seen == name))
    };
    while !is_there() {
        assert!(recording.is_running());
        std::thread::yield_now();
    }
    recording.stop();
    (owner, owned)
}

fn changes(file: &Path) -> Vec<(String, String)> {
    let lines = RecordingReader::new(File::open(file).unwrap()).map(Result::unwrap);
    let changes = lines.filter_map(|line| match line {
        RecordingLine::Change(change) if !change.initial => Some(change),
        _ => None,
    });
    changes.map(|change| (change.event.as_str().to_owned(), change.key())).collect()
}

#[test]
fn a_recording_is_replayed_exactly_and_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("cluster.hwr");
    let (owner, owned) = record(dir.path(), &file);
    let maps: Vec<(String, String)> =
        changes(&file).into_iter().filter(|(_, key)| key.starts_with("default/")).collect();
    let expected = [
        ("ADDED", "default/owned"),
        ("MODIFIED", "default/owner"),
        ("MODIFIED", "default/owner"),
        ("ADDED", "default/short-lived"),
        ("DELETED", "default/short-lived"),
    ];
    let expected = expected.map(|(event, key)| (event.to_owned(), key.to_owned()));
    assert_eq!(maps, expected);

    // Secrets are left out.
    let mut plain = Vec::new();
    let mut bytes = &std::fs::read(&file).unwrap()[..];
    while !bytes.is_empty() {
        let mut member = flate2::bufread::GzDecoder::new(bytes);
        std::io::Read::read_to_end(&mut member, &mut plain).unwrap();
        bytes = member.into_inner();
    }
    let plain = String::from_utf8(plain).unwrap();
    assert!(plain.contains("\"owner\"") && !plain.contains("aHVudGVyMg=="), "base64 of hunter2");

    // A server of its own: everything is as it was.
    let kubeconfig = dir.path().join("replayed").to_str().unwrap().to_owned();
    let replay = [
        "replay",
        text(&file),
        "--speed",
        "max",
        "--bind",
        "127.0.0.1:0",
        "--kubeconfig-out",
        &kubeconfig,
    ];
    let mut process =
        headwater(&replay).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().starts_with("replayed ")));
    let replayed = (listed(&kubeconfig, "owner"), listed(&kubeconfig, "owned"));
    process.kill().unwrap();
    process.wait().unwrap();
    assert_eq!(without_version(replayed.0), without_version(owner));
    assert_eq!(without_version(replayed.1), without_version(owned));
}

#[test]
fn a_recording_is_replayed_into_another_server() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("cluster.hwr");
    record(dir.path(), &file);
    let other = tempfile::tempdir().unwrap();
    let (server, kubeconfig) = served(other.path());
    let replayed = run(&["replay", text(&file), "--speed", "max", "--into", &kubeconfig]);
    let note = String::from_utf8(replayed.stderr).unwrap();
    assert!(note.contains("wrote "), "{note}");
    let get = |path: &str| object(&server.get(path));
    let (owner, owned) = (get(&format!("{MAPS}/owner")), get(&format!("{MAPS}/owned")));
    assert_eq!(owner["data"]["k"], "3");
    // The owner is the one of this server.
    assert_eq!(owned["metadata"]["ownerReferences"][0]["uid"], owner["metadata"]["uid"]);
    assert!(server.get(&format!("{MAPS}/short-lived")).starts_with("HTTP/1.1 404"));
    assert_eq!(get("/apis/example.org/v1/toasters/t")["slots"], 2);
}

#[test]
fn dev_starts_from_a_recording_once() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("cluster.hwr");
    let (owner, _) = record(dir.path(), &file);
    let data = dir.path().join("data");
    let args = ["--from", text(&file), "--data-dir", text(&data), "--controllers=namespace"];
    let server = Process::start("dev", Stdio::inherit(), &args);
    let started = server.lines.iter().find(|line| line.starts_with("starting from"));
    assert!(started.is_some(), "{:?}", server.lines);
    let found = object(&server.get(&format!("{MAPS}/owner")));
    assert_eq!(found["metadata"]["uid"], owner["metadata"]["uid"]);
    assert_eq!(object(&server.get("/apis/example.org/v1/toasters/t"))["slots"], 2);
    drop(server);
    let again =
        run(&["dev", "--from", text(&file), "--data-dir", text(&data), "--bind", "127.0.0.1:0"]);
    let error = String::from_utf8(again.stderr).unwrap();
    assert!(error.contains("the store is not empty") && error.contains("--from"), "{error}");
}

#[test]
fn a_damaged_recording_names_the_place_and_what_is_readable() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("cluster.hwr");
    record(dir.path(), &file);
    let whole = std::fs::read(&file).unwrap();
    std::fs::write(&file, &whole[..whole.len() - 3]).unwrap();
    let fails = |args: &[&str]| {
        let ended = run(&[&["replay", text(&file)], args].concat());
        assert_eq!(ended.status.code(), Some(1));
        String::from_utf8(ended.stderr).unwrap()
    };
    let error = fails(&[]);
    assert!(
        error.contains("it was cut off after byte") && error.contains("readable are"),
        "{error}"
    );
    let until =
        error.split("add --until ").nth(1).unwrap().split(':').collect::<Vec<_>>()[..3].join(":");
    let other = tempfile::tempdir().unwrap();
    let (server, kubeconfig) = served(other.path());
    let part =
        run(&["replay", text(&file), "--until", &until, "--speed", "max", "--into", &kubeconfig]);
    let note = String::from_utf8(part.stderr).unwrap();
    assert_eq!(part.status.code(), Some(0), "{note}");
    assert!(server.get(&format!("{MAPS}/owner")).starts_with("HTTP/1.1 200"));
    std::fs::write(&file, "not a recording").unwrap();
    assert!(fails(&[]).contains("it is not a recording"));
}

#[test]
fn an_export_is_imported_with_owners_and_without_what_the_server_sets() {
    let dir = tempfile::tempdir().unwrap();
    let (server, kubeconfig) = served(dir.path());
    server.post("/api/v1/namespaces", r#"{"metadata":{"name":"shop"}}"#);
    let shop = "/api/v1/namespaces/shop/configmaps";
    let owner = object(&server.post(shop, &configmap("z-owner", "1", None)));
    server.post(shop, &configmap("a-owned", "2", Some(&owner)));
    let service = json!({"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}});
    let service = object(&server.post("/api/v1/namespaces/shop/services", &service.to_string()));
    assert!(service["spec"]["clusterIP"].is_string());
    let file = dir.path().join("all.yaml");
    let exported = run(&["export", "-A", "-o", text(&file), "--kubeconfig", &kubeconfig]);
    assert_eq!(exported.status.code(), Some(0), "{exported:?}");
    let yaml = std::fs::read_to_string(&file).unwrap();
    for field in ["resourceVersion:", "managedFields:", "clusterIP:", "creationTimestamp:"] {
        assert!(!yaml.contains(field), "{field}");
    }
    let at = |name: &str| yaml.find(&format!("name: {name}\n")).unwrap();
    assert!(at("shop") < at("z-owner") && at("z-owner") < at("a-owned"));

    let other = tempfile::tempdir().unwrap();
    let (copy, kubeconfig) = served(other.path());
    let imported = run(&["import", text(&file), "--kubeconfig", &kubeconfig]);
    let note = String::from_utf8(imported.stderr).unwrap();
    assert_eq!(imported.status.code(), Some(0), "{note}");
    let get = |name: &str| object(&copy.get(&format!("{shop}/{name}")));
    let (owner, owned) = (get("z-owner"), get("a-owned"));
    assert_eq!(owned["metadata"]["ownerReferences"][0]["uid"], owner["metadata"]["uid"]);
    assert_eq!(owned["data"]["k"], "2");

    // Again: nothing changes, unless it is asked for.
    copy.put(&format!("{shop}/a-owned"), &configmap("a-owned", "changed", Some(&owner)));
    let import = |more: &[&str]| {
        let all = [&["import", text(&file), "--kubeconfig", &kubeconfig], more].concat();
        String::from_utf8(run(&all).stderr).unwrap()
    };
    assert!(import(&[]).contains("created 0 objects, changed 0"));
    assert_eq!(get("a-owned")["data"]["k"], "changed");
    import(&["--overwrite"]);
    assert_eq!(get("a-owned")["data"]["k"], "2");
}
