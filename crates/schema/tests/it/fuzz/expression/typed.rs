//! Well-typed expressions, made from the table of functions.

use std::sync::LazyLock;

use crate::any::Dice;

/// The types of generated expressions.
pub(super) const TYPES: &[&str] = &[
    "bool",
    "int",
    "uint",
    "double",
    "string",
    "bytes",
    "duration",
    "timestamp",
    "list(int)",
    "list(string)",
    "map(string,int)",
    "optional(int)",
    "optional(string)",
    "Quantity",
    "URL",
    "IP",
    "CIDR",
    "Semver",
    "dyn",
];

/// A function with its argument types, the receiver first.
struct Function {
    name: &'static str,
    is_method: bool,
    arguments: Vec<String>,
    answer: String,
}

/// Every function whose types are among those above, with type parameters substituted.
static FUNCTIONS: LazyLock<Vec<Function>> = LazyLock::new(|| {
    let lines = headwater_cel::signatures().map(|line| &*line.leak());
    let both = lines.flat_map(|line| ["int", "string"].map(|ty| read(line, ty)));
    let known = |ty: &String| TYPES.contains(&ty.as_str());
    both.filter(|function| known(&function.answer) && function.arguments.iter().all(known))
        .filter(|function| !function.name.starts_with("jsonpatch."))
        // A literal time must be valid.
        .filter(|function| !matches!(function.name, "timestamp" | "duration"))
        .collect()
});

fn read(line: &'static str, letter: &str) -> Function {
    let (call, answer) = line.split_once(" -> ").unwrap();
    // The position of the parenthesis that the last one closes.
    let mut depth = 0;
    let (open, _) = call
        .char_indices()
        .rev()
        .find(|(_, c)| {
            depth += i32::from(*c == ')') - i32::from(*c == '(');
            depth == 0
        })
        .unwrap();
    let (head, inside) = (&call[..open], &call[open + 1..call.len() - 1]);
    let spaces = ["optional", "lists", "sets", "strings", "ip", "format", "jsonpatch"];
    let (receiver, name) = match head.rsplit_once('.') {
        Some((space, _)) if spaces.contains(&space) => (None, head),
        Some((receiver, name)) => (Some(receiver), name),
        None => (None, head),
    };
    let mut depth = 0;
    let parts = inside.split(move |c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth == 0
    });
    let all = receiver.into_iter().chain(parts.filter(|part| !part.is_empty()));
    Function {
        name,
        is_method: receiver.is_some(),
        arguments: all.map(|ty| filled(ty, letter)).collect(),
        answer: filled(answer, letter),
    }
}

/// Substitutes the type parameters of a type.
fn filled(ty: &str, letter: &str) -> String {
    let mut made = String::new();
    for word in ty.split_inclusive(['(', ')', ',']) {
        let plain = word.trim_end_matches(['(', ')', ',']);
        let filled = match plain {
            "T" | "O" => letter,
            "K" => "string",
            "V" | "N" => "int",
            other => other,
        };
        made.push_str(filled);
        made.push_str(&word[plain.len()..]);
    }
    made
}

/// An expression of a type.
pub(super) fn of(dice: &mut Dice, ty: &str, depth: usize) -> String {
    if depth == 0 {
        return leaf(dice, ty);
    }
    let inner = |dice: &mut Dice, ty: &str| of(dice, ty, depth - 1);
    match dice.below(10) {
        0 => leaf(dice, ty),
        1 => {
            let (condition, yes, no) = (inner(dice, "bool"), inner(dice, ty), inner(dice, ty));
            format!("({condition} ? {yes} : {no})")
        }
        2 => format!("[{}, {}][{}]", inner(dice, ty), inner(dice, ty), dice.below(3)),
        3 => format!("{{'k': {}}}['k']", inner(dice, ty)),
        4 => format!("optional.of({}).orValue({})", inner(dice, ty), inner(dice, ty)),
        5 | 6 => operator(dice, ty, depth),
        _ => call(dice, ty, depth),
    }
}

fn call(dice: &mut Dice, ty: &str, depth: usize) -> String {
    let fit: Vec<&Function> = FUNCTIONS.iter().filter(|function| function.answer == ty).collect();
    if fit.is_empty() {
        return leaf(dice, ty);
    }
    let function = *dice.pick(&fit);
    let mut arguments: Vec<String> =
        function.arguments.iter().map(|ty| of(dice, ty, depth - 1)).collect();
    let name = function.name;
    match function.is_method {
        true => {
            let of = arguments.remove(0);
            format!("({of}).{name}({})", arguments.join(", "))
        }
        false => format!("{name}({})", arguments.join(", ")),
    }
}

/// Operators and macros with a result of this type.
fn operator(dice: &mut Dice, ty: &str, depth: usize) -> String {
    let inner = |dice: &mut Dice, ty: &str| of(dice, ty, depth - 1);
    match ty {
        "bool" => {
            let compared = *dice.pick(&["int", "string", "double", "bytes", "timestamp", "bool"]);
            let sign = *dice.pick(&["==", "!=", "<", "<=", ">", ">="]);
            let list = inner(dice, "list(int)");
            match dice.below(8) {
                0 => format!("({} {sign} {})", inner(dice, compared), inner(dice, compared)),
                1 => format!("({} && {})", inner(dice, ty), inner(dice, ty)),
                2 => format!("({} || {})", inner(dice, ty), inner(dice, ty)),
                3 => format!("!({})", inner(dice, ty)),
                4 => format!("({list}).all(x, x < {} && {})", dice.below(9), inner(dice, ty)),
                5 => format!("({list}).exists(i, x, i + x > {})", dice.below(9)),
                6 => format!("({} in {list})", inner(dice, "int")),
                _ => format!("({}).exists_one(k, k == 'a')", inner(dice, "map(string,int)")),
            }
        }
        "int" | "uint" => {
            let sign = *dice.pick(&["+", "-", "*", "/", "%"]);
            format!("({} {sign} {})", inner(dice, ty), inner(dice, ty))
        }
        "double" => format!(
            "({} {} {})",
            inner(dice, ty),
            dice.pick(&["+", "-", "*", "/"]),
            inner(dice, ty)
        ),
        "string" | "bytes" | "duration" => format!("({} + {})", inner(dice, ty), inner(dice, ty)),
        "timestamp" => format!("({} - {})", inner(dice, ty), inner(dice, "duration")),
        "list(int)" => match dice.below(4) {
            0 => format!("({} + {})", inner(dice, ty), inner(dice, ty)),
            1 => format!("({}).map(x, x {} 2)", inner(dice, ty), dice.pick(&["+", "*", "-"])),
            2 => format!("({}).filter(x, {})", inner(dice, ty), inner(dice, "bool")),
            _ => format!("({}).sortBy(x, -x)", inner(dice, ty)),
        },
        "list(string)" => format!("({}).map(k, k)", inner(dice, "map(string,int)")),
        "map(string,int)" => format!("({}).transformMap(k, v, v + 1)", inner(dice, ty)),
        "optional(int)" => format!("({}).optMap(x, x + 1)", inner(dice, ty)),
        "optional(string)" => format!("({})[?{}]", inner(dice, "list(string)"), dice.below(4)),
        "dyn" => {
            let of = *dice.pick(TYPES);
            format!("dyn({})", inner(dice, of))
        }
        _ => leaf(dice, ty),
    }
}

/// A literal or a field.
fn leaf(dice: &mut Dice, ty: &str) -> String {
    let choices: &[&str] = match ty {
        "bool" => &["self.b", "true", "false", "has(self.b)", "(1 < 2)"],
        "int" => &["self.i", "0", "1", "-1", "7", "9223372036854775807", "size('abc')"],
        "uint" => &["0u", "1u", "18446744073709551615u"],
        "double" => &["self.n", "1.5", "0.0", "-2.5e10", "1e308"],
        "string" => {
            &["self.s", "'a'", "''", "'é'", "'7'", "'10.0.0.1'", "'1Gi'", "'1.2.3'", "'a,b'"]
        }
        "bytes" => &["self.y", "b'x'", "b''", "b'\\xff'"],
        "duration" => &["self.d", "duration('1h30m')", "duration('0')", "duration('-1ns')"],
        "timestamp" => &["self.t", "timestamp('2026-01-02T03:04:05Z')", "timestamp(0)"],
        "list(int)" => &["self.k", "[1, 2, 3]", "[3, 1]", "[7]"],
        "list(string)" => &["self.l", "['a', 'b']", "['']"],
        "map(string,int)" => &["self.m", "{'a': 1}", "{'b': 2, 'c': 3}"],
        "optional(int)" => &["optional.of(1)", "{'a': 1}[?'b']"],
        "optional(string)" => &["optional.of('a')", "['a'][?1]"],
        "Quantity" => &["quantity('1Gi')", "quantity('500m')"],
        "URL" => &["url('https://h:80/p?a=1')", "url('/x')"],
        "IP" => &["ip('10.0.0.1')", "ip('::1')"],
        "CIDR" => &["cidr('10.0.0.0/8')", "cidr('::/0')"],
        "Semver" => &["semver('1.2.3')", "semver('2.0.0-rc.1')"],
        "dyn" => &["self.x", "dyn(1)", "dyn('a')", "dyn([])", "dyn(null)", "dyn({'a': 1.5})"],
        other => panic!("there is nothing to write for {other}"),
    };
    (*dice.pick(choices)).to_owned()
}
