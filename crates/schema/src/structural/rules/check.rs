//! Validation of the rules of a schema: compilation, use of `oldSelf`, and estimated cost.
//!
//! Promise: the cost of an accepted rule is limited by its schema. The estimate is Kubernetes',
//! multiplied by the maximum number of occurrences in one object.

use headwater_json::Value;

use super::known;
use crate::structural::SchemaLocation;
use headwater_api::status::{FieldError, FieldErrorKind};
use headwater_cel::{DeclType, DeclTypes, Program, pattern};
use headwater_json::path::Path;

/// The maximum estimated cost of one rule (Kubernetes' limit).
const RULE_COST_MAX: u64 = 10_000_000;

/// The maximum estimated cost of all rules of one schema (Kubernetes' limit).
const SCHEMA_COST_MAX: u64 = 100_000_000;

/// The errors in the rules of a schema; `below` is its path.
pub(crate) fn errors(schema: &Value, place: SchemaLocation<'_>) -> Vec<FieldError> {
    let mut check = Check::default();
    let inside = Inside { cardinality: Some(1), uncorrelated: None, is_root: true };
    check.schema(schema, &Path::Field(&Path::Root, place.path), &inside);
    check.errors.extend(check.total.errors(place.path));
    check.errors
}

/// The context of a schema.
#[derive(Clone, Copy)]
struct Inside<'p> {
    /// The maximum number of occurrences in an object, if limited.
    cardinality: Option<u64>,
    /// The path of the nearest ancestor without a correspondence to the old object.
    uncorrelated: Option<&'p Path<'p>>,
    is_root: bool,
}

#[derive(Default)]
struct Check<'a> {
    errors: Vec<FieldError>,
    types: DeclTypes<'a>,
    budget: pattern::Budget,
    total: Total,
}

impl<'a> Check<'a> {
    fn schema<'p>(&mut self, schema: &'a Value, path: &'p Path<'p>, inside: &Inside<'p>) {
        self.rules(schema, schema, path, inside);
        for (index, inner) in schema["allOf"].as_array().into_iter().flatten().enumerate() {
            self.rules(inner, schema, &path.field("allOf").index(index), inside);
        }
        let below = Inside { is_root: false, ..*inside };
        let cut = |inside: Inside<'p>, cuts: bool| match cuts {
            true => Inside { uncorrelated: inside.uncorrelated.or(Some(path)), ..inside },
            false => inside,
        };
        let is_atomic = schema["x-kubernetes-map-type"] == "atomic";
        let times = |max: &Value| match (inside.cardinality, max.as_u64()) {
            (Some(count), Some(max)) => count.checked_mul(max),
            _ => None,
        };
        for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
            let inside = cut(below, is_atomic);
            self.schema(inner, &path.field("properties").bracket(name), &inside);
        }
        if schema["additionalProperties"].is_object() {
            let cardinality = times(&schema["maxProperties"]);
            let inside = cut(Inside { cardinality, ..below }, is_atomic);
            let path = path.field("additionalProperties");
            self.schema(&schema["additionalProperties"], &path, &inside);
        }
        if schema["items"].is_object() {
            let cardinality = times(&schema["maxItems"]);
            let is_keyed = schema["x-kubernetes-list-type"] == "map";
            let inside = cut(Inside { cardinality, ..below }, !is_keyed);
            self.schema(&schema["items"], &path.field("items"), &inside);
        }
    }

    fn rules(&mut self, schema: &'a Value, typed: &'a Value, path: &Path<'_>, inside: &Inside<'_>) {
        let rules = schema["x-kubernetes-validations"].as_array();
        let Some(rules) = rules.filter(|rules| !rules.is_empty()) else { return };
        let shape = self.types.of(typed, inside.is_root);
        for (index, rule) in rules.iter().enumerate() {
            let at = format!("{path}.x-kubernetes-validations[{index}]");
            self.rule(rule, &shape, &at, inside);
        }
    }

    fn rule(&mut self, rule: &Value, shape: &DeclType, at: &str, inside: &Inside<'_>) {
        let text = |key: &str| rule[key].as_str().unwrap_or_default().trim();
        let invalid = |key: &str, why: String| FieldError {
            kind: FieldErrorKind::Invalid,
            field: format!("{at}.{key}"),
            detail: format!("{}: {why}", shown(rule)),
        };
        let optional_old = &rule["optionalOldSelf"];
        let names = known(shape, *optional_old == true);
        let uses_old = match Program::compile_within(text("rule"), &names, &mut self.budget) {
            Err(error) => {
                self.errors.push(invalid("rule", format!("compilation failed: {error}")));
                false
            }
            Ok(program) => {
                if program.result() != "bool" {
                    let why = "cel expression must evaluate to a bool".to_owned();
                    self.errors.push(invalid("rule", why));
                }
                let times = inside.cardinality.unwrap_or_else(|| shape.cardinality_max());
                let cost = program.cost_max(&names).saturating_mul(times);
                self.cost("estimated rule cost", format!("{at}.rule"), cost);
                program.mentions("oldSelf")
            }
        };
        if !text("messageExpression").is_empty() {
            let names = known(shape, false);
            let program =
                Program::compile_within(text("messageExpression"), &names, &mut self.budget);
            let found = match program {
                Err(error) => Some(format!("messageExpression compilation failed: {error}")),
                Ok(program) if program.result() != "string" => {
                    Some("messageExpression must evaluate to a string".to_owned())
                }
                Ok(program) => {
                    let at = format!("{at}.messageExpression");
                    self.cost("estimated messageExpression cost", at, program.cost_max(&names));
                    None
                }
            };
            self.errors.extend(found.map(|why| invalid("messageExpression", why)));
        }
        if let (true, Some(path)) = (uses_old, &inside.uncorrelated) {
            let why = format!(
                "oldSelf cannot be used on the uncorrelatable portion of the schema within {path}"
            );
            let field = format!("{at}.rule");
            self.errors.push(FieldError::invalid(field, &rule["rule"], why));
        }
        if !uses_old && !optional_old.is_null() {
            let why = "may not be set if oldSelf is not used in rule";
            let field = format!("{at}.optionalOldSelf");
            self.errors.push(FieldError::invalid(field, optional_old, why));
        }
    }

    /// Rejects a rule that costs too much, and adds to the total.
    fn cost(&mut self, what: &str, field: String, cost: u64) {
        if cost > RULE_COST_MAX {
            let why = exceeds(what, cost, RULE_COST_MAX);
            self.errors.push(FieldError::forbidden(field.clone(), &why));
        }
        self.total.add(field, cost);
    }
}

/// The total cost of the rules of a schema, and the most expensive ones.
#[derive(Default)]
struct Total {
    cost: u64,
    dearest: Vec<(u64, String)>,
}

impl Total {
    /// The number of rules that are named if the total is too high.
    const NAMED_MAX: usize = 4;

    fn add(&mut self, field: String, cost: u64) {
        self.cost = self.cost.saturating_add(cost);
        // Rules below one percent of the limit are not named.
        if cost < SCHEMA_COST_MAX / 100 {
            return;
        }
        self.dearest.push((cost, field));
        self.dearest.sort_by_key(|(cost, _)| std::cmp::Reverse(*cost));
        self.dearest.truncate(Total::NAMED_MAX);
    }

    fn errors(&self, path: &str) -> Vec<FieldError> {
        if self.cost <= SCHEMA_COST_MAX {
            return Vec::new();
        }
        let contributed = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
        let named = self.dearest.iter().map(|(_, field)| FieldError::forbidden(field, contributed));
        let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        let all = FieldError::forbidden(path, &exceeds(what, self.cost, SCHEMA_COST_MAX));
        named.chain([all]).collect()
    }
}

fn exceeds(what: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let factor = match factor {
        factor if factor > 100.0 => "more than 100x".to_owned(),
        factor if factor < 1.5 => format!("{factor:.6}x"),
        factor => format!("{factor:.1}x"),
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
    )
}

/// A rule in Kubernetes' format: its fields under their Go names.
fn shown(rule: &Value) -> String {
    let text = |key: &str| Value::from(rule[key].as_str().unwrap_or_default());
    format!(
        r#"{{"Rule":{},"Message":{},"MessageExpression":{},"Reason":{},"FieldPath":{},"OptionalOldSelf":{}}}"#,
        text("rule"),
        text("message"),
        text("messageExpression"),
        rule["reason"],
        text("fieldPath"),
        rule["optionalOldSelf"]
    )
}
