//! What OpenAPI says of fields beyond the type table: defaults, enums, extensions and unions, from `fields.txt`.

use std::collections::HashMap;
use std::sync::LazyLock;

use headwater_json::{Map, Value, json};

use crate::object::tree;

const TABLE: &str = include_str!("fields.txt");
const GROUP_VERSIONS: &str = include_str!("group_versions.txt");

/// The rows by name and word.
static ROWS: LazyLock<HashMap<(&str, &str), &str>> = LazyLock::new(|| {
    let rows = TABLE.lines().filter(|line| !line.starts_with('#'));
    rows.filter_map(|row| {
        let (name, rest) = row.split_once(' ')?;
        let (word, value) = rest.split_once(' ')?;
        Some(((name, word), value))
    })
    .collect()
});

/// The default of a field that is not the zero value of a required field.
pub(super) fn default(field: &str) -> Option<Value> {
    let text = ROWS.get(&(field, "default"))?;
    tree(text.as_bytes()).ok()
}

/// The allowed values of a field or of its elements.
pub(super) fn values(field: &str) -> Option<Vec<&'static str>> {
    Some(ROWS.get(&(field, "enum"))?.split('|').collect())
}

/// An extension of a field that the type table does not know.
pub(super) fn extension(field: &str) -> Option<(&'static str, &'static str)> {
    ROWS.get(&(field, "extension"))?.split_once('=')
}

/// The union of a type, as an extension.
pub(super) fn union(of: &str) -> Option<Value> {
    let mut words = ROWS.get(&(of, "union"))?.split(' ');
    let mut union = json!({});
    match words.next() {
        None | Some("-") => {}
        Some(key) => union["discriminator"] = key.into(),
    }
    let fields: Map = words
        .filter_map(|word| word.split_once('='))
        .map(|(field, value)| (field, Value::from(value)))
        .collect();
    union["fields-to-discriminateBy"] = Value::Object(fields);
    Some(json!([union]))
}

/// The groups and versions of DeleteOptions and WatchEvent in version 2.
pub(super) fn group_versions() -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = GROUP_VERSIONS.lines().filter(|line| !line.starts_with('#'));
    lines.flat_map(str::split_whitespace).filter_map(|name| name.split_once('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read() {
        assert_eq!(default("core.v1.ContainerPort.protocol"), Some(json!("TCP")));
        assert_eq!(values("core.v1.ContainerPort.protocol").unwrap(), ["SCTP", "TCP", "UDP"]);
        assert_eq!(values("core.v1.ContainerPort.name"), None);
        let union = union("core.v1.AppArmorProfile").unwrap();
        assert_eq!(union[0]["discriminator"], "type");
        assert_eq!(union[0]["fields-to-discriminateBy"]["localhostProfile"], "LocalhostProfile");
        assert!(group_versions().any(|name| name == ("", "v1")));
        for (_, word) in ROWS.keys() {
            assert!(matches!(*word, "default" | "enum" | "extension" | "union"), "{word}");
        }
    }
}
