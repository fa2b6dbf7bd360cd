//! Reading an object: its head, its watch frames, selectors.

use std::hint::black_box;

use headwater_api::selector::{FieldSelector, LabelSelector};
use headwater_api::{EventType, Object, Revision};

use crate::piece::{NamedPiece, OFTEN, Piece};
use crate::pod::{kind, objects, stored};

const TIMES: usize = 100;

pub(crate) const PIECES: &[NamedPiece] = &[
    ("head: scan a stored pod", scanned),
    ("frame: event as stored", natural),
    ("frame: event of another type", other),
    ("selector: matching label", label_matches),
    ("selector: other label", label_differs),
    ("selector: spec.nodeName", field),
];

fn scanned(name: &'static str) -> Piece {
    let (stored, kind) = (stored(), kind());
    Piece::new(name, TIMES, move |turn| {
        let revision = Revision(1_000_000 + turn as u64);
        let object =
            Object::decode(black_box(&stored), revision, EventType::Modified, &kind.fields);
        black_box(object.expect("it is an object"));
    })
}

fn natural(name: &'static str) -> Piece {
    let objects = objects(1);
    Piece::new(name, OFTEN, move |_| {
        black_box(objects[0].natural_frame());
    })
}

fn other(name: &'static str) -> Piece {
    let objects = objects(1);
    Piece::new(name, TIMES, move |_| {
        black_box(objects[0].frame(EventType::Deleted));
    })
}

fn label_matches(name: &'static str) -> Piece {
    label(name, "team=storefront,tier in (backend,frontend)")
}

fn label_differs(name: &'static str) -> Piece {
    label(name, "account=nobody")
}

fn label(name: &'static str, selector: &str) -> Piece {
    let selector = LabelSelector::parse(selector).expect("it is a selector");
    let objects = objects(TIMES);
    Piece::new(name, OFTEN, move |turn| {
        black_box(selector.matches_object(black_box(&objects[turn % TIMES])));
    })
}

fn field(name: &'static str) -> Piece {
    let selector = FieldSelector::parse("spec.nodeName=node-0007", &kind());
    let (selector, objects) = (selector.expect("it is a selector"), objects(TIMES));
    Piece::new(name, OFTEN, move |turn| {
        black_box(selector.matches(black_box(&objects[turn % TIMES])));
    })
}
