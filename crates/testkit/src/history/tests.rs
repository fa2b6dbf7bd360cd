//! A watch that meets every guarantee, and for each guarantee a watch that violates only that one.

use headwater_api::Revision;
use serde_json::json;

use super::{
    BodyPredicate, ClientRecord, EndBounds, EventKind, Guarantee, History, ObjectBody, WatchEvent,
    WatchItem, WatchRecord, WatchStart,
};

fn body(key: &str, app: &str, n: u64) -> ObjectBody {
    let (namespace, name) = key.split_once('/').unwrap();
    let metadata = json!({"namespace": namespace, "name": name, "labels": {"app": app}});
    ObjectBody::new(json!({"metadata": metadata, "data": n}))
}

/// 2: a is created; 3: b is created, not selected; 4: a changes; 5: b becomes selected; 6: a is no
/// longer selected; 7: b is deleted; 8: a is selected again.
fn history() -> History {
    let mut history = History::default();
    let web = |key, n| Some(body(key, "web", n));
    history.record(Revision(2), "ns/a", web("ns/a", 1));
    history.record(Revision(3), "ns/b", Some(body("ns/b", "db", 1)));
    history.record(Revision(4), "ns/a", web("ns/a", 2));
    history.record(Revision(5), "ns/b", web("ns/b", 2));
    history.record(Revision(6), "ns/a", Some(body("ns/a", "db", 3)));
    history.record(Revision(7), "ns/b", None);
    history.record(Revision(8), "ns/a", web("ns/a", 4));
    history
}

fn web() -> BodyPredicate {
    Box::new(|body| body.value()["metadata"]["labels"]["app"] == "web")
}

fn event(kind: EventKind, revision: u64, body: ObjectBody) -> WatchItem {
    WatchItem::Event(WatchEvent { kind, revision: Revision(revision), key: body.key(), body })
}

/// The items of a correct watch after revision 2.
fn correct() -> Vec<WatchItem> {
    vec![
        event(EventKind::Modified, 4, body("ns/a", "web", 2)),
        event(EventKind::Added, 5, body("ns/b", "web", 2)),
        WatchItem::Bookmark(Revision(5)),
        event(EventKind::Deleted, 6, body("ns/a", "web", 2)),
        event(EventKind::Deleted, 7, body("ns/b", "web", 2)),
        event(EventKind::Added, 8, body("ns/a", "web", 4)),
    ]
}

const ENDS: EndBounds = EndBounds { complete_to: Revision(8), compacted: Revision::ZERO };

fn after(revision: u64, seen: Vec<WatchItem>) -> WatchRecord {
    WatchRecord { start: WatchStart::After(Revision(revision)), seen }
}

#[track_caller]
fn check(stream: &WatchRecord, expected: Result<usize, Guarantee>) {
    let history = history();
    let checked = stream.check(&history.expect(web()), ENDS);
    assert_eq!(checked.map_err(|broken| broken.guarantee), expected);
}

/// A correct watch after revision 2, with one error.
#[track_caller]
fn breaks(check_name: Guarantee, break_it: impl FnOnce(&mut Vec<WatchItem>)) {
    let mut seen = correct();
    break_it(&mut seen);
    check(&after(2, seen), Err(check_name));
}

#[test]
fn a_correct_watch_passes() {
    check(&after(2, correct()), Ok(5));
    check(&after(8, vec![]), Ok(0));
    let initial = vec![
        event(EventKind::Added, 4, body("ns/a", "web", 2)),
        event(EventKind::Added, 5, body("ns/b", "web", 2)),
        WatchItem::InitialEventsEnd(Revision(5)),
    ];
    let seen = initial.into_iter().chain(correct().split_off(3)).collect();
    check(&WatchRecord { start: WatchStart::Initial(Revision(5)), seen }, Ok(5));
}

#[test]
fn each_guarantee_is_checked() {
    breaks(Guarantee::Ordered, |seen| seen.swap(3, 4));
    breaks(Guarantee::Unique, |seen| seen.insert(4, seen[3].clone()));
    breaks(Guarantee::Reliable, |seen| drop(seen.remove(3)));
    breaks(Guarantee::Reliable, |seen| drop(seen.pop()));
    breaks(Guarantee::Atomic, |seen| {
        seen.insert(4, event(EventKind::Deleted, 6, body("ns/b", "web", 2)));
    });
    breaks(Guarantee::Bookmarkable, |seen| seen[2] = WatchItem::Bookmark(Revision(6)));
    breaks(Guarantee::Bookmarkable, |seen| seen[2] = WatchItem::Bookmark(Revision(4)));
    breaks(Guarantee::EventKind, |seen| {
        seen[1] = event(EventKind::Modified, 5, body("ns/b", "web", 2))
    });
    breaks(Guarantee::Previous, |seen| {
        seen[3] = event(EventKind::Deleted, 6, body("ns/a", "db", 3))
    });
    breaks(Guarantee::NotBefore, |seen| {
        seen.insert(0, event(EventKind::Added, 2, body("ns/a", "web", 1)));
    });
    breaks(Guarantee::Genuine, |seen| {
        seen[0] = event(EventKind::Modified, 4, body("ns/a", "web", 9))
    });
    breaks(Guarantee::Genuine, |seen| {
        seen[0] = event(EventKind::Modified, 4, body("ns/b", "web", 2))
    });
    breaks(Guarantee::Genuine, |seen| {
        seen.push(event(EventKind::Modified, 9, body("ns/a", "web", 5)))
    });
    breaks(Guarantee::Honest, |seen| seen.push(WatchItem::Error(410)));
    breaks(Guarantee::Honest, |seen| seen[4] = WatchItem::Error(500));
    let elsewhere = event(EventKind::Added, 3, body("ns/b", "db", 1));
    check(&after(2, vec![elsewhere]), Err(Guarantee::FilterTrue));
}

#[test]
fn the_initial_state_is_checked_at_its_bookmark() {
    let from_state =
        |seen: Vec<WatchItem>| WatchRecord { start: WatchStart::Initial(Revision(5)), seen };
    let (a, b) = (
        event(EventKind::Added, 4, body("ns/a", "web", 2)),
        event(EventKind::Added, 5, body("ns/b", "web", 2)),
    );
    let mark = WatchItem::InitialEventsEnd(Revision(5));
    check(&from_state(vec![a.clone(), mark.clone()]), Err(Guarantee::Initial));
    check(&from_state(vec![b.clone(), a.clone(), mark.clone()]), Err(Guarantee::Initial));
    check(
        &from_state(vec![a.clone(), WatchItem::InitialEventsEnd(Revision(4))]),
        Err(Guarantee::Initial),
    );
    check(&from_state(vec![a.clone(), b, mark.clone(), mark]), Err(Guarantee::Initial));
    check(
        &from_state(vec![a.clone(), WatchItem::Bookmark(Revision(5))]),
        Err(Guarantee::Bookmarkable),
    );
    check(
        &from_state(vec![event(EventKind::Added, 3, body("ns/b", "db", 1))]),
        Err(Guarantee::FilterTrue),
    );
    check(
        &from_state(vec![event(EventKind::Added, 4, body("ns/a", "web", 3))]),
        Err(Guarantee::Genuine),
    );
    // Interrupted before the bookmark, it guarantees nothing.
    check(&from_state(vec![a]), Ok(1));
}

#[track_caller]
fn check_client(streams: Vec<WatchRecord>, ends: EndBounds, expected: Result<usize, Guarantee>) {
    let history = history();
    let checked = ClientRecord { streams }.check(&history.expect(web()), ends);
    assert_eq!(checked.map_err(|broken| broken.guarantee), expected);
}

#[test]
fn a_client_that_resumes_has_no_gap_and_no_repetition() {
    let (first, rest) = (correct()[..3].to_vec(), correct().split_off(3));
    check_client(vec![after(2, first.clone()), after(5, rest.clone())], ENDS, Ok(5));
    let gap = rest[1..].to_vec();
    check_client(vec![after(2, first.clone()), after(5, gap)], ENDS, Err(Guarantee::Resumable));
    let mut repeat = rest.clone();
    repeat.insert(0, first[1].clone());
    check_client(vec![after(2, first.clone()), after(5, repeat)], ENDS, Err(Guarantee::Resumable));
    check_client(vec![after(2, first), after(4, rest)], ENDS, Err(Guarantee::Resumable));
}

#[test]
fn a_watch_of_compacted_history_may_fail_with_410() {
    let first = correct()[..1].to_vec();
    let refused = vec![WatchItem::Error(410)];
    let gone = EndBounds { compacted: Revision(6), ..ENDS };
    let relisted = vec![
        event(EventKind::Added, 8, body("ns/a", "web", 4)),
        WatchItem::InitialEventsEnd(Revision(8)),
    ];
    let relisted = WatchRecord { start: WatchStart::Initial(Revision(8)), seen: relisted };
    let streams = vec![after(2, first.clone()), after(4, refused.clone()), relisted];
    check_client(streams, gone, Ok(2));
    let edge = EndBounds { compacted: Revision(4), ..ENDS };
    check_client(vec![after(2, first), after(4, refused)], edge, Err(Guarantee::Honest));
}

#[test]
fn lines_of_a_watch_are_parsed() {
    let line = br#"{"type":"DELETED","object":{"metadata":{"name":"a","namespace":"ns","resourceVersion":"7"}}}"#;
    let Some(WatchItem::Event(event)) = WatchItem::parse(line) else {
        panic!("the line is an event")
    };
    assert_eq!(event.to_string(), "Deleted ns/a@7");
    assert!(event.body.value()["metadata"].get("resourceVersion").is_none());
    let bookmark = br#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}"#;
    assert_eq!(WatchItem::parse(bookmark), Some(WatchItem::Bookmark(Revision(9))));
    let mark = br#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9","annotations":{"k8s.io/initial-events-end":"true"}}}}"#;
    assert_eq!(WatchItem::parse(mark), Some(WatchItem::InitialEventsEnd(Revision(9))));
    let error = br#"{"type":"ERROR","object":{"kind":"Status","code":410}}"#;
    assert_eq!(WatchItem::parse(error), Some(WatchItem::Error(410)));
    for bad in [&b"{}"[..], b"", b"{\"type\":\"ADDED\"}", b"{\"type\":\"NEW\",\"object\":{}}"] {
        assert_eq!(WatchItem::parse(bad), None);
    }
}

#[test]
fn contradictory_events_are_rejected() {
    let mut history = history();
    let received = |kind, revision, n| {
        let body = body("ns/a", "web", n);
        WatchEvent { kind, revision: Revision(revision), key: body.key(), body }
    };
    assert!(history.witness(&received(EventKind::Added, 9, 5)).is_err(), "the object exists");
    assert!(
        history.witness(&received(EventKind::Modified, 8, 5)).is_err(),
        "the revision is in the past"
    );
    assert!(history.witness(&received(EventKind::Deleted, 9, 5)).is_err(), "the content differs");
    assert!(history.witness(&received(EventKind::Deleted, 9, 4)).is_ok());
    assert!(
        history.witness(&received(EventKind::Modified, 10, 5)).is_err(),
        "the object does not exist"
    );
    assert!(history.state().is_empty());
}
