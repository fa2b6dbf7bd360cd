//! A KMS v2 plugin in this process, behind a unix socket.
//!
//! Its cipher only proves which key was used, and hides nothing from anybody who reads this file.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use headwater_kms::proto::{
    DECRYPT, DecryptRequest, DecryptResponse, ENCRYPT, EncryptRequest, EncryptResponse, STATUS,
    StatusResponse,
};
use headwater_store::lock::lock;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::UnixListener;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use crate::grpc;

/// The state of a plugin, which a test changes while it runs.
#[derive(Clone, Debug)]
pub struct KmsState {
    /// The key that encrypts.
    pub key_id: String,
    /// What `Status` reports.
    pub healthz: String,
    /// The gRPC code and message of every call, if not success.
    pub failure: Option<(u32, &'static str)>,
    /// Whether calls get no response.
    pub is_silent: bool,
    /// The number of seeds that were encrypted and decrypted.
    pub calls: (usize, usize),
}

/// A plugin that runs until it is dropped. Its keys depend on their ids only: a plugin that is started
/// again can decrypt what an earlier one encrypted.
pub struct TestKms {
    socket: PathBuf,
    state: Arc<Mutex<KmsState>>,
    runtime: Option<Runtime>,
}

impl TestKms {
    /// Listens on a socket.
    ///
    /// # Panics
    ///
    /// If it cannot.
    pub fn start(socket: &Path, key_id: &str) -> TestKms {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let state = Arc::new(Mutex::new(KmsState {
            key_id: key_id.to_owned(),
            healthz: "ok".into(),
            failure: None,
            is_silent: false,
            calls: (0, 0),
        }));
        let _inside = runtime.enter();
        let listener = UnixListener::bind(socket).expect("a free socket");
        runtime.spawn(accept(listener, Arc::clone(&state)));
        TestKms { socket: socket.to_owned(), state, runtime: Some(runtime) }
    }

    /// The endpoint for a configuration.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// The state, to read or to change.
    pub fn state(&self) -> MutexGuard<'_, KmsState> {
        lock(&self.state)
    }
}

impl Drop for TestKms {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
        // The next plugin has to be able to listen here.
        let _ = fs::remove_file(&self.socket);
    }
}

async fn accept(listener: UnixListener, state: Arc<Mutex<KmsState>>) {
    let mut connections = JoinSet::new();
    while let Ok((connection, _)) = listener.accept().await {
        let state = Arc::clone(&state);
        connections.spawn(async move {
            let service = service_fn(move |request| answer(request, Arc::clone(&state)));
            let http2 = http2::Builder::new(TokioExecutor::new());
            let served = http2.serve_connection(TokioIo::new(connection), service).await;
            drop(served);
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    state: Arc<Mutex<KmsState>>,
) -> Result<Response<grpc::Body>, Infallible> {
    let is_silent = lock(&state).is_silent;
    if is_silent {
        tokio::time::sleep(Duration::from_secs(3600)).await;
    }
    Ok(grpc::unary(request, |path, message| respond(path, message, &mut lock(&state))).await)
}

fn respond(
    path: &str,
    message: &[u8],
    state: &mut KmsState,
) -> Result<Vec<u8>, (u32, &'static str)> {
    const INVALID: u32 = 3;
    if let Some(failure) = state.failure {
        return Err(failure);
    }
    let malformed = |_: prost::DecodeError| (INVALID, "malformed request");
    let key_id = state.key_id.clone();
    let response = match path {
        STATUS => {
            let healthz = state.healthz.clone();
            StatusResponse { version: "v2".into(), healthz, key_id }.encode_to_vec()
        }
        ENCRYPT => {
            let request = EncryptRequest::decode(message).map_err(malformed)?;
            state.calls.0 += 1;
            let ciphertext = masked(&request.plaintext, &key_id);
            let annotations =
                BTreeMap::from([("kms.example.org".to_owned(), key_id.clone().into_bytes())]);
            EncryptResponse { ciphertext, key_id, annotations }.encode_to_vec()
        }
        DECRYPT => {
            let request = DecryptRequest::decode(message).map_err(malformed)?;
            state.calls.1 += 1;
            let used = request.annotations.get("kms.example.org");
            if used.map(Vec::as_slice) != Some(request.key_id.as_bytes()) {
                return Err((INVALID, "this was not encrypted here"));
            }
            let plaintext = masked(&request.ciphertext, &request.key_id);
            DecryptResponse { plaintext }.encode_to_vec()
        }
        _ => return Err((12, "unknown method")),
    };
    Ok(response)
}

/// The bytes exclusive-or a mask of the key; twice gives the bytes again.
fn masked(bytes: &[u8], key_id: &str) -> Vec<u8> {
    let mask = key_id.bytes().cycle();
    bytes.iter().zip(mask).map(|(byte, mask)| byte ^ mask ^ 0xa5).collect()
}
