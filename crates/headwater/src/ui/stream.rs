//! The stream of a page: all its watches over one WebSocket.
//!
//! Browsers open six HTTP/1.1 connections to an origin, and a page has a watch for each kind. The
//! page sends `{"open":{"id":7,"path":"/api/v1/pods?watch=1","accept":"application/json"}}` and
//! `{"close":{"id":7}}`. It receives `{"id":7,"opened":true}`, then messages of complete lines after
//! the id, `7 {"type":…}\n{"type":…}\n`, and `{"id":7,"closed":{"code":410,"message":…}}`, where
//! `code` is that of the answer, 200 for a stream that ended, or 502 for one that broke.
//!
//! River: the API server → **stream** → the worker of the page.
//! Promise: the lines of a watch arrive complete and in order. A page that does not read delays only
//! itself: its watches wait, as those of any slow client.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use http::StatusCode;
use http::header::HeaderValue;
use http_body_util::{BodyExt, Limited};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use kube::client::Body;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};

use super::paths;
use super::upstream::Upstream;

/// The maximum number of pages that are open at the same time.
const STREAMS_MAX: usize = 16;
/// The maximum number of watches of a page.
const WATCHES_MAX: usize = 384;
/// The maximum size of a message of the page.
const REQUEST_MAX: usize = 16 * 1024;
/// Messages that wait for the socket, of all watches of a page.
const QUEUE: usize = 32;
/// The maximum size of one event: an object, in a table with a copy of its columns.
const LINE_MAX: usize = 32 << 20;
/// The maximum size of the answer to a refused watch.
const REFUSAL_MAX: usize = 64 * 1024;
/// The maximum time for the head of an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// The maximum time for one message to be taken by the socket.
const SEND_TIMEOUT: Duration = Duration::from_secs(120);
/// How often a quiet connection is tested.
const PING_EVERY: Duration = Duration::from_secs(20);

/// The open streams of all pages.
pub(super) struct Streams {
    places: Arc<Semaphore>,
}

impl Default for Streams {
    fn default() -> Streams {
        Streams { places: Arc::new(Semaphore::new(STREAMS_MAX)) }
    }
}

impl Streams {
    /// A place for one more stream, if there is one.
    pub(super) fn place(&self) -> Option<StreamPlace> {
        Some(StreamPlace { _permit: self.places.clone().try_acquire_owned().ok()? })
    }
}

/// The permission to serve a stream.
pub(super) struct StreamPlace {
    _permit: OwnedSemaphorePermit,
}

/// A message of the page.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum StreamRequest {
    Open { id: u32, path: String, accept: String },
    Close { id: u32 },
}

type Socket = WebSocketStream<TokioIo<Upgraded>>;

impl StreamPlace {
    /// Serves a page until it closes its stream.
    pub(super) async fn run(self, upgrade: OnUpgrade, upstream: Arc<Upstream>) {
        let Ok(upgraded) = upgrade.await else { return };
        let config = WebSocketConfig::default()
            .max_message_size(Some(REQUEST_MAX))
            .max_frame_size(Some(REQUEST_MAX));
        let io = TokioIo::new(upgraded);
        let socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await;
        let (to_page, from_page) = socket.split();
        let (frames, queue) = mpsc::channel(QUEUE);
        let watches = PageWatches { upstream, frames, tasks: JoinSet::new(), open: HashMap::new() };
        // An error ends the stream; the page opens another one.
        let _ = serve(to_page, from_page, queue, watches).await;
    }
}

/// The end of a stream.
struct StreamEnd;

async fn serve(
    mut to_page: SplitSink<Socket, Message>,
    mut from_page: SplitStream<Socket>,
    mut queue: mpsc::Receiver<Utf8Bytes>,
    mut watches: PageWatches,
) -> Result<(), StreamEnd> {
    let mut pings = interval(PING_EVERY);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            message = from_page.next() => match message {
                Some(Ok(Message::Text(text))) => watches.take(&text)?,
                Some(Ok(Message::Close(_))) => {
                    // Reading a close queues its reply, which must still be sent.
                    let _ = to_page.flush().await;
                    return Ok(());
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Err(StreamEnd),
            },
            Some(frame) = queue.recv() => {
                send(&mut to_page, Message::Text(frame)).await?;
                while let Ok(frame) = queue.try_recv() {
                    send(&mut to_page, Message::Text(frame)).await?;
                }
                flush(&mut to_page).await?;
            }
            Some(ended) = watches.tasks.join_next() => {
                if let Ok(id) = ended {
                    watches.open.remove(&id);
                }
            }
            _ = pings.tick() => {
                send(&mut to_page, Message::Ping(Bytes::new())).await?;
                flush(&mut to_page).await?;
            }
        }
    }
}

async fn send(to_page: &mut SplitSink<Socket, Message>, message: Message) -> Result<(), StreamEnd> {
    match timeout(SEND_TIMEOUT, to_page.feed(message)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) | Err(_) => Err(StreamEnd),
    }
}

async fn flush(to_page: &mut SplitSink<Socket, Message>) -> Result<(), StreamEnd> {
    match timeout(SEND_TIMEOUT, to_page.flush()).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) | Err(_) => Err(StreamEnd),
    }
}

/// The watches of one page. They end when this is dropped.
struct PageWatches {
    upstream: Arc<Upstream>,
    frames: mpsc::Sender<Utf8Bytes>,
    tasks: JoinSet<u32>,
    open: HashMap<u32, AbortHandle>,
}

impl PageWatches {
    fn take(&mut self, text: &str) -> Result<(), StreamEnd> {
        match serde_json::from_str(text) {
            Ok(StreamRequest::Open { id, path, accept }) => {
                // A page that asks for ever more reads nothing of what it is refused.
                if self.open.contains_key(&id) || self.open.len() >= 2 * WATCHES_MAX {
                    return Err(StreamEnd);
                }
                let has_place = self.open.len() < WATCHES_MAX;
                let (upstream, frames) = (self.upstream.clone(), self.frames.clone());
                let task = self.tasks.spawn(async move {
                    let end = match has_place {
                        true => follow(id, &path, &accept, &upstream, &frames).await,
                        false => WatchEnd::new(429, "too many watches in one page"),
                    };
                    let _ = frames.send(end.message(id)).await;
                    id
                });
                self.open.insert(id, task);
            }
            Ok(StreamRequest::Close { id }) => {
                if let Some(task) = self.open.remove(&id) {
                    task.abort();
                }
            }
            Err(_) => return Err(StreamEnd),
        }
        Ok(())
    }
}

/// Why a watch ended.
struct WatchEnd {
    code: u16,
    message: String,
}

impl WatchEnd {
    fn new(code: u16, message: impl Into<String>) -> WatchEnd {
        WatchEnd { code, message: message.into() }
    }

    fn message(&self, id: u32) -> Utf8Bytes {
        let closed = json!({ "code": self.code, "message": self.message });
        json!({ "id": id, "closed": closed }).to_string().into()
    }
}

/// Sends the lines of one watch until it ends.
async fn follow(
    id: u32,
    path: &str,
    accept: &str,
    upstream: &Upstream,
    frames: &mpsc::Sender<Utf8Bytes>,
) -> WatchEnd {
    if !paths::may_read(path) {
        return WatchEnd::new(403, "the page does not read this path");
    }
    let Ok(accept) = HeaderValue::from_str(accept) else {
        return WatchEnd::new(400, "the accepted type is not a header");
    };
    let answer = match timeout(ANSWER_TIMEOUT, upstream.get(path, &accept)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => return WatchEnd::new(502, crate::describe(&error)),
        Err(_) => return WatchEnd::new(504, "the server does not answer"),
    };
    let (head, mut body) = answer.into_parts();
    if head.status != StatusCode::OK {
        return WatchEnd::new(head.status.as_u16(), refusal(body).await);
    }
    let opened = json!({ "id": id, "opened": true }).to_string();
    if frames.send(opened.into()).await.is_err() {
        return WatchEnd::new(200, "");
    }
    let mut lines = LineBuffer::default();
    while let Some(frame) = body.frame().await {
        let data = match frame {
            Ok(frame) => frame.into_data().unwrap_or_default(),
            Err(error) => return WatchEnd::new(502, error.to_string()),
        };
        let Ok(complete) = lines.push(&data) else {
            return WatchEnd::new(413, "an event is too large for the page");
        };
        if complete.is_empty() {
            continue;
        }
        let mut text = format!("{id} ").into_bytes();
        text.extend_from_slice(&complete);
        let Ok(text) = Utf8Bytes::try_from(Bytes::from(text)) else {
            return WatchEnd::new(502, "the server sent something that is not text");
        };
        if frames.send(text).await.is_err() {
            break;
        }
    }
    WatchEnd::new(200, "")
}

/// The message of a Status, or the text of another answer.
async fn refusal(body: Body) -> String {
    let body = Limited::new(body, REFUSAL_MAX).collect().await;
    let bytes = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let status: Option<Value> = serde_json::from_slice(&bytes).ok();
    let message = status.as_ref().and_then(|status| status["message"].as_str());
    message.map_or_else(|| String::from_utf8_lossy(&bytes).trim().to_owned(), str::to_owned)
}

/// Bytes since the last complete line.
#[derive(Default)]
struct LineBuffer {
    rest: BytesMut,
}

/// A line is longer than allowed.
#[derive(Debug, PartialEq)]
struct LineTooLong;

impl LineBuffer {
    /// Adds bytes and takes all complete lines; empty if there is none.
    fn push(&mut self, data: &[u8]) -> Result<Bytes, LineTooLong> {
        let end = data.iter().rposition(|byte| *byte == b'\n').map(|at| self.rest.len() + at + 1);
        self.rest.extend_from_slice(data);
        let complete = self.rest.split_to(end.unwrap_or_default()).freeze();
        if self.rest.len() > LINE_MAX {
            return Err(LineTooLong);
        }
        Ok(complete)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_passed_on_when_they_are_complete() {
        let mut lines = LineBuffer::default();
        let mut push = |text: &str| lines.push(text.as_bytes()).unwrap();
        assert_eq!(push("{\"a\""), "");
        assert_eq!(push(":1}\n{\"b\":2}\n{\"c"), "{\"a\":1}\n{\"b\":2}\n");
        assert_eq!(push("\":3}"), "");
        assert_eq!(push("\n"), "{\"c\":3}\n");
    }

    #[test]
    fn a_line_without_end_is_not_collected() {
        let mut lines = LineBuffer::default();
        assert_eq!(lines.push(&vec![b'x'; LINE_MAX]), Ok(Bytes::new()));
        assert_eq!(lines.push(b"x"), Err(LineTooLong));
    }

    #[tokio::test]
    async fn a_page_cannot_open_watches_without_end() {
        let (frames, _queue) = mpsc::channel(1);
        let upstream = Arc::new(Upstream::new("absent".into()));
        let mut watches =
            PageWatches { upstream, frames, tasks: JoinSet::new(), open: HashMap::new() };
        let open = |id: usize| json!({ "open": { "id": id, "path": "/", "accept": "*/*" } });
        let ids = 0..10 * WATCHES_MAX;
        let accepted = ids.take_while(|id| watches.take(&open(*id).to_string()).is_ok()).count();
        assert_eq!(accepted, 2 * WATCHES_MAX);
    }

    #[test]
    fn messages_of_the_page_are_parsed() {
        let open = r#"{"open":{"id":7,"path":"/api/v1/pods?watch=1","accept":"application/json"}}"#;
        assert!(matches!(serde_json::from_str(open), Ok(StreamRequest::Open { id: 7, .. })));
        let close = r#"{"close":{"id":7}}"#;
        assert!(matches!(serde_json::from_str(close), Ok(StreamRequest::Close { id: 7 })));
        assert!(serde_json::from_str::<StreamRequest>(r#"{"post":{"id":7}}"#).is_err());
    }
}
