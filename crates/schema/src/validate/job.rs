//! Rules of the failure and success policies of Jobs.

use std::collections::HashSet;

use headwater_json::Value;

use super::{Check, Object, Path, has, list, map, number, objects, shown, text};
use headwater_api::name;
use headwater_api::status::{FieldError, FieldErrorKind};

const RULES_MAX: usize = 20;
const EXIT_CODES_MAX: usize = 255;
const CONDITIONS_MAX: usize = 20;
const INDEXES_BYTES_MAX: usize = 64 * 1024;

const ACTIONS: &[&str] = &["Count", "FailIndex", "FailJob", "Ignore"];
const OPERATORS: &[&str] = &["In", "NotIn"];
const STATUSES: &[&str] = &["False", "True", "Unknown"];

/// The limits of an Indexed job: pods at a time, failed indexes, and both for many completions.
const PARALLEL_MAX: i64 = 100_000;
const FAILED_MAX: i64 = 100_000;
const MANY_COMPLETIONS: i64 = 100_000;
const PARALLEL_OF_MANY_MAX: i64 = 10_000;
const FAILED_OF_MANY_MAX: i64 = 10_000;

pub(super) fn indexed(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    let parallel = number(spec, "parallelism");
    let failed = number(spec, "maxFailedIndexes");
    let completions = number(spec, "completions");
    let mut limit = |name: &str, value: Option<i64>, max: i64, more: &str| {
        if let Some(value) = value.filter(|value| *value > max) {
            let why = format!("must be less than or equal to {max}{more}");
            check.invalid(path.field(name), &value.into(), &why);
        }
    };
    limit("parallelism", parallel, PARALLEL_MAX, " when completion mode is Indexed");
    limit("maxFailedIndexes", failed, FAILED_MAX, "");
    let is_many = completions.is_some_and(|count| count > MANY_COMPLETIONS);
    let is_counted = is_many && has(spec, "backoffLimitPerIndex");
    if is_counted {
        let more = format!(
            " when completions are above {MANY_COMPLETIONS} and used with backoff limit per index"
        );
        limit("parallelism", parallel, PARALLEL_OF_MANY_MAX, &more);
        limit("maxFailedIndexes", failed, FAILED_OF_MANY_MAX, &more);
    }
    if failed > completions && completions.is_some() {
        let why = "must be less than or equal to completions";
        check.invalid(path.field("maxFailedIndexes"), &shown(spec, "maxFailedIndexes"), why);
    }
    if is_counted && failed.is_none() {
        let why = format!("must be specified when completions is above {MANY_COMPLETIONS}");
        check.required(path.field("maxFailedIndexes"), &why);
    }
}

/// `podFailurePolicy` of a JobSpec.
pub(super) fn failure_policy(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    let Some(policy) = map(spec, "podFailurePolicy") else { return };
    let at = path.field("podFailurePolicy");
    let at = at.field("rules");
    at_most(check, policy, "rules", RULES_MAX, &at);
    let containers = container_names(spec);
    for (index, rule) in objects(policy, "rules") {
        failure_rule(check, spec, rule, &containers, &at.index(index));
    }
}

fn container_names(spec: &Object) -> HashSet<&str> {
    let pod = map(spec, "template").and_then(|template| map(template, "spec"));
    let names = |list| pod.into_iter().flat_map(move |pod| objects(pod, list));
    names("containers").chain(names("initContainers")).map(|(_, one)| text(one, "name")).collect()
}

fn failure_rule(
    check: &mut Check<'_>,
    spec: &Object,
    rule: &Object,
    containers: &HashSet<&str>,
    path: &Path<'_>,
) {
    let at = path.field("action");
    match text(rule, "action") {
        "FailIndex" if !has(spec, "backoffLimitPerIndex") => {
            check.invalid(at, &"FailIndex".into(), "requires the backoffLimitPerIndex to be set");
        }
        action => one_of(check, action, ACTIONS, &at),
    }
    if let Some(codes) = map(rule, "onExitCodes") {
        exit_codes(check, codes, containers, &path.field("onExitCodes"));
    }
    conditions(check, rule, &path.field("onPodConditions"));
    let why = match (has(rule, "onExitCodes"), list(rule, "onPodConditions").is_empty()) {
        (true, false) => "specifying both OnExitCodes and OnPodConditions is not supported",
        (false, true) => "specifying one of OnExitCodes and OnPodConditions is required",
        _ => return,
    };
    // Kubernetes does not show the value of the rule.
    check.errors.push(FieldError {
        kind: FieldErrorKind::Invalid,
        field: path.to_string(),
        detail: why.into(),
    });
}

fn exit_codes(check: &mut Check<'_>, codes: &Object, containers: &HashSet<&str>, path: &Path<'_>) {
    one_of(check, text(codes, "operator"), OPERATORS, &path.field("operator"));
    if has(codes, "containerName") && !containers.contains(text(codes, "containerName")) {
        let why = "must be one of the container or initContainer names in the pod template";
        check.invalid(path.field("containerName"), &shown(codes, "containerName"), why);
    }
    let at = path.field("values");
    let values = list(codes, "values");
    if values.is_empty() {
        check.invalid(at, &shown(codes, "values"), "at least one value is required");
    }
    at_most(check, codes, "values", EXIT_CODES_MAX, &at);
    let mut seen = HashSet::new();
    for (index, value) in values.iter().enumerate() {
        if text(codes, "operator") == "In" && value.as_i64() == Some(0) {
            check.invalid(at.index(index), value, "must not be 0 for the In operator");
        }
        if !seen.insert(value) {
            check.duplicate(at.index(index), value);
        }
    }
    if !values.is_sorted_by_key(Value::as_i64) {
        check.invalid(at, &shown(codes, "values"), "must be ordered");
    }
}

fn conditions(check: &mut Check<'_>, rule: &Object, path: &Path<'_>) {
    at_most(check, rule, "onPodConditions", CONDITIONS_MAX, path);
    for (index, pattern) in objects(rule, "onPodConditions") {
        let at = path.index(index);
        let kind = text(pattern, "type");
        check.problems(at.field("type"), kind, name::qualified(kind));
        one_of(check, text(pattern, "status"), STATUSES, &at.field("status"));
    }
}

/// `successPolicy` of a JobSpec.
pub(super) fn success_policy(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    let Some(policy) = map(spec, "successPolicy") else { return };
    let at = path.field("successPolicy");
    if text(spec, "completionMode") != "Indexed" {
        let why = "requires indexed completion mode";
        return check.invalid(at, &shown(spec, "successPolicy"), why);
    }
    let at = at.field("rules");
    if list(policy, "rules").is_empty() {
        let why = "at least one rules must be specified when the successPolicy is specified";
        check.required(at, why);
    }
    at_most(check, policy, "rules", RULES_MAX, &at);
    let completions = number(spec, "completions").unwrap_or(0);
    for (index, rule) in objects(policy, "rules") {
        success_rule(check, rule, completions, &at.index(index));
    }
}

fn success_rule(check: &mut Check<'_>, rule: &Object, completions: i64, path: &Path<'_>) {
    if !has(rule, "succeededCount") && !has(rule, "succeededIndexes") {
        let why = "at least one of succeededCount or succeededIndexes must be specified";
        check.required(path, why);
    }
    let at = path.field("succeededIndexes");
    let indexes = text(rule, "succeededIndexes");
    if indexes.len() > INDEXES_BYTES_MAX {
        check.too_long(at, INDEXES_BYTES_MAX);
    }
    let total = match count_indexes(indexes, completions) {
        Ok(total) => total,
        Err(why) => {
            let why = format!("error parsing succeededIndexes: {why}");
            check.invalid(at, &indexes.into(), &why);
            0
        }
    };
    let at = path.field("succeededCount");
    let Some(count) = number(rule, "succeededCount") else { return };
    let mut refuse = |why: &str| check.invalid(at, &count.into(), why);
    if count < 0 {
        refuse("must be greater than or equal to 0");
    }
    if count > completions {
        refuse(&format!(
            "must be less than or equal to {completions} (the number of specified completions)"
        ));
    }
    if has(rule, "succeededIndexes") && count > total {
        refuse(&format!(
            "must be less than or equal to {total} (the number of indexes in the specified succeededIndexes field)"
        ));
    }
}

/// The number of indexes in a list such as `1,3-5`.
fn count_indexes(text: &str, completions: i64) -> Result<i64, String> {
    let (mut total, mut last) = (0, None);
    for interval in text.split(',').filter(|_| !text.is_empty()) {
        let (first, end) = interval_of(interval, completions)?;
        if let Some(last) = last.filter(|last| *last >= first) {
            return Err(format!("non-increasing order, previous: {last}, current: {first}"));
        }
        total += end - first + 1;
        last = Some(end);
    }
    Ok(total)
}

fn interval_of(interval: &str, completions: i64) -> Result<(i64, i64), String> {
    let limits: Vec<&str> = interval.split('-').collect();
    let index = |text: &str| {
        let number = text
            .parse::<i64>()
            .map_err(|_| format!("cannot convert string to integer for index: {text:?}"))?;
        match number {
            number if number >= completions => Err(format!("too large index: {text:?}")),
            number => Ok(number),
        }
    };
    match limits.as_slice() {
        [one] => index(one).map(|one| (one, one)),
        [first, last] => match (index(first)?, index(last)?) {
            (first, last) if first >= last => {
                Err(format!("non-increasing order, previous: {first}, current: {last}"))
            }
            both => Ok(both),
        },
        _ => Err(format!(
            "the fragment {interval:?} violates the requirement that an index interval can have at most two parts separated by '-'"
        )),
    }
}

/// A required word from a list.
fn one_of(check: &mut Check<'_>, word: &str, words: &[&str], path: &Path<'_>) {
    if word.is_empty() {
        let quoted: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
        check.required(path, &format!("valid values: [{}]", quoted.join(" ")));
    } else if !words.contains(&word) {
        check.not_supported(path, &word.into(), words);
    }
}

fn at_most(check: &mut Check<'_>, object: &Object, name: &str, max: usize, path: &Path<'_>) {
    let count = list(object, name).len();
    if count > max {
        check.too_many(path, count, max);
    }
}
