//! Open connections by client certificate.
//!
//! Promise: when a certificate is revoked, or its authority is no longer trusted, its connections end;
//! those of other certificates do not notice.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use futures::future::AbortHandle;
use rustls::pki_types::CertificateDer;

use crate::front::pki::revoked::{Fingerprint, fingerprint};
use crate::lock::lock;

/// The connections with a client certificate. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct CertifiedConnections(Arc<Mutex<HashMap<Fingerprint, CertificateInUse>>>);

/// A certificate in use.
struct CertificateInUse {
    chain: Arc<[CertificateDer<'static>]>,
    opened: u64,
    open: HashMap<u64, AbortHandle>,
}

/// A registered connection. Dropping it removes it.
pub struct CertifiedConnection {
    certificate: Fingerprint,
    number: u64,
    all: CertifiedConnections,
}

impl CertifiedConnections {
    /// Registers a connection whose client sent this chain; `None` without a certificate.
    pub(super) fn register(
        &self,
        chain: &[CertificateDer<'_>],
        abort: AbortHandle,
    ) -> Option<CertifiedConnection> {
        let certificate = fingerprint(chain.first()?);
        let mut all = lock(&self.0);
        let certified = all.entry(certificate).or_insert_with(|| {
            let chain = chain.iter().map(|one| one.clone().into_owned()).collect();
            CertificateInUse { chain, opened: 0, open: HashMap::new() }
        });
        certified.opened += 1;
        let number = certified.opened;
        certified.open.insert(number, abort);
        Some(CertifiedConnection { certificate, number, all: self.clone() })
    }

    /// Ends the connections whose chain is not valid any more. Returns their number.
    pub(super) fn retain(&self, is_valid: impl Fn(&[CertificateDer<'_>]) -> bool) -> usize {
        let chains: Vec<_> =
            lock(&self.0).iter().map(|(key, one)| (*key, one.chain.clone())).collect();
        let mut ended = 0;
        for (certificate, chain) in chains {
            if is_valid(&chain) {
                continue;
            }
            if let Some(certified) = lock(&self.0).get(&certificate) {
                certified.open.values().for_each(AbortHandle::abort);
                ended += certified.open.len();
            }
        }
        ended
    }
}

impl Drop for CertifiedConnection {
    fn drop(&mut self) {
        let mut all = lock(&self.all.0);
        if let Some(certified) = all.get_mut(&self.certificate) {
            certified.open.remove(&self.number);
            if certified.open.is_empty() {
                all.remove(&self.certificate);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_end_with_their_certificate_and_leave_nothing_behind() {
        let all = CertifiedConnections::default();
        let chain = |name: &[u8]| [CertificateDer::from(name.to_vec())];
        let open = |name: &[u8]| {
            let (abort, _) = AbortHandle::new_pair();
            (all.register(&chain(name), abort.clone()).unwrap(), abort)
        };
        let (alice, bob, again) = (open(b"alice"), open(b"bob"), open(b"alice"));
        assert_eq!(all.retain(|_| true), 0);
        assert_eq!(all.retain(|chain| chain[0].as_ref() != b"alice"), 2);
        assert!(alice.1.is_aborted() && again.1.is_aborted() && !bob.1.is_aborted());
        drop((alice, bob, again));
        assert!(lock(&all.0).is_empty());
    }

    #[test]
    fn a_client_without_certificate_is_not_registered() {
        let all = CertifiedConnections::default();
        assert!(all.register(&[], AbortHandle::new_pair().0).is_none());
    }
}
