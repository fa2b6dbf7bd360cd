//! Writes of several operations: all or nothing, and yet a revision for each.
//!
//! A transaction of etcd gives all of its operations one revision, and two changes must not share
//! one (R3). So the first step checks every guard, does the first operation, and leaves the others
//! in a journal, all in one transaction; each further step does one operation and shortens the
//! journal. While there is a journal, every other write of any replica is refused by its guard, and
//! whoever is refused finishes the journal first: if its owner dies, the rest is done all the same.

use bytes::Bytes;
use prost::Message;

use crate::proto::{DeleteRangeRequest, KeyValue, PutRequest, Request, RequestOp};

/// Operations that are decided and not done yet.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Journal {
    #[prost(message, repeated, tag = "1")]
    pub(crate) steps: Vec<Step>,
}

/// One operation, in etcd's words.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Step {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) value: Bytes,
    #[prost(int64, tag = "3")]
    pub(crate) lease: i64,
    #[prost(bool, tag = "4")]
    pub(crate) is_delete: bool,
}

impl Step {
    pub(crate) fn request(&self) -> RequestOp {
        let Step { key, value, lease, is_delete } = self.clone();
        match is_delete {
            true => Request::DeleteRange(DeleteRangeRequest { key }).into(),
            false => Request::Put(PutRequest { key, value, lease }).into(),
        }
    }
}

impl Journal {
    /// Keeps the journal, or removes it when nothing is left to do.
    pub(crate) fn keep(&self, key: Bytes) -> RequestOp {
        match self.steps.is_empty() {
            true => Request::DeleteRange(DeleteRangeRequest { key }).into(),
            false => {
                let value = self.encode_to_vec().into();
                Request::Put(PutRequest { key, value, lease: 0 }).into()
            }
        }
    }

    /// What somebody has left to do.
    pub(crate) fn read(kv: &KeyValue) -> Result<Journal, prost::DecodeError> {
        Journal::decode(kv.value.clone())
    }
}
