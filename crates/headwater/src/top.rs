//! `headwater top`: what a server does now.
//!
//! River: `/metrics`, watchers and requests of `headwater.dev` → **top** → the terminal.
//! Promise: it only reads; the terminal is as before when it ends.

use anyhow::{Context, Result};
use headwater_json::Value;
use jiff::Timestamp;
use rustix::termios::tcgetwinsize;
use tokio::time::Instant;

mod samples;
mod figures;

use crate::flags::TopFlags;
use crate::print;
use crate::remote::{RemoteCluster, ResponseForm};
use crate::signals::Signals;
use figures::{Figures, Reading};
use samples::Samples;

/// The other screen of the terminal, without a cursor; and back.
const ENTER: &str = "\u{1b}[?1049h\u{1b}[?25l";
const LEAVE: &str = "\u{1b}[?25h\u{1b}[?1049l";

/// The lines of a text that does not have to fit a screen.
const ROWS_OF_TEXT: usize = 60;

/// Shows a server until a signal, or once.
pub(crate) async fn run(flags: &TopFlags) -> Result<()> {
    let mut signals = Signals::new()?;
    let cluster = RemoteCluster::open(&flags.remote).await?;
    let mut before = read(&cluster).await.context("cannot read the metrics of the server")?;
    let stdout = std::io::stdout();
    let is_screen = !flags.once && tcgetwinsize(&stdout).is_ok();
    if !is_screen {
        tokio::time::sleep(flags.interval).await;
        let after = read(&cluster).await?;
        let lines = Figures::between(&before, &after).lines(usize::MAX, ROWS_OF_TEXT);
        lines.iter().for_each(|line| print::data(line));
        return Ok(());
    }
    print::screen(ENTER);
    let ended = loop {
        tokio::select! {
            biased;
            () = signals.next() => break Ok(()),
            () = tokio::time::sleep(flags.interval) => {}
        }
        let next = tokio::select! {
            biased;
            () = signals.next() => break Ok(()),
            next = read(&cluster) => next,
        };
        let next = match next {
            Ok(next) => next,
            Err(error) => break Err(error),
        };
        let (width, height) = match tcgetwinsize(&stdout) {
            Ok(size) => (usize::from(size.ws_col), usize::from(size.ws_row)),
            Err(_) => (80, 24),
        };
        let lines = Figures::between(&before, &next).lines(width, height.saturating_sub(1));
        print::screen(&frame(&lines));
        before = next;
    };
    print::screen(LEAVE);
    ended
}

/// The codes that draw lines over what was drawn before.
fn frame(lines: &[String]) -> String {
    let mut text = String::from("\u{1b}[H");
    for line in lines {
        text.push_str(line);
        text.push_str("\u{1b}[K\r\n");
    }
    text + "\u{1b}[J"
}

async fn read(cluster: &RemoteCluster) -> Result<Reading> {
    let objects = async |plural: &str| -> Vec<Value> {
        // Another server, or a user without the right to list them.
        let path = format!("/apis/headwater.dev/v1alpha1/{plural}");
        let listed = cluster.list(&path, "", ResponseForm::Full).await;
        listed.map(|listed| listed.items).unwrap_or_default()
    };
    let (metrics, watchers, requests) =
        tokio::join!(cluster.text("/metrics"), objects("watchers"), objects("requests"));
    Ok(Reading {
        server: cluster.address().to_owned(),
        time: Timestamp::now(),
        at: Instant::now().into_std(),
        samples: Samples::parse(&metrics?),
        watchers,
        requests,
    })
}
