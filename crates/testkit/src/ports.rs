//! Ports for processes that must be told theirs, or that come back at the same place.
//!
//! A port that the system gave to somebody and that was let go may be given to the next one at once,
//! to listen on or to call from. These are outside the range the system gives from, and two tests
//! never have the same.

use std::fs::File;
use std::net::TcpListener;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// Below what systems give out by themselves, and above what has a name.
const FIRST: u32 = 10_000;
const COUNT: u32 = 20_000;

/// Ports nobody listens on; they are this process's until it ends.
pub fn free(count: usize) -> Vec<u16> {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    let start = std::process::id().wrapping_mul(41);
    let next = || FIRST + start.wrapping_add(TRIED.fetch_add(1, Ordering::Relaxed)) % COUNT;
    let ports = std::iter::repeat_with(next).map(|port| u16::try_from(port).expect("it is small"));
    ports.take(COUNT as usize).filter(|port| is_ours(*port)).take(count).collect()
}

/// Whether nobody listens on it and no other test has it.
fn is_ours(port: u16) -> bool {
    static HELD: Mutex<Vec<File>> = Mutex::new(Vec::new());
    let dir = std::env::temp_dir().join("headwater-test-ports");
    std::fs::create_dir_all(&dir).expect("there is a place for temporary files");
    let file = File::create(dir.join(port.to_string()));
    let Some(file) = file.ok().filter(|file| file.try_lock().is_ok()) else { return false };
    let is_free = TcpListener::bind(("127.0.0.1", port)).is_ok();
    HELD.lock().expect("no code panics while it is held").push(file);
    is_free
}
