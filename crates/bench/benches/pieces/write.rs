//! The stages of a write, from the request body to the stored bytes.

use std::hint::black_box;

use headwater_api::name;
use headwater_json as json;
use headwater_schema::decode::Format;
use headwater_schema::managed::{self, Builtin};
use headwater_schema::{decode, defaults, validate};

use crate::piece::{NamedPiece, Piece};
use crate::pod::{BODY, kind, stored, write};

const TIMES: usize = 20;

pub(crate) const PIECES: &[NamedPiece] = &[
    ("write: decode a pod", decoded),
    ("write: defaults", defaulted),
    ("write: validate", validated),
    ("write: track managed fields", tracked),
    ("write: print JSON", printed),
    ("write: update an annotation", updated),
    ("write: apply an annotation", applied),
];

fn decoded(name: &'static str) -> Piece {
    let kind = kind();
    Piece::new(name, TIMES, move |_| {
        black_box(decode::object(&kind, Format::Json, black_box(BODY)).expect("it is a pod"));
    })
}

fn defaulted(name: &'static str) -> Piece {
    let kind = kind();
    let value = decode::object(&kind, Format::Json, BODY).expect("it is a pod").value;
    Piece::new(name, TIMES, move |_| {
        let mut value = value.clone();
        defaults::apply(&kind, &mut value, None);
        defaults::prepare_for_create(&kind, &mut value);
        black_box(value);
    })
}

fn validated(name: &'static str) -> Piece {
    let kind = kind();
    let mut value = decode::object(&kind, Format::Json, BODY).expect("it is a pod").value;
    defaults::apply(&kind, &mut value, None);
    defaults::prepare_for_create(&kind, &mut value);
    Piece::new(name, TIMES, move |_| {
        black_box(name::metadata_on_create(&kind, black_box(&value)));
        black_box(validate::create(&kind, black_box(&value)));
    })
}

fn tracked(name: &'static str) -> Piece {
    let kind = kind();
    let mut value = decode::object(&kind, Format::Json, BODY).expect("it is a pod").value;
    defaults::apply(&kind, &mut value, None);
    defaults::prepare_for_create(&kind, &mut value);
    Piece::new(name, TIMES, move |_| {
        let mut value = value.clone();
        let structure = Builtin::of(&kind).expect("pods are built in");
        managed::track_update(None, &mut value, &write(), structure).expect("it can be tracked");
        black_box(value);
    })
}

fn printed(name: &'static str) -> Piece {
    let value = decode::object(&kind(), Format::Json, BODY).expect("it is a pod").value;
    Piece::new(name, TIMES, move |_| {
        print(black_box(&value));
    })
}

/// From the stored bytes to the new bytes, without decoding the body and without validation.
fn updated(name: &'static str) -> Piece {
    let (kind, stored) = (kind(), stored());
    let new = changed(headwater_json::parse(&stored).expect("it is JSON").value);
    Piece::new(name, TIMES, move |_| {
        let old = decode::stored(black_box(&stored)).expect("it is stored");
        let mut new = new.clone();
        let structure = Builtin::of(&kind).expect("pods are built in");
        managed::track_update(Some(&old), &mut new, &write(), structure)
            .expect("it can be tracked");
        print(&new);
    })
}

/// From the stored bytes and an applied configuration to the new bytes.
fn applied(name: &'static str) -> Piece {
    let (kind, stored) = (kind(), stored());
    let config = changed(headwater_json::parse(BODY).expect("it is JSON").value);
    let write = managed::Write { manager: "applier", ..write() };
    Piece::new(name, TIMES, move |_| {
        let old = decode::stored(black_box(&stored)).expect("it is stored");
        let structure = Builtin::of(&kind).expect("pods are built in");
        let new = managed::apply(Some(&old), &config, &write, true, &kind, structure);
        print(&new.expect("it is forced"));
    })
}

fn changed(mut pod: json::Value) -> json::Value {
    pod["metadata"]["annotations"]["changed"] = "yes".into();
    pod
}

fn print(value: &json::Value) {
    let mut bytes = Vec::with_capacity(8192);
    json::push_value(&mut bytes, value);
    black_box(bytes);
}
