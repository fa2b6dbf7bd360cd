//! Simulated containers for the server: logs, commands, HTTP replies and metrics.
//!
//! Promise: it keeps nothing. Every answer is computed from the pod as the server has it.

use std::sync::Arc;

use bytes::Bytes;
use headwater_controllers::nodes::load::{self, ContainerLoad, PodLoad};
use headwater_controllers::nodes::replies::{self, SimulatedPage};
use headwater_controllers::nodes::{Rules, containers};
use headwater_controllers::pod::Pod;
use headwater_server::containers::{
    ContainerLog, ContainerRuntime, ExecReply, ExecRequest, HttpReply, HttpRequest, LogLine,
    LogRequest, NoLog, PodUsage, ResourceUsage,
};
use jiff::Timestamp;

/// The containers of simulated nodes.
#[derive(Debug)]
pub(crate) struct SimulatedContainers {
    rules: Rules,
}

impl SimulatedContainers {
    pub(crate) fn runtime(rules: Rules) -> Arc<dyn ContainerRuntime> {
        Arc::new(SimulatedContainers { rules })
    }
}

impl ContainerRuntime for SimulatedContainers {
    fn log(&self, request: &LogRequest<'_>) -> Result<ContainerLog, NoLog> {
        let LogRequest { target, previous, after, until, lines_max } = *request;
        let window = (after, until);
        let pod = self.rules.annotated_json(target.pod).map_err(NoLog)?;
        let log = containers::log(&pod, target.container, previous, window, lines_max);
        let (lines, is_open) = log.map_err(NoLog)?;
        let lines = lines.into_iter().map(|(time, text)| LogLine { time, text });
        Ok(ContainerLog { lines: lines.collect(), is_open })
    }

    fn exec(&self, request: &ExecRequest<'_>) -> ExecReply {
        let ExecRequest { target, command, input, now } = *request;
        let pod = self.rules.annotated_json(target.pod).unwrap_or_default();
        let reply = containers::exec(&pod, target.container, command, input, now);
        let containers::CommandReply { output, error, exit_code } = reply;
        ExecReply { output, error, exit_code }
    }

    fn http(&self, request: &HttpRequest<'_>) -> HttpReply {
        let HttpRequest { pod, port, method, path } = *request;
        let pod = self.rules.annotated_json(pod).unwrap_or_default();
        let SimulatedPage { status, headers, body } = replies::http(&pod, port, method, path);
        HttpReply { status, headers, body }
    }

    fn usage(&self, pods: &[Bytes], now: Timestamp) -> Vec<PodUsage> {
        let pods = pods.iter().filter_map(|pod| serde_json::from_slice(pod).ok());
        let pods = pods.map(|pod: Pod| self.rules.annotated(&pod).into_owned());
        let usage = |PodLoad { pod, containers }: PodLoad| PodUsage {
            namespace: pod.metadata.namespace.unwrap_or_default(),
            name: pod.metadata.name.unwrap_or_default(),
            labels: pod.metadata.labels.unwrap_or_default(),
            node: pod.spec.node_name.unwrap_or_default(),
            containers: containers.into_iter().map(|(name, load)| (name, amount(load))).collect(),
        };
        load::loads(pods.collect(), now).into_iter().map(usage).collect()
    }
}

fn amount(load: ContainerLoad) -> ResourceUsage {
    let ContainerLoad { cpu_millis, memory_bytes } = load;
    ResourceUsage { cpu_millis, memory_bytes }
}
