//! Free ports for processes that need a fixed port, or that restart on the same one.
//!
//! The system may assign a released port to another process at once. These ports are outside the
//! range from which the system assigns, and file locks keep two tests from using the same one.

use std::fs::File;
use std::net::TcpListener;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// Below the ephemeral ports, and above well-known ones.
const FIRST: u32 = 10_000;
const COUNT: u32 = 20_000;

/// Free ports; they are reserved until this process exits.
pub fn free(count: usize) -> Vec<u16> {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    let start = std::process::id().wrapping_mul(41);
    let next = || FIRST + start.wrapping_add(TRIED.fetch_add(1, Ordering::Relaxed)) % COUNT;
    let ports = std::iter::repeat_with(next)
        .map(|port| u16::try_from(port).expect("ports are below 65536"));
    ports.take(COUNT as usize).filter(|port| is_ours(*port)).take(count).collect()
}

/// Whether the port is free, and reserves it for this process.
fn is_ours(port: u16) -> bool {
    static HELD: Mutex<Vec<File>> = Mutex::new(Vec::new());
    let dir = std::env::temp_dir().join("headwater-test-ports");
    std::fs::create_dir_all(&dir).expect("the temporary directory is writable");
    let file = File::create(dir.join(port.to_string()));
    let Some(file) = file.ok().filter(|file| file.try_lock().is_ok()) else { return false };
    let is_free = TcpListener::bind(("127.0.0.1", port)).is_ok();
    HELD.lock().expect("no code panics while it is held").push(file);
    is_free
}
