//! Simulated containers for the server: logs, and commands in containers.
//!
//! Promise: it keeps nothing. Every answer is computed from the pod as the server has it.

use std::sync::Arc;

use bytes::Bytes;
use headwater_controllers::nodes::containers;
use headwater_controllers::nodes::load::{self, ContainerLoad, PodLoad};
use headwater_server::containers::{
    ContainerLog, ContainerRuntime, ExecReply, ExecRequest, LogLine, LogRequest, NoLog, PodUsage,
    ResourceUsage,
};
use jiff::Timestamp;

/// The containers of simulated nodes.
#[derive(Debug)]
pub(crate) struct SimulatedContainers;

impl SimulatedContainers {
    pub(crate) fn runtime() -> Arc<dyn ContainerRuntime> {
        Arc::new(SimulatedContainers)
    }
}

impl ContainerRuntime for SimulatedContainers {
    fn log(&self, request: &LogRequest<'_>) -> Result<ContainerLog, NoLog> {
        let LogRequest { target, previous, after, until, lines_max } = *request;
        let window = (after, until);
        let log = containers::log(target.pod, target.container, previous, window, lines_max);
        let (lines, is_open) = log.map_err(NoLog)?;
        let lines = lines.into_iter().map(|(time, text)| LogLine { time, text });
        Ok(ContainerLog { lines: lines.collect(), is_open })
    }

    fn exec(&self, request: &ExecRequest<'_>) -> ExecReply {
        let ExecRequest { target, command, input, now } = *request;
        let reply = containers::exec(target.pod, target.container, command, input, now);
        let containers::CommandReply { output, error, exit_code } = reply;
        ExecReply { output, error, exit_code }
    }

    fn usage(&self, pods: &[Bytes], now: Timestamp) -> Vec<PodUsage> {
        let pods = pods.iter().filter_map(|pod| serde_json::from_slice(pod).ok());
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
