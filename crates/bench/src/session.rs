//! One bench: the servers, how often each thing is done, and where the figures go.
//!
//! Promise: with two servers, every piece of work is done on both in turn, run by run, so that
//! what the machine does meanwhile hits both. So it is with the bare server, where the floor is asked for.

use anyhow::{Context, Result};

use crate::bare::{BareServer, BareWork};
use crate::load::clean;
use crate::report::figures::{Figure, Figures};
use crate::report::{Case, Report, Row};
use crate::target::{ServerSource, TargetServer};

pub(crate) struct Session {
    sources: Vec<ServerSource>,
    servers: Vec<TargetServer>,
    runs: usize,
    bare: Option<BareServer>,
    pub(crate) report: Report,
}

impl Session {
    pub(crate) fn new(sources: Vec<ServerSource>, runs: usize, report: Report) -> Session {
        Session { sources, servers: Vec::new(), runs, bare: None, report }
    }

    /// From here on the bare server does what is like each case, beside it.
    pub(crate) fn with_floor(&mut self) -> Result<()> {
        self.bare = Some(BareServer::start()?);
        Ok(())
    }

    /// Every server with nothing of ours in it. Those of the scenario before end first.
    pub(crate) async fn fresh(&mut self) -> Result<()> {
        self.servers.clear();
        for source in &self.sources {
            let name = source.name();
            let server = open(source).await.with_context(|| format!("{name} cannot be used"))?;
            self.servers.push(server);
        }
        Ok(())
    }

    /// Whether the server that is held to the goals may be stopped and started.
    pub(crate) fn is_own(&self) -> bool {
        matches!(self.sources.first(), Some(ServerSource::Own { .. }))
    }

    /// Another server like the first, with nothing in it, if that is one of our own.
    pub(crate) fn twin(&self) -> Result<Option<TargetServer>> {
        match self.sources.first() {
            Some(source @ ServerSource::Own { .. }) => source.open().map(Some),
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

    /// The server that is held to the goals.
    pub(crate) fn first(&self) -> Result<&TargetServer> {
        self.servers.first().context("a scenario begins with fresh servers")
    }

    /// Does on every server what is not measured.
    pub(crate) async fn each(&self, work: impl AsyncFn(&TargetServer) -> Result<()>) -> Result<()> {
        for server in &self.servers {
            work(server).await.with_context(|| format!("on {}", server.name))?;
        }
        Ok(())
    }

    /// Does a piece of work on every server in turn, as often as asked, and reports the medians.
    /// The work is told which run it is.
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
                floors.push(ready.once(&bare.target).await.context("on the bare server")?);
            }
        }
        self.tell(&case, &runs, &floors);
        Ok(())
    }

    /// The same, each run on servers that have just started: what is measured stays with a server.
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
        self.tell(&case, &runs, &[]);
        Ok(())
    }

    /// Tells the medians of each server.
    fn tell(&mut self, case: &Case, runs: &[Vec<Figures>], floors: &[Figures]) {
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

/// Opens a server. One that was running before may have objects of an earlier bench: removes them.
async fn open(source: &ServerSource) -> Result<TargetServer> {
    let target = source.open()?;
    if let ServerSource::Running { .. } = source {
        clean::remove_what_is_ours(&target.endpoint).await?;
    }
    Ok(target)
}

fn failed(case: &Case, server: &TargetServer) -> String {
    format!("{} on {} went wrong", case.name(), server.name)
}
