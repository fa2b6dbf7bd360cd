//! Jobs: pods that run to their end, so many times.
//!
//! River: Jobs and pods → **job** → pods and a status.
//! Promise: each pod counts once, by its finalizer, whatever is killed in between (`plan`); a pod of
//! a Job that is gone is let go.

mod indexes;
mod policy;
mod plan;

use std::collections::BTreeMap;
use std::sync::Arc;

use headwater_api::Clock;
use headwater_client::controller::{Context, Controller, Failure, Next, Prepared, Reconcile};
use headwater_client::indexer::Index;
use headwater_client::{Cached, Error, Key, Selector};
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::api::core::v1 as core;
use serde_json::{Value, json};

use crate::burst::{BURST_MAX, namespace_ends, slow_start};
use crate::cluster::{Cluster, Pods};
use crate::difference::difference;
use crate::ownership::{Claims, after, controller_of, selector};
use crate::pod::Pod;
use crate::template::pod_of;

use self::plan::{COMPLETION_INDEX, INDEX_FAILURES, Plan, TRACKING, finished, is_tracked, plan};

const WORKERS: usize = 4;
/// Another controller was asked to look after the Job.
const OURSELVES: &str = "kubernetes.io/job-controller";

pub(crate) fn prepare(cluster: &Cluster) -> Result<Prepared, Error> {
    let (jobs, pods) = (cluster.informer::<Job>()?, cluster.pods()?);
    let by_job = pods.informer.index("job", |pod: &Pod| job_of(pod))?;
    let runner = Jobs { pods: pods.clone(), by_job, clock: Arc::clone(cluster.clock()) };
    Ok(Controller::new("job", &jobs)
        .watches(&pods.informer, |pod: &Pod| job_of(pod))
        .workers(WORKERS)
        .with(runner))
}

/// The Job that controls a pod, by name: it may be gone.
fn job_of(pod: &Pod) -> Option<Key> {
    let owner = controller_of(&pod.metadata).filter(|owner| owner.kind == "Job")?;
    Some(Key::namespaced(pod.namespace().unwrap_or_default(), &owner.name))
}

struct Jobs {
    pods: Pods,
    by_job: Index<Pod, Key>,
    clock: Arc<dyn Clock>,
}

impl Reconcile<Job> for Jobs {
    async fn reconcile(&self, job: Arc<Job>, cx: Context) -> Result<Next, Failure> {
        let manager = job.spec.as_ref().and_then(|spec| spec.managed_by.as_deref());
        if manager.is_some_and(|manager| manager != OURSELVES) {
            return Ok(Next::Done);
        }
        let selector = selector(job.spec.as_ref().and_then(|spec| spec.selector.as_ref()));
        let selector = selector.map_err(Failure::terminal)?;
        let pods = match self.claim(&job, &selector, &cx).await {
            Ok(pods) => pods,
            Err(error) => return after(error),
        };
        let plan = plan(&job, &pods, self.clock.now());
        if plan.expired {
            let options = json!({
                "propagationPolicy": "Foreground", "preconditions": { "uid": job.uid() },
            });
            cx.of::<Job>().delete_with(&job.key(), &options).await?;
            return Ok(Next::Done);
        }
        let more = plan.create.len() > BURST_MAX;
        let failure = carry_out(&job, &plan, &cx).await;
        if !write_status(&job, &plan.status, &cx).await? {
            return Ok(Next::Again);
        }
        for pod in &plan.release {
            release(pod, &cx).await?;
        }
        match (failure, plan.again) {
            (Some(error), _) => after(error),
            _ if more => Ok(Next::Again),
            (None, Some(wait)) => Ok(Next::After(wait)),
            (None, None) => Ok(Next::Done),
        }
    }

    /// Pods of a Job that is gone are nobody's to count.
    async fn gone(&self, key: Key, _: Option<Arc<Job>>, cx: Context) -> Result<Next, Failure> {
        for pod in self.by_job.get(&key).iter().filter(|pod| is_tracked(pod)) {
            release(pod, &cx).await?;
        }
        Ok(Next::Done)
    }
}

impl Jobs {
    async fn claim(
        &self,
        job: &Job,
        selector: &Selector,
        cx: &Context,
    ) -> Result<Vec<Arc<Pod>>, Error> {
        let mut candidates = self.by_job.get(&job.key());
        for stray in candidates.iter().filter(|pod| pod.controller_uid() != Some(job.uid())) {
            if is_tracked(stray) {
                release(stray, cx).await?; // of an earlier Job of the same name
            }
        }
        candidates.extend(self.pods.orphans.get(job.namespace().unwrap_or_default()));
        let claims = Claims { owner: job, selector, cx };
        claims.settle::<Pod, core::Pod>(candidates).await
    }
}

/// Creates and deletes; answers the first failure.
async fn carry_out(job: &Job, plan: &Plan, cx: &Context) -> Option<Error> {
    let pods = &cx.of::<core::Pod>();
    let failures = &plan.failures;
    let create = |index: Option<i32>| async move { pods.create(&pod(job, index, failures)).await };
    let (created, failed) = slow_start(plan.create.clone(), create).await;
    let failed = failed.filter(|error| !namespace_ends(error));
    for pod in created {
        cx.normal(job, "SuccessfulCreate", format_args!("Created pod: {}", pod.name()));
    }
    if let Some(error) = &failed {
        cx.warning(job, "FailedCreate", format_args!("Error creating: {error}"));
    }
    let delete = |pod: Arc<Pod>| async move {
        let options = json!({ "preconditions": { "uid": pod.uid() } });
        match pods.delete_with(&pod.key(), &options).await {
            Err(error) if error.is_conflict() => Ok(None),
            deleted => deleted.map(|_| Some(pod)),
        }
    };
    for pod in &plan.dismiss {
        // Without the finalizer its end does not count as a failure.
        if let Err(error) = release(pod, cx).await {
            return Some(error);
        }
    }
    let doomed = plan.dismiss.iter().chain(&plan.abort).cloned().collect();
    let (deleted, not_deleted) = slow_start(doomed, delete).await;
    for pod in deleted.into_iter().flatten() {
        cx.normal(job, "SuccessfulDelete", format_args!("Deleted pod: {}", pod.name()));
    }
    failed.or(not_deleted)
}

/// A pod of a Job, for one of its indexes if it has some; it knows how often that has failed.
fn pod(job: &Job, index: Option<i32>, failures: &BTreeMap<i32, i32>) -> core::Pod {
    let template = job.spec.as_ref().map(|spec| spec.template.clone()).unwrap_or_default();
    let mut pod = pod_of(job, &template);
    pod.metadata.finalizers.get_or_insert_default().push(TRACKING.to_owned());
    let Some(index) = index else { return pod };
    let (name, text) = (job.name(), index.to_string());
    pod.metadata.generate_name = Some(format!("{name}-{index}-"));
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(COMPLETION_INDEX.to_owned(), text.clone());
    if let Some(count) = failures.get(&index) {
        annotations.insert(INDEX_FAILURES.to_owned(), count.to_string());
    }
    pod.metadata.labels.get_or_insert_default().insert(COMPLETION_INDEX.to_owned(), text);
    if let Some(spec) = &mut pod.spec {
        spec.hostname = Some(format!("{name}-{index}"));
        let all = spec.init_containers.iter_mut().flatten().chain(&mut spec.containers);
        for container in all {
            container.env.get_or_insert_default().push(index_variable());
        }
    }
    pod
}

/// The index, where programs look for it.
fn index_variable() -> core::EnvVar {
    let field_path = format!("metadata.labels['{COMPLETION_INDEX}']");
    core::EnvVar {
        name: "JOB_COMPLETION_INDEX".to_owned(),
        value_from: Some(core::EnvVarSource {
            field_ref: Some(core::ObjectFieldSelector { api_version: None, field_path }),
            ..core::EnvVarSource::default()
        }),
        ..core::EnvVar::default()
    }
}

/// Takes our finalizer off a pod.
async fn release(pod: &Pod, cx: &Context) -> Result<(), Error> {
    if !is_tracked(pod) {
        return Ok(());
    }
    let finalizers = pod.metadata.finalizers.iter().flatten();
    let left: Vec<&String> = finalizers.filter(|finalizer| *finalizer != TRACKING).collect();
    let patch = json!({
        "metadata": { "resourceVersion": pod.resource_version().text(), "finalizers": left },
    });
    match cx.of::<core::Pod>().merge(&pod.key(), &patch).await {
        // Gone, or changed: the change that was quicker is on its way and starts this again.
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
        written => written.map(drop),
    }
}

/// Writes what changed of the status; whether it is written now.
async fn write_status(job: &Job, after: &JobStatus, cx: &Context) -> Result<bool, Error> {
    let before = job.status.clone().unwrap_or_default();
    let Some(status) = difference(&before, after) else { return Ok(true) };
    let patch: Value = json!({
        "metadata": { "resourceVersion": job.resource_version().text() },
        "status": status,
    });
    match cx.of::<Job>().merge_status(&job.key(), &patch).await {
        Ok(written) => {
            tell(job, &written, cx);
            Ok(true)
        }
        Err(error) if error.is_conflict() => Ok(false),
        Err(error) if error.is_not_found() => Ok(true),
        Err(error) => Err(error),
    }
}

/// Events for what changed.
fn tell(before: &Job, after: &Job, cx: &Context) {
    if let (None, Some(end)) = (finished(before), finished(after)) {
        let reason = end.reason.as_deref().unwrap_or_default();
        match end.type_.as_str() {
            "Complete" => cx.normal(before, "Completed", "Job completed"),
            _ => cx.warning(before, reason, end.message.as_deref().unwrap_or_default()),
        }
    }
    let suspended = |job: &Job| {
        let conditions = job.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.into_iter().flatten().any(|it| it.type_ == "Suspended" && it.status == "True")
    };
    match (suspended(before), suspended(after)) {
        (false, true) => cx.normal(before, "Suspended", "Job suspended"),
        (true, false) => cx.normal(before, "Resumed", "Job resumed"),
        _ => {}
    }
}
