//! `headwater bench`: every scenario runs and prints JSON.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use crate::process::{Process, headwater};

/// Runs a bench in an empty directory, where it must leave no files, and returns its lines.
fn bench(args: &[&str]) -> Vec<Value> {
    let home = tempfile::tempdir().unwrap();
    let mut command = headwater(&["bench", "--json"]);
    let output = command.args(args).current_dir(&home).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(std::fs::read_dir(home.path()).unwrap().next().is_none(), "no files are left");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The name and the count of each line.
fn counts(lines: &[Value]) -> Vec<(&str, u64)> {
    let count = |line: &Value| line["count"].as_u64().unwrap_or_default();
    lines.iter().map(|line| (line["name"].as_str().unwrap(), count(line))).collect()
}

/// The arguments with `--memory`, which is faster than a disk.
fn in_memory<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [args, &["--memory"]].concat()
}

#[test]
fn bench_client_compares_representations_of_pods() {
    let size = ["client", "--objects", "20", "--updates", "40", "--keep", "typed,packed"];
    let lines = bench(&in_memory(&size));
    assert_eq!(
        counts(&lines),
        [
            ("client: typed, 20 objects", 20),
            ("client: typed, updates, 20 objects", 40),
            ("client: packed, 20 objects", 20),
            ("client: packed, updates, 20 objects", 40),
        ]
    );
}

#[test]
fn bench_relay_compares_relays_with_clients_and_survives_a_killed_server() {
    let sizes = ["relay", "--watchers", "4", "--writes", "5", "--writes-per-second", "20"];
    let lines = bench(&[&sizes[..], &["--objects", "100", "--outage-seconds", "1"]].concat());
    let names: Vec<&str> = counts(&lines).iter().map(|(name, _)| *name).collect();
    assert_eq!(
        names,
        [
            "relay: server of two clients, 2 watchers",
            "relay: server of two relays, 4 watchers",
            "relay: two relays, 4 watchers",
            "relay: server without relays, 4 watchers",
            "relay: memory, 100 objects",
            "relay: killed server, 4 watchers",
        ]
    );
    assert_eq!(lines[2]["count"], 20);
    assert!(lines[4]["memory_bytes"].as_f64().unwrap() > 0.0);
}

#[test]
fn writes_are_measured_for_every_verb_and_run() {
    let lines = bench(&in_memory(&["write", "--clients", "2", "--objects", "7", "--runs", "2"]));
    let verbs = [
        "create pod",
        "update pod",
        "apply pod",
        "patch pod",
        "delete pod",
        "create config map",
        "create custom resource",
    ];
    let expected: Vec<String> =
        verbs.iter().map(|verb| format!("write: {verb}, 2 clients")).collect();
    let expected: Vec<(&str, u64)> = expected.iter().map(|name| (name.as_str(), 7)).collect();
    assert_eq!(counts(&lines), expected);
    for line in &lines {
        assert_eq!(line["runs"], 2);
        assert!(line["cpu_micros"].as_f64().unwrap() > 0.0, "{line}");
        assert!(line["p50_micros"].as_f64().unwrap() <= line["p99_micros"].as_f64().unwrap());
        assert!(line["memory_bytes"].as_f64().unwrap() > 1e6, "{line}");
    }
}

#[test]
fn lists_are_measured_in_every_mode_and_size() {
    let lines = bench(&in_memory(&["list", "--objects", "30,20", "--rounds", "1"]));
    let ways = 5 * 4 + 2;
    let keys: BTreeSet<&str> = lines.iter().map(|line| line["key"].as_str().unwrap()).collect();
    assert_eq!((lines.len(), keys.len()), (2 * ways, ways));
    assert_eq!(lines[0]["objects"], 20, "sizes ascend");
}

#[test]
fn every_page_of_a_list_is_read() {
    let pages = ["list", "--objects", "1100", "--mode", "pages", "--plain", "--rounds", "1"];
    let lines = bench(&in_memory(&pages));
    assert_eq!(counts(&lines), [("list: pages, 1,100 objects", 1100)]);
    assert!(lines[0]["wire_bytes"].as_f64().unwrap() > 5_000_000.0, "{}", lines[0]);
}

#[test]
fn watchers_of_both_protocols_receive_every_write() {
    let size = ["fan-out", "--watchers", "3,5", "--writes", "20"];
    let expected = [("fan-out: flat out, 3 watchers", 60), ("fan-out: flat out, 5 watchers", 100)];
    assert_eq!(counts(&bench(&in_memory(&size))), expected);
    let size = ["fan-out", "--watchers", "2", "--writes", "5", "--writes-per-second", "100"];
    let lines = bench(&[&in_memory(&size)[..], &["--http2"]].concat());
    assert_eq!(counts(&lines), [("fan-out: 100 writes a second, HTTP/2, 2 watchers", 10)]);
    assert!(lines[0]["p99_micros"].is_number(), "{}", lines[0]);
}

#[test]
fn watchers_with_selectors_receive_their_own_writes() {
    let lines = bench(&in_memory(&["selective", "--watchers", "4", "--writes", "9"]));
    let expected = [
        ("selective: label, 4 watchers", 9),
        ("selective: node, 4 watchers", 9),
        ("selective: namespace, 4 watchers", 9),
    ];
    assert_eq!(counts(&lines), expected);
}

#[test]
fn watchers_that_reconnect_receive_the_events_they_missed() {
    let lines = bench(&in_memory(&["herd", "--watchers", "3", "--missed", "11"]));
    assert_eq!(counts(&lines), [("herd: resume, 3 watchers", 33)]);
}

#[test]
fn the_memory_of_idle_watchers_is_measured() {
    let size = ["idle", "--watchers", "5", "--idle-seconds", "0"];
    let lines = bench(&in_memory(&size));
    assert_eq!(counts(&lines), [("idle: memory, 5 watchers", 0)]);
    assert!(lines[0]["memory_bytes"].is_number(), "{}", lines[0]);
}

#[test]
fn starts_are_timed_empty_and_with_objects() {
    let lines = bench(&["start", "--objects", "5"]);
    let names: Vec<&str> = lines.iter().map(|line| line["name"].as_str().unwrap()).collect();
    let expected = ["start: empty", "start: restart, 5 objects", "start: memory, 5 objects"];
    assert_eq!(names, expected);
}

#[test]
fn the_floor_is_measured_with_every_case() {
    for work in [
        &["write", "--verb", "create-pod", "--clients", "1,2", "--objects", "9"][..],
        &["list", "--objects", "10", "--mode", "full", "--plain", "--rounds", "10"],
        &["fan-out", "--watchers", "2", "--writes", "5"],
        &["fan-out", "--watchers", "2", "--writes", "5", "--writes-per-second", "50"],
        &["selective", "--by", "label", "--watchers", "4", "--writes", "9"],
    ] {
        let lines = bench(&in_memory(&[work, &["--floor", "--runs", "2"]].concat()));
        assert!(!lines.is_empty());
        for line in lines {
            assert_eq!(line["floor"]["count"], line["count"], "{line}");
            assert!(line["floor"]["cpu_micros"].is_number(), "{line}");
        }
    }
}

/// A running server and its kubeconfig.
fn running(home: &TempDir, name: &str) -> (Process, String) {
    let kubeconfig = home.path().join(format!("{name}.kubeconfig"));
    let kubeconfig = kubeconfig.to_str().unwrap().to_owned();
    (Process::serve(&["--memory", "--kubeconfig-out", &kubeconfig]), kubeconfig)
}

#[test]
fn two_servers_are_compared_with_the_same_work() {
    let home = tempfile::tempdir().unwrap();
    let ((one, first), (two, second)) = (running(&home, "one"), running(&home, "two"));
    let (one, two) = (one.id().to_string(), two.id().to_string());
    let servers =
        ["--kubeconfig", &first, "--pid", &one, "--against", &second, "--against-pid", &two];
    let work = ["list", "--objects", "10", "--mode", "full", "--plain", "--rounds", "1"];
    // The second run deletes the objects of the first.
    for _ in 0..2 {
        let custom = ["write", "--verb", "create-custom", "--clients", "2", "--objects", "3"];
        assert_eq!(bench(&[&custom[..], &servers].concat()).len(), 2);
        let lines = bench(&[&work[..], &servers].concat());
        let names: Vec<&str> = lines.iter().map(|line| line["server"].as_str().unwrap()).collect();
        assert_eq!(names, ["one", "two"]);
        assert_eq!(lines[0]["against"]["server"], "two");
        assert!(lines[0]["against"]["ratios"]["cpu_micros"].as_f64().unwrap() > 0.0);
        assert!(lines[1]["against"].is_null());
    }
}

#[test]
fn other_pods_are_not_deleted_and_stop_the_bench() {
    let home = tempfile::tempdir().unwrap();
    let (server, kubeconfig) = running(&home, "busy");
    let made = headwater(&["bench", "write", "--verb", "create-pod", "--clients", "2"])
        .args(["--objects", "1", "--kubeconfig", &kubeconfig])
        .output()
        .unwrap();
    assert!(made.status.success());
    let pods = "/api/v1/namespaces/default/pods";
    let pod = r#"{"metadata":{"name":"mine"},"spec":{"containers":[{"name":"c","image":"i"}]}}"#;
    let made = server.post(pods, pod);
    assert!(made.starts_with("HTTP/1.1 201 "), "{made}");
    let refused = headwater(&["bench", "list", "--kubeconfig", &kubeconfig]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(why.contains("the server has other pods"), "{why}");
    let left = server.get("/api/v1/pods");
    assert!(left.contains("\"mine\"") && !left.contains("web-frontend-"), "{left}");
}

#[test]
fn the_html_page_and_the_plots_are_written() {
    let home = tempfile::tempdir().unwrap();
    let (page, plots) = (home.path().join("page.html"), home.path().join("plots"));
    let args = ["list", "--memory", "--objects", "10,20", "--mode", "full", "--plain"];
    let output = headwater(&["bench"])
        .args(args)
        .arg("--html")
        .arg(&page)
        .arg("--svg")
        .arg(&plots)
        .current_dir(&home)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("list: full, 20 objects"), "{text}");
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    assert!(read(&page).contains("<svg"));
    assert!(read(&plots.join("list-objects-cpu-micros.svg")).starts_with("<svg"));
}

#[test]
fn a_size_of_zero_is_refused() {
    let output = headwater(&["bench", "list", "--objects", "0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("sizes must be at least 1"));
}

#[test]
fn an_interrupted_bench_stops_its_server_and_removes_its_data() {
    let home = tempfile::tempdir().unwrap();
    let mut bench = headwater(&["bench", "write", "--memory", "--objects", "1000000"])
        .current_dir(&home)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let data = || std::fs::read_dir(home.path()).unwrap().next();
    let is_serving =
        || data().is_some_and(|entry| entry.unwrap().path().join("kubeconfig").exists());
    while !is_serving() {
        assert!(bench.try_wait().unwrap().is_none(), "it exited early");
        std::thread::yield_now();
    }
    let pid = bench.id().to_string();
    let kill = std::process::Command::new("kill").args(["-s", "TERM", &pid]).status();
    assert!(kill.unwrap().success());
    assert_eq!(bench.wait().unwrap().code(), Some(1));
    assert!(data().is_none(), "its directory and its server are removed");
}
