//! The journal of a write with several operations: atomic, with one revision per operation.
//!
//! An etcd transaction gives all its operations one revision, but two changes must not share one
//! (R3). So the first transaction checks every guard, executes the first operation and writes the
//! others to a journal; each further transaction executes one operation and shortens the journal.
//! While a journal exists, its guard rejects every other write of any replica, and the rejected
//! replica finishes the journal first. A replica that dies therefore leaves no half-done write.

use bytes::Bytes;
use prost::Message;

use crate::proto::{DeleteRangeRequest, KeyValue, PutRequest, Request, RequestOp};

/// Committed operations that are not executed yet.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Journal {
    #[prost(message, repeated, tag = "1")]
    pub(crate) ops: Vec<JournalOp>,
}

/// One operation as etcd executes it.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct JournalOp {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) value: Bytes,
    #[prost(int64, tag = "3")]
    pub(crate) lease: i64,
    #[prost(bool, tag = "4")]
    pub(crate) is_delete: bool,
}

impl JournalOp {
    pub(crate) fn request(&self) -> RequestOp {
        let JournalOp { key, value, lease, is_delete } = self.clone();
        match is_delete {
            true => Request::DeleteRange(DeleteRangeRequest { key }).into(),
            false => Request::Put(PutRequest { key, value, lease }).into(),
        }
    }
}

impl Journal {
    /// Stores the journal, or deletes it if it is empty.
    pub(crate) fn store(&self, key: Bytes) -> RequestOp {
        match self.ops.is_empty() {
            true => Request::DeleteRange(DeleteRangeRequest { key }).into(),
            false => {
                let value = self.encode_to_vec().into();
                Request::Put(PutRequest { key, value, lease: 0 }).into()
            }
        }
    }

    /// The journal of an unfinished write.
    pub(crate) fn read(kv: &KeyValue) -> Result<Journal, prost::DecodeError> {
        Journal::decode(kv.value.clone())
    }
}
