//! Parameters of operations, from `parameters.txt`.

use std::collections::HashMap;
use std::sync::LazyLock;

use headwater_json::{Map, Value, json};

use super::style::Style;

const TABLE: &str = include_str!("parameters.txt");

static BY_USE: LazyLock<HashMap<&str, Vec<Parameter>>> = LazyLock::new(|| {
    let mut uses: HashMap<&str, Vec<Parameter>> = HashMap::new();
    let mut current = "";
    for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
        match line.strip_prefix(' ') {
            None => current = line,
            Some(row) => uses.entry(current).or_default().push(Parameter::read(row)),
        }
    }
    uses
});

/// A parameter in the path or the query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Parameter {
    name: &'static str,
    kind: &'static str,
    suffix: &'static str,
    description: &'static str,
}

/// The name of the object, which is described by its kind and so is not shared.
pub(super) const NAME: Parameter =
    Parameter { name: "name", kind: "path", suffix: "-", description: "The name of the object." };

impl Parameter {
    fn read(row: &'static str) -> Parameter {
        let mut words = row.splitn(4, ' ');
        let mut word = || words.next().unwrap_or_default();
        Parameter { name: word(), kind: word(), suffix: word(), description: word() }
    }

    /// The parameter, or in version 2 a reference to a shared one.
    pub(super) fn write(self, style: Style) -> Value {
        if style == Style::V2 && self.suffix != "-" {
            return json!({ "$ref": format!("#/parameters/{}", self.shared_name()) });
        }
        self.definition(style)
    }

    fn shared_name(self) -> String {
        format!("{}-{}", self.name, self.suffix)
    }

    fn definition(self, style: Style) -> Value {
        let is_path = self.kind == "path";
        let place = if is_path { "path" } else { "query" };
        let kind = if is_path { "string" } else { self.kind };
        let mut parameter = json!({
            "name": self.name, "in": place, "description": self.description,
        });
        if is_path {
            parameter["required"] = true.into();
        }
        match style {
            Style::V2 => {
                parameter["type"] = kind.into();
                parameter["uniqueItems"] = true.into();
            }
            Style::V3 => parameter["schema"] = json!({ "type": kind, "uniqueItems": true }),
        }
        parameter
    }
}

/// The parameters of a use, such as `list` or `pods/log`.
pub(super) fn of(name: &str) -> &'static [Parameter] {
    BY_USE.get(name).map_or(&[], Vec::as_slice)
}

/// The body of a delete in version 2.
pub(super) fn delete_body() -> Value {
    json!({ "$ref": "#/parameters/body-2Y1dVQaQ" })
}

/// The body of a patch in version 2.
pub(super) fn patch_body() -> Value {
    json!({ "$ref": "#/parameters/body-78PwaGsr" })
}

/// The shared parameters of version 2.
pub(super) fn shared() -> Value {
    let mut shared = Map::new();
    for parameter in BY_USE.values().flatten().filter(|parameter| parameter.suffix != "-") {
        shared.insert(parameter.shared_name().into(), parameter.definition(Style::V2));
    }
    let meta = "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1";
    let body = |kind: &str| json!({ "name": "body", "in": "body", "schema": { "$ref": format!("{meta}.{kind}") } });
    shared.insert("body-2Y1dVQaQ".into(), body("DeleteOptions"));
    let mut patch = body("Patch");
    patch["required"] = true.into();
    shared.insert("body-78PwaGsr".into(), patch);
    Value::Object(shared)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_table_is_complete() {
        for parameter in BY_USE.values().flatten() {
            assert!(parameter.description.ends_with('.'), "{parameter:?}");
            assert!(matches!(parameter.kind, "path" | "string" | "boolean" | "integer"));
        }
    }

    /// S1.12
    #[test]
    fn version_two_refers_to_shared_parameters() {
        let limit = of("list").iter().find(|parameter| parameter.name == "limit").unwrap();
        assert_eq!(limit.write(Style::V2)["$ref"], "#/parameters/limit-1NfNmdNH");
        assert_eq!(shared()["limit-1NfNmdNH"]["type"], "integer");
        assert_eq!(limit.write(Style::V3)["schema"]["type"], "integer");
        assert_eq!(NAME.write(Style::V2)["required"], true);
    }
}
