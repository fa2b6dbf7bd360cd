//! A stream that keeps every promise, and for each check a stream that breaks just that one.

use headwater_api::Revision;
use serde_json::json;

use super::{Body, Check, Client, Ends, Event, Kind, Seen, Selection, Start, Stream, Truth};

fn body(key: &str, app: &str, n: u64) -> Body {
    let (namespace, name) = key.split_once('/').unwrap();
    let metadata = json!({"namespace": namespace, "name": name, "labels": {"app": app}});
    Body::new(json!({"metadata": metadata, "data": n}))
}

/// 2: a enters; 3: b is elsewhere; 4: a changes; 5: b enters; 6: a leaves; 7: b is deleted;
/// 8: a enters again.
fn truth() -> Truth {
    let mut truth = Truth::default();
    let web = |key, n| Some(body(key, "web", n));
    truth.record(Revision(2), "ns/a", web("ns/a", 1));
    truth.record(Revision(3), "ns/b", Some(body("ns/b", "db", 1)));
    truth.record(Revision(4), "ns/a", web("ns/a", 2));
    truth.record(Revision(5), "ns/b", web("ns/b", 2));
    truth.record(Revision(6), "ns/a", Some(body("ns/a", "db", 3)));
    truth.record(Revision(7), "ns/b", None);
    truth.record(Revision(8), "ns/a", web("ns/a", 4));
    truth
}

fn web() -> Selection {
    Box::new(|body| body.value()["metadata"]["labels"]["app"] == "web")
}

fn event(kind: Kind, revision: u64, body: Body) -> Seen {
    Seen::Event(Event { kind, revision: Revision(revision), key: body.key(), body })
}

/// What a perfect watch after 2 is told.
fn perfect() -> Vec<Seen> {
    vec![
        event(Kind::Modified, 4, body("ns/a", "web", 2)),
        event(Kind::Added, 5, body("ns/b", "web", 2)),
        Seen::Bookmark(Revision(5)),
        event(Kind::Deleted, 6, body("ns/a", "web", 2)),
        event(Kind::Deleted, 7, body("ns/b", "web", 2)),
        event(Kind::Added, 8, body("ns/a", "web", 4)),
    ]
}

const ENDS: Ends = Ends { complete_to: Revision(8), compacted: Revision::ZERO };

fn after(revision: u64, seen: Vec<Seen>) -> Stream {
    Stream { start: Start::After(Revision(revision)), seen }
}

#[track_caller]
fn check(stream: &Stream, expected: Result<usize, Check>) {
    let truth = truth();
    let checked = stream.check(&truth.expect(web()), ENDS);
    assert_eq!(checked.map_err(|broken| broken.check), expected);
}

/// A perfect watch after 2, with one thing wrong.
#[track_caller]
fn breaks(check_name: Check, spoil: impl FnOnce(&mut Vec<Seen>)) {
    let mut seen = perfect();
    spoil(&mut seen);
    check(&after(2, seen), Err(check_name));
}

#[test]
fn a_perfect_stream_passes() {
    check(&after(2, perfect()), Ok(5));
    check(&after(8, vec![]), Ok(0));
    let initial = vec![
        event(Kind::Added, 4, body("ns/a", "web", 2)),
        event(Kind::Added, 5, body("ns/b", "web", 2)),
        Seen::Mark(Revision(5)),
    ];
    let seen = initial.into_iter().chain(perfect().split_off(3)).collect();
    check(&Stream { start: Start::Initial(Revision(5)), seen }, Ok(5));
}

#[test]
fn each_check_finds_what_it_is_for() {
    breaks(Check::Ordered, |seen| seen.swap(3, 4));
    breaks(Check::Unique, |seen| seen.insert(4, seen[3].clone()));
    breaks(Check::Reliable, |seen| drop(seen.remove(3)));
    breaks(Check::Reliable, |seen| drop(seen.pop()));
    breaks(Check::Atomic, |seen| {
        seen.insert(4, event(Kind::Deleted, 6, body("ns/b", "web", 2)));
    });
    breaks(Check::Bookmarkable, |seen| seen[2] = Seen::Bookmark(Revision(6)));
    breaks(Check::Bookmarkable, |seen| seen[2] = Seen::Bookmark(Revision(4)));
    breaks(Check::Kind, |seen| seen[1] = event(Kind::Modified, 5, body("ns/b", "web", 2)));
    breaks(Check::Previous, |seen| seen[3] = event(Kind::Deleted, 6, body("ns/a", "db", 3)));
    breaks(Check::NotBefore, |seen| {
        seen.insert(0, event(Kind::Added, 2, body("ns/a", "web", 1)));
    });
    breaks(Check::Genuine, |seen| seen[0] = event(Kind::Modified, 4, body("ns/a", "web", 9)));
    breaks(Check::Genuine, |seen| seen[0] = event(Kind::Modified, 4, body("ns/b", "web", 2)));
    breaks(Check::Genuine, |seen| seen.push(event(Kind::Modified, 9, body("ns/a", "web", 5))));
    breaks(Check::Honest, |seen| seen.push(Seen::Error(410)));
    breaks(Check::Honest, |seen| seen[4] = Seen::Error(500));
    let elsewhere = event(Kind::Added, 3, body("ns/b", "db", 1));
    check(&after(2, vec![elsewhere]), Err(Check::FilterTrue));
}

#[test]
fn an_initial_state_is_held_to_its_mark() {
    let from_state = |seen: Vec<Seen>| Stream { start: Start::Initial(Revision(5)), seen };
    let (a, b) = (
        event(Kind::Added, 4, body("ns/a", "web", 2)),
        event(Kind::Added, 5, body("ns/b", "web", 2)),
    );
    let mark = Seen::Mark(Revision(5));
    check(&from_state(vec![a.clone(), mark.clone()]), Err(Check::Initial));
    check(&from_state(vec![b.clone(), a.clone(), mark.clone()]), Err(Check::Initial));
    check(&from_state(vec![a.clone(), Seen::Mark(Revision(4))]), Err(Check::Initial));
    check(&from_state(vec![a.clone(), b, mark.clone(), mark]), Err(Check::Initial));
    check(&from_state(vec![a.clone(), Seen::Bookmark(Revision(5))]), Err(Check::Bookmarkable));
    check(&from_state(vec![event(Kind::Added, 3, body("ns/b", "db", 1))]), Err(Check::FilterTrue));
    check(&from_state(vec![event(Kind::Added, 4, body("ns/a", "web", 3))]), Err(Check::Genuine));
    // Cut off before the mark, it promised nothing.
    check(&from_state(vec![a]), Ok(1));
}

#[track_caller]
fn check_client(streams: Vec<Stream>, ends: Ends, expected: Result<usize, Check>) {
    let truth = truth();
    let checked = Client { streams }.check(&truth.expect(web()), ends);
    assert_eq!(checked.map_err(|broken| broken.check), expected);
}

#[test]
fn a_client_that_resumes_has_neither_gap_nor_repeat() {
    let (first, rest) = (perfect()[..3].to_vec(), perfect().split_off(3));
    check_client(vec![after(2, first.clone()), after(5, rest.clone())], ENDS, Ok(5));
    let gap = rest[1..].to_vec();
    check_client(vec![after(2, first.clone()), after(5, gap)], ENDS, Err(Check::Resumable));
    let mut repeat = rest.clone();
    repeat.insert(0, first[1].clone());
    check_client(vec![after(2, first.clone()), after(5, repeat)], ENDS, Err(Check::Resumable));
    check_client(vec![after(2, first), after(4, rest)], ENDS, Err(Check::Resumable));
}

#[test]
fn history_that_is_gone_may_be_refused() {
    let first = perfect()[..1].to_vec();
    let refused = vec![Seen::Error(410)];
    let gone = Ends { compacted: Revision(6), ..ENDS };
    let anew = vec![event(Kind::Added, 8, body("ns/a", "web", 4)), Seen::Mark(Revision(8))];
    let anew = Stream { start: Start::Initial(Revision(8)), seen: anew };
    let streams = vec![after(2, first.clone()), after(4, refused.clone()), anew];
    check_client(streams, gone, Ok(2));
    let edge = Ends { compacted: Revision(4), ..ENDS };
    check_client(vec![after(2, first), after(4, refused)], edge, Err(Check::Honest));
}

#[test]
fn lines_of_a_watch_are_read() {
    let line = br#"{"type":"DELETED","object":{"metadata":{"name":"a","namespace":"ns","resourceVersion":"7"}}}"#;
    let Some(Seen::Event(event)) = Seen::parse(line) else { panic!("it is an event") };
    assert_eq!(event.to_string(), "Deleted ns/a@7");
    assert!(event.body.value()["metadata"].get("resourceVersion").is_none());
    let bookmark = br#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}"#;
    assert_eq!(Seen::parse(bookmark), Some(Seen::Bookmark(Revision(9))));
    let mark = br#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9","annotations":{"k8s.io/initial-events-end":"true"}}}}"#;
    assert_eq!(Seen::parse(mark), Some(Seen::Mark(Revision(9))));
    let error = br#"{"type":"ERROR","object":{"kind":"Status","code":410}}"#;
    assert_eq!(Seen::parse(error), Some(Seen::Error(410)));
    for bad in [&b"{}"[..], b"", b"{\"type\":\"ADDED\"}", b"{\"type\":\"NEW\",\"object\":{}}"] {
        assert_eq!(Seen::parse(bad), None);
    }
}

#[test]
fn a_witness_that_contradicts_itself_is_not_believed() {
    let mut truth = truth();
    let told = |kind, revision, n| {
        let body = body("ns/a", "web", n);
        Event { kind, revision: Revision(revision), key: body.key(), body }
    };
    assert!(truth.witness(&told(Kind::Added, 9, 5)).is_err(), "it is there");
    assert!(truth.witness(&told(Kind::Modified, 8, 5)).is_err(), "that revision was");
    assert!(truth.witness(&told(Kind::Deleted, 9, 5)).is_err(), "it did not look like that");
    assert!(truth.witness(&told(Kind::Deleted, 9, 4)).is_ok());
    assert!(truth.witness(&told(Kind::Modified, 10, 5)).is_err(), "it is gone");
    assert!(truth.state().is_empty());
}
