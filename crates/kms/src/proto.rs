//! The messages of the KMS v2 API.
//!
//! They are declared by hand, with the field numbers of Kubernetes' `apis/v2/api.proto`, so that the
//! build generates no code.

use std::collections::BTreeMap;

use prost::Message;

/// The path of the call that asks for health and the current key.
pub const STATUS: &str = "/v2.KeyManagementService/Status";
/// The path of the call that encrypts.
pub const ENCRYPT: &str = "/v2.KeyManagementService/Encrypt";
/// The path of the call that decrypts.
pub const DECRYPT: &str = "/v2.KeyManagementService/Decrypt";

/// Asks for health and the current key.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct StatusRequest {}

/// The health and the current key.
#[derive(Clone, PartialEq, Message)]
pub struct StatusResponse {
    /// The version of the API: `v2`.
    #[prost(string, tag = "1")]
    pub version: String,
    /// `ok`, or what is wrong.
    #[prost(string, tag = "2")]
    pub healthz: String,
    /// The key that encrypts now.
    #[prost(string, tag = "3")]
    pub key_id: String,
}

/// Asks to decrypt.
#[derive(Clone, PartialEq, Message)]
pub struct DecryptRequest {
    /// What `Encrypt` returned.
    #[prost(bytes = "vec", tag = "1")]
    pub ciphertext: Vec<u8>,
    /// Names the call in logs.
    #[prost(string, tag = "2")]
    pub uid: String,
    /// The key that encrypted.
    #[prost(string, tag = "3")]
    pub key_id: String,
    /// What `Encrypt` returned.
    #[prost(btree_map = "string, bytes", tag = "4")]
    pub annotations: BTreeMap<String, Vec<u8>>,
}

/// The decrypted bytes.
#[derive(Clone, PartialEq, Message)]
pub struct DecryptResponse {
    /// As they were encrypted.
    #[prost(bytes = "vec", tag = "1")]
    pub plaintext: Vec<u8>,
}

/// Asks to encrypt.
#[derive(Clone, PartialEq, Message)]
pub struct EncryptRequest {
    /// The bytes to encrypt.
    #[prost(bytes = "vec", tag = "1")]
    pub plaintext: Vec<u8>,
    /// Names the call in logs.
    #[prost(string, tag = "2")]
    pub uid: String,
}

/// The encrypted bytes.
#[derive(Clone, PartialEq, Message)]
pub struct EncryptResponse {
    /// At most 1 KiB.
    #[prost(bytes = "vec", tag = "1")]
    pub ciphertext: Vec<u8>,
    /// The key that encrypted.
    #[prost(string, tag = "2")]
    pub key_id: String,
    /// What `Decrypt` needs besides, not secret.
    #[prost(btree_map = "string, bytes", tag = "3")]
    pub annotations: BTreeMap<String, Vec<u8>>,
}
