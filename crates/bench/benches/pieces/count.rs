//! Counts instructions: runs this program once per piece under valgrind's callgrind.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use headwater_testkit::tools;

use crate::baseline::{Baseline, CountVerdict, Toolchain};
use crate::pieces;

const UPDATE: &str = "cargo bench -p headwater-bench -- --count --update";

pub(crate) fn count(update: bool) -> ExitCode {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("baseline.txt");
    let machine = Toolchain::here();
    let known = Baseline::read(&path);
    if !update && known.machine != machine {
        tools::skip(
            &format!(
                "instructions are not compared: the baseline is for {}, this is {machine}",
                known.machine
            ),
            &format!("use that compiler, or record a baseline: {UPDATE}"),
        );
        return ExitCode::SUCCESS;
    }
    let mut found = Baseline { machine, counts: Vec::new() };
    let mut is_good = true;
    for (name, _) in pieces() {
        let Some(instructions) = instructions(name) else {
            println!("{name}: valgrind failed; is it installed?");
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
        println!("if this is intended, update the baseline: {UPDATE}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// The instructions of one measured run of a piece, including its callees.
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
    // A leftover file does no harm.
    let _ = std::fs::remove_file(&out);
    let text = text.filter(|_| status.success())?;
    let total = text.lines().find_map(|line| line.strip_prefix("summary: "))?;
    total.trim().parse().ok().filter(|count| *count > 0)
}
