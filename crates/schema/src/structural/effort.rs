//! The limits of one validation.
//!
//! Promise: alternatives, enumerations and patterns multiply the work on a value; whatever a schema
//! combines, a validation ends, and its messages take bounded memory. What was not checked is an error.

use std::cell::Cell;

use headwater_api::status::{FieldError, FieldErrorKind};
use headwater_cel::pattern::{Pattern, TooManySteps};

/// The maximum number of steps of a validation: a step is a byte of text in a state of a pattern.
const STEPS_MAX: u64 = 1 << 32;

/// The steps of a value that is validated by a node.
const VALUE: u64 = 256;

/// The steps of a comparison with a member of an enumeration.
const MEMBER: u64 = 8;

/// The maximum size of all error messages. A message may contain its value.
const MESSAGES_MAX: usize = 16 << 20;

/// The remaining steps and bytes of a validation.
pub(super) struct Effort {
    steps: Cell<u64>,
    messages: Cell<usize>,
    exhausted: Cell<bool>,
}

impl Default for Effort {
    fn default() -> Effort {
        Effort::new(STEPS_MAX, MESSAGES_MAX)
    }
}

impl Effort {
    fn new(steps: u64, messages: usize) -> Effort {
        Effort {
            steps: Cell::new(steps),
            messages: Cell::new(messages),
            exhausted: Cell::new(false),
        }
    }

    /// Whether one more value may be validated.
    pub(super) fn value(&self) -> bool {
        self.spend(VALUE)
    }

    /// Whether a value may be compared with the members of an enumeration.
    pub(super) fn members(&self, count: usize) -> bool {
        self.spend(MEMBER * count as u64)
    }

    /// Whether a text matches; one that may not be matched does.
    pub(super) fn matches(&self, pattern: &Pattern, text: &str) -> bool {
        if !self.spend(pattern.steps(text)) {
            return true;
        }
        pattern.matches(text).unwrap_or_else(|TooManySteps| {
            self.exhausted.set(true);
            true
        })
    }

    /// Whether an error may be kept.
    pub(super) fn message(&self, error: &FieldError) -> bool {
        let left = self.messages.get().checked_sub(error.field.len() + error.detail.len());
        self.messages.set(left.unwrap_or_default());
        self.exhausted.set(self.exhausted.get() || left.is_none());
        left.is_some()
    }

    fn spend(&self, steps: u64) -> bool {
        let left = self.steps.get().checked_sub(steps);
        self.steps.set(left.unwrap_or_default());
        self.exhausted.set(self.exhausted.get() || left.is_none());
        left.is_some()
    }

    /// The error of a validation that was not completed.
    pub(super) fn error(&self, field: &str) -> Option<FieldError> {
        let detail = "the validation takes too many steps, or has too many errors; \
                      not everything was checked";
        self.exhausted.get().then(|| FieldError {
            kind: FieldErrorKind::Invalid,
            field: if field.is_empty() { "<nil>" } else { field }.to_owned(),
            detail: detail.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use headwater_json::{Value, json};

    use super::*;
    use crate::structural::{Schema, validate};

    /// The errors within limits that are smaller than those of a server by this factor.
    fn errors(schema: &Value, object: &Value, factor: u64) -> Vec<String> {
        let schema = Schema::compile(schema).unwrap();
        let effort = Effort::new(STEPS_MAX / factor, MESSAGES_MAX / factor as usize);
        let found = validate::within(&effort, &schema.root, object, None, "");
        found.iter().map(ToString::to_string).collect()
    }

    fn texts(rules: &Value, count: usize) -> (Value, Value) {
        let schema =
            json!({"type": "object", "properties": {"l": {"type": "array", "items": rules}}});
        let list: Vec<Value> = (0..count).map(|at| at.to_string().into()).collect();
        (schema, json!({"l": list}))
    }

    #[track_caller]
    fn ends(schema: &Value, object: &Value) {
        let found = errors(schema, object, 256);
        let last = found.last().expect("not everything was checked");
        assert!(last.contains("too many steps"), "{last}");
        let bytes: usize = found.iter().map(String::len).sum();
        assert!(bytes < MESSAGES_MAX / 256 + 50_000, "{bytes}");
    }

    #[test]
    fn many_alternatives_of_many_values_end() {
        let all = vec![json!({"minLength": 1}); 300];
        let (schema, object) = texts(&json!({"type": "string", "allOf": all}), 1_000);
        ends(&schema, &object);
    }

    #[test]
    fn large_enumerations_of_many_values_end() {
        let known: Vec<Value> = (0..5_000).map(|at| format!("known {at}").into()).collect();
        let (schema, object) = texts(&json!({"type": "string", "enum": known}), 10_000);
        ends(&schema, &object);
    }

    #[test]
    fn long_texts_in_errors_of_many_alternatives_end() {
        let all: Vec<Value> = (0..200).map(|at| json!({"pattern": format!("^x{at}")})).collect();
        let rules = json!({"type": "string", "allOf": all});
        let schema = json!({"type": "object", "properties": {"t": rules}});
        ends(&schema, &json!({"t": "y".repeat(1000)}));
    }

    #[test]
    fn ordinary_validations_are_complete() {
        let known: Vec<Value> = (0..200).map(|at| at.to_string().into()).collect();
        let (schema, object) =
            texts(&json!({"type": "string", "enum": known, "pattern": "^[0-9]+$"}), 200);
        assert_eq!(errors(&schema, &object, 1), Vec::<String>::new());
    }
}
