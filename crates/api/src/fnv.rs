//! FNV-1a, a hash that is short in every language.
//!
//! River: objects → **hash** → marks, shards, digests of deltas. It detects accidents and spreads
//! values; it does not resist anyone who chooses the input.

/// The hash of no bytes.
pub(crate) const BASIS: u64 = 0xcbf2_9ce4_8422_2325;

const PRIME: u64 = 0x0000_0100_0000_01b3;

/// The 64-bit FNV-1a hash.
///
/// ```
/// assert_eq!(headwater_api::fnv::hash(b"a"), 0xaf63_dc4c_8601_ec8c);
/// ```
pub fn hash(bytes: &[u8]) -> u64 {
    extended(BASIS, bytes)
}

/// A hash extended by more bytes.
pub(crate) fn extended(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME))
}
