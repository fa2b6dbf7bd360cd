//! A cache of verified client certificate chains and their identities.
//!
//! Programs open many connections with one certificate, and thousands of them reconnect at once after
//! a restart. Each handshake proves that the client has the key; the chain is verified once.
//! Promise: no entry outlives the validity of any certificate of its chain, and rejected chains are
//! never cached.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard};

use ring::digest::{Context, SHA256, SHA256_OUTPUT_LEN};
use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::front::identity::Identity;
use crate::lock::lock;

/// The cache is cleared when it has this many entries.
const KNOWN_MAX: usize = 1024;

/// The digest of a certificate chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Fingerprint([u8; SHA256_OUTPUT_LEN]);

impl Fingerprint {
    pub(super) fn of(chain: &[CertificateDer<'_>]) -> Fingerprint {
        let mut context = Context::new(&SHA256);
        for certificate in chain {
            context.update(&(certificate.len() as u64).to_be_bytes());
            context.update(certificate);
        }
        let mut sum = [0; SHA256_OUTPUT_LEN];
        sum.copy_from_slice(context.finish().as_ref());
        Fingerprint(sum)
    }
}

/// The chains verified against one set of authorities.
#[derive(Debug, Default)]
pub(super) struct CertificateCache(Mutex<HashMap<Fingerprint, Client>>);

#[derive(Debug)]
struct Client {
    /// The Unix seconds in which all certificates of the chain are valid.
    valid: RangeInclusive<i64>,
    identity: Arc<Identity>,
}

impl CertificateCache {
    /// The identity of a cached chain that is valid now.
    pub(super) fn get(&self, chain: Fingerprint, now: i64) -> Option<Arc<Identity>> {
        let known = self.lock();
        let client = known.get(&chain).filter(|client| client.valid.contains(&now))?;
        Some(client.identity.clone())
    }

    /// Adds a verified chain.
    pub(super) fn add(
        &self,
        fingerprint: Fingerprint,
        chain: &[CertificateDer<'_>],
        identity: Arc<Identity>,
    ) {
        let Some(valid) = validity(chain) else { return };
        let mut known = self.lock();
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(fingerprint, Client { valid, identity });
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Fingerprint, Client>> {
        lock(&self.0)
    }
}

/// The time in which all certificates of a chain are valid; `None` if one cannot be parsed.
fn validity(chain: &[CertificateDer<'_>]) -> Option<RangeInclusive<i64>> {
    chain.iter().try_fold(i64::MIN..=i64::MAX, |all, certificate| {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        let one = certificate.validity();
        let start = one.not_before.timestamp().max(*all.start());
        let end = one.not_after.timestamp().min(*all.end());
        Some(start..=end)
    })
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn certificate(years: RangeInclusive<i32>) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.not_before = date_time_ymd(*years.start(), 1, 1);
        params.not_after = date_time_ymd(*years.end(), 1, 1);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().into()
    }

    fn year(year: i32) -> i64 {
        date_time_ymd(year, 6, 1).unix_timestamp()
    }

    #[test]
    fn a_client_is_known_while_all_of_its_chain_is_valid() {
        let chain = [certificate(2020..=2030), certificate(2022..=2025)];
        let fingerprint = Fingerprint::of(&chain);
        let known = CertificateCache::default();
        assert_eq!(known.get(fingerprint, year(2023)), None);
        let alice = Arc::new(Identity::authenticated("alice", Vec::new()));
        known.add(fingerprint, &chain, alice.clone());
        assert_eq!(known.get(fingerprint, year(2023)), Some(alice));
        for not in [2019, 2021, 2025, 2031] {
            assert_eq!(known.get(fingerprint, year(not)), None, "{not}");
        }
        // A part of the chain, or another order, is another chain.
        let [leaf, above] = chain;
        assert_eq!(known.get(Fingerprint::of(std::slice::from_ref(&leaf)), year(2023)), None);
        assert_eq!(known.get(Fingerprint::of(&[above, leaf]), year(2023)), None);
    }

    #[test]
    fn a_chain_that_cannot_be_read_is_not_known() {
        let chain = [certificate(2020..=2030), CertificateDer::from(vec![1, 2, 3])];
        let known = CertificateCache::default();
        let alice = Arc::new(Identity::authenticated("alice", Vec::new()));
        known.add(Fingerprint::of(&chain), &chain, alice);
        assert_eq!(known.get(Fingerprint::of(&chain), year(2023)), None);
    }

    #[test]
    fn room_is_bounded() {
        let chain = [certificate(2020..=2030)];
        let known = CertificateCache::default();
        let alice = Arc::new(Identity::authenticated("alice", Vec::new()));
        for n in 0..=KNOWN_MAX as u64 {
            let mut sum = [0; SHA256_OUTPUT_LEN];
            sum[..8].copy_from_slice(&n.to_be_bytes());
            known.add(Fingerprint(sum), &chain, alice.clone());
        }
        assert_eq!(known.lock().len(), 1);
    }
}
