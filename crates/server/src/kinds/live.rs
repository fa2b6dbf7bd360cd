//! The kinds of live resources: `watchers` and `requests` of `headwater.dev`, and the metrics of
//! simulated pods and nodes in `metrics.k8s.io`.
//!
//! River: **rows** → registry, discovery, tables.

use std::sync::Arc;

use headwater_api::Kind;
use headwater_api::kind::{Field, Name};
use headwater_api::table::{PrinterColumn, custom_columns};
use headwater_json::{Value, json};
use headwater_store::key;

use crate::kinds::registry::Served;

/// The API group.
pub(crate) const GROUP: &str = "headwater.dev";

/// The version of both kinds.
pub(crate) const VERSION: &str = "v1alpha1";

/// The API group of metrics.
pub(crate) const METRICS_GROUP: &str = "metrics.k8s.io";

/// The version of metrics.
pub(crate) const METRICS_VERSION: &str = "v1beta1";

/// Whether the kinds of a group are live resources, unless a definition says otherwise.
pub(crate) fn is_live(group: &str) -> bool {
    matches!(group, GROUP | METRICS_GROUP)
}

/// Verbs of all kinds.
const VERBS: [&str; 3] = ["get", "list", "watch"];

/// A column: its name, type, path and whether only wide output shows it.
type Column = (&'static str, &'static str, &'static str, bool);

const WATCHER_COLUMNS: &[Column] = &[
    ("User", "string", ".spec.user", false),
    ("Client", "string", ".spec.client", false),
    ("Resource", "string", ".spec.resource", false),
    ("Namespace", "string", ".spec.namespace", false),
    ("Selector", "string", ".spec.selector", false),
    ("From", "string", ".status.readsFrom", false),
    ("Position", "string", ".status.position", false),
    ("Pending", "integer", ".status.pendingEvents", false),
    ("Lag", "string", ".status.lag", false),
    ("Bytes", "integer", ".status.bytes", false),
    ("Events", "integer", ".status.events", true),
    ("Address", "string", ".spec.address", true),
    ("Age", "date", ".metadata.creationTimestamp", false),
];

const REQUEST_COLUMNS: &[Column] = &[
    ("User", "string", ".spec.user", false),
    ("Verb", "string", ".spec.verb", false),
    ("Path", "string", ".spec.path", false),
    ("Level", "string", ".spec.priorityLevel", false),
    ("Schema", "string", ".spec.flowSchema", true),
    ("Seats", "integer", ".spec.seats", true),
    ("State", "string", ".status.state", false),
    ("Time", "string", ".status.time", false),
];

const METRICS_COLUMNS: &[Column] = &[("Window", "string", ".window", false)];

/// The rows of what the server is doing.
pub(crate) fn rows() -> Vec<Arc<Served>> {
    let row = |plural, kind, columns, fields| row((GROUP, VERSION), plural, kind, columns, fields);
    vec![
        row("watchers", "Watcher", WATCHER_COLUMNS, &["spec.user", "spec.resource"]),
        row("requests", "Request", REQUEST_COLUMNS, &["spec.user"]),
    ]
}

/// The rows of metrics.
pub(crate) fn metrics_rows() -> Vec<Arc<Served>> {
    let row =
        |plural, kind| row((METRICS_GROUP, METRICS_VERSION), plural, kind, METRICS_COLUMNS, &[]);
    vec![row("nodes", "NodeMetrics"), row("pods", "PodMetrics")]
}

/// The key prefix of the objects of a kind of the server.
pub(crate) fn prefix(plural: &str) -> String {
    key::collection(GROUP, plural)
}

/// The key prefix of metrics.
pub(crate) fn metrics_prefix(plural: &str) -> String {
    key::collection(METRICS_GROUP, plural)
}

fn row(
    (group, version): (&'static str, &'static str),
    plural: &'static str,
    kind: &str,
    columns: &[Column],
    fields: &[&str],
) -> Arc<Served> {
    let printer: Vec<PrinterColumn> = columns
        .iter()
        .map(|(name, kind, path, is_wide)| PrinterColumn {
            name: (*name).to_owned(),
            kind: (*kind).to_owned(),
            json_path: (*path).to_owned(),
            priority: i32::from(*is_wide),
            ..PrinterColumn::default()
        })
        .collect();
    Arc::new(Served {
        kind: Kind {
            group: group.into(),
            version: version.into(),
            namespaced: kind == "PodMetrics",
            kind: Name::Owned(kind.to_owned()),
            list_kind: Name::Owned(format!("{kind}List")),
            plural: plural.into(),
            singular: Name::Owned(kind.to_lowercase()),
            verbs: VERBS.map(Name::Borrowed).into(),
            fields: fields.iter().map(|path| Field::custom(path)).collect(),
            custom: true,
            ..Kind::default()
        },
        stored: None,
        prefix: key::collection(group, plural),
        custom_columns: custom_columns(&printer),
        definition: None,
    })
}

/// The schema of a kind, for `kubectl explain`.
pub(crate) fn schema(kind: &str) -> Value {
    let (text, number) = (json!({ "type": "string" }), json!({ "type": "integer" }));
    let described = |of: &Value, description: &str| {
        let mut field = of.clone();
        field["description"] = description.into();
        field
    };
    if kind.ends_with("Metrics") {
        return json!({
            "type": "object",
            "description": "What a simulated pod or node uses.",
            "properties": {
                "timestamp": described(&text, "The end of the window."),
                "window": described(&text, "The time over which the usage was measured."),
                "usage": { "type": "object", "additionalProperties": text },
                "containers": { "type": "array", "items": { "type": "object", "properties": {
                    "name": text, "usage": { "type": "object", "additionalProperties": text },
                }}},
            },
        });
    }
    let (description, spec, status) = match kind {
        "Watcher" => (
            "An open watch of this server.",
            json!({
                "user": described(&text, "The user who watches."),
                "client": described(&text, "The first word of the client's User-Agent."),
                "userAgent": described(&text, "The client's User-Agent."),
                "address": described(&text, "The address of the client."),
                "resource": described(&text, "The watched resource, such as deployments.apps."),
                "namespace": described(&text, "The watched namespace; empty for all."),
                "selector": described(&text, "The label selector and the field selector."),
            }),
            json!({
                "readsFrom": described(&text, "Where it reads its next events: view, window or history."),
                "position": described(&text, "The resourceVersion up to which everything was sent."),
                "pendingEvents": described(&number, "Events in memory that were not sent yet."),
                "lag": described(&text, "The age of the oldest of them."),
                "events": described(&number, "Events that were sent."),
                "bytes": described(&number, "Bytes that were sent."),
            }),
        ),
        _ => (
            "A request that this server works on, or that waits for a seat.",
            json!({
                "user": described(&text, "The user of the request."),
                "verb": described(&text, "The verb of the request."),
                "path": described(&text, "The path of the request."),
                "priorityLevel": described(&text, "The priority level that it belongs to."),
                "flowSchema": described(&text, "The flow schema that it matched."),
                "seats": described(&number, "The seats that it takes."),
            }),
            json!({
                "state": described(&text, "Waiting or Running."),
                "time": described(&text, "How long it has been in this state."),
            }),
        ),
    };
    json!({
        "type": "object",
        "description": description,
        "properties": {
            "spec": { "type": "object", "properties": spec },
            "status": { "type": "object", "properties": status },
        },
    })
}
