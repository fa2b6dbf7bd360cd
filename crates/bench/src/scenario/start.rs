//! `bench start`: the time from process start to ready, and from a restart with data to the first
//! list.

use std::time::Instant;

use anyhow::Result;

use crate::connect::Connection;
use crate::load::body::drain;
use crate::load::requests::{make_namespaces, make_pods};
use crate::report::figures::{Figure, Figures};
use crate::report::{Case, Row};
use crate::session::Session;
use crate::target::measure::rss;
use crate::target::{ScratchDir, TargetServer};

/// Starts of an empty server: a single one is too short to measure.
const EMPTY: usize = 5;

pub(crate) async fn run(session: &mut Session, objects: &[usize]) -> Result<()> {
    empty(session).await?;
    let mut home = ScratchDir::new()?;
    let mut made = 0;
    for &objects in objects {
        home = fill(home, made, objects).await?;
        made = objects;
        home = restart(session, home, objects).await?;
    }
    Ok(())
}

async fn empty(session: &mut Session) -> Result<()> {
    let mut runs = Vec::new();
    for _ in 0..session.runs() * EMPTY {
        let (target, took) = TargetServer::start(ScratchDir::new()?, false).await?;
        let figures = Figures::default().with(Figure::Wall, took.as_secs_f64());
        runs.push(figures.memory(rss(&target).await));
    }
    report(session, Case::new("start", "empty", "starts"), &runs);
    Ok(())
}

async fn fill(home: ScratchDir, made: usize, objects: usize) -> Result<ScratchDir> {
    let (target, _) = TargetServer::start(home, false).await?;
    make_namespaces(&target).await?;
    make_pods(&target, made, objects).await?;
    target.stop()
}

/// Restarts with existing data and lists all of it, once per run.
async fn restart(
    session: &mut Session,
    mut home: ScratchDir,
    objects: usize,
) -> Result<ScratchDir> {
    let (mut restarts, mut memory) = (Vec::new(), Vec::new());
    for _ in 0..session.runs() {
        let began = Instant::now();
        let (target, _) = TargetServer::start(home, false).await?;
        let mut connection = Connection::open(&target.endpoint).await?;
        drain(&mut connection, "/api/v1/pods").await?;
        let took = began.elapsed().as_secs_f64();
        let rss = rss(&target).await;
        restarts.push(Figures::default().with(Figure::Wall, took).memory(rss));
        memory.push(Figures::default().memory(rss));
        home = target.stop()?;
    }
    let case = |mode| Case::new("start", mode, "starts").sized("objects", objects);
    report(session, case("restart").grows_straight(), &restarts);
    report(session, case("memory").grows_straight(), &memory);
    Ok(home)
}

fn report(session: &mut Session, case: Case, runs: &[Figures]) {
    session.report.row(Row::alone(case, "headwater", runs.len(), Figures::median(runs)));
}
