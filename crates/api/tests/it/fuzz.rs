//! Schemas, patches, applies and expressions that nobody would write: nothing panics, everything
//! ends, and what must hold holds.
//!
//! Each case is made from its number. `HEADWATER_FUZZ_CASES` says how many of each there are; the
//! number of the case that fails is in the message.

use std::cell::Cell;

use headwater_api::Kind;
use headwater_api::cel::{Budget, Known, Program, Shape, Value as Cel, Variables};
use headwater_api::json::{Map, Value, json};
use headwater_api::managed::{self, Write};
use headwater_api::patch;
use headwater_api::schema::Types;
use headwater_api::structural::{Place, Schema, check};
use jiff::Timestamp;

use crate::any::Dice;

/// Runs a test for every case.
fn each(cases: u64, test: impl Fn(&mut Dice)) {
    let asked = std::env::var("HEADWATER_FUZZ_CASES").ok().and_then(|text| text.parse().ok());
    for case in 0..asked.unwrap_or(cases) {
        let tested = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            test(&mut Dice::new(case + 1));
        }));
        assert!(tested.is_ok(), "case {case} failed");
    }
}

const NAMES: &[&str] = &["a", "b", "spec", "x-y", "metadata", "name", "kind", "é", "", "__a__"];

fn name(dice: &mut Dice) -> String {
    (*dice.pick(NAMES)).to_owned()
}

/// Any JSON.
fn json(dice: &mut Dice, depth: usize) -> Value {
    let scalars =
        [json!(null), json!(true), json!(0), json!(-1), json!(1.5), json!(i64::MAX), json!("")];
    match dice.below(if depth > 4 { 3 } else { 6 }) {
        0 | 1 => dice.pick(&scalars).clone(),
        2 => name(dice).into(),
        3 => (0..dice.below(4)).map(|_| json(dice, depth + 1)).collect(),
        _ => {
            let mut members = Map::new();
            for _ in 0..dice.below(4) {
                members.insert(name(dice).into(), json(dice, depth + 1));
            }
            Value::Object(members)
        }
    }
}

/// A schema that is often structural.
fn schema(dice: &mut Dice, depth: usize) -> Value {
    let kinds = ["object", "array", "string", "integer", "number", "boolean"];
    let kind = if depth == 0 { "object" } else { *dice.pick(&kinds) };
    let mut made = json!({ "type": kind });
    match kind {
        "object" if depth < 4 && dice.below(4) > 0 => {
            for _ in 0..dice.below(4) {
                made["properties"][name(dice)] = schema(dice, depth + 1);
            }
        }
        "object" if depth > 0 => made["additionalProperties"] = schema(dice, depth + 4),
        "array" => {
            made["items"] = schema(dice, depth + 1);
            if dice.below(3) == 0 {
                made["x-kubernetes-list-type"] = (*dice.pick(&["set", "atomic", "map"])).into();
            }
        }
        "string" => match dice.below(4) {
            0 => made["format"] = (*dice.pick(&["date-time", "byte", "duration", "ipv4"])).into(),
            1 => {
                made["pattern"] = (*dice.pick(&["^a+$", "(a|b)*", "[", "a{1000}", "(?i)x"])).into()
            }
            2 => made["maxLength"] = dice.below(3).into(),
            _ => {}
        },
        _ => made["maximum"] = dice.below(5).into(),
    }
    if dice.below(4) == 0 {
        made["default"] = json(dice, 3);
    }
    if dice.below(4) == 0 {
        made["x-kubernetes-validations"] = json!([{ "rule": expression(dice, 0) }]);
    }
    if dice.below(8) == 0 {
        let keys =
            ["nullable", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string"];
        made[*dice.pick(&keys)] = true.into();
    }
    if dice.below(16) == 0 {
        made[name(dice)] = json(dice, 2);
    }
    made
}

/// Words that an expression could have, in no order.
const WORDS: &[&str] = &[
    "self",
    "oldSelf",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ".",
    ",",
    "?",
    ":",
    "&&",
    "||",
    "!",
    "-",
    "+",
    "*",
    "/",
    "%",
    "==",
    "<",
    "in",
    "has",
    "all",
    "map",
    "x",
    "1",
    "0",
    "1.5",
    "'a'",
    "b'\\xff'",
    "true",
    "null",
    ".?",
    "[?",
    "\"",
    "'",
    "\\",
    "r'\\d'",
    "matches",
    "size",
    "0xg",
    "1e999",
    "`",
    "optMap",
    "é",
    "//",
    "\n",
    "9223372036854775808",
    "u",
];

/// An expression: often a good one, sometimes only words.
fn expression(dice: &mut Dice, depth: usize) -> String {
    if dice.below(12) == 0 {
        let count = 1 + dice.below(12);
        let words: Vec<&str> = (0..count).map(|_| *dice.pick(WORDS)).collect();
        return words.join(if dice.below(2) == 0 { " " } else { "" });
    }
    let leaf = [
        "self",
        "self.a",
        "oldSelf",
        "1",
        "'a'",
        "[1, 2, 3]",
        "true",
        "x",
        "{'a': 1}",
        "self['b']",
    ];
    if depth > 4 {
        return (*dice.pick(&leaf)).to_owned();
    }
    let inner = |dice: &mut Dice| expression(dice, depth + 1);
    match dice.below(14) {
        0 => format!("{} == {}", inner(dice), inner(dice)),
        1 => format!("({} && {})", inner(dice), inner(dice)),
        2 => format!("({} || {})", inner(dice), inner(dice)),
        3 => format!("!({})", inner(dice)),
        4 => format!("({}).all(x, {})", inner(dice), inner(dice)),
        5 => format!("({}).map(x, {})", inner(dice), inner(dice)),
        6 => format!(
            "({} {} {})",
            inner(dice),
            dice.pick(&["+", "-", "*", "/", "%", "<", "in"]),
            inner(dice)
        ),
        7 => format!("({} ? {} : {})", inner(dice), inner(dice), inner(dice)),
        8 => format!("optional.of({}).optMap(x, {})", inner(dice), inner(dice)),
        9 => format!("string({})", inner(dice)),
        10 => {
            let method = *dice.pick(&[
                "size()",
                "startsWith('a')",
                "matches('a+')",
                "split('')",
                "reverse()",
                "sort()",
                "flatten()",
                "join()",
                "orValue(1)",
                "format([1, 'a'])",
                "getHours()",
                "sum()",
            ]);
            format!("({}).{method}", inner(dice))
        }
        11 => format!("({})[{}]", inner(dice), inner(dice)),
        12 => format!("({}).?a.orValue({})", inner(dice), inner(dice)),
        _ => (*dice.pick(&leaf)).to_owned(),
    }
}

#[test]
fn expressions_compile_or_not_and_always_end() {
    const LIMIT: u64 = 20_000;
    let shape = Shape::Dyn;
    let compiled = Cell::new(0);
    each(20_000, |dice| {
        let text = expression(dice, 0);
        let known = Known::default().with("self", &shape).with_optional("oldSelf", &shape);
        let Ok(program) = Program::compile(&text, &known) else { return };
        compiled.set(compiled.get() + 1);
        let object = json(dice, 0);
        let variables = Variables::default()
            .with("self", Cel::json(&object))
            .with("oldSelf", Cel::some(Cel::json(&object)));
        let mut budget = Budget::new(LIMIT);
        let first = program.run(&variables, &mut budget).map(|value| value.to_json());
        let again = program.run(&variables, &mut Budget::new(LIMIT)).map(|value| value.to_json());
        assert_eq!(first, again, "{text}");
        program.cost_max(&known);
    });
    assert!(compiled.get() > 0, "no expression was good enough to be run");
}

#[test]
fn schemas_are_refused_or_hold_objects_to_themselves() {
    let accepted = Cell::new(0);
    each(6_000, |dice| {
        let schema = schema(dice, 0);
        let place = Place { path: "schema", has_status: dice.below(2) == 0 };
        let faults = check(&schema, place);
        let Ok(compiled) = Schema::compile(&schema) else {
            assert!(!faults.is_empty(), "a schema that cannot be compiled was accepted: {schema}");
            return;
        };
        let mut any = || json!({"a": json(dice, 1), "spec": json(dice, 1)});
        let (mut object, old) = (any(), any());
        let sent = object.clone();
        compiled.prune(&mut object);
        compiled.default(&mut object);
        if faults.is_empty() {
            accepted.set(accepted.get() + 1);
            if compiled.is_settled(&serde_json::to_vec(&sent).unwrap()) {
                assert_eq!(object, sent, "it said that nothing would change: {schema}");
            }
            let before = object.clone();
            assert_eq!(compiled.prune(&mut object), Vec::<String>::new(), "{schema}");
            compiled.default(&mut object);
            assert_eq!(object, before, "settled twice: {schema}");
        }
        compiled.validate(&object, None);
        compiled.validate(&object, Some(&old));
        let same = compiled.validate(&object, Some(&object.clone()));
        let fresh = compiled.validate(&object, None);
        // A rule may speak of what was, and runs only where all else fits.
        let has_rules = schema.to_string().contains("x-kubernetes-validations");
        if faults.is_empty() && !has_rules {
            assert!(same.len() <= fresh.len(), "what did not change is forgiven: {schema}");
        }
    });
    assert!(accepted.get() > 0, "no schema was good enough to be tried");
}

#[test]
fn patches_fit_or_are_refused() {
    let kind = headwater_api::kind::builtin().into_iter().find(|kind| kind.kind == "Pod").unwrap();
    each(20_000, |dice| {
        let object = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": json(dice, 2),
            "spec": {"containers": json(dice, 2)},
        });
        let given = json(dice, 0);
        let mut merged = object.clone();
        if patch::merge(&mut merged, given.clone()).is_ok() {
            let once = merged.clone();
            patch::merge(&mut merged, given.clone()).unwrap();
            assert_eq!(merged, once, "a merge patch twice is once: {given}");
        }
        let of = Types::builtin().of(&kind).unwrap();
        // Refused or not, it returns.
        let _ = patch::strategic(&mut object.clone(), given, of);
        let paths = ["/metadata/name", "/spec/containers/0", "", "/a~1b", "/spec/-", "x", "/é/~2"];
        let ops = ["add", "remove", "replace", "move", "copy", "test", "odd"];
        let list: Vec<Value> = (0..dice.below(4))
            .map(|_| {
                json!({
                    "op": dice.pick(&ops), "path": dice.pick(&paths), "from": dice.pick(&paths),
                    "value": json(dice, 3),
                })
            })
            .collect();
        let _ = patch::json(&mut object.clone(), list.into());
        let mut object = object;
        let _ = patch::json(&mut object, json(dice, 0));
    });
}

#[test]
fn custom_objects_are_applied_and_applied_again() {
    let kind = Kind {
        group: "example.com".into(),
        version: "v1".into(),
        kind: "Any".into(),
        plural: "anys".into(),
        custom: true,
        ..Kind::default()
    };
    each(4_000, |dice| {
        let schema = schema(dice, 0);
        let place = Place { path: "schema", has_status: false };
        if !check(&schema, place).is_empty() {
            return;
        }
        let compiled = Schema::compile(&schema).unwrap();
        let apply = |live: Option<&Value>, config: &Value, second: i64| {
            let write = Write {
                manager: "m",
                subresource: "",
                api_version: "example.com/v1",
                now: Timestamp::from_second(second).unwrap(),
                ignored: &[],
            };
            managed::apply(live, config.clone(), &write, false, &kind, compiled.structure())
        };
        let mut config = json(dice, 0);
        if !config.is_object() {
            return;
        }
        config["apiVersion"] = "example.com/v1".into();
        config["kind"] = "Any".into();
        config["metadata"] = json!({"name": "x"});
        let Ok(stored) = apply(None, &config, 1) else { return };
        let Ok(mut again) = apply(Some(&stored), &config, 2) else {
            panic!("refused the second time: {config}")
        };
        managed::keep_times(&stored, &mut again);
        assert_eq!(again, stored, "{config} under {schema}");
    });
}
