//! Rules at every level of a schema.

use headwater_json::{Value, json};

use crate::structural::{Schema, SchemaLocation, check as check_schema};

/// A schema whose spec has these properties and rules.
fn spec(properties: Value, rules: Value) -> Value {
    json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": properties, "x-kubernetes-validations": rules},
    }})
}

fn faults(schema: &Value) -> Vec<String> {
    let place = SchemaLocation { path: "schema", has_status: false };
    check_schema(schema, place).iter().map(ToString::to_string).collect()
}

#[track_caller]
fn judge(schema: &Value, new: Value, old: Option<Value>) -> Vec<String> {
    assert_eq!(faults(schema), Vec::<String>::new());
    let compiled = Schema::compile(schema).unwrap();
    compiled.validate(&new, old.as_ref()).iter().map(ToString::to_string).collect()
}

#[track_caller]
fn refused(schema: &Value, new: Value, expected: &[&str]) {
    assert_eq!(judge(schema, new, None), expected);
}

#[test]
fn a_rule_applies_at_its_level() {
    let properties = json!({
        "min": {"type": "integer"}, "max": {"type": "integer"},
        "name": {"type": "string", "x-kubernetes-validations": [{"rule": "self.startsWith('w-')"}]},
        "tags": {"type": "array", "maxItems": 10, "items": {
            "type": "string", "maxLength": 10,
            "x-kubernetes-validations": [{"rule": "self != 'bad'", "message": " no bad tags "}],
        }},
        "limits": {"type": "object", "maxProperties": 5, "additionalProperties": {
            "type": "integer", "x-kubernetes-validations": [{"rule": "self > 0"}],
        }},
    });
    let schema = spec(properties, json!([{"rule": "self.min <= self.max"}]));
    refused(&schema, json!({"spec": {"min": 1, "max": 2, "name": "w-a", "tags": ["a"]}}), &[]);
    refused(
        &schema,
        json!({"spec": {"min": 3, "max": 2, "name": "x", "tags": ["a", "bad"], "limits": {"cpu": 0}}}),
        &[
            "spec: Invalid value: failed rule: self.min <= self.max",
            "spec.limits[cpu]: Invalid value: 0: failed rule: self > 0",
            "spec.name: Invalid value: \"x\": failed rule: self.startsWith('w-')",
            "spec.tags[1]: Invalid value: \"bad\": no bad tags",
        ],
    );
    refused(
        &schema,
        json!({"spec": {"max": 2}}),
        &[
            "spec: Invalid value: \"object\": no such key: min evaluating rule: self.min <= self.max",
        ],
    );
}

#[test]
fn a_rule_at_the_root_sees_the_name() {
    let mut schema = spec(json!({"size": {"type": "integer"}}), json!([]));
    schema["x-kubernetes-validations"] =
        json!([{"rule": "self.metadata.name.size() < 4", "fieldPath": ".spec.size"}]);
    refused(&schema, json!({"metadata": {"name": "abc"}}), &[]);
    refused(
        &schema,
        json!({"metadata": {"name": "abcd"}}),
        &["spec.size: Invalid value: failed rule: self.metadata.name.size() < 4"],
    );
    schema["x-kubernetes-validations"] = json!([{"rule": "self.metadata.labels.size() == 0"}]);
    let found = faults(&schema);
    assert!(found[0].contains("undefined field 'labels'"), "{found:?}");
}

#[test]
fn the_error_has_the_reason_and_message_of_the_rule() {
    let check = |mut rule: Value, expected: &str| {
        rule["rule"] = "self.a > self.b".into();
        let properties = json!({"a": {"type": "integer"}, "b": {"type": "integer"}});
        refused(&spec(properties, json!([rule])), json!({"spec": {"a": 1, "b": 2}}), &[expected]);
    };
    check(json!({"reason": "FieldValueForbidden", "message": "no"}), "spec: Forbidden: no");
    check(
        json!({"reason": "FieldValueRequired", "message": "no", "fieldPath": ".a"}),
        "spec.a: Required value: no",
    );
    check(
        json!({"messageExpression": "'a is %d'.format([self.a])", "message": "no"}),
        "spec: Invalid value: a is 1",
    );
    check(json!({"messageExpression": "'a\\nb'", "message": "no"}), "spec: Invalid value: no");
    check(
        json!({"messageExpression": "string(1 / 0)", "message": "no"}),
        "spec: Invalid value: no",
    );
}

#[test]
fn a_transition_rule_runs_only_on_updates() {
    let schema = spec(
        json!({
            "fixed": {"type": "string", "x-kubernetes-validations": [
                {"rule": "self == oldSelf", "message": "fixed is fixed"},
            ]},
            "ports": {"type": "array", "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"], "items": {
                    "type": "object", "required": ["name"],
                    "properties": {"name": {"type": "string"}, "port": {"type": "integer"}},
                    "x-kubernetes-validations": [{"rule": "self.port >= oldSelf.port"}],
                }},
        }),
        json!([]),
    );
    let first = json!({"spec": {"fixed": "a", "ports": [{"name": "x", "port": 2}]}});
    assert_eq!(judge(&schema, first.clone(), None), Vec::<String>::new());
    let next = json!({"spec": {"fixed": "b", "ports": [{"name": "y", "port": 0}, {"name": "x", "port": 1}]}});
    assert_eq!(
        judge(&schema, next, Some(first.clone())),
        [
            "spec.fixed: Invalid value: \"b\": fixed is fixed",
            "spec.ports[1]: Invalid value: failed rule: self.port >= oldSelf.port",
        ]
    );
    assert_eq!(judge(&schema, json!({"spec": {}}), Some(first)), Vec::<String>::new());
}

#[test]
fn a_rule_with_optional_old_self_runs_on_creates_too() {
    let schema = spec(
        json!({"a": {"type": "integer", "x-kubernetes-validations": [{
            "rule": "oldSelf.hasValue() ? self >= oldSelf.value() : self == 0",
            "optionalOldSelf": true, "message": "begins at 0 and grows",
        }]}}),
        json!([]),
    );
    let with = |a: i64| json!({"spec": {"a": a}});
    refused(&schema, with(0), &[]);
    refused(&schema, with(1), &["spec.a: Invalid value: 1: begins at 0 and grows"]);
    assert!(judge(&schema, with(2), Some(with(1))).is_empty());
    assert_eq!(judge(&schema, with(0), Some(with(1))).len(), 1);
}

#[test]
fn unchanged_values_are_tolerated() {
    let properties = json!({"a": {"type": "integer"}, "tags": {"type": "array", "maxItems": 9, "items": {
        "type": "string", "maxLength": 9, "x-kubernetes-validations": [{"rule": "self != 'bad'"}],
    }}});
    let schema = spec(properties, json!([{"rule": "self.a < 5"}]));
    let old = json!({"spec": {"a": 7, "tags": ["bad"]}, "status": 1});
    let mut new = old.clone();
    new["status"] = 2.into();
    assert!(judge(&schema, new.clone(), Some(old.clone())).is_empty());
    new["spec"]["a"] = 8.into();
    assert_eq!(
        judge(&schema, new.clone(), Some(old.clone())),
        ["spec: Invalid value: failed rule: self.a < 5"],
        "the list is as it was"
    );
    new["spec"]["tags"] = json!(["bad", "x"]);
    assert_eq!(judge(&schema, new, Some(old)).len(), 2);
}

#[test]
fn values_have_the_types_of_their_schema() {
    let properties = json!({
        "ratio": {"type": "number"}, "when": {"type": "string", "format": "date-time"},
        "day": {"type": "string", "format": "date"}, "span": {"type": "string", "format": "duration"},
        "data": {"type": "string", "format": "byte"}, "either": {"x-kubernetes-int-or-string": true},
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "other": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "namespace": {"type": "string"}, "a.b": {"type": "integer"},
        "template": {"type": "object", "x-kubernetes-embedded-resource": true,
            "x-kubernetes-preserve-unknown-fields": true},
    });
    let rules = [
        "self.ratio / 2.0 == 0.5",
        "self.when.getFullYear() == 2026 && self.day < self.when",
        "self.span.getMinutes() == 90",
        "self.data == b'hi'",
        "type(self.either) == int ? self.either > 0 : self.either == '50%'",
        "self.set == self.other",
        "self.__namespace__ == 'x' && self.a__dot__b == 1",
        "self.template.kind == 'Pod' && self.template.metadata.name == 'p'",
    ];
    let rules: Vec<Value> = rules.iter().map(|rule| json!({"rule": rule})).collect();
    let schema = spec(properties, rules.into());
    let object = json!({"spec": {
        "ratio": 1, "when": "2026-02-01T00:00:00Z", "day": "2026-01-01", "span": "1h30m",
        "data": "aGk=", "either": "50%", "set": ["a", "b"], "other": ["b", "a"],
        "namespace": "x", "a.b": 1,
        "template": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {}},
    }});
    refused(&schema, object, &[]);
}

#[test]
fn invalid_rules_are_rejected_with_the_definition() {
    let check = |rule: Value, expected: &str| {
        let properties = json!({"a": {"type": "integer"}, "list": {"type": "array", "items": {
            "type": "string"}}});
        let found = faults(&spec(properties, json!([rule])));
        assert!(found.iter().any(|text| text.contains(expected)), "{found:#?}");
    };
    check(
        json!({"rule": "self.b > 1"}),
        "schema.properties[spec].x-kubernetes-validations[0].rule: Invalid value: {\"Rule\":\"self.b > 1\",\"Message\":\"\",\"MessageExpression\":\"\",\"Reason\":null,\"FieldPath\":\"\",\"OptionalOldSelf\":null}: compilation failed: ERROR: <input>:1:5: undefined field 'b'\n | self.b > 1\n | ....^",
    );
    check(json!({"rule": "self.a"}), "cel expression must evaluate to a bool");
    check(json!({"rule": "self.a >"}), "compilation failed: ERROR: <input>:1:9: Syntax error");
    check(json!({"rule": "true", "messageExpression": "1"}), "must evaluate to a string");
    check(json!({"rule": "true", "reason": "Odd"}), "reason: Unsupported value: \"Odd\"");
    check(json!({"rule": "true", "fieldPath": ".nothing"}), "must be a valid path");
    check(
        json!({"rule": "true", "optionalOldSelf": true}),
        "may not be set if oldSelf is not used",
    );
    check(
        json!({"rule": "self.list.all(x, self.list.all(y, x == y))"}),
        "rule: Forbidden: estimated rule cost exceeds budget by factor of more than 100x",
    );
    let mut schema = spec(json!({}), json!([]));
    schema["properties"]["spec"]["properties"]["list"] = json!({"type": "array", "maxItems": 3,
        "items": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}});
    let found = faults(&schema);
    assert!(
        found[0].ends_with("oldSelf cannot be used on the uncorrelatable portion of the schema within schema.properties[spec].properties[list]"),
        "{found:?}"
    );
}

/// A list with limits on its length and its strings, and a rule that compares all pairs.
fn compared(items: u64, length: u64, rules: usize) -> Value {
    let rule = json!({"rule": "self.all(x, self.all(y, x == y))"});
    json!({"type": "array", "maxItems": items, "items": {"type": "string", "maxLength": length},
        "x-kubernetes-validations": vec![rule; rules]})
}

#[test]
fn a_definition_with_a_too_expensive_rule_is_rejected() {
    const ADVICE: &str = "(try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)";
    let check = |schema: Value, at: &str, factor: &str| {
        let found = faults(&json!({"type": "object", "properties": {"a": schema}}));
        let why = format!("estimated rule cost exceeds budget by factor of {factor} {ADVICE}");
        let expected = format!("schema.properties[a]{at}.rule: Forbidden: {why}");
        let expected = if factor.is_empty() { Vec::new() } else { vec![expected] };
        assert_eq!(found, expected);
    };
    // For each pair: its two texts, a tenth of four bytes a character, and three for the loop.
    let rule = ".x-kubernetes-validations[0]";
    check(compared(1000, 10, 1), rule, "");
    check(compared(1000, 20, 1), rule, "1.300500x");
    check(compared(1200, 20, 1), rule, "1.9x");
    // Multiplied by the limits of the enclosing lists and maps.
    let around =
        |schema: Value, max: u64| json!({"type": "array", "maxItems": max, "items": schema});
    check(around(compared(100, 20, 1), 70), ".items.x-kubernetes-validations[0]", "");
    check(around(compared(100, 20, 1), 100), ".items.x-kubernetes-validations[0]", "1.305020x");
    let values = json!({"type": "object", "maxProperties": 20,
        "additionalProperties": around(compared(100, 20, 1), 10)});
    check(values, ".additionalProperties.items.x-kubernetes-validations[0]", "2.6x");
    // Or by the number that fits into a request.
    let open = json!({"type": "array", "items": compared(2, 2, 1)});
    check(open, ".items.x-kubernetes-validations[0]", "3.8x");
}

#[test]
fn all_rules_of_a_definition_together_have_a_limit_too() {
    let a = "schema.properties[a].x-kubernetes-validations";
    let faults = |rules: usize| {
        faults(&json!({"type": "object", "properties": {"a": compared(1000, 10, rules)}}))
    };
    assert_eq!(faults(11), Vec::<String>::new());
    let contributed = "Forbidden: contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
    let mut expected: Vec<String> =
        (0..4).map(|at| format!("{a}[{at}].rule: {contributed}")).collect();
    expected.push("schema: Forbidden: x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema exceeds budget by factor of 1.080600x (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)".into());
    assert_eq!(faults(12), expected);
}

#[test]
fn message_expressions_that_cost_too_much_are_rejected() {
    let rule = |message: &str| {
        let properties = json!({"a": {"type": "string"}, "b": {"type": "string", "maxLength": 10}});
        faults(&spec(properties, json!([{"rule": "true", "messageExpression": message}])))
    };
    assert_eq!(rule("self.b + ' is odd'"), Vec::<String>::new());
    assert_eq!(rule("'%s is odd'.format([self.a])"), Vec::<String>::new());
    // The length of a computed string is unknown.
    let found = rule("string(self.a) + string(self.b)");
    let at = "schema.properties[spec].x-kubernetes-validations[0].messageExpression: Forbidden: ";
    let starts = [
        format!("{at}estimated messageExpression cost exceeds budget by factor of more than 100x"),
        format!("{at}contributed to estimated rule cost total"),
        "schema: Forbidden: x-kubernetes-validations estimated rule cost total".to_owned(),
    ];
    assert_eq!(found.len(), 3, "{found:#?}");
    for (found, start) in found.iter().zip(starts) {
        assert!(found.starts_with(&start), "{found}");
    }
}

/// B216
#[test]
fn an_object_cannot_make_its_rules_run_for_long() {
    let schema = spec(
        json!({"a": {"type": "array", "maxItems": 1000, "items": {"type": "integer"}}}),
        json!([{"rule": "self.a.all(x, self.a.all(y, x < y + 10000))"}, {"rule": "false"}]),
    );
    let numbers: Vec<i64> = (0..1000).collect();
    refused(
        &schema,
        json!({"spec": {"a": numbers}}),
        &[
            "spec: Invalid value: \"object\": 'operation cancelled: actual cost limit exceeded': no further validation rules will be run due to call cost exceeds limit for rule: self.a.all(x, self.a.all(y, x < y + 10000))",
        ],
    );
    // Many rules, each within its own limit.
    let rule = json!({"rule": "self.all(x, self.exists(y, y == x))"});
    let schema = json!({"type": "object", "properties": {"a": {"type": "array", "maxItems": 100, "items": {
        "type": "array", "maxItems": 100, "items": {"type": "integer"},
        "x-kubernetes-validations": vec![rule; 8],
    }}}});
    let row: Vec<i64> = (0..100).collect();
    let found = judge(&schema, json!({"a": vec![row; 100]}), None);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].ends_with("no further validation rules will be run"), "{found:?}");
}

#[test]
fn patterns_from_objects_must_be_small_and_few() {
    // Only small patterns from objects are compiled, and each is charged.
    let schema = spec(
        json!({"a": {"type": "array", "maxItems": 1000, "items": {"type": "string", "maxLength": 100}}}),
        json!([{"rule": "self.a.all(p, 'x'.matches(p))"}]),
    );
    refused(
        &schema,
        json!({"spec": {"a": ["[^a]{900}"]}}),
        &[
            "spec: Invalid value: \"object\": error parsing regexp: it is too large evaluating rule: self.a.all(p, 'x'.matches(p))",
        ],
    );
    let many: Vec<String> = (0..1000).map(|number| format!("x|{number}")).collect();
    let found = judge(&schema, json!({"spec": {"a": many}}), None);
    assert!(found[0].contains("actual cost limit exceeded"), "{found:?}");
}

#[test]
fn rules_do_not_run_on_values_that_violate_the_schema() {
    let schema = spec(json!({"a": {"type": "integer"}}), json!([{"rule": "self.a < 5"}]));
    let found = judge(&schema, json!({"spec": {"a": "x"}}), None);
    assert_eq!(found.len(), 2);
    assert!(
        found[1].starts_with("<nil>: Invalid value: null: some validation rules were not checked")
    );
}

/// B137: with a search of the old list for each element, this test does not end.
#[test]
fn a_long_keyed_list_is_compared_in_linear_time() {
    let item = json!({
        "type": "object", "required": ["k", "v"],
        "properties": {"k": {"type": "integer"}, "v": {"type": "integer"}},
        "x-kubernetes-validations": [{"rule": "self.v >= oldSelf.v"}],
    });
    let list = json!({
        "type": "array", "maxItems": 200_000, "items": item,
        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
    });
    let schema = spec(json!({"list": list}), json!([]));
    let object = |last: i64| {
        let elements =
            (0..100_000).map(|k| json!({"k": k, "v": if k == 99_999 { last } else { k }}));
        json!({"spec": {"list": elements.collect::<Vec<Value>>()}})
    };
    assert_eq!(judge(&schema, object(2), Some(object(1))), Vec::<String>::new());
    let found = judge(&schema, object(1), Some(object(2)));
    assert_eq!(found, ["spec.list[99999]: Invalid value: failed rule: self.v >= oldSelf.v"]);
}
