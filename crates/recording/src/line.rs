//! The lines of a recording, one JSON document each.
//!
//! River: change → **line** → writer; reader → **line** → replay. Pure.

use headwater_api::EventType;
use headwater_json::{Value, json};
use jiff::Timestamp;

/// The version of the format.
pub(crate) const FORMAT: u64 = 1;

/// A kind of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedKind {
    /// API group; empty for the core group.
    pub group: String,
    /// The version in which its objects were recorded.
    pub version: String,
    /// Such as `Pod`.
    pub kind: String,
    /// Such as `pods`.
    pub plural: String,
    /// Whether its objects have a namespace.
    pub namespaced: bool,
}

/// One change of one object.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedChange {
    /// When it was seen.
    pub time: Timestamp,
    /// Its kind, by position among the kinds of the recording.
    pub kind: usize,
    /// Added, modified or deleted.
    pub event: EventType,
    /// Whether the object existed when the recording began.
    pub initial: bool,
    /// The object; of a deletion, its last state.
    pub object: Value,
}

impl RecordedChange {
    /// `namespace/name`, or `name`.
    pub fn key(&self) -> String {
        let meta = &self.object["metadata"];
        let name = meta["name"].as_str().unwrap_or_default();
        match meta["namespace"].as_str() {
            Some(namespace) if !namespace.is_empty() => format!("{namespace}/{name}"),
            _ => name.to_owned(),
        }
    }
}

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub enum RecordingLine {
    /// The first line.
    Begin {
        /// When the recording began.
        time: Timestamp,
        /// The address of the server, for people.
        server: String,
    },
    /// A kind, before its first change.
    Kind(RecordedKind),
    /// A change.
    Change(RecordedChange),
    /// All objects that existed at the beginning were recorded.
    Synced {
        /// When.
        time: Timestamp,
    },
    /// The server had forgotten changes of a kind: what follows makes up the difference, but
    /// changes between were missed.
    Gap {
        /// When.
        time: Timestamp,
        /// The kind.
        kind: usize,
    },
    /// The last line: nothing was cut off.
    End {
        /// When the recording ended.
        time: Timestamp,
    },
}

impl RecordingLine {
    /// When it was written; `None` for kinds.
    pub fn time(&self) -> Option<Timestamp> {
        match self {
            RecordingLine::Kind(_) => None,
            RecordingLine::Change(change) => Some(change.time),
            RecordingLine::Begin { time, .. }
            | RecordingLine::Synced { time }
            | RecordingLine::Gap { time, .. }
            | RecordingLine::End { time } => Some(*time),
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        match self {
            RecordingLine::Begin { time, server } => json!({
                "type": "BEGIN", "format": FORMAT, "time": time.to_string(), "server": server,
            }),
            RecordingLine::Kind(kind) => json!({
                "type": "KIND", "group": kind.group, "version": kind.version, "kind": kind.kind,
                "plural": kind.plural, "namespaced": kind.namespaced,
            }),
            RecordingLine::Change(change) => {
                let mut line = json!({
                    "type": change.event.as_str(), "time": change.time.to_string(),
                    "kind": change.kind,
                });
                if change.initial {
                    line["initial"] = true.into();
                }
                line["object"] = change.object.clone();
                line
            }
            RecordingLine::Synced { time } => json!({ "type": "SYNCED", "time": time.to_string() }),
            RecordingLine::Gap { time, kind } => {
                json!({ "type": "GAP", "time": time.to_string(), "kind": kind })
            }
            RecordingLine::End { time } => json!({ "type": "END", "time": time.to_string() }),
        }
    }

    /// Reads a line; `kinds` are those before it. `None` for a type that a later version added.
    pub(crate) fn parse(text: &[u8], kinds: usize) -> Result<Option<RecordingLine>, String> {
        let parsed = headwater_json::parse(text).map_err(|error| format!("no JSON: {error}"))?;
        let mut line = parsed.value;
        let word = line["type"].as_str().unwrap_or_default().to_owned();
        let event = match word.as_str() {
            "BEGIN" => {
                if line["format"].as_u64() != Some(FORMAT) {
                    return Err(format!("format {} is not supported", line["format"]));
                }
                let server = text_of(&line, "server")?;
                return Ok(Some(RecordingLine::Begin { time: time_of(&line)?, server }));
            }
            "KIND" => {
                return Ok(Some(RecordingLine::Kind(RecordedKind {
                    group: text_of(&line, "group")?,
                    version: text_of(&line, "version")?,
                    kind: text_of(&line, "kind")?,
                    plural: text_of(&line, "plural")?,
                    namespaced: line["namespaced"] == true,
                })));
            }
            "SYNCED" => return Ok(Some(RecordingLine::Synced { time: time_of(&line)? })),
            "GAP" => {
                let (time, kind) = (time_of(&line)?, kind_of(&line, kinds)?);
                return Ok(Some(RecordingLine::Gap { time, kind }));
            }
            "END" => return Ok(Some(RecordingLine::End { time: time_of(&line)? })),
            "ADDED" => EventType::Added,
            "MODIFIED" => EventType::Modified,
            "DELETED" => EventType::Deleted,
            _ => return Ok(None),
        };
        let change = RecordedChange {
            time: time_of(&line)?,
            kind: kind_of(&line, kinds)?,
            event,
            initial: line["initial"] == true,
            object: line["object"].take(),
        };
        match change.object["metadata"]["name"].as_str() {
            Some(name) if !name.is_empty() => Ok(Some(RecordingLine::Change(change))),
            _ => Err("an object has no name".to_owned()),
        }
    }
}

fn text_of(line: &Value, name: &str) -> Result<String, String> {
    line[name].as_str().map(str::to_owned).ok_or_else(|| format!("{name:?} is missing"))
}

fn time_of(line: &Value) -> Result<Timestamp, String> {
    let text = text_of(line, "time")?;
    text.parse().map_err(|_| format!("{text:?} is not a time"))
}

fn kind_of(line: &Value, kinds: usize) -> Result<usize, String> {
    let number = line["kind"].as_u64().and_then(|number| usize::try_from(number).ok());
    number
        .filter(|number| *number < kinds)
        .ok_or_else(|| format!("kind {} is unknown", line["kind"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn every_line_is_read_as_it_was_written() {
        let kind = RecordedKind {
            group: "apps".into(),
            version: "v1".into(),
            kind: "Deployment".into(),
            plural: "deployments".into(),
            namespaced: true,
        };
        let change = RecordedChange {
            time: time(3),
            kind: 0,
            event: EventType::Modified,
            initial: false,
            object: json!({"metadata": {"name": "web", "namespace": "shop"}}),
        };
        assert_eq!(change.key(), "shop/web");
        for line in [
            RecordingLine::Begin { time: time(1), server: "https://x".into() },
            RecordingLine::Kind(kind),
            RecordingLine::Change(RecordedChange { initial: true, ..change.clone() }),
            RecordingLine::Change(change),
            RecordingLine::Synced { time: time(2) },
            RecordingLine::Gap { time: time(2), kind: 0 },
            RecordingLine::End { time: time(9) },
        ] {
            let text = line.to_json().to_string();
            assert_eq!(RecordingLine::parse(text.as_bytes(), 1), Ok(Some(line)), "{text}");
        }
    }

    #[test]
    fn lines_that_mean_nothing_are_errors_and_unknown_types_are_skipped() {
        let why = |text: &str| RecordingLine::parse(text.as_bytes(), 1).unwrap_err();
        assert!(why("{").contains("no JSON"));
        assert!(why(r#"{"type":"BEGIN","format":2}"#).contains("format 2"));
        assert!(why(r#"{"type":"GAP","time":"2026-01-01T00:00:00Z","kind":1}"#).contains("kind 1"));
        assert!(why(r#"{"type":"END","time":"soon"}"#).contains("not a time"));
        let nameless = r#"{"type":"ADDED","time":"2026-01-01T00:00:00Z","kind":0,"object":{}}"#;
        assert!(why(nameless).contains("no name"));
        assert_eq!(RecordingLine::parse(br#"{"type":"NOTE"}"#, 0), Ok(None));
    }
}
