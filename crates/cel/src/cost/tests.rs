//! Estimates against figures that Kubernetes' own estimator gives for the same schemas.

use headwater_json::{Value, json};

use crate::{DeclType, Environment, Program};

/// The maximum cost of a rule of a schema.
fn cost(schema: &Value, rule: &str) -> u64 {
    let shape = DeclType::of(schema, false);
    let known = Environment::default().with("self", &shape).with("oldSelf", &shape);
    Program::compile(rule, &known).expect(rule).cost_max(&known)
}

fn primitive(kind: &str) -> Value {
    match kind {
        "int-or-string" => json!({"x-kubernetes-int-or-string": true}),
        "duration" | "date" | "date-time" => json!({"type": "string", "format": kind}),
        kind => json!({"type": kind}),
    }
}

fn list(kind: &str, max: Option<u64>) -> Value {
    bounded(json!({"type": "array", "items": primitive(kind)}), "maxItems", max)
}

fn map(kind: &str, max: Option<u64>) -> Value {
    let schema = json!({"type": "object", "additionalProperties": primitive(kind)});
    bounded(schema, "maxProperties", max)
}

fn text(max: Option<u64>) -> Value {
    bounded(json!({"type": "string"}), "maxLength", max)
}

fn bounded(mut schema: Value, key: &str, max: Option<u64>) -> Value {
    if let Some(max) = max {
        schema[key] = max.into();
    }
    schema
}

/// A schema without and with a limit.
#[track_caller]
fn check(schema: impl Fn(Option<u64>) -> Value, rule: &str, open: u64, max: u64, closed: u64) {
    assert_eq!(cost(&schema(None), rule), open, "{rule}, without a bound");
    assert_eq!(cost(&schema(Some(max)), rule), closed, "{rule}, at most {max}");
}

#[test]
fn the_request_size_or_max_items_limits_lists() {
    for (kind, open, max, closed) in [
        ("number", 4_718_591, 10, 32),
        ("string", 3_145_727, 20, 62),
        ("boolean", 1_887_437, 5, 17),
        ("int-or-string", 4_718_591, 10, 32),
        ("duration", 2_359_295, 5, 17),
        ("date", 725_936, 15, 47),
        ("date-time", 428_963, 25, 77),
    ] {
        check(|max| list(kind, max), "self.all(x, true)", open, max, closed);
    }
    for (kind, open, max, closed) in [
        ("number", 1_348_169, 10, 32),
        ("string", 1_179_647, 3, 11),
        ("boolean", 943_718, 100, 302),
        ("int-or-string", 1_348_169, 15, 47),
        ("duration", 1_048_577, 5, 17),
        ("date", 524_288, 10, 32),
        ("date-time", 349_526, 25, 77),
    ] {
        check(|max| map(kind, max), "self.all(x, true)", open, max, closed);
    }
}

#[test]
fn the_minimum_element_size_limits_the_count() {
    let object = || {
        let text = json!({"type": "string"});
        json!({"type": "object", "required": ["required"],
            "properties": {"required": text, "optional": text}})
    };
    let objects = |max| bounded(json!({"type": "array", "items": object()}), "maxItems", max);
    check(objects, "self.all(x, true)", 555_128, 50, 152);
    check(objects, "self[0] == null", 2, 422, 2);
    let lists =
        |max| bounded(json!({"type": "array", "items": list("number", None)}), "maxItems", max);
    check(lists, "self.all(x, true)", 3_145_727, 100, 302);
    check(lists, "self[0][0] == -1.0", 3, 51, 3);
    let maps =
        |max| bounded(json!({"type": "array", "items": map("number", None)}), "maxItems", max);
    check(maps, "self.all(x, x.y == 25.2)", 6_291_452, 12, 74);
    check(maps, "self[0].x > 2.0", 4, 3000, 4);
    let inside = |values: Value| {
        move |max| {
            let schema = json!({"type": "object", "additionalProperties": values.clone()});
            bounded(schema, "maxProperties", max)
        }
    };
    check(inside(object()), "self.all(x, true)", 428_963, 20, 62);
    check(inside(map("number", None)), "self.all(x, true)", 1_179_647, 10, 32);
    check(inside(list("number", None)), "self.all(x, true)", 1_179_647, 25, 77);
    let nested = |max| {
        let values = bounded(object(), "maxProperties", max);
        let map = json!({"type": "object", "additionalProperties": values});
        let map = bounded(map, "maxProperties", max);
        bounded(json!({"type": "array", "items": map}), "maxItems", max)
    };
    check(nested, "self.all(x, x[\"y\"].required == \"z\")", 7_340_027, 10, 72);
}

#[test]
fn strings_cost_a_tenth_of_their_length() {
    check(text, "self.contains('test')", 314_574, 10, 5);
    check(text, "self.startsWith('test')", 2, 15, 2);
    check(text, "self.endsWith('test')", 2, 30, 2);
    check(text, "size(self + \"hello\") > size(\"hello\")", 314_578, 4, 7);
    check(text, "self.matches(\"x\")", 314_574, 50, 22);
    check(text, "\"\".matches(\"(((((((((())))))))))[0-9]\")", 7, 10, 7);
    check(text, "self.matches(\"\")", 1, 100, 1);
    check(text, "self == \"x\"", 2, 0, 1);
    check(text, "self.find('[0-9]+') == ''", 629_147, 10, 11);
    check(text, "self.lowerAscii() == 'lower!'", 314_575, 10, 6);
    let bytes = |max| bounded(json!({"type": "string", "format": "byte"}), "maxLength", max);
    check(bytes, "self == b\"x\"", 2, 0, 1);
    let listed = |max| {
        let words = json!({"type": "string", "enum": ["A", "B", "C", "LongValue"]});
        bounded(words, "maxLength", max)
    };
    check(listed, "self.contains('A')", 2, 1000, 401);
    let either = |max| bounded(json!({"x-kubernetes-int-or-string": true}), "maxLength", max);
    check(either, "isQuantity(self)", 314_574, 20, 9);
}

#[test]
fn elements_and_values_have_the_sizes_of_their_schemas() {
    check(|max| list("number", max), "self[1] == 0.0", 2, 5000, 2);
    check(|max| list("string", max), "self[1] == self[1]", 314_577, 8, 314_577);
    check(|max| list("int-or-string", max), "self[0] == 5", 3, 10, 3);
    check(|max| list("boolean", max), "self[0] == false", 2, 25, 2);
    check(|max| list("duration", max), "self[0].getHours() == 2", 4, 525, 4);
    check(|max| list("date", max), "self[2].getDayOfMonth() == 13", 4, 42, 4);
    check(|max| list("date-time", max), "self[2].getMinutes() == 45", 4, 99, 4);
    check(|max| map("number", max), "self[\"x\"] == 0.0", 2, 0, 2);
    check(|max| map("integer", max), "oldSelf.size() == self.size()", 5, 10, 5);
    check(|max| map("date-time", max), "self[\"a\"] == self[\"b\"]", 8, 7, 8);
    check(|max| map("duration", max), "self[\"c\"] == self[\"d\"]", 8, 42, 8);
    let both = |max| {
        let schema = json!({"type": "object", "additionalProperties": text(max)});
        bounded(schema, "maxProperties", max)
    };
    check(both, "self.all(x, x.contains(self[x]))", 2_752_507, 10, 72);
}

#[test]
fn loops_multiply() {
    check(
        |max| list("number", max),
        "self.all(x, x == 0.0)",
        6_291_454,
        3 * 1024 * 2048,
        25_165_826,
    );
    let numbers = list("number", None);
    for (rule, closed) in [
        ("self.all(x, self.all(y, true))", 352),
        ("self.all(x, self.all(y, self.all(z, true)))", 3552),
    ] {
        assert!(cost(&numbers, rule) > 10_000_000, "{rule}");
        assert_eq!(cost(&list("number", Some(10)), rule), closed, "{rule}");
    }
}

#[test]
fn functions_propagate_sizes() {
    let texts = |max| bounded(json!({"type": "array", "items": text(max)}), "maxItems", max);
    check(texts, "self.join(' ') == 'aa bb'", 329_853_068_905, 10, 43);
    check(texts, "self.isSorted() == true", 329_854_432_052, 10, 52);
    let replace = |max| {
        json!({"type": "object", "properties": {
            "str": text(max), "before": text(Some(2)), "after": text(Some(4)),
        }})
    };
    check(
        replace,
        "self.str.replace(self.before, self.after) == 'does not matter'",
        629_154,
        4,
        12,
    );
    let split =
        |max| json!({"type": "object", "properties": {"str": text(max), "separator": text(max)}});
    check(split, "self.str.split(self.separator) == []", 629_160, 10, 22);
}

#[test]
fn macros_cost_as_much_as_their_expansions() {
    let numbers = list("integer", Some(10));
    for (rule, expected) in [
        // The list, each step, the accumulator.
        ("self.exists(x, true)", 1 + 10 * 4 + 1),
        ("self.exists_one(x, true)", 1 + 10 * 2 + 2),
        ("self.map(x, x).size() == 0", 1 + 10 + 10 * 13 + 1 + 2),
        ("self.filter(x, true).size() == 0", 1 + 10 + 10 * 13 + 1 + 2),
        ("self.map(x, true, x).size() == 0", 1 + 10 + 10 * 13 + 1 + 2),
        ("self.all(i, x, true)", 1 + 10 * 3 + 1),
        ("self.transformMap(i, x, x).size() == 0", 1 + 30 + 10 * 4 + 1 + 2),
        ("self.sort().size() == 0", 1 + 200 + 11 + 2),
        ("self.distinct().size() == 0", 1 + 200 + 11 + 2),
        ("sets.contains(self, self)", 2 + 100 + 1),
        ("self.slice(1, 3).size() == 0", 1 + 2 + 11 + 2),
        ("self[?0].hasValue()", 3),
    ] {
        assert_eq!(cost(&numbers, rule), expected, "{rule}");
    }
}
