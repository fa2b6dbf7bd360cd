//! CronJobs: Jobs on a schedule, their history, and what a restart does.

use std::sync::{Arc, Mutex};

use headwater_api::Clock;
use headwater_client::{Cached, Snapshot};
use headwater_controllers::Options;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use serde_json::{Value, json};

use crate::world::{Running, World};

/// A clock that a test sets.
#[derive(Debug)]
struct SetClock(Mutex<Timestamp>);

impl Clock for SetClock {
    fn now(&self) -> Timestamp {
        *self.0.lock().unwrap()
    }
}

fn tick(change: Value) -> Value {
    let containers = json!([{"name": "c", "image": "v1"}]);
    let pod = json!({"spec": {"restartPolicy": "Never", "containers": containers}});
    let mut spec = json!({"schedule": "0 * * * *", "jobTemplate": {"spec": {"template": pod}}});
    for (key, value) in change.as_object().unwrap() {
        spec[key] = value.clone();
    }
    json!({"metadata": {"name": "tick", "namespace": "default"}, "spec": spec})
}

/// Runs the controller at this many hours after now, from a start.
fn run_after(world: &World, hours: i64) -> Running {
    let now = Timestamp::now().checked_add(jiff::SignedDuration::from_hours(hours)).unwrap();
    let clock = Arc::new(SetClock(Mutex::new(now)));
    let cluster = world.cluster().with_clock(clock);
    world.run_on(cluster, Options::new("cronjob,job".parse().unwrap()))
}

fn complete(job: &Job) -> bool {
    let status = job.status.clone().unwrap_or_default();
    status.conditions.iter().flatten().any(|it| it.type_ == "Complete" && it.status == "True")
}

/// The names of the Jobs, once there are this many and all are complete.
fn completed(count: usize) -> impl FnMut(&Snapshot<Job>) -> Option<Vec<String>> {
    move |jobs| {
        let all = jobs.iter().all(|(_, job)| complete(job));
        let names: Vec<String> = jobs.iter().map(|(_, job)| job.name().to_owned()).collect();
        (all && names.len() == count).then_some(names)
    }
}

#[tokio::test]
async fn jobs_run_on_the_schedule_and_missed_times_run_once() {
    let world = World::start().await;
    world.create::<CronJob>(tick(json!({}))).await;
    let running = run_after(&world, 3);
    let first = world.until_all(completed(1)).await;
    let is_known = |cron: Option<&CronJob>| {
        let status = cron.and_then(|cron| cron.status.clone()).unwrap_or_default();
        status.last_successful_time.is_some() && status.active.is_none()
    };
    world.until("default/tick", is_known).await;
    running.kill().await;
    // At the same time nothing runs again, later the next time does.
    let running = run_after(&world, 3);
    world.until_all(completed(1)).await;
    running.stop().await;
    let running = run_after(&world, 30);
    let second = world.until_all(completed(2)).await;
    assert!(second.contains(&first[0]));
    running.stop().await;
}

#[tokio::test]
async fn jobs_beyond_the_history_limit_are_deleted() {
    let world = World::start().await;
    world.create::<CronJob>(tick(json!({"successfulJobsHistoryLimit": 1}))).await;
    let running = run_after(&world, 2);
    let first = world.until_all(completed(1)).await;
    running.stop().await;
    let running = run_after(&world, 4);
    world.until_all(move |jobs| completed(1)(jobs).filter(|now| *now != first)).await;
    running.stop().await;
}
