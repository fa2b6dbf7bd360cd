//! The stages file and the pod annotations: what pods do on simulated nodes, and when.
//!
//! Promise: the first rule that matches a pod applies; stages it does not mention have their
//! default; annotations of the pod take precedence over rules.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::SignedDuration;
use serde::{Deserialize, Deserializer};

use crate::pod::{Pod, Probe, contains_all};

use super::containers::LOG_EVERY;
use super::load::{CPU, CPU_TOTAL, LoadCurve, MEMORY};

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
/// The pod annotation with the reason of its containers' exit, such as `OOMKilled`.
pub const EXIT_REASON: &str = "headwater.dev/exit-reason";

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
    stages: Vec<StageDelay>,
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
    /// After it runs; `None` for never.
    pub(crate) ready: Option<Delay>,
    /// After it runs; `None` if it runs until it is deleted.
    pub(crate) exit: Option<ContainerExit>,
    /// After its containers terminated; doubles with each restart.
    pub(crate) restarted: Delay,
    /// After the request to delete it, at most its grace period.
    pub(crate) terminated: Delay,
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
    ready: Some(Delay::millis(0, 0)),
    exit: None,
    restarted: Delay::millis(10_000, 0),
    terminated: Delay::millis(2_000, 0),
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
        let rule = Rule { matches: Match::default(), stages: stages.into() };
        Rules { node: NodeTemplate::default(), rules: vec![rule] }
    }

    /// The stages of a pod.
    pub(crate) fn stages_for(&self, pod: &Pod) -> PodStages {
        let mut stages = DEFAULT_STAGES;
        let is_single = owner(pod).is_none() && pod.spec.restart_policy.as_deref() == Some("Never");
        if owner(pod) == Some("Job") || is_single {
            stages.exit = Some(COMPLETION);
        }
        stages.ready = Some(Delay::exactly(probe_delay(pod)));
        let rule = self.rules.iter().find(|rule| rule.matches.fits(pod));
        for stage in rule.iter().flat_map(|rule| &rule.stages) {
            stage.apply(&mut stages);
        }
        apply_annotations(&mut stages, pod);
        stages
    }
}

/// The longest initial delay of the containers' startup and readiness probes.
fn probe_delay(pod: &Pod) -> Duration {
    let delay = |probe: &Option<Probe>| {
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
            Stage::Running => stages.running = delay,
            Stage::Ready => stages.ready = (!self.never).then_some(delay),
            Stage::Succeeded => stages.exit = (!self.never).then(|| exit(0)),
            Stage::Failed => stages.exit = (!self.never).then(|| exit(1)),
            Stage::Restarted => stages.restarted = delay,
            Stage::Gone => stages.terminated = delay,
        }
    }
}

/// Why a registry refuses an image, by default.
const NOT_FOUND: &str = "not found";

/// Applies the pod's annotations; those in [`invalid_annotations`] are ignored.
fn apply_annotations(stages: &mut PodStages, pod: &Pod) {
    let exit_code = || pod.annotation(EXIT_CODE).and_then(|code| code.parse().ok());
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
    if let Some(why) = pod.annotation(PULL_ERROR) {
        stages.pull_error = Some(why.to_owned());
    }
    match pod.annotation(READY_AFTER) {
        Some("never") => stages.ready = None,
        Some(text) => stages.ready = parse(text).map(Delay::exactly).or(stages.ready),
        None => {}
    }
}

/// A check of an annotation's value; what it returns completes "it must be".
type AnnotationCheck = (&'static str, fn(&str) -> bool, &'static str);

const ANNOTATIONS: &[AnnotationCheck] = &[
    (COMPLETE_AFTER, is_time, TIME),
    (FAIL_AFTER, is_time, TIME),
    (READY_AFTER, |text| text == "never" || is_time(text), "never, or a time such as 200ms or 2s"),
    (EXIT_CODE, |text| text.parse::<i32>().is_ok(), "a number"),
    (LOG_EVERY, is_time, TIME),
    (CPU, is_curve, CURVE),
    (CPU_TOTAL, is_curve, CURVE),
    (MEMORY, is_curve, CURVE),
];
const CURVE: &str = "an amount such as 250m, or sine 100m..900m 2m, then noise 10% if wanted";
const TIME: &str = "a time such as 200ms, 2s or 1m30s";

fn is_curve(text: &str) -> bool {
    LoadCurve::parse(text).is_some()
}

fn is_time(text: &str) -> bool {
    parse(text).is_some()
}

/// A sentence for each annotation of ours that cannot be read.
pub(crate) fn invalid_annotations(pod: &Pod) -> Vec<String> {
    let check = |(name, is_valid, must_be): &AnnotationCheck| {
        let value = pod.annotation(name).filter(|value| !is_valid(value))?;
        Some(format!("annotation {name} is ignored: {value:?} must be {must_be}"))
    };
    ANNOTATIONS.iter().filter_map(check).collect()
}

/// Parses `200ms`, `2s`, `1m30s`.
pub(super) fn parse(text: &str) -> Option<Duration> {
    text.trim().parse::<SignedDuration>().ok()?.try_into().ok()
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
        serde_saphyr::from_str(text).map_err(|error| InvalidRules(error.to_string()))
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
        let probes = json!({"containers": [
            {"name": "a", "readinessProbe": {"initialDelaySeconds": 3}, "startupProbe": {"initialDelaySeconds": 2}},
            {"name": "b", "readinessProbe": {}},
        ]});
        let ready = rules.stages_for(&decode(probes)).ready.unwrap();
        assert_eq!(ready, Delay::millis(5_000, 0));
    }

    #[test]
    fn an_invalid_file_is_rejected_with_the_offending_value() {
        for (file, says) in [
            ("rules:\n  - stages: [{stage: Runing}]", "Runing"),
            ("rules:\n  - stages: [{stage: Running, after: soon}]", "soon"),
            ("rule: []", "rule"),
        ] {
            let error = file.parse::<Rules>().unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
