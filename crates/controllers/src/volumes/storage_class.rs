//! The default StorageClass `standard`, whose volumes are simulated.
//!
//! Promise: it is created once, when the controllers start and no class is the default; a deleted
//! one stays deleted until the next start.

use std::sync::Arc;

use headwater_client::controller::{Context, Controller, Failure, Next, Prepared, with_gone};
use headwater_client::{Error, Key, Selector};
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::json;

use crate::cluster::Cluster;

use super::PROVISIONER;

const NAME: &str = "standard";
const IS_DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";

pub(crate) fn prepare(cluster: &Cluster) -> Result<Prepared, Error> {
    let classes = cluster.informer::<StorageClass>()?;
    let keep = |_: Arc<StorageClass>, _: Context| async { Ok::<Next, Failure>(Next::Done) };
    let create = |key: Key, last: Option<Arc<StorageClass>>, cx: Context| async move {
        let all = cx.lister::<StorageClass>()?.list(&Selector::everything())?;
        if key.name() != NAME || last.is_some() || all.iter().any(|class| is_default(class)) {
            return Ok(Next::Done);
        }
        match cx.of::<StorageClass>().create(&class()?).await {
            Err(error) if error.is_exists() => Ok(Next::Done),
            created => created.map(|_| Next::Done).map_err(Failure::from),
        }
    };
    Ok(Controller::new("default-storageclass", &classes)
        .triggered_by(futures::stream::iter([Key::cluster(NAME)]))
        .with(with_gone(keep, create)))
}

fn is_default(class: &StorageClass) -> bool {
    let annotations = class.metadata.annotations.as_ref();
    annotations.and_then(|all| all.get(IS_DEFAULT)).is_some_and(|value| value == "true")
}

fn class() -> Result<StorageClass, Failure> {
    let class = json!({
        "metadata": {"name": NAME, "annotations": {IS_DEFAULT: "true"}},
        "provisioner": PROVISIONER,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "Immediate",
        "allowVolumeExpansion": true,
    });
    serde_json::from_value(class).map_err(Failure::from)
}
