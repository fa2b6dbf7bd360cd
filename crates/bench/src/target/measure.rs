//! CPU and memory of a server, from the kernel for local processes or from the server's `/metrics`.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use http::Request;
use http_body_util::{BodyExt, Full};

use super::TargetServer;
use crate::connect::{Connection, successful};
use crate::kubeconfig::Endpoint;

/// Measures from [`Meter::start`] to [`Meter::stop`].
pub(crate) struct Meter<'a> {
    target: &'a TargetServer,
    began: Instant,
    cpu: Option<Duration>,
}

/// The time and CPU between start and stop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    pub(crate) wall: Duration,
    /// `None` for a remote server without these metrics.
    pub(crate) cpu: Option<Duration>,
}

impl Meter<'_> {
    pub(crate) async fn start(target: &TargetServer) -> Meter<'_> {
        let cpu = cpu(target).await;
        Meter { target, began: Instant::now(), cpu }
    }

    pub(crate) async fn stop(self) -> Usage {
        let wall = self.began.elapsed();
        let cpu = cpu(self.target).await.zip(self.cpu);
        Usage { wall, cpu: cpu.map(|(now, then)| now.saturating_sub(then)) }
    }
}

async fn cpu(target: &TargetServer) -> Option<Duration> {
    match target.pids.as_slice() {
        [] => {
            metric(&target.endpoint, "process_cpu_seconds_total").await.map(Duration::from_secs_f64)
        }
        pids => cpu_of(pids),
    }
}

/// Resident memory in bytes.
pub(crate) async fn rss(target: &TargetServer) -> Option<u64> {
    match target.pids.as_slice() {
        [] => metric(&target.endpoint, "process_resident_memory_bytes")
            .await
            .map(|bytes| bytes as u64),
        pids => pids.iter().map(|pid| status(*pid, "VmRSS:")).sum(),
    }
}

/// The CPU time of all live threads, in nanoseconds. The kernel does not report it at this
/// precision for threads that have exited, so they do not count.
pub(crate) fn cpu_of(pids: &[u32]) -> Option<Duration> {
    let mut total = 0;
    for pid in pids {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
        let threads = threads.filter_map(|thread| used_by(&thread.ok()?.path()));
        total += threads.sum::<u64>();
    }
    Some(Duration::from_nanos(total))
}

fn used_by(thread: &Path) -> Option<u64> {
    let line = fs::read_to_string(thread.join("schedstat")).ok()?;
    line.split(' ').next()?.parse().ok()
}

/// A value of `/proc/PID/status`, in bytes.
pub(crate) fn status(pid: u32, name: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? * 1024)
}

/// A metric without labels, if the server has it.
async fn metric(endpoint: &Endpoint, name: &str) -> Option<f64> {
    value(&metrics(endpoint).await.ok()?, name)
}

/// All metrics of a server, over a new connection: servers close idle ones.
pub(crate) async fn metrics(endpoint: &Endpoint) -> Result<String> {
    let mut connection = Connection::open(endpoint).await?;
    let request = Request::get("/metrics").body(Full::default())?;
    let body = successful(connection.send(request).await?).await?.into_body();
    Ok(String::from_utf8(body.collect().await?.to_bytes().into())?)
}

/// The sum of the request counters with a label.
pub(crate) fn request_count(metrics: &str, label: &str) -> u64 {
    let lines = metrics.lines().filter(|line| line.starts_with("apiserver_request_total{"));
    let lines = lines.filter(|line| line.contains(label));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

fn value(metrics: &str, name: &str) -> Option<f64> {
    let mut lines = metrics.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(found, _)| *found == name)?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_found_by_its_full_name() {
        let metrics = "# TYPE process_cpu_seconds_total counter\n\
            process_cpu_seconds_total_other 7\n\
            process_cpu_seconds_total 12.5\n\
            process_resident_memory_bytes 2.5e+08\n";
        assert_eq!(value(metrics, "process_cpu_seconds_total"), Some(12.5));
        assert_eq!(value(metrics, "process_resident_memory_bytes"), Some(2.5e8));
        assert_eq!(value(metrics, "process_start_time_seconds"), None);
    }

    #[test]
    fn requests_are_counted_by_label() {
        let metrics = "# HELP x\n\
            apiserver_request_total{verb=\"LIST\",resource=\"pods\",code=\"200\"} 2\n\
            apiserver_request_total{verb=\"LIST\",resource=\"nodes\",code=\"200\"} 3\n\
            apiserver_request_total{verb=\"WATCH\",resource=\"pods\",code=\"200\"} 7\n\
            other_total{verb=\"LIST\"} 9\n";
        let count = |label| request_count(metrics, label);
        assert_eq!((count("verb=\"LIST\""), count("resource=\"pods\"")), (5, 9));
    }

    #[test]
    fn cpu_and_memory_of_a_local_process_come_from_the_kernel() {
        let me = std::process::id();
        assert!(cpu_of(&[me]).unwrap() > Duration::ZERO);
        assert!(status(me, "VmRSS:").unwrap() > 100_000);
        assert_eq!(cpu_of(&[u32::MAX]), None);
    }
}
