//! A thousand watchers of one server with different selections, random disconnects and slow
//! readers; the events of each are compared with the history (R23 to R30).

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use headwater_api::Revision;
use headwater_testkit::history::{
    BodyPredicate, ClientRecord, EndBounds, History, ObjectBody, WatchItem, WatchRecord,
    WatchStart, version,
};
use serde_json::{Value, json};

use crate::kill_loop::{Dice, Lines, ask};
use crate::process::Process;

const WATCHERS: usize = 1_000;
const WRITERS: u64 = 3;
const WRITES: u64 = 40;

/// The path and query of a selection, and a simple predicate for it.
fn selection(index: usize) -> (&'static str, BodyPredicate) {
    fn app(body: &ObjectBody) -> Option<&str> {
        body.value()["metadata"]["labels"]["app"].as_str()
    }
    fn namespace(body: &ObjectBody) -> Option<&str> {
        body.value()["metadata"]["namespace"].as_str()
    }
    let (path, matches): (&str, fn(&ObjectBody) -> bool) = match index % 5 {
        0 => ("configmaps?", |_| true),
        1 => ("namespaces/default/configmaps?", |b| namespace(b) == Some("default")),
        2 => ("configmaps?labelSelector=app%3Dweb&", |b| app(b) == Some("web")),
        3 => ("configmaps?labelSelector=app%21%3Dweb&", |b| app(b) != Some("web")),
        _ => ("namespaces/default/configmaps?fieldSelector=metadata.name%3Dw1-1&", |b| {
            namespace(b) == Some("default") && b.value()["metadata"]["name"] == "w1-1"
        }),
    };
    (path, Box::new(matches))
}

/// R91, B282
#[test]
fn a_thousand_watchers_receive_exactly_the_history() {
    // Each watcher needs two descriptors.
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let args = ["--data-dir", data.to_str().unwrap(), "--default-watch-cache-size", "20"];
    let server = Process::serve(&args);
    let at = server.plain;
    let done = AtomicU64::new(0);
    let mut clients = vec![ClientRecord::default(); WATCHERS];
    let newest = std::thread::scope(|scope| {
        for (n, client) in clients.iter_mut().enumerate() {
            let done = &done;
            let thread = std::thread::Builder::new().stack_size(256 << 10);
            thread.spawn_scoped(scope, move || watch(at, n, client, done)).unwrap();
        }
        let writers: Vec<_> = (0..WRITERS).map(|n| scope.spawn(move || write(at, n))).collect();
        let newest = writers.into_iter().map(|writer| writer.join().unwrap()).max().unwrap();
        done.store(newest.0, Ordering::Relaxed);
        newest
    });
    let truth = truth(at, newest);
    let ends = EndBounds { complete_to: newest, compacted: Revision::ZERO };
    let (mut told, mut streams) = (0, 0);
    for index in 0..5 {
        let expected = truth.expect(selection(index).1);
        for client in clients.iter().skip(index).step_by(5) {
            told += client.check(&expected, ends).unwrap_or_else(|broken| panic!("{broken}"));
            streams += client.streams.len();
        }
    }
    eprintln!("{WATCHERS} watchers, {streams} streams, {told} events, all as they happened");
    assert!(streams >= 2 * WATCHERS, "everybody resumed at least once");
}

/// Writes for a while; returns its last revision.
fn write(at: SocketAddr, writer: u64) -> Revision {
    let mut dice = Dice(writer + 7);
    let mut last = Revision::ZERO;
    for n in 0..WRITES {
        let namespace = ["default", "kube-system"][dice.below(2) as usize];
        let name = format!("w{writer}-{}", dice.below(3));
        let app = ["web", "db"][dice.below(2) as usize];
        let body = json!({"metadata": {"name": name, "labels": {"app": app}}, "data": {"n": n.to_string()}});
        let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
        let path = format!("{maps}/{name}");
        let object: Value = match ask(at, "PUT", &path, Some(body.clone())).unwrap() {
            (404, _) => ask(at, "POST", &maps, Some(body)).unwrap().1,
            (_, object) => object,
        };
        last = version(&object).unwrap_or(last);
        if dice.below(4) == 0 {
            ask(at, "DELETE", &path, None).unwrap();
        }
    }
    let end = json!({"metadata": {"name": format!("end-{writer}")}});
    let (_, object) = ask(at, "POST", "/api/v1/namespaces/default/configmaps", Some(end)).unwrap();
    last.max(version(&object).unwrap())
}

/// Watches with repeated disconnects until the writers are done, then to the last revision, which
/// `done` provides.
fn watch(at: SocketAddr, n: usize, client: &mut ClientRecord, done: &AtomicU64) {
    let mut dice = Dice(n as u64);
    let (path, _) = selection(n);
    loop {
        let end = Some(Revision(done.load(Ordering::Relaxed))).filter(|end| end.0 > 0);
        let is_last = end.is_some() && !client.streams.is_empty();
        let (start, from) = match client.position() {
            Some(after) => (WatchStart::After(after), format!("resourceVersion={after}")),
            None => {
                let asked = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
                (WatchStart::Initial(Revision::ZERO), asked.to_owned())
            }
        };
        let lasts = if is_last { 3 } else { 2 + dice.below(4) };
        let cut_after = if is_last { usize::MAX } else { dice.below(12) as usize + 1 };
        let is_slow = n.is_multiple_of(10) && !is_last;
        let path = format!(
            "/api/v1/{path}watch=true&allowWatchBookmarks=true&timeoutSeconds={lasts}&{from}"
        );
        let Some(lines) = Lines::open(at, &path) else { continue };
        let mut seen = Vec::new();
        for line in lines.take(cut_after) {
            seen.push(WatchItem::parse(&line).unwrap());
            if is_slow {
                std::thread::sleep(Duration::from_millis(50)); // it is what is tested
            }
        }
        client.streams.push(WatchRecord { start, seen });
        // With a slow server, the last stream may time out and need a successor.
        if is_last && client.position() >= end {
            return;
        }
    }
}

/// The complete history.
fn truth(at: SocketAddr, upto: Revision) -> History {
    let mut truth = History::default();
    let lines = Lines::open(at, "/api/v1/configmaps?watch=true&resourceVersion=1").unwrap();
    for line in lines {
        let Some(WatchItem::Event(event)) = WatchItem::parse(&line) else {
            panic!("an event comes")
        };
        truth.witness(&event).unwrap();
        if truth.newest() >= upto {
            break;
        }
    }
    truth
}
