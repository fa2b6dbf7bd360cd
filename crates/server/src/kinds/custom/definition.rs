//! A CustomResourceDefinition as the server reads it.
//!
//! River: definition object → **definition** → names, rows. It contains only the fields that the server
//! uses; the object itself stays in the cache.

use headwater_api::Revision;
use headwater_api::table::PrinterColumn;
use headwater_json::{Value, from_value};
use serde::Deserialize;

use crate::object::{finalizers, is_deleting, meta};

/// The finalizer that keeps a definition until its objects are deleted (S9.30).
pub(crate) const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

/// One definition.
#[derive(Debug)]
pub(crate) struct Definition {
    /// The revision of the object.
    pub(crate) revision: Revision,
    pub(crate) name: String,
    pub(crate) uid: String,
    /// The generation: it grows with every change of the spec.
    pub(crate) generation: i64,
    /// The value of the approval annotation that protected groups require.
    pub(crate) approval: String,
    /// Whether deletion was requested.
    pub(crate) is_deleting: bool,
    /// Whether it has the finalizer of its objects.
    pub(crate) awaits_cleanup: bool,
    pub(crate) spec: Spec,
    pub(crate) status: DefinitionStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Spec {
    pub(crate) group: String,
    pub(crate) names: DefinitionNames,
    pub(crate) scope: String,
    pub(crate) versions: Vec<Version>,
}

/// The names of a kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct DefinitionNames {
    pub(crate) plural: String,
    pub(crate) singular: String,
    pub(crate) short_names: Vec<String>,
    pub(crate) kind: String,
    pub(crate) list_kind: String,
    pub(crate) categories: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Version {
    pub(crate) name: String,
    pub(crate) served: bool,
    pub(crate) storage: bool,
    pub(crate) deprecated: bool,
    pub(crate) deprecation_warning: Option<String>,
    pub(crate) subresources: Subresources,
    pub(crate) additional_printer_columns: Vec<Column>,
    pub(crate) selectable_fields: Vec<SelectableField>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Subresources {
    pub(crate) status: Option<Value>,
    pub(crate) scale: Option<Scale>,
}

/// The field paths of the `scale` subresource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Scale {
    pub(crate) spec_replicas_path: String,
    pub(crate) status_replicas_path: String,
    pub(crate) label_selector_path: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Column {
    name: String,
    #[serde(rename = "type")]
    kind: String,
    format: String,
    description: String,
    priority: i32,
    json_path: String,
}

impl From<&Column> for PrinterColumn {
    fn from(column: &Column) -> PrinterColumn {
        PrinterColumn {
            name: column.name.clone(),
            kind: column.kind.clone(),
            format: column.format.clone(),
            description: column.description.clone(),
            priority: column.priority,
            json_path: column.json_path.clone(),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SelectableField {
    pub(crate) json_path: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct DefinitionStatus {
    pub(crate) accepted_names: DefinitionNames,
    #[serde(deserialize_with = "list")]
    pub(crate) conditions: Vec<DefinitionCondition>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct DefinitionCondition {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) status: String,
    pub(crate) reason: String,
    pub(crate) message: String,
}

/// Reads null as an empty list: Kubernetes writes empty conditions as null.
fn list<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<DefinitionCondition>, D::Error> {
    Ok(Option::<Vec<DefinitionCondition>>::deserialize(from)?.unwrap_or_default())
}

impl Definition {
    /// Reads a definition object.
    pub(crate) fn read(
        object: &Value,
        revision: Revision,
    ) -> Result<Definition, serde_json::Error> {
        let part = |key: &str| object.get(key).unwrap_or(&Value::Null);
        let approval = &object["metadata"]["annotations"]["api-approved.kubernetes.io"];
        Ok(Definition {
            revision,
            name: meta(object, "name").to_owned(),
            uid: meta(object, "uid").to_owned(),
            generation: object["metadata"]["generation"].as_i64().unwrap_or_default(),
            approval: approval.as_str().unwrap_or_default().to_owned(),
            is_deleting: is_deleting(object),
            awaits_cleanup: finalizers(object).contains(&CLEANUP),
            spec: from_value::<Option<Spec>>(part("spec"))?.unwrap_or_default(),
            status: from_value::<Option<DefinitionStatus>>(part("status"))?.unwrap_or_default(),
        })
    }

    /// A condition by its type.
    pub(crate) fn condition(&self, kind: &str) -> Option<&DefinitionCondition> {
        self.status.conditions.iter().find(|condition| condition.kind == kind)
    }

    /// Whether a condition is true.
    pub(crate) fn is(&self, kind: &str) -> bool {
        self.condition(kind).is_some_and(|condition| condition.status == "True")
    }

    /// Whether objects are namespaced.
    pub(crate) fn is_namespaced(&self) -> bool {
        self.spec.scope == "Namespaced"
    }

    /// The storage version.
    pub(crate) fn storage(&self) -> Option<&Version> {
        self.spec.versions.iter().find(|version| version.storage)
    }
}
