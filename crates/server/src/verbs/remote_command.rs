//! Commands in containers over WebSocket: `exec` and `attach`.
//!
//! River: **remote command** → HTTP upgrade → channels of the client. The first byte of a message is
//! its channel: input, output, error output, the final status, or the size of the terminal.
//! Promise: nothing is kept of what a client sends but the line that is not complete yet, and that
//! is bounded.

use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use headwater_api::Status;
use headwater_api::options::Freshness;
use headwater_json::{Value, json};
use http::HeaderValue;
use http::header;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use crate::answer::body::Response;
use crate::answer::status;
use crate::containers::{ContainerRuntime, ContainerTarget, ExecReply, ExecRequest};
use crate::front::identity::Peer;
use crate::request::call::Call;
use crate::request::route::ResourcePath;
use crate::server::Server;
use crate::verbs::kubelet::FollowedLog;
use crate::verbs::websocket::UpgradedSocket;
use crate::verbs::{read, websocket};

/// The protocols that are served, the preferred one first. The second lacks the message that closes
/// a channel.
const PROTOCOLS: [&str; 2] = ["v5.channel.k8s.io", "v4.channel.k8s.io"];

/// The maximum size of a message of a client.
const MESSAGE_MAX: usize = 1 << 20;

/// The maximum length of input that a command has not consumed.
const INPUT_MAX: usize = 1 << 20;

const INPUT: u8 = 0;
const OUTPUT: u8 = 1;
const ERROR_OUTPUT: u8 = 2;
const STATUS: u8 = 3;
const CLOSE: u8 = 255;

/// A command that a client runs in a container, or its attachment to one.
pub(crate) struct RemoteCommand {
    pub(crate) server: Server,
    pub(crate) resource: ResourcePath,
    pub(crate) runtime: Arc<dyn ContainerRuntime>,
    pub(crate) container: String,
    /// `None` to attach to the container's own process.
    pub(crate) command: Option<Vec<String>>,
    pub(crate) has_input: bool,
    pub(crate) has_output: bool,
    pub(crate) has_error: bool,
    pub(crate) is_terminal: bool,
}

/// Responds with 101 and runs the command after the upgrade.
pub(crate) fn start(
    call: &Call,
    upgrade: Option<OnUpgrade>,
    peer: &Peer,
    remote: RemoteCommand,
) -> Result<Response, Status> {
    if !websocket::is_asked_for(call) {
        return Err(status::bad_request(
            "unable to upgrade: this server speaks WebSocket only, not SPDY",
        ));
    }
    let offered = call.header(header::SEC_WEBSOCKET_PROTOCOL);
    let offers = |name: &&&str| offered.split(',').any(|word| word.trim() == **name);
    let Some(protocol) = PROTOCOLS.iter().find(offers).copied() else {
        let why = format!("none of the subprotocols is served; offer {}", PROTOCOLS.join(" or "));
        return Err(status::bad_request(why));
    };
    let (response, upgrade) =
        websocket::handshake(call, upgrade, Some(HeaderValue::from_static(protocol)))?;
    let trail = call.trail.clone();
    peer.tasks.spawn(async move {
        if let Ok(upgraded) = upgrade.await {
            remote.run(upgraded).await;
        }
        // The audit trail records the end of the command, not of the upgrade.
        drop(trail);
    });
    Ok(response)
}

/// What a client sent.
enum ClientInput {
    Text(String),
    /// No more input follows.
    End,
    /// The client is gone.
    Gone,
}

impl RemoteCommand {
    async fn run(self, upgraded: Upgraded) {
        let config = WebSocketConfig::default()
            .max_message_size(Some(MESSAGE_MAX))
            .max_frame_size(Some(MESSAGE_MAX));
        let io = TokioIo::new(upgraded);
        let socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await;
        let (to_client, mut from_client) = socket.split();
        let mut output = Channels { to_client };
        let draining = self.server.draining().clone();
        let ended = async {
            match &self.command {
                Some(command) => self.exec(command, &mut output, &mut from_client).await,
                None => self.attach(&mut output, &mut from_client).await,
            }
        };
        if let Some(Some(status)) = draining.run_until_cancelled(ended).await {
            output.finish(&status, &mut from_client).await;
        }
    }

    /// Runs a command; `None` if the client is gone.
    async fn exec(
        &self,
        command: &[String],
        output: &mut Channels,
        from_client: &mut SplitStream<UpgradedSocket>,
    ) -> Option<Value> {
        let mut reply = self.reply(command, None).await?;
        let mut waiting = String::new();
        loop {
            self.send(output, &reply).await?;
            if let Some(code) = reply.exit_code {
                return Some(exit_status(code));
            }
            if !self.has_input {
                return Some(exit_status(0));
            }
            match next_input(from_client).await {
                ClientInput::Gone => return None,
                ClientInput::End => return Some(exit_status(0)),
                ClientInput::Text(text) => {
                    if self.is_terminal {
                        output.send(OUTPUT, echo(&text).as_bytes()).await?;
                    }
                    waiting.push_str(&text);
                }
            }
            let end = waiting.rfind(['\n', '\r', '\u{4}']);
            let Some(end) = end else {
                if waiting.len() > INPUT_MAX {
                    return Some(exit_status(1));
                }
                reply = ExecReply::default();
                continue;
            };
            let lines: String = waiting.drain(..=end).collect();
            reply = self.reply(command, Some(&lines)).await?;
        }
    }

    async fn reply(&self, command: &[String], input: Option<&str>) -> Option<ExecReply> {
        let pod = read::find(&self.server, &self.resource, Freshness::Any).await.ok()?;
        Some(self.runtime.exec(&ExecRequest {
            target: ContainerTarget { pod: pod.as_slice(), container: &self.container },
            command,
            input,
            now: self.server.now(),
        }))
    }

    async fn send(&self, output: &mut Channels, reply: &ExecReply) -> Option<()> {
        let terminal = |text: &str| match self.is_terminal {
            true => text.replace('\n', "\r\n"),
            false => text.to_owned(),
        };
        if self.has_output && !reply.output.is_empty() {
            output.send(OUTPUT, terminal(&reply.output).as_bytes()).await?;
        }
        if !reply.error.is_empty() {
            // A terminal has one output.
            let channel = if self.is_terminal { OUTPUT } else { ERROR_OUTPUT };
            if self.has_error || self.is_terminal {
                output.send(channel, terminal(&reply.error).as_bytes()).await?;
            }
        }
        Some(())
    }

    /// Sends the log of the container until it ends; `None` if the client is gone.
    async fn attach(
        &self,
        output: &mut Channels,
        from_client: &mut SplitStream<UpgradedSocket>,
    ) -> Option<Value> {
        let pod = read::find(&self.server, &self.resource, Freshness::Any).await.ok()?;
        let runtime = Arc::clone(&self.runtime);
        let mut log = FollowedLog::from_now(
            &self.server,
            &self.resource,
            &self.container,
            runtime,
            pod.as_slice(),
        );
        loop {
            tokio::select! {
                biased;
                input = next_input(from_client) => if let ClientInput::Gone = input {
                    return None;
                },
                lines = log.next() => match lines {
                    Some(lines) if self.has_output => output.send(OUTPUT, &lines).await?,
                    Some(_) => {}
                    None => return Some(exit_status(0)),
                },
            }
        }
    }
}

/// What a terminal shows of its input.
fn echo(typed: &str) -> String {
    typed.replace(['\r', '\n'], "\r\n").replace('\u{4}', "")
}

/// The next input of the client; sizes of the terminal are ignored.
async fn next_input(from_client: &mut SplitStream<UpgradedSocket>) -> ClientInput {
    loop {
        let message = match from_client.next().await {
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

/// The channels to the client.
struct Channels {
    to_client: SplitSink<UpgradedSocket, Message>,
}

impl Channels {
    /// Sends on a channel; `None` if the client is gone.
    async fn send(&mut self, channel: u8, data: &[u8]) -> Option<()> {
        let mut message = Vec::with_capacity(data.len() + 1);
        message.push(channel);
        message.extend_from_slice(data);
        self.to_client.send(Message::Binary(message.into())).await.ok()
    }

    /// Sends the final status and closes the connection.
    async fn finish(mut self, status: &Value, from_client: &mut SplitStream<UpgradedSocket>) {
        let text = status.to_string();
        if self.send(STATUS, text.as_bytes()).await.is_none() {
            return;
        }
        websocket::close(&mut self.to_client, from_client).await;
    }
}

/// The status of a command that has ended.
fn exit_status(code: i32) -> Value {
    if code == 0 {
        return json!({ "metadata": {}, "status": "Success" });
    }
    json!({
        "metadata": {},
        "status": "Failure",
        "message": format!("command terminated with non-zero exit code: exit status {code}"),
        "reason": "NonZeroExitCode",
        "details": { "causes": [{ "reason": "ExitCode", "message": code.to_string() }] },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_command_has_its_exit_code_as_a_cause() {
        assert_eq!(exit_status(0)["status"], "Success");
        let failed = exit_status(3);
        assert_eq!(failed["reason"], "NonZeroExitCode");
        assert_eq!(failed["details"]["causes"][0]["message"], "3");
    }

    #[test]
    fn a_terminal_shows_line_breaks_as_they_are_typed() {
        assert_eq!(echo("ls\r"), "ls\r\n");
    }
}
