//! Expressions: compilation and evaluation always end.
//!
//! Most are generated from the function table and are well typed: they must compile, and the result
//! must have the checked type.

use std::cell::Cell;

use headwater_cel::{Budget, DeclType, Environment, Program, Value as Cel, Variables};
use headwater_json::{Value, json};

use super::{anything, each};
use crate::any::Dice;

mod typed;

/// The budget of one evaluation: enough for most expressions, small enough to try many.
const LIMIT: u64 = 20_000;

/// Tokens for random expressions.
#[rustfmt::skip]
const WORDS: &[&str] = &[
    "self", "oldSelf", "(", ")", "[", "]", "{", "}", ".", ",", "?", ":", "&&", "||", "!", "-",
    "+", "*", "/", "%", "==", "<", "in", "has", "all", "map", "x", "1", "0", "1.5", "'a'",
    "b'\\xff'", "true", "null", ".?", "[?", "\"", "'", "\\", "r'\\d'", "matches", "size",
    "0xg", "1e999", "`", "optMap", "é", "//", "\n", "9223372036854775808", "u",
];

/// An expression: mostly a valid one, sometimes a damaged one, sometimes random tokens.
pub(super) fn any(dice: &mut Dice, depth: usize) -> String {
    match dice.below(8) {
        0 => {
            let count = 1 + dice.below(12);
            let words: Vec<&str> = (0..count).map(|_| *dice.pick(WORDS)).collect();
            words.join(if dice.below(2) == 0 { " " } else { "" })
        }
        1 => broken(dice, depth),
        2 => typed::of(dice, "dyn", depth),
        _ => typed::of(dice, "bool", depth),
    }
}

/// A valid expression with some characters changed, removed or added.
fn broken(dice: &mut Dice, depth: usize) -> String {
    let mut text: Vec<char> = typed::of(dice, "bool", depth).chars().collect();
    for _ in 0..1 + dice.below(3) {
        let at = dice.below(text.len().max(1));
        let other = dice.pick(WORDS).chars().next().unwrap_or('x');
        match dice.below(3) {
            _ if text.is_empty() => text.push(other),
            0 => text[at] = other,
            1 => drop(text.remove(at)),
            _ => text.insert(at, other),
        }
    }
    text.into_iter().collect()
}

/// The type of the test object: a field of every type.
fn about() -> DeclType {
    DeclType::of(
        &json!({"type": "object", "properties": {
            "i": {"type": "integer"}, "n": {"type": "number"}, "s": {"type": "string"},
            "b": {"type": "boolean"}, "t": {"type": "string", "format": "date-time"},
            "d": {"type": "string", "format": "duration"},
            "y": {"type": "string", "format": "byte"},
            "l": {"type": "array", "items": {"type": "string"}},
            "k": {"type": "array", "items": {"type": "integer"}},
            "m": {"type": "object", "additionalProperties": {"type": "integer"}},
            "x": {"x-kubernetes-int-or-string": true},
        }}),
        false,
    )
}

fn object(dice: &mut Dice) -> Value {
    let mut made = json!({
        "i": 3, "n": 1.5, "s": "a-b", "b": true, "t": "2026-01-02T03:04:05Z", "d": "90m",
        "y": "aGk=", "l": ["b", "a", "é"], "k": [3, 1, 2], "m": {"a": 1, "b": 2}, "x": "50%",
    });
    if dice.below(3) == 0
        && let Value::Object(members) = &mut made
    {
        let gone = *dice.pick(&["i", "s", "l", "m", "x"]);
        members.remove(gone);
    }
    made
}

/// Runs a program twice: the results are equal and within the budget.
fn run<'a>(program: &'a Program, variables: &Variables<'a>) -> Option<Cel<'a>> {
    let mut budget = Budget::new(LIMIT);
    let first = program.run(variables, &mut budget);
    let again = program.run(variables, &mut Budget::new(LIMIT));
    let seen = |found: &Result<Cel<'a>, _>| found.as_ref().map(Cel::to_json).map_err(Clone::clone);
    assert_eq!(seen(&first), seen(&again), "{}", program.text());
    if first.is_ok() {
        assert!(budget.spent() <= LIMIT, "{}", program.text());
    }
    first.ok()
}

#[test]
fn expressions_compile_or_not_and_always_end() {
    let shape = DeclType::Dyn;
    let compiled = Cell::new(0);
    each(36_000, |dice, size| {
        let text = any(dice, size);
        let known = Environment::default().with("self", &shape).with_optional("oldSelf", &shape);
        let Ok(program) = Program::compile(&text, &known) else { return };
        compiled.set(compiled.get() + 1);
        let object = anything(dice, 0);
        let variables = Variables::default()
            .with("self", Cel::json(&object))
            .with("oldSelf", Cel::some(Cel::json(&object)));
        run(&program, &variables);
        program.cost_max(&known);
    });
    assert!(compiled.get() > 0, "no expression was good enough to be run");
}

#[test]
fn what_is_well_typed_compiles_and_comes_to_what_was_promised() {
    let shape = about();
    let (ran, came) = (Cell::new(0), Cell::new(0));
    each(30_000, |dice, size| {
        let wanted = *dice.pick(typed::TYPES);
        let text = typed::of(dice, wanted, size);
        let known = Environment::default().with("self", &shape);
        let program = match Program::compile(&text, &known) {
            Ok(program) => program,
            Err(error) => panic!("{wanted}: {error}"),
        };
        ran.set(ran.get() + 1);
        program.cost_max(&known);
        let object = object(dice);
        let variables = Variables::default().with_json("self", &object, &shape);
        let Some(value) = run(&program, &variables) else { return };
        came.set(came.get() + 1);
        let (found, promised) = (value.type_name(), program.result());
        assert!(promised == "dyn" || found == promised, "{text} is {found}, not {promised}");
    });
    assert!(came.get() * 4 > ran.get(), "most of them fail: {} of {}", came.get(), ran.get());
}

#[test]
fn nothing_is_nested_too_deeply_for_the_stack() {
    let opens = [
        "(",
        "[",
        "{",
        "!",
        "-",
        "!-",
        "[[",
        "x.",
        "x[",
        "x(",
        "x.y(",
        "{'a':",
        "true ? ",
        "1 + ",
        "true && ",
        "[1].all(x, ",
        "optional.of(",
        "'a' + ",
        "x.?y",
        "has(x.",
        "x in ",
        "{x: [",
    ];
    let shape = DeclType::Dyn;
    each(600, |dice, _| {
        let (first, second) = (*dice.pick(&opens), *dice.pick(&opens));
        let count = [50, 119, 121, 1_000, 20_000][dice.below(5)];
        let mut text: String =
            (0..count).map(|at| if at % 2 == 0 { first } else { second }).collect();
        let known = Environment::default().with("x", &shape);
        let _ = Program::compile(&text, &known);
        // The same with closing brackets, so that more of them are parsed completely.
        text.push_str("x.y");
        for open in text.clone().chars().rev() {
            match open {
                '(' => text.push(')'),
                '[' => text.push(']'),
                '{' => text.push('}'),
                '?' => text.push_str(": 1"),
                _ => {}
            }
        }
        let _ = Program::compile(&text, &known);
    });
}
