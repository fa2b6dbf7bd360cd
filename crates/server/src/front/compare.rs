//! Comparison of secrets.
//!
//! Promise: the time that a comparison takes does not depend on where two secrets differ: digests are
//! compared, and all of their bytes.

use ring::digest;

/// The SHA-256 digest of a secret.
pub(crate) type SecretDigest = [u8; digest::SHA256_OUTPUT_LEN];

pub(crate) fn sha256(bytes: &[u8]) -> SecretDigest {
    let digest = digest::digest(&digest::SHA256, bytes);
    digest.as_ref().try_into().expect("a SHA-256 digest has 32 bytes")
}

/// Whether two digests are the same, in constant time.
pub(crate) fn is_same(a: &SecretDigest, b: &SecretDigest) -> bool {
    a.iter().zip(b).fold(0, |differences, (a, b)| differences | (a ^ b)) == 0
}

/// Whether two secrets are the same; the time depends on their lengths only.
pub(crate) fn is_same_secret(a: &[u8], b: &[u8]) -> bool {
    is_same(&sha256(a), &sha256(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_counts() {
        let one = sha256(b"secret");
        assert!(is_same(&one, &one) && is_same_secret(b"secret", b"secret"));
        for at in 0..one.len() {
            let mut other = one;
            other[at] ^= 1;
            assert!(!is_same(&one, &other), "{at}");
        }
        assert!(!is_same_secret(b"secret", b"secre") && !is_same_secret(b"", b"x"));
    }
}
