//! Resource limits of the process: file descriptors, core dumps, huge pages.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit on open files to the maximum (each connection needs one), disables core dumps,
/// which would contain keys, and disables huge pages: most of a connection's buffers is never
/// touched, but would occupy memory.
pub(crate) fn raise() {
    let files = getrlimit(Resource::Nofile);
    let all = Rlimit { current: files.maximum, maximum: files.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, all) {
        tracing::warn!(%error, "cannot raise the limit on open files");
    }
    let none = Rlimit { current: Some(0), maximum: getrlimit(Resource::Core).maximum };
    if let Err(error) = setrlimit(Resource::Core, none) {
        tracing::warn!(%error, "cannot disable core dumps, which would contain keys");
    }
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "cannot disable huge pages");
    }
}
