//! `headwater history`, `get --at`, `diff` and `rollback`: what objects looked like, and back to it.
//!
//! River: retained versions → **history** → the terminal; `rollback`: → an ordinary update.
//! Promise: a rollback is a checked write: it fails if somebody changed the object meanwhile.

use anyhow::{Context, Result, bail};
use headwater_json::{Value, json};
use headwater_schema::yaml;
use http::Method;
use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::changes::{self, FieldChange};
use crate::copy::plain::plain;
use crate::flags::{
    DiffFlags, DocumentFormat, GetFlags, HistoryFlags, ObjectFlags, OutputFormat, RollbackFlags,
    TimePoint,
};
use crate::print;
use crate::remote::follow::version;
use crate::remote::kinds::{RemoteKind, RemoteKinds, items};
use crate::remote::{Refused, RemoteCluster, ResponseForm, encoded};
use crate::style::{Emphasis, Paint};
use crate::watch::{field_line, key};

/// The fields of a version that are shown without `--diff`.
const FIELDS_MAX: usize = 6;

/// The field manager of rollbacks.
const MANAGER: &str = "headwater-rollback";

/// An object that a command names.
struct NamedObject {
    cluster: RemoteCluster,
    kind: RemoteKind,
    path: String,
}

impl NamedObject {
    async fn find(flags: &ObjectFlags) -> Result<NamedObject> {
        let cluster = RemoteCluster::open(&flags.remote).await?;
        let kinds = RemoteKinds::discover(&cluster).await?;
        let (kind, name) = kinds.object(&flags.object)?;
        let namespace = flags.namespace.as_deref().unwrap_or(cluster.namespace());
        let path = kind.object(namespace, &name);
        Ok(NamedObject { kind: kind.clone(), path, cluster })
    }

    fn hides_values(&self) -> bool {
        self.kind.resource.group.is_empty() && self.kind.resource.plural == "secrets"
    }

    /// Retained versions up to a point, newest first.
    async fn versions(&self, upto: &TimePoint, limit: usize) -> Result<Value> {
        let upto = match parameter(upto) {
            Some(upto) => format!("&resourceVersion={}", encoded(&upto)),
            None => String::new(),
        };
        let path = format!("{}?history=true&limit={limit}{upto}", self.path);
        let found = self.cluster.get(&path).await?;
        if found["kind"] != "History" {
            bail!("the server cannot show history; only Headwater can");
        }
        Ok(found)
    }

    /// The object at a point; `None` if it did not exist.
    async fn at(&self, point: &TimePoint) -> Result<Option<Value>> {
        if *point == TimePoint::Now {
            return self.cluster.find(&self.path).await;
        }
        let mut found = self.versions(point, 1).await?;
        let Some(newest) = found["items"].as_array_mut().and_then(|items| items.first_mut()) else {
            return Ok(None);
        };
        Ok((newest["type"] != "DELETED").then(|| newest["object"].take()))
    }
}

/// A point as the wire has it: a revision or a time; `None` means the newest state.
fn parameter(point: &TimePoint) -> Option<String> {
    match point {
        TimePoint::Now => None,
        TimePoint::Revision(revision) => Some(revision.to_string()),
        other => other.before(Timestamp::now()).map(|time| time.to_string()),
    }
}

/// Prints the retained versions of an object, newest first.
pub(crate) async fn history(flags: &HistoryFlags) -> Result<()> {
    let object = NamedObject::find(&flags.object).await?;
    // One more than is shown, to know what the oldest one changed.
    let found = object.versions(&TimePoint::Now, flags.limit + 1).await?;
    let versions: Vec<&Value> = items(&found["items"]).collect();
    let paint = Paint::of_stdout();
    for (index, shown) in versions.iter().take(flags.limit).enumerate() {
        let before = versions.get(index + 1).map(|before| &before["object"]);
        let before = before.filter(|before| before.is_object() && shown["type"] == "MODIFIED");
        let mut fields =
            before.map(|before| changes::between(before, &shown["object"])).unwrap_or_default();
        if object.hides_values() {
            fields.iter_mut().for_each(FieldChange::hide_secret);
        }
        let writers = writers(before, &shown["object"]);
        match flags.output {
            OutputFormat::Json => {
                let mut line = json!({
                    "resourceVersion": shown["resourceVersion"].as_str(),
                    "time": shown["time"].as_str(),
                    "type": shown["type"].as_str(),
                    "managers": writers,
                });
                line["changes"] = fields.iter().map(FieldChange::to_json).collect();
                print::data(&line.to_string());
            }
            OutputFormat::Text => {
                version_lines(shown, &writers, &fields, flags.diff, paint)
                    .iter()
                    .for_each(|line| print::data(line));
            }
        }
    }
    let oldest = &found["metadata"]["oldestResourceVersion"];
    if let (OutputFormat::Text, Some(oldest)) = (flags.output, oldest.as_str()) {
        let since = found["metadata"]["oldestTime"].as_str().map(local).unwrap_or_default();
        print::note(&format!("history is kept from revision {oldest} {since}"));
    }
    Ok(())
}

fn version_lines(
    shown: &Value,
    writers: &[String],
    fields: &[FieldChange],
    all: bool,
    paint: Paint,
) -> Vec<String> {
    let word = shown["type"].as_str().unwrap_or_default();
    let emphasis = match word {
        "ADDED" => Emphasis::Added,
        "DELETED" => Emphasis::Removed,
        _ => Emphasis::Changed,
    };
    let time = shown["time"].as_str().map_or_else(|| "-".to_owned(), local);
    let by = if writers.is_empty() { String::new() } else { format!(" by {}", writers.join(", ")) };
    let revision = shown["resourceVersion"].as_str().unwrap_or_default();
    let mut lines = vec![format!(
        "{} {} {}{by}",
        paint.text(Emphasis::Strong, &format!("{revision:>8}")),
        paint.text(Emphasis::Faint, &time),
        paint.text(emphasis, word),
    )];
    let count = if all { fields.len() } else { FIELDS_MAX };
    let shown = fields.iter().take(count);
    lines.extend(shown.map(|field| format!("         {}", field_line(paint, field))));
    if fields.len() > count {
        lines.push(format!("           … {} more; add --diff", fields.len() - count));
    }
    lines
}

/// A time for people, in their time zone.
fn local(time: &str) -> String {
    match time.parse::<Timestamp>() {
        Ok(time) => time.to_zoned(TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string(),
        Err(_) => time.to_owned(),
    }
}

/// Who wrote a version: the field managers whose entries are new or changed.
fn writers(before: Option<&Value>, after: &Value) -> Vec<String> {
    let entries = |object: &Value| -> Vec<Value> {
        items(&object["metadata"]["managedFields"]).cloned().collect()
    };
    let old = before.map(entries).unwrap_or_default();
    let changed = entries(after).into_iter().filter(|entry| !old.contains(entry));
    let mut names: Vec<String> = changed
        .filter_map(|entry| {
            let name = entry["manager"].as_str()?;
            Some(match entry["subresource"].as_str() {
                Some(subresource) if !subresource.is_empty() => format!("{name} ({subresource})"),
                _ => name.to_owned(),
            })
        })
        .collect();
    names.dedup();
    if names.is_empty() && before.is_some_and(|before| before != after) {
        return newest_writer(after).into_iter().collect();
    }
    names
}

/// The manager that wrote last. Entries have times of seconds, so two writes in one second may leave
/// an entry as it was.
fn newest_writer(object: &Value) -> Option<String> {
    let entries = items(&object["metadata"]["managedFields"]);
    let newest = entries.max_by_key(|entry| entry["time"].as_str().unwrap_or_default())?;
    newest["manager"].as_str().map(str::to_owned)
}

/// Prints a collection or an object as it was.
pub(crate) async fn get(flags: &GetFlags) -> Result<()> {
    let cluster = RemoteCluster::open(&flags.remote).await?;
    let kinds = RemoteKinds::discover(&cluster).await?;
    let (word, name) = flags.resource.split_once('/').unwrap_or((&flags.resource, ""));
    let kind = kinds.named(word)?;
    let namespace = flags.scope.namespace(cluster.namespace());
    let mut query = String::new();
    if let Some(at) = parameter(&flags.at) {
        query = format!("&resourceVersion={}&resourceVersionMatch=Exact", encoded(&at));
    }
    if let Some(labels) = &flags.selector {
        query += &format!("&labelSelector={}", encoded(labels));
    }
    if !name.is_empty() {
        query += &format!("&fieldSelector={}", encoded(&format!("metadata.name={name}")));
    }
    let collection = kind.collection(namespace.as_deref());
    let refused = |error: anyhow::Error| match (Refused::code_of(&error), &flags.at) {
        (Some(400), TimePoint::At(_) | TimePoint::Relative(_)) => {
            error.context("times need a Headwater server; others know revisions only")
        }
        _ => error,
    };
    if flags.output == DocumentFormat::Table {
        let path = format!("{collection}?{}", query.trim_start_matches('&'));
        let table = cluster.get_as(&path, ResponseForm::Table).await.map_err(refused)?;
        let lines = table_lines(&table, kind.namespaced && namespace.is_none());
        lines.iter().for_each(|line| print::data(line));
        return Ok(());
    }
    // The first page fixes the state; continue tokens name it, and other parameters must not.
    let listed = cluster.list(&collection, &query, ResponseForm::Full).await.map_err(refused)?;
    for object in &listed.items {
        match flags.output {
            DocumentFormat::Yaml => {
                print::data(&format!("---\n{}", yaml::to_string(object).trim_end()))
            }
            _ => print::data(&object.to_string()),
        }
    }
    Ok(())
}

/// The rows of a table with the server's columns.
fn table_lines(table: &Value, with_namespace: bool) -> Vec<String> {
    let columns: Vec<(usize, String)> = items(&table["columnDefinitions"])
        .enumerate()
        .filter(|(_, column)| column["priority"].as_i64().unwrap_or_default() == 0)
        .map(|(at, column)| (at, column["name"].as_str().unwrap_or_default().to_uppercase()))
        .collect();
    let cell = |value: &Value| match value.as_str() {
        Some(text) => text.chars().filter(|c| !c.is_control()).collect(),
        None if value.is_null() => "<none>".to_owned(),
        None => value.to_string(),
    };
    let mut rows = vec![columns.iter().map(|(_, name)| name.clone()).collect::<Vec<String>>()];
    rows.extend(
        items(&table["rows"])
            .map(|row| columns.iter().map(|(at, _)| cell(&row["cells"][*at])).collect()),
    );
    if with_namespace {
        let namespaces =
            items(&table["rows"]).map(|row| cell(&row["object"]["metadata"]["namespace"]));
        let all = std::iter::once("NAMESPACE".to_owned()).chain(namespaces);
        rows.iter_mut().zip(all).for_each(|(row, namespace)| row.insert(0, namespace));
    }
    let width =
        |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let lines = rows.iter().map(|row| {
        let padded = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        padded.collect::<Vec<_>>().join("   ").trim_end().to_owned()
    });
    lines.collect()
}

/// Prints the fields of an object that differ between two points.
pub(crate) async fn diff(flags: &DiffFlags) -> Result<()> {
    let object = NamedObject::find(&flags.object).await?;
    let (from, to) = (object.at(&flags.from).await?, object.at(&flags.to).await?);
    if from.is_none() && to.is_none() {
        bail!("the object existed at neither point");
    }
    let none = Value::Null;
    let mut fields = changes::between(from.as_ref().unwrap_or(&none), to.as_ref().unwrap_or(&none));
    if object.hides_values() {
        fields.iter_mut().for_each(FieldChange::hide_secret);
    }
    let paint = Paint::of_stdout();
    for field in &fields {
        match flags.output {
            OutputFormat::Json => print::data(&field.to_json().to_string()),
            OutputFormat::Text => print::data(&field_line(paint, field)),
        }
    }
    Ok(())
}

/// Writes an earlier version of an object as an ordinary update.
pub(crate) async fn rollback(flags: &RollbackFlags) -> Result<()> {
    let object = NamedObject::find(&flags.object).await?;
    let Some(mut wanted) = object.at(&flags.to).await? else {
        bail!("the object did not exist then");
    };
    let current = object.cluster.find(&object.path).await?;
    let before = wanted.clone();
    plain(&mut wanted, false);
    if let Some(node) = before["spec"]["nodeName"].as_str() {
        wanted["spec"]["nodeName"] = node.into();
    }
    let fields = current.as_ref().map(|current| {
        let mut current = current.clone();
        plain(&mut current, false);
        if let Some(node) = before["spec"]["nodeName"].as_str() {
            current["spec"]["nodeName"] = node.into();
        }
        changes::between(&current, &wanted)
    });
    if fields.as_ref().is_some_and(Vec::is_empty) {
        print::note("nothing to do: the object is as it was then");
        return Ok(());
    }
    let dry = if flags.dry_run { "&dryRun=All" } else { "" };
    let query = format!("?fieldManager={MANAGER}{dry}");
    let written = match &current {
        Some(current) => {
            wanted["metadata"]["resourceVersion"] = version(current).into();
            for field in ["clusterIP", "clusterIPs", "healthCheckNodePort", "selector"] {
                let kept = &current["spec"][field];
                if wanted["spec"][field].is_null() && !kept.is_null() && is_assigned(&wanted) {
                    wanted["spec"][field] = kept.clone();
                }
            }
            let path = format!("{}{query}", object.path);
            object.cluster.send(Method::PUT, &path, "application/json", &wanted).await
        }
        None => {
            let namespace = wanted["metadata"]["namespace"].as_str();
            let path = format!("{}{query}", object.kind.collection(namespace));
            object.cluster.send(Method::POST, &path, "application/json", &wanted).await
        }
    };
    let written = written.context("the server refused the rollback")?;
    let paint = Paint::of_stdout();
    for mut field in fields.unwrap_or_default() {
        if object.hides_values() {
            field.hide_secret();
        }
        print::data(&field_line(paint, &field));
    }
    let done = if flags.dry_run { "would be" } else { "was" };
    print::note(&format!(
        "{} {done} rolled back, at revision {}",
        key(&written),
        version(&written)
    ));
    Ok(())
}

/// Whether the server assigns fields of the spec that an update must repeat.
fn is_assigned(object: &Value) -> bool {
    object["kind"] == "Service" || object["kind"] == "Job"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_are_the_managers_whose_entries_changed() {
        let entry = |manager: &str, time: &str, sub: &str| json!({"manager": manager, "operation": "Update", "time": time, "subresource": sub});
        let object = |entries: &[Value]| json!({"metadata": {"managedFields": entries}});
        let old = object(&[entry("kubectl", "1", ""), entry("kubelet", "1", "status")]);
        let new = object(&[entry("kubectl", "1", ""), entry("kubelet", "2", "status")]);
        assert_eq!(writers(Some(&old), &new), ["kubelet (status)"]);
        assert_eq!(writers(None, &old), ["kubectl", "kubelet (status)"]);
        assert!(writers(Some(&old), &old).is_empty());
        let mut same_second = new.clone();
        same_second["status"] = json!({"x": 1});
        assert_eq!(writers(Some(&new), &same_second), ["kubelet"]);
    }

    #[test]
    fn tables_have_the_servers_columns() {
        let table = json!({
            "columnDefinitions": [{"name": "Name"}, {"name": "Ready"}, {"name": "IP", "priority": 1}],
            "rows": [
                {"cells": ["a", "1/1", "x"], "object": {"metadata": {"namespace": "shop"}}},
                {"cells": ["longer", null, "y"], "object": {"metadata": {"namespace": "s"}}},
            ],
        });
        assert_eq!(
            table_lines(&table, false),
            ["NAME     READY", "a        1/1", "longer   <none>"]
        );
        assert_eq!(table_lines(&table, true)[1], "shop        a        1/1");
    }
}
