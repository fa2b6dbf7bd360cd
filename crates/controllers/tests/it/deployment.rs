//! Deployments: rollout, scaling, rollback, pause and interruption.

use std::collections::BTreeMap;

use headwater_api::random::Random;
use headwater_client::Snapshot;
use headwater_client::leader::{Lease, Timing};
use headwater_controllers::Options;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus, ReplicaSet};
use k8s_openapi::api::core::v1::{Event, Pod};
use serde_json::{Value, json};

use crate::replicaset::web as deployment;
use crate::world::{PATIENCE, World};

const BOTH: &str = "deployment,replicaset";
const REVISION: &str = "deployment.kubernetes.io/revision";

fn image(image: &str) -> Value {
    json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}})
}

/// The condition that `kubectl rollout status` waits for.
fn rolled_out(deployment: Option<&Deployment>) -> bool {
    let Some(deployment) = deployment else { return false };
    let status = deployment.status.clone().unwrap_or_default();
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let is = |number: Option<i32>| number.unwrap_or(0) == wanted;
    status.observed_generation >= deployment.metadata.generation
        && is(status.updated_replicas)
        && is(status.replicas)
        && is(status.available_replicas)
        && reason(&status, "Progressing").as_deref() == Some("NewReplicaSetAvailable")
}

fn reason(status: &DeploymentStatus, type_: &str) -> Option<String> {
    let mut conditions = status.conditions.iter().flatten();
    conditions.find(|condition| condition.type_ == type_)?.reason.clone()
}

/// The active pods, by image.
fn images(pods: &Snapshot<Pod>) -> BTreeMap<String, usize> {
    let mut images = BTreeMap::new();
    for (_, pod) in pods.iter().filter(|(_, pod)| pod.metadata.deletion_timestamp.is_none()) {
        let image = pod.spec.as_ref().unwrap().containers[0].image.clone().unwrap_or_default();
        *images.entry(image).or_default() += 1;
    }
    images
}

fn only(image: &'static str, count: usize) -> impl FnMut(&Snapshot<Pod>) -> Option<()> {
    move |pods| (images(pods) == [(image.to_owned(), count)].into()).then_some(())
}

fn revisions(sets: &Snapshot<ReplicaSet>) -> BTreeMap<String, String> {
    let each = sets.iter().map(|(_, set)| {
        let image = set.spec.as_ref().unwrap().template.as_ref().unwrap().spec.as_ref().unwrap();
        let image = image.containers[0].image.clone().unwrap_or_default();
        let revision = set.metadata.annotations.as_ref().and_then(|all| all.get(REVISION));
        (image, revision.cloned().unwrap_or_default())
    });
    each.collect()
}

#[tokio::test]
async fn a_deployment_is_rolled_out_scaled_and_rolled_back() {
    let world = World::with(BOTH).await;
    world.create::<Deployment>(deployment(3)).await;
    let first = world.until("default/web", rolled_out).await.unwrap();
    assert_eq!(first.metadata.annotations.as_ref().unwrap()[REVISION], "1");
    world.until_all(only("v1", 3)).await;

    world.merge::<Deployment>("default/web", image("v2")).await;
    let second = world
        .until("default/web", |it: Option<&Deployment>| {
            rolled_out(it) && it.unwrap().metadata.generation == Some(2)
        })
        .await
        .unwrap();
    assert_eq!(second.metadata.annotations.as_ref().unwrap()[REVISION], "2");
    world.until_all(only("v2", 3)).await;

    world.merge::<Deployment>("default/web", json!({"spec": {"replicas": 5}})).await;
    world.until_all(only("v2", 5)).await;

    // As `kubectl rollout undo`: the template of an older set, without its hash.
    world.merge::<Deployment>("default/web", image("v1")).await;
    world.until_all(only("v1", 5)).await;
    let third = world
        .until("default/web", |it: Option<&Deployment>| {
            rolled_out(it) && it.unwrap().metadata.generation == Some(4)
        })
        .await
        .unwrap();
    assert_eq!(third.metadata.annotations.as_ref().unwrap()[REVISION], "3");
    // The first set is used again.
    let expected = [("v1", "3"), ("v2", "2")].map(|(a, b)| (a.to_owned(), b.to_owned()));
    world.until_all(move |sets| (revisions(sets) == expected.clone().into()).then_some(())).await;
}

#[tokio::test]
async fn a_rollout_never_exceeds_the_surge_or_the_unavailable_limit() {
    let world = World::start().await;
    let mut wanted = deployment(4);
    wanted["spec"]["strategy"] = json!({
        "type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1},
    });
    let running = world.run(BOTH);
    world.create::<Deployment>(wanted).await;
    world.until("default/web", rolled_out).await;
    world.merge::<Deployment>("default/web", image("v2")).await;
    world
        .until_all(|pods: &Snapshot<Pod>| {
            let living = pods.iter().filter(|(_, it)| it.metadata.deletion_timestamp.is_none());
            let ready = |pod: &Pod| {
                let status = pod.status.clone().unwrap_or_default();
                status
                    .conditions
                    .iter()
                    .flatten()
                    .any(|it| it.type_ == "Ready" && it.status == "True")
            };
            let living: Vec<&Pod> = living.map(|(_, pod)| &**pod).collect();
            assert!(living.len() <= 5, "{} pods", living.len());
            assert!(living.iter().filter(|pod| ready(pod)).count() >= 3);
            only("v2", 4)(pods)
        })
        .await;
    running.stop().await;
}

#[tokio::test]
async fn recreate_never_runs_two_templates_at_once() {
    let world = World::with(BOTH).await;
    let mut wanted = deployment(3);
    wanted["spec"]["strategy"] = json!({"type": "Recreate"});
    world.create::<Deployment>(wanted).await;
    world.until("default/web", rolled_out).await;
    world.merge::<Deployment>("default/web", image("v2")).await;
    world
        .until_all(|pods: &Snapshot<Pod>| {
            let images: std::collections::BTreeSet<_> = pods
                .iter()
                .map(|(_, pod)| pod.spec.as_ref().unwrap().containers[0].image.clone())
                .collect();
            assert!(images.len() <= 1, "{images:?}");
            only("v2", 3)(pods)
        })
        .await;
}

#[tokio::test]
async fn a_paused_deployment_does_not_roll_out_a_new_template() {
    let world = World::with(BOTH).await;
    world.create::<Deployment>(deployment(2)).await;
    world.until("default/web", rolled_out).await;
    world.merge::<Deployment>("default/web", json!({"spec": {"paused": true}})).await;
    world.merge::<Deployment>("default/web", image("v2")).await;
    world.merge::<Deployment>("default/web", json!({"spec": {"replicas": 4}})).await;
    world.until_all(only("v1", 4)).await;
    let is_paused = |it: Option<&Deployment>| {
        let status = it.and_then(|it| it.status.clone()).unwrap_or_default();
        reason(&status, "Progressing").as_deref() == Some("DeploymentPaused")
    };
    world.until("default/web", is_paused).await;
    world.merge::<Deployment>("default/web", json!({"spec": {"paused": null}})).await;
    world.until_all(only("v2", 4)).await;
    world.until("default/web", rolled_out).await;
}

#[tokio::test]
async fn a_stuck_rollout_times_out_and_keeps_the_old_pods() {
    let world = World::with(BOTH).await;
    let mut wanted = deployment(2);
    wanted["spec"]["progressDeadlineSeconds"] = 1.into();
    wanted["spec"]["strategy"] =
        json!({"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}, "type": "RollingUpdate"});
    world.create::<Deployment>(wanted).await;
    world.until("default/web", rolled_out).await;
    let mut broken = image("v2");
    broken["spec"]["template"]["metadata"] = json!({"annotations": {"test/phase": "Pending"}});
    world.merge::<Deployment>("default/web", broken).await;
    let is_late = |it: Option<&Deployment>| {
        let status = it.and_then(|it| it.status.clone()).unwrap_or_default();
        reason(&status, "Progressing").as_deref() == Some("ProgressDeadlineExceeded")
    };
    let late = world.until("default/web", is_late).await.unwrap();
    assert_eq!(late.status.as_ref().unwrap().available_replicas, Some(2));
}

#[tokio::test]
async fn history_is_kept_up_to_its_limit() {
    let world = World::with(BOTH).await;
    let mut wanted = deployment(1);
    wanted["spec"]["revisionHistoryLimit"] = 1.into();
    world.create::<Deployment>(wanted).await;
    for version in ["v2", "v3", "v4"] {
        world.until("default/web", rolled_out).await;
        world.merge::<Deployment>("default/web", image(version)).await;
        let name: &'static str = version;
        world.until_all(only(name, 1)).await;
    }
    let expected = [("v3", "3"), ("v4", "4")].map(|(a, b)| (a.to_owned(), b.to_owned()));
    world.until_all(move |sets| (revisions(sets) == expected.clone().into()).then_some(())).await;
}

#[tokio::test]
async fn a_rollout_completes_however_often_the_controllers_are_killed() {
    let world = World::start().await;
    let mut wanted = deployment(6);
    wanted["spec"]["strategy"] = json!({
        "type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
    });
    world.create::<Deployment>(wanted).await;
    let random = Random::seeded(7);
    for version in ["v2", "v3", "v4", "v1"] {
        world.merge::<Deployment>("default/web", image(version)).await;
        for _ in 0..25 {
            let running = world.run(BOTH);
            // After a random number of pod changes.
            let after = random.between(1, 7);
            let informer = world.informer::<Pod>();
            let mut changes =
                informer.subscribe(headwater_client::informer::Subscribe::named("chaos")).unwrap();
            let some = async {
                while changes.next().await.is_some_and(|it| it.key().is_some()) {}
                for _ in 0..after {
                    changes.next().await;
                }
            };
            tokio::time::timeout(std::time::Duration::from_millis(100), some).await.ok();
            running.kill().await;
        }
    }
    let running = world.run(BOTH);
    world.until_all(only("v1", 6)).await;
    world.until("default/web", rolled_out).await;
    world
        .until_all(|sets: &Snapshot<ReplicaSet>| {
            let sizes: Vec<i32> =
                sets.iter().map(|(_, set)| set.spec.as_ref().unwrap().replicas.unwrap()).collect();
            let known = revisions(sets);
            assert_eq!(known.len(), sizes.len(), "one set for each template: {known:?}");
            (sizes.iter().sum::<i32>() == 6 && known["v1"].parse::<u32>().unwrap() >= 2)
                .then_some(())
        })
        .await;
    running.stop().await;
}

#[tokio::test]
async fn of_two_copies_only_the_leader_acts() {
    let world = World::start().await;
    let copy = |name: &str| {
        // The leader releases its lease; the duration is so long that no slow machine loses it
        // before.
        let timing = Timing {
            lease: 2 * PATIENCE,
            renew_deadline: PATIENCE,
            retry: std::time::Duration::from_millis(200),
        };
        let lease = Lease::named("controllers").identity(name).timing(timing);
        let mut options = Options::new(BOTH.parse().unwrap());
        options.identity = name.to_owned();
        options.lease = Some(lease);
        world.run_with(options)
    };
    let (first, second) = (copy("one"), copy("two"));
    world.create::<Deployment>(deployment(3)).await;
    world.until("default/web", rolled_out).await;
    // Both copies would have created pods; events show which one did.
    let authors = |events: &Snapshot<Event>| -> (i32, std::collections::BTreeSet<String>) {
        let created =
            events.iter().filter(|(_, event)| event.reason.as_deref() == Some("SuccessfulCreate"));
        let mut count = 0;
        let mut hosts = std::collections::BTreeSet::new();
        for (_, event) in created {
            count += event.count.unwrap_or(1);
            hosts.extend(event.source.as_ref().and_then(|source| source.host.clone()));
        }
        (count, hosts)
    };
    let (count, hosts) =
        world.until_all(move |events| Some(authors(events)).filter(|(count, _)| *count >= 3)).await;
    assert_eq!((count, hosts.len()), (3, 1), "{hosts:?}");
    // The active copy stops; the other takes over and creates only missing pods.
    let (leader, standby) = if hosts.contains("one") { (first, second) } else { (second, first) };
    leader.stop().await;
    world.merge::<Deployment>("default/web", json!({"spec": {"replicas": 5}})).await;
    world.until_all(only("v1", 5)).await;
    let (count, hosts) =
        world.until_all(move |events| Some(authors(events)).filter(|(count, _)| *count >= 5)).await;
    assert_eq!((count, hosts.len()), (5, 2), "{hosts:?}");
    standby.stop().await;
}
