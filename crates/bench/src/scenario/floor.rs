//! `bench floor`: the best that any server can do on this machine.
//!
//! Measures all work of the bare server, and what every server needs from the kernel: bytes through
//! TLS, writes to sockets, syncs of a disk.

use anyhow::Result;

use crate::bare::{self, BareWork, memory};
use crate::load::stream::Protocol;
use crate::report::figures::Figures;
use crate::report::goals::shrunk;
use crate::report::{Case, Row};
use crate::session::Session;
use crate::target::ScratchDir;

mod machine;

/// Measures everything, one after the other.
pub(crate) async fn run(session: &mut Session, watchers: usize) -> Result<()> {
    machine(session).await?;
    let bare = bare::start().await?;
    let flat_out = |protocol| BareWork::FanOut { watchers, events: 500, protocol };
    for ready in [
        BareWork::Write { clients: 16, writes: 10_000 },
        BareWork::Synced { writes: 2_000 },
        BareWork::List { objects: 10_000 },
        flat_out(Protocol::Http1),
        flat_out(Protocol::Http2),
        BareWork::Paced { watchers, events: 50, per_second: 10 },
        BareWork::One { watchers: 10, writes: 2_000 },
    ] {
        let mut figures = Vec::new();
        for _ in 0..session.runs() {
            figures.push(ready.once(&bare).await?);
        }
        add_row(session, ready.case(), &figures);
    }
    Ok(())
}

/// Measures what has no case to alternate with: the kernel, and the memory of an idle watcher.
pub(crate) async fn machine(session: &mut Session) -> Result<()> {
    machine::run(&ScratchDir::new()?, session).await?;
    let watchers = shrunk(5_000, session.report.shrink);
    let idle = Case::new("floor", "idle watcher", "watchers").sized("watchers", watchers);
    let figures = memory(&bare::start().await?, watchers).await?;
    add_row(session, idle, &[figures]);
    Ok(())
}

pub(crate) fn add_row(session: &mut Session, case: Case, runs: &[Figures]) {
    session.report.floor(Row::alone(case, "", runs.len(), Figures::median(runs)));
}
