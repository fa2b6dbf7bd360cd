//! Starting: from nothing to ready, and from data to the first list.

use std::time::Instant;

use anyhow::Result;
use http::Request;
use http_body_util::{BodyExt, Full};

use super::load::{create_pod, load, make_namespaces};
use super::measure::rss;
use super::report::{Line, Report};
use super::target::{Home, Started, Target};
use crate::connect::{Connection, successful};

pub(super) async fn run(objects: usize, report: &mut Report) -> Result<()> {
    let (target, took) = Target::timed(Started::new(Home::new()?, false)?)?;
    report.line(&Line::new("empty store to ready", "").took(took).target("< 0.1 s"));
    let line = Line::new("memory of an empty server", "bytes").bytes(rss(&target));
    report.line(&line.target("< 40 MB"));

    report.note(&format!("making {objects} pods"));
    make_namespaces(&target).await?;
    load(&target.endpoint, 16, objects, create_pod).await?;
    let home = target.stop()?;

    let began = Instant::now();
    let (target, _) = Target::timed(Started::new(home, false)?)?;
    let mut connection = Connection::open(&target.endpoint).await?;
    let request = Request::get("/api/v1/pods").body(Full::default())?;
    let mut body = successful(connection.send(request).await?).await?.into_body();
    while let Some(frame) = body.frame().await {
        frame?;
    }
    let name = format!("restart with {objects} pods to first full list");
    let line = Line::new(name, "").took(began.elapsed());
    report.line(&line.target("≤ 2 s with 100,000"));
    let name = format!("memory with {objects} pods");
    report.line(&Line::new(name, "bytes").bytes(rss(&target)).target("≤ 0.9 GB with 100,000"));
    Ok(())
}
