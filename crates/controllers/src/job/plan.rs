//! The plan of a Job: pods to create, to delete and to release, and the new status.
//!
//! Every pod has a finalizer until it is counted, so that each is counted once, whenever the
//! process is killed: (1) the UID of a terminated pod is written to `uncountedTerminatedPods`, (2)
//! its finalizer is removed, (3) once the cache shows that, the UID is replaced by an increased
//! count.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use headwater_client::Cached;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobSpec, JobStatus, UncountedTerminatedPods};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::deletion_order::pods_to_delete;
use crate::difference::count;
use crate::pod::Pod;
use crate::slow_start::BURST_MAX;
use crate::time;

use super::indexes;
use super::policy::{self, FailureAction};

pub(super) const TRACKING_FINALIZER: &str = "batch.kubernetes.io/job-tracking";
pub(super) const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// The annotation with the number of failures of the index before this pod.
pub(super) const INDEX_FAILURE_COUNT: &str = "batch.kubernetes.io/job-index-failure-count";

/// The delay before a failed pod is replaced; it doubles with each failure.
const BACKOFF_SECONDS: i64 = 10;
const BACKOFF_SECONDS_MAX: i64 = 600;
/// The maximum number of UIDs in `uncountedTerminatedPods`, which bounds the size of the status.
const UNCOUNTED_MAX: usize = 500;

/// What to do, in this order.
#[derive(Debug, Default, PartialEq)]
pub(super) struct JobPlan {
    /// Pods to create, each with its completion index if the Job is indexed.
    pub(super) create: Vec<Option<i32>>,
    /// The failures so far of the indexes in `create`, if failures are limited per index.
    pub(super) failures: BTreeMap<i32, i32>,
    /// Pods that are not needed; they are not counted.
    pub(super) delete_uncounted: Vec<Arc<Pod>>,
    /// Active pods of a Job that failed; they count as failed.
    pub(super) delete_failed: Vec<Arc<Pod>>,
    pub(super) status: JobStatus,
    /// Pods whose finalizer is removed after the status is written.
    pub(super) release: Vec<Arc<Pod>>,
    /// When to reconcile again without a change.
    pub(super) next_check: Option<Duration>,
    /// The Job has finished and its `ttlSecondsAfterFinished` has passed.
    pub(super) is_expired: bool,
}

/// The condition `Complete` or `Failed`, if the Job has finished.
pub(super) fn finished(job: &Job) -> Option<&JobCondition> {
    let conditions = job.status.as_ref().and_then(|status| status.conditions.as_deref());
    conditions.unwrap_or_default().iter().find(|condition| {
        matches!(condition.type_.as_str(), "Complete" | "Failed") && condition.status == "True"
    })
}

pub(super) fn plan(job: &Job, pods: &[Arc<Pod>], now: Timestamp) -> JobPlan {
    match finished(job) {
        Some(end) => plan_finished(job, end, pods, now),
        None => JobSync::new(job, pods, now).plan(),
    }
}

/// Releases the pods of a finished Job, and deletes the Job after its TTL.
fn plan_finished(job: &Job, end: &JobCondition, pods: &[Arc<Pod>], now: Timestamp) -> JobPlan {
    let release = pods.iter().filter(|pod| is_tracked(pod)).cloned().collect();
    let status = job.status.clone().unwrap_or_default();
    let ttl = job.spec.as_ref().and_then(|spec| spec.ttl_seconds_after_finished);
    let since = end.last_transition_time.as_ref().map(|time| time.0);
    let mut plan = JobPlan { release, status, ..JobPlan::default() };
    if let (Some(ttl), Some(since)) = (ttl, since) {
        let wait = time::until(now, time::after(since, ttl));
        plan.is_expired = wait.is_zero();
        plan.next_check = (!wait.is_zero()).then_some(wait);
    }
    plan
}

pub(super) fn is_tracked(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == TRACKING_FINALIZER)
}

fn index_of(pod: &Pod) -> Option<i32> {
    pod.annotation(COMPLETION_INDEX)?.parse().ok()
}

struct JobSync<'a> {
    job: &'a Job,
    spec: JobSpec,
    pods: &'a [Arc<Pod>],
    now: Timestamp,
    status: JobStatus,
    uncounted: Uncounted,
    completed: BTreeSet<i32>,
    /// Indexes that are not retried.
    failed_indexes: BTreeSet<i32>,
    /// The message of the `podFailurePolicy` rule that failed the Job.
    failed_by_policy: Option<String>,
    release: Vec<Arc<Pod>>,
}

#[derive(Default)]
struct Uncounted {
    succeeded: BTreeSet<String>,
    failed: BTreeSet<String>,
}

impl<'a> JobSync<'a> {
    fn new(job: &'a Job, pods: &'a [Arc<Pod>], now: Timestamp) -> JobSync<'a> {
        let (spec, status) = (job.spec.clone().unwrap_or_default(), job.status.clone());
        let mut status = status.unwrap_or_default();
        let known = status.uncounted_terminated_pods.take().unwrap_or_default();
        let set = |list: Option<Vec<String>>| list.unwrap_or_default().into_iter().collect();
        let uncounted = Uncounted { succeeded: set(known.succeeded), failed: set(known.failed) };
        let read = |text: &Option<String>| {
            indexes::parse(text.as_deref().unwrap_or_default(), spec.completions.unwrap_or(0))
        };
        let (completed, failed_indexes) =
            (read(&status.completed_indexes), read(&status.failed_indexes));
        JobSync {
            job,
            spec,
            pods,
            now,
            status,
            uncounted,
            completed,
            failed_indexes,
            failed_by_policy: None,
            release: Vec::new(),
        }
    }

    /// Whether a pod counts as failed. A pod that is being deleted counts at once, unless the Job
    /// has a
    /// `podFailurePolicy` or replaces only failed pods; then it counts when its grace period is
    /// over.
    fn has_failed(&self, pod: &Pod) -> bool {
        let is_patient = self.spec.pod_failure_policy.is_some()
            || self.spec.pod_replacement_policy.as_deref() == Some("Failed");
        let is_over = || pod.metadata.deletion_grace_period_seconds == Some(0);
        let is_gone = pod.is_deleting() && pod.phase() != "Succeeded";
        pod.phase() == "Failed" || (is_gone && (!is_patient || is_over()))
    }

    /// The limit of failures per index, if there is one.
    fn index_limit(&self) -> Option<i32> {
        self.spec.backoff_limit_per_index.filter(|_| self.is_indexed())
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

    fn plan(mut self) -> JobPlan {
        self.count_untracked();
        self.record_terminated(Replacement::Later);
        self.start_or_suspend();
        let mut plan = JobPlan::default();
        let active = self.active();
        let target = self.target(active.len());
        if target.is_some() {
            // No pod is replaced any more.
            self.release.clear();
            self.record_terminated(Replacement::Never);
        }
        match target {
            Some(JobTarget::Success { reason, message }) => {
                self.set_target("SuccessCriteriaMet", &reason, &message);
                plan.delete_uncounted = active;
            }
            Some(JobTarget::Failure { reason, message }) => {
                self.set_target("FailureTarget", &reason, &message);
                plan.delete_failed = active;
            }
            None if self.job.metadata.deletion_timestamp.is_some() => {}
            None => self.plan_pods(&active, &mut plan),
        }
        self.write_counts();
        self.finish();
        plan.next_check = plan.next_check.into_iter().chain(self.until_deadline()).min();
        plan.release = self.release;
        plan.status = self.status;
        plan
    }

    /// Step 3: counts the recorded pods whose finalizer is removed.
    fn count_untracked(&mut self) {
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

    /// Step 1: records terminated pods, to be released.
    fn record_terminated(&mut self, replacing: Replacement) {
        for pod in self.pods.iter().filter(|pod| is_tracked(pod)) {
            let uid = pod.uid();
            let known =
                self.uncounted.succeeded.contains(uid) || self.uncounted.failed.contains(uid);
            let full =
                self.uncounted.succeeded.len() + self.uncounted.failed.len() >= UNCOUNTED_MAX;
            match () {
                () if known => {}
                () if full => continue,
                () if pod.phase() == "Succeeded" => self.record_success(pod),
                () if self.has_failed(pod) => {
                    if !self.record_failure(pod) && replacing == Replacement::Later {
                        continue;
                    }
                }
                () => continue,
            }
            self.release.push(Arc::clone(pod));
        }
    }

    fn record_success(&mut self, pod: &Pod) {
        if !self.is_indexed() {
            self.uncounted.succeeded.insert(pod.uid().to_owned());
            return;
        }
        // An index is counted once, however many of its pods succeed.
        let completions = self.spec.completions.unwrap_or(0);
        self.completed.extend(index_of(pod).filter(|index| (0..completions).contains(index)));
    }

    /// Records a failure; returns whether the pod may be released. While its index may be retried,
    /// the pod is kept until its replacement carries the number of failures.
    fn record_failure(&mut self, pod: &Pod) -> bool {
        let verdict = policy::match_failure_policy(&self.spec, pod);
        let index = index_of(pod).filter(|_| self.index_limit().is_some());
        if let (Some(index), Some(limit)) = (index, self.index_limit()) {
            let has_index_failed =
                verdict == FailureAction::FailIndex || self.failures_with(pod) > limit;
            if has_index_failed {
                self.failed_indexes.insert(index);
            }
            let is_settled = has_index_failed
                || self.failed_indexes.contains(&index)
                || self.completed.contains(&index);
            if !is_settled && !self.is_replaced(pod, index) {
                return false;
            }
        }
        if verdict != FailureAction::Ignore {
            self.uncounted.failed.insert(pod.uid().to_owned());
        }
        if let FailureAction::FailJob(why) = verdict {
            self.failed_by_policy.get_or_insert(why);
        }
        true
    }

    /// The failures of a failed pod's index, including this one.
    fn failures_with(&self, pod: &Pod) -> i32 {
        let before = failures_before(pod);
        let counts = policy::match_failure_policy(&self.spec, pod) != FailureAction::Ignore;
        before.saturating_add(i32::from(counts))
    }

    /// Whether a later pod exists for the index of a failed pod.
    fn is_replaced(&self, failed: &Pod, index: i32) -> bool {
        let others = self.pods.iter().filter(|pod| index_of(pod) == Some(index));
        let mut others = others.filter(|pod| pod.uid() != failed.uid());
        others.any(|pod| pod.is_active() || failures_before(pod) > failures_before(failed))
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

    /// Whether the Job has met its success or failure criteria; this is never revoked.
    fn target(&self, active: usize) -> Option<JobTarget> {
        let text = |text: &Option<String>| Cow::Owned(text.clone().unwrap_or_default());
        if let Some(before) = self.condition("SuccessCriteriaMet") {
            let (reason, message) = (text(&before.reason), text(&before.message));
            return Some(JobTarget::Success { reason, message });
        }
        if let Some(before) = self.condition("FailureTarget") {
            let (reason, message) = (text(&before.reason), text(&before.message));
            return Some(JobTarget::Failure { reason, message });
        }
        if let Some(why) = &self.failed_by_policy {
            return Some(JobTarget::failure("PodFailurePolicy", why.clone()));
        }
        let unlimited = self.index_limit().map_or(6, |_| i32::MAX);
        let limit = self.spec.backoff_limit.unwrap_or(unlimited);
        if self.failed() > number(Some(limit)) || self.restarts_exceed(limit) {
            let message = "Job has reached the specified backoff limit";
            return Some(JobTarget::failure("BackoffLimitExceeded", message));
        }
        if self.until_deadline().is_some_and(|wait| wait.is_zero()) {
            let message = "Job was active longer than specified deadline";
            return Some(JobTarget::failure("DeadlineExceeded", message));
        }
        if let Some(target) = self.failed_indexes_target() {
            return Some(target);
        }
        let by_rule =
            policy::match_success_policy(&self.spec, &self.completed).filter(|_| self.is_indexed());
        if let Some(message) = by_rule {
            return Some(JobTarget::success("SuccessPolicy", message));
        }
        let is_complete = match self.spec.completions {
            Some(completions) => self.succeeded() >= number(Some(completions)),
            // Without `completions`, one success completes the Job when no pod is active.
            None => self.succeeded() > 0 && active == 0,
        };
        let message = "Reached expected number of succeeded pods";
        is_complete.then(|| JobTarget::success("CompletionsReached", message))
    }

    /// Fails the Job if too many indexes failed, or if some failed and all others are complete.
    fn failed_indexes_target(&self) -> Option<JobTarget> {
        let most = self.spec.max_failed_indexes.map(|most| number(Some(most)));
        if most.is_some_and(|most| self.failed_indexes.len() > most) {
            let message = "Job has exceeded the specified maximal number of failed indexes";
            return Some(JobTarget::failure("MaxFailedIndexesExceeded", message));
        }
        let ended = self.failed_indexes.len() + self.completed.len();
        let is_over = !self.failed_indexes.is_empty() && ended >= number(self.spec.completions);
        is_over.then(|| JobTarget::failure("FailedIndexes", "Job has failed indexes"))
    }

    /// Whether pods with `restartPolicy: OnFailure` restarted too often.
    fn restarts_exceed(&self, limit: i32) -> bool {
        let policy = self.spec.template.spec.as_ref().and_then(|it| it.restart_policy.as_deref());
        if policy != Some("OnFailure") {
            return false;
        }
        let pods = self.pods.iter().filter(|pod| matches!(pod.phase(), "Running" | "Pending"));
        let containers = pods.flat_map(|pod| {
            pod.status.container_statuses.iter().chain(&pod.status.init_container_statuses)
        });
        let restarts: i32 =
            containers.map(|container| container.restart_count).fold(0, i32::saturating_add);
        if limit == 0 { restarts > 0 } else { restarts >= limit }
    }

    fn until_deadline(&self) -> Option<Duration> {
        let seconds = self.spec.active_deadline_seconds?;
        let start = self.status.start_time.as_ref()?.0;
        let is_over = self.condition("SuccessCriteriaMet").or(self.condition("FailureTarget"));
        let running = is_over.is_none() && !self.is_suspended();
        running.then(|| time::until(self.now, time::after(start, seconds)))
    }

    fn set_target(&mut self, type_: &str, reason: &str, message: &str) {
        if self.condition(type_).is_none() {
            self.set(type_, "True", reason, message);
        }
    }

    /// Creates or deletes pods to reach the desired number; delays the creation after a failure.
    fn plan_pods(&self, active: &[Arc<Pod>], plan: &mut JobPlan) {
        let parallelism = number(Some(self.spec.parallelism.unwrap_or(1)));
        let wanted = match self.spec.completions {
            _ if self.is_suspended() => 0,
            Some(completions) => {
                let ended = self.succeeded() + self.failed_indexes.len();
                number(Some(completions)).saturating_sub(ended).min(parallelism)
            }
            None if self.succeeded() > 0 => active.len().min(parallelism),
            None => parallelism,
        };
        if active.len() > wanted {
            let crowds = std::collections::BTreeMap::new();
            plan.delete_uncounted =
                pods_to_delete(active, active.len() - wanted, &crowds, self.now);
            return;
        }
        let replaced = match self.spec.pod_replacement_policy.as_deref() {
            Some("Failed") => self.terminating(),
            _ => 0,
        };
        // Each created pod causes the next reconcile, which creates the remainder.
        let missing = wanted.saturating_sub(active.len() + replaced).min(BURST_MAX);
        if missing == 0 {
            return;
        }
        if self.index_limit().is_some() {
            return self.plan_indexed_pods(active, missing, plan);
        }
        let wait = self.backoff();
        if !wait.is_zero() {
            plan.next_check = Some(wait);
            return;
        }
        plan.create = match self.is_indexed() {
            false => vec![None; missing],
            true => self.free_indexes(active).take(missing).map(Some).collect(),
        };
    }

    /// Creates pods for a Job with failures and delays per index.
    fn plan_indexed_pods(&self, active: &[Arc<Pod>], missing: usize, plan: &mut JobPlan) {
        for index in self.free_indexes(active) {
            let failed = self.pods.iter().filter(|pod| index_of(pod) == Some(index));
            let failed: Vec<&Arc<Pod>> = failed.filter(|pod| self.has_failed(pod)).collect();
            let failures = failed.iter().map(|pod| self.failures_with(pod)).max().unwrap_or(0);
            let wait = self.delay(failed.iter().map(|pod| &***pod), number(Some(failures)));
            if !wait.is_zero() {
                plan.next_check = plan.next_check.into_iter().chain([wait]).min();
            } else if plan.create.len() < missing {
                plan.create.push(Some(index));
                plan.failures.insert(index, failures);
            }
        }
    }

    fn free_indexes(&self, active: &[Arc<Pod>]) -> impl Iterator<Item = i32> {
        let busy: BTreeSet<i32> = active.iter().filter_map(|pod| index_of(pod)).collect();
        let completions = self.spec.completions.unwrap_or(0);
        (0..completions).filter(move |index| {
            !busy.contains(index)
                && !self.completed.contains(index)
                && !self.failed_indexes.contains(index)
        })
    }

    /// How long to delay the next pod because of earlier failures.
    fn backoff(&self) -> Duration {
        let failed = self.pods.iter().filter(|pod| self.has_failed(pod));
        self.delay(failed.map(|pod| &**pod), self.failed())
    }

    /// How long to wait after the last of these failed pods, given the number of failures.
    fn delay<'p>(&self, failed: impl Iterator<Item = &'p Pod>, count: usize) -> Duration {
        let last = failed.filter_map(ended).max();
        let (Some(last), Ok(failed)) = (last, u32::try_from(count)) else {
            return Duration::ZERO;
        };
        let doubled = 2_i64.saturating_pow(failed.saturating_sub(1).min(20));
        let seconds = BACKOFF_SECONDS.saturating_mul(doubled).min(BACKOFF_SECONDS_MAX);
        time::until(self.now, time::after(last, seconds))
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
        if self.index_limit().is_some() {
            self.status.failed_indexes = Some(indexes::print(&self.failed_indexes));
        }
        let list = |set: &BTreeSet<String>| {
            (!set.is_empty()).then(|| set.iter().cloned().collect::<Vec<String>>())
        };
        self.status.uncounted_terminated_pods = Some(UncountedTerminatedPods {
            succeeded: list(&self.uncounted.succeeded),
            failed: list(&self.uncounted.failed),
        });
    }

    /// Sets `Complete` or `Failed` once every pod has terminated and is counted.
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

/// Whether a failed pod is kept until its replacement exists.
#[derive(Clone, Copy, PartialEq)]
enum Replacement {
    Later,
    Never,
}

/// The outcome that the Job is committed to, and why.
enum JobTarget {
    Success { reason: Text, message: Text },
    Failure { reason: Text, message: Text },
}

type Text = Cow<'static, str>;

impl JobTarget {
    fn success(reason: &'static str, message: impl Into<Text>) -> JobTarget {
        JobTarget::Success { reason: reason.into(), message: message.into() }
    }

    fn failure(reason: &'static str, message: impl Into<Text>) -> JobTarget {
        JobTarget::Failure { reason: reason.into(), message: message.into() }
    }
}

fn failures_before(pod: &Pod) -> i32 {
    pod.annotation(INDEX_FAILURE_COUNT).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// When a pod terminated, from the best available timestamp.
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
        time::after(START.parse().unwrap(), seconds)
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
            "metadata": {"name": name, "uid": name, "finalizers": [TRACKING_FINALIZER]},
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
    fn pods_are_created_up_to_parallelism_and_remaining_completions() {
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
    fn the_largest_parallelism_creates_a_bounded_number_of_pods() {
        let largest = json!({"completions": i32::MAX, "parallelism": i32::MAX});
        creates(largest.clone(), &[], BURST_MAX);
        let mut indexed = largest.clone();
        indexed["completionMode"] = "Indexed".into();
        creates(indexed, &[], BURST_MAX);
        let mut without = largest;
        without["completions"] = Value::Null;
        creates(without, &[], BURST_MAX);
    }

    #[test]
    fn a_pod_is_counted_once_over_many_reconciles() {
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
    fn too_many_failures_fail_the_job_and_delete_its_pods() {
        let (one, two) = (pod("a", "Failed"), pod("b", "Failed"));
        let running = pod("r", "Running");
        let job = job(&json!({}));
        let plan = |pods: &[Arc<Pod>]| super::plan(&job, pods, at(1000));
        assert_eq!(plan(&[one.clone(), running.clone()]).delete_failed, []);
        let end = plan(&[one, two, running.clone()]);
        assert_eq!(end.delete_failed, [running]);
        let condition = &end.status.conditions.as_ref().unwrap()[0];
        assert_eq!(condition.type_, "FailureTarget");
        assert_eq!(condition.reason.as_deref(), Some("BackoffLimitExceeded"));
        let deleted = changed(&pod("x", "Running"), |pod| {
            pod.metadata.deletion_timestamp = Some(Time(at(0)));
        });
        assert_eq!(plan(from_ref(&deleted)).release, [deleted], "deleted is failed");
    }

    #[test]
    fn a_failed_pod_is_replaced_after_its_backoff() {
        let failed = pod("a", "Failed");
        let early = plan(&job(&json!({})), from_ref(&failed), at(4));
        assert_eq!((early.create.len(), early.next_check), (0, Some(Duration::from_secs(6))));
        let later = plan(&job(&json!({})), &[failed], at(10));
        assert_eq!((later.create.len(), later.next_check), (2, None));
    }

    #[test]
    fn a_passed_deadline_fails_the_job() {
        let job = job(&json!({"spec": {"activeDeadlineSeconds": 30}}));
        let running = pod("r", "Running");
        let early = plan(&job, from_ref(&running), at(10));
        assert_eq!(early.next_check, Some(Duration::from_secs(20)));
        let late = plan(&job, from_ref(&running), at(30));
        assert_eq!(late.delete_failed, [running]);
        let reason = late.status.conditions.unwrap()[0].reason.clone();
        assert_eq!(reason.as_deref(), Some("DeadlineExceeded"));
    }

    #[test]
    fn a_suspended_job_deletes_its_pods_and_resumes_later() {
        let running = pod("r", "Running");
        let mut suspended = job(&json!({"spec": {"suspend": true, "activeDeadlineSeconds": 30}}));
        let rest = plan(&suspended, from_ref(&running), at(100));
        assert_eq!((rest.delete_uncounted.len(), rest.delete_failed.len()), (1, 0));
        assert_eq!((rest.status.start_time.clone(), rest.next_check), (None, None));
        suspended.status = Some(rest.status);
        suspended.spec.as_mut().unwrap().suspend = Some(false);
        let again = plan(&suspended, &[], at(200));
        assert_eq!(again.create.len(), 2);
        assert_eq!(again.status.start_time, Some(Time(at(200))));
        let condition = &again.status.conditions.unwrap()[0];
        assert_eq!((condition.type_.as_str(), condition.status.as_str()), ("Suspended", "False"));
    }

    #[test]
    fn surplus_pods_are_deleted_uncounted() {
        let pods: Vec<_> = ["a", "b", "c"].map(|name| pod(name, "Running")).to_vec();
        assert_eq!(plan(&job(&json!({})), &pods, at(1)).delete_uncounted.len(), 1);
    }

    #[test]
    fn each_index_succeeds_once() {
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

    fn reason(plan: &JobPlan, type_: &str) -> String {
        let mut conditions = plan.status.conditions.iter().flatten();
        let found = conditions.find(|it| it.type_ == type_);
        found.and_then(|it| it.reason.clone()).unwrap_or_default()
    }

    fn exiting(pod: &Arc<Pod>, code: i32) -> Arc<Pod> {
        changed(pod, |pod| {
            let status = json!({"name": "c", "state": {"terminated": {"exitCode": code, "finishedAt": START}}});
            pod.status.container_statuses = vec![serde_json::from_value(status).unwrap()];
        })
    }

    #[test]
    fn pod_failure_policy_rules_decide_about_failures() {
        let rule = |action: &str, code: i32| json!({"action": action, "onExitCodes": {"operator": "In", "values": [code]}});
        let rules = json!([rule("Ignore", 1), rule("FailJob", 2)]);
        let job = job(&json!({"spec": {"backoffLimit": 0, "podFailurePolicy": {"rules": rules}}}));
        let ignored = exiting(&pod("a", "Failed"), 1);
        let first = plan(&job, from_ref(&ignored), at(1000));
        assert_eq!((first.release.len(), first.create.len()), (1, 2), "it goes and is replaced");
        assert_eq!(first.status.uncounted_terminated_pods, Some(Default::default()));
        let fatal = plan(&job, &[exiting(&pod("b", "Failed"), 2), pod("r", "Running")], at(1000));
        assert_eq!(reason(&fatal, "FailureTarget"), "PodFailurePolicy");
        assert_eq!(fatal.delete_failed.len(), 1);
        let counted = plan(&job, &[exiting(&pod("c", "Failed"), 3)], at(1000));
        assert_eq!(reason(&counted, "FailureTarget"), "BackoffLimitExceeded");
        // A failure policy applies to a pod that has failed, not to one that is about to.
        let going = changed(&pod("d", "Running"), |pod| {
            pod.metadata.deletion_timestamp = Some(Time(at(0)));
            pod.metadata.deletion_grace_period_seconds = Some(30);
        });
        assert_eq!(plan(&job, from_ref(&going), at(1)).release, []);
        let gone = changed(&going, |pod| pod.metadata.deletion_grace_period_seconds = Some(0));
        assert_eq!(plan(&job, from_ref(&gone), at(1)).release, [gone]);
    }

    fn by_index(change: &Value) -> Job {
        let mut spec = json!({
            "completionMode": "Indexed", "completions": 3, "parallelism": 3,
            "backoffLimit": null, "backoffLimitPerIndex": 1,
        });
        crate::fixture::merge(&mut spec, change);
        job(&json!({"spec": spec}))
    }

    fn failed_before(pod: &Arc<Pod>, count: i32) -> Arc<Pod> {
        changed(pod, |pod| {
            let annotations = pod.metadata.annotations.get_or_insert_default();
            annotations.insert(INDEX_FAILURE_COUNT.to_owned(), count.to_string());
        })
    }

    #[test]
    fn a_failed_index_does_not_stop_the_others() {
        let mut job = by_index(&json!({}));
        let first = indexed(&pod("a", "Failed"), 1);
        let early = plan(&job, from_ref(&first), at(4));
        assert_eq!(early.create, [Some(0), Some(2)], "the others do not wait");
        assert_eq!(early.next_check, Some(Duration::from_secs(6)));
        assert_eq!(early.release, [], "it is kept for the one that replaces it");
        let later = plan(&job, from_ref(&first), at(10));
        assert_eq!(later.create, [Some(0), Some(1), Some(2)]);
        assert_eq!(later.failures, [(0, 0), (1, 1), (2, 0)].into());
        let second = failed_before(&indexed(&pod("b", "Running"), 1), 1);
        let replaced = plan(&job, &[first.clone(), second], at(11));
        assert_eq!(replaced.release, from_ref(&first));
        let again = failed_before(&indexed(&pod("b", "Failed"), 1), 1);
        let second_failure = plan(&job, &[released(&first), again.clone()], at(100));
        assert_eq!(second_failure.status.failed_indexes.as_deref(), Some("1"));
        assert_eq!(
            (second_failure.create, second_failure.release),
            (vec![Some(0), Some(2)], vec![again])
        );
        job.status = Some(second_failure.status);
        let done = [indexed(&pod("x", "Succeeded"), 0), indexed(&pod("y", "Succeeded"), 2)];
        let end = plan(&job, &done, at(200));
        assert_eq!(reason(&end, "FailureTarget"), "FailedIndexes");
        assert_eq!(end.status.completed_indexes.as_deref(), Some("0,2"));
    }

    #[test]
    fn too_many_failed_indexes_fail_the_job_at_once() {
        let failed =
            |index| failed_before(&indexed(&pod(&format!("p{index}"), "Failed"), index), 1);
        let job = by_index(&json!({"maxFailedIndexes": 1}));
        let one = plan(&job, &[failed(0), indexed(&pod("r", "Running"), 2)], at(100));
        assert_eq!(reason(&one, "FailureTarget"), "");
        let two = plan(&job, &[failed(0), failed(1), indexed(&pod("r", "Running"), 2)], at(100));
        assert_eq!(reason(&two, "FailureTarget"), "MaxFailedIndexesExceeded");
        assert_eq!((two.delete_failed.len(), two.release.len()), (1, 2));
        let rules =
            json!([{"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [9]}}]);
        let job = by_index(&json!({"podFailurePolicy": {"rules": rules}}));
        let fatal = plan(&job, &[exiting(&indexed(&pod("a", "Failed"), 0), 9)], at(100));
        assert_eq!(fatal.status.failed_indexes.as_deref(), Some("0"), "without a second try");
    }

    #[test]
    fn a_success_policy_completes_the_job_early() {
        let rules = json!([{"succeededIndexes": "0-1", "succeededCount": 1}]);
        let spec = json!({
            "completionMode": "Indexed", "parallelism": 3, "successPolicy": {"rules": rules},
        });
        let job = job(&json!({"spec": spec}));
        let other = [indexed(&pod("a", "Succeeded"), 2), indexed(&pod("r", "Running"), 1)];
        assert_eq!(reason(&plan(&job, &other, at(1)), "SuccessCriteriaMet"), "");
        let leader = [indexed(&pod("a", "Succeeded"), 1), indexed(&pod("r", "Running"), 0)];
        let end = plan(&job, &leader, at(1));
        assert_eq!(reason(&end, "SuccessCriteriaMet"), "SuccessPolicy");
        assert_eq!(end.delete_uncounted.len(), 1);
    }

    #[test]
    fn a_finished_job_releases_its_pods_and_expires() {
        let change = json!({
            "spec": {"ttlSecondsAfterFinished": 60},
            "status": {"conditions": [{"type": "Complete", "status": "True", "lastTransitionTime": START}]},
        });
        let plan = |now| plan(&job(&change), &[pod("d", "Succeeded")], now);
        let early = plan(at(20));
        assert_eq!((early.release.len(), early.next_check), (1, Some(Duration::from_secs(40))));
        assert!(!early.is_expired && plan(at(60)).is_expired);
    }
}
