//! The flags of `top`.

use std::time::Duration;

use clap::Args;

use super::{RemoteFlags, parse_duration};

/// The shortest interval: each reading is work for the server.
const INTERVAL_MIN: Duration = Duration::from_millis(200);

pub(super) const EXAMPLES: &str = "\
Examples:
  headwater top
  headwater top --once --interval 10s
  headwater top --kubeconfig other.kubeconfig";

#[derive(Debug, Args)]
pub(crate) struct TopFlags {
    /// Print the figures of one interval as text
    #[arg(long)]
    pub(crate) once: bool,

    /// Time between two readings
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_interval)]
    pub(crate) interval: Duration,

    #[command(flatten)]
    pub(crate) remote: RemoteFlags,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = parse_duration(text)?;
    match interval >= INTERVAL_MIN {
        true => Ok(interval),
        false => Err(format!("at least {} ms are needed", INTERVAL_MIN.as_millis())),
    }
}
