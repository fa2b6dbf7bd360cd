//! Authorization: decisions by roles and bindings, and a change of one of them.

use std::hint::black_box;

use headwater_server::pieces::{BoundRoles, Spread};

use crate::piece::{NamedPiece, OFTEN, Piece};

const FEW: usize = 10;
const MANY: usize = 10_000;

pub(crate) const PIECES: &[NamedPiece] = &[
    ("access: decide with 10 bindings", |name| decided(name, FEW, Spread::Users)),
    ("access: decide with 10,000 bindings", |name| decided(name, MANY, Spread::Users)),
    ("access: decide with 10,000 of one group", |name| decided(name, MANY, Spread::OneGroup)),
    ("access: change 1 of 10,000 bindings", changed),
];

fn decided(name: &'static str, count: usize, spread: Spread) -> Piece {
    let roles = BoundRoles::new(count, spread);
    Piece::new(name, OFTEN, move |turn| {
        assert_eq!(black_box(roles.decide(turn)), turn.is_multiple_of(2));
    })
}

fn changed(name: &'static str) -> Piece {
    let mut roles = BoundRoles::new(MANY, Spread::Users);
    Piece::new(name, 100, move |turn| roles.bind(turn, Spread::Users))
}
