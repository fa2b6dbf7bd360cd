//! One request of a browser: a file of the page, a read of the cluster, or the stream.
//!
//! River: connection → **request** → `assets`, `upstream`, `stream`.
//! Promise: only GET is served, and a request is judged (host, origin, cookie, path) before anything
//! is sent to the cluster.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::header::{
    ACCEPT, ALLOW, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, SEC_WEBSOCKET_ACCEPT,
    SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, SET_COOKIE, UPGRADE,
};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use super::access::PageAccess;
use super::assets::{self, PageFile};
use super::paths;
use super::stream::Streams;
use super::upstream::Upstream;
use crate::print;

/// The body of an answer.
type PageBody = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;
/// Where a connection takes the task of its stream from.
pub(super) type StreamTasks = mpsc::Sender<BoxFuture<'static, ()>>;

/// Everything that answers need.
pub(super) struct Page {
    pub(super) access: PageAccess,
    pub(super) upstream: Arc<Upstream>,
    pub(super) streams: Streams,
}

impl Page {
    pub(super) async fn answer(
        &self,
        mut request: Request<Incoming>,
        tasks: &StreamTasks,
    ) -> Response<PageBody> {
        if !self.access.has_host(request.headers()) {
            return refuse(StatusCode::FORBIDDEN, "this server has another name: use 127.0.0.1");
        }
        if request.method() != Method::GET {
            let mut answer = refuse(StatusCode::METHOD_NOT_ALLOWED, "the page only reads: use GET");
            answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
            return answer;
        }
        let path = request.uri().path();
        if path == "/" {
            return self.index(&request);
        }
        if let Some(file) = path.strip_prefix('/').and_then(assets::find) {
            return page_file(&file);
        }
        if !self.access.is_addressed(request.headers()) {
            return refuse(StatusCode::FORBIDDEN, "requests of other origins are refused");
        }
        if !self.access.is_logged_in(request.headers()) {
            return refuse(StatusCode::UNAUTHORIZED, HOW_TO_LOG_IN);
        }
        match path {
            "/session" => self.session().await,
            "/stream" => self.stream(&mut request, tasks).await,
            _ => self.read(&request).await,
        }
    }

    /// The page, if the address has the secret or the browser the cookie.
    fn index(&self, request: &Request<Incoming>) -> Response<PageBody> {
        let Some(file) = assets::find("index.html") else {
            return refuse(StatusCode::NOT_FOUND, "404 page not found");
        };
        let query = request.uri().query().unwrap_or_default();
        let token = query.split('&').find_map(|pair| pair.strip_prefix("token="));
        let cookie = token.and_then(|token| self.access.exchange(token));
        if cookie.is_none() && !self.access.is_logged_in(request.headers()) {
            return refuse(StatusCode::UNAUTHORIZED, HOW_TO_LOG_IN);
        }
        let mut answer = page_file(&file);
        if let Some(cookie) = cookie.and_then(|cookie| HeaderValue::try_from(cookie).ok()) {
            answer.headers_mut().insert(SET_COOKIE, cookie);
            print::data(&format!("page opened; for another browser: {}", self.access.url()));
        }
        answer
    }

    async fn session(&self) -> Response<PageBody> {
        match self.upstream.describe().await {
            Ok(text) => data(StatusCode::OK, "application/json", text.to_string()),
            Err(error) => refuse(StatusCode::BAD_GATEWAY, &crate::describe(&error)),
        }
    }

    /// Passes a GET on. Of the headers only `Accept` and the type of the content are passed.
    async fn read(&self, request: &Request<Incoming>) -> Response<PageBody> {
        let path = request.uri().path_and_query().map_or("", |path| path.as_str());
        if !paths::may_read(path) {
            return refuse(StatusCode::FORBIDDEN, "the page does not read this path");
        }
        let json = HeaderValue::from_static("application/json");
        let accept = request.headers().get(ACCEPT).unwrap_or(&json);
        let (head, body) = match self.upstream.get(path, accept).await {
            Ok(answer) => answer.into_parts(),
            Err(error) => return refuse(StatusCode::BAD_GATEWAY, &crate::describe(&error)),
        };
        let mut answer = Response::new(body.map_err(Into::into).boxed_unsync());
        *answer.status_mut() = head.status;
        if let Some(content_type) = head.headers.get(CONTENT_TYPE) {
            answer.headers_mut().insert(CONTENT_TYPE, content_type.clone());
        }
        assets::protect_data(answer.headers_mut());
        answer
    }

    /// Answers the handshake of a WebSocket and passes its task to the connection.
    async fn stream(
        &self,
        request: &mut Request<Incoming>,
        tasks: &StreamTasks,
    ) -> Response<PageBody> {
        let Some(key) = handshake(request.headers()) else {
            return refuse(StatusCode::BAD_REQUEST, "not a WebSocket handshake");
        };
        if !self.access.is_from_page(request.headers()) {
            return refuse(StatusCode::FORBIDDEN, "requests of other origins are refused");
        }
        let Some(place) = self.streams.place() else {
            return refuse(StatusCode::TOO_MANY_REQUESTS, "too many pages are open; close some");
        };
        let upgrade = hyper::upgrade::on(request);
        let task = place.run(upgrade, self.upstream.clone());
        if tasks.send(Box::pin(task)).await.is_err() {
            return refuse(StatusCode::SERVICE_UNAVAILABLE, "the connection is closing");
        }
        let mut answer = Response::new(body(""));
        *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        for (name, value) in [(CONNECTION, "Upgrade"), (UPGRADE, "websocket")] {
            answer.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        answer.headers_mut().insert(SEC_WEBSOCKET_ACCEPT, key);
        answer
    }
}

/// What a browser without the cookie shows.
const HOW_TO_LOG_IN: &str = "This page is for the person who started it. Open the address that \
    \"headwater ui\" or \"headwater dev\" printed last; each address works once.";

/// The accept key of a WebSocket handshake.
fn handshake(headers: &HeaderMap) -> Option<HeaderValue> {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let asks = text(UPGRADE).is_some_and(|value| value.eq_ignore_ascii_case("websocket"));
    let key = text(SEC_WEBSOCKET_KEY).filter(|key| key.len() == 24)?;
    let is_handshake = asks && text(SEC_WEBSOCKET_VERSION) == Some("13");
    is_handshake.then(|| HeaderValue::try_from(derive_accept_key(key.as_bytes())).ok())?
}

fn page_file(file: &PageFile) -> Response<PageBody> {
    let mut answer = Response::new(body(file.text));
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(file.content_type));
    assets::protect(headers);
    answer
}

fn refuse(code: StatusCode, why: &str) -> Response<PageBody> {
    data(code, "text/plain; charset=utf-8", format!("{why}\n"))
}

fn data(code: StatusCode, content_type: &'static str, text: String) -> Response<PageBody> {
    let mut answer = Response::new(body(text));
    *answer.status_mut() = code;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    assets::protect_data(answer.headers_mut());
    answer
}

fn body(text: impl Into<Bytes>) -> PageBody {
    Full::new(text.into()).map_err(|never| match never {}).boxed_unsync()
}
