//! The next Job of a CronJob, the Jobs to delete, and the new status.

use std::sync::Arc;
use std::time::Duration;

use headwater_api::cron::Schedule;
use headwater_client::Cached;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use k8s_openapi::api::batch::v1::{CronJob, CronJobSpec, CronJobStatus, Job};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::ObjectMeta;

use crate::ownership::controller_reference;
use crate::time;

/// The annotation of a Job with the time that it was scheduled for.
const SCHEDULED_AT: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";
/// Beyond this many missed times an event warns, as in Kubernetes.
const MISSED_MAX: usize = 100;
/// Missed times beyond this are not counted one by one.
const COUNTED_MAX: usize = 1_000;

/// What is due now.
#[derive(Debug, Default, PartialEq)]
pub(super) struct CronPlan {
    pub(super) create: Option<Box<Job>>,
    pub(super) delete: Vec<JobDeletion>,
    pub(super) status: CronJobStatus,
    pub(super) events: Vec<CronEvent>,
    /// The time until the next run.
    pub(super) next_check: Option<Duration>,
}

/// A Job that is deleted.
#[derive(Debug, PartialEq)]
pub(super) struct JobDeletion {
    pub(super) job: Arc<Job>,
    /// It is replaced by a new one, not beyond the history limit.
    pub(super) is_replaced: bool,
}

/// An event about a CronJob.
#[derive(Debug, PartialEq)]
pub(super) struct CronEvent {
    pub(super) is_warning: bool,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

fn event(reason: &'static str, message: String) -> CronEvent {
    CronEvent { is_warning: false, reason, message }
}

fn warning(reason: &'static str, message: String) -> CronEvent {
    CronEvent { is_warning: true, reason, message }
}

/// The plan for a CronJob with its Jobs.
pub(super) fn plan(cron: &CronJob, jobs: &[Arc<Job>], now: Timestamp) -> CronPlan {
    let mut plan = CronPlan::default();
    let spec = &cron.spec;
    plan.status = status(cron, jobs, &mut plan.events);
    clean_up(spec, jobs, &mut plan.delete);
    let is_deleted = cron.metadata.deletion_timestamp.is_some();
    if is_deleted || spec.suspend == Some(true) {
        return plan;
    }
    let (schedule, zone) = match schedule(spec) {
        Ok(schedule) => schedule,
        Err(event) => {
            plan.events.push(event);
            return plan;
        }
    };
    let missed = missed(cron, spec, &schedule, &zone, now);
    let next = schedule.next_after(now, &zone);
    // One millisecond later, so that the time has passed.
    plan.next_check = next.map(|next| time::until(now, next) + Duration::from_millis(1));
    let Some(due) = missed.last else { return plan };
    if missed.count > MISSED_MAX {
        let message = format!(
            "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check \
             clock skew ({} missed)",
            missed.count
        );
        plan.events.push(warning("TooManyMissedTimes", message));
    }
    let name = job_name(cron, due);
    if plan.status.last_schedule_time.as_ref().is_some_and(|last| last.0 >= due)
        || jobs.iter().any(|job| job.name() == name)
    {
        return plan;
    }
    let deadline = spec.starting_deadline_seconds;
    if deadline.is_some_and(|seconds| time::after(due, seconds) < now) {
        let message = format!("Missed scheduled time to start a job: {due}");
        plan.events.push(warning("MissSchedule", message));
        return plan;
    }
    let active: Vec<&Arc<Job>> = jobs.iter().filter(|job| is_active(job)).collect();
    match spec.concurrency_policy.as_deref() {
        Some("Forbid") if !active.is_empty() => {
            let why = "Not starting job because prior execution is running and concurrency policy is Forbid";
            plan.events.push(event("JobAlreadyActive", why.to_owned()));
            return plan;
        }
        Some("Replace") => {
            let replaced = active.into_iter().cloned();
            plan.delete.extend(replaced.map(|job| JobDeletion { job, is_replaced: true }));
        }
        _ => {}
    }
    plan.create = Some(Box::new(new_job(cron, spec, name, due, &zone)));
    plan.status.last_schedule_time = Some(Time(due));
    plan
}

/// The schedule and its time zone, or why there is none.
fn schedule(spec: &CronJobSpec) -> Result<(Schedule, TimeZone), CronEvent> {
    let zone = match spec.time_zone.as_deref() {
        None => TimeZone::UTC,
        Some(name) => TimeZone::get(name).map_err(|_| {
            warning(
                "UnknownTimeZone",
                format!("invalid timeZone: {name:?}: unknown time zone {name}"),
            )
        })?,
    };
    let schedule = spec.schedule.parse::<Schedule>().map_err(|why| {
        warning("UnparseableSchedule", format!("unparseable schedule: {:?} : {why}", spec.schedule))
    })?;
    Ok((schedule, zone))
}

#[derive(Debug, Default, PartialEq)]
struct Missed {
    last: Option<Timestamp>,
    count: usize,
}

/// The times from the last run, or the creation, until now; those before the deadline are ignored.
fn missed(
    cron: &CronJob,
    spec: &CronJobSpec,
    schedule: &Schedule,
    zone: &TimeZone,
    now: Timestamp,
) -> Missed {
    let last = cron.status.as_ref().and_then(|status| status.last_schedule_time.as_ref());
    let created = cron.metadata.creation_timestamp.as_ref();
    let mut from = last.or(created).map_or(now, |time| time.0);
    if let Some(deadline) = spec.starting_deadline_seconds {
        from = from.max(time::after(now, deadline.saturating_neg()));
    }
    let mut missed = Missed::default();
    while let Some(next) = schedule.next_after(from, zone).filter(|next| *next <= now) {
        missed.last = Some(next);
        missed.count += 1;
        from = next;
        if missed.count == COUNTED_MAX {
            missed.last = last_before(schedule, zone, next, now);
            break;
        }
    }
    missed
}

/// The last time up to `now`, when there are too many to go through: periods that grow backwards
/// from now are searched.
fn last_before(
    schedule: &Schedule,
    zone: &TimeZone,
    known: Timestamp,
    now: Timestamp,
) -> Option<Timestamp> {
    let mut back = 120_i64;
    loop {
        let start = time::after(now, -back).max(known);
        if let Some(mut found) = schedule.next_after(start, zone).filter(|next| *next <= now) {
            while let Some(next) = schedule.next_after(found, zone).filter(|next| *next <= now) {
                found = next;
            }
            return Some(found);
        }
        if start == known {
            return Some(known);
        }
        back = back.saturating_mul(2);
    }
}

/// A name that depends on the scheduled time, so that a time has one Job.
fn job_name(cron: &CronJob, due: Timestamp) -> String {
    format!("{}-{}", cron.name(), due.as_second() / 60)
}

fn new_job(
    cron: &CronJob,
    spec: &CronJobSpec,
    name: String,
    due: Timestamp,
    zone: &TimeZone,
) -> Job {
    let meta = spec.job_template.metadata.clone().unwrap_or_default();
    let mut annotations = meta.annotations.unwrap_or_default();
    let local = due.to_zoned(zone.clone());
    let shown = match spec.time_zone {
        Some(_) => local.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string(),
        None => due.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
    };
    annotations.insert(SCHEDULED_AT.to_owned(), shown);
    Job {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: cron.metadata.namespace.clone(),
            labels: meta.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![controller_reference(cron)]),
            ..ObjectMeta::default()
        },
        spec: spec.job_template.spec.clone(),
        status: None,
    }
}

/// The type of the condition that ended a Job.
fn outcome(job: &Job) -> Option<&str> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let ends = |type_: &str| matches!(type_, "Complete" | "Failed");
    let end = conditions.iter().find(|it| ends(&it.type_) && it.status == "True")?;
    Some(end.type_.as_str())
}

fn is_active(job: &Job) -> bool {
    outcome(job).is_none()
}

fn status(cron: &CronJob, jobs: &[Arc<Job>], events: &mut Vec<CronEvent>) -> CronJobStatus {
    let before = cron.status.clone().unwrap_or_default();
    let mut active: Vec<ObjectReference> =
        jobs.iter().filter(|job| is_active(job)).map(|job| reference(job)).collect();
    active.sort_by(|one, other| one.name.cmp(&other.name));
    for known in before.active.iter().flatten() {
        let Some(name) = known.name.as_deref() else { continue };
        match jobs.iter().find(|job| Some(job.uid()) == known.uid.as_deref()) {
            None => {
                events.push(event("MissingJob", format!("Active job went missing: {name}")));
            }
            Some(job) => {
                if let Some(outcome) = outcome(job) {
                    let message = format!("Saw completed job: {name}, condition: {outcome}");
                    events.push(event("SawCompletedJob", message));
                }
            }
        }
    }
    let completed = jobs.iter().filter(|job| outcome(job) == Some("Complete"));
    let ended = completed.filter_map(|job| job.status.as_ref()?.completion_time.clone());
    let last_successful_time = ended.chain(before.last_successful_time).max_by_key(|time| time.0);
    CronJobStatus {
        active: (!active.is_empty()).then_some(active),
        last_schedule_time: before.last_schedule_time,
        last_successful_time,
    }
}

fn reference(job: &Job) -> ObjectReference {
    ObjectReference {
        api_version: Some("batch/v1".to_owned()),
        kind: Some("Job".to_owned()),
        name: Some(job.name().to_owned()),
        namespace: job.metadata.namespace.clone(),
        uid: job.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

/// Deletes the oldest ended Jobs beyond the history limits.
fn clean_up(spec: &CronJobSpec, jobs: &[Arc<Job>], delete: &mut Vec<JobDeletion>) {
    let limits = [
        ("Complete", spec.successful_jobs_history_limit.unwrap_or(3)),
        ("Failed", spec.failed_jobs_history_limit.unwrap_or(1)),
    ];
    for (wanted, limit) in limits {
        let ended = jobs.iter().filter(|job| outcome(job) == Some(wanted));
        let mut ended: Vec<&Arc<Job>> =
            ended.filter(|job| job.metadata.deletion_timestamp.is_none()).collect();
        let started = |job: &Job| {
            job.status.as_ref().and_then(|status| status.start_time.as_ref()).map(|time| time.0)
        };
        ended.sort_by(|one, other| (started(one), one.name()).cmp(&(started(other), other.name())));
        let surplus = ended.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
        let surplus = ended.into_iter().take(surplus).cloned();
        delete.extend(surplus.map(|job| JobDeletion { job, is_replaced: false }));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const CREATED: &str = "2026-01-01T00:00:00Z";

    fn cron(change: Value) -> CronJob {
        let mut value = json!({
            "metadata": {"name": "tick", "namespace": "shop", "uid": "cron", "creationTimestamp": CREATED},
            "spec": {"schedule": "*/10 * * * *", "jobTemplate": {
                "metadata": {"labels": {"app": "tick"}}, "spec": {"template": {}}}},
        });
        crate::fixture::merge(&mut value, &change);
        serde_json::from_value(value).unwrap()
    }

    fn job(name: &str, outcome: Option<&str>, started: &str) -> Arc<Job> {
        let conditions: Vec<Value> =
            outcome.iter().map(|type_| json!({"type": type_, "status": "True"})).collect();
        let value = json!({
            "metadata": {"name": name, "uid": name},
            "status": {"conditions": conditions, "startTime": started, "completionTime": started},
        });
        Arc::new(serde_json::from_value(value).unwrap())
    }

    fn plan_at(cron: &CronJob, jobs: &[Arc<Job>], now: &str) -> CronPlan {
        plan(cron, jobs, now.parse().unwrap())
    }

    fn created(plan: &CronPlan) -> Option<&str> {
        plan.create.as_ref().map(|job| job.name())
    }

    fn reasons(plan: &CronPlan) -> Vec<&str> {
        plan.events.iter().map(|event| event.reason).collect()
    }

    #[test]
    fn a_job_is_created_once_when_its_time_has_come() {
        let early = plan_at(&cron(json!({})), &[], "2026-01-01T00:09:59Z");
        assert_eq!(created(&early), None);
        assert_eq!(early.next_check, Some(Duration::from_millis(1_001)));
        let due = plan_at(&cron(json!({})), &[], "2026-01-01T00:10:00Z");
        assert_eq!(created(&due), Some("tick-29453770"));
        let meta = &due.create.as_ref().unwrap().metadata;
        assert_eq!(meta.annotations.as_ref().unwrap()[SCHEDULED_AT], "2026-01-01T00:10:00Z");
        assert_eq!(
            (meta.labels.as_ref().unwrap()["app"].as_str(), meta.namespace.as_deref()),
            ("tick", Some("shop"))
        );
        let status = json!({"status": {"lastScheduleTime": "2026-01-01T00:10:00Z"}});
        assert_eq!(created(&plan_at(&cron(status), &[], "2026-01-01T00:10:30Z")), None);
        // The status was not written, but the Job was created.
        let there = [job("tick-29453770", None, CREATED)];
        assert_eq!(created(&plan_at(&cron(json!({})), &there, "2026-01-01T00:10:30Z")), None);
        let suspended =
            plan_at(&cron(json!({"spec": {"suspend": true}})), &[], "2026-01-01T00:10:00Z");
        assert_eq!((created(&suspended), suspended.next_check), (None, None));
    }

    #[test]
    fn a_time_zone_shifts_the_schedule() {
        let spec = json!({"spec": {"schedule": "0 9 * * *", "timeZone": "Europe/Berlin"}});
        let plan = plan_at(&cron(spec), &[], "2026-01-01T08:00:30Z");
        let meta = &plan.create.as_ref().unwrap().metadata;
        assert_eq!(meta.annotations.as_ref().unwrap()[SCHEDULED_AT], "2026-01-01T09:00:00+01:00");
        let unknown = json!({"spec": {"timeZone": "Mars/Olympus"}});
        assert_eq!(reasons(&plan_at(&cron(unknown), &[], CREATED)), ["UnknownTimeZone"]);
        let odd = json!({"spec": {"schedule": "soon"}});
        assert_eq!(reasons(&plan_at(&cron(odd), &[], CREATED)), ["UnparseableSchedule"]);
    }

    #[test]
    fn the_concurrency_policy_decides_about_a_running_job() {
        let runs = [job("earlier", None, CREATED)];
        let at = "2026-01-01T00:10:00Z";
        let policy = |policy: &str| cron(json!({"spec": {"concurrencyPolicy": policy}}));
        let allowed = plan_at(&policy("Allow"), &runs, at);
        assert!(allowed.create.is_some() && allowed.delete.is_empty());
        let forbidden = plan_at(&policy("Forbid"), &runs, at);
        assert_eq!((created(&forbidden), reasons(&forbidden)), (None, vec!["JobAlreadyActive"]));
        let replaced = plan_at(&policy("Replace"), &runs, at);
        assert!(replaced.create.is_some() && replaced.delete[0].is_replaced);
        let ended = [job("earlier", Some("Complete"), CREATED)];
        assert!(plan_at(&policy("Forbid"), &ended, at).create.is_some());
    }

    #[test]
    fn missed_times_run_once_unless_the_deadline_has_passed() {
        let late = plan_at(&cron(json!({})), &[], "2026-01-01T00:35:00Z");
        assert_eq!(created(&late), Some("tick-29453790"), "the last of three");
        let deadline = |seconds: i64| cron(json!({"spec": {"startingDeadlineSeconds": seconds}}));
        assert_eq!(created(&plan_at(&deadline(200), &[], "2026-01-01T00:35:00Z")), None);
        assert!(created(&plan_at(&deadline(301), &[], "2026-01-01T00:35:00Z")).is_some());
        let many = plan_at(&cron(json!({})), &[], "2026-01-05T00:05:00Z");
        assert_eq!(
            (created(&many), reasons(&many)),
            (Some("tick-29459520"), vec!["TooManyMissedTimes"])
        );
        let every_minute = cron(json!({"spec": {"schedule": "* * * * *"}}));
        let years = plan_at(&every_minute, &[], "2036-01-01T00:00:00Z");
        assert_eq!(years.status.last_schedule_time.unwrap().0.to_string(), "2036-01-01T00:00:00Z");
        let extreme = deadline(i64::MIN);
        assert_eq!(created(&plan_at(&extreme, &[], "2026-01-01T00:35:00Z")), None);
    }

    #[test]
    fn ended_jobs_beyond_the_limits_are_deleted_oldest_first() {
        let at = |minute: u32| format!("2026-01-01T00:0{minute}:00Z");
        let jobs = [
            job("c", Some("Complete"), &at(3)),
            job("a", Some("Complete"), &at(1)),
            job("b", Some("Complete"), &at(2)),
            job("f", Some("Failed"), &at(4)),
            job("g", Some("Failed"), &at(5)),
        ];
        let spec = json!({"spec": {"successfulJobsHistoryLimit": 1}});
        let plan = plan_at(&cron(spec), &jobs, CREATED);
        let names: Vec<&str> = plan.delete.iter().map(|it| it.job.name()).collect();
        assert_eq!(names, ["a", "b", "f"]);
        assert_eq!(plan.status.last_successful_time.unwrap().0.to_string(), at(3));
    }

    #[test]
    fn the_status_lists_running_jobs_and_events_tell_how_they_ended() {
        let known = |name: &str| json!({"name": name, "uid": name});
        let active = json!([known("runs"), known("done"), known("gone")]);
        let cron = cron(json!({"status": {"active": active}}));
        let jobs = [job("runs", None, CREATED), job("done", Some("Complete"), CREATED)];
        let plan = plan_at(&cron, &jobs, CREATED);
        let names: Vec<_> =
            plan.status.active.iter().flatten().map(|it| it.name.as_deref().unwrap()).collect();
        assert_eq!(names, ["runs"]);
        assert_eq!(reasons(&plan), ["SawCompletedJob", "MissingJob"]);
    }
}
