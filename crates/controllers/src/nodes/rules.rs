//! What pods do on simulated nodes, and when: the stages file and the annotations.
//!
//! Promise: the first rule that matches a pod is taken; what it does not say is as usual; an
//! annotation of the pod itself wins over any rule.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::SignedDuration;
use serde::{Deserialize, Deserializer};

use crate::pod::Pod;

/// On a pod: its containers end well after this time.
pub const COMPLETE_AFTER: &str = "headwater.dev/complete-after";
/// On a pod: its containers fail after this time, again and again if they are restarted.
pub const FAIL_AFTER: &str = "headwater.dev/fail-after";
/// On a pod: the exit code of its containers.
pub const EXIT_CODE: &str = "headwater.dev/exit-code";
/// On a pod: it is ready this long after it runs; `never` for not at all.
pub const READY_AFTER: &str = "headwater.dev/ready-after";

/// Rules for pods and the shape of nodes, from a file.
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
/// # Ok::<(), headwater_controllers::nodes::rules::Invalid>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    #[serde(default)]
    node: Shape,
    #[serde(default)]
    rules: Vec<Rule>,
}

/// The file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the stages are not usable: {0}")]
pub struct Invalid(String);

/// What a simulated node has.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Shape {
    /// Resources; all of them can be used by pods.
    #[serde(default)]
    pub capacity: BTreeMap<String, String>,
    /// Labels beside the usual ones.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Nodes are dealt to so many zones in turn.
    #[serde(default = "three")]
    pub zones: usize,
    /// How often a node renews its lease, if there are not too many of them.
    #[serde(default = "ten_seconds", deserialize_with = "time")]
    pub renew_every: Duration,
}

fn ten_seconds() -> Duration {
    Duration::from_secs(10)
}

fn three() -> usize {
    3
}

impl Default for Shape {
    fn default() -> Shape {
        Shape {
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
    stages: Vec<StageRule>,
}

/// Which pods; all of what is said must fit.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Match {
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    #[serde(default)]
    namespaces: Vec<String>,
    /// The kind of the object that controls the pod.
    owner: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct StageRule {
    stage: Stage,
    #[serde(default, deserialize_with = "time")]
    after: Duration,
    #[serde(default, deserialize_with = "time")]
    jitter: Duration,
    #[serde(default)]
    never: bool,
    exit_code: Option<i32>,
    reason: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
enum Stage {
    Creating,
    Running,
    Ready,
    Succeeded,
    Failed,
    Restarted,
    Gone,
}

/// When something happens: `after`, and up to `jitter` later.
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

    /// The delay with a part of its jitter, from 0 to 1.
    pub(crate) fn with(self, part: f64) -> Duration {
        self.after + self.jitter.mul_f64(part)
    }
}

/// What one pod will do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    /// After it was bound.
    pub(crate) creating: Delay,
    /// After that.
    pub(crate) running: Delay,
    /// After it runs; `None` for never.
    pub(crate) ready: Option<Delay>,
    /// After it runs; `None` if it runs until it is deleted.
    pub(crate) finish: Option<Finish>,
    /// After its containers ended, doubled each time.
    pub(crate) restarted: Delay,
    /// After its deletion was asked for, but never longer than its grace period.
    pub(crate) gone: Delay,
}

impl Plan {
    /// Whether a pod runs as soon as it is bound, so that nobody could see what is between.
    pub(crate) fn is_instant(&self) -> bool {
        self.creating == Delay::default() && self.running == Delay::default()
    }
}

/// How containers end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finish {
    pub(crate) delay: Delay,
    pub(crate) exit_code: i32,
    pub(crate) reason: Option<String>,
}

/// What pods do when nothing says otherwise: quick, but slow enough to be watched.
const USUAL: Plan = Plan {
    creating: Delay::millis(0, 0),
    running: Delay::millis(300, 200),
    ready: Some(Delay::millis(0, 0)),
    finish: None,
    restarted: Delay::millis(10_000, 0),
    gone: Delay::millis(2_000, 0),
};

/// How long the pods of jobs run when nothing says otherwise.
const JOB: Finish = Finish { delay: Delay::millis(5_000, 0), exit_code: 0, reason: None };

impl Rules {
    /// What nodes have.
    pub fn node(&self) -> &Shape {
        &self.node
    }

    /// Every stage follows the one before at once; for tests and measurements.
    pub fn instant() -> Rules {
        let at_once = |stage| StageRule {
            stage,
            after: Duration::ZERO,
            jitter: Duration::ZERO,
            never: false,
            exit_code: None,
            reason: None,
        };
        let stages = [Stage::Creating, Stage::Running, Stage::Ready, Stage::Gone].map(at_once);
        let rule = Rule { matches: Match::default(), stages: stages.into() };
        Rules { node: Shape::default(), rules: vec![rule] }
    }

    /// What a pod will do.
    pub(crate) fn plan(&self, pod: &Pod) -> Plan {
        let mut plan = USUAL;
        if owner(pod) == Some("Job") {
            plan.finish = Some(JOB);
        }
        let rule = self.rules.iter().find(|rule| rule.matches.fits(pod));
        for stage in rule.iter().flat_map(|rule| &rule.stages) {
            stage.apply(&mut plan);
        }
        annotated(&mut plan, pod);
        plan
    }
}

fn owner(pod: &Pod) -> Option<&str> {
    let owners = pod.metadata.owner_references.iter().flatten();
    owners.filter(|owner| owner.controller == Some(true)).map(|owner| owner.kind.as_str()).next()
}

impl Match {
    fn fits(&self, pod: &Pod) -> bool {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        holds(&self.labels, pod.metadata.labels.as_ref())
            && holds(&self.annotations, pod.metadata.annotations.as_ref())
            && (self.namespaces.is_empty() || self.namespaces.iter().any(|name| name == namespace))
            && self.owner.as_deref().is_none_or(|kind| owner(pod) == Some(kind))
    }
}

fn holds(wanted: &BTreeMap<String, String>, there: Option<&BTreeMap<String, String>>) -> bool {
    wanted.iter().all(|(key, value)| there.is_some_and(|there| there.get(key) == Some(value)))
}

impl StageRule {
    fn apply(&self, plan: &mut Plan) {
        let delay = Delay { after: self.after, jitter: self.jitter };
        let finish = |usual: i32| Finish {
            delay,
            exit_code: self.exit_code.unwrap_or(usual),
            reason: self.reason.clone(),
        };
        match self.stage {
            Stage::Creating => plan.creating = delay,
            Stage::Running => plan.running = delay,
            Stage::Ready => plan.ready = (!self.never).then_some(delay),
            Stage::Succeeded => plan.finish = (!self.never).then(|| finish(0)),
            Stage::Failed => plan.finish = (!self.never).then(|| finish(1)),
            Stage::Restarted => plan.restarted = delay,
            Stage::Gone => plan.gone = delay,
        }
    }
}

/// What the pod says of itself; a value that cannot be read is ignored, as an unknown annotation.
fn annotated(plan: &mut Plan, pod: &Pod) {
    let exit_code = || pod.annotation(EXIT_CODE).and_then(|code| code.parse().ok());
    for (annotation, usual) in [(COMPLETE_AFTER, 0), (FAIL_AFTER, 1)] {
        if let Some(after) = pod.annotation(annotation).and_then(parse) {
            let exit_code = exit_code().unwrap_or(usual);
            plan.finish = Some(Finish { delay: Delay::exactly(after), exit_code, reason: None });
        }
    }
    match pod.annotation(READY_AFTER) {
        Some("never") => plan.ready = None,
        Some(text) => plan.ready = parse(text).map(Delay::exactly).or(plan.ready),
        None => {}
    }
}

/// `200ms`, `2s`, `1m30s`.
fn parse(text: &str) -> Option<Duration> {
    text.trim().parse::<SignedDuration>().ok()?.try_into().ok()
}

fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse(&text).ok_or_else(|| {
        serde::de::Error::custom(format!("{text:?} is not a time such as 200ms, 2s or 1m30s"))
    })
}

impl std::str::FromStr for Rules {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Rules, Invalid> {
        serde_saphyr::from_str(text).map_err(|error| Invalid(error.to_string()))
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
    fn the_first_rule_that_matches_is_taken_and_the_rest_is_as_usual() {
        let rules: Rules = FILE.parse().unwrap();
        let flaky = rules.plan(&pod(json!({"namespace": "shop", "labels": {"app": "flaky"}})));
        assert_eq!(flaky.running, Delay::millis(1000, 500));
        let finish = flaky.finish.clone().unwrap();
        assert_eq!((finish.exit_code, finish.reason.as_deref()), (137, Some("OOMKilled")));
        assert_eq!((flaky.ready, flaky.gone), (USUAL.ready, USUAL.gone));
        let elsewhere = rules.plan(&pod(json!({"namespace": "b", "labels": {"app": "flaky"}})));
        assert_eq!(elsewhere, Plan { ready: None, ..USUAL });
        let job = rules.plan(&of_job(json!({})));
        assert_eq!(job.finish.unwrap().delay, Delay::millis(90_000, 0));
    }

    #[test]
    fn annotations_win_over_rules_and_jobs_end_by_themselves() {
        let rules = Rules::default();
        assert_eq!(rules.plan(&pod(json!({}))), USUAL);
        assert_eq!(rules.plan(&of_job(json!({}))).finish, Some(JOB));
        let fails = json!({"annotations": {FAIL_AFTER: "2s", EXIT_CODE: "3"}});
        let finish = rules.plan(&of_job(fails)).finish.unwrap();
        assert_eq!((finish.delay, finish.exit_code), (Delay::millis(2000, 0), 3));
        let never = rules.plan(&pod(json!({"annotations": {READY_AFTER: "never"}})));
        assert_eq!(never.ready, None);
        let nonsense = rules.plan(&pod(json!({"annotations": {COMPLETE_AFTER: "soon"}})));
        assert_eq!(nonsense, USUAL);
    }

    #[test]
    fn a_file_with_a_mistake_says_where() {
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
