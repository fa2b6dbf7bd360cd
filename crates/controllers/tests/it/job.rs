//! Jobs: completion, failure, suspension, expiry; every pod is counted once.

use headwater_client::Snapshot;
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::world::World;

fn job(spec: Value) -> Value {
    let mut job = json!({
        "metadata": {"name": "sum", "namespace": "default"},
        "spec": {"template": {"spec": {
            "restartPolicy": "Never", "containers": [{"name": "c", "image": "v1"}],
        }}},
    });
    for (key, value) in spec.as_object().unwrap() {
        job["spec"][key] = value.clone();
    }
    job
}

fn becoming(mut job: Value, phase: &str) -> Value {
    job["spec"]["template"]["metadata"] = json!({"annotations": {"test/phase": phase}});
    job
}

fn status(job: Option<&Job>) -> JobStatus {
    job.and_then(|job| job.status.clone()).unwrap_or_default()
}

fn is(type_: &'static str) -> impl FnMut(Option<&Job>) -> bool {
    move |job| {
        let conditions = status(job).conditions.unwrap_or_default();
        conditions.iter().any(|it| it.type_ == type_ && it.status == "True")
    }
}

fn no_finalizers(pods: &Snapshot<Pod>) -> Option<usize> {
    let free = |pod: &Pod| pod.metadata.finalizers.as_ref().is_none_or(Vec::is_empty);
    pods.iter().all(|(_, pod)| free(pod)).then(|| pods.len())
}

#[tokio::test]
async fn a_job_completes_with_the_desired_number_of_successes() {
    let world = World::with("job").await;
    world.create::<Job>(job(json!({"completions": 7, "parallelism": 3}))).await;
    let done = world.until("default/sum", is("Complete")).await.unwrap();
    let status = status(Some(&done));
    assert_eq!((status.succeeded, status.failed, status.active), (Some(7), None, None));
    assert!(status.completion_time.is_some() && status.start_time.is_some());
    assert_eq!(world.until_all(no_finalizers).await, 7);
}

#[tokio::test]
async fn every_index_succeeds_once() {
    let world = World::with("job").await;
    let indexed = json!({"completions": 5, "parallelism": 2, "completionMode": "Indexed"});
    world.create::<Job>(job(indexed)).await;
    let done = world.until("default/sum", is("Complete")).await.unwrap();
    assert_eq!(status(Some(&done)).completed_indexes.as_deref(), Some("0-4"));
    assert_eq!(world.until_all(no_finalizers).await, 5);
}

#[tokio::test]
async fn a_job_with_too_many_failures_fails_and_deletes_its_pods() {
    let world = World::with("job").await;
    let failing =
        becoming(job(json!({"backoffLimit": 0, "completions": 2, "parallelism": 2})), "Failed");
    world.create::<Job>(failing).await;
    let failed = world.until("default/sum", is("Failed")).await.unwrap();
    let conditions = status(Some(&failed)).conditions.unwrap();
    let end = conditions.iter().find(|it| it.type_ == "Failed").unwrap();
    assert_eq!(end.reason.as_deref(), Some("BackoffLimitExceeded"));
    assert!(status(Some(&failed)).failed >= Some(1));
    world.until_all(no_finalizers).await;
}

#[tokio::test]
async fn a_job_fails_after_its_deadline() {
    let world = World::with("job").await;
    let late = becoming(job(json!({"activeDeadlineSeconds": 1})), "Running");
    world.create::<Job>(late).await;
    let failed = world.until("default/sum", is("Failed")).await.unwrap();
    let conditions = status(Some(&failed)).conditions.unwrap();
    assert!(conditions.iter().any(|it| it.reason.as_deref() == Some("DeadlineExceeded")));
    world.until_all(|pods: &Snapshot<Pod>| pods.is_empty().then_some(())).await;
}

#[tokio::test]
async fn a_suspended_job_has_no_pods_and_resumes_later() {
    let world = World::with("job").await;
    let running = becoming(job(json!({"parallelism": 2})), "Running");
    world.create::<Job>(running).await;
    world.until("default/sum", |it: Option<&Job>| status(it).ready == Some(2)).await;
    world.merge::<Job>("default/sum", json!({"spec": {"suspend": true}})).await;
    world.until_all(|pods: &Snapshot<Pod>| pods.is_empty().then_some(())).await;
    let rest = world.until("default/sum", is("Suspended")).await.unwrap();
    assert_eq!(status(Some(&rest)).failed, None, "suspended is not failed");
    world.merge::<Job>("default/sum", json!({"spec": {"suspend": false}})).await;
    world.until("default/sum", |it: Option<&Job>| status(it).ready == Some(2)).await;
}

#[tokio::test]
async fn a_finished_job_expires_and_a_deleted_one_releases_its_pods() {
    let world = World::with("job,garbage").await;
    world.create::<Job>(job(json!({"ttlSecondsAfterFinished": 0}))).await;
    world.until("default/sum", |it: Option<&Job>| it.is_none()).await;
    world.until_all(|pods: &Snapshot<Pod>| pods.is_empty().then_some(())).await;
    world.create::<Job>(becoming(job(json!({})), "Running")).await;
    world.until("default/sum", |it: Option<&Job>| status(it).ready == Some(1)).await;
    let options = json!({"propagationPolicy": "Background"});
    world.calls.of::<Job>().delete_with(&"default/sum".parse().unwrap(), &options).await.unwrap();
    world.until_all(|pods: &Snapshot<Pod>| pods.is_empty().then_some(())).await;
}

#[tokio::test]
async fn every_pod_is_counted_once_however_often_the_controller_is_killed() {
    let world = World::start().await;
    world.create::<Job>(job(json!({"completions": 30, "parallelism": 4}))).await;
    let mut finished = is("Complete");
    let jobs = world.informer::<Job>();
    let pods = world.informer::<Pod>();
    jobs.synced().await.unwrap();
    let key = "default/sum".parse().unwrap();
    while !finished(jobs.snapshot().get(&key).cloned().as_deref()) {
        let running = world.run("job");
        let seen = pods.snapshot().len();
        let more = |all: &Snapshot<Pod>| (all.len() > seen + 1).then_some(());
        let changed = world.until_all(more);
        tokio::select! {
            () = changed => {}
            _ = jobs.wait_for(&key, &mut finished, crate::world::PATIENCE) => {}
        }
        running.kill().await;
    }
    let status = status(jobs.snapshot().get(&key).cloned().as_deref());
    // A kill may hide a created pod from the next start, so more may be created; none counts twice.
    let counted = usize::try_from(status.succeeded.unwrap()).unwrap();
    assert!(counted >= 30);
    let succeeded =
        |pod: &Pod| pod.status.as_ref().and_then(|it| it.phase.as_deref()) == Some("Succeeded");
    let all = |pods: &Snapshot<Pod>| pods.iter().filter(|(_, pod)| succeeded(pod)).count();
    world.until_all(move |pods: &Snapshot<Pod>| (all(pods) == counted).then_some(())).await;
}
