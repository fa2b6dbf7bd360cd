//! The CronJob controller: creates Jobs on a schedule.
//!
//! River: CronJobs and Jobs → **cronjob** → Jobs and a status.
//! Promise: a scheduled time has at most one Job, because the Job's name contains it. Times that
//! passed while the controller was stopped run once.

mod plan;

use std::sync::Arc;

use headwater_api::Clock;
use headwater_client::controller::{Context, Controller, Failure, Next, Prepared, Reconcile};
use headwater_client::{Cached, Error, Index, Key};
use k8s_openapi::api::batch::v1::{CronJob, CronJobStatus, Job};
use serde_json::json;

use crate::cluster::Cluster;
use crate::difference::difference;
use crate::ownership::{controller_of, requeue_or_fail};
use crate::slow_start::is_namespace_terminating;

use self::plan::{CronPlan, JobDeletion, plan};

const WORKERS: usize = 4;

pub(crate) fn prepare(cluster: &Cluster) -> Result<Prepared, Error> {
    let (crons, jobs) = (cluster.informer::<CronJob>()?, cluster.informer::<Job>()?);
    let by_owner = jobs.index("cronjob/controller", |job: &Job| {
        controller_of(&job.metadata).map(|owner| owner.uid.clone())
    })?;
    let controller = CronJobController { by_owner, clock: Arc::clone(cluster.clock()) };
    Ok(Controller::new("cronjob", &crons)
        .watches(&jobs, |job: &Job| {
            let owner = controller_of(&job.metadata).filter(|owner| owner.kind == "CronJob")?;
            Some(Key::namespaced(job.namespace().unwrap_or_default(), &owner.name))
        })
        .workers(WORKERS)
        .with(controller))
}

struct CronJobController {
    by_owner: Index<Job, String>,
    clock: Arc<dyn Clock>,
}

impl Reconcile<CronJob> for CronJobController {
    async fn reconcile(&self, cron: Arc<CronJob>, cx: Context) -> Result<Next, Failure> {
        let jobs = self.by_owner.get(cron.uid());
        let plan = plan(&cron, &jobs, self.clock.now());
        for event in &plan.events {
            match event.is_warning {
                true => cx.warning(&*cron, event.reason, &event.message),
                false => cx.normal(&*cron, event.reason, &event.message),
            }
        }
        match carry_out(&cron, &plan, &cx).await {
            Ok(()) => Ok(plan.next_check.map_or(Next::Done, Next::After)),
            Err(error) if is_namespace_terminating(&error) => Ok(Next::Done),
            Err(error) => requeue_or_fail(error),
        }
    }
}

async fn carry_out(cron: &CronJob, plan: &CronPlan, cx: &Context) -> Result<(), Error> {
    for JobDeletion { job, is_replaced } in &plan.delete {
        let options = json!({
            "propagationPolicy": "Background", "preconditions": { "uid": job.uid() },
        });
        match cx.of::<Job>().delete_with(&job.key(), &options).await {
            Err(error) if error.is_conflict() => {}
            Err(error) => {
                cx.warning(cron, "FailedDelete", format_args!("Deleted job: {error}"));
                return Err(error);
            }
            Ok(_) => {
                let what = if *is_replaced { "Deleted running job" } else { "Deleted job" };
                cx.normal(cron, "SuccessfulDelete", format_args!("{what} {}", job.name()));
            }
        }
    }
    if let Some(job) = &plan.create {
        match cx.of::<Job>().create(job).await {
            Ok(created) => {
                cx.normal(cron, "SuccessfulCreate", format_args!("Created job {}", created.name()));
            }
            // The cache has not received it yet.
            Err(error) if error.is_exists() => {}
            Err(error) => {
                if !is_namespace_terminating(&error) {
                    cx.warning(cron, "FailedCreate", format_args!("Error creating job: {error}"));
                }
                return Err(error);
            }
        }
    }
    write_status(cron, &plan.status, cx).await
}

async fn write_status(cron: &CronJob, after: &CronJobStatus, cx: &Context) -> Result<(), Error> {
    let before = cron.status.clone().unwrap_or_default();
    let Some(status) = difference(&before, after) else { return Ok(()) };
    let patch = json!({
        "metadata": { "resourceVersion": cron.resource_version().text() },
        "status": status,
    });
    cx.of::<CronJob>().merge_status(&cron.key(), &patch).await.map(drop)
}
