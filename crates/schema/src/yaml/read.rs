//! The YAML parser: YAML 1.1 words, one document, bounded alias expansion.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::fmt;

use headwater_api::query::quote;
use headwater_json::path::{Path, PathList};
use headwater_json::{
    DEPTH_MAX, Malformed, Map, MemberKey, Number, Parsed, Text, Value, parse as json,
};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;
use serde_saphyr::options::{DuplicateKeyPolicy, NonFiniteFloatPolicy};

/// The maximum number of nodes of a document with aliases expanded.
const NODES_MAX: usize = 100_000;

/// The maximum size of the texts that aliases repeat.
const REPEATED_MAX: usize = 3 * 1024 * 1024;

/// Stack for [`DEPTH_MAX`] levels of the YAML library in debug builds, 30 KiB each. Unused pages take
/// no memory.
const STACK_BYTES: usize = 32 * 1024 * 1024;

/// The keys that a document repeats, with their lines, in the words of Kubernetes' YAML library. Reads
/// the document once more: few repeat keys.
pub fn repeated_keys(body: &[u8]) -> PathList {
    let Ok(text) = std::str::from_utf8(body) else { return PathList::default() };
    let found = on_large_stack(|| {
        serde_saphyr::from_str_with_options::<Repeats>(text, options())
            .map_err(|error| Malformed::new(error.to_string()))
    });
    found.map(|found| found.0).unwrap_or_default()
}

/// Runs a reader on a thread with a larger stack: the library recurses with large stack frames. YAML
/// that is not JSON is rare (kubectl sends JSON), so the thread is affordable.
fn on_large_stack<T: Send>(
    reader: impl FnOnce() -> Result<T, Malformed> + Send,
) -> Result<T, Malformed> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
        let thread = thread.spawn_scoped(scope, reader);
        let read = thread.map_err(|error| Malformed::new(format!("yaml: {error}")))?.join();
        read.unwrap_or_else(|_| Err(Malformed::new("yaml: the document cannot be read")))
    })
}

/// Parses a YAML document.
pub fn parse(body: &[u8]) -> Result<Parsed, Malformed> {
    // Most YAML bodies are JSON, which needs none of the following.
    if body.first() == Some(&b'{')
        && let Ok(parsed) = json(body)
    {
        return Ok(parsed);
    }
    let text = std::str::from_utf8(body).map_err(|error| {
        Malformed::new(format!("yaml: invalid UTF-8 at byte {}", error.valid_up_to()))
    })?;
    on_large_stack(|| read(text))
}

fn read(text: &str) -> Result<Parsed, Malformed> {
    if has_second_document(text) {
        return Err(Malformed::new("yaml: expected a single document"));
    }
    let text_left = Cell::new(text.len() + REPEATED_MAX);
    let state = State { nodes: RefCell::new(0), text_left, duplicates: RefCell::default() };
    let seed = Node { path: &Path::Root, depth: 0, state: &state };
    let value = serde_saphyr::with_deserializer_from_str_with_options(text, options(), |reader| {
        seed.deserialize(reader)
    })
    .map_err(|error| Malformed::new(format!("yaml: {}", first_line(&error.to_string()))))?;
    Ok(Parsed { value, duplicates: state.duplicates.into_inner() })
}

/// Rejects further documents: the library silently ignores them.
fn has_second_document(text: &str) -> bool {
    let mut lines = text.lines().skip_while(|line| line.is_empty() || line.starts_with(['#', '%']));
    lines.next();
    let starts = |line: &str| line == "---" || line.starts_with("--- ");
    let mut rest = lines.skip_while(|line| !starts(line)).skip(1).peekable();
    rest.peek().is_some() && rest.any(|line| !line.trim_start().is_empty())
}

fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_nodes: NODES_MAX,
            max_depth: DEPTH_MAX as usize,
            flow_nesting_limit: DEPTH_MAX as usize,
            max_documents: 1,
        },
        duplicate_keys: DuplicateKeyPolicy::LastWins,
        legacy_octal_numbers: true,
        strict_booleans: false,
        non_finite_float_policy: NonFiniteFloatPolicy::Reject,
        with_snippet: false,
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// Counters of a document while it is parsed.
struct State {
    nodes: RefCell<usize>,
    /// How many more bytes of text the document may have, with aliases expanded.
    text_left: Cell<usize>,
    duplicates: RefCell<PathList>,
}

impl State {
    /// Charges a text before it is copied into the document.
    fn take_text<E: serde::de::Error>(&self, text: &str) -> Result<(), E> {
        let left = self.text_left.get().checked_sub(text.len());
        self.text_left.set(left.ok_or_else(|| E::custom("document contains excessive aliasing"))?);
        Ok(())
    }
}

/// Converts one node to a value.
#[derive(Clone, Copy)]
struct Node<'a> {
    path: &'a Path<'a>,
    depth: u32,
    state: &'a State,
}

impl<'a> Node<'a> {
    fn below(&self, path: &'a Path<'a>) -> Node<'a> {
        Node { path, depth: self.depth + 1, state: self.state }
    }
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        let mut nodes = self.state.nodes.borrow_mut();
        *nodes += 1;
        if *nodes > NODES_MAX {
            return Err(D::Error::custom("document contains excessive aliasing"));
        }
        drop(nodes);
        if self.depth > DEPTH_MAX {
            return Err(D::Error::custom("exceeded max depth"));
        }
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML node")
    }

    fn visit_bool<E>(self, truth: bool) -> Result<Value, E> {
        Ok(Value::Bool(truth))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Value, E> {
        let number = Number::from_f64(number);
        number.map(Value::Number).ok_or_else(|| E::custom("numbers must be finite"))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Value, E> {
        self.state.take_text(text)?;
        Ok(text.into())
    }

    fn visit_string<E: serde::de::Error>(self, text: String) -> Result<Value, E> {
        self.state.take_text(&text)?;
        Ok(text.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        loop {
            let path = Path::Index(self.path, values.len());
            match items.next_element_seed(self.below(&path))? {
                Some(value) => values.push(value),
                None => return Ok(Value::Array(values)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = entries.next_key_seed(self.below(self.path))? {
            let key = key_text(key).ok_or_else(|| A::Error::custom("keys must be scalars"))?;
            let key = MemberKey::from(key);
            let path = Path::Field(self.path, &key);
            let value = entries.next_value_seed(self.below(&path))?;
            if object.contains_key(&key) {
                self.state.duplicates.borrow_mut().push(path);
            }
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

/// The repeated keys of a node: those in its elements, then its own.
#[derive(Default)]
struct Repeats(PathList);

impl<'de> Deserialize<'de> for Repeats {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Repeats, D::Error> {
        reader.deserialize_any(Repeats::default())
    }
}

/// Visits of values in which no key can be repeated.
macro_rules! no_keys {
    ($($visit:ident: $of:ty;)*) => {
        $(fn $visit<E>(self, _: $of) -> Result<Repeats, E> {
            Ok(self)
        })*
    };
}

impl<'de> Visitor<'de> for Repeats {
    type Value = Repeats;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML node")
    }

    no_keys! { visit_bool: bool; visit_i64: i64; visit_u64: u64; visit_f64: f64; visit_str: &str; }

    fn visit_unit<E>(self) -> Result<Repeats, E> {
        Ok(self)
    }

    fn visit_none<E>(self) -> Result<Repeats, E> {
        Ok(self)
    }

    fn visit_some<D: Deserializer<'de>>(self, reader: D) -> Result<Repeats, D::Error> {
        reader.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<Repeats, A::Error> {
        while let Some(item) = items.next_element::<Repeats>()? {
            self.0.extend(&item.0);
        }
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut entries: A) -> Result<Repeats, A::Error> {
        let mut seen = HashSet::new();
        while let Some((key, value)) = entries.next_entry::<GoKey, Spanned<Repeats>>()? {
            self.0.extend(&value.value.0);
            if seen.contains(&key.0) {
                let line = value.referenced.line();
                self.0.push(format_args!("line {line}: key {} already set in map", key.0));
            } else {
                seen.insert(key.0);
            }
        }
        Ok(self)
    }
}

/// A key as Go prints it: texts are quoted.
struct GoKey(String);

impl<'de> Deserialize<'de> for GoKey {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<GoKey, D::Error> {
        reader.deserialize_any(GoKey(String::new()))
    }
}

impl<'de> Visitor<'de> for GoKey {
    type Value = GoKey;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a scalar key")
    }

    fn visit_bool<E>(self, truth: bool) -> Result<GoKey, E> {
        Ok(GoKey(truth.to_string()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<GoKey, E> {
        Ok(GoKey(number.to_string()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<GoKey, E> {
        Ok(GoKey(number.to_string()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<GoKey, E> {
        Ok(GoKey(number.to_string()))
    }

    fn visit_str<E>(self, text: &str) -> Result<GoKey, E> {
        Ok(GoKey(quote(text)))
    }

    fn visit_unit<E>(self) -> Result<GoKey, E> {
        Ok(GoKey("interface {}(nil)".to_owned()))
    }
}

/// A scalar key as a JSON string.
fn key_text(key: Value) -> Option<Text> {
    match key {
        Value::String(text) => Some(text),
        Value::Null => Some("null".into()),
        Value::Bool(_) | Value::Number(_) => Some(key.to_string().into()),
        Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use headwater_json::json;

    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &Value) {
        assert_eq!(&parse(text.as_bytes()).unwrap().value, expected, "{text}");
    }

    #[test]
    fn words_and_numbers_are_those_of_yaml_1_1() {
        check("a: y", &json!({"a": true}));
        check("a: [on, Off, yes, NO, 'yes']", &json!({"a": [true, false, true, false, "yes"]}));
        check("a: ~\nb:\nc: null", &json!({"a": null, "b": null, "c": null}));
        check("a: 0644\nb: 0x1f\nc: 1.5\nd: -3", &json!({"a": 420, "b": 31, "c": 1.5, "d": -3}));
        check("a: 12e03", &json!({"a": 12000.0}));
        check("1: x\ntrue: y2", &json!({"1": "x", "true": "y2"}));
        check("a: |\n  two\n  lines\n", &json!({"a": "two\nlines\n"}));
        check("a: &x {b: 1}\nc: *x", &json!({"a": {"b": 1}, "c": {"b": 1}}));
        check("{\"a\": [1, 2,]}", &json!({"a": [1, 2]}));
        check("---\na: 1\n", &json!({"a": 1}));
    }

    #[test]
    fn repeated_keys_are_found_and_the_last_wins() {
        let parsed = parse(b"a: {b: 1, b: 2}\n").unwrap();
        assert_eq!(parsed.duplicates, ["a.b"]);
        assert_eq!(parsed.value, json!({"a": {"b": 2}}));
    }

    #[test]
    fn the_line_of_a_repeated_key_is_that_of_its_value() {
        let text = "a: 1\nb:\n  - c: 1\n    \"c\":\n      d: 2\n    e: {f: 1, f: 2}\na: 2\n";
        assert_eq!(
            repeated_keys(text.as_bytes()),
            [
                "line 5: key \"c\" already set in map",
                "line 6: key \"f\" already set in map",
                "line 7: key \"a\" already set in map",
            ]
        );
        assert_eq!(
            repeated_keys(b"{\"a\": 1,\n \"a\": 2}"),
            ["line 2: key \"a\" already set in map"]
        );
        assert_eq!(repeated_keys(b"a: 1\nb: {a: 1}\n"), [] as [&str; 0]);
    }

    #[test]
    fn alias_bombs_loops_and_deep_documents_are_rejected() {
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..10 {
            let above = format!("*a{}, ", level - 1).repeat(10);
            bomb.push_str(&format!("a{level}: &a{level} [{above}]\n"));
        }
        for bad in [
            bomb.as_str(),
            "a: &a [*a]",
            "a: b: c",
            "a: 1\n---\nb: 2\n",
            "a: .nan",
            "? [a, b]\n: 1",
            "[1, 2",
            &"[".repeat(100_000),
            &"- ".repeat(100_000),
            &"{a: ".repeat(600),
        ] {
            let found = parse(bad.as_bytes());
            assert!(found.is_err(), "{:?} {found:?}", bad.chars().take(20).collect::<String>());
        }
    }

    #[test]
    fn aliases_of_a_long_text_are_limited_in_bytes() {
        let aliases = |count: usize| {
            format!("a: &a {}\nb: [{}]\n", "x".repeat(1 << 20), "*a, ".repeat(count))
        };
        let repeated = parse(aliases(2).as_bytes()).unwrap().value;
        assert_eq!(repeated["b"][1], repeated["a"]);
        let refused = parse(aliases(50_000).as_bytes()).unwrap_err().to_string();
        assert!(refused.contains("excessive aliasing"), "{refused}");
    }

    #[test]
    fn nesting_is_safe_at_the_limit() {
        let levels = DEPTH_MAX as usize - 1;
        for (open, close) in [("[", "]"), ("{a: ", "}"), ("- ", ""), ("? ", "")] {
            let text = format!("{} x{}", open.repeat(levels), close.repeat(levels));
            let thread = std::thread::Builder::new().stack_size(2 * 1024 * 1024);
            let thread = thread.spawn(move || drop(parse(text.as_bytes())));
            thread.unwrap().join().unwrap();
        }
        let text = format!("a: {}{}", "[".repeat(levels - 1), "]".repeat(levels - 1));
        assert_eq!(parse(text.as_bytes()).map(drop), Ok(()));
    }
}
