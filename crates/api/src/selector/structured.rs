//! Label selectors as specs write them: `matchLabels` and `matchExpressions`.
//!
//! The only reader of that form: it checks the requirements, prints them as Kubernetes prints them
//! and turns them into a [`LabelSelector`]. An unknown operator, key or value makes the entire selector
//! invalid. Each caller decides what that means: validation rejects the object, a stored selector
//! matches nothing.

use std::fmt;

use headwater_json::{Map, Value};

use super::check_terms;
use super::label::{Condition, LabelSelector, Requirement, checked};
use crate::name;
use crate::query::quote;

/// The requirements of a `LabelSelector`, checked and sorted by key.
#[derive(Debug)]
pub struct StructuredSelector<'a> {
    requirements: Vec<LabelExpression<'a>>,
}

/// One requirement: a key, an operator such as `In`, and its values.
#[derive(Clone, Debug)]
pub struct LabelExpression<'a> {
    /// The key of the label.
    pub key: &'a str,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`; `=` for an entry of `matchLabels`.
    pub operator: &'a str,
    /// The values of `In` and `NotIn`.
    pub values: Vec<&'a str>,
}

impl<'a> LabelExpression<'a> {
    fn equals(key: &'a str, value: &'a str) -> LabelExpression<'a> {
        LabelExpression { key, operator: "=", values: vec![value] }
    }

    fn of(expression: &'a Value) -> LabelExpression<'a> {
        let text = |key| expression[key].as_str().unwrap_or_default();
        let values = expression["values"].as_array().into_iter().flatten();
        LabelExpression {
            key: text("key"),
            operator: text("operator"),
            values: values.map(|value| value.as_str().unwrap_or_default()).collect(),
        }
    }

    /// The requirement that matches labels, if this one is valid.
    fn requirement(&self) -> Result<Requirement, String> {
        let problems = name::qualified(self.key);
        if !problems.is_empty() {
            let (key, problems) = (quote(self.key), problems.join("; "));
            return Err(format!("key: Invalid value: {key}: {problems}"));
        }
        let condition = match (self.operator, self.values.is_empty()) {
            ("In" | "NotIn", true) => {
                let why = "for 'in', 'notin' operators, values set can't be empty";
                return Err(format!("values: Invalid value: []: {why}"));
            }
            ("Exists" | "DoesNotExist", false) => {
                let why = "values set must be empty for exists and does not exist";
                return Err(format!("values: Invalid value: {:?}: {why}", self.values));
            }
            ("=" | "In", _) => Condition::In(checked(self.key, self.values.clone())?),
            ("NotIn", _) => Condition::NotIn(checked(self.key, self.values.clone())?),
            ("Exists", _) => Condition::Exists,
            ("DoesNotExist", _) => Condition::Absent,
            (other, _) => {
                return Err(format!("{other:?} is not a valid label selector operator"));
            }
        };
        Ok(Requirement { key: self.key.into(), condition })
    }
}

impl<'a> StructuredSelector<'a> {
    /// Reads a `LabelSelector`. An empty one matches everything.
    pub fn of(selector: &'a Map) -> Result<StructuredSelector<'a>, String> {
        let labels = selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten();
        let expressions = selector.get("matchExpressions").and_then(Value::as_array);
        StructuredSelector::new(
            labels.map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default())),
            expressions.into_iter().flatten().map(LabelExpression::of),
        )
    }

    /// Reads a selector that is only a map of labels, such as that of a ReplicationController.
    pub fn of_labels(labels: &'a Map) -> Result<StructuredSelector<'a>, String> {
        let labels = labels.iter();
        StructuredSelector::new(
            labels.map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default())),
            std::iter::empty(),
        )
    }

    /// Checks the entries of `matchLabels` and `matchExpressions`.
    pub fn new(
        labels: impl Iterator<Item = (&'a str, &'a str)>,
        expressions: impl Iterator<Item = LabelExpression<'a>>,
    ) -> Result<StructuredSelector<'a>, String> {
        let equal = labels.map(|(key, value)| LabelExpression::equals(key, value));
        let mut requirements: Vec<_> = equal.chain(expressions).collect();
        check_terms(requirements.len()).map_err(|status| status.message)?;
        for requirement in &mut requirements {
            requirement.requirement()?;
            requirement.values.sort_unstable();
        }
        requirements.sort_by_key(|requirement| requirement.key);
        Ok(StructuredSelector { requirements })
    }

    /// The selector that matches labels.
    pub fn selector(&self) -> LabelSelector {
        let requirements = self.requirements.iter();
        LabelSelector::from_requirements(
            requirements.flat_map(LabelExpression::requirement).collect(),
        )
    }
}

/// The text that Kubernetes prints and that [`LabelSelector::parse`] reads.
impl fmt::Display for StructuredSelector<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, LabelExpression { key, operator, values }) in
            self.requirements.iter().enumerate()
        {
            let comma = if index > 0 { "," } else { "" };
            match *operator {
                "=" => write!(f, "{comma}{key}={}", values[0])?,
                "In" => write!(f, "{comma}{key} in ({})", values.join(","))?,
                "NotIn" => write!(f, "{comma}{key} notin ({})", values.join(","))?,
                "Exists" => write!(f, "{comma}{key}")?,
                _ => write!(f, "{comma}!{key}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::needless_pass_by_value, reason = "`json!` rows read best by value")]
mod tests {
    use headwater_json::json;
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(selector: Value, expected: Result<&str, &str>) {
        let read = StructuredSelector::of(selector.as_object().unwrap());
        let text = read.map(|selector| selector.to_string());
        assert_eq!(text, expected.map(str::to_owned).map_err(str::to_owned));
    }

    #[test]
    fn a_structured_selector_is_printed_in_the_order_of_its_keys() {
        check(json!({}), Ok(""));
        check(
            json!({
                "matchLabels": {"b": "2", "a": "1"},
                "matchExpressions": [
                    {"key": "d", "operator": "DoesNotExist"},
                    {"key": "c", "operator": "In", "values": ["y", "x"]},
                    {"key": "e", "operator": "NotIn", "values": ["z"]},
                    {"key": "aa", "operator": "Exists"},
                ],
            }),
            Ok("a=1,aa,b=2,c in (x,y),!d,e notin (z)"),
        );
        let labels = json!({"app": "web"});
        let plain = StructuredSelector::of_labels(labels.as_object().unwrap()).unwrap();
        assert_eq!(plain.to_string(), "app=web");
    }

    #[test]
    fn an_invalid_requirement_makes_the_selector_invalid() {
        let one = |key: &str, operator: &str, values: &[&str]| {
            let values: Vec<Value> = values.iter().map(|value| Value::from(*value)).collect();
            let expression = json!({"key": key, "operator": operator, "values": []});
            let mut selector = json!({"matchExpressions": [expression]});
            selector["matchExpressions"][0]["values"] = values.into();
            selector
        };
        check(one("a", "Near", &[]), Err("\"Near\" is not a valid label selector operator"));
        check(one("a", "", &[]), Err("\"\" is not a valid label selector operator"));
        let empty = "values: Invalid value: []: for 'in', 'notin' operators, values set can't be \
                     empty";
        check(one("a", "In", &[]), Err(empty));
        let filled = "values: Invalid value: [\"x\"]: values set must be empty for exists and does \
                      not exist";
        check(one("a", "Exists", &["x"]), Err(filled));
        for selector in [
            one("a,b", "Exists", &[]),
            one("a", "In", &["x),!b"]),
            json!({"matchLabels": {"a": "-"}}),
            json!({"matchLabels": {"-": "a"}}),
        ] {
            assert!(StructuredSelector::of(selector.as_object().unwrap()).is_err());
        }
    }

    proptest! {
        #[test]
        fn the_printed_text_parses_to_the_same_selector(
            labels in prop::collection::btree_map("[a-c]", "[x-z]{0,1}", 0..3),
            expressions in prop::collection::vec(("[a-c]", 0..4usize, "[x-z]"), 0..4),
        ) {
            let operators = ["In", "NotIn", "Exists", "DoesNotExist"];
            let expressions = expressions.iter().map(|(key, operator, value)| LabelExpression {
                key,
                operator: operators[*operator],
                values: if *operator < 2 { vec![value, "y"] } else { vec![] },
            });
            let labels = labels.iter().map(|(key, value)| (key.as_str(), value.as_str()));
            let structured = StructuredSelector::new(labels, expressions).unwrap();
            let parsed = LabelSelector::parse(&structured.to_string()).unwrap();
            prop_assert_eq!(parsed, structured.selector());
        }
    }
}
