//! Load: concurrent clients, one connection each, that share a queue of write requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use anyhow::{Context, Result};
use bytes::Bytes;
use hdrhistogram::Histogram;
use headwater_api::object::string_at;
use http::header::CONTENT_TYPE;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use tokio::task::JoinSet;

use crate::report::progress::Progress;
pub(crate) mod object;
pub(crate) mod requests;
pub(crate) mod routine;
pub(crate) mod clean;
pub(crate) mod body;
pub(crate) mod stream;
pub(crate) mod checker;
pub(crate) mod watchers;

use crate::connect::{Connection, successful};
use crate::kubeconfig::Endpoint;

/// One write.
pub(crate) struct WriteRequest {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) content_type: &'static str,
    pub(crate) body: Vec<u8>,
}

pub(crate) const JSON: &str = "application/json";
pub(crate) const APPLY: &str = "application/apply-patch+yaml";
pub(crate) const STRATEGIC: &str = "application/strategic-merge-patch+json";

/// The outcome of a load.
pub(crate) struct LoadResult {
    pub(crate) micros: Histogram<u64>,
    /// The resourceVersion of every write and when it was acknowledged.
    pub(crate) acknowledged: Vec<(u64, Instant)>,
}

impl LoadResult {
    fn new() -> Result<LoadResult> {
        Ok(LoadResult { micros: histogram()?, acknowledged: Vec::new() })
    }

    pub(crate) fn revisions(&self) -> Vec<u64> {
        self.acknowledged.iter().map(|(revision, _)| *revision).collect()
    }
}

/// Sends the requests `0..count` over `clients` connections.
pub(crate) async fn load(
    endpoint: &Endpoint,
    clients: usize,
    count: usize,
    work: impl Fn(usize) -> WriteRequest + Send + Sync + 'static,
) -> Result<LoadResult> {
    let (work, next) = (Arc::new(work), Arc::new(AtomicUsize::new(0)));
    let progress = Arc::new(Progress::new("writes", count));
    let mut running = JoinSet::new();
    for _ in 0..clients.min(count) {
        let mut connection = Connection::open(endpoint).await?;
        let (work, next, progress) = (work.clone(), next.clone(), progress.clone());
        running.spawn(async move {
            let mut done = LoadResult::new()?;
            loop {
                let index = next.fetch_add(1, Relaxed);
                if index >= count {
                    return anyhow::Ok(done);
                }
                let began = Instant::now();
                let revision = send(&mut connection, work(index)).await?;
                done.micros.saturating_record(began.elapsed().as_micros() as u64);
                done.acknowledged.push((revision, Instant::now()));
                progress.step();
            }
        });
    }
    let mut all = LoadResult::new()?;
    while let Some(done) = running.join_next().await {
        let done = done??;
        all.micros.add(&done.micros)?;
        all.acknowledged.extend(done.acknowledged);
    }
    Ok(all)
}

/// A histogram of microseconds up to a minute, with three significant digits.
pub(crate) fn histogram() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, 60_000_000, 3)?)
}

/// Sends one write and returns its resourceVersion.
pub(crate) async fn send(connection: &mut Connection, work: WriteRequest) -> Result<u64> {
    let request = Request::builder()
        .method(work.method)
        .uri(work.path)
        .header(CONTENT_TYPE, work.content_type)
        .body(Full::new(Bytes::from(work.body)))?;
    let response = successful(connection.send(request).await?).await?;
    let body = response.into_body().collect().await?.to_bytes();
    let revision = string_at(&body, &["metadata", "resourceVersion"]);
    Ok(revision.context("the response to a write has no resourceVersion")?.parse()?)
}
