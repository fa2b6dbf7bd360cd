//! The stages file and the pod annotations: what pods do on simulated nodes, and when.
//!
//! Promise: the first rule that matches a pod applies; stages it does not mention have their
//! default; annotations of the pod take precedence over rules.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::pod::{Container, Pod, Probe, contains_all};
use crate::time::parse;

use super::containers::{EXEC_REPLIES, LOG_EVERY, LOG_LINE, LOG_START};
use super::load::{CPU, CPU_TOTAL, LoadCurve, MEMORY};
use super::probes::{ProbeFailures, ProbeKind, ProbePlan};
use super::replies::{ExecReplies, HTTP_REPLIES, HttpReplies};

/// The pod annotation with the time after which its containers succeed.
pub const COMPLETE_AFTER: &str = "headwater.dev/complete-after";
/// The pod annotation with the time after which its containers fail, after every restart.
pub const FAIL_AFTER: &str = "headwater.dev/fail-after";
/// The pod annotation with the exit code of its containers.
pub const EXIT_CODE: &str = "headwater.dev/exit-code";
/// The pod annotation with the time from running to ready, or `never`.
pub const READY_AFTER: &str = "headwater.dev/ready-after";
/// The pod annotation with the message that its containers leave when they terminate.
pub const TERMINATION_MESSAGE: &str = "headwater.dev/termination-message";
/// The pod annotation with the reason why its images cannot be pulled; without it they can.
pub const PULL_ERROR: &str = "headwater.dev/pull-error";
/// The pod annotation with the time after which it starts without the ConfigMaps and Secrets that
/// do not exist, or `never`.
pub const MISSING_AFTER: &str = "headwater.dev/missing-after";
/// The pod annotation with the reason of its containers' exit, such as `OOMKilled`.
pub const EXIT_REASON: &str = "headwater.dev/exit-reason";
/// The pod annotation that says when its readiness probes fail: `30s..45s`, `30s..` or `20%`.
pub const READINESS_FAILS: &str = "headwater.dev/readiness-fails";
/// The same for its liveness probes.
pub const LIVENESS_FAILS: &str = "headwater.dev/liveness-fails";
/// The same for its startup probes.
pub const STARTUP_FAILS: &str = "headwater.dev/startup-fails";

/// Rules for pods and the template of nodes, from a file.
///
/// ```
/// use headwater_controllers::nodes::Rules;
///
/// let rules: Rules = "
/// node:
///   capacity: {cpu: '4', memory: 8Gi, pods: '20'}
/// rules:
///   - match: {labels: {app: flaky}}
///     stages:
///       - {stage: Running, after: 200ms, jitter: 100ms}
///       - {stage: Failed, after: 5s, exitCode: 137, reason: OOMKilled}
/// ".parse()?;
/// # Ok::<(), headwater_controllers::nodes::rules::InvalidRules>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    #[serde(default)]
    node: NodeTemplate,
    #[serde(default)]
    rules: Vec<Rule>,
}

/// The stages file is invalid.
#[derive(Debug, thiserror::Error)]
#[error("invalid stages file: {0}")]
pub struct InvalidRules(String);

/// What a simulated node provides.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct NodeTemplate {
    /// The capacity; all of it is allocatable.
    #[serde(default)]
    pub capacity: BTreeMap<String, String>,
    /// Additional labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The number of zones; nodes are distributed over them alternately.
    #[serde(default = "three")]
    pub zones: usize,
    /// The renewal period of node leases, unless there are too many nodes.
    #[serde(default = "ten_seconds", deserialize_with = "time")]
    pub renew_every: Duration,
}

fn ten_seconds() -> Duration {
    Duration::from_secs(10)
}

fn three() -> usize {
    3
}

impl Default for NodeTemplate {
    fn default() -> NodeTemplate {
        NodeTemplate {
            capacity: BTreeMap::new(),
            labels: BTreeMap::new(),
            zones: three(),
            renew_every: ten_seconds(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    #[serde(default, rename = "match")]
    matches: Match,
    #[serde(default)]
    stages: Vec<StageDelay>,
    /// The annotations of pods that do not have their own.
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// Selects pods; every given field must match.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Match {
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    #[serde(default)]
    namespaces: Vec<String>,
    /// The kind of the pod's controller.
    owner: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct StageDelay {
    stage: Stage,
    #[serde(default, deserialize_with = "time")]
    after: Duration,
    #[serde(default, deserialize_with = "time")]
    jitter: Duration,
    #[serde(default)]
    never: bool,
    exit_code: Option<i32>,
    reason: Option<String>,
    message: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
enum Stage {
    Creating,
    Pulled,
    Missing,
    Running,
    Ready,
    Succeeded,
    Failed,
    Restarted,
    Gone,
}

/// A delay of `after` plus up to `jitter`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delay {
    pub(crate) after: Duration,
    pub(crate) jitter: Duration,
}

impl Delay {
    const fn millis(after: u64, jitter: u64) -> Delay {
        Delay { after: Duration::from_millis(after), jitter: Duration::from_millis(jitter) }
    }

    fn exactly(after: Duration) -> Delay {
        Delay { after, jitter: Duration::ZERO }
    }

    /// The delay with this fraction (0 to 1) of the jitter.
    pub(crate) fn with(self, part: f64) -> Duration {
        self.after + self.jitter.mul_f64(part)
    }
}

/// The delays of one pod's stages.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PodStages {
    /// After it is bound.
    pub(crate) creating: Delay,
    /// After the containers are being created.
    pub(crate) running: Delay,
    /// Why its images cannot be pulled.
    pub(crate) pull_error: Option<String>,
    /// After it could start but for ConfigMaps or Secrets that do not exist; `None` for never.
    pub(crate) missing: Option<Delay>,
    /// After it runs; `None` for never.
    pub(crate) ready: Option<Delay>,
    /// After it runs; `None` if it runs until it is deleted.
    pub(crate) exit: Option<ContainerExit>,
    /// After its containers terminated; doubles with each restart.
    pub(crate) restarted: Delay,
    /// After the request to delete it, at most its grace period.
    pub(crate) terminated: Delay,
    /// The probes that fail at times, in the order of [`ProbeKind`].
    pub(crate) probes: [Option<ProbePlan>; 3],
}

impl PodStages {
    /// Whether a pod runs as soon as it is bound, without an intermediate status.
    pub(crate) fn is_instant(&self) -> bool {
        self.creating == Delay::default() && self.running == Delay::default()
    }
}

/// How containers terminate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContainerExit {
    pub(crate) delay: Delay,
    pub(crate) exit_code: i32,
    pub(crate) reason: Option<String>,
    pub(crate) message: Option<String>,
}

/// The defaults: short, but long enough to be seen in a watch.
const DEFAULT_STAGES: PodStages = PodStages {
    creating: Delay::millis(0, 0),
    running: Delay::millis(300, 200),
    pull_error: None,
    missing: Some(Delay::millis(30_000, 0)),
    ready: Some(Delay::millis(0, 0)),
    exit: None,
    restarted: Delay::millis(10_000, 0),
    terminated: Delay::millis(2_000, 0),
    probes: [None, None, None],
};

/// How pods of Jobs, and pods without a controller that are never restarted, end by default.
const COMPLETION: ContainerExit =
    ContainerExit { delay: Delay::millis(5_000, 0), exit_code: 0, reason: None, message: None };

impl Rules {
    /// The template of nodes.
    pub fn node(&self) -> &NodeTemplate {
        &self.node
    }

    /// Rules without any delay, for tests and benchmarks.
    pub fn instant() -> Rules {
        let at_once = |stage| StageDelay {
            stage,
            after: Duration::ZERO,
            jitter: Duration::ZERO,
            never: false,
            exit_code: None,
            reason: None,
            message: None,
        };
        let stages = [Stage::Creating, Stage::Running, Stage::Ready, Stage::Gone].map(at_once);
        let annotations = BTreeMap::new();
        let rule = Rule { matches: Match::default(), stages: stages.into(), annotations };
        Rules { node: NodeTemplate::default(), rules: vec![rule] }
    }

    /// The stages of a pod.
    pub(crate) fn stages_for(&self, pod: &Pod) -> PodStages {
        let mut stages = DEFAULT_STAGES;
        let is_single = owner(pod).is_none() && pod.spec.restart_policy.as_deref() == Some("Never");
        if owner(pod) == Some("Job") || is_single {
            let sleeps = pod.spec.containers.iter().map(Container::sleep);
            let longest = sleeps.map(|sleep| sleep.unwrap_or(COMPLETION.delay.after)).max();
            let delay = longest.map_or(COMPLETION.delay, Delay::exactly);
            stages.exit = Some(ContainerExit { delay, ..COMPLETION });
        }
        stages.ready = Some(Delay::exactly(probe_delay(pod)));
        for stage in self.rule(pod).iter().flat_map(|rule| &rule.stages) {
            stage.apply(&mut stages);
        }
        apply_annotations(&mut stages, &self.annotated(pod));
        stages
    }

    fn rule(&self, pod: &Pod) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.matches.fits(pod))
    }

    /// The pod with the annotations that its rule adds.
    pub fn annotated<'a>(&self, pod: &'a Pod) -> Cow<'a, Pod> {
        let added = self.rule(pod).map(|rule| &rule.annotations).filter(|added| !added.is_empty());
        let Some(added) = added else { return Cow::Borrowed(pod) };
        let mut pod = pod.clone();
        let annotations = pod.metadata.annotations.get_or_insert_default();
        for (name, value) in added {
            annotations.entry(name.clone()).or_insert_with(|| value.clone());
        }
        Cow::Owned(pod)
    }

    /// As [`Rules::annotated`], for a pod as JSON.
    ///
    /// # Errors
    /// It is not a pod.
    pub fn annotated_json(&self, pod: &[u8]) -> Result<Value, String> {
        let mut value: Value = serde_json::from_slice(pod).map_err(|error| error.to_string())?;
        if self.rules.iter().any(|rule| !rule.annotations.is_empty()) {
            let pod: Pod = serde_json::from_slice(pod).map_err(|error| error.to_string())?;
            if let Cow::Owned(annotated) = self.annotated(&pod) {
                value["metadata"]["annotations"] =
                    serde_json::json!(annotated.metadata.annotations);
            }
        }
        Ok(value)
    }
}

/// The longest initial delay of the containers' startup and readiness probes.
fn probe_delay(pod: &Pod) -> Duration {
    let delay = |probe: &Option<Box<Probe>>| {
        let seconds = probe.as_ref().and_then(|probe| probe.initial_delay_seconds).unwrap_or(0);
        Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
    };
    let containers = pod.spec.containers.iter();
    let each = containers.map(|one| delay(&one.startup_probe) + delay(&one.readiness_probe));
    each.max().unwrap_or_default()
}

fn owner(pod: &Pod) -> Option<&str> {
    let owners = pod.metadata.owner_references.iter().flatten();
    owners.filter(|owner| owner.controller == Some(true)).map(|owner| owner.kind.as_str()).next()
}

impl Match {
    fn fits(&self, pod: &Pod) -> bool {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        pod.has_labels(&self.labels)
            && contains_all(pod.metadata.annotations.as_ref(), &self.annotations)
            && (self.namespaces.is_empty() || self.namespaces.iter().any(|name| name == namespace))
            && self.owner.as_deref().is_none_or(|kind| owner(pod) == Some(kind))
    }
}

impl StageDelay {
    fn apply(&self, stages: &mut PodStages) {
        let delay = Delay { after: self.after, jitter: self.jitter };
        let exit = |usual: i32| ContainerExit {
            delay,
            exit_code: self.exit_code.unwrap_or(usual),
            reason: self.reason.clone(),
            message: self.message.clone(),
        };
        match self.stage {
            Stage::Creating => stages.creating = delay,
            Stage::Pulled => {
                let why = || self.message.clone().unwrap_or_else(|| NOT_FOUND.to_owned());
                stages.pull_error = self.never.then(why);
            }
            Stage::Missing => stages.missing = (!self.never).then_some(delay),
            Stage::Running => stages.running = delay,
            Stage::Ready => stages.ready = (!self.never).then_some(delay),
            Stage::Succeeded => stages.exit = (!self.never).then(|| exit(0)),
            Stage::Failed => stages.exit = (!self.never).then(|| exit(1)),
            Stage::Restarted => stages.restarted = delay,
            Stage::Gone => stages.terminated = delay,
        }
    }
}

/// The exit code of a process that the kernel killed.
const SIGKILL: i32 = 137;

/// The annotations of failing probes, in the order of [`ProbeKind`].
const PROBE_ANNOTATIONS: [&str; 3] = [STARTUP_FAILS, LIVENESS_FAILS, READINESS_FAILS];

/// Why a registry refuses an image, by default.
const NOT_FOUND: &str = "not found";

/// Applies the pod's annotations; those in [`invalid_annotations`] are ignored.
fn apply_annotations(stages: &mut PodStages, pod: &Pod) {
    let killed = (pod.annotation(EXIT_REASON) == Some("OOMKilled")).then_some(SIGKILL);
    let exit_code = || pod.annotation(EXIT_CODE).and_then(|code| code.parse().ok()).or(killed);
    for (annotation, usual) in [(COMPLETE_AFTER, 0), (FAIL_AFTER, 1)] {
        if let Some(after) = pod.annotation(annotation).and_then(parse) {
            let exit_code = exit_code().unwrap_or(usual);
            let delay = Delay::exactly(after);
            stages.exit = Some(ContainerExit { delay, exit_code, reason: None, message: None });
        }
    }
    if let Some(exit) = &mut stages.exit {
        let owned = |name| pod.annotation(name).map(str::to_owned);
        exit.reason = owned(EXIT_REASON).or(exit.reason.take());
        exit.message = owned(TERMINATION_MESSAGE).or(exit.message.take());
    }
    for (kind, name) in ProbeKind::ALL.into_iter().zip(PROBE_ANNOTATIONS) {
        if let Some(failures) = pod.annotation(name).and_then(ProbeFailures::parse) {
            stages.probes[kind as usize] = Some(ProbePlan::of(pod, kind, failures));
        }
    }
    if let Some(why) = pod.annotation(PULL_ERROR) {
        stages.pull_error = Some(why.to_owned());
    }
    stages.ready = or_never(pod.annotation(READY_AFTER), stages.ready);
    stages.missing = or_never(pod.annotation(MISSING_AFTER), stages.missing);
}

/// The delay of an annotation that may be `never`; the usual one if it is absent or unreadable.
fn or_never(text: Option<&str>, usual: Option<Delay>) -> Option<Delay> {
    match text {
        Some("never") => None,
        Some(text) => parse(text).map(Delay::exactly).or(usual),
        None => usual,
    }
}

/// A check of an annotation's value; what it returns completes "it must be".
type AnnotationCheck = (&'static str, fn(&str) -> bool, &'static str);

const ANNOTATIONS: &[AnnotationCheck] = &[
    (COMPLETE_AFTER, is_time, TIME),
    (FAIL_AFTER, is_time, TIME),
    (READY_AFTER, is_time_or_never, TIME_OR_NEVER),
    (MISSING_AFTER, is_time_or_never, TIME_OR_NEVER),
    (EXIT_CODE, |text| text.parse::<i32>().is_ok(), "a number"),
    (LOG_EVERY, is_time, TIME),
    (CPU, is_curve, CURVE),
    (CPU_TOTAL, is_curve, CURVE),
    (MEMORY, is_curve, CURVE),
    (READINESS_FAILS, is_failures, FAILURES),
    (LIVENESS_FAILS, is_failures, FAILURES),
    (STARTUP_FAILS, is_failures, FAILURES),
    (EXEC_REPLIES, |text| ExecReplies::parse(text).is_ok(), EXECS),
    (HTTP_REPLIES, |text| HttpReplies::parse(text).is_ok(), PAGES),
    (LOG_START, |_| true, TEXT),
    (LOG_LINE, |_| true, TEXT),
    (EXIT_REASON, |_| true, TEXT),
    (TERMINATION_MESSAGE, |_| true, TEXT),
    (PULL_ERROR, |_| true, TEXT),
];
const TEXT: &str = "a text";
const FAILURES: &str = "times since the start such as 30s..45s or 30s.., or a part such as 20%";
const EXECS: &str = "a YAML map from command lines to texts, or to stdout, stderr and exitCode";
const PAGES: &str = "a YAML map from paths to texts, or to status, headers and body";
const CURVE: &str = "an amount such as 250m, or sine 100m..900m 2m, then noise 10% if wanted";
const TIME: &str = "a time such as 200ms, 2s or 1m30s";
const TIME_OR_NEVER: &str = "never, or a time such as 200ms or 2s";

fn is_curve(text: &str) -> bool {
    LoadCurve::parse(text).is_some()
}

fn is_failures(text: &str) -> bool {
    ProbeFailures::parse(text).is_some()
}

fn is_time(text: &str) -> bool {
    parse(text).is_some()
}

fn is_time_or_never(text: &str) -> bool {
    text == "never" || is_time(text)
}

/// A sentence for each annotation of ours that cannot be read.
pub(crate) fn invalid_annotations(pod: &Pod) -> Vec<String> {
    let check = |(name, is_valid, must_be): &AnnotationCheck| {
        let value = pod.annotation(name).filter(|value| !is_valid(value))?;
        Some(format!("annotation {name} is ignored: {value:?} must be {must_be}"))
    };
    ANNOTATIONS.iter().filter_map(check).collect()
}

fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse(&text).ok_or_else(|| {
        serde::de::Error::custom(format!(
            "invalid duration {text:?}; write for example 200ms, 2s or 1m30s"
        ))
    })
}

impl std::str::FromStr for Rules {
    type Err = InvalidRules;

    fn from_str(text: &str) -> Result<Rules, InvalidRules> {
        let rules: Rules =
            serde_saphyr::from_str(text).map_err(|error| InvalidRules(error.to_string()))?;
        for (name, value) in rules.rules.iter().flat_map(|rule| &rule.annotations) {
            let known = ANNOTATIONS.iter().find(|(known, ..)| known == name);
            let (_, is_valid, must_be) =
                known.ok_or_else(|| InvalidRules(format!("unknown annotation {name:?}")))?;
            if !is_valid(value) {
                let why = format!("annotation {name}: {value:?} must be {must_be}");
                return Err(InvalidRules(why));
            }
        }
        Ok(rules)
    }
}

#[cfg(test)]
#[allow(clippy::needless_pass_by_value, reason = "tables write values where they are used")]
mod tests {
    use headwater_client::Cached;
    use serde_json::json;

    use super::*;

    const FILE: &str = "
rules:
  - match: {labels: {app: flaky}, namespaces: [shop]}
    stages:
      - {stage: Running, after: 1s, jitter: 500ms}
      - {stage: Failed, after: 5s, exitCode: 137, reason: OOMKilled}
  - match: {owner: Job}
    stages: [{stage: Succeeded, after: 1m30s}]
  - stages: [{stage: Ready, never: true}]
";

    fn pod(metadata: serde_json::Value) -> Pod {
        Pod::decode(&json!({"metadata": metadata}).to_string()).unwrap()
    }

    fn of_job(mut metadata: serde_json::Value) -> Pod {
        metadata["ownerReferences"] = json!([
            {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": true}
        ]);
        pod(metadata)
    }

    #[test]
    fn the_first_matching_rule_applies_and_other_stages_have_defaults() {
        let rules: Rules = FILE.parse().unwrap();
        let flaky =
            rules.stages_for(&pod(json!({"namespace": "shop", "labels": {"app": "flaky"}})));
        assert_eq!(flaky.running, Delay::millis(1000, 500));
        let exit = flaky.exit.clone().unwrap();
        assert_eq!((exit.exit_code, exit.reason.as_deref()), (137, Some("OOMKilled")));
        assert_eq!(
            (flaky.ready, flaky.terminated),
            (DEFAULT_STAGES.ready, DEFAULT_STAGES.terminated)
        );
        let elsewhere =
            rules.stages_for(&pod(json!({"namespace": "b", "labels": {"app": "flaky"}})));
        assert_eq!(elsewhere, PodStages { ready: None, ..DEFAULT_STAGES });
        let job = rules.stages_for(&of_job(json!({})));
        assert_eq!(job.exit.unwrap().delay, Delay::millis(90_000, 0));
    }

    #[test]
    fn annotations_take_precedence_and_job_pods_complete() {
        let rules = Rules::default();
        assert_eq!(rules.stages_for(&pod(json!({}))), DEFAULT_STAGES);
        assert_eq!(rules.stages_for(&of_job(json!({}))).exit, Some(COMPLETION));
        let fails = json!({"annotations": {FAIL_AFTER: "2s", EXIT_CODE: "3"}});
        let exit = rules.stages_for(&of_job(fails)).exit.unwrap();
        assert_eq!((exit.delay, exit.exit_code), (Delay::millis(2000, 0), 3));
        let never = rules.stages_for(&pod(json!({"annotations": {READY_AFTER: "never"}})));
        assert_eq!(never.ready, None);
        let nonsense = pod(json!({"annotations": {COMPLETE_AFTER: "soon", EXIT_CODE: "x"}}));
        assert_eq!(rules.stages_for(&nonsense), DEFAULT_STAGES);
        let invalid = invalid_annotations(&nonsense);
        assert_eq!(invalid.len(), 2);
        assert!(invalid[0].contains(COMPLETE_AFTER) && invalid[0].contains("\"soon\""));
        assert!(
            invalid_annotations(&pod(json!({"annotations": {READY_AFTER: "never"}}))).is_empty()
        );
        for (text, expected) in [
            ("never", None),
            ("2s", Some(Delay::millis(2_000, 0))),
            ("soon", DEFAULT_STAGES.missing),
        ] {
            let pod = pod(json!({"annotations": {MISSING_AFTER: text}}));
            assert_eq!(rules.stages_for(&pod).missing, expected, "{text}");
        }
        let message = json!({"annotations": {FAIL_AFTER: "1s", EXIT_REASON: "OOMKilled",
            TERMINATION_MESSAGE: "no memory", PULL_ERROR: "denied"}});
        let stages = rules.stages_for(&pod(message));
        let exit = stages.exit.unwrap();
        assert_eq!(
            (exit.reason.as_deref(), exit.message.as_deref()),
            (Some("OOMKilled"), Some("no memory"))
        );
        assert_eq!(stages.pull_error.as_deref(), Some("denied"));
    }

    #[test]
    fn a_single_pod_that_is_never_restarted_completes_and_probes_delay_readiness() {
        let decode = |spec: serde_json::Value| {
            Pod::decode(&json!({"metadata": {}, "spec": spec}).to_string()).unwrap()
        };
        let rules = Rules::default();
        assert_eq!(
            rules.stages_for(&decode(json!({"restartPolicy": "Never"}))).exit,
            Some(COMPLETION)
        );
        assert_eq!(rules.stages_for(&decode(json!({"restartPolicy": "Always"}))).exit, None);
        let sleeping = json!({"restartPolicy": "Never", "containers": [
            {"name": "a", "command": ["sleep", "300"]}, {"name": "b", "args": ["sh", "-c", "sleep 2"]},
            {"name": "c"},
        ]});
        let exit = rules.stages_for(&decode(sleeping)).exit.unwrap();
        assert_eq!(exit, ContainerExit { delay: Delay::millis(300_000, 0), ..COMPLETION });
        let probes = json!({"containers": [
            {"name": "a", "readinessProbe": {"initialDelaySeconds": 3}, "startupProbe": {"initialDelaySeconds": 2}},
            {"name": "b", "readinessProbe": {}},
        ]});
        let ready = rules.stages_for(&decode(probes)).ready.unwrap();
        assert_eq!(ready, Delay::millis(5_000, 0));
    }

    #[test]
    fn a_rule_adds_annotations_that_the_pod_does_not_have() {
        let rules: Rules = "
rules:
  - match: {labels: {app: db}}
    annotations: {headwater.dev/log-line: tick, headwater.dev/ready-after: 3s}
"
        .parse()
        .unwrap();
        let metadata = json!({"labels": {"app": "db"}, "annotations": {LOG_LINE: "own"}});
        let db = pod(metadata.clone());
        assert_eq!(rules.annotated(&db).annotation(LOG_LINE), Some("own"));
        assert_eq!(rules.stages_for(&db).ready, Some(Delay::millis(3_000, 0)));
        let text = json!({"metadata": metadata}).to_string();
        let annotated = rules.annotated_json(text.as_bytes()).unwrap();
        let annotations = &annotated["metadata"]["annotations"];
        assert_eq!(
            (&annotations[LOG_LINE], &annotations[READY_AFTER]),
            (&json!("own"), &json!("3s"))
        );
        let other = pod(json!({}));
        assert!(matches!(rules.annotated(&other), Cow::Borrowed(_)));
    }

    #[test]
    fn a_container_that_is_killed_for_memory_has_the_exit_code_of_a_kill() {
        let annotations = json!({"annotations": {FAIL_AFTER: "2s", EXIT_REASON: "OOMKilled"}});
        let exit = Rules::default().stages_for(&pod(annotations)).exit.unwrap();
        assert_eq!((exit.exit_code, exit.reason.as_deref()), (137, Some("OOMKilled")));
    }

    #[test]
    fn an_invalid_file_is_rejected_with_the_offending_value() {
        for (file, says) in [
            ("rules:\n  - stages: [{stage: Runing}]", "Runing"),
            ("rules:\n  - stages: [{stage: Running, after: soon}]", "soon"),
            ("rule: []", "rule"),
            ("rules: [{annotations: {headwater.dev/log-lines: x}}]", "log-lines"),
            ("rules: [{annotations: {headwater.dev/log-every: soon}}]", "soon"),
            ("rules: [{annotations: {headwater.dev/exec-replies: '- a'}}]", "YAML map"),
        ] {
            let error = file.parse::<Rules>().unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
