//! The topology labels of a node, on the pods that are bound to it.
//!
//! River: defaults or binding → **topology** → store. Pods learn their zone and region without the right
//! to read nodes.

use headwater_api::Status;
use headwater_cache::Cache;
use headwater_json::{Value, json};

use super::pods::is_new_pod;
use super::{Admit, Attempt};
use crate::object::{metadata, tree};

const LABELS: [&str; 2] = ["topology.kubernetes.io/zone", "topology.kubernetes.io/region"];

/// Labels a new pod that names its node.
pub(super) struct TopologyLabels;

impl Admit for TopologyLabels {
    fn admit(&self, attempt: &mut Attempt<'_>) -> Result<(), Status> {
        if is_new_pod(attempt) {
            label(attempt.cache, attempt.new)?;
        }
        Ok(())
    }
}

/// Copies the topology labels of its node to a pod, if it has one that exists.
pub(crate) fn label(cache: &Cache, pod: &mut Value) -> Result<(), Status> {
    let Some(name) = pod["spec"]["nodeName"].as_str().filter(|name| !name.is_empty()) else {
        return Ok(());
    };
    let nodes = cache.snapshot(&cache.resource("/registry/core/nodes/"));
    let Some(node) = nodes.get(name) else { return Ok(()) };
    // Most nodes have none and are not parsed: stored bytes are canonical.
    let says =
        |label: &&str| std::str::from_utf8(node.as_slice()).is_ok_and(|text| text.contains(*label));
    if !LABELS.iter().any(says) {
        return Ok(());
    }
    let node = tree(node.as_slice())?;
    for label in LABELS {
        let Some(value) = node["metadata"]["labels"][label].as_str() else { continue };
        let labels = metadata(pod).entry("labels").or_insert_with(|| json!({}));
        if labels.is_null() {
            *labels = json!({});
        }
        if let Some(labels) = labels.as_object_mut() {
            labels.insert(label.into(), value.into());
        }
    }
    Ok(())
}
