//! A collector of traces in this process.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use headwater_otlp::proto::{EXPORT, ExportTraces, ExportedTraces, SpanMessage};
use headwater_store::lock::lock;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use crate::grpc;

/// How long a test waits for spans.
const PATIENCE: Duration = Duration::from_secs(30);

/// A collector that runs until it is dropped.
pub struct TestCollector {
    address: SocketAddr,
    received: Arc<ReceivedTraces>,
    runtime: Option<Runtime>,
}

/// What it received.
#[derive(Default)]
struct ReceivedTraces {
    exports: Mutex<Vec<ExportTraces>>,
    arrived: Condvar,
    /// The gRPC code and message of every call, if not success.
    failure: Mutex<Option<(u32, &'static str)>>,
}

impl TestCollector {
    /// Listens on a free port.
    ///
    /// # Panics
    ///
    /// If it cannot.
    pub fn start() -> TestCollector {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("a socket");
        let address = listener.local_addr().expect("an address");
        let received = Arc::<ReceivedTraces>::default();
        let taken = Arc::clone(&received);
        runtime.spawn(async {
            let listener = TcpListener::from_std(listener).expect("a runtime");
            accept(listener, taken).await;
        });
        TestCollector { address, received, runtime: Some(runtime) }
    }

    /// The endpoint for a configuration.
    pub fn endpoint(&self) -> String {
        self.address.to_string()
    }

    /// Refuses calls from now on, or accepts them.
    pub fn fail(&self, failure: Option<(u32, &'static str)>) {
        *lock(&self.received.failure) = failure;
    }

    /// Everything that was received.
    pub fn exports(&self) -> Vec<ExportTraces> {
        lock(&self.received.exports).clone()
    }

    /// Waits until the received spans satisfy a condition, and returns them.
    ///
    /// # Panics
    ///
    /// If they do not in time.
    #[track_caller]
    pub fn until(&self, condition: impl Fn(&[SpanMessage]) -> bool) -> Vec<SpanMessage> {
        let exports = lock(&self.received.exports);
        let mut spans = Vec::new();
        let lacking = |exports: &mut Vec<ExportTraces>| {
            spans = all_spans(exports);
            !condition(&spans)
        };
        let waited = self.received.arrived.wait_timeout_while(exports, PATIENCE, lacking);
        let (exports, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        drop(exports);
        assert!(!waited.timed_out(), "these spans arrived: {spans:#?}");
        spans
    }
}

/// The spans of some exports.
fn all_spans(exports: &[ExportTraces]) -> Vec<SpanMessage> {
    let processes = exports.iter().flat_map(|export| &export.resource_spans);
    processes.flat_map(|process| &process.scope_spans).flat_map(|it| it.spans.clone()).collect()
}

impl Drop for TestCollector {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn accept(listener: TcpListener, received: Arc<ReceivedTraces>) {
    let mut connections = JoinSet::new();
    while let Ok((connection, _)) = listener.accept().await {
        let received = Arc::clone(&received);
        connections.spawn(async move {
            let service = service_fn(move |request| {
                let received = Arc::clone(&received);
                async move {
                    let answered =
                        grpc::unary(request, |path, message| received.take(path, message));
                    Ok::<_, Infallible>(answered.await)
                }
            });
            let http2 = http2::Builder::new(TokioExecutor::new());
            let served = http2.serve_connection(TokioIo::new(connection), service).await;
            drop(served);
        });
    }
}

impl ReceivedTraces {
    fn take(&self, path: &str, message: &[u8]) -> Result<Vec<u8>, (u32, &'static str)> {
        if let Some(failure) = *lock(&self.failure) {
            return Err(failure);
        }
        if path != EXPORT {
            return Err((12, "unknown method"));
        }
        let export = ExportTraces::decode(message).map_err(|_| (3, "malformed request"))?;
        lock(&self.exports).push(export);
        self.arrived.notify_all();
        Ok(ExportedTraces::default().encode_to_vec())
    }
}
