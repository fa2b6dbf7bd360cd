//! Times the pieces, or counts their instructions with valgrind.
//!
//! `cargo bench -p headwater-pieces [NAME]` prints the median time of each.
//! `cargo bench -p headwater-pieces -- --count` compares instructions with `baseline.txt`;
//! `-- --count --update` writes it anew. Nothing but instructions is compared, so a busy machine
//! does not matter; another compiler or processor family does, and then nothing is.

#![expect(clippy::print_stdout, reason = "a benchmark prints")]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use headwater_pieces::{Piece, pieces};

#[path = "support/baseline.rs"]
mod baseline;
#[path = "support/count.rs"]
mod count;

/// Runs of a piece; the middle one is told.
const RUNS: usize = 101;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let named: Vec<&str> =
        arguments.iter().map(String::as_str).filter(|a| !a.starts_with("--")).collect();
    if has("--once") {
        once(named.first().copied().unwrap_or_default());
        return ExitCode::SUCCESS;
    }
    match has("--count") {
        true => count::count(has("--update")),
        false => {
            time(&named);
            ExitCode::SUCCESS
        }
    }
}

/// One warm run and one that counts: what valgrind looks at.
fn once(name: &str) {
    for mut piece in made(|known| known == name) {
        piece.warm();
        piece.measured_piece();
    }
}

fn time(named: &[&str]) {
    for mut piece in made(|name| named.is_empty() || named.iter().any(|part| name.contains(part))) {
        piece.warm();
        let mut times: Vec<Duration> = Vec::with_capacity(RUNS);
        for _ in 0..RUNS {
            let began = Instant::now();
            piece.measured_piece();
            times.push(began.elapsed());
        }
        times.sort_unstable();
        let nanos = times[RUNS / 2].as_nanos() as f64 / piece.times as f64;
        println!("{:<40} {:>10.1} ns", piece.name, nanos);
    }
}

fn made(is_wanted: impl Fn(&str) -> bool) -> impl Iterator<Item = Piece> {
    pieces().into_iter().filter(move |(name, _)| is_wanted(name)).map(|(name, make)| make(name))
}
