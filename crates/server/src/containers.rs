//! The containers of pods, as far as somebody runs or simulates them.
//!
//! River: `pods/log`, `pods/exec`, `pods/attach`, `pods/portforward`, `metrics.k8s.io` →
//! **containers** → a runtime that the process provides. Without one these requests get 501, and there are no metrics.
//! Promise: a runtime decides from the pod and the time alone. It never blocks, and it is bounded
//! by the limits that it is given.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use jiff::Timestamp;

/// Answers for the containers of pods.
pub trait ContainerRuntime: fmt::Debug + Send + Sync {
    /// The lines that a container has written in a window of time, oldest first.
    ///
    /// # Errors
    /// The container has not run, or not before.
    fn log(&self, request: &LogRequest<'_>) -> Result<ContainerLog, NoLog>;

    /// What a command in a container replies.
    fn exec(&self, request: &ExecRequest<'_>) -> ExecReply;

    /// What a pod replies to an HTTP request at one of its ports.
    fn http(&self, request: &HttpRequest<'_>) -> HttpReply;

    /// What the containers of these pods use, as far as they run.
    fn usage(&self, pods: &[Bytes], now: Timestamp) -> Vec<PodUsage>;
}

/// What a pod uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodUsage {
    /// The namespace of the pod.
    pub namespace: String,
    /// The name of the pod.
    pub name: String,
    /// The labels of the pod.
    pub labels: BTreeMap<String, String>,
    /// The node of the pod.
    pub node: String,
    /// Each container with what it uses.
    pub containers: Vec<(String, ResourceUsage)>,
}

/// An amount of CPU and memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResourceUsage {
    /// Thousandths of a CPU.
    pub cpu_millis: u64,
    /// Bytes of memory.
    pub memory_bytes: u64,
}

/// A container, in a pod that is given as JSON.
#[derive(Clone, Copy, Debug)]
pub struct ContainerTarget<'a> {
    /// The pod.
    pub pod: &'a [u8],
    /// The name of the container.
    pub container: &'a str,
}

/// Asks for the lines of a container after `after`, up to `until`.
#[derive(Clone, Copy, Debug)]
pub struct LogRequest<'a> {
    /// The container.
    pub target: ContainerTarget<'a>,
    /// The run before the last restart.
    pub previous: bool,
    /// Only later lines.
    pub after: Timestamp,
    /// No later lines.
    pub until: Timestamp,
    /// The last lines of the window; earlier ones are left out.
    pub lines_max: usize,
}

/// The lines of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerLog {
    /// The lines, oldest first.
    pub lines: Vec<LogLine>,
    /// Whether the container may write more.
    pub is_open: bool,
}

/// A line with the time at which it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// The time.
    pub time: Timestamp,
    /// The text, without a line break.
    pub text: String,
}

/// Why there is no log: a sentence for the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoLog(pub String);

/// Asks what a command replies.
#[derive(Clone, Copy, Debug)]
pub struct ExecRequest<'a> {
    /// The container.
    pub target: ContainerTarget<'a>,
    /// The command with its arguments.
    pub command: &'a [String],
    /// What was written to its standard input; a shell is asked for every line.
    pub input: Option<&'a str>,
    /// The time.
    pub now: Timestamp,
}

/// What a command replies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecReply {
    /// To standard output.
    pub output: String,
    /// To standard error.
    pub error: String,
    /// The exit code; `None` while it waits for more input.
    pub exit_code: Option<i32>,
}

/// An HTTP request at a port of a pod.
#[derive(Clone, Copy, Debug)]
pub struct HttpRequest<'a> {
    /// The pod, as JSON.
    pub pod: &'a [u8],
    /// The port.
    pub port: u16,
    /// The method.
    pub method: &'a str,
    /// The path with its query.
    pub path: &'a str,
}

/// The reply to an HTTP request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpReply {
    /// The status code.
    pub status: u16,
    /// Headers with their values.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: String,
}
