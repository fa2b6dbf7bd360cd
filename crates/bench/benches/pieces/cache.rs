//! The stages of a change in the watch cache: snapshot, window, views.

use std::hint::black_box;
use std::sync::Arc;

use bytes::Bytes;
use headwater_api::selector::LabelSelector;
use headwater_api::{Object, Revision};
use headwater_cache::Filter;
use headwater_cache::pieces::{Changes, ObjectSet, WatchedViews};
use headwater_store::{Change, ChangeKind, Key};

use crate::piece::{NamedPiece, OFTEN, Piece};
use crate::pod::{kind, objects, stored, stored_as};

const TIMES: usize = 100;
/// Existing objects.
const THERE: usize = 2000;
/// Views that select by a label.
const VIEWS: usize = 1000;
/// Events that a watcher reads at once.
const READ: usize = 200;

pub(crate) const PIECES: &[NamedPiece] = &[
    ("snapshot: insert among 2,000", inserted),
    ("snapshot: replace among 2,000", replaced),
    ("snapshot: list 2,000", listed),
    ("window: append", appended),
    ("window: read 200 of 2,000", read),
    ("views: offer to 1 of 1,000 by label", offered),
];

/// As in the feed: a reader holds the previous state, so changed nodes are copied.
fn inserted(name: &'static str) -> Piece {
    let all = objects(2 * THERE);
    let state = ObjectSet::of(all.iter().step_by(2));
    let missing: Vec<Arc<Object>> = all.iter().skip(1).step_by(2).cloned().collect();
    put(name, state, missing)
}

fn replaced(name: &'static str) -> Piece {
    let all = objects(THERE);
    put(name, ObjectSet::of(&all), all)
}

fn put(name: &'static str, before: ObjectSet, objects: Vec<Arc<Object>>) -> Piece {
    Piece::new(name, TIMES, move |turn| {
        let mut state = before.clone();
        state.insert(objects[turn * (THERE / TIMES)].clone());
        black_box(state);
    })
}

fn listed(name: &'static str) -> Piece {
    let state = ObjectSet::of(&objects(THERE));
    Piece::new(name, 1, move |_| {
        black_box(state.bytes());
    })
}

/// Updates of pods, one after the other.
fn changes(count: usize) -> Vec<Change> {
    let stored = stored();
    let change = |index: usize| Change {
        revision: Revision(10_000 + index as u64),
        key: Key::new(format!("/registry/pods/bench-0/pod-{index:05}")),
        kind: ChangeKind::Created,
        value: Bytes::from(stored_as(&stored, index)),
        prev: None,
    };
    (0..count).map(change).collect()
}

/// Appends the same change repeatedly, which a window accepts at one revision. The window is full,
/// as in a server: a growing one would count reallocations.
fn appended(name: &'static str) -> Piece {
    let mut window = Changes::new(THERE);
    let change = Changes::decode(&changes(1)[0], &kind().fields);
    (0..=THERE).for_each(|_| window.append(Arc::clone(&change)));
    Piece::new(name, OFTEN, move |_| window.append(Arc::clone(&change)))
}

fn read(name: &'static str) -> Piece {
    let (mut window, fields) = (Changes::new(THERE), kind().fields);
    changes(THERE).iter().for_each(|change| window.append(Changes::decode(change, &fields)));
    let after = Revision(10_000 + (THERE - READ) as u64 - 1);
    Piece::new(name, TIMES, move |_| {
        assert_eq!(window.read(black_box(after)), READ);
    })
}

fn offered(name: &'static str) -> Piece {
    let (mut views, fields) = (WatchedViews::new(kind().fields), kind().fields);
    for index in 0..VIEWS {
        let labels = LabelSelector::parse(&format!("account=o{index:05}"));
        let labels = labels.expect("it is a selector");
        views.watch(&Filter { labels, ..Filter::default() });
    }
    // A view accepts a change once, so alternate runs use different changes.
    let decode = || changes(TIMES).iter().map(|c| Changes::decode(c, &fields)).collect();
    let (sets, mut run): ([Vec<_>; 2], usize) = ([decode(), decode()], 0);
    Piece::new(name, TIMES, move |turn| {
        run += usize::from(turn == 0);
        assert_eq!(views.offer(&sets[run % 2][turn]), 1);
    })
}
