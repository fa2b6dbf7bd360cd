//! Validation of defaults: their own schema must accept and not prune them.

use super::{FieldError, META_FIELDS, Path};
use crate::structural::{Node, Schema, identity, prune, validate};

/// The errors in the defaults of a compiled schema.
pub(super) fn check(schema: &Schema, base: &str) -> Vec<FieldError> {
    let mut walk = Walk { base, errors: Vec::new() };
    walk.node(&schema.root, &Path::Root, true);
    walk.errors
}

struct Walk<'a> {
    base: &'a str,
    errors: Vec<FieldError>,
}

impl Walk<'_> {
    fn node(&mut self, node: &Node, path: &Path<'_>, is_resource: bool) {
        self.default(node, path);
        if let Some(items) = &node.items {
            self.node(items, &Path::Field(path, "items"), items.embedded);
        }
        let properties = Path::Field(path, "properties");
        for (name, inner) in &node.properties {
            // The standard fields of a resource are validated with the resource.
            if is_resource && META_FIELDS.contains(&&**name) {
                continue;
            }
            self.node(inner, &Path::Bracket(&properties, name), inner.embedded);
        }
    }

    fn default(&mut self, node: &Node, path: &Path<'_>) {
        let Some(default) = &node.default else { return };
        let base = match path {
            Path::Root => format!("{}.default", self.base),
            path => format!("{}.{path}.default", self.base),
        };
        let mut pruned = default.clone();
        if !prune::value(node, &mut pruned).is_empty() {
            let error = FieldError::invalid(&*base, default, "must not have unknown fields");
            self.errors.push(error);
        }
        self.errors.extend(validate::value(node, default, None, &base));
        let found = identity::check(node, default);
        for mut error in found.resources.into_iter().chain(found.duplicates) {
            error.field = format!("{base}.{}", error.field);
            self.errors.push(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use headwater_json::json;

    use super::super::tests::texts;

    #[test]
    fn a_default_must_match_its_own_schema() {
        let schema = json!({"type": "object", "properties": {
            "size": {"type": "integer", "maximum": 10, "default": 11},
            "name": {"type": "string", "default": 5},
            "nest": {"type": "object", "default": {"x": 1, "y": 2},
                     "properties": {"x": {"type": "integer"}}},
            "fine": {"type": "object", "default": {"x": 1},
                     "properties": {"x": {"type": "integer"}}},
        }});
        assert_eq!(
            texts(&schema),
            [
                "schema.properties[name].default: Invalid value: \"integer\":  in body must be of type string: \"integer\"",
                "schema.properties[nest].default: Invalid value: {\"x\":1,\"y\":2}: must not have unknown fields",
                "schema.properties[size].default: Invalid value: 11:  in body should be less than or equal to 10",
            ]
        );
    }
}
