//! What the system allows a server: many descriptors, no core dumps.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Takes every descriptor the system offers (each connection needs one), and keeps keys out of
/// core dumps.
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
}
