//! Schemas: they are rejected, or pruning, defaulting and validation are deterministic.

use std::cell::Cell;

use headwater_json::{Value, json};
use headwater_schema::structural::{Schema, SchemaLocation, check};

use super::{anything, each, expression, name};
use crate::any::Dice;

/// A schema that is often structural; `deepest` levels at most.
pub(super) fn schema(dice: &mut Dice, deepest: usize) -> Value {
    level(dice, 0, deepest)
}

fn level(dice: &mut Dice, depth: usize, deepest: usize) -> Value {
    let kinds = ["object", "array", "string", "integer", "number", "boolean"];
    let kind = match depth {
        0 => "object",
        depth if depth >= deepest => *dice.pick(&kinds[2..]),
        _ => *dice.pick(&kinds),
    };
    let mut made = json!({ "type": kind });
    match kind {
        "object" if depth == 0 || dice.below(4) > 0 => {
            for _ in 0..dice.below(4) {
                made["properties"][name(dice)] = level(dice, depth + 1, deepest);
            }
        }
        "object" => {
            made["additionalProperties"] = level(dice, depth + 1, deepest);
            bound(dice, &mut made, "maxProperties");
        }
        "array" => {
            made["items"] = level(dice, depth + 1, deepest);
            bound(dice, &mut made, "maxItems");
            listed(dice, &mut made);
        }
        "string" => text(dice, &mut made),
        _ => made[*dice.pick(&["maximum", "minimum", "multipleOf"])] = dice.below(5).into(),
    }
    said_beside(dice, &mut made);
    made
}

fn bound(dice: &mut Dice, schema: &mut Value, key: &str) {
    if dice.below(2) == 0 {
        schema[key] = dice.below(6).into();
    }
}

fn listed(dice: &mut Dice, schema: &mut Value) {
    match dice.below(5) {
        0 => schema["x-kubernetes-list-type"] = "set".into(),
        1 => schema["x-kubernetes-list-type"] = "atomic".into(),
        2 => {
            schema["x-kubernetes-list-type"] = "map".into();
            let key = name(dice);
            schema["items"] = json!({"type": "object", "required": [key],
                "properties": {key.clone(): {"type": "string"}, "a": {"type": "integer"}}});
            schema["x-kubernetes-list-map-keys"] = json!([key]);
        }
        _ => {}
    }
}

fn text(dice: &mut Dice, schema: &mut Value) {
    let formats = ["date-time", "date", "byte", "duration", "ipv4", "uuid", "odd"];
    let patterns = ["^a+$", "(a|b)*", "[", "a{1000}", "(?i)x", "a++", "(a{10}){200}", r"\d\"];
    match dice.below(5) {
        0 => schema["format"] = (*dice.pick(&formats)).into(),
        1 => schema["pattern"] = (*dice.pick(&patterns)).into(),
        2 => schema["maxLength"] = dice.below(3).into(),
        3 => schema["enum"] = json!(["a", name(dice)]),
        _ => {}
    }
}

/// Keywords that are allowed with any type.
fn said_beside(dice: &mut Dice, schema: &mut Value) {
    if dice.below(4) == 0 {
        schema["default"] = anything(dice, 3);
    }
    if dice.below(4) == 0 {
        let mut rule = json!({ "rule": expression::any(dice, 3) });
        if dice.below(4) == 0 {
            rule["messageExpression"] = expression::any(dice, 2).into();
        }
        schema["x-kubernetes-validations"] = json!([rule]);
    }
    if dice.below(6) == 0 {
        let junctors = ["allOf", "anyOf", "oneOf"];
        let said =
            json!([{"maxLength": 3}, {"required": ["a"]}, {"properties": {"a": {"maximum": 2}}}]);
        schema[*dice.pick(&junctors)] = said;
    }
    if dice.below(8) == 0 {
        let flags = [
            "nullable",
            "x-kubernetes-preserve-unknown-fields",
            "x-kubernetes-int-or-string",
            "x-kubernetes-embedded-resource",
        ];
        schema[*dice.pick(&flags)] = true.into();
    }
    if dice.below(16) == 0 {
        schema[name(dice)] = anything(dice, 2);
    }
}

#[test]
fn schemas_are_refused_or_hold_objects_to_themselves() {
    let accepted = Cell::new(0);
    each(9_000, |dice, size| {
        let schema = schema(dice, size);
        let place = SchemaLocation { path: "schema", has_status: dice.below(2) == 0 };
        let faults = check(&schema, place);
        let Ok(compiled) = Schema::compile(&schema) else {
            assert!(!faults.is_empty(), "a schema that cannot be compiled was accepted: {schema}");
            return;
        };
        let mut any = || json!({"a": anything(dice, 1), "spec": anything(dice, 1)});
        let (mut object, old) = (any(), any());
        let sent = object.clone();
        compiled.prune(&mut object);
        compiled.default(&mut object).unwrap();
        if faults.is_empty() {
            accepted.set(accepted.get() + 1);
            if compiled.is_settled(&serde_json::to_vec(&sent).unwrap()) {
                assert_eq!(object, sent, "it said that nothing would change: {schema}");
            }
            let before = object.clone();
            assert_eq!(compiled.prune(&mut object), Vec::<String>::new(), "{schema}");
            compiled.default(&mut object).unwrap();
            assert_eq!(object, before, "settled twice: {schema}");
        }
        compiled.validate(&object, None);
        compiled.validate(&object, Some(&old));
        let same = compiled.validate(&object, Some(&object.clone()));
        let fresh = compiled.validate(&object, None);
        // A rule may use `oldSelf`, and runs only if the value is valid otherwise.
        let has_rules = schema.to_string().contains("x-kubernetes-validations");
        if faults.is_empty() && !has_rules {
            assert!(same.len() <= fresh.len(), "what did not change is forgiven: {schema}");
        }
    });
    assert!(accepted.get() > 0, "no schema was good enough to be tried");
}
