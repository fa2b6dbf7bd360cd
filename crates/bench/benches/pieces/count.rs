//! Counting instructions: this program again for each piece, under valgrind's callgrind.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use crate::baseline::{Baseline, CountVerdict, Toolchain};
use crate::pieces;

const REFRESH: &str = "cargo bench -p headwater-bench -- --count --update";

pub(crate) fn count(update: bool) -> ExitCode {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("baseline.txt");
    let machine = Toolchain::here();
    let known = Baseline::read(&path);
    if !update && known.machine != machine {
        println!("not compared: the baseline is of {}, this is {machine}", known.machine);
        println!("to make one for this compiler: {REFRESH}");
        return ExitCode::SUCCESS;
    }
    let mut found = Baseline { machine, counts: Vec::new() };
    let mut is_good = true;
    for (name, _) in pieces() {
        let Some(instructions) = instructions(name) else {
            println!("{name}: valgrind could not count; is it installed?");
            return ExitCode::FAILURE;
        };
        found.counts.push((name.to_owned(), instructions));
        let verdict = known.judge(name, instructions);
        println!("{name:<40} {instructions:>12} instructions, {verdict}");
        is_good &= !matches!(verdict, CountVerdict::More { .. } | CountVerdict::Unknown);
    }
    if update {
        return match found.write(&path) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                println!("cannot write {}: {error}", path.display());
                ExitCode::FAILURE
            }
        };
    }
    if !is_good {
        println!("if that is meant, refresh the baseline: {REFRESH}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// What one measured run of a piece executes, everything it calls included.
fn instructions(name: &str) -> Option<u64> {
    let out: PathBuf = std::env::temp_dir().join(format!("headwater-bench-{}", std::process::id()));
    let status = Command::new("valgrind")
        .args(["--tool=callgrind", "--collect-atstart=no", "--toggle-collect=*measured_piece*"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(std::env::current_exe().ok()?)
        .args(["--once", name])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .ok()?;
    let text = std::fs::read_to_string(&out).ok();
    // Nothing is lost if it stays.
    let _ = std::fs::remove_file(&out);
    let text = text.filter(|_| status.success())?;
    let total = text.lines().find_map(|line| line.strip_prefix("summary: "))?;
    total.trim().parse().ok().filter(|count| *count > 0)
}
