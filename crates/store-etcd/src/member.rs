//! One member of an etcd cluster: its connections and the calls on them.

use std::fmt;
use std::time::Duration;

use futures::stream;
use http::uri::PathAndQuery;
use tokio::sync::mpsc;
use tonic::Status;
use tonic::client::Grpc;
use tonic::codec::Streaming;
use tonic::metadata::MetadataMap;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic_prost::ProstCodec;

use crate::call_error::innermost;
use crate::proto::{EtcdResponse, WATCH, WatchRequest, WatchResponse};

/// TLS credentials in PEM format.
#[derive(Clone, Default)]
pub struct Tls {
    /// The certificate authorities to trust.
    pub ca: Vec<u8>,
    /// The client certificate and its key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

/// One member of a cluster. Connections are opened on demand.
pub(crate) struct Member {
    pub(crate) url: String,
    calls: Channel,
    /// A separate connection for the watch of the process, so that large responses and slow readers
    /// of history do not delay it.
    live: Channel,
    history: Channel,
}

/// The purpose of a watch, which decides its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchPurpose {
    /// Follows the newest changes; always read without delay.
    Live,
    /// Reads history; may stay unread for long.
    History,
}

/// The maximum time to connect.
const CONNECT_MAX: Duration = Duration::from_secs(2);

/// After this time without data on a connection with pending calls, we send a ping; the reply has
/// the same time to arrive. etcd closes connections with pings more often than every five seconds
/// or without pending calls.
const PING_EVERY: Duration = Duration::from_secs(6);

/// Flow-control windows for calls: bytes in flight, enough for a page of a list.
const CONNECTION_WINDOW: u32 = 8 << 20;
const STREAM_WINDOW: u32 = 4 << 20;

/// Flow-control windows for history. Unread bytes of one reader count against its connection, so
/// the connection's window has room for thousands of readers.
const HISTORY_STREAM_WINDOW: u32 = 256 << 10;
const HISTORY_CONNECTION_WINDOW: u32 = (1 << 31) - 1;

impl Member {
    pub(crate) fn new(url: &str, tls: Option<&Tls>) -> Result<Member, String> {
        let malformed = |error: tonic::transport::Error| format!("{url}: {}", innermost(&error));
        let mut endpoint = Endpoint::from_shared(url.to_owned()).map_err(malformed)?;
        endpoint = endpoint
            .connect_timeout(CONNECT_MAX)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_EVERY)
            .keep_alive_while_idle(false)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .initial_stream_window_size(STREAM_WINDOW);
        if let Some(tls) = tls {
            let mut config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&tls.ca));
            if let Some((certificate, key)) = &tls.identity {
                config = config.identity(Identity::from_pem(certificate, key));
            }
            endpoint = endpoint.tls_config(config).map_err(malformed)?;
        }
        let (calls, live) = (endpoint.connect_lazy(), endpoint.connect_lazy());
        let history = endpoint
            .initial_connection_window_size(HISTORY_CONNECTION_WINDOW)
            .initial_stream_window_size(HISTORY_STREAM_WINDOW)
            .connect_lazy();
        Ok(Member { url: url.to_owned(), calls, live, history })
    }

    pub(crate) async fn exchange<Req, Res>(
        &self,
        path: &'static str,
        request: Req,
        metadata: MetadataMap,
    ) -> Result<Res, Status>
    where
        Req: prost::Message + 'static,
        Res: EtcdResponse,
    {
        let mut grpc = Grpc::new(self.calls.clone()).max_decoding_message_size(usize::MAX);
        grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
        let request = tonic::Request::from_parts(metadata, tonic::Extensions::default(), request);
        let path = PathAndQuery::from_static(path);
        let response = grpc.unary(request, path, ProstCodec::<Req, Res>::default()).await?;
        Ok(response.into_inner())
    }

    pub(crate) async fn watch(
        &self,
        requests: mpsc::Receiver<WatchRequest>,
        metadata: MetadataMap,
        purpose: WatchPurpose,
    ) -> Result<Streaming<WatchResponse>, Status> {
        let channel = match purpose {
            WatchPurpose::Live => self.live.clone(),
            WatchPurpose::History => self.history.clone(),
        };
        let mut grpc = Grpc::new(channel).max_decoding_message_size(usize::MAX);
        grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
        let requests =
            stream::unfold(requests, async |mut requests| Some((requests.recv().await?, requests)));
        let request = tonic::Request::from_parts(metadata, tonic::Extensions::default(), requests);
        let path = PathAndQuery::from_static(WATCH);
        let response = grpc.streaming(request, path, ProstCodec::default()).await?;
        Ok(response.into_inner())
    }
}
