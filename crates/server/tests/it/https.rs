//! An HTTPS server for tests of what the server calls.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use headwater_api::SystemClock;
use headwater_json::{Value, json};
use headwater_server::pki::{self, Pki};
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// What a test server answers to a path and a body: a code and a document.
pub(crate) type Answers = dyn Fn(&str, &Value) -> (u16, Value) + Send + Sync;

/// An HTTPS server on loopback with an authority of its own. It counts requests by path.
pub(crate) struct TestHttps {
    pub(crate) url: String,
    pub(crate) authority: String,
    seen: Arc<Mutex<Vec<String>>>,
    _serving: JoinSet<()>,
}

impl TestHttps {
    pub(crate) async fn start(answers: impl FnOnce(&str) -> Box<Answers>) -> TestHttps {
        let names = pki::names("127.0.0.1".parse().unwrap(), &[]);
        let keys = Pki::in_memory(&names, &SystemClock).unwrap();
        let certificate = CertificateDer::from_pem_slice(keys.server.certificate.as_bytes());
        let key = PrivateKeyDer::from_pem_slice(keys.server.key.reveal().as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.unwrap()], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://127.0.0.1:{}", listener.local_addr().unwrap().port());
        let answers: Arc<Answers> = answers(&url).into();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener, acceptor, answers, Arc::clone(&seen)));
        TestHttps { url, authority: keys.ca, seen, _serving: serving }
    }

    pub(crate) fn count(&self, path: &str) -> usize {
        self.seen.lock().unwrap().iter().filter(|seen| *seen == path).count()
    }

    /// Writes a kubeconfig for calls of a path, and returns where it is.
    pub(crate) fn kubeconfig(&self, directory: &Path, path: &str) -> PathBuf {
        let cluster = json!({
            "server": format!("{}{path}", self.url),
            "certificate-authority-data": STANDARD.encode(&self.authority),
        });
        let config = json!({
            "clusters": [{ "name": "c", "cluster": cluster }],
            "users": [{ "name": "u", "user": {} }],
            "contexts": [{ "name": "x", "context": { "cluster": "c", "user": "u" } }],
            "current-context": "x",
        });
        let file = directory.join("webhook.kubeconfig");
        std::fs::write(&file, config.to_string()).unwrap();
        file
    }
}

async fn serve(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    answers: Arc<Answers>,
    seen: Arc<Mutex<Vec<String>>>,
) {
    let mut connections = JoinSet::new();
    while let Ok((socket, _)) = listener.accept().await {
        let (acceptor, answers, seen) = (acceptor.clone(), answers.clone(), seen.clone());
        connections.spawn(async move {
            let Ok(stream) = acceptor.accept(socket).await else { return };
            let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
                let (answers, seen) = (answers.clone(), seen.clone());
                async move {
                    let path = request.uri().path().to_owned();
                    let body = request.into_body().collect().await.unwrap().to_bytes();
                    let body = serde_json::from_slice(&body).unwrap_or_default();
                    seen.lock().unwrap().push(path.clone());
                    let (code, document) = answers(&path, &body);
                    let bytes = Bytes::from(document.to_string());
                    let mut response = hyper::Response::new(Full::new(bytes));
                    *response.status_mut() = code.try_into().unwrap();
                    Ok::<_, std::io::Error>(response)
                }
            });
            let http = hyper::server::conn::http1::Builder::new();
            let _ = http.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}
