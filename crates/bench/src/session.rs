//! A session: the servers of a bench, the number of runs, and the report.
//!
//! Promise: with two servers, or with the bare server, every case runs on both alternately, so that
//! other load on the machine affects both.

use anyhow::{Context, Result};

use crate::bare::{self, BareWork};
use crate::load::clean;
use crate::report::figures::{Figure, Figures};
use crate::report::{Case, Report, Row};
use crate::target::{ServerSource, TargetServer};

pub(crate) struct Session {
    sources: Vec<ServerSource>,
    servers: Vec<TargetServer>,
    runs: usize,
    bare: Option<TargetServer>,
    pub(crate) report: Report,
}

impl Session {
    pub(crate) fn new(sources: Vec<ServerSource>, runs: usize, report: Report) -> Session {
        Session { sources, servers: Vec::new(), runs, bare: None, report }
    }

    /// Starts the bare server: each case then also measures it with similar work.
    pub(crate) async fn with_floor(&mut self) -> Result<()> {
        self.bare = Some(bare::start().await?);
        Ok(())
    }

    /// Opens every server without objects of the bench. Stops those of the previous scenario first.
    pub(crate) async fn fresh(&mut self) -> Result<()> {
        self.servers.clear();
        for source in &self.sources {
            let name = source.name();
            let server = open(source).await.with_context(|| format!("cannot use server {name}"))?;
            self.servers.push(server);
        }
        Ok(())
    }

    /// Whether the bench started the first server, and so may stop it.
    pub(crate) fn is_own(&self) -> bool {
        matches!(self.sources.first(), Some(ServerSource::Own { .. }))
    }

    /// A second, empty server like the first, if the bench starts it.
    pub(crate) async fn twin(&self) -> Result<Option<TargetServer>> {
        match self.sources.first() {
            Some(source @ ServerSource::Own { .. }) => source.open().await.map(Some),
            _ => Ok(None),
        }
    }

    /// Whether there is a second server.
    pub(crate) fn is_compared(&self) -> bool {
        self.sources.len() > 1
    }

    pub(crate) fn runs(&self) -> usize {
        self.runs
    }

    /// The server that the goals are for.
    pub(crate) fn first(&self) -> Result<&TargetServer> {
        self.servers.first().context("no server is open")
    }

    /// Runs `work` on every server without measuring it.
    pub(crate) async fn each(&self, work: impl AsyncFn(&TargetServer) -> Result<()>) -> Result<()> {
        for server in &self.servers {
            work(server).await.with_context(|| format!("on {}", server.name))?;
        }
        Ok(())
    }

    /// Runs `work` on every server alternately, once per run, and reports the medians. Passes the
    /// number of the run.
    pub(crate) async fn measure(
        &mut self,
        case: Case,
        work: impl AsyncFn(&TargetServer, usize) -> Result<Figures>,
    ) -> Result<()> {
        let mut runs: Vec<Vec<Figures>> = vec![Vec::new(); self.servers.len()];
        let mut floors = Vec::new();
        for run in 0..self.runs {
            for (server, figures) in self.servers.iter().zip(&mut runs) {
                let done = work(server, run).await;
                figures.push(done.with_context(|| failed(&case, server))?);
            }
            let done = runs.first().and_then(|runs| runs.last()?.get(Figure::Count));
            let ready = done.and_then(|units| BareWork::of(&case, units as usize));
            if let (Some(ready), Some(bare)) = (ready, &self.bare) {
                floors.push(ready.once(bare).await.context("on the bare server")?);
            }
        }
        self.report(&case, &runs, &floors);
        Ok(())
    }

    /// The same with fresh servers for each run, for work that leaves traces in a server.
    pub(crate) async fn measure_fresh(
        &mut self,
        case: Case,
        work: impl AsyncFn(&TargetServer) -> Result<Figures>,
    ) -> Result<()> {
        let mut runs: Vec<Vec<Figures>> = vec![Vec::new(); self.sources.len()];
        for _ in 0..self.runs {
            self.fresh().await?;
            for (server, figures) in self.servers.iter().zip(&mut runs) {
                let done = work(server).await;
                figures.push(done.with_context(|| failed(&case, server))?);
            }
        }
        self.report(&case, &runs, &[]);
        Ok(())
    }

    /// Reports figures of a server that the scenario started itself.
    pub(crate) fn report_row(&mut self, case: Case, server: &str, figures: Figures) {
        let server = server.to_owned();
        self.report.row(Row { case, server, runs: 1, figures, against: None, floor: None });
    }

    /// Reports the medians of each server.
    fn report(&mut self, case: &Case, runs: &[Vec<Figures>], floors: &[Figures]) {
        let medians: Vec<Figures> = runs.iter().map(|runs| Figures::median(runs)).collect();
        for (index, (server, figures)) in self.servers.iter().zip(&medians).enumerate() {
            let other = self.servers.get(1).zip(medians.get(1)).filter(|_| index == 0);
            let against = other.map(|(other, theirs)| (other.name.clone(), figures.over(theirs)));
            let (case, server) = (case.clone(), server.name.clone());
            let floor = (!floors.is_empty()).then(|| Figures::median(floors));
            self.report.row(Row {
                case,
                server,
                runs: self.runs,
                figures: *figures,
                against,
                floor,
            });
        }
    }
}

/// Opens a server. Deletes the objects that earlier runs left in a running one.
async fn open(source: &ServerSource) -> Result<TargetServer> {
    let target = source.open().await?;
    if let ServerSource::Running { .. } = source {
        clean::delete_leftovers(&target.endpoint).await?;
    }
    Ok(target)
}

fn failed(case: &Case, server: &TargetServer) -> String {
    format!("{} failed on {}", case.name(), server.name)
}
