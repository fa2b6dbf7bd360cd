//! The micro-benchmarks: the hot functions of a write, a change, a list, an event and the
//! admission of a request, one at a time.
//!
//! - `cargo bench -p headwater-bench [NAME]` prints the median time of each piece.
//! - `cargo bench -p headwater-bench -- --count` counts instructions under valgrind and compares
//!   them with `baseline.txt`.
//! - `cargo bench -p headwater-bench -- --count --update` replaces the baseline.
//!
//! Instruction counts do not depend on how busy the machine is. They do depend on the compiler and
//! the processor family: with another one nothing is compared.

#![expect(clippy::print_stdout, reason = "a benchmark prints")]

use std::process::ExitCode;
use std::time::{Duration, Instant};

mod piece;
mod pod;
mod write;
mod read;
mod cache;
mod access;
mod flow;
mod baseline;
mod count;

use piece::{NamedPiece, Piece};

/// Timed runs of a piece; the median is printed.
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

/// One warm run and one measured run: the process that valgrind runs.
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

/// All pieces, in river order. Making one may take long, so only the selected ones are made.
fn pieces() -> Vec<NamedPiece> {
    [write::PIECES, read::PIECES, cache::PIECES, access::PIECES, flow::PIECES].concat()
}
