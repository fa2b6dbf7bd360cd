//! Errors of calls to etcd: the only file that interprets gRPC codes and etcd's error texts.

use std::error::Error as _;

use headwater_store::Error;
use tonic::{Code, Status};

/// Why a call failed.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// The requested revision was compacted.
    #[error("the revision was compacted")]
    Compacted,
    /// The requested revision has not been reached.
    #[error("the revision is in the future")]
    Future,
    /// The lease has expired.
    #[error("the lease has expired")]
    NoLease,
    /// The authentication token has expired or is not valid.
    #[error("etcd rejected the authentication token; check --etcd-user")]
    StaleToken,
    /// etcd rejected the request.
    #[error("etcd rejected the request: {0}")]
    Refused(String),
    /// etcd rejects writes until an operator makes room.
    #[error("etcd has no space left (compact and defragment it, then disarm its alarm): {0}")]
    Full(String),
    /// No member responded.
    #[error("{why}")]
    Unreachable {
        why: String,
        /// Whether etcd may have executed the call.
        may_be_done: bool,
    },
}

impl CallError {
    /// Adds the URL of the member.
    pub(crate) fn at(self, url: &str) -> CallError {
        match self {
            CallError::Unreachable { why, may_be_done } => {
                CallError::Unreachable { why: format!("{url}: {why}"), may_be_done }
            }
            failure => failure,
        }
    }
}

impl From<CallError> for Error {
    fn from(failure: CallError) -> Error {
        match failure {
            CallError::Refused(why)
                if why.contains("too large") || why.contains("larger than max") =>
            {
                Error::Refused(format!("{why}; raise etcd's --max-request-bytes"))
            }
            CallError::Refused(why) if why.contains("too many operations") => {
                Error::Refused(format!("{why}; raise etcd's --max-txn-ops"))
            }
            failure => Error::Unavailable(failure.to_string()),
        }
    }
}

/// Classifies a gRPC status.
pub(crate) fn call_error(status: &Status) -> CallError {
    let text = status.message();
    let says = |part: &str| text.contains(part);
    match status.code() {
        Code::OutOfRange if says("compacted") => CallError::Compacted,
        Code::OutOfRange if says("future revision") => CallError::Future,
        Code::NotFound if says("lease not found") => CallError::NoLease,
        Code::Unauthenticated => CallError::StaleToken,
        Code::ResourceExhausted if says("space exceeded") => CallError::Full(text.to_owned()),
        Code::InvalidArgument
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::NotFound
        | Code::Unimplemented
        | Code::ResourceExhausted => CallError::Refused(text.to_owned()),
        _ => {
            let why = match status.source() {
                Some(source) => innermost(source),
                None => text.to_owned(),
            };
            CallError::Unreachable { why, may_be_done: !is_unsent(status) }
        }
    }
}

/// Whether there was no connection to send the request on.
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

/// The text of the root cause, the most specific one.
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
        let found = format!("{:?}", call_error(&Status::new(code, text)));
        assert!(found.starts_with(expected), "{found}");
    }

    #[test]
    fn etcd_errors_are_classified() {
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
        // The outcome of a write is unknown.
        for code in [Code::Unavailable, Code::DeadlineExceeded, Code::Cancelled, Code::Unknown] {
            let unknown = call_error(&Status::new(code, "etcdserver: request timed out"));
            assert!(
                matches!(unknown, CallError::Unreachable { may_be_done: true, .. }),
                "{code:?}"
            );
        }
    }

    /// R42
    #[test]
    fn only_a_failed_connection_proves_that_a_call_was_not_executed() {
        let refused = tonic::ConnectError("refused".into());
        let unsent = call_error(&Status::from_error(Box::new(refused)));
        assert!(matches!(unsent, CallError::Unreachable { may_be_done: false, .. }), "{unsent:?}");
        let broken = std::io::Error::other("reset");
        let unknown = call_error(&Status::from_error(Box::new(broken)));
        assert!(matches!(unknown, CallError::Unreachable { may_be_done: true, .. }), "{unknown:?}");
    }
}
