//! `headwater completions` and `headwater man`: generated from the flags, so that they are never stale.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use clap::{Command, CommandFactory};

use crate::flags::{CompletionsFlags, Flags, ManFlags};
use crate::print;

/// Prints the completions of a shell.
pub(crate) fn completions(flags: &CompletionsFlags) {
    let mut out = Vec::new();
    clap_complete::generate(flags.shell, &mut Flags::command(), "headwater", &mut out);
    print::data(String::from_utf8_lossy(&out).trim_end());
}

/// Writes a page for the program and one for each command.
pub(crate) fn man(flags: &ManFlags) -> Result<()> {
    let directory = &flags.directory;
    let made = || -> Result<usize> {
        fs::create_dir_all(directory)?;
        let mut program = Flags::command();
        program.build();
        pages(&program, directory)
    };
    let count = made().with_context(|| format!("cannot write to {}", directory.display()))?;
    print::note(&format!("wrote {count} pages to {}", directory.display()));
    Ok(())
}

fn pages(command: &Command, directory: &Path) -> Result<usize> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page)?;
    fs::write(directory.join(format!("{name}.1")), page)?;
    let mut count = 1;
    for inside in command.get_subcommands() {
        if inside.get_name() != "help" && !inside.is_hide_set() {
            count += pages(inside, directory)?;
        }
    }
    Ok(count)
}
