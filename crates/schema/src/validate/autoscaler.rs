//! Rules of autoscalers: their metrics and targets.

use headwater_json::Value;

use super::pod::resource_name;
use super::{Check, Object, Path, has, map, number, objects, text};
use headwater_api::quantity::Quantity;

pub(super) fn autoscaler(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    let (least, most) = (number(spec, "minReplicas"), number(spec, "maxReplicas").unwrap_or(0));
    if least.is_some_and(|least| most < least) {
        let why = "must be greater than or equal to `minReplicas`";
        check.invalid(path.field("maxReplicas"), &most.into(), why);
    }
    scale_target(check, spec, path);
    let at = path.field("metrics");
    for (index, metric) in objects(spec, "metrics") {
        let object = map(metric, "object").and_then(|object| map(object, "describedObject"));
        let version = object.map_or("", |object| text(object, "apiVersion"));
        if version.matches('/').count() > 1 {
            let metric = at.index(index);
            let object = metric.field("object");
            let why = format!("unexpected GroupVersion string: {version}");
            let described = object.field("describedObject");
            check.invalid(described.field("apiVersion"), &version.into(), &why);
        }
    }
}

/// Checks that the version of the target has a group, unless an update leaves it as it was.
fn scale_target(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    let Some(target) = map(spec, "scaleTargetRef") else { return };
    let version = text(target, "apiVersion");
    let old = check.old.and_then(|old| map(map(old, "spec")?, "scaleTargetRef"));
    let same = |name: &str| old.is_some_and(|old| text(old, name) == text(target, name));
    if same("apiVersion") && same("kind") {
        return;
    }
    let why = match version.split_once('/') {
        Some((_, rest)) if rest.contains('/') => {
            format!("unexpected GroupVersion string: {version}")
        }
        Some((group, _)) if !group.is_empty() => return,
        _ if text(target, "kind") == "ReplicationController" => return,
        _ => "apiVersion must specify API group".into(),
    };
    let at = path.field("scaleTargetRef");
    check.invalid(at.field("apiVersion"), &version.into(), &why);
}

/// The metric sources by type, in the order in which the first one given is checked.
const SOURCES: [(&str, &str); 5] = [
    ("Object", "object"),
    ("External", "external"),
    ("Pods", "pods"),
    ("Resource", "resource"),
    ("ContainerResource", "containerResource"),
];

/// Checks that a metric has exactly the source of its type.
pub(super) fn metric(check: &mut Check<'_>, metric: &Object, path: &Path<'_>) {
    let wanted = SOURCES.iter().find(|(kind, _)| *kind == text(metric, "type"));
    let wanted = wanted.map(|(_, wanted)| *wanted);
    let given: Vec<&str> =
        SOURCES.iter().map(|(_, source)| *source).filter(|source| has(metric, source)).collect();
    if let Some(first) = given.first()
        && let Some(source) = map(metric, first)
    {
        needed_targets(check, first, source, &path.field(first));
    }
    if let Some(wanted) = wanted.filter(|wanted| !has(metric, wanted)) {
        let why = "must populate information for the given metric source";
        check.required(path.field(wanted), why);
    }
    if given.len() != 1 {
        for source in given.into_iter().filter(|source| Some(*source) != wanted) {
            let why = "must populate the given metric source only";
            check.forbidden(path.field(source), why);
        }
    }
}

/// Which of the values of a target a source needs, and which exclude each other.
fn needed_targets(check: &mut Check<'_>, kind: &str, source: &Object, path: &Path<'_>) {
    let empty = Object::new();
    let target = map(source, "target").unwrap_or(&empty);
    let at = path.field("target");
    let (value, average, utilization) =
        (has(target, "value"), has(target, "averageValue"), has(target, "averageUtilization"));
    let (is_missing, field, why) = match kind {
        "object" => {
            (!value && !average, "averageValue", "must set either a target value or averageValue")
        }
        "external" => (
            !value && !average,
            "averageValue",
            "must set either a target value for metric or a per-pod target",
        ),
        "pods" => (!average, "averageValue", "must specify a positive target averageValue"),
        _ => (
            !utilization && !average,
            "averageUtilization",
            "must set either a target raw value or a target utilization",
        ),
    };
    if is_missing {
        check.required(at.field(field), why);
    }
    if kind == "external" && value && average {
        let why = "may not set both a target value for metric and a per-pod target";
        check.forbidden(at.field("value"), why);
    }
    if matches!(kind, "resource" | "containerResource") && utilization && average {
        let why = "may not set both a target raw value and a target utilization";
        check.forbidden(at.field("averageValue"), why);
    }
}

/// The type and the values of a target.
pub(super) fn target(check: &mut Check<'_>, target: &Object, path: &Path<'_>) {
    let word = text(target, "type");
    let at = path.field("type");
    if word.is_empty() {
        check.required(at, "must specify a metric target type");
    }
    if !matches!(word, "Utilization" | "Value" | "AverageValue") {
        check.invalid(at, &word.into(), "must be either Utilization, Value, or AverageValue");
    }
    for name in ["value", "averageValue"] {
        let amount = Quantity::parse(text(target, name)).ok().filter(|_| has(target, name));
        if amount.is_some_and(|amount| amount.is_negative() || amount.is_zero()) {
            check.invalid(path.field(name), &Value::from(text(target, name)), "must be positive");
        }
    }
    if let Some(percent) = number(target, "averageUtilization").filter(|percent| *percent < 1) {
        check.invalid(path.field("averageUtilization"), &percent.into(), "must be greater than 0");
    }
}

/// The resource that a container metric names.
pub(super) fn container_metric(check: &mut Check<'_>, source: &Object, path: &Path<'_>) {
    let name = text(source, "name");
    if !name.is_empty() {
        resource_name(check, name, &path.field("name"));
    }
}
