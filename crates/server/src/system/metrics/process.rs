//! Metrics of the process, under the usual names of Prometheus clients.
//!
//! Values are read from the kernel at each scrape; a family without a value is omitted.

use std::fs;

use rustix::process::{Resource, getrlimit};

use headwater_api::metrics::{Desc, Registry, Samples};

/// The unit of CPU times in `/proc`: hundredths of a second.
const TICKS_PER_SECOND: f64 = 100.0;

/// Adds the families of the process.
pub(super) fn observe(registry: &Registry) {
    let cpu = Desc {
        name: "process_cpu_seconds_total",
        help: "Time on processors, all threads together.",
        labels: &[],
    };
    registry.observed_total(cpu, |samples| push(samples, cpu_seconds()));
    type Read = fn() -> Option<f64>;
    let gauges: [(&'static str, &'static str, Read); 5] = [
        ("process_resident_memory_bytes", "Memory in RAM.", || memory("VmRSS:")),
        ("process_virtual_memory_bytes", "Memory in the address space.", || memory("VmSize:")),
        ("process_open_fds", "File descriptors that are open.", open_fds),
        ("process_max_fds", "File descriptors that may be open.", max_fds),
        ("process_start_time_seconds", "When the process began, since 1970.", start_time),
    ];
    for (name, help, read) in gauges {
        let desc = Desc { name, help, labels: &[] };
        registry.observed(desc, move |samples| push(samples, read()));
    }
}

fn push(samples: &mut Samples, value: Option<f64>) {
    if let Some(value) = value {
        samples.push(&[], value);
    }
}

fn cpu_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    Some(seconds(&stat, 14)? + seconds(&stat, 15)?)
}

fn start_time() -> Option<f64> {
    let kernel = fs::read_to_string("/proc/stat").ok()?;
    let booted = kernel.lines().find_map(|line| line.strip_prefix("btime "))?;
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    Some(booted.trim().parse::<f64>().ok()? + seconds(&stat, 22)?)
}

/// A time in `/proc/self/stat`, by its field number in proc(5). The second field is the program's
/// name in parentheses and may contain anything.
fn seconds(stat: &str, number: usize) -> Option<f64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let ticks: f64 = after_name.split_whitespace().nth(number - 3)?.parse().ok()?;
    Some(ticks / TICKS_PER_SECOND)
}

/// A line of the process's status, in bytes.
fn memory(name: &str) -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().trim_end_matches(" kB").parse::<f64>().ok()? * 1024.0)
}

fn open_fds() -> Option<f64> {
    // One descriptor is open for this read.
    Some(fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1) as f64)
}

/// The limit; `None` if unlimited.
fn max_fds() -> Option<f64> {
    getrlimit(Resource::Nofile).current.map(|limit| limit as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_behind_any_name() {
        let stat = "7 (a) (b c) S 1 2 3 4 -1 5 6 7 8 9 250 50 0 0 20 0 1 0 12345 6 7";
        assert_eq!(seconds(stat, 14), Some(2.5));
        assert_eq!(seconds(stat, 15), Some(0.5));
        assert_eq!(seconds(stat, 22), Some(123.45));
        assert_eq!(seconds("7 (short) S", 14), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn every_family_is_printed_with_a_number_that_can_be_true() {
        let registry = Registry::default();
        observe(&registry);
        let text = registry.text();
        let value = |name: &str| -> f64 {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
            line.unwrap_or_else(|| panic!("{name} is not in {text}")).parse().unwrap()
        };
        assert!(value("process_cpu_seconds_total") >= 0.0);
        assert!(text.contains("# TYPE process_cpu_seconds_total counter\n"));
        assert!(text.contains("# TYPE process_open_fds gauge\n"));
        let resident = value("process_resident_memory_bytes");
        assert!(resident > 0.0 && resident <= value("process_virtual_memory_bytes"));
        let open = value("process_open_fds");
        assert!(open >= 1.0 && open <= value("process_max_fds"));
        let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
        let began = value("process_start_time_seconds");
        assert!(began > 0.0 && began <= now + 1.0, "{began} is after {now}");
    }
}
