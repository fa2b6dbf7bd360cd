//! What the server used: CPU and memory, as the kernel counts them.

use std::fs;
use std::time::{Duration, Instant};

use super::target::Target;

/// Measures from its making to [`Meter::stop`].
pub(super) struct Meter<'a> {
    target: &'a Target,
    began: Instant,
    cpu: Option<Duration>,
}

/// What was used in between.
#[derive(Clone, Copy, Debug)]
pub(super) struct Used {
    pub(super) wall: Duration,
    /// Unknown without a process to look at.
    pub(super) cpu: Option<Duration>,
}

impl Meter<'_> {
    pub(super) fn start(target: &Target) -> Meter<'_> {
        Meter { target, began: Instant::now(), cpu: cpu(&target.pids) }
    }

    pub(super) fn stop(self) -> Used {
        let cpu = cpu(&self.target.pids).zip(self.cpu).map(|(now, then)| now.saturating_sub(then));
        Used { wall: self.began.elapsed(), cpu }
    }
}

/// Time on a processor, all threads together, to the nanosecond.
pub(super) fn cpu(pids: &[u32]) -> Option<Duration> {
    let mut total = 0;
    for pid in pids {
        for thread in fs::read_dir(format!("/proc/{pid}/task")).ok()? {
            let line = fs::read_to_string(thread.ok()?.path().join("schedstat"));
            let nanos = line.ok()?.split(' ').next()?.parse::<u64>().ok()?;
            total += nanos;
        }
    }
    (!pids.is_empty()).then(|| Duration::from_nanos(total))
}

/// Memory in RAM, in bytes.
pub(super) fn rss(target: &Target) -> Option<u64> {
    let mut total = 0;
    for pid in &target.pids {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        total += line.trim().trim_end_matches(" kB").parse::<u64>().ok()? * 1024;
    }
    (!target.pids.is_empty()).then_some(total)
}
