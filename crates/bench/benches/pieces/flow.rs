//! Flow control: the way of a request that does not wait.

use std::hint::black_box;
use std::sync::Arc;

use headwater_server::identity::Identity;
use headwater_server::pieces::AdmittedRequests;
use headwater_server::pki::Pki;
use headwater_server::service_account::Issuer;
use headwater_server::{Options, start};
use headwater_store::Memory;

use crate::piece::{NamedPiece, OFTEN, Piece};

pub(crate) const PIECES: &[NamedPiece] =
    &[("flow: admit and release", queued), ("flow: admit an administrator", exempt)];

const POD: &str = "/api/v1/namespaces/default/pods/web";

fn queued(name: &'static str) -> Piece {
    admitted(name, Identity::authenticated("jane", Vec::new()))
}

fn exempt(name: &'static str) -> Piece {
    admitted(name, Identity::admin())
}

fn admitted(name: &'static str, identity: Identity) -> Piece {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime can be built");
    let running = runtime.block_on(async {
        let pki = Pki::in_memory(&std::collections::BTreeSet::new(), &headwater_api::SystemClock);
        let pki = pki.expect("keys can be made");
        let issuer = Issuer::new(&pki.service_account_key).expect("it is a key");
        start(Arc::new(Memory::default()), Options::new(issuer)).await.expect("it starts")
    });
    let requests = AdmittedRequests::new(running.server(), identity, POD);
    Piece::new(name, OFTEN, move |_| {
        let _kept = (&runtime, &running);
        assert!(black_box(&requests).pass());
    })
}
