//! StatefulSets: identities, claims, order, rollouts, rollback and interruption.

use std::collections::BTreeMap;

use headwater_client::{Cached, Snapshot};
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use serde_json::{Value, json};

use crate::replicaset::template;
use crate::world::World;

const ONE: &str = "statefulset";

/// A StatefulSet `db` with a claim for each pod.
fn db(replicas: i32, change: Value) -> Value {
    let storage = json!({"requests": {"storage": "1Gi"}});
    let mut spec = json!({
        "replicas": replicas,
        "serviceName": "db",
        "selector": {"matchLabels": {"app": "db"}},
        "template": template(json!({"app": "db"})),
        "volumeClaimTemplates": [{
            "metadata": {"name": "data"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": storage},
        }],
    });
    for (key, value) in change.as_object().unwrap() {
        spec[key] = value.clone();
    }
    json!({"metadata": {"name": "db", "namespace": "default"}, "spec": spec})
}

fn image(image: &str) -> Value {
    json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}})
}

/// The condition that `kubectl rollout status` waits for.
fn rolled_out(set: Option<&StatefulSet>) -> bool {
    let Some(set) = set else { return false };
    let status = set.status.clone().unwrap_or_default();
    let wanted = set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    status.observed_generation >= set.metadata.generation
        && status.ready_replicas.unwrap_or(0) == wanted
        && status.updated_replicas.unwrap_or(0) == wanted
        && status.update_revision == status.current_revision
        && status.replicas == wanted
}

/// The images of the pods by name.
fn images(pods: &Snapshot<Pod>) -> BTreeMap<String, String> {
    let each = pods.iter().map(|(_, pod)| {
        let image = pod.spec.as_ref().unwrap().containers[0].image.clone().unwrap_or_default();
        (pod.name().to_owned(), image)
    });
    each.collect()
}

fn exactly(wanted: &'static [(&str, &str)]) -> impl FnMut(&Snapshot<Pod>) -> Option<()> {
    let own = |(name, image): &(&str, &str)| ((*name).to_owned(), (*image).to_owned());
    move |pods| (images(pods) == wanted.iter().map(own).collect()).then_some(())
}

#[tokio::test]
async fn pods_have_identities_and_claims_and_are_created_in_order() {
    let world = World::with(ONE).await;
    world.create::<StatefulSet>(db(3, json!({}))).await;
    world.until("default/db", rolled_out).await;
    let created = world
        .until_all(|pods: &Snapshot<Pod>| {
            let mut pods: Vec<Pod> = pods.iter().map(|(_, pod)| (**pod).clone()).collect();
            pods.sort_by_key(|pod| pod.metadata.resource_version.clone());
            pods.sort_by_key(|pod| pod.metadata.creation_timestamp.clone().map(|time| time.0));
            (pods.len() == 3).then_some(pods)
        })
        .await;
    for pod in &created {
        let claim =
            pod.spec.as_ref().unwrap().volumes.iter().flatten().find(|it| it.name == "data");
        let claim = claim.unwrap().persistent_volume_claim.as_ref().unwrap();
        assert_eq!(claim.claim_name, format!("data-{}", pod.name()));
        let key = format!("default/{}", claim.claim_name).parse().unwrap();
        let claim = world.calls.of::<PersistentVolumeClaim>().get(&key).await.unwrap();
        assert_eq!(claim.unwrap().metadata.labels.unwrap()["app"], "db");
    }
    // A deleted pod comes back under its name; surplus pods go, their claims stay.
    world.calls.of::<Pod>().delete(&"default/db-1".parse().unwrap()).await.unwrap();
    let uid = created.iter().find(|pod| pod.name() == "db-1").unwrap().metadata.uid.clone();
    world
        .until("default/db-1", |pod: Option<&Pod>| pod.is_some_and(|pod| pod.metadata.uid != uid))
        .await;
    world.merge::<StatefulSet>("default/db", json!({"spec": {"replicas": 1}})).await;
    world.until_all(exactly(&[("db-0", "v1")])).await;
    world
        .until_all(|claims: &Snapshot<PersistentVolumeClaim>| (claims.len() == 3).then_some(()))
        .await;
}

#[tokio::test]
async fn a_partitioned_rollout_is_completed_and_rolled_back() {
    let world = World::with(ONE).await;
    let partition =
        |from: i32| json!({"type": "RollingUpdate", "rollingUpdate": {"partition": from}});
    let parallel = json!({"podManagementPolicy": "Parallel", "updateStrategy": partition(2)});
    world.create::<StatefulSet>(db(3, parallel)).await;
    world.until("default/db", rolled_out).await;
    world.merge::<StatefulSet>("default/db", image("v2")).await;
    world.until_all(exactly(&[("db-0", "v1"), ("db-1", "v1"), ("db-2", "v2")])).await;
    // Below the partition a pod comes back with the current revision.
    world.calls.of::<Pod>().delete(&"default/db-0".parse().unwrap()).await.unwrap();
    world
        .until("default/db", |set: Option<&StatefulSet>| {
            let status = set.and_then(|set| set.status.clone()).unwrap_or_default();
            status.ready_replicas == Some(3) && status.updated_replicas == Some(1)
        })
        .await;
    world.until_all(exactly(&[("db-0", "v1"), ("db-1", "v1"), ("db-2", "v2")])).await;
    world
        .merge::<StatefulSet>("default/db", json!({"spec": {"updateStrategy": partition(0)}}))
        .await;
    world.until_all(exactly(&[("db-0", "v2"), ("db-1", "v2"), ("db-2", "v2")])).await;
    world.until("default/db", rolled_out).await;
    // As `kubectl rollout undo`: the first revision is the newest again.
    world.merge::<StatefulSet>("default/db", image("v1")).await;
    world.until_all(exactly(&[("db-0", "v1"), ("db-1", "v1"), ("db-2", "v1")])).await;
    let numbers = world
        .until_all(|all: &Snapshot<ControllerRevision>| {
            let mut numbers: Vec<i64> = all.iter().map(|(_, it)| it.revision).collect();
            numbers.sort_unstable();
            (numbers.len() == 2 && numbers[1] == 3).then_some(numbers)
        })
        .await;
    assert_eq!(numbers, [2, 3]);
}

#[tokio::test]
async fn a_rollout_completes_although_the_controller_is_killed() {
    let world = World::start().await;
    world.create::<StatefulSet>(db(4, json!({}))).await;
    let seen =
        |count: usize| move |pods: &Snapshot<Pod>| (images(pods).len() >= count).then_some(());
    for count in 1..=4 {
        let running = world.run(ONE);
        world.until_all(seen(count)).await;
        running.kill().await;
    }
    let running = world.run(ONE);
    world.until("default/db", rolled_out).await;
    world.merge::<StatefulSet>("default/db", image("v2")).await;
    running.kill().await;
    let running = world.run(ONE);
    world
        .until("default/db", |set: Option<&StatefulSet>| {
            rolled_out(set) && set.unwrap().metadata.generation == Some(2)
        })
        .await;
    world
        .until_all(exactly(&[("db-0", "v2"), ("db-1", "v2"), ("db-2", "v2"), ("db-3", "v2")]))
        .await;
    running.stop().await;
}

#[tokio::test]
async fn claims_are_deleted_as_the_retention_policy_says() {
    let world = World::with("statefulset,garbage,persistentvolumeclaim-protection").await;
    let policy = json!({"whenDeleted": "Delete", "whenScaled": "Delete"});
    world
        .create::<StatefulSet>(db(2, json!({"persistentVolumeClaimRetentionPolicy": policy})))
        .await;
    world.until("default/db", rolled_out).await;
    let claims = |names: &'static [&str]| {
        move |claims: &Snapshot<PersistentVolumeClaim>| {
            let mut found: Vec<&str> = claims.iter().map(|(_, claim)| claim.name()).collect();
            found.sort_unstable();
            (found == names).then_some(())
        }
    };
    world.until_all(claims(&["data-db-0", "data-db-1"])).await;
    world.merge::<StatefulSet>("default/db", json!({"spec": {"replicas": 1}})).await;
    world.until_all(claims(&["data-db-0"])).await;
    world.calls.of::<StatefulSet>().delete(&"default/db".parse().unwrap()).await.unwrap();
    world.until_all(claims(&[])).await;
}
