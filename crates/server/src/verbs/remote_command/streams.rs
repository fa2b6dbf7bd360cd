//! The streams between a client and a command: input, outputs and the final status.
//!
//! Over WebSocket the first byte of a message is its channel; over SPDY each is a stream that the client
//! opens. Promise: the next input may be cancelled without losing any.

use std::time::Duration;

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use headwater_json::Value;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use crate::verbs::spdy::{ResetReason, SpdyFrame, SpdySession};
use crate::verbs::websocket::{self, UpgradedSocket};

/// The maximum size of a message of a client.
const MESSAGE_MAX: usize = 1 << 20;
/// How long a client may take to open its streams, and to close the connection at the end.
const CLIENT_PATIENCE: Duration = Duration::from_secs(30);

const INPUT: u8 = 0;
const OUTPUT: u8 = 1;
const ERROR_OUTPUT: u8 = 2;
const STATUS: u8 = 3;
const CLOSE: u8 = 255;

/// What a client sent.
pub(super) enum ClientInput {
    Text(String),
    /// No more input follows.
    End,
    /// The client is gone.
    Gone,
}

/// An output of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandOutput {
    Standard,
    Error,
}

/// The streams that a client asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WantedStreams {
    pub(crate) input: bool,
    pub(crate) output: bool,
    pub(crate) error: bool,
    pub(crate) terminal: bool,
}

/// The streams of one command.
pub(super) enum CommandStreams {
    WebSocket(Box<UpgradedSocket>),
    Spdy(Box<SpdyStreams>),
}

impl CommandStreams {
    /// The channels of a WebSocket connection.
    pub(super) async fn websocket(upgraded: Upgraded) -> CommandStreams {
        let config = WebSocketConfig::default()
            .max_message_size(Some(MESSAGE_MAX))
            .max_frame_size(Some(MESSAGE_MAX));
        let io = TokioIo::new(upgraded);
        let socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await;
        CommandStreams::WebSocket(Box::new(socket))
    }

    /// The streams that the client opens over SPDY; `None` if they are not the wanted ones.
    pub(super) async fn spdy(upgraded: Upgraded, wanted: WantedStreams) -> Option<CommandStreams> {
        let mut session = SpdySession::new(TokioIo::new(upgraded));
        let opened = SpdyStreams::open(&mut session, wanted);
        let numbers = tokio::time::timeout(CLIENT_PATIENCE, opened).await.ok()??;
        let has_ended = false;
        Some(CommandStreams::Spdy(Box::new(SpdyStreams { session, numbers, has_ended })))
    }

    /// The next input of the client; sizes of the terminal are ignored.
    pub(super) async fn next_input(&mut self) -> ClientInput {
        match self {
            CommandStreams::WebSocket(socket) => next_message(socket).await,
            CommandStreams::Spdy(streams) => streams.next_input().await,
        }
    }

    /// Sends output; `None` if the client is gone.
    pub(super) async fn send(&mut self, output: CommandOutput, data: &[u8]) -> Option<()> {
        match self {
            CommandStreams::WebSocket(socket) => {
                let channel = match output {
                    CommandOutput::Standard => OUTPUT,
                    CommandOutput::Error => ERROR_OUTPUT,
                };
                socket.send(message(channel, data)).await.ok()
            }
            CommandStreams::Spdy(streams) => {
                let number = match output {
                    CommandOutput::Standard => streams.numbers.output,
                    CommandOutput::Error => streams.numbers.error,
                };
                number.into_iter().for_each(|number| streams.session.put(number, data, false));
                streams.session.flush().await
            }
        }
    }

    /// Sends the final status and closes the connection.
    pub(super) async fn finish(self, status: &Value) {
        let text = status.to_string();
        match self {
            CommandStreams::WebSocket(mut socket) => {
                if socket.send(message(STATUS, text.as_bytes())).await.is_ok() {
                    websocket::close(&mut socket).await;
                }
            }
            CommandStreams::Spdy(mut streams) => {
                let OpenedStreams { input, output, error, status, .. } = streams.numbers;
                for number in [output, error, input].into_iter().flatten() {
                    streams.session.put(number, &[], true);
                }
                let status = status.unwrap_or_default();
                streams.session.put(status, text.as_bytes(), true);
                streams.session.shutdown().await;
                // Closing while the client still sends could discard the status.
                let rest = async { while streams.session.next().await.is_some() {} };
                let _ = tokio::time::timeout(CLIENT_PATIENCE, rest).await;
            }
        }
    }
}

fn message(channel: u8, data: &[u8]) -> Message {
    let mut message = Vec::with_capacity(data.len() + 1);
    message.push(channel);
    message.extend_from_slice(data);
    Message::Binary(message.into())
}

async fn next_message(socket: &mut UpgradedSocket) -> ClientInput {
    loop {
        let message = match socket.next().await {
            Some(Ok(Message::Binary(message))) => message,
            Some(Ok(Message::Text(text))) => Bytes::from(text),
            Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => continue,
            Some(Ok(Message::Close(_)) | Err(_)) | None => return ClientInput::Gone,
        };
        match message.split_first() {
            Some((&INPUT, text)) if !text.is_empty() => {
                return ClientInput::Text(String::from_utf8_lossy(text).into_owned());
            }
            Some((&CLOSE, [INPUT, ..])) => return ClientInput::End,
            _ => {}
        }
    }
}

/// The numbers of the streams that a client has opened.
#[derive(Clone, Copy, Debug, Default)]
struct OpenedStreams {
    input: Option<u32>,
    output: Option<u32>,
    error: Option<u32>,
    status: Option<u32>,
    sizes: Option<u32>,
}

/// The streams of a SPDY connection.
pub(super) struct SpdyStreams {
    session: SpdySession<TokioIo<Upgraded>>,
    numbers: OpenedStreams,
    /// Whether the client has closed its input.
    has_ended: bool,
}

impl SpdyStreams {
    /// Waits until the client has opened all streams.
    async fn open(
        session: &mut SpdySession<TokioIo<Upgraded>>,
        wanted: WantedStreams,
    ) -> Option<OpenedStreams> {
        let mut opened = OpenedStreams::default();
        loop {
            let is_complete = opened.status.is_some()
                && opened.input.is_some() == wanted.input
                && opened.output.is_some() == wanted.output
                && opened.error.is_some() == wanted.error
                && opened.sizes.is_some() == wanted.terminal;
            if is_complete {
                session.flush().await?;
                return Some(opened);
            }
            let SpdyFrame::Open { stream, headers, .. } = session.next().await? else { continue };
            let type_ = headers.iter().find(|(name, _)| name == "streamtype");
            let wanted = match type_.map(|(_, type_)| type_.as_str()) {
                Some("error") => Some(&mut opened.status),
                Some("stdin") => Some(&mut opened.input).filter(|_| wanted.input),
                Some("stdout") => Some(&mut opened.output).filter(|_| wanted.output),
                Some("stderr") => Some(&mut opened.error).filter(|_| wanted.error),
                Some("resize") => Some(&mut opened.sizes).filter(|_| wanted.terminal),
                _ => None,
            };
            match wanted {
                Some(number) if number.is_none() => {
                    *number = Some(stream);
                    session.accept(stream);
                }
                _ => session.reset(stream, ResetReason::Refused),
            }
        }
    }

    async fn next_input(&mut self) -> ClientInput {
        if std::mem::take(&mut self.has_ended) {
            return ClientInput::End;
        }
        loop {
            match self.session.next().await {
                None | Some(SpdyFrame::GoAway) => return ClientInput::Gone,
                Some(SpdyFrame::Open { stream, .. }) => {
                    self.session.reset(stream, ResetReason::Refused);
                }
                Some(SpdyFrame::Data { stream, is_last, data })
                    if Some(stream) == self.numbers.input =>
                {
                    if data.is_empty() && is_last {
                        return ClientInput::End;
                    }
                    self.has_ended = is_last;
                    if !data.is_empty() {
                        return ClientInput::Text(String::from_utf8_lossy(&data).into_owned());
                    }
                }
                Some(_) => {}
            }
        }
    }
}
