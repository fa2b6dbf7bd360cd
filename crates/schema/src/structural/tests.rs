//! Tests of pruning, defaulting and validation together.

use headwater_json::{Map, Value, json};
use proptest::prelude::*;

use super::*;

fn compile(schema: &Value) -> Schema {
    Schema::compile(schema).unwrap()
}

fn object(properties: Value) -> Value {
    json!({"type": "object", "properties": properties})
}

#[track_caller]
fn check_pruned(properties: Value, before: Value, after: Value, unknown: &[&str]) {
    let mut pruned = before;
    assert_eq!(compile(&object(properties)).prune(&mut pruned), unknown);
    assert_eq!(pruned, after);
}

#[test]
fn unknown_fields_are_pruned_and_reported() {
    let spec = json!({"spec": object(json!({"a": {"type": "string"}}))});
    check_pruned(
        spec,
        json!({"apiVersion": "v", "kind": "k", "metadata": {"x": 1}, "spec": {"a": "b", "c": 1}, "z": 1}),
        json!({"apiVersion": "v", "kind": "k", "metadata": {"x": 1}, "spec": {"a": "b"}}),
        &["spec.c", "z"],
    );
    let lists = json!({"l": {"type": "array", "items": object(json!({"a": {"type": "string"}}))}});
    check_pruned(
        lists,
        json!({"l": [{"a": "1"}, {"b": 1}]}),
        json!({"l": [{"a": "1"}, {}]}),
        &["l[1].b"],
    );
    let maps = json!({"m": {"type": "object", "additionalProperties": object(json!({"a": {"type": "string"}}))}});
    check_pruned(
        maps,
        json!({"m": {"x": {"a": "1", "b": 2}}}),
        json!({"m": {"x": {"a": "1"}}}),
        &["m.x.b"],
    );
}

#[test]
fn preserved_unknown_fields_stay_and_declared_fields_are_pruned() {
    let kept = json!({"p": {
        "type": "object", "x-kubernetes-preserve-unknown-fields": true,
        "properties": {"listed": object(json!({"a": {"type": "string"}}))},
    }});
    check_pruned(
        kept,
        json!({"p": {"free": {"x": [{"y": 1}]}, "listed": {"a": "1", "b": 2}}}),
        json!({"p": {"free": {"x": [{"y": 1}]}, "listed": {"a": "1"}}}),
        &["p.listed.b"],
    );
    let anything = json!({"p": {"x-kubernetes-preserve-unknown-fields": true}});
    let value = json!({"p": [{"x": {"y": 1}}]});
    check_pruned(anything, value.clone(), value, &[]);
}

#[test]
fn an_embedded_resource_keeps_its_type_and_metadata() {
    let embedded = json!({"t": {
        "type": "object", "x-kubernetes-embedded-resource": true,
        "properties": {"spec": object(json!({"a": {"type": "string"}}))},
    }});
    check_pruned(
        embedded,
        json!({"t": {"apiVersion": "v1", "kind": "K", "metadata": {"name": "n", "m": 1}, "spec": {"b": 1}, "x": 1}}),
        json!({"t": {"apiVersion": "v1", "kind": "K", "metadata": {"name": "n"}, "spec": {}}}),
        &["t.metadata.m", "t.spec.b", "t.x"],
    );
}

#[track_caller]
fn check_defaulted(properties: Value, before: Value, after: Value) {
    let mut value = before;
    compile(&object(properties)).default(&mut value).unwrap();
    assert_eq!(value, after);
}

#[test]
fn defaults_are_set_in_absent_fields() {
    let colour = json!({"type": "string", "default": "blue"});
    let spec = json!({"spec": object(json!({"colour": colour}))});
    check_defaulted(spec.clone(), json!({"spec": {}}), json!({"spec": {"colour": "blue"}}));
    check_defaulted(
        spec.clone(),
        json!({"spec": {"colour": null}}),
        json!({"spec": {"colour": "blue"}}),
    );
    check_defaulted(
        spec.clone(),
        json!({"spec": {"colour": "red"}}),
        json!({"spec": {"colour": "red"}}),
    );
    // No object is created to contain a default.
    check_defaulted(spec, json!({}), json!({}));
    let nested = json!({"spec": {
        "type": "object", "default": {}, "properties": {"colour": colour},
    }});
    check_defaulted(nested, json!({}), json!({"spec": {"colour": "blue"}}));
    let list = json!({"l": {"type": "array", "items": object(json!({"colour": colour}))}});
    check_defaulted(list, json!({"l": [{}]}), json!({"l": [{"colour": "blue"}]}));
    let map =
        json!({"m": {"type": "object", "additionalProperties": object(json!({"colour": colour}))}});
    check_defaulted(map, json!({"m": {"x": {}}}), json!({"m": {"x": {"colour": "blue"}}}));
}

#[test]
fn nulls_stay_only_in_nullable_fields() {
    let fields = json!({
        "plain": {"type": "string"},
        "nullable": {"type": "string", "nullable": true},
        "defaulted": {"type": "string", "default": "x", "nullable": true},
    });
    check_defaulted(
        fields,
        json!({"plain": null, "nullable": null, "defaulted": null}),
        json!({"nullable": null, "defaulted": null}),
    );
}

fn found(schema: &Value, value: &Value) -> Vec<String> {
    compile(schema).validate(value, None).iter().map(ToString::to_string).collect()
}

/// One field `f` under `spec`.
#[track_caller]
fn check_field(schema: Value, value: Value, expected: &[&str]) {
    let schema = object(json!({"spec": object(json!({"f": schema}))}));
    let texts = found(&schema, &json!({"spec": {"f": value}}));
    assert_eq!(texts, expected);
}

#[test]
fn type_errors_have_kubernetes_messages() {
    check_field(
        json!({"type": "integer"}),
        json!("x"),
        &[r#"spec.f: Invalid value: "string": spec.f in body must be of type integer: "string""#],
    );
    check_field(
        json!({"type": "string"}),
        json!(5),
        &[r#"spec.f: Invalid value: "integer": spec.f in body must be of type string: "integer""#],
    );
    check_field(
        json!({"type": "object"}),
        json!([]),
        &[r#"spec.f: Invalid value: "array": spec.f in body must be of type object: "array""#],
    );
    check_field(
        json!({"type": "boolean"}),
        json!(null),
        &[r#"spec.f: Invalid value: "null": spec.f in body must be of type boolean: "null""#],
    );
    check_field(
        json!({"x-kubernetes-int-or-string": true}),
        json!(true),
        &[
            r#"spec.f: Invalid value: "boolean": spec.f in body must be of type integer,string: "boolean""#,
        ],
    );
    for fine in [json!(1), json!("1")] {
        check_field(json!({"x-kubernetes-int-or-string": true}), fine, &[]);
    }
    check_field(json!({"type": "number"}), json!(1), &[]);
    check_field(json!({"type": "integer"}), json!(1.0), &[]);
    check_field(json!({"type": "boolean", "nullable": true}), json!(null), &[]);
}

#[test]
fn fractions_and_huge_numbers_are_not_integers() {
    check_field(
        json!({"type": "integer"}),
        json!(1.5),
        &[
            r#"spec.f: Invalid value: "number": spec.f in body must be of type integer: "number""#,
            r#"<nil>: Invalid value: "": Checked value must be of type integer (default format) in spec.f"#,
        ],
    );
    let texts = found(
        &object(json!({"f": {"type": "integer"}})),
        &json!({"f": 9_223_372_036_854_775_808_u64}),
    );
    assert!(!texts.is_empty());
    check_field(
        json!({"type": "integer", "format": "int32"}),
        json!(2_147_483_648_i64),
        &[
            r#"<nil>: Invalid value: "": Checked value must be of type integer with format int32 in spec.f"#,
        ],
    );
}

#[test]
fn limit_errors_have_kubernetes_messages() {
    check_field(
        json!({"type": "integer", "maximum": 100}),
        json!(1000),
        &["spec.f: Invalid value: 1000: spec.f in body should be less than or equal to 100"],
    );
    check_field(
        json!({"type": "number", "minimum": 0.5, "exclusiveMinimum": true}),
        json!(0.5),
        &["spec.f: Invalid value: 0.5: spec.f in body should be greater than 0.5"],
    );
    check_field(
        json!({"type": "integer", "multipleOf": 2}),
        json!(3),
        &["spec.f: Invalid value: 3: spec.f in body should be a multiple of 2"],
    );
    check_field(
        json!({"type": "string", "maxLength": 2}),
        json!("abc"),
        &["spec.f: Too long: may not be more than 2 bytes"],
    );
    check_field(
        json!({"type": "string", "minLength": 2}),
        json!("é"),
        &["spec.f: Invalid value: \"é\": spec.f in body should be at least 2 chars long"],
    );
    check_field(
        json!({"type": "string", "pattern": "^a$"}),
        json!("b"),
        &["spec.f: Invalid value: \"b\": spec.f in body should match '^a$'"],
    );
    check_field(
        json!({"type": "string", "format": "date-time"}),
        json!("b"),
        &["spec.f: Invalid value: \"b\": spec.f in body must be of type date-time: \"b\""],
    );
    check_field(
        json!({"type": "string", "enum": ["a", "b"]}),
        json!("c"),
        &["spec.f: Unsupported value: \"c\": supported values: \"a\", \"b\""],
    );
    check_field(
        json!({"type": "array", "maxItems": 1, "items": {"type": "string"}}),
        json!(["a", "b"]),
        &["spec.f: Too many: 2: must have at most 1 item"],
    );
    check_field(
        json!({"type": "array", "minItems": 3, "items": {"type": "string"}}),
        json!(["a", "b"]),
        &["spec.f: Invalid value: 2: spec.f in body should have at least 3 items"],
    );
    check_field(
        json!({"type": "object", "maxProperties": 1, "additionalProperties": {"type": "string"}}),
        json!({"a": "", "b": ""}),
        &["spec.f: Too many: 2: must have at most 1 item"],
    );
    check_field(
        json!({"type": "object", "minProperties": 1, "additionalProperties": {"type": "string"}}),
        json!({}),
        &["spec.f: Invalid value: 0: spec.f in body should have at least 1 properties"],
    );
    check_field(
        json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}}),
        json!({}),
        &["spec.f.a: Required value"],
    );
}

#[test]
fn all_errors_are_reported_at_once() {
    let schema = object(json!({
        "a": {"type": "string"}, "b": {"type": "integer", "maximum": 1},
        "c": {"type": "array", "items": {"type": "string"}},
    }));
    assert_eq!(found(&schema, &json!({"a": 1, "b": 2, "c": ["x", 3]})).len(), 3);
}

#[test]
fn of_failed_alternatives_the_best_match_is_reported() {
    let any = json!({"type": "integer", "anyOf": [{"maximum": 1}, {"minimum": 10}]});
    check_field(
        any,
        json!(5),
        &[
            r#"<nil>: Invalid value: "": "spec.f" must validate at least one schema (anyOf)"#,
            "spec.f: Invalid value: 5: spec.f in body should be less than or equal to 1",
        ],
    );
    let one = json!({"type": "integer", "oneOf": [{"maximum": 10}, {"minimum": 1}]});
    check_field(
        one.clone(),
        json!(5),
        &[
            r#"<nil>: Invalid value: "": "spec.f" must validate one and only one schema (oneOf). Found 2 valid alternatives"#,
        ],
    );
    check_field(one, json!(50), &[]);
    check_field(
        json!({"type": "integer", "not": {"enum": [5]}}),
        json!(5),
        &[r#"<nil>: Invalid value: "": "spec.f" must not validate the schema (not)"#],
    );
    check_field(
        json!({"type": "integer", "allOf": [{"maximum": 1}, {"minimum": 1}]}),
        json!(5),
        &[
            "spec.f: Invalid value: 5: spec.f in body should be less than or equal to 1",
            r#"<nil>: Invalid value: "": "spec.f" must validate all the schemas (allOf)"#,
        ],
    );
}

#[test]
fn sets_and_maps_have_no_duplicates() {
    let set =
        json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}});
    check_field(set, json!(["a", "b", "a", "a"]), &["spec.f[2]: Duplicate value: \"a\""]);
    let map = json!({
        "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
        "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
    });
    check_field(
        map,
        json!([{"name": "a"}, {"name": "a"}]),
        &["spec.f[1]: Duplicate value: {\"name\":\"a\"}"],
    );
}

#[test]
fn embedded_resources_need_a_type_and_valid_metadata() {
    let embedded = json!({
        "type": "object", "x-kubernetes-embedded-resource": true,
        "x-kubernetes-preserve-unknown-fields": true,
    });
    check_field(
        embedded.clone(),
        json!({"metadata": {"name": "a/b"}}),
        &[
            "spec.f.apiVersion: Required value",
            "spec.f.kind: Required value",
            "spec.f.metadata.name: Invalid value: \"a/b\": may not contain '/'",
        ],
    );
    let wrong = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"a": 1}}});
    let texts = found(&object(json!({"f": embedded})), &json!({"f": wrong}));
    assert!(texts[0].starts_with("f.metadata: Invalid value:"), "{texts:?}");
    check_field(embedded, json!({"apiVersion": "apps/v1", "kind": "Pod", "spec": {}}), &[]);
}

#[test]
fn unchanged_values_are_tolerated_by_a_stricter_schema() {
    let schema = compile(&object(json!({"spec": object(json!({
        "old": {"type": "string", "maxLength": 1}, "new": {"type": "integer"},
        "list": {
            "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
            "items": {"type": "object", "properties": {
                "k": {"type": "string"}, "v": {"type": "integer", "maximum": 1},
            }},
        },
        "plain": {"type": "array", "items": {"type": "integer", "maximum": 1}},
    }))})));
    let old = json!({"spec": {
        "old": "long", "new": 1, "list": [{"k": "a", "v": 5}], "plain": [5],
    }});
    let check = |change: &dyn Fn(&mut Value), expected: &[&str]| {
        let mut new = old.clone();
        change(&mut new);
        let errors = schema.validate(&new, Some(&old));
        let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
        assert_eq!(fields, expected);
    };
    check(&|new| new["spec"]["new"] = json!(2), &[]);
    check(&|new| new["spec"]["old"] = json!("longer"), &["spec.old"]);
    // Elements of a keyed list correspond by key, in any order.
    check(&|new| new["spec"]["list"] = json!([{"k": "b", "v": 1}, {"k": "a", "v": 5}]), &[]);
    check(&|new| new["spec"]["list"][0]["v"] = json!(6), &["spec.list[0].v"]);
    // Those of other lists are not.
    check(&|new| new["spec"]["plain"] = json!([5, 1]), &["spec.plain[0]"]);
    assert_eq!(schema.validate(&old, None).len(), 3);
}

#[test]
fn a_status_write_validates_only_the_status() {
    let schema = compile(&object(json!({
        "spec": object(json!({"a": {"type": "integer"}})),
        "status": object(json!({"b": {"type": "integer"}})),
    })));
    let value = json!({"spec": {"a": "wrong"}, "status": {"b": "wrong"}});
    let texts: Vec<String> =
        schema.validate_status(&value, None).iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [r#"status.b: Invalid value: "string": b in body must be of type integer: "string""#]
    );
}

/// A simple reference validator: it returns only whether a value is valid.
fn is_valid(schema: &Value, value: &Value) -> bool {
    let all = |key: &str, fits: &dyn Fn(&Value) -> bool| {
        schema[key].as_array().into_iter().flatten().filter(|inner| fits(inner)).count()
    };
    let count = |key: &str| schema[key].as_array().map_or(0, Vec::len);
    let inner = |schema: &Value| is_valid(schema, value);
    let type_fits = match schema["type"].as_str() {
        None => true,
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => value.as_f64().is_some_and(|f| f.fract() == 0.0),
        Some("number") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        Some(other) => unreachable!("{other}"),
    };
    if value.is_null() {
        // Null is in no enumeration, even if it is listed.
        let nullable = schema["nullable"] == true || schema["type"].is_null();
        return nullable && schema["enum"].is_null();
    }
    let number = |key: &str, holds: &dyn Fn(f64, f64) -> bool| match (
        value.as_f64(),
        schema[key].as_f64(),
    ) {
        (Some(value), Some(limit)) => holds(value, limit),
        _ => true,
    };
    let size = match value {
        Value::String(text) => text.chars().count(),
        Value::Array(list) => list.len(),
        Value::Object(map) => map.len(),
        _ => 0,
    } as u64;
    let (least, most) = match value {
        Value::String(_) => ("minLength", "maxLength"),
        Value::Array(_) => ("minItems", "maxItems"),
        _ => ("minProperties", "maxProperties"),
    };
    let sized = !(value.is_string() || value.is_array() || value.is_object())
        || (schema[least].as_u64().is_none_or(|min| size >= min)
            && schema[most].as_u64().is_none_or(|max| size <= max));
    let members = value.as_object().into_iter().flatten().all(|(name, value)| {
        match (&schema["properties"][name], &schema["additionalProperties"]) {
            (Value::Null, additional @ Value::Object(_)) => is_valid(additional, value),
            (Value::Null, _) => true,
            (property, _) => is_valid(property, value),
        }
    });
    let elements = value.as_array().into_iter().flatten();
    type_fits
        && number("minimum", &|value, limit| value >= limit)
        && number("maximum", &|value, limit| value <= limit)
        && sized
        && schema["enum"].as_array().is_none_or(|list| list.contains(value))
        && schema["required"]
            .as_array()
            .into_iter()
            .flatten()
            .all(|name| !value.is_object() || value.get(name.as_str().unwrap()).is_some())
        && members
        && elements
            .into_iter()
            .all(|item| schema["items"].is_null() || is_valid(&schema["items"], item))
        && all("allOf", &inner) == count("allOf")
        && (count("anyOf") == 0 || all("anyOf", &inner) > 0)
        && (count("oneOf") == 0 || all("oneOf", &inner) == 1)
        && (schema["not"].is_null() || !is_valid(&schema["not"], value))
}

fn any_name() -> impl Strategy<Value = String> {
    prop_oneof![Just("a".to_owned()), Just("b".to_owned()), Just("c".to_owned())]
}

fn any_scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        (-3_i64..4).prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        any_name().prop_map(Value::from),
        Just(json!(0.5)),
        Just(Value::Null),
    ]
}

fn any_value() -> impl Strategy<Value = Value> {
    any_scalar().prop_recursive(3, 24, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map(any_name(), inner, 0..3)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Validation keywords for values of any type.
fn any_rule() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({})),
        (-2_i64..3).prop_map(|limit| json!({"minimum": limit})),
        (-2_i64..3).prop_map(|limit| json!({"maximum": limit})),
        (0_u64..3).prop_map(|limit| json!({"maxItems": limit, "maxLength": limit})),
        (0_u64..3).prop_map(|limit| json!({"minItems": limit, "minProperties": limit})),
        any_name().prop_map(|name| json!({"required": [name]})),
        Just(json!({"enum": ["a", 1, true]})),
    ]
}

fn merged(parts: impl IntoIterator<Item = Value>) -> Value {
    let mut all = Map::new();
    for part in parts {
        all.extend(part.as_object().cloned().unwrap_or_default());
    }
    Value::Object(all)
}

fn any_schema() -> impl Strategy<Value = Value> {
    let rules = || prop::collection::vec(any_rule(), 0..3).prop_map(merged);
    let scalar = prop_oneof![Just("string"), Just("integer"), Just("number"), Just("boolean")]
        .prop_map(|kind| json!({"type": kind}));
    let leaf = (scalar, rules(), any::<bool>())
        .prop_map(|(kind, rules, nullable)| merged([kind, rules, json!({"nullable": nullable})]));
    let junctor = || {
        let key = prop_oneof![Just("allOf"), Just("anyOf"), Just("oneOf")];
        (key, any_rule(), any_rule()).prop_map(|(key, a, b)| json!({key: [a, b]}))
    };
    leaf.prop_recursive(3, 24, 3, move |inner| {
        let object = prop::collection::btree_map(any_name(), inner.clone(), 0..3)
            .prop_map(|map| json!({"type": "object", "properties": map}));
        let map = inner
            .clone()
            .prop_map(|inner| json!({"type": "object", "additionalProperties": inner}));
        let list = inner.prop_map(|inner| json!({"type": "array", "items": inner}));
        (prop_oneof![object, map, list], rules(), junctor())
            .prop_map(|(shape, rules, junctor)| merged([shape, rules, junctor]))
    })
}

#[test]
fn null_is_in_no_enumeration() {
    for values in [json!(["a"]), json!(["a", null])] {
        let schema = object(json!({"f": {"type": "string", "nullable": true, "enum": values}}));
        assert_eq!(compile(&schema).validate(&json!({"f": null}), None).len(), 1);
    }
}

proptest! {
    #[test]
    fn validation_agrees_with_a_naive_validator(schema in any_schema(), value in any_value()) {
        let schema = object(json!({"f": schema}));
        let value = json!({"f": value});
        let errors = compile(&schema).validate(&value, None);
        prop_assert_eq!(errors.is_empty(), is_valid(&schema, &value), "{:?}", errors);
    }

    #[test]
    fn pruning_and_defaulting_twice_changes_nothing(schema in any_schema(), value in any_value()) {
        let schema = object(json!({"f": schema, "d": {"type": "object", "default": {}, "properties": {
            "x": {"type": "integer", "default": 1},
        }}}));
        let schema = compile(&schema);
        let mut once = json!({"f": value});
        schema.prune(&mut once);
        schema.default(&mut once).unwrap();
        let mut twice = once.clone();
        prop_assert_eq!(schema.prune(&mut twice), Vec::<String>::new());
        schema.default(&mut twice).unwrap();
        prop_assert_eq!(&once, &twice);
    }

    #[test]
    fn settled_bytes_need_neither_pruning_nor_defaults(schema in any_schema(), value in any_value()) {
        let schema = compile(&object(json!({"f": schema, "d": {"type": "integer", "default": 1}})));
        for value in [json!({"f": value}), json!({"f": value, "d": 2})] {
            let mut settled = value.clone();
            schema.prune(&mut settled);
            schema.default(&mut settled).unwrap();
            if schema.is_settled(value.to_string().as_bytes()) {
                prop_assert_eq!(&value, &settled);
            }
        }
    }

    #[test]
    fn no_schema_and_no_value_panics(schema in any_value(), value in any_value()) {
        let place = SchemaLocation { path: "schema", has_status: true };
        let schema = json!({"type": "object", "properties": {"f": schema}});
        let _ = check(&schema, place);
        if let Ok(schema) = Schema::compile(&schema) {
            let mut value = json!({"f": value});
            schema.prune(&mut value);
            schema.default(&mut value).unwrap();
            schema.validate(&value, None);
        }
    }
}

#[test]
fn an_object_written_under_its_schema_is_settled() {
    let schema = compile(&object(json!({"spec": object(json!({
        "size": {"type": "integer"}, "colour": {"type": "string", "default": "blue"},
        "list": {"type": "array", "items": object(json!({"a": {"type": "string", "default": "x"}}))},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
    }))})));
    let settled = |value: Value| schema.is_settled(value.to_string().as_bytes());
    assert!(settled(json!({"kind": "K", "metadata": {"name": "n"}, "spec": {
        "size": 1, "colour": "red", "list": [{"a": "b"}], "free": {"x": [1]},
    }})));
    assert!(!settled(json!({"spec": {"size": 1}})));
    assert!(!settled(json!({"spec": {"colour": "red", "more": 1}})));
    assert!(!settled(json!({"spec": {"colour": null}})));
    assert!(!settled(json!({"spec": {"colour": "red", "list": [{}]}})));
}

#[test]
fn a_format_of_another_type_is_ignored() {
    let only = |kind| Types::default().with(kind);
    assert!(only(Type::String).format("int32").is_none());
    assert!(only(Type::Object).format("date").is_none());
    assert!(only(Type::Integer).format("int32").is_some());
    assert!(only(Type::String).format("date").is_some());
}
