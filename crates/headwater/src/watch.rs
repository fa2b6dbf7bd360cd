//! `headwater watch`: each event as the fields that changed.
//!
//! River: follow → **watch** → the terminal, or a line of JSON per event.
//! Promise: memory is one version of each selected object; events are printed in their order.

use std::collections::BTreeMap;

use anyhow::Result;
use headwater_api::EventType;
use headwater_json::{Value, json};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use tokio::sync::mpsc;

use crate::changes::{self, FieldChange};
use crate::flags::{OutputFormat, WatchFlags};
use crate::print;
use crate::remote::follow::{CollectionEvent, FollowedCollection, follow, version};
use crate::remote::kinds::{RemoteKind, RemoteKinds};
use crate::remote::{RemoteCluster, encoded};
use crate::signals::Signals;
use crate::style::{Emphasis, Paint};

/// Events that wait to be printed; with more, the stream is read later.
const QUEUE_MAX: usize = 256;

/// Prints events until a signal.
pub(crate) async fn run(flags: &WatchFlags) -> Result<()> {
    let mut signals = Signals::new()?;
    let cluster = RemoteCluster::open(&flags.remote).await?;
    let kinds = RemoteKinds::discover(&cluster).await?;
    let (word, name) = flags.resource.split_once('/').unwrap_or((&flags.resource, ""));
    let kind = kinds.named(word)?;
    let namespace = flags.scope.namespace(cluster.namespace());
    let followed = FollowedCollection {
        path: kind.collection(namespace.as_deref()),
        query: selection(flags, name),
    };
    let (out, events) = mpsc::channel(QUEUE_MAX);
    let printer = EventPrinter::new(kind, flags);
    tokio::select! {
        biased;
        () = signals.next() => Ok(()),
        ended = follow(&cluster, &followed, &out) => ended,
        () = printer.run(events) => Ok(()),
    }
}

fn selection(flags: &WatchFlags, name: &str) -> String {
    let mut query = String::new();
    if let Some(labels) = &flags.selector {
        query = format!("&labelSelector={}", encoded(labels));
    }
    let named = (!name.is_empty()).then(|| format!("metadata.name={name}"));
    let fields: Vec<String> = named.into_iter().chain(flags.field_selector.clone()).collect();
    if !fields.is_empty() {
        query += &format!("&fieldSelector={}", encoded(&fields.join(",")));
    }
    query
}

/// Keeps the last version of each object and prints what differs.
struct EventPrinter {
    known: BTreeMap<String, Value>,
    /// The objects that a new list has not named yet, after the server forgot the position.
    unseen: Option<BTreeMap<String, Value>>,
    kind: String,
    is_secret: bool,
    with_fields: bool,
    format: OutputFormat,
    paint: Paint,
    is_listing: bool,
}

impl EventPrinter {
    fn new(kind: &RemoteKind, flags: &WatchFlags) -> EventPrinter {
        EventPrinter {
            known: BTreeMap::new(),
            unseen: None,
            kind: kind.resource.kind.clone(),
            is_secret: kind.resource.group.is_empty() && kind.resource.plural == "secrets",
            with_fields: flags.diff,
            format: flags.output,
            paint: Paint::of_stdout(),
            is_listing: true,
        }
    }

    async fn run(mut self, mut events: mpsc::Receiver<CollectionEvent>) {
        while let Some(event) = events.recv().await {
            for line in self.take(event, Timestamp::now()) {
                print::data(&line);
            }
        }
    }

    /// The lines for an event.
    fn take(&mut self, event: CollectionEvent, now: Timestamp) -> Vec<String> {
        match event {
            CollectionEvent::Object(object) if self.unseen.is_none() => {
                self.change(EventType::Added, &object, now)
            }
            CollectionEvent::Object(object) => {
                let key = key(&object);
                let seen = self.unseen.as_mut().and_then(|unseen| unseen.remove(&key));
                match seen {
                    Some(old) if version(&old) == version(&object) => Vec::new(),
                    Some(_) => self.change(EventType::Modified, &object, now),
                    None => self.change(EventType::Added, &object, now),
                }
            }
            CollectionEvent::Complete => {
                self.is_listing = false;
                let gone = self.unseen.take().unwrap_or_default();
                let lines = gone
                    .into_values()
                    .flat_map(|object| self.change(EventType::Deleted, &object, now));
                lines.collect()
            }
            CollectionEvent::Change(event, object) => self.change(event, &object, now),
            CollectionEvent::Restart => {
                self.unseen = Some(self.known.clone());
                Vec::new()
            }
        }
    }

    fn change(&mut self, event: EventType, object: &Value, now: Timestamp) -> Vec<String> {
        let key = key(object);
        let old = match event {
            EventType::Deleted => self.known.remove(&key),
            _ => self.known.insert(key, object.clone()),
        };
        let mut fields = match (event, &old) {
            (EventType::Modified, Some(old)) => changes::between(old, object),
            _ => Vec::new(),
        };
        if self.is_secret && self.format == OutputFormat::Text {
            fields.iter_mut().for_each(FieldChange::hide_secret);
        }
        match self.format {
            OutputFormat::Json => vec![self.json(event, object, &fields, now).to_string()],
            OutputFormat::Text => self.text(event, object, &fields, now),
        }
    }

    fn json(
        &self,
        event: EventType,
        object: &Value,
        fields: &[FieldChange],
        now: Timestamp,
    ) -> Value {
        let meta = &object["metadata"];
        let mut made = json!({
            "time": now.to_string(),
            "type": event.as_str(),
            "apiVersion": object["apiVersion"].as_str().unwrap_or_default(),
            "kind": self.kind.as_str(),
            "name": meta["name"].as_str().unwrap_or_default(),
            "resourceVersion": version(object),
        });
        if let Some(namespace) = meta["namespace"].as_str() {
            made["namespace"] = namespace.into();
        }
        if event == EventType::Modified {
            made["changes"] = fields.iter().map(FieldChange::to_json).collect();
        } else {
            made["object"] = object.clone();
        }
        if self.is_listing {
            made["initial"] = true.into();
        }
        made
    }

    fn text(
        &self,
        event: EventType,
        object: &Value,
        fields: &[FieldChange],
        now: Timestamp,
    ) -> Vec<String> {
        let emphasis = match event {
            EventType::Added if self.is_listing => Emphasis::Faint,
            EventType::Added => Emphasis::Added,
            EventType::Deleted => Emphasis::Removed,
            _ => Emphasis::Changed,
        };
        let time = now.to_zoned(TimeZone::system()).strftime("%H:%M:%S%.3f").to_string();
        let word = if self.is_listing { "LISTED" } else { event.as_str() };
        let count = match (event, fields.len()) {
            (EventType::Modified, 0) => " (no field)".to_owned(),
            (EventType::Modified, 1) if !self.with_fields => " (1 field)".to_owned(),
            (EventType::Modified, count) if !self.with_fields => format!(" ({count} fields)"),
            _ => String::new(),
        };
        let head = format!(
            "{} {} {}{count}",
            self.paint.text(Emphasis::Faint, &time),
            self.paint.text(emphasis, &format!("{word:<8}")),
            self.paint
                .text(Emphasis::Strong, &format!("{}/{}", self.kind.to_lowercase(), key(object))),
        );
        let mut lines = vec![head];
        if self.with_fields {
            lines.extend(fields.iter().map(|field| field_line(self.paint, field)));
        }
        lines
    }
}

/// An indented line for a field.
pub(crate) fn field_line(paint: Paint, field: &FieldChange) -> String {
    let (sign, text) = field.line();
    let emphasis = match sign {
        '+' => Emphasis::Added,
        '-' => Emphasis::Removed,
        _ => Emphasis::Changed,
    };
    format!("  {}", paint.text(emphasis, &format!("{sign} {text}")))
}

/// `namespace/name`, or `name`.
pub(crate) fn key(object: &Value) -> String {
    let meta = &object["metadata"];
    let name = meta["name"].as_str().unwrap_or_default();
    match meta["namespace"].as_str() {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printer(with_fields: bool, is_on: bool) -> EventPrinter {
        EventPrinter {
            known: BTreeMap::new(),
            unseen: None,
            kind: "Pod".to_owned(),
            is_secret: false,
            with_fields,
            format: OutputFormat::Text,
            paint: Paint::with(is_on),
            is_listing: true,
        }
    }

    fn pod(name: &str, version: &str, phase: &str) -> Value {
        json!({"metadata": {"name": name, "namespace": "shop", "resourceVersion": version},
               "status": {"phase": phase}})
    }

    /// The lines without their times.
    fn lines(printer: &mut EventPrinter, events: Vec<CollectionEvent>) -> Vec<String> {
        let all = events.into_iter().flat_map(|event| printer.take(event, Timestamp::UNIX_EPOCH));
        all.map(|line| match line.strip_prefix("  ") {
            Some(_) => line,
            None => line.split_once(' ').map_or(String::new(), |(_, rest)| rest.to_owned()),
        })
        .collect()
    }

    #[test]
    fn an_event_shows_the_fields_that_changed() {
        let mut printer = printer(true, false);
        let seen = lines(
            &mut printer,
            vec![
                CollectionEvent::Object(pod("a", "1", "Pending")),
                CollectionEvent::Complete,
                CollectionEvent::Change(EventType::Modified, pod("a", "2", "Running")),
                CollectionEvent::Change(EventType::Added, pod("b", "3", "Pending")),
                CollectionEvent::Change(EventType::Deleted, pod("a", "4", "Running")),
            ],
        );
        assert_eq!(
            seen,
            [
                "LISTED   pod/shop/a",
                "MODIFIED pod/shop/a",
                r#"  ~ status.phase: "Pending" → "Running""#,
                "ADDED    pod/shop/b",
                "DELETED  pod/shop/a",
            ]
        );
    }

    #[test]
    fn after_a_restart_only_differences_are_shown() {
        let mut printer = printer(false, false);
        lines(
            &mut printer,
            vec![
                CollectionEvent::Object(pod("a", "1", "Pending")),
                CollectionEvent::Object(pod("b", "1", "Pending")),
                CollectionEvent::Object(pod("c", "1", "Pending")),
                CollectionEvent::Complete,
            ],
        );
        let seen = lines(
            &mut printer,
            vec![
                CollectionEvent::Restart,
                CollectionEvent::Object(pod("a", "1", "Pending")),
                CollectionEvent::Object(pod("b", "9", "Running")),
                CollectionEvent::Object(pod("d", "9", "Running")),
                CollectionEvent::Complete,
            ],
        );
        assert_eq!(
            seen,
            ["MODIFIED pod/shop/b (1 field)", "ADDED    pod/shop/d", "DELETED  pod/shop/c"]
        );
    }

    #[test]
    fn colours_mark_the_type_of_a_change() {
        let mut printer = printer(true, true);
        let added =
            printer.take(CollectionEvent::Object(pod("a", "1", "x")), Timestamp::UNIX_EPOCH);
        assert!(added[0].contains("\u{1b}[2mLISTED"), "{added:?}");
        let change = CollectionEvent::Change(EventType::Modified, pod("a", "2", "y"));
        let changed = printer.take(change, Timestamp::UNIX_EPOCH);
        assert!(changed[1].starts_with("  \u{1b}[33m~ status.phase"), "{changed:?}");
    }
}
