//! Probes that fail by rule: which of them fail, and what follows.
//!
//! Promise: pure. A verdict depends on the pod, its rule and the time since its containers started.

use std::time::Duration;

use headwater_api::fnv;

use crate::pod::{Container, Pod, Probe};
use crate::time::parse;

/// A kind of probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeKind {
    Startup,
    Liveness,
    Readiness,
}

impl ProbeKind {
    pub(crate) const ALL: [ProbeKind; 3] =
        [ProbeKind::Startup, ProbeKind::Liveness, ProbeKind::Readiness];

    /// The word in events.
    pub(crate) fn name(self) -> &'static str {
        match self {
            ProbeKind::Startup => "Startup",
            ProbeKind::Liveness => "Liveness",
            ProbeKind::Readiness => "Readiness",
        }
    }

    fn of(self, container: &Container) -> Option<&Probe> {
        match self {
            ProbeKind::Startup => container.startup_probe.as_deref(),
            ProbeKind::Liveness => container.liveness_probe.as_deref(),
            ProbeKind::Readiness => container.readiness_probe.as_deref(),
        }
    }
}

/// When probes fail.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ProbeFailures {
    /// From a time after the start of the containers, up to another.
    Between(Duration, Option<Duration>),
    /// A part of them, from 0 to 1.
    Part(f64),
}

impl ProbeFailures {
    /// Parses `30s..45s`, `30s..`, `..45s` or `20%`.
    pub(crate) fn parse(text: &str) -> Option<ProbeFailures> {
        if let Some(part) = text.trim().strip_suffix('%') {
            let part = part.trim().parse::<f64>().ok()? / 100.0;
            return (0.0..=1.0).contains(&part).then_some(ProbeFailures::Part(part));
        }
        let (from, until) = text.split_once("..")?;
        let from = if from.trim().is_empty() { Duration::ZERO } else { parse(from)? };
        let until = if until.trim().is_empty() { None } else { Some(parse(until)?) };
        Some(ProbeFailures::Between(from, until)).filter(|_| until.is_none_or(|it| it > from))
    }

    fn fails(self, at: Duration, salt: &str) -> bool {
        match self {
            ProbeFailures::Between(from, until) => at >= from && until.is_none_or(|it| at < it),
            ProbeFailures::Part(part) => {
                let hash = fnv::hash(format!("{salt}{}", at.as_millis()).as_bytes());
                ((hash >> 11) as f64 / (1_u64 << 53) as f64) < part
            }
        }
    }
}

/// A probe that fails at times: the first one of the pod's containers, or one with the usual values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ProbePlan {
    failures: ProbeFailures,
    delay: Duration,
    period: Duration,
    /// The failures in a row that count.
    failures_min: u32,
    /// The successes in a row that count.
    successes_min: u32,
}

/// The values of a probe that sets none.
const PERIOD: u32 = 10;
const FAILURES_MIN: u32 = 3;

/// What probes say so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeVerdict {
    Passing,
    Failing,
    /// Too few of them agree: what holds continues to hold.
    Undecided,
}

impl ProbePlan {
    pub(crate) fn of(pod: &Pod, kind: ProbeKind, failures: ProbeFailures) -> ProbePlan {
        let probe = pod.spec.containers.iter().find_map(|container| kind.of(container));
        let value = |value: fn(&Probe) -> Option<i32>| {
            let value = probe.and_then(value).and_then(|value| u32::try_from(value).ok());
            value.filter(|value| *value > 0)
        };
        let seconds = |seconds: u32| Duration::from_secs(u64::from(seconds));
        ProbePlan {
            failures,
            delay: seconds(value(|probe| probe.initial_delay_seconds).unwrap_or(0)),
            period: seconds(value(|probe| probe.period_seconds).unwrap_or(PERIOD)),
            failures_min: value(|probe| probe.failure_threshold).unwrap_or(FAILURES_MIN),
            successes_min: value(|probe| probe.success_threshold).unwrap_or(1),
        }
    }

    fn fails(&self, number: u32, salt: &str) -> bool {
        self.failures.fails(self.delay + self.period * number, salt)
    }

    /// The number of probes up to now.
    fn count(&self, elapsed: Duration) -> u32 {
        let Some(since) = elapsed.checked_sub(self.delay) else { return 0 };
        let periods = since.as_millis() / self.period.as_millis().max(1);
        u32::try_from(periods).unwrap_or(u32::MAX - 1).saturating_add(1)
    }

    /// The time of the next probe.
    pub(crate) fn next(&self, elapsed: Duration) -> Duration {
        self.delay + self.period.saturating_mul(self.count(elapsed))
    }

    /// The verdict of the latest probes.
    pub(crate) fn verdict(&self, elapsed: Duration, salt: &str) -> ProbeVerdict {
        let count = self.count(elapsed);
        let last = |min: u32, fails: bool| {
            count >= min && (count - min..count).all(|number| self.fails(number, salt) == fails)
        };
        match () {
            () if last(self.failures_min, true) => ProbeVerdict::Failing,
            () if last(self.successes_min, false) => ProbeVerdict::Passing,
            () => ProbeVerdict::Undecided,
        }
    }

    /// The verdict about the start, which is final: the first success, or too many failures before it.
    pub(crate) fn started(&self, elapsed: Duration, salt: &str) -> ProbeVerdict {
        let count = self.count(elapsed).min(self.failures_min);
        match (0..count).any(|number| !self.fails(number, salt)) {
            true => ProbeVerdict::Passing,
            false if count == self.failures_min => ProbeVerdict::Failing,
            false => ProbeVerdict::Undecided,
        }
    }
}

#[cfg(test)]
mod tests {
    use headwater_client::Cached;
    use serde_json::json;

    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn plan(text: &str) -> ProbePlan {
        let probe = json!({"initialDelaySeconds": 5, "periodSeconds": 2, "failureThreshold": 2});
        let containers = json!([{"name": "c", "livenessProbe": probe}]);
        let pod = json!({"metadata": {}, "spec": {"containers": containers}});
        let pod = Pod::decode(&pod.to_string()).unwrap();
        ProbePlan::of(&pod, ProbeKind::Liveness, ProbeFailures::parse(text).unwrap())
    }

    #[test]
    fn failures_are_times_or_a_part() {
        for (text, expected) in [
            ("30s..45s", Some(ProbeFailures::Between(seconds(30), Some(seconds(45))))),
            ("30s..", Some(ProbeFailures::Between(seconds(30), None))),
            ("..5s", Some(ProbeFailures::Between(Duration::ZERO, Some(seconds(5))))),
            ("20%", Some(ProbeFailures::Part(0.2))),
            ("45s..30s", None),
            ("200%", None),
            ("soon", None),
            ("", None),
        ] {
            assert_eq!(ProbeFailures::parse(text), expected, "{text}");
        }
    }

    #[test]
    fn failures_count_when_enough_of_them_follow_each_other() {
        use ProbeVerdict::{Failing, Passing, Undecided};
        // Probes at 5, 7, 9, 11, 13 …
        let plan = plan("9s..13s");
        for (at, verdict, next) in [
            (0, Undecided, 5),
            (5, Passing, 7),
            (9, Undecided, 11),
            (10, Undecided, 11),
            (11, Failing, 13),
            (13, Passing, 15),
        ] {
            assert_eq!(plan.verdict(seconds(at), ""), verdict, "{at} s");
            assert_eq!(plan.next(seconds(at)), seconds(next), "{at} s");
        }
    }

    #[test]
    fn a_start_is_decided_once() {
        use ProbeVerdict::{Failing, Passing, Undecided};
        for (text, verdicts) in [
            ("..6s", [Undecided, Undecided, Passing, Passing]),
            ("..60s", [Undecided, Undecided, Failing, Failing]),
            ("6s..", [Undecided, Passing, Passing, Passing]),
        ] {
            let plan = plan(text);
            let found = [0, 5, 7, 30].map(|at| plan.started(seconds(at), ""));
            assert_eq!(found, verdicts, "{text}");
        }
    }

    #[test]
    fn a_part_of_the_probes_fails_in_the_same_places_every_time() {
        let plan = plan("30%");
        let failed = |salt: &str| (0..1_000).filter(|number| plan.fails(*number, salt)).count();
        assert!((200..400).contains(&failed("a")), "{}", failed("a"));
        assert_eq!(failed("a"), failed("a"));
        let differs = |number: u32| plan.fails(number, "a") != plan.fails(number, "b");
        assert!((0..50).any(differs), "another pod fails in other places");
    }
}
