//! `headwater top`: what a server does now.
//!
//! River: `/metrics`, watchers and requests of `headwater.dev` → **top** → the terminal.
//! Promise: it only reads; the terminal is as before when it ends. While the server is away, the last
//! figures stay, with the reason.

use anyhow::{Context, Result};
use headwater_json::Value;
use jiff::Timestamp;
use rustix::termios::tcgetwinsize;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior, interval};

mod samples;
mod figures;
mod layout;
mod keys;

use crate::flags::TopFlags;
use crate::print;
use crate::remote::{RemoteCluster, ResponseForm};
use crate::signals::Signals;
use crate::style::Paint;
use figures::{Figures, Reading};
use keys::{Keyboard, PressedKey};
use layout::{ScreenSize, TopScreen};
use samples::Samples;

/// The other screen of the terminal, without a cursor; and back.
const ENTER: &str = "\u{1b}[?1049h\u{1b}[?25l";
const LEAVE: &str = "\u{1b}[?25h\u{1b}[?1049l";

/// The size of a text that does not have to fit a screen.
const TEXT: ScreenSize = ScreenSize { width: 110, height: 60 };

/// Shows a server until a signal, or once.
pub(crate) async fn run(flags: &TopFlags) -> Result<()> {
    let signals = Signals::new()?;
    let cluster = RemoteCluster::open(&flags.remote).await?;
    let before = read(&cluster).await.context("cannot read the metrics of the server")?;
    let paint = Paint::of_stdout();
    let is_screen = !flags.once && tcgetwinsize(std::io::stdout()).is_ok();
    if !is_screen {
        tokio::time::sleep(flags.interval).await;
        let after = read(&cluster).await?;
        let screen = Figures::between(&before, &after).screen();
        screen.lines(TEXT, paint).iter().for_each(|line| print::data(line));
        return Ok(());
    }
    let keyboard = Keyboard::open();
    print::screen(ENTER);
    let ended = watch(&cluster, flags, before, signals, keyboard).await;
    print::screen(LEAVE);
    ended
}

/// Reads and draws until a key or a signal.
async fn watch(
    cluster: &RemoteCluster,
    flags: &TopFlags,
    mut before: Reading,
    mut signals: Signals,
    mut keyboard: Option<Keyboard>,
) -> Result<()> {
    let paint = Paint::of_stdout();
    let mut resized = signal(SignalKind::window_change())?;
    let mut ticks = interval(flags.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await; // at once
    let mut screen = TopScreen::waiting(cluster.address());
    let mut is_paused = false;
    loop {
        screen.state = if is_paused { "paused, space continues" } else { "q quits, space pauses" };
        draw(&screen, paint);
        let key = async {
            match &mut keyboard {
                Some(keyboard) => keyboard.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = signals.next() => return Ok(()),
            key = key => match key {
                PressedKey::Quit => return Ok(()),
                PressedKey::Pause => is_paused = !is_paused,
            },
            _ = resized.recv() => {}
            next = async { ticks.tick().await; read(cluster).await }, if !is_paused => match next {
                Ok(next) => {
                    screen = Figures::between(&before, &next).screen();
                    before = next;
                }
                Err(error) => screen.trouble = Some(format!("{error:#}")),
            },
        }
    }
}

/// Draws over what was drawn before.
fn draw(screen: &TopScreen, paint: Paint) {
    let size = match tcgetwinsize(std::io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
            ScreenSize { width: size.ws_col.into(), height: size.ws_row.into() }
        }
        _ => ScreenSize { width: 80, height: 24 },
    };
    let lines = screen.lines(size, paint);
    // No line break after the last line: the screen would scroll.
    print::screen(&format!("\u{1b}[H{}\u{1b}[K\u{1b}[J", lines.join("\u{1b}[K\r\n")));
}

async fn read(cluster: &RemoteCluster) -> Result<Reading> {
    let objects = async |plural: &str| -> Option<Vec<Value>> {
        // Another server, or a user without the right to list them.
        let path = format!("/apis/headwater.dev/v1alpha1/{plural}");
        let listed = cluster.list(&path, "", ResponseForm::Full).await;
        listed.map(|listed| listed.items).ok()
    };
    let (metrics, watchers, requests) =
        tokio::join!(cluster.text("/metrics"), objects("watchers"), objects("requests"));
    Ok(Reading {
        server: cluster.address().to_owned(),
        time: Timestamp::now(),
        at: Instant::now().into_std(),
        samples: Samples::parse(&metrics?),
        watchers,
        requests: requests.unwrap_or_default(),
    })
}
