//! Objects of any built-in type, made from a seed: every field, every shape, and the texts that
//! formats stumble over.

use headwater_json::{Map, Value, json};
use headwater_schema::types::{Type, Types, ValueType};

/// Deep enough for a container of a template of a template.
const DEPTH_MAX: usize = 9;

/// Texts that YAML, JSON or a line of text could take for something else.
const TEXTS: &[&str] = &[
    "a",
    "b-c",
    "on",
    "y",
    "null",
    "~",
    "1",
    "1e3",
    "0x1f",
    "1_000",
    "-",
    "- a",
    "a: b",
    "a #b",
    "'",
    "\"",
    "\\",
    "é",
    "\u{1F600}",
    " a ",
    "a\nb",
    "a\n",
    "\t",
    "{}",
    "[]",
    "*a",
    "&a",
    "!a",
    "%a",
    "@a",
    "`a",
    "2026-01-02",
    "<&>",
    "\u{2028}",
    "\u{7f}",
    "=",
];

/// Numbers as a seed gives them (xorshift).
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        // Zero would stay zero.
        Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

/// An object of a kind, in the form that a client writes.
pub(crate) fn object(dice: &mut Dice, of: &Type) -> Value {
    let mut object = fields(dice, of, 0);
    object.insert("metadata".into(), json!({"name": "x", "labels": {"a": text(dice)}}));
    Value::Object(object)
}

fn fields(dice: &mut Dice, of: &Type, depth: usize) -> Map {
    let mut object = Map::new();
    // A few fields of each object, and fewer the deeper it is: all of them would be millions.
    let chance = [2, 2, 3, 4, 5, 6, 7, 8, 9, 9][depth.min(DEPTH_MAX)];
    for field in &of.fields {
        let is_type = matches!(field.name, "apiVersion" | "kind") && depth == 0;
        let is_wanted = dice.below(chance) == 0 || (field.required && depth < DEPTH_MAX);
        if !is_type && is_wanted {
            object.insert(field.name.into(), value(dice, &field.shape, depth));
        }
    }
    object
}

fn value(dice: &mut Dice, shape: &ValueType, depth: usize) -> Value {
    let types = Types::builtin();
    if depth >= DEPTH_MAX && shape.heart().is_some() {
        return types.empty(shape);
    }
    match shape {
        ValueType::Text => text(dice),
        ValueType::Int32 => (*dice.pick(&[0, 1, -1, 80, i32::MAX, i32::MIN])).into(),
        ValueType::Int64 => (*dice.pick(&[0, 1, -1, 1 << 40, i64::MAX, i64::MIN])).into(),
        ValueType::Float => (*dice.pick(&[0.5, 1.0, -2.25, 1e21])).into(),
        ValueType::Bool => (dice.below(2) == 0).into(),
        ValueType::Bytes => (*dice.pick(&["AAEC", "/+8=", "aA=="])).into(),
        ValueType::Time => (*dice.pick(&["2026-01-02T03:04:05Z", "1999-12-31T23:59:59Z"])).into(),
        ValueType::MicroTime => "2026-01-02T03:04:05.000006Z".into(),
        ValueType::Quantity => (*dice.pick(&["100m", "1Gi", "0", "5", "1500k"])).into(),
        ValueType::IntOrString => {
            dice.pick(&[json!(8080), json!("web"), json!("25%"), json!(0)]).clone()
        }
        ValueType::Any => {
            let any = [json!({"a": [1, "b", null, true]}), json!({}), json!({"on": "off"})];
            dice.pick(&any).clone()
        }
        ValueType::Struct(id) => Value::Object(fields(dice, types.get(*id), depth + 1)),
        ValueType::List(inner) | ValueType::Wrapped(inner) => {
            let count = 1 + dice.below(2);
            (0..count).map(|_| value(dice, inner, depth + 1)).collect()
        }
        ValueType::Map(inner) => {
            let count = 1 + dice.below(2);
            let mut map = Map::new();
            for _ in 0..count {
                let key = dice.pick(TEXTS).to_string();
                map.insert(key.into(), value(dice, inner, depth + 1));
            }
            Value::Object(map)
        }
        ValueType::SchemaOrList(id) | ValueType::SchemaOrTexts(id) if dice.below(2) == 0 => {
            Value::Object(fields(dice, types.get(*id), depth + 1))
        }
        ValueType::SchemaOrBool(id) if dice.below(2) == 0 => {
            Value::Object(fields(dice, types.get(*id), depth + 1))
        }
        ValueType::SchemaOrList(id) => json!([fields(dice, types.get(*id), depth + 1)]),
        ValueType::SchemaOrBool(_) => (dice.below(2) == 0).into(),
        ValueType::SchemaOrTexts(_) => json!([text(dice)]),
    }
}

fn text(dice: &mut Dice) -> Value {
    (*dice.pick(TEXTS)).into()
}
