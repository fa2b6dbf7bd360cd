//! The streams of a client that forwards ports: two for each connection, data and error.
//!
//! Over SPDY a client opens them for each connection, with the port in their headers. Over WebSocket
//! channels they are there from the beginning, one pair for each port of the query. Promise: the
//! next event may be cancelled without losing any.

use std::collections::{HashMap, VecDeque};
use std::future::ready;
use std::io;

use bytes::Bytes;
use futures::{SinkExt, StreamExt, TryStreamExt};
use headwater_api::Status;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_util::io::{CopyToBytes, SinkWriter, StreamReader};

use crate::answer::status;
use crate::verbs::spdy::{ResetReason, SpdyFrame, SpdySession};

/// The maximum size of a WebSocket message of a client.
const MESSAGE_MAX: usize = 1 << 20;
/// The ports whose channels fit into one byte.
const PORTS_MAX: usize = 128;

/// What a client does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PortEvent {
    Open {
        connection: u32,
        port: u16,
    },
    Data {
        connection: u32,
        data: Bytes,
    },
    /// The client sends no more.
    End {
        connection: u32,
    },
}

/// Any bidirectional stream of bytes.
pub(super) trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> ByteStream for T {}

/// The streams of one client.
pub(super) enum PortStreams {
    Spdy(SpdyPorts),
    Channels(ChannelPorts),
}

impl PortStreams {
    /// The streams of a connection that speaks SPDY.
    pub(super) fn spdy(upgraded: Upgraded) -> PortStreams {
        PortStreams::Spdy(SpdyPorts::new(Box::new(TokioIo::new(upgraded))))
    }

    /// The same within the binary messages of a WebSocket.
    pub(super) async fn tunnel(upgraded: Upgraded) -> PortStreams {
        let (to_client, from_client) = socket(upgraded).await.split();
        let data = from_client.map_err(io::Error::other).try_filter_map(|message| {
            ready(Ok(match message {
                Message::Binary(data) => Some(data),
                _ => None,
            }))
        });
        let messages = to_client
            .sink_map_err(io::Error::other)
            .with(|data: Bytes| ready(Ok::<_, io::Error>(Message::Binary(data))));
        let writer = SinkWriter::new(CopyToBytes::new(messages));
        let io = tokio::io::join(StreamReader::new(data), writer);
        PortStreams::Spdy(SpdyPorts::new(Box::new(io)))
    }

    /// The channels of a WebSocket, for these ports.
    pub(super) async fn channels(upgraded: Upgraded, ports: &[u16]) -> PortStreams {
        let mut channels = ChannelPorts::new(socket(upgraded).await, ports);
        for (connection, port) in channels.beginning.clone() {
            // The first message of a channel is its port. A client that is gone is noticed below.
            for channel in [2 * connection, 2 * connection + 1] {
                let _ = channels.send(channel, &port.to_le_bytes()).await;
            }
        }
        PortStreams::Channels(channels)
    }

    /// What the client does next; `None` once it is gone.
    pub(super) async fn next(&mut self) -> Option<PortEvent> {
        match self {
            PortStreams::Spdy(ports) => ports.next().await,
            PortStreams::Channels(ports) => ports.next().await,
        }
    }

    /// Sends data of a connection; `None` if the client is gone.
    pub(super) async fn send(&mut self, connection: u32, data: &[u8]) -> Option<()> {
        match self {
            PortStreams::Spdy(ports) => {
                ports.session.put(connection, data, false);
                ports.session.flush().await
            }
            PortStreams::Channels(ports) => ports.send(2 * connection, data).await,
        }
    }

    /// Ends a connection; `None` if the client is gone.
    pub(super) async fn end(&mut self, connection: u32, error: Option<&str>) -> Option<()> {
        let error = error.unwrap_or_default().as_bytes();
        match self {
            PortStreams::Spdy(ports) => {
                let errors = ports.errors.remove(&connection);
                ports.session.put(errors.unwrap_or_default(), error, true);
                ports.session.put(connection, &[], true);
                ports.session.flush().await
            }
            PortStreams::Channels(ports) => {
                if !error.is_empty() {
                    ports.send(2 * connection + 1, error).await?;
                }
                // A channel cannot be closed alone: the connection ends with the last of them.
                ports.open -= 1;
                (ports.open > 0).then_some(())
            }
        }
    }
}

async fn socket(upgraded: Upgraded) -> WebSocketStream<TokioIo<Upgraded>> {
    let config = WebSocketConfig::default()
        .max_message_size(Some(MESSAGE_MAX))
        .max_frame_size(Some(MESSAGE_MAX));
    WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, Some(config)).await
}

/// The ports of a query: `ports=80,81`, or several of them.
pub(super) fn ports<'a>(values: impl Iterator<Item = &'a str>) -> Result<Vec<u16>, Status> {
    let mut ports = Vec::new();
    for text in values.flat_map(|value| value.split(',')) {
        let port = text.trim().parse::<u16>().ok().filter(|port| *port > 0);
        ports.push(port.ok_or_else(|| status::bad_request(format!("invalid port {text:?}")))?);
    }
    match ports.len() {
        0 => Err(status::bad_request("query parameter \"ports\" is required")),
        1..=PORTS_MAX => Ok(ports),
        _ => Err(status::bad_request(format!("at most {PORTS_MAX} ports"))),
    }
}

/// Connections over SPDY; their numbers are those of the data streams.
pub(super) struct SpdyPorts {
    session: SpdySession<Box<dyn ByteStream>>,
    /// By the client's name of a connection, the first of its streams and whether that is the one for
    /// errors. Bound: the streams of a session.
    halves: HashMap<String, (u32, bool)>,
    /// The stream for errors of each connection.
    errors: HashMap<u32, u32>,
    /// The end of a connection whose last data was returned.
    ended: Option<u32>,
}

impl SpdyPorts {
    fn new(io: Box<dyn ByteStream>) -> SpdyPorts {
        SpdyPorts {
            session: SpdySession::new(io),
            halves: HashMap::new(),
            errors: HashMap::new(),
            ended: None,
        }
    }

    async fn next(&mut self) -> Option<PortEvent> {
        if let Some(connection) = self.ended.take() {
            return Some(PortEvent::End { connection });
        }
        loop {
            match self.session.next().await? {
                SpdyFrame::Open { stream, headers, .. } => {
                    if let Some(event) = self.open(stream, &headers) {
                        return Some(event);
                    }
                }
                SpdyFrame::Data { stream, is_last, data } if self.errors.contains_key(&stream) => {
                    if data.is_empty() && is_last {
                        return Some(PortEvent::End { connection: stream });
                    }
                    self.ended = is_last.then_some(stream);
                    if !data.is_empty() {
                        return Some(PortEvent::Data { connection: stream, data });
                    }
                }
                SpdyFrame::Reset { stream } if self.errors.contains_key(&stream) => {
                    return Some(PortEvent::End { connection: stream });
                }
                SpdyFrame::GoAway => return None,
                _ => {}
            }
        }
    }

    /// Accepts a stream; with the second one of a pair a connection begins.
    fn open(&mut self, stream: u32, headers: &[(String, String)]) -> Option<PortEvent> {
        let header = |wanted: &str| {
            headers.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str())
        };
        let port = header("port").and_then(|port| port.parse::<u16>().ok()).filter(|it| *it > 0);
        let is_error = match header("streamtype") {
            Some("error") => Some(true),
            Some("data") => Some(false),
            _ => None,
        };
        let (Some(port), Some(is_error)) = (port, is_error) else {
            self.session.reset(stream, ResetReason::ProtocolError);
            return None;
        };
        let name = header("requestid").unwrap_or_default();
        let Some((other, other_is_error)) = self.halves.remove(name) else {
            self.halves.insert(name.to_owned(), (stream, is_error));
            self.session.accept(stream);
            return None;
        };
        if other_is_error == is_error {
            self.halves.insert(name.to_owned(), (other, other_is_error));
            self.session.reset(stream, ResetReason::ProtocolError);
            return None;
        }
        self.session.accept(stream);
        let (connection, errors) = if is_error { (other, stream) } else { (stream, other) };
        self.errors.insert(connection, errors);
        Some(PortEvent::Open { connection, port })
    }
}

/// Connections over channels: that of the port with index `n` is `n`, its channels are `2n` and
/// `2n + 1`.
pub(super) struct ChannelPorts {
    socket: WebSocketStream<TokioIo<Upgraded>>,
    /// The ports of the connections that begin next.
    beginning: VecDeque<(u32, u16)>,
    /// The number of connections that have not ended.
    open: usize,
}

impl ChannelPorts {
    fn new(socket: WebSocketStream<TokioIo<Upgraded>>, ports: &[u16]) -> ChannelPorts {
        let beginning = (0..).zip(ports.iter().copied()).collect();
        ChannelPorts { socket, beginning, open: ports.len() }
    }

    async fn next(&mut self) -> Option<PortEvent> {
        if let Some((connection, port)) = self.beginning.pop_front() {
            return Some(PortEvent::Open { connection, port });
        }
        loop {
            let message = match self.socket.next().await {
                Some(Ok(Message::Binary(message))) => message,
                Some(Ok(Message::Text(text))) => Bytes::from(text),
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => continue,
                Some(Ok(Message::Close(_)) | Err(_)) | None => return None,
            };
            match message.first() {
                Some(channel) if channel % 2 == 0 && message.len() > 1 => {
                    let connection = u32::from(channel / 2);
                    return Some(PortEvent::Data { connection, data: message.slice(1..) });
                }
                _ => {}
            }
        }
    }

    async fn send(&mut self, channel: u32, data: &[u8]) -> Option<()> {
        let mut message = Vec::with_capacity(data.len() + 1);
        message.push(u8::try_from(channel).unwrap_or(u8::MAX));
        message.extend_from_slice(data);
        self.socket.send(Message::Binary(message.into())).await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ports_of_a_query_are_numbers() {
        let read = |values: &[&'static str]| ports(values.iter().copied()).ok();
        assert_eq!(read(&["80,81", "82"]), Some(vec![80, 81, 82]));
        for values in [&[][..], &["0"], &["http"], &["70000"], &["80,"]] {
            assert_eq!(read(values), None, "{values:?}");
        }
    }
}
