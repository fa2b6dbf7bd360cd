//! Subresources that need a kubelet: logs, commands and ports of containers.
//!
//! River: route → **kubelet** → the process's container runtime, if it has one. Errors that need no
//! node are those of the reference: no such pod, no such container, not scheduled yet.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use headwater_api::Status;
use headwater_api::options::Freshness;
use headwater_json::Value;
use http::{Method, StatusCode};
use hyper::upgrade::OnUpgrade;
use jiff::{SignedDuration, Timestamp};

use crate::answer::body::{self, Response};
use crate::answer::status;
use crate::containers::{ContainerRuntime, ContainerTarget, ExecRequest, LogLine, LogRequest};
use crate::front::identity::Peer;
use crate::front::listen;
use crate::object::{meta, tree};
use crate::request::authorize::{AccessRequest, Attributes};
use crate::request::call::Call;
use crate::request::route::{ResourcePath, Verb};
use crate::server::Server;
use crate::verbs::port_forward::{self, PortForward};
use crate::verbs::read;
use crate::verbs::remote_command::{self, RemoteCommand, WantedStreams};

/// The lines of a log that one answer holds at most, and the longest `tailLines`.
const LINES_MAX: usize = 100_000;

/// How often a followed log is looked at.
const FOLLOW_EVERY: Duration = Duration::from_millis(500);

/// Whether a container runtime serves a subresource.
pub(crate) fn is_stream(resource: &ResourcePath) -> bool {
    resource.kind.plural == "pods"
        && resource.kind.group.is_empty()
        && matches!(resource.subresource.as_str(), "log" | "exec" | "attach" | "portforward")
}

/// Responds with the log of a container, or connects to a command in it.
pub(crate) async fn stream(
    server: &Server,
    call: &Call,
    resource: &ResourcePath,
    upgrade: Option<OnUpgrade>,
    peer: &Peer,
) -> Result<Response, Status> {
    let what = resource.subresource.as_str();
    if what != "log" && call.method == Method::GET {
        // A WebSocket is opened by GET. Who may read may not run commands by it.
        let asked = AccessRequest { version: &resource.kind.version, ..creation(resource) };
        server.access().authorize(&call.identity, &asked).await?;
    }
    let object = read::find(server, resource, Freshness::Latest).await?;
    let pod = tree(object.as_slice())?;
    let mut container = String::new();
    if what != "portforward" {
        container = container_of(call.query.text("container"), &pod)?;
    }
    let is_placed = pod["spec"]["nodeName"].as_str().is_some_and(|node| !node.is_empty());
    if !is_placed {
        // A pod that never ran has an empty log.
        return match what {
            "log" => {
                Ok(body::answer(StatusCode::NO_CONTENT, "text/plain", body::full(Bytes::new())))
            }
            _ => {
                let why = format!("pod {} does not have a host assigned", meta(&pod, "name"));
                Err(status::bad_request(why))
            }
        };
    }
    let Some(runtime) = server.containers().cloned() else { return Err(not_served(what)) };
    match what {
        "log" => log(server, call, resource, object.as_slice(), &container, runtime),
        "exec" | "attach" => {
            let command = match what {
                "exec" => Some(call.query.all("command").map(str::to_owned).collect::<Vec<_>>()),
                _ if call.query.is_set("stdin") => {
                    let reads_input = |command: &Vec<String>| {
                        let target =
                            ContainerTarget { pod: object.as_slice(), container: &container };
                        let (input, now) = (None, server.now());
                        let reply = runtime.exec(&ExecRequest { target, command, input, now });
                        reply.exit_code.is_none()
                    };
                    interactive_command(&pod, &container).filter(reads_input)
                }
                _ => None,
            };
            if command.as_ref().is_some_and(Vec::is_empty) {
                return Err(status::bad_request(
                    "you must specify at least 1 command for the container",
                ));
            }
            let remote = RemoteCommand {
                server: server.clone(),
                resource: resource.clone(),
                runtime,
                container,
                command,
                wanted: WantedStreams {
                    input: call.query.is_set("stdin"),
                    output: call.query.is_set("stdout"),
                    error: call.query.is_set("stderr"),
                    terminal: call.query.is_set("tty"),
                },
            };
            remote_command::start(call, upgrade, peer, remote)
        }
        _ => {
            let forward =
                PortForward { server: server.clone(), resource: resource.clone(), runtime };
            port_forward::start(call, upgrade, peer, forward)
        }
    }
}

/// The question whether a user may create a subresource.
fn creation(resource: &ResourcePath) -> AccessRequest<'_> {
    AccessRequest::about(Attributes::Resource {
        verb: Verb::Create.as_str(),
        group: &resource.kind.group,
        resource: &resource.kind.plural,
        subresource: &resource.subresource,
        namespace: &resource.namespace,
        name: &resource.name,
    })
}

/// What a client asks of a log.
struct LogOptions {
    follow: bool,
    previous: bool,
    timestamps: bool,
    tail: Option<usize>,
    since: Timestamp,
    limit_bytes: Option<usize>,
}

impl LogOptions {
    fn of(call: &Call, now: Timestamp) -> Result<LogOptions, Status> {
        let number = |name: &str| -> Result<Option<u64>, Status> {
            match call.query.text(name) {
                "" => Ok(None),
                text => text.parse().map(Some).map_err(|_| {
                    status::bad_request(format!("{name}: {text:?} must be a number, not negative"))
                }),
            }
        };
        let tail = number("tailLines")?.map(|lines| usize::try_from(lines).unwrap_or(LINES_MAX));
        let since_time = match call.query.text("sinceTime") {
            "" => None,
            text => Some(
                text.parse::<Timestamp>()
                    .map_err(|error| status::bad_request(format!("sinceTime: {error}")))?,
            ),
        };
        let ago = number("sinceSeconds")?.map(|seconds| {
            let ago = SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX));
            now.checked_sub(ago).unwrap_or(Timestamp::MIN)
        });
        if since_time.is_some() && ago.is_some() {
            let why = "at most one of `sinceTime` or `sinceSeconds` may be specified";
            return Err(status::bad_request(why));
        }
        let limit = number("limitBytes")?;
        Ok(LogOptions {
            follow: call.query.is_set("follow"),
            previous: call.query.is_set("previous"),
            timestamps: call.query.is_set("timestamps"),
            tail: tail.map(|lines| lines.min(LINES_MAX)),
            since: since_time.or(ago).unwrap_or(Timestamp::MIN),
            limit_bytes: limit.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX)),
        })
    }

    fn print(&self, lines: &[LogLine]) -> Vec<u8> {
        let mut text = Vec::new();
        for line in lines {
            if self.timestamps {
                let time = line.time.strftime("%Y-%m-%dT%H:%M:%S.%9fZ");
                text.extend_from_slice(format!("{time} ").as_bytes());
            }
            text.extend_from_slice(line.text.as_bytes());
            text.push(b'\n');
        }
        text
    }
}

fn log(
    server: &Server,
    call: &Call,
    resource: &ResourcePath,
    pod: &[u8],
    container: &str,
    runtime: Arc<dyn ContainerRuntime>,
) -> Result<Response, Status> {
    let now = server.now();
    let options = LogOptions::of(call, now)?;
    let first = runtime.log(&LogRequest {
        target: ContainerTarget { pod, container },
        previous: options.previous,
        after: options.since,
        until: now,
        lines_max: options.tail.unwrap_or(LINES_MAX),
    });
    let first = first.map_err(|why| status::bad_request(why.0))?;
    let mut text = options.print(&first.lines);
    if let Some(limit) = options.limit_bytes {
        text.truncate(limit);
    }
    if !options.follow || !first.is_open || options.previous {
        return Ok(body::text(StatusCode::OK, Bytes::from(text)));
    }
    let followed = FollowedLog {
        server: server.clone(),
        resource: resource.clone(),
        container: container.to_owned(),
        runtime,
        options,
        uid: uid_of(pod),
        read: now,
    };
    let begin = (Some(Bytes::from(text)), followed);
    let chunks = stream::unfold(begin, |(chunk, mut followed)| async move {
        match chunk {
            Some(chunk) => Some((chunk, (None, followed))),
            None => followed.next().await.map(|chunk| (chunk, (None, followed))),
        }
    });
    let mut response = body::answer(StatusCode::OK, "text/plain", body::stream(chunks));
    response.extensions_mut().insert(listen::LongRunning);
    Ok(response)
}

fn uid_of(pod: &[u8]) -> String {
    tree(pod).map_or_else(|_| String::new(), |pod| meta(&pod, "uid").to_owned())
}

/// A log whose new lines are sent as they are written.
pub(crate) struct FollowedLog {
    server: Server,
    resource: ResourcePath,
    container: String,
    runtime: Arc<dyn ContainerRuntime>,
    options: LogOptions,
    uid: String,
    read: Timestamp,
}

impl FollowedLog {
    /// The log of a container from now on.
    pub(crate) fn from_now(
        server: &Server,
        resource: &ResourcePath,
        container: &str,
        runtime: Arc<dyn ContainerRuntime>,
        pod: &[u8],
    ) -> FollowedLog {
        let options = LogOptions {
            follow: true,
            previous: false,
            timestamps: false,
            tail: None,
            since: Timestamp::MIN,
            limit_bytes: None,
        };
        FollowedLog {
            server: server.clone(),
            resource: resource.clone(),
            container: container.to_owned(),
            runtime,
            options,
            uid: uid_of(pod),
            read: server.now(),
        }
    }

    /// The next lines; `None` once the container has ended, or its pod is gone.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        loop {
            let draining = self.server.draining().clone();
            draining.run_until_cancelled(tokio::time::sleep(FOLLOW_EVERY)).await?;
            let pod = read::find(&self.server, &self.resource, Freshness::Any).await.ok()?;
            if uid_of(pod.as_slice()) != self.uid {
                return None;
            }
            let now = self.server.now();
            let log = self.runtime.log(&LogRequest {
                target: ContainerTarget { pod: pod.as_slice(), container: &self.container },
                previous: false,
                after: self.read,
                until: now,
                lines_max: LINES_MAX,
            });
            let log = log.ok()?;
            self.read = now;
            if !log.lines.is_empty() {
                return Some(Bytes::from(self.options.print(&log.lines)));
            }
            if !log.is_open {
                return None;
            }
        }
    }
}

/// The container that is asked for; without one, the only one, or the default of the annotation.
fn container_of(asked: &str, pod: &Value) -> Result<String, Status> {
    let name = meta(pod, "name");
    let names = containers(pod);
    let first = pod["spec"]["containers"].as_array().filter(|all| all.len() == 1);
    match (asked, first) {
        ("", Some(only)) => Ok(only[0]["name"].as_str().unwrap_or_default().to_owned()),
        ("", None) => Err(status::bad_request(format!(
            "a container name must be specified for pod {name}, choose one of: [{}]",
            names.join(" ")
        ))),
        (asked, _) if names.contains(&asked) => Ok(asked.to_owned()),
        (asked, _) => {
            Err(status::bad_request(format!("container {asked} is not valid for pod {name}")))
        }
    }
}

/// The command of a container that reads its standard input: whoever attaches with an input talks to
/// it, as with `kubectl run -it`.
fn interactive_command(pod: &Value, name: &str) -> Option<Vec<String>> {
    let mut all = specs(pod);
    let container = all.find(|one| one["name"] == name).filter(|one| one["stdin"] == true)?;
    let words = ["command", "args"].iter().flat_map(|list| container[*list].as_array());
    let words = words.flatten().filter_map(Value::as_str).map(str::to_owned);
    let command: Vec<String> = words.collect();
    Some(if command.is_empty() { vec!["sh".to_owned()] } else { command })
}

/// The names of all containers, in the order in which the reference lists them.
fn containers(pod: &Value) -> Vec<&str> {
    specs(pod).filter_map(|container| container["name"].as_str()).collect()
}

fn specs(pod: &Value) -> impl Iterator<Item = &Value> {
    ["initContainers", "containers", "ephemeralContainers"]
        .iter()
        .flat_map(move |list| pod["spec"][*list].as_array().into_iter().flatten())
}

/// The error of a request that needs a kubelet or a proxy to one.
pub(crate) fn not_served(what: &str) -> Status {
    status::not_implemented(format!("{what} needs a running container; this server runs none"))
}
