//! The policies of a namespace: a level and a version for each mode, from its labels.
//!
//! Promise: every label set gives a policy. A wrong `enforce` label enforces the strictest level; a wrong
//! `audit` or `warn` label switches that mode off.

use std::fmt;

use headwater_api::status::FieldError;
use headwater_json::Value;

/// The prefix of the labels, and of the annotations of audit events.
pub(super) const PREFIX: &str = "pod-security.kubernetes.io/";

/// How strict a policy is, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SecurityLevel {
    Privileged,
    Baseline,
    Restricted,
}

const LEVELS: [(&str, SecurityLevel); 3] = [
    ("privileged", SecurityLevel::Privileged),
    ("baseline", SecurityLevel::Baseline),
    ("restricted", SecurityLevel::Restricted),
];

impl SecurityLevel {
    fn named(word: &str) -> Option<SecurityLevel> {
        LEVELS.iter().find(|(name, _)| *name == word).map(|(_, level)| *level)
    }

    fn name(self) -> &'static str {
        LEVELS.iter().find(|(_, level)| *level == self).map_or("", |(name, _)| name)
    }
}

/// The minor version of Kubernetes whose checks apply; `None` is the latest.
pub(super) type Minor = Option<u32>;

/// A level and the version of its checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LevelVersion {
    pub(super) level: SecurityLevel,
    pub(super) minor: Minor,
}

impl fmt::Display for LevelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.minor {
            None => write!(f, "{}:latest", self.level.name()),
            Some(minor) => write!(f, "{}:v1.{minor}", self.level.name()),
        }
    }
}

/// What a namespace enforces, audits and warns about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NamespacePolicy {
    pub(super) enforce: LevelVersion,
    pub(super) audit: LevelVersion,
    pub(super) warn: LevelVersion,
}

impl NamespacePolicy {
    const OPEN: LevelVersion = LevelVersion { level: SecurityLevel::Privileged, minor: None };

    /// The policy of a namespace without labels.
    pub(super) const NONE: NamespacePolicy =
        NamespacePolicy { enforce: Self::OPEN, audit: Self::OPEN, warn: Self::OPEN };

    /// The policy in the labels of a namespace, and the errors in them.
    pub(super) fn of(labels: &Value) -> (NamespacePolicy, Vec<FieldError>) {
        let mut policy = NamespacePolicy::NONE;
        let mut errors = Vec::new();
        let label = |name: &str| labels.get(format!("{PREFIX}{name}").as_str())?.as_str();
        let mut mode = |name: &str, of: &mut LevelVersion, wrong: SecurityLevel| {
            let mut refuse = |name: &str, value: &str, why: &str| {
                let field = format!("metadata.labels[{PREFIX}{name}]");
                errors.push(FieldError::invalid(field, &value.into(), why));
            };
            let level = label(name).map(|word| (word, SecurityLevel::named(word)));
            if let Some((word, level)) = level {
                of.level = level.unwrap_or(wrong);
                if level.is_none() {
                    refuse(name, word, "must be one of privileged, baseline, restricted");
                }
            }
            let version = format!("{name}-version");
            if let Some(word) = label(&version) {
                let minor = minor(word);
                of.minor = minor.flatten();
                if minor.is_none() {
                    refuse(&version, word, "must be \"latest\" or \"v1.x\"");
                }
            }
            level.and_then(|(_, level)| level)
        };
        let enforced = mode("enforce", &mut policy.enforce, SecurityLevel::Restricted);
        mode("audit", &mut policy.audit, SecurityLevel::Privileged);
        mode("warn", &mut policy.warn, SecurityLevel::Privileged);
        // Users of a namespace see for controllers what is enforced on their pods.
        let is_stricter = enforced.is_some_and(|level| level > policy.warn.level);
        if label("warn").is_none() && is_stricter {
            policy.warn.level = policy.enforce.level;
            if label("warn-version").is_none() {
                policy.warn.minor = policy.enforce.minor;
            }
        }
        (policy, errors)
    }
}

/// `latest` or `v1.x`.
fn minor(word: &str) -> Option<Minor> {
    if word == "latest" {
        return Some(None);
    }
    let digits = word.strip_prefix("v1.")?;
    let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    let is_short = digits == "0" || !digits.starts_with('0');
    digits.parse().ok().filter(|_| is_plain && is_short).map(Some)
}

#[cfg(test)]
mod tests {
    use headwater_json::json;

    use super::*;

    fn shown(labels: &Value) -> (String, usize) {
        let (policy, errors) = NamespacePolicy::of(labels);
        (format!("{} {} {}", policy.enforce, policy.audit, policy.warn), errors.len())
    }

    #[test]
    fn labels_select_levels_and_versions() {
        let none = "privileged:latest privileged:latest privileged:latest";
        for (labels, expected, errors) in [
            (json!(null), none, 0),
            (json!({ "other": "restricted" }), none, 0),
            (
                json!({ "pod-security.kubernetes.io/enforce": "baseline" }),
                "baseline:latest privileged:latest baseline:latest",
                0,
            ),
            (
                json!({
                    "pod-security.kubernetes.io/enforce": "restricted",
                    "pod-security.kubernetes.io/enforce-version": "v1.22",
                }),
                "restricted:v1.22 privileged:latest restricted:v1.22",
                0,
            ),
            (
                json!({
                    "pod-security.kubernetes.io/enforce": "restricted",
                    "pod-security.kubernetes.io/enforce-version": "v1.022",
                    "pod-security.kubernetes.io/warn-version": "v1.30",
                }),
                "restricted:latest privileged:latest restricted:v1.30",
                1,
            ),
            (
                json!({
                    "pod-security.kubernetes.io/enforce": "strict",
                    "pod-security.kubernetes.io/audit": "strict",
                    "pod-security.kubernetes.io/warn": "",
                }),
                "restricted:latest privileged:latest privileged:latest",
                3,
            ),
            (
                json!({
                    "pod-security.kubernetes.io/enforce": "baseline",
                    "pod-security.kubernetes.io/warn": "privileged",
                    "pod-security.kubernetes.io/audit": "restricted",
                    "pod-security.kubernetes.io/audit-version": "v1.+5",
                }),
                "baseline:latest restricted:latest privileged:latest",
                1,
            ),
        ] {
            assert_eq!(shown(&labels), (expected.to_owned(), errors), "{labels}");
        }
    }
}
