//! `history`, `get --at`, `diff` and `rollback` against a server with its data on disk.

use serde_json::{Value, json};

use crate::observe::{MAPS, configmap, object};
use crate::process::{Process, run};

/// A server with a map of three values; its kubeconfig, and the map's resourceVersions.
fn served(dir: &std::path::Path) -> (Process, String, Vec<String>) {
    let kubeconfig = dir.join("kubeconfig").to_str().unwrap().to_owned();
    let data = dir.join("data").to_str().unwrap().to_owned();
    let server = Process::serve(&["--data-dir", &data, "--kubeconfig-out", &kubeconfig]);
    let version =
        |answer: &str| object(answer)["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let mut versions = vec![version(&server.post(MAPS, &configmap("a", "1", None)))];
    for value in ["2", "3"] {
        versions.push(version(&server.put(&format!("{MAPS}/a"), &configmap("a", value, None))));
    }
    (server, kubeconfig, versions)
}

/// What a command prints to stdout; it must succeed.
#[track_caller]
fn output(kubeconfig: &str, args: &[&str]) -> String {
    let ended = run(&[args, &["-n", "default", "--kubeconfig", kubeconfig]].concat());
    let (out, error) = (String::from_utf8(ended.stdout), String::from_utf8(ended.stderr));
    assert_eq!(ended.status.code(), Some(0), "{}", error.unwrap());
    out.unwrap()
}

#[test]
fn history_shows_when_who_and_what() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, kubeconfig, versions) = served(dir.path());
    let text = output(&kubeconfig, &["history", "cm/a", "--diff"]);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].contains(&versions[2]) && lines[0].contains("MODIFIED"), "{text}");
    assert!(lines.contains(&r#"           ~ data.k: "2" → "3""#), "{text}");
    assert!(lines.last().unwrap().contains("ADDED"), "{text}");
    let json = output(&kubeconfig, &["history", "cm", "a", "-o", "json", "--limit", "2"]);
    let all: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(all.len(), 2);
    let changed: Vec<&Value> = all[1]["changes"].as_array().unwrap().iter().collect();
    assert!(changed.iter().any(|change| change["old"] == "1" && change["new"] == "2"), "{json}");
    assert!(all[0]["time"].is_string());
}

#[test]
fn objects_are_shown_and_compared_as_they_were() {
    let dir = tempfile::tempdir().unwrap();
    let (server, kubeconfig, versions) = served(dir.path());
    let at = |point: &str| -> Value {
        let text = output(&kubeconfig, &["get", "cm/a", "--at", point, "-o", "json"]);
        serde_json::from_str(&text).unwrap()
    };
    assert_eq!(at(&versions[1])["data"]["k"], "2");
    assert_eq!(at("now")["data"]["k"], "3");
    let table = output(&kubeconfig, &["get", "cm", "--at", &versions[0]]);
    assert!(table.starts_with("NAME") && table.contains("\na "), "{table}");
    let diff = output(&kubeconfig, &["diff", "cm/a", "--from", &versions[0]]);
    assert!(diff.contains(r#"  ~ data.k: "1" → "3""#), "{diff}");

    // By time: the time of the second version, as the server has it.
    let history = object(&server.get(&format!("{MAPS}/a?history=true")));
    let time = history["items"][1]["time"].as_str().unwrap();
    let shown = at(time)["data"]["k"].clone();
    assert!(shown == json!("2") || shown == json!("3"), "both may be of one millisecond: {shown}");
    let gone = run(&["get", "cm", "--at", "2001-01-01T00:00Z", "--kubeconfig", &kubeconfig]);
    let error = String::from_utf8(gone.stderr).unwrap();
    assert!(error.contains("410") && error.contains("the oldest one is revision"), "{error}");
}

#[test]
fn a_rollback_is_a_checked_write() {
    let dir = tempfile::tempdir().unwrap();
    let (server, kubeconfig, versions) = served(dir.path());
    let value = || object(&server.get(&format!("{MAPS}/a")))["data"]["k"].clone();
    output(&kubeconfig, &["rollback", "cm/a", "--to", &versions[0], "--dry-run"]);
    assert_eq!(value(), "3");
    let done = output(&kubeconfig, &["rollback", "cm/a", "--to", &versions[0]]);
    assert!(done.contains(r#"~ data.k: "3" → "1""#), "{done}");
    assert_eq!(value(), "1");
    let managers = object(&server.get(&format!("{MAPS}/a")))["metadata"]["managedFields"].clone();
    assert!(managers.to_string().contains("headwater-rollback"), "{managers}");
    // A deleted object comes back.
    server.send("DELETE", &format!("{MAPS}/a"), "");
    output(&kubeconfig, &["rollback", "cm/a", "--to", &versions[1]]);
    assert_eq!(value(), "2");
}
