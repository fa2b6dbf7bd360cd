//! Pods as a live table: `cargo run -p headwater-client --example pods_table`
//!
//! Uses the cluster of the default kubeconfig, for example `headwater dev`.

use std::io::{self, Write};

use futures::FutureExt;
use headwater_client::Factory;
use headwater_client::error::BoxError;
use headwater_client::informer::Subscribe;
use k8s_openapi::api::core::v1::Pod;
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let factory = Factory::connect().await?;
    tokio::select! {
        shown = show(&factory, io::stdout()) => shown,
        _ = tokio::signal::ctrl_c() => Ok(()), // dropping `show` stops everything it started
    }
}

/// Draws the table after every change of a pod.
pub async fn show(factory: &Factory, mut out: impl Write) -> Result<(), BoxError> {
    let pods = factory.informer::<Pod>().open()?;
    let mut changes = pods.subscribe(Subscribe::named("table"))?;
    let draw = async {
        pods.synced_or_hopeless().await?; // fails if listing pods is forbidden
        while changes.next().await.is_some() {
            while let Some(Some(_)) = changes.next().now_or_never() {} // draw once for many changes
            writeln!(out, "\x1b[2J\x1b[H{}", row("NAMESPACE", "NAME", "PHASE", "NODE"))?;
            for (key, pod) in pods.snapshot().iter() {
                let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
                let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
                let namespace = key.namespace().unwrap_or_default();
                let (phase, node) = (phase.unwrap_or("-"), node.unwrap_or("-"));
                writeln!(out, "{}", row(namespace, key.name(), phase, node))?;
            }
            out.flush()?;
        }
        Ok(())
    };
    let run = async { factory.run(CancellationToken::new()).await.map_err(BoxError::from) };
    tokio::try_join!(run, draw).map(drop)
}

fn row(namespace: &str, name: &str, phase: &str, node: &str) -> String {
    format!("{namespace:<16} {name:<48} {phase:<10} {node}")
}
