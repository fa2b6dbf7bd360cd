//! A cache of tokens with a verified signature, by digest.
//!
//! Promise: it holds at most twice [`GENERATION`] entries; tokens in use stay, unused ones are
//! evicted. Only valid tokens are added, so no client can fill it without a key.

use std::collections::HashMap;
use std::sync::Arc;

use super::claims::Claims;

/// The number of tokens in a generation.
const GENERATION: usize = 1024;

type Digest = [u8; 32];

/// Two generations of tokens: recently used ones and older ones.
#[derive(Debug, Default)]
pub(crate) struct VerifiedTokens {
    young: HashMap<Digest, Arc<Claims>>,
    old: HashMap<Digest, Arc<Claims>>,
}

impl VerifiedTokens {
    pub(crate) fn find(&mut self, digest: &[u8]) -> Option<Arc<Claims>> {
        if let Some(claims) = self.young.get(digest) {
            return Some(Arc::clone(claims));
        }
        let claims = self.old.remove(digest)?;
        self.insert(digest, Arc::clone(&claims));
        Some(claims)
    }

    pub(crate) fn insert(&mut self, digest: &[u8], claims: Arc<Claims>) {
        let Ok(digest) = Digest::try_from(digest) else { return };
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(digest, claims);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(number: usize) -> Digest {
        let mut digest = Digest::default();
        digest[..8].copy_from_slice(&number.to_le_bytes());
        digest
    }

    #[test]
    fn tokens_in_use_stay_and_others_are_evicted() {
        let claims = Arc::new(super::super::tests::claims());
        let mut verified = VerifiedTokens::default();
        for number in 0..10 * GENERATION {
            verified.insert(&digest(number), Arc::clone(&claims));
            assert!(verified.find(&digest(0)).is_some(), "{number}");
        }
        assert!(verified.find(&digest(1)).is_none());
        assert!(verified.young.len() + verified.old.len() <= 2 * GENERATION);
    }
}
