//! Watch-lists: every object as an event, then the mark that says these were all.

use std::time::Instant;

use anyhow::{Context, Result, bail};
use memchr::memmem;

use crate::kubeconfig::Endpoint;
use crate::load::histogram;
use crate::load::stream::{Protocol, WatchStream};
use crate::report::figures::Figures;
use crate::target::TargetServer;
use crate::target::measure::Meter;

const PATH: &str = "/api/v1/pods?watch=true&sendInitialEvents=true&allowWatchBookmarks=true\
                    &resourceVersionMatch=NotOlderThan";

pub(super) async fn once(target: &TargetServer, objects: usize, rounds: usize) -> Result<Figures> {
    let mut micros = histogram()?;
    let meter = Meter::start(target).await;
    for _ in 0..rounds {
        let began = Instant::now();
        read(&target.endpoint, objects).await.context("a watch-list is wrong")?;
        micros.saturating_record(began.elapsed().as_micros() as u64);
    }
    let used = meter.stop().await;
    Ok(Figures::per_unit(objects * rounds, used).latency(&micros))
}

/// Objects come in any order, so they are counted; each is added once.
async fn read(endpoint: &Endpoint, objects: usize) -> Result<()> {
    let mut stream = WatchStream::open(endpoint, PATH, Protocol::Http1).await?;
    for _ in 0..objects {
        if !stream.next().await?.starts_with(b"{\"type\":\"ADDED\"") {
            bail!("an event of another type came before the mark");
        }
    }
    let mark = stream.next().await?;
    match memmem::find(mark, b"k8s.io/initial-events-end") {
        Some(_) => Ok(()),
        None => bail!("more objects than there are"),
    }
}
