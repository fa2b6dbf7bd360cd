//! The not-ready taint of new nodes.

use headwater_api::Status;
use headwater_json::{Value, json};

use super::{Admit, Attempt};

/// Taints a new node, so that no pod is scheduled on it before it is ready.
///
/// Kubernetes taints every new node, and its node controller removes the taint. A server without
/// controllers cannot, so a node that is created as ready is not tainted.
pub(super) struct NotReadyTaint;

impl Admit for NotReadyTaint {
    fn admit(&self, attempt: &mut Attempt<'_>) -> Result<(), Status> {
        let is_node = attempt.kind.plural == "nodes" && attempt.kind.group.is_empty();
        if is_node && attempt.old.is_none() && !is_ready(&attempt.new["status"]) {
            taint_not_ready(&mut attempt.new["spec"]);
        }
        Ok(())
    }
}

/// Whether a node is ready, or has allocatable resources and no `Ready` condition.
fn is_ready(status: &Value) -> bool {
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let ready = conditions.into_iter().find(|condition| condition["type"] == "Ready");
    match ready {
        Some(condition) => condition["status"] == "True",
        None => status["allocatable"].is_object(),
    }
}

fn taint_not_ready(spec: &mut Value) {
    let taint = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
    let same = |held: &Value| held["key"] == taint["key"] && held["effect"] == taint["effect"];
    if spec.is_null() {
        *spec = json!({});
    }
    match spec.get_mut("taints").and_then(Value::as_array_mut) {
        Some(taints) if taints.iter().any(same) => {}
        Some(taints) => taints.push(taint),
        None => spec["taints"] = json!([taint]),
    }
}
