//! Forwarding: a request of a client is sent to an extension server, and its response streamed back.
//!
//! River: proxy → **forward** → extension server. Promise: each request has its own connection, so that a
//! watch or an upgrade occupies nobody else's; addresses are checked as for webhooks.

use std::time::Duration;

use headwater_cache::Cache;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Request, Response};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;

use super::{ANSWER_MAX, Caller, WebhookEndpoint};
use crate::answer::body::{self, RequestBody};

/// The maximum time until a connection is established.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// Headers that belong to one connection and are not forwarded.
const HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
];

/// Removes what belongs to one connection: the well-known headers, and those that `Connection` names.
pub(crate) fn hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<String> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect();
    named.iter().for_each(|name| drop(headers.remove(name.as_str())));
    HOP_BY_HOP.iter().for_each(|name| drop(headers.remove(name)));
}

impl Caller {
    /// Sends a request to an endpoint and returns the response, whose body is read as it arrives.
    pub(crate) async fn forward(
        &self,
        cache: &Cache,
        place: &WebhookEndpoint,
        mut request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, String> {
        let host = HeaderValue::from_str(&place.authority_name());
        let host = host.map_err(|_| "the name of the service is not a host".to_owned())?;
        request.headers_mut().insert(header::HOST, host);
        let opened = tokio::time::timeout(CONNECT_MAX, self.open(cache, place)).await;
        let (stream, _) = opened.map_err(|_| "dial tcp: i/o timeout".to_owned())??;
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|error| error.to_string())?;
        self.drive(async move {
            // An error ends the body of the response.
            let _ = connection.with_upgrades().await;
        });
        sender.send_request(request).await.map_err(|error| error.to_string())
    }

    /// The JSON document at a path of an endpoint, as this user.
    pub(crate) async fn document(
        &self,
        cache: &Cache,
        place: &WebhookEndpoint,
        (path, headers): (&str, HeaderMap),
        timeout: Duration,
    ) -> Result<headwater_json::Value, String> {
        let read = async {
            let empty = body::request(http_body_util::Empty::new());
            let mut request = Request::get(path).body(empty).map_err(|error| error.to_string())?;
            *request.headers_mut() = headers;
            let accept = HeaderValue::from_static("application/json");
            request.headers_mut().insert(header::ACCEPT, accept);
            let response = self.forward(cache, place, request).await?;
            let code = response.status();
            if !code.is_success() {
                return Err(format!("bad status from {}{path}: {}", place.url(), code.as_u16()));
            }
            let collected = Limited::new(response.into_body(), ANSWER_MAX).collect().await;
            let bytes = collected.map_err(|error| error.to_string())?.to_bytes();
            let parsed = headwater_json::parse(&bytes).map_err(|error| error.to_string())?;
            Ok(parsed.value)
        };
        match tokio::time::timeout(timeout, read).await {
            Ok(read) => read,
            Err(_) => Err("context deadline exceeded".to_owned()),
        }
    }
}

impl WebhookEndpoint {
    /// The URL without a path.
    fn url(&self) -> String {
        format!("https://{}", self.authority_name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_a_connection_is_removed() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Mine"),
            ("x-mine", "1"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("accept", "*/*"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        hop_by_hop(&mut headers);
        let left: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(left, ["accept"]);
    }
}
