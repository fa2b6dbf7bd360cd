//! One member: its connections, and calls on them.

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

use crate::failure::innermost;
use crate::proto::{Answer, WATCH, WatchRequest, WatchResponse, Wire};

/// Files for TLS, as PEM.
#[derive(Clone, Default)]
pub struct Tls {
    /// Whom to trust.
    pub ca: Vec<u8>,
    /// Who we are: a certificate and its key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

/// One member of a cluster, with connections that are made when they are needed.
pub(crate) struct Member {
    pub(crate) url: String,
    calls: Channel,
    /// The watch of the process has a connection of its own: a long answer to a read does not hold
    /// it up, nor do readers of history who do not read on.
    live: Channel,
    history: Channel,
}

/// What a watch is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// It is read as fast as it comes.
    Live,
    /// It may be left unread for long.
    History,
}

/// How long a connection may take.
const CONNECT_MAX: Duration = Duration::from_secs(2);

/// A connection on which an answer is awaited and nothing is heard is asked for a sign of life after
/// this, and has as long to give it. etcd takes more frequent pings than every five seconds, and any
/// on an idle connection, for an attack.
const PING_EVERY: Duration = Duration::from_secs(6);

/// Bytes that may be on their way to us: a page of a list.
const CONNECTION_WINDOW: u32 = 8 << 20;
const STREAM_WINDOW: u32 = 4 << 20;

/// Bytes that wait for one reader of history. What it leaves unread counts for its whole connection,
/// so that has room for thousands of them.
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
        Res: Answer,
    {
        let mut grpc = Grpc::new(self.calls.clone()).max_decoding_message_size(usize::MAX);
        grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
        let request = tonic::Request::from_parts(metadata, tonic::Extensions::default(), request);
        let path = PathAndQuery::from_static(path);
        let answer = grpc.unary(request, path, Wire::<Req, Res>::default()).await?;
        Ok(answer.into_inner())
    }

    pub(crate) async fn watch(
        &self,
        requests: mpsc::Receiver<WatchRequest>,
        metadata: MetadataMap,
        purpose: Purpose,
    ) -> Result<Streaming<WatchResponse>, Status> {
        let channel = match purpose {
            Purpose::Live => self.live.clone(),
            Purpose::History => self.history.clone(),
        };
        let mut grpc = Grpc::new(channel).max_decoding_message_size(usize::MAX);
        grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
        let requests =
            stream::unfold(requests, async |mut requests| Some((requests.recv().await?, requests)));
        let request = tonic::Request::from_parts(metadata, tonic::Extensions::default(), requests);
        let path = PathAndQuery::from_static(WATCH);
        let answer = grpc.streaming(request, path, Wire::default()).await?;
        Ok(answer.into_inner())
    }
}
