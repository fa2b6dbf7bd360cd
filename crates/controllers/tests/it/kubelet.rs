//! A minimal kubelet: binds every pod to one node, reports it ready, and deletes it when asked to.
//!
//! A pod with `restartPolicy: Never` succeeds at once. The annotation `test/phase` sets another
//! phase: `Pending` (bound, never running), `Running`, `Failed`, `Succeeded`.

use std::sync::Arc;

use headwater_client::controller::{Context, Controller, Failure, Next};
use headwater_client::{Cached, Factory};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use tokio_util::sync::CancellationToken;

pub(crate) const NODE: &str = "node-a";

pub(crate) async fn run(factory: Factory, stop: CancellationToken) {
    let pods = factory.informer::<Pod>().open().unwrap();
    let kubelet = Controller::new("kubelet", &pods).workers(4);
    Box::pin(kubelet.run(&factory, stop.cancelled_owned(), reconcile)).await.unwrap();
}

async fn reconcile(pod: Arc<Pod>, cx: Context) -> Result<Next, Failure> {
    let (key, pods) = (pod.key(), cx.of::<Pod>());
    let done = if pod.metadata.deletion_timestamp.is_some() {
        let options = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid()}});
        pods.delete_with(&key, &options).await.map(drop)
    } else if pod.spec.as_ref().is_none_or(|spec| spec.node_name.is_none()) {
        let target = json!({"kind": "Node", "apiVersion": "v1", "name": NODE});
        let metadata = json!({"name": key.name(), "namespace": key.namespace()});
        let binding = json!({
            "kind": "Binding", "apiVersion": "v1", "metadata": metadata, "target": target,
        });
        pods.post(&key, "binding", &binding).await
    } else {
        let phase = wanted_phase(&pod);
        if pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some(phase) {
            return Ok(Next::Done);
        }
        let ready = if phase == "Running" { "True" } else { "False" };
        let address = format!("10.0.{}.{}", key.as_str().len() % 250, crc(pod.uid()) % 250 + 1);
        let status = json!({"status": {
            "phase": phase,
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": [
                {"type": "Ready", "status": ready, "lastTransitionTime": Timestamp::now()},
            ],
        }});
        pods.merge_status(&key, &status).await.map(drop)
    };
    match done {
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(Next::Done),
        done => {
            done?;
            Ok(Next::Done)
        }
    }
}

fn wanted_phase(pod: &Pod) -> &str {
    let requested = pod.metadata.annotations.as_ref().and_then(|all| all.get("test/phase"));
    let policy = pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref());
    match (requested, policy) {
        (Some(requested), _) => requested,
        (None, Some("Never")) => "Succeeded",
        _ => "Running",
    }
}

fn crc(text: &str) -> usize {
    text.bytes().fold(7, |sum: usize, byte| sum.wrapping_mul(31).wrapping_add(byte.into()))
}
