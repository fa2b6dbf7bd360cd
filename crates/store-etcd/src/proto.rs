//! The subset of etcd's gRPC messages that we use.
//!
//! They are declared by hand, with the field numbers of etcd's public API (`rpc.proto`,
//! `kv.proto`), so that the build generates no code.

use bytes::Bytes;
use prost::Message;

pub(crate) const RANGE: &str = "/etcdserverpb.KV/Range";
pub(crate) const TXN: &str = "/etcdserverpb.KV/Txn";
pub(crate) const COMPACT: &str = "/etcdserverpb.KV/Compact";
pub(crate) const WATCH: &str = "/etcdserverpb.Watch/Watch";
pub(crate) const LEASE_GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
pub(crate) const STATUS: &str = "/etcdserverpb.Maintenance/Status";
pub(crate) const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";

/// A response with etcd's header: the cluster and its revision.
pub(crate) trait EtcdResponse: Message + Default + 'static {
    fn header(&self) -> Option<&Header>;
}

macro_rules! etcd_responses {
    ($($name:ident)*) => {
        $(impl EtcdResponse for $name {
            fn header(&self) -> Option<&Header> {
                self.header.as_ref()
            }
        })*
    };
}

etcd_responses!(RangeResponse TxnResponse CompactResponse LeaseGrantResponse StatusResponse
    AuthenticateResponse);

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Header {
    #[prost(uint64, tag = "1")]
    pub(crate) cluster_id: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) member_id: u64,
    #[prost(int64, tag = "3")]
    pub(crate) revision: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct KeyValue {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(int64, tag = "2")]
    pub(crate) create_revision: i64,
    #[prost(int64, tag = "3")]
    pub(crate) mod_revision: i64,
    #[prost(int64, tag = "4")]
    pub(crate) version: i64,
    #[prost(bytes = "bytes", tag = "5")]
    pub(crate) value: Bytes,
    #[prost(int64, tag = "6")]
    pub(crate) lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RangeRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) range_end: Bytes,
    #[prost(int64, tag = "3")]
    pub(crate) limit: i64,
    #[prost(int64, tag = "4")]
    pub(crate) revision: i64,
    #[prost(bool, tag = "8")]
    pub(crate) keys_only: bool,
    #[prost(bool, tag = "9")]
    pub(crate) count_only: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RangeResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<Header>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) kvs: Vec<KeyValue>,
    #[prost(bool, tag = "3")]
    pub(crate) more: bool,
    #[prost(int64, tag = "4")]
    pub(crate) count: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PutRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) value: Bytes,
    #[prost(int64, tag = "3")]
    pub(crate) lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DeleteRangeRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RequestOp {
    #[prost(oneof = "Request", tags = "1, 2, 3")]
    pub(crate) request: Option<Request>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum Request {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    DeleteRange(DeleteRangeRequest),
}

impl From<Request> for RequestOp {
    fn from(request: Request) -> RequestOp {
        RequestOp { request: Some(request) }
    }
}

/// The response to one operation of a transaction. We need it for reads only.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ResponseOp {
    #[prost(message, optional, tag = "1")]
    pub(crate) range: Option<RangeResponse>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Compare {
    /// 0 is "equal".
    #[prost(int32, tag = "1")]
    pub(crate) result: i32,
    #[prost(int32, tag = "2")]
    pub(crate) target: i32,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) key: Bytes,
    #[prost(oneof = "CompareTarget", tags = "4, 6")]
    pub(crate) value: Option<CompareTarget>,
}

#[derive(Clone, Copy, PartialEq, prost::Oneof)]
pub(crate) enum CompareTarget {
    #[prost(int64, tag = "4")]
    Version(i64),
    #[prost(int64, tag = "6")]
    ModRevision(i64),
}

impl Compare {
    /// The key's last change was at this revision; zero means that the key is absent.
    pub(crate) fn mod_revision(key: Bytes, revision: i64) -> Compare {
        Compare { result: 0, target: 2, key, value: Some(CompareTarget::ModRevision(revision)) }
    }

    /// The key was written this often since its creation.
    pub(crate) fn version(key: Bytes, version: i64) -> Compare {
        Compare { result: 0, target: 0, key, value: Some(CompareTarget::Version(version)) }
    }
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub(crate) compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) success: Vec<RequestOp>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) failure: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<Header>,
    #[prost(bool, tag = "2")]
    pub(crate) succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub(crate) responses: Vec<ResponseOp>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct CompactRequest {
    #[prost(int64, tag = "1")]
    pub(crate) revision: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct CompactResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<Header>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchRequest {
    #[prost(oneof = "Watch", tags = "1, 3")]
    pub(crate) request: Option<Watch>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum Watch {
    #[prost(message, tag = "1")]
    Create(WatchCreate),
    #[prost(message, tag = "3")]
    Progress(WatchProgress),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchCreate {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) range_end: Bytes,
    #[prost(int64, tag = "3")]
    pub(crate) start_revision: i64,
    #[prost(bool, tag = "4")]
    pub(crate) progress_notify: bool,
    #[prost(bool, tag = "6")]
    pub(crate) prev_kv: bool,
    #[prost(bool, tag = "8")]
    pub(crate) fragment: bool,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct WatchProgress {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<Header>,
    #[prost(bool, tag = "3")]
    pub(crate) created: bool,
    #[prost(bool, tag = "4")]
    pub(crate) canceled: bool,
    #[prost(int64, tag = "5")]
    pub(crate) compact_revision: i64,
    #[prost(string, tag = "6")]
    pub(crate) cancel_reason: String,
    /// More events of the same revision follow in the next response.
    #[prost(bool, tag = "7")]
    pub(crate) fragment: bool,
    #[prost(message, repeated, tag = "11")]
    pub(crate) events: Vec<EtcdEvent>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct EtcdEvent {
    /// 0 is a put, 1 a delete.
    #[prost(int32, tag = "1")]
    pub(crate) kind: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) kv: Option<KeyValue>,
    #[prost(message, optional, tag = "3")]
    pub(crate) prev_kv: Option<KeyValue>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct LeaseGrantRequest {
    /// Seconds.
    #[prost(int64, tag = "1")]
    pub(crate) ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LeaseGrantResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<Header>,
    #[prost(int64, tag = "2")]
    pub(crate) id: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct StatusRequest {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<Header>,
    #[prost(string, tag = "2")]
    pub(crate) version: String,
    #[prost(int64, tag = "3")]
    pub(crate) db_size: i64,
    /// Zero where there is none.
    #[prost(uint64, tag = "4")]
    pub(crate) leader: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct AuthenticateRequest {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) password: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct AuthenticateResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<Header>,
    #[prost(string, tag = "2")]
    pub(crate) token: String,
}
