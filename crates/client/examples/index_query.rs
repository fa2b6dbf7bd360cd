//! Index queries: `cargo run -p headwater-client --example index_query`
//!
//! Which node has the most pods, which pods are they, and which of them belong to one app?

use std::io::{self, Write};
use std::time::Duration;

use headwater_client::error::BoxError;
use headwater_client::{Cached, Factory};
use k8s_openapi::api::core::v1::Pod;
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    busiest(&Factory::connect().await?, io::stdout()).await
}

/// Prints the pods of the busiest node.
pub async fn busiest(factory: &Factory, mut out: impl Write) -> Result<(), BoxError> {
    let pods = factory.informer::<Pod>().open()?;
    // An index function returns any number of values. The handle has their type.
    let by_node = pods.index("node", |pod: &Pod| pod.spec.as_ref()?.node_name.clone())?;
    let by_app = pods.index("app", |pod: &Pod| {
        let app = pod.metadata.labels.as_ref()?.get("app")?;
        Some((pod.metadata.namespace.clone()?, app.clone()))
    })?;
    let stop = CancellationToken::new();
    let ask = async {
        let _end = stop.clone().drop_guard(); // stops the informer at the end
        factory.synced_or_hopeless(Duration::from_secs(60)).await?;
        let view = pods.snapshot(); // all queries read one state
        let nodes = by_node.values();
        let Some(node) = nodes.iter().max_by_key(|node| view.by(&by_node, *node).len()) else {
            writeln!(out, "no pod has a node")?;
            return Ok(());
        };
        writeln!(out, "{node} has the most pods, at version {:?}:", view.resource_version())?;
        for pod in view.by(&by_node, node) {
            let label = pod.label("app").unwrap_or_default().into_owned();
            let app = (pod.namespace().unwrap_or_default().to_owned(), label);
            // Both conditions; the cost depends on the smaller bucket.
            let siblings = view.by_all(&[by_node.is(node.clone()), by_app.is(app)]).len();
            writeln!(out, "  {} ({siblings} of its app here)", pod.key())?;
        }
        Ok(())
    };
    let run = async { factory.run(stop.clone()).await.map_err(BoxError::from) };
    tokio::try_join!(run, ask).map(drop)
}
