//! Disruption budgets: maintained by the controller, decremented by evictions.

use headwater_client::{Cached, Snapshot};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde_json::json;

use crate::replicaset::template;
use crate::world::World;

/// Whether the status has this many healthy pods and allowed disruptions.
fn stands(healthy: i32, allowed: i32) -> impl FnMut(Option<&PodDisruptionBudget>) -> bool {
    move |budget| {
        let status = budget.and_then(|budget| budget.status.clone()).unwrap_or_default();
        (status.current_healthy, status.disruptions_allowed) == (Some(healthy), Some(allowed))
    }
}

async fn evict(world: &World, pod: &Pod) -> Result<(), headwater_client::Error> {
    let metadata = json!({"name": pod.name(), "namespace": "default"});
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata});
    world.calls.of::<Pod>().post(&pod.key(), "eviction", &eviction).await
}

#[tokio::test]
async fn no_more_pods_are_evicted_than_a_budget_allows() {
    let world = World::with("deployment,replicaset,disruption").await;
    let budget = json!({
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"minAvailable": "60%", "selector": {"matchLabels": {"app": "web"}}},
    });
    world.create::<PodDisruptionBudget>(budget).await;
    let deployment = json!({
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app": "web"}},
            "template": template(json!({"app": "web"})),
        },
    });
    world.create::<Deployment>(deployment).await;
    let full = world.until("default/web", stands(3, 1)).await.unwrap();
    let status = full.status.as_ref().unwrap();
    assert_eq!((status.desired_healthy, status.expected_pods), (Some(2), Some(3)));
    let condition = &status.conditions.as_ref().unwrap()[0];
    assert_eq!(
        (condition.type_.as_str(), condition.status.as_str()),
        ("DisruptionAllowed", "True")
    );
    // 60 % of two pods: both are needed.
    world.merge::<Deployment>("default/web", json!({"spec": {"replicas": 2}})).await;
    world.until("default/web", stands(2, 0)).await;
    let left = world.until_all(|pods: &Snapshot<Pod>| living(pods, 2)).await;
    let refused = evict(&world, &left[0]).await.unwrap_err();
    assert_eq!(refused.status().unwrap().code, 429);
    // 60 % of five pods: two may be evicted.
    world.merge::<Deployment>("default/web", json!({"spec": {"replicas": 5}})).await;
    world.until("default/web", stands(5, 2)).await;
    let all = world.until_all(|pods: &Snapshot<Pod>| living(pods, 5)).await;
    evict(&world, &all[0]).await.unwrap();
    let gone = all[0].key().to_string();
    world.until(&gone, |pod: Option<&Pod>| pod.is_none()).await;
    world.until("default/web", stands(5, 2)).await;
}

/// Waits for this many pods, none of which is being deleted.
fn living(pods: &Snapshot<Pod>, count: usize) -> Option<Vec<std::sync::Arc<Pod>>> {
    let all: Vec<_> = pods.iter().map(|(_, pod)| std::sync::Arc::clone(pod)).collect();
    let is_living = |pod: &Pod| pod.metadata.deletion_timestamp.is_none();
    (all.len() == count && all.iter().all(|pod| is_living(pod))).then_some(all)
}
