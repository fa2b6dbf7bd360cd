//! The flags of `completions` and `man`.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

pub(super) const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  headwater completions bash > /etc/bash_completion.d/headwater
  headwater completions zsh > \"${fpath[1]}/_headwater\"
  headwater completions fish > ~/.config/fish/completions/headwater.fish";

#[derive(Debug, Args)]
pub(crate) struct CompletionsFlags {
    /// Shell
    pub(crate) shell: Shell,
}

pub(super) const MAN_EXAMPLES: &str = "\
Examples:
  headwater man /usr/local/share/man/man1
  headwater man man1 && man -l man1/headwater-record.1";

#[derive(Debug, Args)]
pub(crate) struct ManFlags {
    /// Directory for the pages; created if absent
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
}
