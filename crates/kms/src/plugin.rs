//! One KMS v2 plugin behind a unix socket.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use headwater_store::encrypted::{EncryptionMetrics, KeyService, KeyServiceError, SealedSeed};
use http::uri::PathAndQuery;
use prost::Message;
use tokio::time::{Instant, timeout};
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;
use uuid::Uuid;
use zeroize::Zeroizing;

use crate::proto::{
    DECRYPT, DecryptRequest, DecryptResponse, ENCRYPT, EncryptRequest, EncryptResponse, STATUS,
    StatusRequest, StatusResponse,
};

/// The limit of a response: a ciphertext, a key id and 32 KiB of annotations.
const RESPONSE_MAX: usize = 64 << 10;

/// An endpoint that is no unix socket.
#[derive(Debug, thiserror::Error)]
#[error("the endpoint {0:?} must be unix:/// and the absolute path of a socket")]
pub struct InvalidEndpoint(String);

/// A plugin. It is connected on demand, and again after it was away.
pub struct KmsPlugin {
    endpoint: String,
    channel: Channel,
    deadline: Duration,
    /// The name of the provider, and where its calls are counted.
    observed: Option<(String, EncryptionMetrics)>,
}

impl fmt::Debug for KmsPlugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.endpoint)
    }
}

impl KmsPlugin {
    /// The plugin behind `unix:///PATH`; each call ends within `deadline`.
    pub fn new(endpoint: &str, deadline: Duration) -> Result<KmsPlugin, InvalidEndpoint> {
        let invalid = || InvalidEndpoint(endpoint.to_owned());
        // Names in the abstract namespace have no permissions, so that any process could be the
        // plugin.
        let path = endpoint.strip_prefix("unix://").ok_or_else(invalid)?;
        if !path.starts_with('/') || path.starts_with("/@") || path.contains('\0') {
            return Err(invalid());
        }
        let channel = Endpoint::from_shared(endpoint.to_owned()).map_err(|_| invalid())?;
        let channel = channel.connect_timeout(deadline).connect_lazy();
        Ok(KmsPlugin { endpoint: endpoint.to_owned(), channel, deadline, observed: None })
    }

    /// Counts the calls as those of the provider with this name.
    #[must_use]
    pub fn observed(mut self, provider: &str, metrics: EncryptionMetrics) -> KmsPlugin {
        self.observed = Some((provider.to_owned(), metrics));
        self
    }

    async fn call<Req, Res>(&self, path: &'static str, request: Req) -> Result<Res, KeyServiceError>
    where
        Req: Message + 'static,
        Res: Message + Default + 'static,
    {
        let exchange = async {
            let mut grpc = Grpc::new(self.channel.clone()).max_decoding_message_size(RESPONSE_MAX);
            grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
            let path = PathAndQuery::from_static(path);
            let codec = ProstCodec::<Req, Res>::default();
            grpc.unary(Request::new(request), path, codec).await
        };
        let began = Instant::now();
        let response = timeout(self.deadline, exchange).await;
        if let Some((provider, metrics)) = &self.observed {
            let code = match &response {
                Ok(Ok(_)) => Code::Ok,
                Ok(Err(status)) => status.code(),
                Err(_) => Code::DeadlineExceeded,
            };
            let took = began.elapsed().as_secs_f64();
            metrics.calls.with(&[provider, path, &code_name(code)]).observe(took);
        }
        match response {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(self.failure(&status)),
            Err(_) => {
                let why = format!("no response from {} within {:?}", self.endpoint, self.deadline);
                Err(KeyServiceError::Unavailable(why))
            }
        }
    }

    /// Only what says that this seed can never be decrypted is final: plugins report most failures
    /// as `Unknown`.
    fn failure(&self, status: &Status) -> KeyServiceError {
        let mut why = format!("{}: {}", self.endpoint, status.message());
        let mut cause = status.source();
        while let Some(error) = cause {
            cause = error.source();
            if cause.is_none() {
                why = format!("{}: {error}", self.endpoint);
            }
        }
        match status.code() {
            Code::InvalidArgument | Code::NotFound | Code::OutOfRange | Code::DataLoss => {
                KeyServiceError::Refused(why)
            }
            _ => KeyServiceError::Unavailable(why),
        }
    }
}

/// A code as Go writes it.
fn code_name(code: Code) -> String {
    match code {
        Code::Ok => "OK".to_owned(),
        Code::Cancelled => "Canceled".to_owned(),
        code => format!("{code:?}"),
    }
}

#[async_trait]
impl KeyService for KmsPlugin {
    async fn key_id(&self) -> Result<String, KeyServiceError> {
        let StatusResponse { version, healthz, key_id } =
            self.call(STATUS, StatusRequest {}).await?;
        let wrong = if version != "v2" && version != "v2beta1" {
            format!("the version of its API is {version:?}, not \"v2\"")
        } else if healthz != "ok" {
            format!("it reports {healthz:?}")
        } else {
            return Ok(key_id);
        };
        Err(KeyServiceError::Unavailable(format!("{}: {wrong}", self.endpoint)))
    }

    async fn encrypt(&self, seed: &[u8]) -> Result<SealedSeed, KeyServiceError> {
        let request = EncryptRequest { plaintext: seed.to_vec(), uid: Uuid::new_v4().to_string() };
        let EncryptResponse { ciphertext, key_id, annotations } =
            self.call(ENCRYPT, request).await?;
        Ok(SealedSeed { ciphertext, key_id, annotations })
    }

    async fn decrypt(&self, sealed: &SealedSeed) -> Result<Zeroizing<Vec<u8>>, KeyServiceError> {
        let SealedSeed { ciphertext, key_id, annotations } = sealed.clone();
        let uid = Uuid::new_v4().to_string();
        let request = DecryptRequest { ciphertext, uid, key_id, annotations };
        let response: DecryptResponse = self.call(DECRYPT, request).await?;
        Ok(Zeroizing::new(response.plaintext))
    }
}
