//! Cells of autoscalers: their metrics and targets.

use headwater_json::Value;

use super::{NONE, UNKNOWN, amount};
use crate::table::{Source, find, text};

/// The number of metrics before "more".
const SHOWN_MAX: usize = 2;

pub(super) fn scale_metrics(source: &Source<'_>) -> Value {
    let specs = source.list("spec.metrics");
    if specs.is_empty() {
        return cpu_only(source);
    }
    let statuses = source.list("status.currentMetrics");
    let all: Vec<String> =
        specs.iter().enumerate().map(|(index, spec)| metric(spec, statuses.get(index))).collect();
    match all.len().checked_sub(SHOWN_MAX) {
        Some(more) if more > 0 => {
            format!("{} + {more} more...", all[..SHOWN_MAX].join(", ")).into()
        }
        _ => all.join(", ").into(),
    }
}

/// `autoscaling/v1` has only one metric.
fn cpu_only(source: &Source<'_>) -> Value {
    let percent = |path| source.at(path).and_then(Value::as_i64).map(|n| format!("{n}%"));
    match percent("spec.targetCPUUtilizationPercentage") {
        None => NONE.into(),
        Some(target) => {
            let current = percent("status.currentCPUUtilizationPercentage");
            format!("cpu: {}/{target}", current.unwrap_or(UNKNOWN.into())).into()
        }
    }
}

fn metric(spec: &Value, status: Option<&Value>) -> String {
    let (member, named) = match text(spec, "type") {
        "External" => ("external", false),
        "Pods" => ("pods", false),
        "Object" => ("object", false),
        "Resource" => ("resource", true),
        "ContainerResource" => ("containerResource", true),
        _ => return "<unknown type>".to_owned(),
    };
    let spec = spec.get(member).unwrap_or(&Value::Null);
    let current = status.and_then(|status| find(status, member)?.get("current"));
    let target = |name: &str| amount(find(spec, "target").and_then(|target| target.get(name)));
    let now = |name: &str| amount(current.and_then(|current| current.get(name)));
    let unknown = || UNKNOWN.to_owned();
    let shown = match (target("averageValue"), named) {
        (Some(target), true) => {
            format!("{}/{target}", now("averageValue").unwrap_or_else(unknown))
        }
        (Some(target), false) => {
            // Metrics of pods are always averages, so the label is omitted.
            let mark = if member == "pods" { "" } else { " (avg)" };
            format!("{}/{target}{mark}", now("averageValue").unwrap_or_else(unknown))
        }
        (None, true) => {
            let percent = |text: String| format!("{text}%");
            let target = target("averageUtilization").map_or("<auto>".to_owned(), percent);
            format!("{}/{target}", now("averageUtilization").map_or_else(unknown, percent))
        }
        (None, false) => format!(
            "{}/{}",
            now("value").unwrap_or_else(unknown),
            target("value").unwrap_or_default()
        ),
    };
    if named { format!("{}: {shown}", text(spec, "name")) } else { shown }
}
