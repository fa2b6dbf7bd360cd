//! What the system allows a server: many descriptors, no core dumps, small pages.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Takes every descriptor the system offers (each connection needs one), keeps keys out of core
/// dumps, and asks for small pages: most of a connection's buffers is never touched, and a huge
/// page would be paid for whole.
pub(crate) fn raise() {
    let files = getrlimit(Resource::Nofile);
    let all = Rlimit { current: files.maximum, maximum: files.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, all) {
        tracing::warn!(%error, "the limit on open files stays as it is");
    }
    let none = Rlimit { current: Some(0), maximum: getrlimit(Resource::Core).maximum };
    if let Err(error) = setrlimit(Resource::Core, none) {
        tracing::warn!(%error, "core dumps stay on");
    }
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "huge pages stay on");
    }
}
