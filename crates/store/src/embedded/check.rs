//! The check of the entire data file after a start, in the background.
//!
//! After a clean stop redb trusts its list of free pages, which our checksums do not cover; if it
//! is damaged, a write may overwrite live pages. So all trees are checked. Reads do not wait for
//! the check, since every row has a checksum; writes do. After an unclean stop the repair has
//! checked everything already.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use redb::{Database, DatabaseError, RepairSession};

use super::disk::Disk;
use super::file::{DATA, trouble};
use super::overlay::Overlay;
use crate::store::Error;

/// Memory for pages while it checks.
const CACHE_BYTES: usize = 2 << 20;

/// The priority of the check, as `nice` counts it.
#[cfg(target_os = "linux")]
const BEHIND: i32 = 10;

/// A check under way.
#[derive(Debug)]
pub(super) struct Check {
    thread: JoinHandle<Result<(), Error>>,
    stop: Arc<AtomicBool>,
}

/// The file as it is before anything is written to it.
pub(super) struct Before {
    database: Database,
    stop: Arc<AtomicBool>,
}

impl Before {
    /// Opens the file once more, to be looked at only. Must come before it is opened for writing.
    /// `None` if it was not closed: its repair will check it.
    pub(super) fn open(disk: &dyn Disk) -> Result<Option<Before>, Error> {
        let unavailable = |error: std::io::Error| Error::Unavailable(error.to_string());
        let stop = Arc::new(AtomicBool::new(false));
        let file = disk.open(DATA).map_err(unavailable)?;
        let overlay = Overlay::new(file, stop.clone()).map_err(unavailable)?;
        let opened = Database::builder()
            .set_cache_size(CACHE_BYTES)
            .set_repair_callback(RepairSession::abort)
            .create_with_backend(overlay);
        match opened {
            Ok(database) => Ok(Some(Before { database, stop })),
            Err(DatabaseError::RepairAborted) => Ok(None),
            Err(error) => Err(trouble(error)),
        }
    }

    /// Checks it on a thread of its own.
    pub(super) fn check(self) -> Result<Check, Error> {
        let Before { database, stop } = self;
        let thread = std::thread::Builder::new().name("store-check".into());
        let thread = thread.spawn(move || {
            step_back();
            check(database)
        });
        let thread = thread.map_err(|error| Error::Unavailable(error.to_string()))?;
        Ok(Check { thread, stop })
    }
}

/// The first reads of a start are waited for, this rarely is. Where it cannot be put behind them,
/// it is beside them: elsewhere than on Linux all of the process would be.
fn step_back() {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::setpriority_process(None, BEHIND);
}

fn check(database: Database) -> Result<(), Error> {
    let damaged = |why: &str| Err(Error::Damaged { place: DATA.into(), why: why.into() });
    // The database is dropped in here too: an engine that panicked may do so again.
    let checked = catch_unwind(AssertUnwindSafe(move || {
        let mut database = database;
        database.check_integrity()
    }));
    match checked {
        Ok(Ok(true)) => Ok(()),
        Ok(Ok(false)) => damaged("the trees contradict the list of free pages"),
        Ok(Err(error)) => Err(trouble(error)),
        Err(_) => damaged("the storage engine failed on damaged pages"),
    }
}

impl Check {
    /// Waits for the result.
    pub(super) fn wait(self) -> Result<(), Error> {
        self.thread.join().unwrap_or_else(|_| {
            Err(Error::Unavailable("the check of the data file stopped unexpectedly".into()))
        })
    }

    /// Ends it without a result.
    pub(super) fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        // Whatever it found does not matter any more.
        let _ = self.wait();
    }
}
