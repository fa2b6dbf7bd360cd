//! Watch-lists: every object as an ADDED event, then the bookmark that ends the initial events.

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
        read(&target.endpoint, objects).await.context("incorrect watch-list")?;
        micros.saturating_record(began.elapsed().as_micros() as u64);
    }
    let used = meter.stop().await;
    Ok(Figures::per_unit(objects * rounds, used).latency(&micros))
}

/// Reads one watch-list. The order of objects is undefined, so they are only counted.
async fn read(endpoint: &Endpoint, objects: usize) -> Result<()> {
    let mut stream = WatchStream::open(endpoint, &PATH.into(), Protocol::Http1).await?;
    for _ in 0..objects {
        if !stream.next().await?.starts_with(b"{\"type\":\"ADDED\"") {
            bail!("an event other than ADDED arrived before the initial-events-end bookmark");
        }
    }
    let bookmark = stream.next().await?;
    match memmem::find(bookmark, b"k8s.io/initial-events-end") {
        Some(_) => Ok(()),
        None => bail!("more objects arrived than exist"),
    }
}
