//! The `headwater` program: command line, wiring, output.
//!
//! A library, so that it compiles while the crates it depends on are still being optimised.

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use tracing_subscriber::EnvFilter;

mod flags;
mod print;
mod limits;
mod signals;
mod engine;
mod encryption;
mod serve;
mod traces;
mod relay;
mod controllers;
mod containers;
mod data;
mod pki;
mod kubeconfig;
mod ui;
mod envtest;
mod remote;
mod changes;
mod style;
mod watch;
mod tree;
mod copy;
mod secrets;
mod history;
mod record;
mod replay;
mod export;
mod manual;
mod top;

use flags::{Command, Flags};
use signals::Signals;

/// The exit code. Invalid flags exit with 2, from clap.
#[derive(Clone, Copy)]
enum Exit {
    Done = 0,
    Failed = 1,
}

/// Runs the program with the arguments of this process.
pub fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let ended = match envtest::replaced_program(arguments.next().as_deref()) {
        Some(name) => {
            log_to_stderr("warn").and_then(|()| envtest::run_as(name, arguments.collect()))
        }
        None => run(Flags::parse()),
    };
    let exit = match ended {
        Ok(()) => Exit::Done,
        Err(error) => {
            print::note(&format!("headwater: {}", describe(&error)));
            Exit::Failed
        }
    };
    ExitCode::from(exit as u8)
}

/// The error and its causes in one sentence. Some errors include their cause already.
fn describe(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

fn run(flags: Flags) -> Result<()> {
    // The page shows itself when its server is away; kube would log each attempt as an error.
    let quiet = if matches!(flags.command, Command::Ui(_)) { "kube_client=off," } else { "" };
    log_to_stderr(&format!("{quiet}{}", flags.log))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        match flags.command {
            Command::Dev(serve) => Box::pin(serve::dev(*serve)).await,
            Command::Serve(serve) => Box::pin(serve::serve(*serve, None)).await,
            Command::Ui(flags) => Box::pin(ui::run(&flags)).await,
            Command::Relay(flags) => Box::pin(relay::relay(*flags)).await,
            Command::Controllers(flags) => Box::pin(controllers::controllers(*flags)).await,
            Command::Watch(flags) => Box::pin(watch::run(&flags)).await,
            Command::Tree(flags) => Box::pin(tree::run(&flags)).await,
            Command::History(flags) => Box::pin(history::history(&flags)).await,
            Command::Get(flags) => Box::pin(history::get(&flags)).await,
            Command::Diff(flags) => Box::pin(history::diff(&flags)).await,
            Command::Rollback(flags) => Box::pin(history::rollback(&flags)).await,
            Command::Record(flags) => Box::pin(record::run(&flags)).await,
            Command::Replay(flags) => Box::pin(replay::run(&flags)).await,
            Command::Export(flags) => Box::pin(export::export(&flags)).await,
            Command::Import(flags) => Box::pin(export::import(&flags)).await,
            Command::Compact(compact) => data::compact(&compact).await,
            Command::Backup(backup) => data::backup(&backup).await,
            Command::Restore(restore) => data::restore(&restore),
            Command::Verify(verify) => data::verify(&verify),
            Command::Pki(flags) => pki::run(&flags),
            Command::Kubeconfig(flags) => kubeconfig::run(&flags).await,
            Command::Envtest(flags) => envtest::link(&flags),
            Command::Bench(flags) => Box::pin(bench(flags)).await,
            Command::Top(flags) => Box::pin(top::run(&flags)).await,
            Command::Completions(flags) => {
                manual::completions(&flags);
                Ok(())
            }
            Command::Man(flags) => manual::man(&flags),
            Command::Version => {
                print::data(concat!("headwater ", env!("CARGO_PKG_VERSION")));
                Ok(())
            }
        }
    })
}

async fn bench(flags: headwater_bench::Flags) -> Result<()> {
    limits::raise();
    let mut signals = Signals::new()?;
    let printer = headwater_bench::Printer { data: print::data, note: print::note };
    Box::pin(headwater_bench::run(flags, printer, signals.next())).await
}

fn log_to_stderr(filter: &str) -> Result<()> {
    let filter = EnvFilter::try_new(filter)
        .with_context(|| format!("invalid --log filter {filter:?}; try --log info"))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_named_once() {
        let cause = std::io::Error::from_raw_os_error(2);
        let text = cause.to_string();
        let error = anyhow::Error::new(cause)
            .context(format!("cannot open x: {text}; try --salvage"))
            .context("cannot start");
        assert_eq!(describe(&error), format!("cannot start: cannot open x: {text}; try --salvage"));
    }
}
