//! The Job controller: runs pods to completion.
//!
//! River: Jobs and pods → **job** → pods and a status.
//! Promise: each pod is counted once, whenever the process is killed, by means of its finalizer
//! (`plan`). Pods of a deleted Job lose the finalizer.

mod indexes;
mod policy;
mod plan;

use std::collections::BTreeMap;
use std::sync::Arc;

use headwater_api::Clock;
use headwater_client::controller::{Context, Controller, Failure, Next, Prepared, Reconcile};
use headwater_client::{Cached, Error, Index, Key, Selector};
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::api::core::v1 as core;
use serde_json::{Value, json};

use crate::cluster::{Cluster, Pods};
use crate::difference::difference;
use crate::ownership::{ControllerRefManager, controller_of, requeue_or_fail, selector};
use crate::pod::Pod;
use crate::pod_control::{create_pods, delete_pods, pod_from_template};
use crate::slow_start::BURST_MAX;

use self::plan::{
    COMPLETION_INDEX, INDEX_FAILURE_COUNT, JobPlan, TRACKING_FINALIZER, finished, is_tracked, plan,
};

const WORKERS: usize = 4;
/// The value of `spec.managedBy` for this controller; Jobs with another value are ignored.
const JOB_CONTROLLER: &str = "kubernetes.io/job-controller";

pub(crate) fn prepare(cluster: &Cluster) -> Result<Prepared, Error> {
    let (jobs, pods) = (cluster.informer::<Job>()?, cluster.pods()?);
    let by_job = pods.informer.index("job", |pod: &Pod| job_of(pod))?;
    let runner = JobController { pods: pods.clone(), by_job, clock: Arc::clone(cluster.clock()) };
    Ok(Controller::new("job", &jobs)
        .watches(&pods.informer, |pod: &Pod| job_of(pod))
        .workers(WORKERS)
        .with(runner))
}

/// The Job that controls a pod, by name; it may not exist.
fn job_of(pod: &Pod) -> Option<Key> {
    let owner = controller_of(&pod.metadata).filter(|owner| owner.kind == "Job")?;
    Some(Key::namespaced(pod.namespace().unwrap_or_default(), &owner.name))
}

struct JobController {
    pods: Pods,
    by_job: Index<Pod, Key>,
    clock: Arc<dyn Clock>,
}

impl Reconcile<Job> for JobController {
    async fn reconcile(&self, job: Arc<Job>, cx: Context) -> Result<Next, Failure> {
        let manager = job.spec.as_ref().and_then(|spec| spec.managed_by.as_deref());
        if manager.is_some_and(|manager| manager != JOB_CONTROLLER) {
            return Ok(Next::Done);
        }
        let selector = selector(job.spec.as_ref().and_then(|spec| spec.selector.as_ref()));
        let selector = selector.map_err(Failure::terminal)?;
        let pods = match self.claim(&job, &selector, &cx).await {
            Ok(pods) => pods,
            Err(error) => return requeue_or_fail(error),
        };
        let plan = plan(&job, &pods, self.clock.now());
        if plan.is_expired {
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
        match (failure, plan.next_check) {
            (Some(error), _) => requeue_or_fail(error),
            _ if more => Ok(Next::Again),
            (None, Some(wait)) => Ok(Next::After(wait)),
            (None, None) => Ok(Next::Done),
        }
    }

    /// Pods of a deleted Job are not counted any more.
    async fn gone(&self, key: Key, _: Option<Arc<Job>>, cx: Context) -> Result<Next, Failure> {
        for pod in self.by_job.get(&key).iter().filter(|pod| is_tracked(pod)) {
            release(pod, &cx).await?;
        }
        Ok(Next::Done)
    }
}

impl JobController {
    async fn claim(
        &self,
        job: &Job,
        selector: &Selector,
        cx: &Context,
    ) -> Result<Vec<Arc<Pod>>, Error> {
        let mut candidates = self.by_job.get(&job.key());
        for stray in candidates.iter().filter(|pod| pod.controller_uid() != Some(job.uid())) {
            if is_tracked(stray) {
                release(stray, cx).await?; // belongs to an earlier Job of this name
            }
        }
        candidates.extend(self.pods.orphans.get(job.namespace().unwrap_or_default()));
        let refs = ControllerRefManager { owner: job, selector, cx };
        refs.claim::<Pod, core::Pod>(candidates).await
    }
}

/// Creates and deletes pods; returns the first failure.
async fn carry_out(job: &Job, plan: &JobPlan, cx: &Context) -> Option<Error> {
    let create = |index| pod(job, index, &plan.failures);
    let not_created = create_pods(job, plan.create.clone(), create, cx).await;
    if let Some(error) = &not_created {
        cx.warning(job, "FailedCreate", format_args!("Error creating: {error}"));
    }
    for pod in &plan.delete_uncounted {
        // Without the finalizer, its termination does not count as a failure.
        if let Err(error) = release(pod, cx).await {
            return Some(error);
        }
    }
    let surplus = plan.delete_uncounted.iter().chain(&plan.delete_failed).cloned().collect();
    let not_deleted = delete_pods(job, surplus, cx).await;
    not_created.or(not_deleted)
}

/// A pod of a Job. With an index, it carries the index and the number of the index's failures.
fn pod(job: &Job, index: Option<i32>, failures: &BTreeMap<i32, i32>) -> core::Pod {
    let template = job.spec.as_ref().map(|spec| spec.template.clone()).unwrap_or_default();
    let mut pod = pod_from_template(job, &template);
    pod.metadata.finalizers.get_or_insert_default().push(TRACKING_FINALIZER.to_owned());
    let Some(index) = index else { return pod };
    let (name, text) = (job.name(), index.to_string());
    pod.metadata.generate_name = Some(format!("{name}-{index}-"));
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(COMPLETION_INDEX.to_owned(), text.clone());
    if let Some(count) = failures.get(&index) {
        annotations.insert(INDEX_FAILURE_COUNT.to_owned(), count.to_string());
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

/// The environment variable with the completion index.
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

/// Removes the tracking finalizer from a pod.
async fn release(pod: &Pod, cx: &Context) -> Result<(), Error> {
    if !is_tracked(pod) {
        return Ok(());
    }
    let finalizers = pod.metadata.finalizers.iter().flatten();
    let left: Vec<&String> =
        finalizers.filter(|finalizer| *finalizer != TRACKING_FINALIZER).collect();
    let patch = json!({
        "metadata": { "resourceVersion": pod.resource_version().text(), "finalizers": left },
    });
    match cx.of::<core::Pod>().merge(&pod.key(), &patch).await {
        // Deleted or changed; a change starts another reconcile.
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
        written => written.map(drop),
    }
}

/// Writes the changed fields of the status; returns whether it is up to date.
async fn write_status(job: &Job, after: &JobStatus, cx: &Context) -> Result<bool, Error> {
    let before = job.status.clone().unwrap_or_default();
    let Some(status) = difference(&before, after) else { return Ok(true) };
    let patch: Value = json!({
        "metadata": { "resourceVersion": job.resource_version().text() },
        "status": status,
    });
    match cx.of::<Job>().merge_status(&job.key(), &patch).await {
        Ok(written) => {
            record_events(job, &written, cx);
            Ok(true)
        }
        Err(error) if error.is_conflict() => Ok(false),
        Err(error) if error.is_not_found() => Ok(true),
        Err(error) => Err(error),
    }
}

/// Records events for changed conditions.
fn record_events(before: &Job, after: &Job, cx: &Context) {
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
