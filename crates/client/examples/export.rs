//! An export that resumes where it stopped: `cargo run -p headwater-client --example export FILE`
//!
//! The file contains the node of each pod and the version of that state. The next run loads it and
//! watches from that version: it needs no list unless the server has compacted the version.

use std::{fs, path::Path};

use futures::FutureExt;
use headwater_client::{Factory, ResourceVersion, error::BoxError, informer::Subscribe, slim};
use k8s_openapi::api::core::v1::Pod;
use kube::core::ObjectMeta;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

/// The fields of a pod that the export needs; the others are not decoded.
#[derive(kube::Resource, Serialize, Deserialize)]
#[resource(inherit = Pod)]
pub struct Item {
    #[serde(deserialize_with = "slim")]
    metadata: ObjectMeta,
    spec: Placement,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Placement {
    node_name: Option<String>,
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let file = std::env::args().nth(1).unwrap_or_else(|| "pods.json".into());
    export(&Factory::connect().await?, Path::new(&file)).await
}

pub async fn export(factory: &Factory, file: &Path) -> Result<(), BoxError> {
    let mut pods = factory.informer::<Item>();
    if let Ok(saved) = fs::read(file) {
        let (version, items): (ResourceVersion, Vec<Item>) = serde_json::from_slice(&saved)?;
        pods = pods.resume_from(items, version);
    }
    let pods = pods.open()?;
    let mut changes = pods.subscribe(Subscribe::named("export"))?;
    let save = async {
        pods.synced_or_hopeless().await?;
        while changes.next().await.is_some() {
            while let Some(Some(_)) = changes.next().now_or_never() {} // write once for many changes
            let view = pods.snapshot(); // one state with its version
            let items: Vec<&Item> = view.iter().map(|(_, item)| &**item).collect();
            let next = file.with_extension("next");
            fs::write(&next, serde_json::to_vec(&(view.resource_version(), items))?)?;
            fs::rename(next, file)?; // the file is always complete
        }
        Ok(())
    };
    let run = async { factory.run(CancellationToken::new()).await.map_err(BoxError::from) };
    tokio::try_join!(run, save).map(drop)
}
