//! ReplicaSets: number of pods, adoption and release.

use headwater_client::{Cached, Snapshot};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{Event, Pod, ReplicationController};
use serde_json::{Value, json};

use crate::world::World;

pub(crate) fn template(labels: Value) -> Value {
    json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "v1"}]}})
}

/// A ReplicaSet or Deployment `web` with the label `app=web`.
pub(crate) fn web(replicas: i32) -> Value {
    json!({
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": template(json!({"app": "web"})),
        },
    })
}

/// The names of active pods, once there are this many.
pub(crate) fn exactly(count: usize) -> impl FnMut(&Snapshot<Pod>) -> Option<Vec<String>> {
    move |pods| {
        let living = pods.iter().map(|(_, pod)| pod);
        let living = living.filter(|pod| pod.metadata.deletion_timestamp.is_none());
        let names: Vec<String> = living.map(|pod| pod.name().to_owned()).collect();
        (names.len() == count && pods.len() == count).then_some(names)
    }
}

fn ready(count: i32) -> impl FnMut(Option<&ReplicaSet>) -> bool {
    move |set| {
        let status = set.and_then(|set| set.status.clone()).unwrap_or_default();
        status.replicas == count && status.ready_replicas.unwrap_or(0) == count
    }
}

#[tokio::test]
async fn pods_follow_the_desired_number() {
    let world = World::with("replicaset").await;
    world.create::<ReplicaSet>(web(3)).await;
    world.until("default/web", ready(3)).await;
    world.until_all(exactly(3)).await;
    world.merge::<ReplicaSet>("default/web", json!({"spec": {"replicas": 7}})).await;
    world.until("default/web", ready(7)).await;
    world.merge::<ReplicaSet>("default/web", json!({"spec": {"replicas": 2}})).await;
    world.until("default/web", ready(2)).await;
    let left = world.until_all(exactly(2)).await;
    // A deleted pod is replaced.
    world.calls.of::<Pod>().delete(&format!("default/{}", left[0]).parse().unwrap()).await.unwrap();
    let next = world.until_all(move |pods| exactly(2)(pods).filter(|now| *now != left)).await;
    assert!(next.iter().all(|name| name.starts_with("web-")), "{next:?}");
    // Never more pods than desired: the number of create events matches.
    let created = world
        .until_all(|events: &Snapshot<Event>| {
            let is = |event: &Event| event.reason.as_deref() == Some("SuccessfulCreate");
            let count: i32 =
                events.iter().filter(|(_, e)| is(e)).map(|(_, e)| e.count.unwrap_or(1)).sum();
            (count >= 8).then_some(count)
        })
        .await;
    assert_eq!(created, 3 + 4 + 1);
}

#[tokio::test]
async fn a_replication_controller_keeps_its_pods_running() {
    let world = World::with("replicationcontroller").await;
    let controller = json!({
        "metadata": {"name": "old", "namespace": "default"},
        "spec": {"replicas": 2, "template": template(json!({"app": "old"}))},
    });
    world.create::<ReplicationController>(controller).await;
    let ready = |count: i32| {
        move |controller: Option<&ReplicationController>| {
            let status = controller.and_then(|it| it.status.clone()).unwrap_or_default();
            status.replicas == count && status.available_replicas.unwrap_or(0) == count
        }
    };
    world.until("default/old", ready(2)).await;
    let names = world.until_all(exactly(2)).await;
    world
        .calls
        .of::<Pod>()
        .delete(&format!("default/{}", names[0]).parse().unwrap())
        .await
        .unwrap();
    world.until_all(move |pods| exactly(2)(pods).filter(|now| *now != names)).await;
    world.merge::<ReplicationController>("default/old", json!({"spec": {"replicas": 0}})).await;
    world.until("default/old", ready(0)).await;
}

#[tokio::test]
async fn pods_are_adopted_and_released_by_their_labels() {
    let world = World::start().await;
    let lonely = json!({
        "metadata": {"name": "lonely", "namespace": "default", "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "image": "v1"}]},
    });
    world.create::<Pod>(lonely).await;
    // Started now, so that it knows the pod before it knows the set.
    let running = world.run("replicaset");
    world.create::<ReplicaSet>(web(2)).await;
    let owned = |pod: Option<&Pod>| {
        pod.is_some_and(|pod| {
            pod.metadata.owner_references.iter().flatten().any(|owner| owner.name == "web")
        })
    };
    world.until("default/lonely", owned).await;
    world.until("default/web", ready(2)).await;
    world.until_all(exactly(2)).await;
    world.merge::<Pod>("default/lonely", json!({"metadata": {"labels": {"app": "free"}}})).await;
    world.until("default/lonely", move |pod| pod.is_some() && !owned(pod)).await;
    world.until_all(exactly(3)).await;
    running.stop().await;
}

#[tokio::test]
async fn a_rejected_create_is_reported_by_a_condition_and_an_event() {
    let world = World::with("replicaset").await;
    let mut refused = web(2);
    refused["spec"]["template"]["spec"]["priorityClassName"] = "missing-class".into();
    world.create::<ReplicaSet>(refused).await;
    let failed = |set: Option<&ReplicaSet>| {
        let status = set.and_then(|set| set.status.clone()).unwrap_or_default();
        status.conditions.iter().flatten().any(|condition| condition.type_ == "ReplicaFailure")
    };
    world.until("default/web", failed).await;
    let class = json!({"metadata": {"name": "missing-class"}, "value": 1});
    world.create::<k8s_openapi::api::scheduling::v1::PriorityClass>(class).await;
    world.until("default/web", ready(2)).await;
    world.until("default/web", move |set| !failed(set)).await;
}
