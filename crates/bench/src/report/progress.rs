//! A progress bar on a terminal; prints nothing elsewhere.

use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::figures::grouped;

const WIDTH: usize = 30;
const PAUSE: Duration = Duration::from_millis(100);

/// A bar on stderr, erased when dropped.
pub(crate) struct Progress {
    what: String,
    total: usize,
    done: AtomicUsize,
    /// When it was last drawn; `None` without a terminal.
    drawn: Option<Mutex<Instant>>,
}

impl Progress {
    pub(crate) fn new(what: impl Into<String>, total: usize) -> Progress {
        let drawn = std::io::stderr().is_terminal().then(|| Mutex::new(Instant::now()));
        Progress { what: what.into(), total, done: AtomicUsize::new(0), drawn }
    }

    pub(crate) fn step(&self) {
        let done = self.done.fetch_add(1, Relaxed) + 1;
        let Some(drawn) = &self.drawn else { return };
        // Another task is drawing.
        let Ok(mut drawn) = drawn.try_lock() else { return };
        if drawn.elapsed() >= PAUSE {
            *drawn = Instant::now();
            draw(&bar(&self.what, done, self.total));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.drawn.is_some() {
            draw("");
        }
    }
}

/// Replaces the current line.
fn draw(line: &str) {
    let mut stderr = std::io::stderr().lock();
    // A failed write to the terminal has nowhere to be reported.
    let _ = write!(stderr, "\r\x1b[K{line}").and_then(|()| stderr.flush());
}

fn bar(what: &str, done: usize, total: usize) -> String {
    let filled = (done * WIDTH).checked_div(total).unwrap_or(WIDTH).min(WIDTH);
    let (full, rest) = ("█".repeat(filled), "░".repeat(WIDTH - filled));
    format!("{full}{rest} {what} {}/{}", grouped(done as f64), grouped(total as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_filled_in_proportion_to_the_work() {
        let filled = |done, total| bar("x", done, total).matches('█').count();
        assert_eq!(filled(0, 10), 0);
        assert_eq!(filled(5, 10), WIDTH / 2);
        assert_eq!(filled(12, 10), WIDTH);
        assert_eq!(filled(0, 0), WIDTH);
        assert!(bar("pods", 1500, 10_000).ends_with("pods 1,500/10,000"));
    }
}
