//! The baseline: the recorded instruction counts, with their compiler and processor.

use std::fmt;
use std::path::Path;
use std::process::Command;

/// A higher count by more than this share is a regression.
const TOLERANCE: f64 = 0.10;

/// The compiler and processor, which counts depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Toolchain {
    compiler: String,
    processor: String,
}

impl Toolchain {
    pub(crate) fn here() -> Toolchain {
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let version = Command::new(rustc).arg("--version").output();
        let version = version.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        Toolchain {
            compiler: version.unwrap_or_default().trim().to_owned(),
            processor: processor(),
        }
    }
}

/// The processor family: code that detects wide registers takes another path without them.
fn processor() -> String {
    #[cfg(target_arch = "x86_64")]
    let wide = if std::arch::is_x86_feature_detected!("avx2") { "avx2" } else { "sse2" };
    #[cfg(not(target_arch = "x86_64"))]
    let wide = "baseline";
    format!("{} {wide}", std::env::consts::ARCH)
}

impl fmt::Display for Toolchain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.compiler.as_str() {
            "" => write!(f, "an unknown compiler"),
            compiler => write!(f, "{compiler} on {}", self.processor),
        }
    }
}

pub(crate) struct Baseline {
    pub(crate) machine: Toolchain,
    pub(crate) counts: Vec<(String, u64)>,
}

/// A count compared with the baseline.
pub(crate) enum CountVerdict {
    Same { percent: f64 },
    Less { percent: f64 },
    More { percent: f64 },
    Unknown,
}

impl fmt::Display for CountVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CountVerdict::Same { percent } => write!(f, "{percent:+.1} %"),
            CountVerdict::Less { percent } => {
                write!(f, "{percent:+.1} %: better; update the baseline")
            }
            CountVerdict::More { percent } => write!(f, "{percent:+.1} %: WORSE"),
            CountVerdict::Unknown => write!(f, "not in the baseline"),
        }
    }
}

impl Baseline {
    /// Reads lines of `name = value`. A missing file is an empty baseline.
    pub(crate) fn read(path: &Path) -> Baseline {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let mut baseline = Baseline { machine: Toolchain::default(), counts: Vec::new() };
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        for (name, value) in lines.filter_map(|line| line.split_once(" = ")) {
            match (name, value.parse()) {
                ("compiler", _) => baseline.machine.compiler = value.to_owned(),
                ("processor", _) => baseline.machine.processor = value.to_owned(),
                (name, Ok(count)) => baseline.counts.push((name.to_owned(), count)),
                (_, Err(_)) => {}
            }
        }
        baseline
    }

    pub(crate) fn write(&self, path: &Path) -> std::io::Result<()> {
        let Toolchain { compiler, processor } = &self.machine;
        let mut text = format!(
            "# Instruction counts of the micro-benchmarks. To update: cargo bench -p headwater-bench -- --count --update\n\
             compiler = {compiler}\nprocessor = {processor}\n"
        );
        for (name, count) in &self.counts {
            text.push_str(&format!("{name} = {count}\n"));
        }
        std::fs::write(path, text)
    }

    pub(crate) fn judge(&self, name: &str, count: u64) -> CountVerdict {
        let Some((_, known)) = self.counts.iter().find(|(known, _)| known == name) else {
            return CountVerdict::Unknown;
        };
        let share = count as f64 / *known as f64 - 1.0;
        let percent = share * 100.0;
        match share {
            share if share > TOLERANCE => CountVerdict::More { percent },
            share if share < -TOLERANCE => CountVerdict::Less { percent },
            _ => CountVerdict::Same { percent },
        }
    }
}
