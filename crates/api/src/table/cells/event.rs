//! Cells of events: `v1` and `events.k8s.io/v1` have different names for the same fields.

use headwater_json::Value;

use crate::table::{Source, find, text};

const UNKNOWN: &str = "<unknown>";

/// The first of several fields that is not empty.
fn either<'a>(source: &Source<'a>, paths: &[&str]) -> &'a str {
    paths.iter().map(|path| source.text(path)).find(|text| !text.is_empty()).unwrap_or_default()
}

fn object<'a>(source: &Source<'a>) -> Option<&'a Value> {
    source.at("involvedObject").or_else(|| source.at("regarding"))
}

fn age(source: &Source<'_>, time: &str) -> String {
    if time.is_empty() { UNKNOWN.into() } else { crate::table::age::since(time, source.now) }
}

fn first_seen(source: &Source<'_>) -> String {
    let paths = ["firstTimestamp", "deprecatedFirstTimestamp", "eventTime"];
    age(source, either(source, &paths))
}

pub(super) fn event_first_seen(source: &Source<'_>) -> Value {
    first_seen(source).into()
}

pub(super) fn event_last_seen(source: &Source<'_>) -> Value {
    if let Some(series) = source.at("series") {
        return age(source, text(series, "lastObservedTime")).into();
    }
    match either(source, &["lastTimestamp", "deprecatedLastTimestamp"]) {
        "" => first_seen(source).into(),
        time => age(source, time).into(),
    }
}

pub(super) fn event_count(source: &Source<'_>) -> Value {
    let paths = ["series.count", "count", "deprecatedCount"];
    let count = paths.iter().find_map(|path| source.at(path).and_then(Value::as_i64));
    match count.unwrap_or(0) {
        0 => 1.into(),
        count => count.into(),
    }
}

pub(super) fn event_object(source: &Source<'_>) -> Value {
    let Some(object) = object(source) else { return "".into() };
    let kind = text(object, "kind").to_lowercase();
    match text(object, "name") {
        "" => kind.into(),
        name => format!("{kind}/{name}").into(),
    }
}

pub(super) fn event_subobject(source: &Source<'_>) -> Value {
    object(source).map_or("", |object| text(object, "fieldPath")).into()
}

pub(super) fn event_source(source: &Source<'_>) -> Value {
    let of = |part: &str| {
        ["source", "deprecatedSource"]
            .iter()
            .filter_map(|place| find(source.at(place)?, part)?.as_str())
            .find(|text| !text.is_empty())
            .unwrap_or_default()
    };
    let component = match of("component") {
        "" => either(source, &["reportingComponent", "reportingController"]),
        component => component,
    };
    let instance = match of("host") {
        "" => source.text("reportingInstance"),
        host => host,
    };
    match instance {
        "" => component.into(),
        instance => format!("{component}, {instance}").into(),
    }
}

pub(super) fn event_message(source: &Source<'_>) -> Value {
    either(source, &["message", "note"]).trim().into()
}
