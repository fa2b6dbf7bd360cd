//! Commands in containers: `exec` and `attach`, over WebSocket and SPDY.
//!
//! River: **remote command** → HTTP upgrade → streams of the client.
//! Promise: nothing is kept of what a client sends but the line that is not complete yet, and that
//! is bounded.

mod streams;

use std::sync::Arc;

use headwater_api::Status;
use headwater_api::options::Freshness;
use headwater_json::{Value, json};
use http::HeaderValue;
use hyper::upgrade::{OnUpgrade, Upgraded};

use crate::answer::body::Response;
use crate::containers::{ContainerRuntime, ContainerTarget, ExecReply, ExecRequest};
use crate::front::identity::Peer;
use crate::request::call::Call;
use crate::request::route::ResourcePath;
use crate::server::Server;
use crate::verbs::kubelet::FollowedLog;
use crate::verbs::{read, spdy, websocket};

pub(crate) use self::streams::WantedStreams;
use self::streams::{ClientInput, CommandOutput, CommandStreams};

/// The protocols that are served, the preferred one first. Over WebSocket the second lacks the message
/// that closes a channel; over SPDY they are the same.
const PROTOCOLS: [&str; 2] = ["v5.channel.k8s.io", "v4.channel.k8s.io"];

/// The maximum length of input that a command has not consumed.
const INPUT_MAX: usize = 1 << 20;

/// A command that a client runs in a container, or its attachment to one.
pub(crate) struct RemoteCommand {
    pub(crate) server: Server,
    pub(crate) resource: ResourcePath,
    pub(crate) runtime: Arc<dyn ContainerRuntime>,
    pub(crate) container: String,
    /// `None` to attach to the container's own process.
    pub(crate) command: Option<Vec<String>>,
    pub(crate) wanted: WantedStreams,
}

/// Responds with 101 and runs the command after the upgrade.
pub(crate) fn start(
    call: &Call,
    upgrade: Option<OnUpgrade>,
    peer: &Peer,
    remote: RemoteCommand,
) -> Result<Response, Status> {
    let is_spdy = spdy::is_asked_for(call);
    let (response, upgrade) = match is_spdy {
        true => spdy::handshake(call, upgrade, &PROTOCOLS)?,
        false => {
            let protocol = websocket::offered(call, &PROTOCOLS)?;
            websocket::handshake(call, upgrade, Some(HeaderValue::from_static(protocol)))?
        }
    };
    let trail = call.trail.clone();
    peer.tasks.spawn(async move {
        if let Ok(upgraded) = upgrade.await {
            remote.run(upgraded, is_spdy).await;
        }
        // The audit trail records the end of the command, not of the upgrade.
        drop(trail);
    });
    Ok(response)
}

impl RemoteCommand {
    async fn run(self, upgraded: Upgraded, is_spdy: bool) {
        let draining = self.server.draining().clone();
        let ended = async {
            let mut client = match is_spdy {
                true => CommandStreams::spdy(upgraded, self.wanted).await?,
                false => CommandStreams::websocket(upgraded).await,
            };
            let status = match &self.command {
                Some(command) => self.exec(command, &mut client).await?,
                None => self.attach(&mut client).await?,
            };
            client.finish(&status).await;
            Some(())
        };
        draining.run_until_cancelled(ended).await;
    }

    /// Runs a command; `None` if the client is gone.
    async fn exec(&self, command: &[String], client: &mut CommandStreams) -> Option<Value> {
        let mut reply = self.reply(command, None).await?;
        let mut waiting = String::new();
        loop {
            self.send(client, &reply).await?;
            if let Some(code) = reply.exit_code {
                return Some(exit_status(code));
            }
            if !self.wanted.input {
                return Some(exit_status(0));
            }
            match client.next_input().await {
                ClientInput::Gone => return None,
                ClientInput::End => return Some(exit_status(0)),
                ClientInput::Text(text) => {
                    if self.wanted.terminal {
                        client.send(CommandOutput::Standard, echo(&text).as_bytes()).await?;
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

    async fn send(&self, client: &mut CommandStreams, reply: &ExecReply) -> Option<()> {
        let WantedStreams { output, error, terminal, .. } = self.wanted;
        let shown = |text: &str| match terminal {
            true => text.replace('\n', "\r\n"),
            false => text.to_owned(),
        };
        if output && !reply.output.is_empty() {
            client.send(CommandOutput::Standard, shown(&reply.output).as_bytes()).await?;
        }
        if !reply.error.is_empty() {
            // A terminal has one output.
            let to = if terminal { CommandOutput::Standard } else { CommandOutput::Error };
            if error || terminal {
                client.send(to, shown(&reply.error).as_bytes()).await?;
            }
        }
        Some(())
    }

    /// Sends the log of the container until it ends; `None` if the client is gone.
    async fn attach(&self, client: &mut CommandStreams) -> Option<Value> {
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
                input = client.next_input() => if let ClientInput::Gone = input {
                    return None;
                },
                lines = log.next() => match lines {
                    Some(lines) if self.wanted.output => {
                        client.send(CommandOutput::Standard, &lines).await?;
                    }
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
