//! The page with many pods and many events: what it keeps in the document, and how long its frames take.
//!
//! `HEADWATER_PAGE_SECONDS=30 cargo nextest run -p headwater page::smooth --no-capture` measures 10,000
//! pods and 200 changes per second, and prints the figures of docs/ui.md.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;

use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::PageProcess;
use crate::browser::Browser;
use crate::process::{KilledOnDrop, headwater};

/// Changes per second.
const RATE: u64 = 200;
const NODES: usize = 100;
const NAMESPACES: usize = 10;

fn metadata(name: &str, namespace: Option<usize>, version: u64) -> Value {
    let mut metadata = json!({
        "name": name,
        "uid": format!("00000000-0000-4000-8000-{version:012}"),
        "resourceVersion": version.to_string(),
        "creationTimestamp": "2026-11-15T09:00:00Z",
    });
    if let Some(team) = namespace {
        metadata["namespace"] = json!(format!("team-{team}"));
        metadata["labels"] = json!({ "app": format!("app-{team}") });
    }
    metadata
}

fn pod(number: usize, version: u64, is_ready: bool, time: &str) -> Value {
    let status = if is_ready { "True" } else { "False" };
    let condition =
        |kind: &str| json!({ "type": kind, "status": status, "lastTransitionTime": time });
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata(&format!("app-{number:05}"), Some(number % NAMESPACES), version),
        "spec": {
            "nodeName": format!("node-{:03}", number % NODES),
            "containers": [{
                "name": "app",
                "image": "registry.example.com/app:1.4.0",
                "resources": { "requests": { "cpu": "100m", "memory": "128Mi" } },
            }],
        },
        "status": {
            "phase": "Running",
            "conditions": [condition("Ready"), condition("ContainersReady")],
            "containerStatuses": [{
                "name": "app", "image": "registry.example.com/app:1.4.0", "imageID": "",
                "ready": is_ready, "restartCount": 0,
            }],
        },
    })
}

/// Writes a recording of so many pods that change for so long.
fn record(file: &Path, pods: usize, seconds: u64) {
    let mut out = GzEncoder::new(std::fs::File::create(file).unwrap(), Compression::fast());
    let mut line = |value: &Value| writeln!(out, "{value}").unwrap();
    let began: Timestamp = "2026-11-15T10:00:00Z".parse().unwrap();
    line(&json!({ "type": "BEGIN", "format": 1, "time": began.to_string(), "server": "made" }));
    for (kind, plural, namespaced) in
        [("Namespace", "namespaces", false), ("Node", "nodes", false), ("Pod", "pods", true)]
    {
        line(
            &json!({ "type": "KIND", "group": "", "version": "v1", "kind": kind, "plural": plural,
            "namespaced": namespaced }),
        );
    }
    let mut version = 1000;
    let mut initial = |kind: usize, make: &dyn Fn(u64) -> Value| {
        version += 1;
        line(&json!({ "type": "ADDED", "time": began.to_string(), "kind": kind, "initial": true,
            "object": make(version) }));
    };
    for team in 0..NAMESPACES {
        initial(0, &|version| {
            json!({ "apiVersion": "v1", "kind": "Namespace", "status": { "phase": "Active" },
                "metadata": metadata(&format!("team-{team}"), None, version) })
        });
    }
    for node in 0..NODES {
        initial(1, &|version| {
            json!({ "apiVersion": "v1", "kind": "Node",
                "metadata": metadata(&format!("node-{node:03}"), None, version),
                "status": {
                    "allocatable": { "cpu": "32", "memory": "128Gi", "pods": "110" },
                    "conditions": [{ "type": "Ready", "status": "True" }],
                } })
        });
    }
    for number in 0..pods {
        initial(2, &|version| pod(number, version, true, "2026-11-15T09:00:00Z"));
    }
    line(&json!({ "type": "SYNCED", "time": began.to_string() }));
    let mut is_ready = vec![true; pods];
    for change in 0..RATE * seconds {
        let millis = i64::try_from(1_000 + change * 1_000 / RATE).unwrap();
        let time = began + SignedDuration::from_millis(millis);
        // A large prime step visits all pods in an order that is not theirs.
        let number = usize::try_from(change * 7_919).unwrap() % pods;
        is_ready[number] = !is_ready[number];
        version += 1;
        let object = pod(number, version, is_ready[number], &time.to_string());
        line(&json!({ "type": "MODIFIED", "time": time.to_string(), "kind": 2, "object": object }));
    }
    let ended = began + SignedDuration::from_secs(i64::try_from(seconds).unwrap() + 2);
    line(&json!({ "type": "END", "time": ended.to_string() }));
    out.finish().unwrap();
}

/// Frames for some seconds: their number and quantiles, the heap and the elements of the page.
fn frames(seconds: u64, scrolls: bool) -> String {
    format!(
        "const frames = []; let last = performance.now(); const began = last;
        const table = {scrolls} && document.querySelector('.vt');
        requestAnimationFrame(function frame(now) {{
            frames.push(now - last); last = now;
            if (table) table.scrollTop = (table.scrollTop + 40) % (table.scrollHeight - 800);
            if (now - began < {seconds} * 1000) return requestAnimationFrame(frame);
            frames.sort((a, b) => a - b);
            const at = (part) => frames[Math.min(frames.length - 1, Math.floor(part * frames.length))];
            done({{ frames: frames.length, p50: at(.5), p99: at(.99), longest: at(1),
                over50: frames.filter((f) => f > 50).length,
                elements: document.querySelectorAll('*').length,
                rows: document.querySelectorAll('.tr').length,
                revision: +document.body.innerText.match(/revision ([\\d,]+)/)[1].replaceAll(',', '') }});
        }});"
    )
}

#[test]
fn many_pods_and_many_events_keep_the_page_small() {
    let Some(browser) = Browser::start() else { return };
    let long = std::env::var("HEADWATER_PAGE_SECONDS").ok().and_then(|text| text.parse().ok());
    let (pods, seconds) = long.map_or((2_000, 2), |seconds: u64| (10_000, seconds));
    let dir = tempfile::tempdir().unwrap();
    let (recording, kubeconfig) = (dir.path().join("made.hwr"), dir.path().join("kubeconfig"));
    // The views are shown one after the other, and the browser takes its time to start.
    record(&recording, pods, seconds * 6 + 120);
    let mut replay = headwater(&[
        "replay",
        recording.to_str().unwrap(),
        "--bind",
        "127.0.0.1:0",
        "--kubeconfig-out",
        kubeconfig.to_str().unwrap(),
    ]);
    let mut replay = KilledOnDrop(replay.stdout(Stdio::piped()).spawn().unwrap());
    let lines = BufReader::new(replay.0.stdout.take().unwrap()).lines();
    let is_ready = lines.map(Result::unwrap).any(|line| line.starts_with("ready"));
    assert!(is_ready, "the replay ended");
    let page = PageProcess::start(&kubeconfig);
    browser.open(&page.url);
    browser.until(&format!("document.querySelectorAll('a.node').length === {NODES}"));
    let shown = "[...document.querySelectorAll('a.node')]\
                 .reduce((sum, n) => sum + +/(\\d+) of/.exec(n.ariaLabel)[1], 0)";
    browser.until(&format!("{shown} === {pods}"));
    browser.command("Performance.enable", &json!({ "timeDomain": "threadTicks" }));
    let busy = || {
        let metrics = browser.command("Performance.getMetrics", &json!({}));
        let all = metrics["metrics"].as_array().unwrap().clone();
        let value = |name: &str| {
            let found = all.iter().find(|metric| metric["name"] == name);
            found.unwrap()["value"].as_f64().unwrap()
        };
        (value("TaskDuration"), value("JSHeapUsedSize") / 1e6)
    };
    let mut revision = 0.0;
    for (view, ready, scrolls) in [
        ("#/overview", "a.node", false),
        ("#/t/pods", ".tr .td", false),
        ("#/t/pods", ".tr .td", true),
        ("#/river", ".watchers .tr", false),
    ] {
        browser.show(view);
        browser.until(&format!("document.querySelector({})", json!(ready)));
        let before = busy();
        let measured = browser.result(&frames(seconds, scrolls));
        let after = busy();
        assert!(measured["rows"].as_f64().unwrap() < 80.0, "{view}: {measured}");
        let reached = measured["revision"].as_f64().unwrap();
        assert!(reached > revision, "{view}: nothing arrives");
        revision = reached;
        let processor = (after.0 - before.0) / seconds as f64 * 100.0;
        eprintln!(
            "{view} scrolls {scrolls}: {measured} main thread {processor:.0} %, heap {:.0} MB",
            after.1
        );
    }
    // A pod that is not ready is one in the figures too, however it came about.
    browser.show("#/overview");
    let figures = "[...document.querySelectorAll('.fig')][0].innerText";
    browser.until(&format!("/{}/.test({figures}.replaceAll(',', ''))", pods));
    assert_eq!(browser.console(), Vec::<String>::new());
}
