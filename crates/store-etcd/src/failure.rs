//! Failures: what an answer that is not one means.
//!
//! The only place that reads codes of gRPC and texts of etcd.

use std::error::Error as _;

use tonic::{Code, Status};

/// Why a call did not do what it was to do.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// That history is gone.
    #[error("the revision was compacted")]
    Compacted,
    /// That revision has not been reached.
    #[error("the revision is in the future")]
    Future,
    /// The lease has run out.
    #[error("the lease has expired")]
    NoLease,
    /// The token was valid once, or never.
    #[error("etcd rejected the authentication token; check --etcd-user")]
    StaleToken,
    /// etcd will not do this.
    #[error("etcd rejected the request: {0}")]
    Refused(String),
    /// Nothing can be written until an operator makes room.
    #[error("etcd has no space left (compact and defragment it, then disarm its alarm): {0}")]
    Full(String),
    /// Nobody answered.
    #[error("{why}")]
    Unreachable {
        why: String,
        /// Whether it may have been done all the same.
        may_be_done: bool,
    },
}

impl Failure {
    /// Says which member it was.
    pub(crate) fn at(self, url: &str) -> Failure {
        match self {
            Failure::Unreachable { why, may_be_done } => {
                Failure::Unreachable { why: format!("{url}: {why}"), may_be_done }
            }
            failure => failure,
        }
    }
}

/// What a status means.
pub(crate) fn failure(status: &Status) -> Failure {
    let text = status.message();
    let says = |part: &str| text.contains(part);
    match status.code() {
        Code::OutOfRange if says("compacted") => Failure::Compacted,
        Code::OutOfRange if says("future revision") => Failure::Future,
        Code::NotFound if says("lease not found") => Failure::NoLease,
        Code::Unauthenticated => Failure::StaleToken,
        Code::ResourceExhausted if says("space exceeded") => Failure::Full(text.to_owned()),
        Code::InvalidArgument
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::NotFound
        | Code::Unimplemented
        | Code::ResourceExhausted => Failure::Refused(text.to_owned()),
        _ => {
            let why = match status.source() {
                Some(source) => innermost(source),
                None => text.to_owned(),
            };
            Failure::Unreachable { why, may_be_done: !is_unsent(status) }
        }
    }
}

/// Whether there never was a connection to send it on.
fn is_unsent(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// The cause of the causes: it says most.
pub(crate) fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(code: Code, text: &str, expected: &str) {
        let found = format!("{:?}", failure(&Status::new(code, text)));
        assert!(found.starts_with(expected), "{found}");
    }

    #[test]
    fn what_etcd_says_is_told_apart() {
        check(
            Code::OutOfRange,
            "etcdserver: mvcc: required revision has been compacted",
            "Compacted",
        );
        check(
            Code::OutOfRange,
            "etcdserver: mvcc: required revision is a future revision",
            "Future",
        );
        check(Code::NotFound, "etcdserver: requested lease not found", "NoLease");
        check(Code::Unauthenticated, "etcdserver: invalid auth token", "StaleToken");
        check(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded", "Full");
        check(Code::InvalidArgument, "etcdserver: request is too large", "Refused");
        check(Code::PermissionDenied, "etcdserver: permission denied", "Refused");
        // Whether a write happened is then unknown.
        for code in [Code::Unavailable, Code::DeadlineExceeded, Code::Cancelled, Code::Unknown] {
            let unknown = failure(&Status::new(code, "etcdserver: request timed out"));
            assert!(matches!(unknown, Failure::Unreachable { may_be_done: true, .. }), "{code:?}");
        }
    }

    /// R42
    #[test]
    fn only_what_never_had_a_connection_is_certainly_not_done() {
        let refused = tonic::ConnectError("refused".into());
        let unsent = failure(&Status::from_error(Box::new(refused)));
        assert!(matches!(unsent, Failure::Unreachable { may_be_done: false, .. }), "{unsent:?}");
        let broken = std::io::Error::other("reset");
        let unknown = failure(&Status::from_error(Box::new(broken)));
        assert!(matches!(unknown, Failure::Unreachable { may_be_done: true, .. }), "{unknown:?}");
    }
}
