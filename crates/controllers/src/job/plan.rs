//! What a Job needs now: pods to create, to delete, to let go of, and the status it has earned.
//!
//! Every pod carries a finalizer of ours until it is counted, so that each counts once whatever is
//! killed in between: (1) the UID of a pod that ended is written into the status, (2) its finalizer
//! is taken off, (3) once that is seen the UID becomes part of a number.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
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
use super::policy::{self, Verdict};

pub(super) const TRACKING: &str = "batch.kubernetes.io/job-tracking";
pub(super) const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// How often the index of a pod had failed before it.
pub(super) const INDEX_FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";

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
    /// How often the indexes that have a limit of failures have failed so far.
    pub(super) failures: BTreeMap<i32, i32>,
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
    /// Indexes that are not tried again.
    lost: BTreeSet<i32>,
    /// Why a rule says that the Job has failed.
    failed_by_rule: Option<String>,
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
        let read = |text: &Option<String>| {
            indexes::parse(text.as_deref().unwrap_or_default(), spec.completions.unwrap_or(0))
        };
        let (completed, lost) = (read(&status.completed_indexes), read(&status.failed_indexes));
        Work {
            job,
            spec,
            pods,
            now,
            status,
            uncounted,
            completed,
            lost,
            failed_by_rule: None,
            release: Vec::new(),
        }
    }

    /// A pod that is gone before it succeeded counts as failed: nobody will ever see it end. Where
    /// only failures are replaced, or have a meaning, it is waited for until its node is done.
    fn has_failed(&self, pod: &Pod) -> bool {
        let is_patient = self.spec.pod_failure_policy.is_some()
            || self.spec.pod_replacement_policy.as_deref() == Some("Failed");
        let is_over = || pod.metadata.deletion_grace_period_seconds == Some(0);
        let is_gone = pod.is_deleting() && pod.phase() != "Succeeded";
        pod.phase() == "Failed" || (is_gone && (!is_patient || is_over()))
    }

    /// How often an index may fail, if each has a limit of its own.
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

    fn plan(mut self) -> Plan {
        self.count_released();
        self.take_in(Replacing::Later);
        self.start_or_suspend();
        let mut plan = Plan::default();
        let active = self.active();
        let target = self.target(active.len());
        if target.is_some() {
            // Nothing will be replaced any more.
            self.release.clear();
            self.take_in(Replacing::Never);
        }
        match target {
            Some(Target::Success { reason, message }) => {
                self.aim("SuccessCriteriaMet", &reason, &message);
                plan.dismiss = active;
            }
            Some(Target::Failure { reason, message }) => {
                self.aim("FailureTarget", &reason, &message);
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
    fn take_in(&mut self, replacing: Replacing) {
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
                () if self.has_failed(pod) => {
                    if !self.take_failure(pod) && replacing == Replacing::Later {
                        continue;
                    }
                }
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

    /// Judges a failure; whether the pod may go. While its index may be tried again, it stays until
    /// its successor knows how often the index has failed.
    fn take_failure(&mut self, pod: &Pod) -> bool {
        let verdict = policy::verdict(&self.spec, pod);
        let index = index_of(pod).filter(|_| self.index_limit().is_some());
        if let (Some(index), Some(limit)) = (index, self.index_limit()) {
            let is_lost = verdict == Verdict::FailIndex || self.failures_with(pod) > limit;
            if is_lost {
                self.lost.insert(index);
            }
            let is_settled =
                is_lost || self.lost.contains(&index) || self.completed.contains(&index);
            if !is_settled && !self.is_replaced(pod, index) {
                return false;
            }
        }
        if verdict != Verdict::Ignore {
            self.uncounted.failed.insert(pod.uid().to_owned());
        }
        if let Verdict::FailJob(why) = verdict {
            self.failed_by_rule.get_or_insert(why);
        }
        true
    }

    /// How often the index of a failed pod has failed, this time included.
    fn failures_with(&self, pod: &Pod) -> i32 {
        let before = failures_before(pod);
        let counts = policy::verdict(&self.spec, pod) != Verdict::Ignore;
        before.saturating_add(i32::from(counts))
    }

    /// Whether there is a pod for its index that came after a failed one.
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

    /// Whether the Job is on its way to an end: one that was decided before stays decided.
    fn target(&self, active: usize) -> Option<Target> {
        let text = |text: &Option<String>| Cow::Owned(text.clone().unwrap_or_default());
        if let Some(before) = self.condition("SuccessCriteriaMet") {
            let (reason, message) = (text(&before.reason), text(&before.message));
            return Some(Target::Success { reason, message });
        }
        if let Some(before) = self.condition("FailureTarget") {
            let (reason, message) = (text(&before.reason), text(&before.message));
            return Some(Target::Failure { reason, message });
        }
        if let Some(why) = &self.failed_by_rule {
            return Some(Target::failure("PodFailurePolicy", why.clone()));
        }
        let unlimited = self.index_limit().map_or(6, |_| i32::MAX);
        let limit = self.spec.backoff_limit.unwrap_or(unlimited);
        if self.failed() > number(Some(limit)) || self.restarts_exceed(limit) {
            let message = "Job has reached the specified backoff limit";
            return Some(Target::failure("BackoffLimitExceeded", message));
        }
        if self.until_deadline().is_some_and(|wait| wait.is_zero()) {
            let message = "Job was active longer than specified deadline";
            return Some(Target::failure("DeadlineExceeded", message));
        }
        if let Some(target) = self.lost_indexes() {
            return Some(target);
        }
        let by_rule = policy::success(&self.spec, &self.completed).filter(|_| self.is_indexed());
        if let Some(message) = by_rule {
            return Some(Target::success("SuccessPolicy", message));
        }
        let is_complete = match self.spec.completions {
            Some(completions) => self.succeeded() >= number(Some(completions)),
            // Without a number of completions one success ends the Job, when the others are done.
            None => self.succeeded() > 0 && active == 0,
        };
        let message = "Reached expected number of succeeded pods";
        is_complete.then(|| Target::success("CompletionsReached", message))
    }

    /// Indexes that failed end the Job when there are too many, or when all others are done.
    fn lost_indexes(&self) -> Option<Target> {
        let most = self.spec.max_failed_indexes.map(|most| number(Some(most)));
        if most.is_some_and(|most| self.lost.len() > most) {
            let message = "Job has exceeded the specified maximal number of failed indexes";
            return Some(Target::failure("MaxFailedIndexesExceeded", message));
        }
        let ended = self.lost.len() + self.completed.len();
        let is_over = !self.lost.is_empty() && ended >= number(self.spec.completions);
        is_over.then(|| Target::failure("FailedIndexes", "Job has failed indexes"))
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
                let ended = self.succeeded() + self.lost.len();
                number(Some(completions)).saturating_sub(ended).min(parallelism)
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
        if self.index_limit().is_some() {
            return self.manage_indexes(active, missing, plan);
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

    /// Pods for indexes each of which has failures, and a delay, of its own.
    fn manage_indexes(&self, active: &[Arc<Pod>], missing: usize, plan: &mut Plan) {
        for index in self.free_indexes(active) {
            let failed = self.pods.iter().filter(|pod| index_of(pod) == Some(index));
            let failed: Vec<&Arc<Pod>> = failed.filter(|pod| self.has_failed(pod)).collect();
            let failures = failed.iter().map(|pod| self.failures_with(pod)).max().unwrap_or(0);
            let wait = self.delay(failed.iter().map(|pod| &***pod), number(Some(failures)));
            if !wait.is_zero() {
                plan.again = plan.again.into_iter().chain([wait]).min();
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
            !busy.contains(index) && !self.completed.contains(index) && !self.lost.contains(index)
        })
    }

    /// How long the next pod has to wait because others failed.
    fn backoff(&self) -> Duration {
        let failed = self.pods.iter().filter(|pod| self.has_failed(pod));
        self.delay(failed.map(|pod| &**pod), self.failed())
    }

    /// How long after the last of these pods the next one comes, if there were so many failures.
    fn delay<'p>(&self, failed: impl Iterator<Item = &'p Pod>, count: usize) -> Duration {
        let last = failed.filter_map(ended).max();
        let (Some(last), Ok(failed)) = (last, u32::try_from(count)) else {
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
        if self.index_limit().is_some() {
            self.status.failed_indexes = Some(indexes::print(&self.lost));
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

/// Whether a failed pod may wait for its successor.
#[derive(Clone, Copy, PartialEq)]
enum Replacing {
    Later,
    Never,
}

/// Where a Job is going, and why.
enum Target {
    Success { reason: Text, message: Text },
    Failure { reason: Text, message: Text },
}

type Text = Cow<'static, str>;

impl Target {
    fn success(reason: &'static str, message: impl Into<Text>) -> Target {
        Target::Success { reason: reason.into(), message: message.into() }
    }

    fn failure(reason: &'static str, message: impl Into<Text>) -> Target {
        Target::Failure { reason: reason.into(), message: message.into() }
    }
}

fn failures_before(pod: &Pod) -> i32 {
    pod.annotation(INDEX_FAILURES).and_then(|text| text.parse().ok()).unwrap_or(0)
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

    fn reason(plan: &Plan, type_: &str) -> String {
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
    fn a_failure_means_what_the_rules_of_the_job_say() {
        let rule = |action: &str, code: i32| json!({"action": action, "onExitCodes": {"operator": "In", "values": [code]}});
        let rules = json!([rule("Ignore", 1), rule("FailJob", 2)]);
        let job = job(&json!({"spec": {"backoffLimit": 0, "podFailurePolicy": {"rules": rules}}}));
        let ignored = exiting(&pod("a", "Failed"), 1);
        let first = plan(&job, from_ref(&ignored), at(1000));
        assert_eq!((first.release.len(), first.create.len()), (1, 2), "it goes and is replaced");
        assert_eq!(first.status.uncounted_terminated_pods, Some(Default::default()));
        let fatal = plan(&job, &[exiting(&pod("b", "Failed"), 2), pod("r", "Running")], at(1000));
        assert_eq!(reason(&fatal, "FailureTarget"), "PodFailurePolicy");
        assert_eq!(fatal.abort.len(), 1);
        let counted = plan(&job, &[exiting(&pod("c", "Failed"), 3)], at(1000));
        assert_eq!(reason(&counted, "FailureTarget"), "BackoffLimitExceeded");
        // What a failure means is known when it has failed, not when it is told to go.
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
            annotations.insert(INDEX_FAILURES.to_owned(), count.to_string());
        })
    }

    #[test]
    fn an_index_fails_by_itself_and_the_others_go_on() {
        let mut job = by_index(&json!({}));
        let first = indexed(&pod("a", "Failed"), 1);
        let early = plan(&job, from_ref(&first), at(4));
        assert_eq!(early.create, [Some(0), Some(2)], "the others do not wait");
        assert_eq!(early.again, Some(Duration::from_secs(6)));
        assert_eq!(early.release, [], "it is kept for the one that replaces it");
        let later = plan(&job, from_ref(&first), at(10));
        assert_eq!(later.create, [Some(0), Some(1), Some(2)]);
        assert_eq!(later.failures, [(0, 0), (1, 1), (2, 0)].into());
        let second = failed_before(&indexed(&pod("b", "Running"), 1), 1);
        let replaced = plan(&job, &[first.clone(), second], at(11));
        assert_eq!(replaced.release, from_ref(&first));
        let again = failed_before(&indexed(&pod("b", "Failed"), 1), 1);
        let lost = plan(&job, &[released(&first), again.clone()], at(100));
        assert_eq!(lost.status.failed_indexes.as_deref(), Some("1"));
        assert_eq!((lost.create, lost.release), (vec![Some(0), Some(2)], vec![again]));
        job.status = Some(lost.status);
        let done = [indexed(&pod("x", "Succeeded"), 0), indexed(&pod("y", "Succeeded"), 2)];
        let end = plan(&job, &done, at(200));
        assert_eq!(reason(&end, "FailureTarget"), "FailedIndexes");
        assert_eq!(end.status.completed_indexes.as_deref(), Some("0,2"));
    }

    #[test]
    fn too_many_failed_indexes_end_a_job_at_once() {
        let failed =
            |index| failed_before(&indexed(&pod(&format!("p{index}"), "Failed"), index), 1);
        let job = by_index(&json!({"maxFailedIndexes": 1}));
        let one = plan(&job, &[failed(0), indexed(&pod("r", "Running"), 2)], at(100));
        assert_eq!(reason(&one, "FailureTarget"), "");
        let two = plan(&job, &[failed(0), failed(1), indexed(&pod("r", "Running"), 2)], at(100));
        assert_eq!(reason(&two, "FailureTarget"), "MaxFailedIndexesExceeded");
        assert_eq!((two.abort.len(), two.release.len()), (1, 2));
        let rules =
            json!([{"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [9]}}]);
        let job = by_index(&json!({"podFailurePolicy": {"rules": rules}}));
        let fatal = plan(&job, &[exiting(&indexed(&pod("a", "Failed"), 0), 9)], at(100));
        assert_eq!(fatal.status.failed_indexes.as_deref(), Some("0"), "without a second try");
    }

    #[test]
    fn a_success_policy_ends_a_job_before_all_indexes_are_done() {
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
        assert_eq!(end.dismiss.len(), 1);
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
