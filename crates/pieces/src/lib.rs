//! The hot pieces, one at a time: what a write, a change, a list and an event are made of.
//!
//! `cargo bench -p headwater-pieces` times them; with `-- --count` valgrind counts their
//! instructions, which `./test instructions` compares with `baseline.txt`. A crate of its own, so
//! that neither needs what only tests of `api` and `cache` need: it builds in a minute.

mod pod;
mod write;
mod read;
mod cache;

/// How often a run does what takes few instructions, so that one stray allocation is no share of it.
const OFTEN: usize = 2000;

/// A piece and what it works on.
pub struct Piece {
    /// What it is called, by its stage of the river.
    pub name: &'static str,
    /// How often one run does it.
    pub times: usize,
    work: Box<dyn FnMut()>,
}

impl Piece {
    fn new(name: &'static str, times: usize, mut work: impl FnMut(usize) + 'static) -> Piece {
        let work = Box::new(move || (0..times).for_each(&mut work));
        Piece { name, times, work }
    }

    /// Does it, so that what is made once is made.
    pub fn warm(&mut self) {
        (self.work)();
    }

    /// Does it where it counts: valgrind looks for this function by its name.
    #[inline(never)]
    pub fn measured_piece(&mut self) {
        (self.work)();
    }
}

/// A piece's name, and what makes the piece of that name.
pub type Named = (&'static str, fn(&'static str) -> Piece);

/// Every piece, in river order. Making one may take long; only those that are wanted are made.
pub fn pieces() -> Vec<Named> {
    [write::PIECES, read::PIECES, cache::PIECES].concat()
}
