//! Rules of workloads, autoscalers and disruption budgets.

use headwater_json::Value;

use super::job;
use super::rule::{CRON_JOB_NAME_BYTES_MAX, Seen, percent};
use super::{Check, Object, Path, has, is_true, list, map, number, objects, shown, text};
use headwater_api::cron::Schedule;
use headwater_api::name;
use headwater_api::selector::StructuredSelector;

pub(super) fn deployment(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    selected_template(check, spec, path, "deployment", "ReplicaSet");
    let deadline = number(spec, "progressDeadlineSeconds");
    if deadline.is_some_and(|deadline| deadline <= number(spec, "minReadySeconds").unwrap_or(0)) {
        let why = "must be greater than minReadySeconds";
        let value = shown(spec, "progressDeadlineSeconds");
        check.invalid(path.field("progressDeadlineSeconds"), &value, why);
    }
    let Some(strategy) = map(spec, "strategy") else { return };
    let at = path.field("strategy");
    match text(strategy, "type") {
        "Recreate" if has(strategy, "rollingUpdate") => check.forbidden(
            at.field("rollingUpdate"),
            "may not be specified when strategy `type` is 'Recreate'",
        ),
        "Recreate" => {}
        "RollingUpdate" => {
            let rolling = map(strategy, "rollingUpdate");
            if rolling.is_some_and(stands_still) {
                let rolling_path = at.field("rollingUpdate");
                let value = rolling.map(|rolling| shown(rolling, "maxUnavailable"));
                check.invalid(
                    rolling_path.field("maxUnavailable"),
                    &value.unwrap_or_default(),
                    "may not be 0 when `maxSurge` is 0",
                );
            }
        }
        _ => check.not_supported(at, &shown(spec, "strategy"), &["Recreate", "RollingUpdate"]),
    }
}

/// Rejects a rollout that allows neither surge nor unavailable pods.
fn stands_still(rolling: &Object) -> bool {
    count_of(rolling, "maxUnavailable") == 0 && count_of(rolling, "maxSurge") == 0
}

/// An integer, or the number of a percentage.
fn count_of(object: &Object, name: &str) -> i64 {
    let value = object.get(name);
    let written = |value: &Value| value.as_str()?.parse().ok();
    value
        .and_then(|value| percent(value).or_else(|| value.as_i64().or_else(|| written(value))))
        .unwrap_or(0)
}

pub(super) fn replica_set(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    selected_template(check, spec, path, "deployment", "ReplicaSet");
}

pub(super) fn daemon_set(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    selected_template(check, spec, path, "daemonset", "DaemonSet");
    let Some(strategy) = map(spec, "updateStrategy") else { return };
    let at = path.field("updateStrategy");
    match (text(strategy, "type"), map(strategy, "rollingUpdate")) {
        ("OnDelete", _) => {}
        ("RollingUpdate", Some(rolling)) => {
            let rolling_path = at.field("rollingUpdate");
            let (down, up) = (count_of(rolling, "maxUnavailable"), count_of(rolling, "maxSurge"));
            if down != 0 && up != 0 {
                let why = "may not be set when maxUnavailable is non-zero";
                check.invalid(rolling_path.field("maxSurge"), &shown(rolling, "maxSurge"), why);
            } else if stands_still(rolling) {
                let why = "cannot be 0 when maxSurge is 0";
                check.required(rolling_path.field("maxUnavailable"), why);
            }
        }
        ("RollingUpdate", None) => check.required(at.field("rollingUpdate"), ""),
        _ => {
            let supported = ["RollingUpdate", "OnDelete"];
            check.not_supported(at, &shown(spec, "updateStrategy"), &supported);
        }
    }
}

/// The volumes that the claims of a StatefulSet become in its pods.
fn claim_volumes(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    let template = path.field("template");
    let pod = template.field("spec");
    let at = pod.field("volumes");
    let mut names = Seen::default();
    let mut index = 0;
    for (_, claim) in objects(spec, "volumeClaimTemplates") {
        let name = map(claim, "metadata").map_or("", |metadata| text(metadata, "name"));
        if !names.insert(name) {
            continue;
        }
        let volume = at.index(index);
        if name.is_empty() {
            check.required(volume.field("name"), "");
            check.required(volume.field("persistentVolumeClaim").field("claimName"), "");
        } else {
            check.problems(volume.field("name"), name, name::label(name));
        }
        index += 1;
    }
}

pub(super) fn stateful_set(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    selected_template(check, spec, path, "statefulset", "StatefulSet");
    claim_volumes(check, spec, path);
    let policy = text(spec, "podManagementPolicy");
    if !matches!(policy, "" | "OrderedReady" | "Parallel") {
        let why = "must be 'OrderedReady' or 'Parallel'";
        check.invalid(path.field("podManagementPolicy"), &policy.into(), why);
    }
    let Some(strategy) = map(spec, "updateStrategy") else { return };
    let at = path.field("updateStrategy");
    match text(strategy, "type") {
        "" => check.required(at, ""),
        "OnDelete" if has(strategy, "rollingUpdate") => {
            let why = "only allowed for updateStrategy 'RollingUpdate'";
            check.invalid(at.field("rollingUpdate"), &shown(strategy, "rollingUpdate"), why);
        }
        "OnDelete" | "RollingUpdate" => {}
        _ => {
            let why = "must be 'RollingUpdate' or 'OnDelete'";
            check.invalid(at, &shown(spec, "updateStrategy"), why);
        }
    }
}

pub(super) fn replication_controller(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    let Some(template) = map(spec, "template") else { return };
    let empty = Object::new();
    let selector = map(spec, "selector").unwrap_or(&empty);
    let labels = template_labels(template);
    let matched = selector.iter().all(|(key, value)| labels.get(key) == Some(value));
    restarting_template(check, template, &path.field("template"), matched, "ReplicationController");
}

/// Checks that a selector is not empty and matches the template.
fn selected_template(
    check: &mut Check<'_>,
    spec: &Object,
    path: &Path<'_>,
    what: &str,
    runner: &str,
) {
    let Some(template) = map(spec, "template") else { return };
    let at = path.field("selector");
    let matched = match map(spec, "selector") {
        // No selector selects nothing, which is an error of its own only for some kinds.
        None => {
            if runner != "DaemonSet" {
                check.required(at, "");
            }
            Some(false)
        }
        Some(selector) => {
            if is_empty_selector(selector) {
                let why = format!("empty selector is invalid for {what}");
                check.invalid(at, &shown(spec, "selector"), &why);
            }
            let matched = selects(selector, template_labels(template));
            if matched.is_none() && runner != "DaemonSet" {
                let why = if runner == "ReplicaSet" { "invalid label selector" } else { "" };
                check.invalid(at, &shown(spec, "selector"), why);
                // Pods of an unknown selection are not checked.
                check.skip("template");
                if runner == "ReplicaSet" {
                    return;
                }
            }
            matched
        }
    };
    let matched = matched.unwrap_or(true);
    restarting_template(check, template, &path.field("template"), matched, runner);
}

fn restarting_template(
    check: &mut Check<'_>,
    template: &Object,
    path: &Path<'_>,
    matched: bool,
    runner: &str,
) {
    if !matched {
        unmatched(check, template, path);
    }
    let Some(pod) = map(template, "spec") else { return };
    let spec_path = path.field("spec");
    let policy = text(pod, "restartPolicy");
    if policy != "Always" {
        check.not_supported(spec_path.field("restartPolicy"), &policy.into(), &["Always"]);
    }
    if has(pod, "activeDeadlineSeconds") {
        let why = format!("activeDeadlineSeconds in {runner} is not Supported");
        check.forbidden(spec_path.field("activeDeadlineSeconds"), &why);
    }
}

fn unmatched(check: &mut Check<'_>, template: &Object, path: &Path<'_>) {
    let labels = match template_labels(template) {
        labels if labels.is_empty() => Value::Null,
        labels => Value::Object(labels.clone()),
    };
    let metadata = path.field("metadata");
    check.invalid(metadata.field("labels"), &labels, "`selector` does not match template `labels`");
}

fn template_labels(template: &Object) -> &Object {
    static NONE: std::sync::LazyLock<Object> = std::sync::LazyLock::new(Object::new);
    map(template, "metadata").and_then(|metadata| map(metadata, "labels")).unwrap_or(&NONE)
}

fn is_empty_selector(selector: &Object) -> bool {
    map(selector, "matchLabels").is_none_or(Object::is_empty)
        && list(selector, "matchExpressions").is_empty()
}

/// Whether a LabelSelector matches these labels; `None` if it is invalid, which the validation of
/// its own type reports.
fn selects(selector: &Object, labels: &Object) -> Option<bool> {
    let selector = StructuredSelector::of(selector).ok()?.selector();
    Some(selector.matches(|key| labels.get(key)?.as_str()))
}

pub(super) fn revision_data(check: &mut Check<'_>, revision: &Object, path: &Path<'_>) {
    match revision.get("data") {
        None | Some(Value::Null) => check.required(path.field("data"), "data is mandatory"),
        Some(Value::Object(_)) => {}
        Some(_) => check.required(path.field("data"), "data must be a valid JSON object"),
    }
}

/// Checks the selector and labels of a job.
pub(super) fn job(check: &mut Check<'_>, job: &Object, path: &Path<'_>) {
    let Some(spec) = map(job, "spec") else { return };
    let spec_path = path.field("spec");
    if check.old.is_some_and(|old| old.get("spec") == job.get("spec")) {
        return;
    }
    let Some(template) = map(spec, "template") else { return };
    let matched = match map(spec, "selector") {
        None => Some(false),
        Some(selector) => selects(selector, template_labels(template)),
    };
    if matched == Some(false) {
        unmatched(check, template, &spec_path.field("template"));
    }
    if !is_true(spec, "manualSelector") && check.old.is_none() {
        generated_labels(check, job, template, &spec_path.field("template"));
    }
}

fn generated_labels(check: &mut Check<'_>, job: &Object, template: &Object, path: &Path<'_>) {
    let Some(metadata) = map(job, "metadata") else { return };
    let labels = template_labels(template);
    let metadata_path = path.field("metadata");
    let at = metadata_path.field("labels");
    for (label, own) in [
        ("controller-uid", "uid"),
        ("job-name", "name"),
        ("batch.kubernetes.io/controller-uid", "uid"),
        ("batch.kubernetes.io/job-name", "name"),
    ] {
        let (found, expected) = (text(labels, label), text(metadata, own));
        if found != expected {
            let why = format!("must be '{expected}'");
            check.invalid(at.bracket(label), &found.into(), &why);
        }
    }
}

pub(super) fn job_spec(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    if matches!(text(spec, "completionMode"), "Indexed") {
        job::indexed(check, spec, path);
    }
    if !has(spec, "completionMode") || text(spec, "completionMode") == "NonIndexed" {
        for name in ["backoffLimitPerIndex", "maxFailedIndexes"] {
            if has(spec, name) {
                let why = "requires indexed completion mode";
                check.invalid(path.field(name), &shown(spec, name), why);
            }
        }
    }
    job::failure_policy(check, spec, path);
    job::success_policy(check, spec, path);
    let Some(pod) = map(spec, "template").and_then(|template| map(template, "spec")) else {
        return;
    };
    let template = path.field("template");
    let template_spec = template.field("spec");
    let at = template_spec.field("restartPolicy");
    match text(pod, "restartPolicy") {
        "" | "Always" => check.required(at, "valid values: \"OnFailure\", \"Never\""),
        "OnFailure" if has(spec, "podFailurePolicy") => {
            let why = "only \"Never\" is supported when podFailurePolicy is specified";
            check.invalid(at, &"OnFailure".into(), why);
        }
        "OnFailure" | "Never" => {}
        other => check.not_supported(at, &other.into(), &["OnFailure", "Never"]),
    }
}

pub(super) fn cron_job(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    let schedule = text(spec, "schedule");
    let at = path.field("schedule");
    if !schedule.is_empty() {
        if let Err(why) = schedule.parse::<Schedule>() {
            check.invalid(at, &schedule.into(), &why.to_string());
        }
        if schedule.contains("TZ") {
            let why = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
            check.invalid(at, &schedule.into(), why);
        }
    }
    if let Some(zone) = spec.get("timeZone").and_then(Value::as_str) {
        time_zone(check, zone, &path.field("timeZone"));
    }
    let template = path.field("jobTemplate");
    let template_spec = template.field("spec");
    if let Some(job) = map(spec, "jobTemplate").and_then(|template| map(template, "spec")) {
        if has(job, "selector") {
            let why = "`selector` will be auto-generated";
            check.invalid(template_spec.field("selector"), &shown(job, "selector"), why);
        }
        if is_true(job, "manualSelector") {
            let at = template_spec.field("manualSelector");
            check.not_supported(at, &true.into(), &["nil", "false"]);
        }
    }
    let name = map(check.root, "metadata").map_or("", |metadata| text(metadata, "name"));
    if check.old.is_none() && name.len() > CRON_JOB_NAME_BYTES_MAX {
        let why = "must be no more than 52 characters";
        check.invalid("metadata.name", &name.into(), why);
    }
}

/// A time zone of the database by its name.
fn time_zone(check: &mut Check<'_>, zone: &str, path: &Path<'_>) {
    let value = Value::from(zone);
    if zone.is_empty() {
        check.invalid(path, &value, "timeZone must be nil or non-empty string");
    } else if zone.eq_ignore_ascii_case("Local") {
        let why =
            "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
        check.invalid(path, &value, why);
    } else if zone != "UTC" && jiff::tz::db().get(zone).is_err() {
        check.invalid(path, &value, &format!("unknown time zone {zone}"));
    }
}

pub(super) fn disruption_budget(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    if has(spec, "minAvailable") && has(spec, "maxUnavailable") {
        let why = "minAvailable and maxUnavailable cannot be both set";
        check.invalid(path, &Value::Object(spec.clone()), why);
    }
}
