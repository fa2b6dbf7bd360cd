//! What a Job needs now: pods to create, to delete, to let go of, and the status it has earned.
//!
//! Every pod carries a finalizer of ours until it is counted, so that each counts once whatever is
//! killed in between: (1) the UID of a pod that ended is written into the status, (2) its finalizer
//! is taken off, (3) once that is seen the UID becomes part of a number.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use headwater_client::Cached;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobSpec, JobStatus, UncountedTerminatedPods};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::difference::count;
use crate::moment;
use crate::pod::Pod;
use crate::rank::worth_least;

use super::indexes;

pub(super) const TRACKING: &str = "batch.kubernetes.io/job-tracking";
pub(super) const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// A pod that failed is replaced after this, then after twice as much, and so on.
const BACKOFF_SECONDS: i64 = 10;
const BACKOFF_SECONDS_MAX: i64 = 600;
/// So many pods are taken into the status at once, or it would grow too large.
const UNCOUNTED_MAX: usize = 500;

/// What is to be done, in this order.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Plan {
    /// Pods to create: one for each entry, with its completion index if the Job is indexed.
    pub(super) create: Vec<Option<i32>>,
    /// Pods that are not wanted; they do not count.
    pub(super) dismiss: Vec<Arc<Pod>>,
    /// Pods that end because the Job does; they count as failed.
    pub(super) abort: Vec<Arc<Pod>>,
    pub(super) status: JobStatus,
    /// Pods that are in the status, or nobody's: their finalizers go, after the status is written.
    pub(super) release: Vec<Arc<Pod>>,
    /// When to look again, although nothing changes.
    pub(super) again: Option<Duration>,
    /// The Job has been finished for long enough.
    pub(super) expired: bool,
}

/// How a Job ended.
pub(super) fn finished(job: &Job) -> Option<&JobCondition> {
    let conditions = job.status.as_ref().and_then(|status| status.conditions.as_deref());
    conditions.unwrap_or_default().iter().find(|condition| {
        matches!(condition.type_.as_str(), "Complete" | "Failed") && condition.status == "True"
    })
}

pub(super) fn plan(job: &Job, pods: &[Arc<Pod>], now: Timestamp) -> Plan {
    match finished(job) {
        Some(end) => after_the_end(job, end, pods, now),
        None => Work::new(job, pods, now).plan(),
    }
}

/// A Job that has ended only lets go of its pods and, if it says so, goes after a while.
fn after_the_end(job: &Job, end: &JobCondition, pods: &[Arc<Pod>], now: Timestamp) -> Plan {
    let release = pods.iter().filter(|pod| is_tracked(pod)).cloned().collect();
    let status = job.status.clone().unwrap_or_default();
    let ttl = job.spec.as_ref().and_then(|spec| spec.ttl_seconds_after_finished);
    let since = end.last_transition_time.as_ref().map(|time| time.0);
    let mut plan = Plan { release, status, ..Plan::default() };
    if let (Some(ttl), Some(since)) = (ttl, since) {
        let wait = moment::until(now, moment::after(since, ttl));
        plan.expired = wait.is_zero();
        plan.again = (!wait.is_zero()).then_some(wait);
    }
    plan
}

pub(super) fn is_tracked(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == TRACKING)
}

/// A pod that is gone before it succeeded counts as failed: nobody will ever see it end.
fn has_failed(pod: &Pod) -> bool {
    pod.phase() == "Failed" || (pod.is_deleting() && pod.phase() != "Succeeded")
}

fn index_of(pod: &Pod) -> Option<i32> {
    pod.annotation(COMPLETION_INDEX)?.parse().ok()
}

struct Work<'a> {
    job: &'a Job,
    spec: JobSpec,
    pods: &'a [Arc<Pod>],
    now: Timestamp,
    status: JobStatus,
    uncounted: Uncounted,
    completed: BTreeSet<i32>,
    release: Vec<Arc<Pod>>,
}

#[derive(Default)]
struct Uncounted {
    succeeded: BTreeSet<String>,
    failed: BTreeSet<String>,
}

impl<'a> Work<'a> {
    fn new(job: &'a Job, pods: &'a [Arc<Pod>], now: Timestamp) -> Work<'a> {
        let (spec, status) = (job.spec.clone().unwrap_or_default(), job.status.clone());
        let mut status = status.unwrap_or_default();
        let known = status.uncounted_terminated_pods.take().unwrap_or_default();
        let set = |list: Option<Vec<String>>| list.unwrap_or_default().into_iter().collect();
        let uncounted = Uncounted { succeeded: set(known.succeeded), failed: set(known.failed) };
        let completed = status.completed_indexes.as_deref().unwrap_or_default();
        let completed = indexes::parse(completed, spec.completions.unwrap_or(0));
        Work { job, spec, pods, now, status, uncounted, completed, release: Vec::new() }
    }

    fn is_indexed(&self) -> bool {
        self.spec.completion_mode.as_deref() == Some("Indexed")
    }

    fn is_suspended(&self) -> bool {
        self.spec.suspend == Some(true)
    }

    fn condition(&self, type_: &str) -> Option<&JobCondition> {
        let conditions = self.status.conditions.as_deref().unwrap_or_default();
        conditions.iter().find(|it| it.type_ == type_ && it.status == "True")
    }

    fn set(&mut self, type_: &str, status: &str, reason: &str, message: &str) {
        let conditions = self.status.conditions.get_or_insert_default();
        conditions.retain(|condition| condition.type_ != type_);
        conditions.push(JobCondition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            last_probe_time: Some(Time(self.now)),
            last_transition_time: Some(Time(self.now)),
        });
    }

    fn active(&self) -> Vec<Arc<Pod>> {
        self.pods.iter().filter(|pod| pod.is_active()).cloned().collect()
    }

    fn plan(mut self) -> Plan {
        self.count_released();
        self.take_in();
        self.start_or_suspend();
        let mut plan = Plan::default();
        let active = self.active();
        match self.target(active.len()) {
            Some(Target::Success) => {
                let message = "Reached expected number of succeeded pods";
                self.aim("SuccessCriteriaMet", "CompletionsReached", message);
                plan.dismiss = active;
            }
            Some(Target::Failure { reason, message }) => {
                self.aim("FailureTarget", reason, message);
                plan.abort = active;
            }
            None if self.job.metadata.deletion_timestamp.is_some() => {}
            None => self.manage(&active, &mut plan),
        }
        self.write_counts();
        self.finish();
        plan.again = plan.again.into_iter().chain(self.until_deadline()).min();
        plan.release = self.release;
        plan.status = self.status;
        plan
    }

    /// Step 3: pods that were written down and let go become numbers.
    fn count_released(&mut self) {
        let tracked: BTreeSet<&str> =
            self.pods.iter().filter(|pod| is_tracked(pod)).map(|pod| pod.uid()).collect();
        let flush = |set: &mut BTreeSet<String>| {
            let before = set.len();
            set.retain(|uid| tracked.contains(uid.as_str()));
            i32::try_from(before - set.len()).unwrap_or(0)
        };
        let succeeded = flush(&mut self.uncounted.succeeded);
        let failed = flush(&mut self.uncounted.failed);
        self.status.succeeded = sum(self.status.succeeded, succeeded);
        self.status.failed = sum(self.status.failed, failed);
    }

    /// Step 1: pods that ended are written down, to be let go.
    fn take_in(&mut self) {
        for pod in self.pods.iter().filter(|pod| is_tracked(pod)) {
            let uid = pod.uid();
            let known =
                self.uncounted.succeeded.contains(uid) || self.uncounted.failed.contains(uid);
            let full =
                self.uncounted.succeeded.len() + self.uncounted.failed.len() >= UNCOUNTED_MAX;
            match () {
                () if known => {}
                () if full => continue,
                () if pod.phase() == "Succeeded" => self.take_success(pod),
                () if has_failed(pod) => drop(self.uncounted.failed.insert(uid.to_owned())),
                () => continue,
            }
            self.release.push(Arc::clone(pod));
        }
    }

    fn take_success(&mut self, pod: &Pod) {
        if !self.is_indexed() {
            self.uncounted.succeeded.insert(pod.uid().to_owned());
            return;
        }
        // An index counts once, however many of its pods succeed; the indexes are the count.
        let completions = self.spec.completions.unwrap_or(0);
        self.completed.extend(index_of(pod).filter(|index| (0..completions).contains(index)));
    }

    fn succeeded(&self) -> usize {
        match self.is_indexed() {
            true => self.completed.len(),
            false => number(self.status.succeeded) + self.uncounted.succeeded.len(),
        }
    }

    fn failed(&self) -> usize {
        number(self.status.failed) + self.uncounted.failed.len()
    }

    fn start_or_suspend(&mut self) {
        let was = self.condition("Suspended").is_some();
        match (self.is_suspended(), was) {
            (true, false) => {
                self.set("Suspended", "True", "JobSuspended", "Job suspended");
                self.status.start_time = None;
            }
            (false, true) => {
                self.set("Suspended", "False", "JobResumed", "Job resumed");
                self.status.start_time = Some(Time(self.now));
            }
            (false, false) if self.status.start_time.is_none() => {
                self.status.start_time = Some(Time(self.now));
            }
            _ => {}
        }
    }

    /// Whether the Job is on its way to an end: one that was decided before stays decided.
    fn target(&self, active: usize) -> Option<Target> {
        if self.condition("SuccessCriteriaMet").is_some() {
            return Some(Target::Success);
        }
        if let Some(before) = self.condition("FailureTarget") {
            return Some(match before.reason.as_deref() {
                Some("DeadlineExceeded") => Target::late(),
                _ => Target::too_many_failures(),
            });
        }
        let limit = self.spec.backoff_limit.unwrap_or(6);
        if self.failed() > number(Some(limit)) || self.restarts_exceed(limit) {
            return Some(Target::too_many_failures());
        }
        if self.until_deadline().is_some_and(|wait| wait.is_zero()) {
            return Some(Target::late());
        }
        let is_complete = match self.spec.completions {
            Some(completions) => self.succeeded() >= number(Some(completions)),
            // Without a number of completions one success ends the Job, when the others are done.
            None => self.succeeded() > 0 && active == 0,
        };
        is_complete.then_some(Target::Success)
    }

    /// Pods that restart their containers by themselves fail by restarting too often.
    fn restarts_exceed(&self, limit: i32) -> bool {
        let policy = self.spec.template.spec.as_ref().and_then(|it| it.restart_policy.as_deref());
        if policy != Some("OnFailure") {
            return false;
        }
        let pods = self.pods.iter().filter(|pod| matches!(pod.phase(), "Running" | "Pending"));
        let containers = pods.flat_map(|pod| {
            pod.status.container_statuses.iter().chain(&pod.status.init_container_statuses)
        });
        let restarts: i32 = containers.map(|container| container.restart_count).sum();
        if limit == 0 { restarts > 0 } else { restarts >= limit }
    }

    fn until_deadline(&self) -> Option<Duration> {
        let seconds = self.spec.active_deadline_seconds?;
        let start = self.status.start_time.as_ref()?.0;
        let is_over = self.condition("SuccessCriteriaMet").or(self.condition("FailureTarget"));
        let running = is_over.is_none() && !self.is_suspended();
        running.then(|| moment::until(self.now, moment::after(start, seconds)))
    }

    fn aim(&mut self, type_: &str, reason: &str, message: &str) {
        if self.condition(type_).is_none() {
            self.set(type_, "True", reason, message);
        }
    }

    /// As many pods as wanted, no more, no fewer; later, if one has just failed.
    fn manage(&self, active: &[Arc<Pod>], plan: &mut Plan) {
        let parallelism = number(Some(self.spec.parallelism.unwrap_or(1)));
        let wanted = match self.spec.completions {
            _ if self.is_suspended() => 0,
            Some(completions) => {
                number(Some(completions)).saturating_sub(self.succeeded()).min(parallelism)
            }
            None if self.succeeded() > 0 => active.len().min(parallelism),
            None => parallelism,
        };
        if active.len() > wanted {
            let crowds = std::collections::BTreeMap::new();
            plan.dismiss = worth_least(active, active.len() - wanted, &crowds, self.now);
            return;
        }
        let replaced = match self.spec.pod_replacement_policy.as_deref() {
            Some("Failed") => self.terminating(),
            _ => 0,
        };
        let missing = wanted.saturating_sub(active.len() + replaced);
        if missing == 0 {
            return;
        }
        let wait = self.backoff();
        if !wait.is_zero() {
            plan.again = Some(wait);
            return;
        }
        plan.create = match self.is_indexed() {
            false => vec![None; missing],
            true => self.free_indexes(active).take(missing).map(Some).collect(),
        };
    }

    fn free_indexes(&self, active: &[Arc<Pod>]) -> impl Iterator<Item = i32> {
        let busy: BTreeSet<i32> = active.iter().filter_map(|pod| index_of(pod)).collect();
        let completions = self.spec.completions.unwrap_or(0);
        (0..completions)
            .filter(move |index| !busy.contains(index) && !self.completed.contains(index))
    }

    /// How long the next pod has to wait because others failed.
    fn backoff(&self) -> Duration {
        let last =
            self.pods.iter().filter(|pod| has_failed(pod)).filter_map(|pod| ended(pod)).max();
        let (Some(last), Ok(failed)) = (last, u32::try_from(self.failed())) else {
            return Duration::ZERO;
        };
        let doubled = 2_i64.saturating_pow(failed.saturating_sub(1).min(20));
        let seconds = BACKOFF_SECONDS.saturating_mul(doubled).min(BACKOFF_SECONDS_MAX);
        moment::until(self.now, moment::after(last, seconds))
    }

    fn terminating(&self) -> usize {
        self.pods.iter().filter(|pod| pod.is_deleting() && !pod.is_finished()).count()
    }

    fn write_counts(&mut self) {
        let active = self.active();
        self.status.active = count(active.len());
        self.status.ready = i32::try_from(active.iter().filter(|pod| pod.is_ready()).count()).ok();
        self.status.terminating = i32::try_from(self.terminating()).ok();
        if self.is_indexed() {
            self.status.succeeded = count(self.completed.len());
            let completed = indexes::print(&self.completed);
            self.status.completed_indexes = Some(completed).filter(|text| !text.is_empty());
        }
        let list = |set: &BTreeSet<String>| {
            (!set.is_empty()).then(|| set.iter().cloned().collect::<Vec<String>>())
        };
        self.status.uncounted_terminated_pods = Some(UncountedTerminatedPods {
            succeeded: list(&self.uncounted.succeeded),
            failed: list(&self.uncounted.failed),
        });
    }

    /// A decided end is the end once every pod has ended and is counted.
    fn finish(&mut self) {
        let pending = self.pods.iter().any(|pod| !pod.is_finished() || is_tracked(pod));
        let uncounted = !self.uncounted.succeeded.is_empty() || !self.uncounted.failed.is_empty();
        if pending || uncounted {
            return;
        }
        let text = |it: &JobCondition| {
            (it.reason.clone().unwrap_or_default(), it.message.clone().unwrap_or_default())
        };
        if let Some((reason, message)) = self.condition("SuccessCriteriaMet").map(text) {
            self.set("Complete", "True", &reason, &message);
            self.status.completion_time = Some(Time(self.now));
        } else if let Some((reason, message)) = self.condition("FailureTarget").map(text) {
            self.set("Failed", "True", &reason, &message);
        }
    }
}

enum Target {
    Success,
    Failure { reason: &'static str, message: &'static str },
}

impl Target {
    fn late() -> Target {
        let message = "Job was active longer than specified deadline";
        Target::Failure { reason: "DeadlineExceeded", message }
    }

    fn too_many_failures() -> Target {
        let message = "Job has reached the specified backoff limit";
        Target::Failure { reason: "BackoffLimitExceeded", message }
    }
}

/// When a pod ended, as far as anybody wrote it down.
fn ended(pod: &Pod) -> Option<Timestamp> {
    let containers = pod.status.container_statuses.iter();
    let finished = containers.filter_map(|it| it.state.terminated.as_ref()?.finished_at.as_ref());
    let marked = pod.metadata.deletion_timestamp.as_ref();
    let turned = pod.condition("Ready").and_then(|it| it.last_transition_time.as_ref());
    finished.map(|time| time.0).max().or(marked.or(turned).map(|time| time.0))
}

fn number(number: Option<i32>) -> usize {
    usize::try_from(number.unwrap_or(0)).unwrap_or(0)
}

fn sum(number: Option<i32>, more: i32) -> Option<i32> {
    Some(number.unwrap_or(0).saturating_add(more)).filter(|sum| *sum != 0)
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use serde_json::{Value, json};

    use super::*;

    const START: &str = "2026-01-01T00:00:00Z";

    fn at(seconds: i64) -> Timestamp {
        moment::after(START.parse().unwrap(), seconds)
    }

    fn job(change: &Value) -> Job {
        let mut value = json!({
            "metadata": {"name": "sum", "namespace": "shop", "uid": "job"},
            "spec": {"completions": 3, "parallelism": 2, "backoffLimit": 1,
                "template": {"spec": {"containers": [], "restartPolicy": "Never"}}},
            "status": {"startTime": START},
        });
        crate::fixture::merge(&mut value, change);
        serde_json::from_value(value).unwrap()
    }

    fn pod(name: &str, phase: &str) -> Arc<Pod> {
        let value = json!({
            "metadata": {"name": name, "uid": name, "finalizers": [TRACKING]},
            "status": {"phase": phase, "conditions": [
                {"type": "Ready", "status": "False", "lastTransitionTime": START},
            ]},
        });
        Arc::new(serde_json::from_value(value).unwrap())
    }

    fn changed(pod: &Arc<Pod>, change: impl FnOnce(&mut Pod)) -> Arc<Pod> {
        let mut pod = (**pod).clone();
        change(&mut pod);
        Arc::new(pod)
    }

    fn released(pod: &Arc<Pod>) -> Arc<Pod> {
        changed(pod, |pod| pod.metadata.finalizers = None)
    }

    fn indexed(pod: &Arc<Pod>, index: i32) -> Arc<Pod> {
        changed(pod, |pod| {
            let annotation = (COMPLETION_INDEX.to_owned(), index.to_string());
            pod.metadata.annotations = Some([annotation].into());
        })
    }

    #[track_caller]
    fn creates(spec: Value, pods: &[Arc<Pod>], expected: usize) {
        let plan = plan(&job(&json!({"spec": spec})), pods, at(1000));
        assert_eq!(plan.create.len(), expected);
    }

    #[test]
    fn as_many_pods_run_as_are_wanted_and_still_needed() {
        let (run, done) = (pod("r", "Running"), pod("d", "Succeeded"));
        creates(json!({}), &[], 2);
        creates(json!({}), from_ref(&run), 1);
        creates(json!({}), from_ref(&done), 2);
        creates(json!({"completions": 2}), from_ref(&done), 1);
        creates(json!({"completions": 1}), from_ref(&done), 0);
        creates(json!({"completions": null}), &[], 2);
        creates(json!({"completions": null}), &[run, done], 0);
        creates(json!({"suspend": true}), &[], 0);
        creates(json!({"parallelism": 0}), &[], 0);
    }

    #[test]
    fn a_pod_counts_once_however_often_it_is_looked_at() {
        let done = pod("d", "Succeeded");
        let mut job = job(&json!({}));
        let first = plan(&job, from_ref(&done), at(1));
        assert_eq!(first.release, from_ref(&done));
        assert_eq!(first.status.succeeded, None, "not before its finalizer is off");
        job.status = Some(first.status);
        let second = plan(&job, from_ref(&done), at(2));
        assert_eq!(Some(&second.status), job.status.as_ref(), "no news, no write");
        assert_eq!(second.release, from_ref(&done));
        let third = plan(&job, &[released(&done)], at(3));
        assert_eq!(third.status.succeeded, Some(1));
        job.status = Some(third.status);
        let fourth = plan(&job, &[released(&done)], at(4));
        assert_eq!(fourth.status.succeeded, Some(1));
        let fifth = plan(&job, &[], at(5));
        assert_eq!(fifth.status.succeeded, Some(1));
    }

    #[test]
    fn a_job_is_complete_when_its_pods_are_counted() {
        let mut job = job(&json!({"spec": {"completions": 1}}));
        let done = pod("d", "Succeeded");
        let first = plan(&job, from_ref(&done), at(1));
        let types = |status: &JobStatus| -> Vec<String> {
            status.conditions.iter().flatten().map(|it| it.type_.clone()).collect()
        };
        assert_eq!(types(&first.status), ["SuccessCriteriaMet"]);
        job.status = Some(first.status);
        let second = plan(&job, &[released(&done)], at(2));
        assert_eq!(types(&second.status), ["SuccessCriteriaMet", "Complete"]);
        assert_eq!(second.status.completion_time, Some(Time(at(2))));
    }

    #[test]
    fn too_many_failures_end_a_job_and_its_pods() {
        let (one, two) = (pod("a", "Failed"), pod("b", "Failed"));
        let running = pod("r", "Running");
        let job = job(&json!({}));
        let plan = |pods: &[Arc<Pod>]| super::plan(&job, pods, at(1000));
        assert_eq!(plan(&[one.clone(), running.clone()]).abort, []);
        let end = plan(&[one, two, running.clone()]);
        assert_eq!(end.abort, [running]);
        let condition = &end.status.conditions.as_ref().unwrap()[0];
        assert_eq!(condition.type_, "FailureTarget");
        assert_eq!(condition.reason.as_deref(), Some("BackoffLimitExceeded"));
        let deleted = changed(&pod("x", "Running"), |pod| {
            pod.metadata.deletion_timestamp = Some(Time(at(0)));
        });
        assert_eq!(plan(from_ref(&deleted)).release, [deleted], "deleted is failed");
    }

    #[test]
    fn a_failed_pod_is_replaced_after_a_while() {
        let failed = pod("a", "Failed");
        let early = plan(&job(&json!({})), from_ref(&failed), at(4));
        assert_eq!((early.create.len(), early.again), (0, Some(Duration::from_secs(6))));
        let later = plan(&job(&json!({})), &[failed], at(10));
        assert_eq!((later.create.len(), later.again), (2, None));
    }

    #[test]
    fn a_deadline_ends_a_job() {
        let job = job(&json!({"spec": {"activeDeadlineSeconds": 30}}));
        let running = pod("r", "Running");
        let early = plan(&job, from_ref(&running), at(10));
        assert_eq!(early.again, Some(Duration::from_secs(20)));
        let late = plan(&job, from_ref(&running), at(30));
        assert_eq!(late.abort, [running]);
        let reason = late.status.conditions.unwrap()[0].reason.clone();
        assert_eq!(reason.as_deref(), Some("DeadlineExceeded"));
    }

    #[test]
    fn a_suspended_job_dismisses_its_pods_and_starts_again() {
        let running = pod("r", "Running");
        let mut suspended = job(&json!({"spec": {"suspend": true, "activeDeadlineSeconds": 30}}));
        let rest = plan(&suspended, from_ref(&running), at(100));
        assert_eq!((rest.dismiss.len(), rest.abort.len()), (1, 0));
        assert_eq!((rest.status.start_time.clone(), rest.again), (None, None));
        suspended.status = Some(rest.status);
        suspended.spec.as_mut().unwrap().suspend = Some(false);
        let again = plan(&suspended, &[], at(200));
        assert_eq!(again.create.len(), 2);
        assert_eq!(again.status.start_time, Some(Time(at(200))));
        let condition = &again.status.conditions.unwrap()[0];
        assert_eq!((condition.type_.as_str(), condition.status.as_str()), ("Suspended", "False"));
    }

    #[test]
    fn too_many_pods_are_dismissed() {
        let pods: Vec<_> = ["a", "b", "c"].map(|name| pod(name, "Running")).to_vec();
        assert_eq!(plan(&job(&json!({})), &pods, at(1)).dismiss.len(), 1);
    }

    #[test]
    fn each_index_has_one_success() {
        let spec =
            json!({"spec": {"completionMode": "Indexed", "completions": 4, "parallelism": 3}});
        let mut job = job(&spec);
        let pods = [indexed(&pod("a", "Succeeded"), 1), indexed(&pod("b", "Running"), 0)];
        let first = plan(&job, &pods, at(1));
        assert_eq!(first.create, [Some(2), Some(3)]);
        assert_eq!(first.status.completed_indexes.as_deref(), Some("1"));
        assert_eq!(first.status.succeeded, Some(1));
        job.status = Some(first.status);
        let twice = [indexed(&pod("c", "Succeeded"), 1), indexed(&pod("b", "Running"), 0)];
        assert_eq!(plan(&job, &twice, at(2)).status.succeeded, Some(1));
    }

    #[test]
    fn a_finished_job_lets_go_and_expires() {
        let change = json!({
            "spec": {"ttlSecondsAfterFinished": 60},
            "status": {"conditions": [{"type": "Complete", "status": "True", "lastTransitionTime": START}]},
        });
        let plan = |now| plan(&job(&change), &[pod("d", "Succeeded")], now);
        let early = plan(at(20));
        assert_eq!((early.release.len(), early.again), (1, Some(Duration::from_secs(40))));
        assert!(!early.expired && plan(at(60)).expired);
    }
}
