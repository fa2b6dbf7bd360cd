//! The keys of `headwater top`.
//!
//! River: the terminal → **keys** → top. Promise: when this is dropped, the terminal echoes and reads
//! lines as before.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr,
};
use tokio::sync::mpsc;

/// Keys that are pressed faster than the screen is drawn.
const KEYS_MAX: usize = 16;

/// What a key means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PressedKey {
    Quit,
    Pause,
}

/// The keyboard, key by key and without echo.
pub(super) struct Keyboard {
    before: Termios,
    keys: mpsc::Receiver<PressedKey>,
    is_over: Arc<AtomicBool>,
}

impl Keyboard {
    /// `None` if stdin is no terminal.
    pub(super) fn open() -> Option<Keyboard> {
        let stdin = std::io::stdin();
        let before = tcgetattr(&stdin).ok()?;
        let mut terminal = before.clone();
        // Ctrl-C stays a signal. Ctrl-Z would leave a shell on the wrong screen.
        terminal.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
        terminal.special_codes[SpecialCodeIndex::VSUSP] = 0;
        // A read returns after a tenth of a second, so that the thread ends.
        terminal.special_codes[SpecialCodeIndex::VMIN] = 0;
        terminal.special_codes[SpecialCodeIndex::VTIME] = 1;
        tcsetattr(&stdin, OptionalActions::Now, &terminal).ok()?;
        let is_over = Arc::new(AtomicBool::new(false));
        let (sender, keys) = mpsc::channel(KEYS_MAX);
        let ends = Arc::clone(&is_over);
        let read = move || {
            let mut bytes = [0; 16];
            while !ends.load(Relaxed) {
                let Ok(count) = rustix::io::read(std::io::stdin().as_fd(), &mut bytes) else {
                    return;
                };
                if let Some(key) = key(&bytes[..count]) {
                    // A full queue has the same keys already.
                    let _ = sender.try_send(key);
                }
            }
        };
        let reader = std::thread::Builder::new().name("keys".into()).spawn(read);
        let keyboard = Keyboard { before, keys, is_over };
        reader.ok().map(|_| keyboard)
    }

    /// The next key that means something. Cancel-safe.
    pub(super) async fn next(&mut self) -> PressedKey {
        match self.keys.recv().await {
            Some(key) => key,
            None => std::future::pending().await, // the terminal is gone; a signal follows
        }
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        // The terminal may be gone.
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.before);
    }
}

/// The meaning of what one read returned. A single escape quits; other keys begin with one.
fn key(bytes: &[u8]) -> Option<PressedKey> {
    match bytes {
        b"q" | b"Q" | b"\x1b" => Some(PressedKey::Quit),
        b" " => Some(PressedKey::Pause),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arrow_is_no_escape() {
        assert_eq!(key(b"\x1b"), Some(PressedKey::Quit));
        assert_eq!(key(b"\x1b[A"), None);
        assert_eq!(key(b""), None);
    }
}
