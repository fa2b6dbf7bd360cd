//! Lists: what an object in a list costs the server, however it is asked for.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use headwater_api::object::string_at;
use http::Request;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING};
use http_body_util::{BodyExt, Full};
use memchr::memmem;
use tokio::task::JoinSet;

use super::load::{create_pod, histogram, load, make_namespaces};
use super::measure::{Meter, rss};
use super::object::{SPREAD, namespace};
use super::report::{Line, Report};
use super::stream::Stream;
use super::target::Target;
use crate::connect::{Connection, successful};
use crate::kubeconfig::Endpoint;

/// Lists at once, for the memory they need.
const AT_ONCE: usize = 16;

pub(super) async fn run(
    target: &Target,
    objects: usize,
    rounds: usize,
    report: &mut Report,
) -> Result<()> {
    report.note(&format!("making {objects} pods"));
    make_namespaces(target).await?;
    load(&target.endpoint, 16, objects, create_pod).await?;
    report.line(&Line::new(format!("memory with {objects} pods"), "bytes").bytes(rss(target)));

    let all = "/api/v1/pods";
    let labelled = (0..objects).filter(|index| (index / SPREAD) % SPREAD == 7).count();
    let in_namespace = (7..objects).step_by(SPREAD).count();
    let label = format!("{all}?labelSelector=shard%3Ds7");
    let one_namespace = format!("/api/v1/namespaces/{}/pods", namespace(7));
    let case = |name: &str, path: &str, expected: usize| Case {
        name: name.to_owned(),
        path: path.to_owned(),
        gzip: false,
        expected,
    };
    case("list all", all, objects).run(target, rounds, report, "≤ 4 µs an object").await?;
    let gzip = Case { gzip: true, ..case("list all, gzip", all, objects) };
    gzip.run(target, rounds, report, "≤ 4 µs an object").await?;
    case("list all in pages of 500", &format!("{all}?limit=500"), objects)
        .run(target, rounds, report, "≤ 5 µs an object")
        .await?;
    let few = rounds * 20;
    case("list 1 % by label", &label, labelled)
        .run(target, few, report, "≤ 1 ms a list of 10,000")
        .await?;
    case("list 1 % by namespace", &one_namespace, in_namespace)
        .run(target, few, report, "≤ 0.5 ms a list")
        .await?;
    at_once(target, all, objects, report).await?;
    stream(target, objects, rounds, report).await
}

struct Case {
    name: String,
    path: String,
    gzip: bool,
    expected: usize,
}

impl Case {
    async fn run(
        &self,
        target: &Target,
        rounds: usize,
        report: &mut Report,
        goal: &'static str,
    ) -> Result<()> {
        let mut connection = Connection::open(&target.endpoint).await?;
        // The first is for the server to get warm, and for us to check.
        let bytes = self.list(&mut connection).await?;
        let mut micros = histogram()?;
        let meter = Meter::start(target);
        for _ in 0..rounds {
            let began = std::time::Instant::now();
            self.list(&mut connection).await?;
            micros.saturating_record(began.elapsed().as_micros() as u64);
        }
        let used = meter.stop();
        let objects = (self.expected * rounds) as u64;
        let line = Line::new(&self.name, "objects").used(objects, used).latency(&micros);
        report.line(&line.bytes(Some(bytes)).target(goal));
        Ok(())
    }

    /// One list, page after page; returns the bytes of all bodies.
    async fn list(&self, connection: &mut Connection) -> Result<u64> {
        let (mut bytes, mut items) = (0, 0);
        let mut path = self.path.clone();
        loop {
            let body = get(connection, &path, self.gzip).await?;
            bytes += body.len() as u64;
            if self.gzip {
                return Ok(bytes);
            }
            items += memmem::find_iter(&body, b"\"uid\":\"").count();
            match string_at(&body, &["metadata", "continue"]) {
                Some(token) if !token.is_empty() => {
                    path = format!("{}&continue={}", self.path, escaped(&token));
                }
                _ => break,
            }
        }
        if items != self.expected {
            bail!("{} returned {items} objects instead of {}", self.path, self.expected);
        }
        Ok(bytes)
    }
}

async fn get(connection: &mut Connection, path: &str, gzip: bool) -> Result<Bytes> {
    let mut request = Request::get(path);
    if gzip {
        request = request.header(ACCEPT_ENCODING, "gzip");
    }
    let response = successful(connection.send(request.body(Full::default())?).await?).await?;
    let encoding = response.headers().get(CONTENT_ENCODING).map(http::HeaderValue::as_bytes);
    if gzip && encoding != Some(b"gzip") {
        bail!("{path} was not compressed");
    }
    Ok(response.into_body().collect().await?.to_bytes())
}

fn escaped(token: &str) -> String {
    let mut text = String::new();
    for byte in token.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' => text.push(byte as char),
            byte => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

/// Many lists at the same time: how much memory they need in all.
async fn at_once(target: &Target, path: &str, objects: usize, report: &mut Report) -> Result<()> {
    let before = rss(target);
    let mut lists = JoinSet::new();
    for _ in 0..AT_ONCE {
        let mut connection = Connection::open(&target.endpoint).await?;
        let path = path.to_owned();
        lists.spawn(async move { drain(&mut connection, &path).await });
    }
    let meter = Meter::start(target);
    let mut peak = before;
    let mut ticks = tokio::time::interval(Duration::from_millis(5));
    while !lists.is_empty() {
        tokio::select! {
            Some(done) = lists.join_next() => done??,
            _ = ticks.tick() => peak = peak.max(rss(target)),
        }
    }
    let used = meter.stop();
    let growth = peak.zip(before).map(|(peak, before)| peak.saturating_sub(before));
    let line = Line::new(format!("{AT_ONCE} lists at once, growth"), "objects");
    let line = line.used((objects * AT_ONCE) as u64, used);
    report.line(&line.bytes(growth).target("≤ 16 MB"));
    Ok(())
}

/// Reads a list without keeping it.
async fn drain(connection: &mut Connection, path: &str) -> Result<()> {
    let request = Request::get(path).body(Full::default())?;
    let mut body = successful(connection.send(request).await?).await?.into_body();
    while let Some(frame) = body.frame().await {
        frame?;
    }
    Ok(())
}

/// A streaming list: every object as an event, then the mark.
async fn stream(target: &Target, objects: usize, rounds: usize, report: &mut Report) -> Result<()> {
    let mut micros = histogram()?;
    let meter = Meter::start(target);
    for _ in 0..rounds {
        let began = std::time::Instant::now();
        stream_once(&target.endpoint, objects).await.context("a streaming list failed")?;
        micros.saturating_record(began.elapsed().as_micros() as u64);
    }
    let used = meter.stop();
    let line = Line::new("streaming list", "objects").used((objects * rounds) as u64, used);
    report.line(&line.latency(&micros).target("≤ 5 µs an object"));
    Ok(())
}

async fn stream_once(endpoint: &Endpoint, objects: usize) -> Result<()> {
    let path = "/api/v1/pods?watch=true&sendInitialEvents=true&allowWatchBookmarks=true\
                &resourceVersionMatch=NotOlderThan";
    let mut stream = Stream::open(endpoint, path).await?;
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
