//! A piece: one hot function and its input, ready to run.

/// Repetitions of a piece that takes few instructions: one stray allocation must not show.
pub(crate) const OFTEN: usize = 2000;

/// A piece and its input.
pub(crate) struct Piece {
    /// Its name, which begins with its stage of the river.
    pub(crate) name: &'static str,
    /// Repetitions in one run.
    pub(crate) times: usize,
    work: Box<dyn FnMut()>,
}

impl Piece {
    pub(crate) fn new(
        name: &'static str,
        times: usize,
        mut work: impl FnMut(usize) + 'static,
    ) -> Piece {
        let work = Box::new(move || (0..times).for_each(&mut work));
        Piece { name, times, work }
    }

    /// Runs it once, so that lazily made values exist.
    pub(crate) fn warm(&mut self) {
        (self.work)();
    }

    /// Runs it while it is measured: valgrind finds this function by its name.
    #[inline(never)]
    pub(crate) fn measured_piece(&mut self) {
        (self.work)();
    }
}

/// The name of a piece, and the function that makes the piece of that name.
pub(crate) type NamedPiece = (&'static str, fn(&'static str) -> Piece);
