//! The subset of JSONPath that printer columns use: `.spec.size`, `.a['b\.c']`, `.list[0].x`,
//! `.list[*].x`, `.list[-1:]`, `.a['x','y']`, `..name`, `.conditions[?(@.type=="Ready")].status`.
//!
//! As in kubectl, a dot in a quoted name separates two fields unless a backslash precedes it.

use headwater_json::Value;
use jiff::Timestamp;

use super::age;

/// The maximum number of steps of a path, which limits the cost of evaluating it.
const STEPS_MAX: usize = 64;

/// A path into an object. The empty path finds nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JsonPath {
    steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Field(String),
    Index(i64),
    All,
    /// Elements from the first up to the second position; negative ones count from the end.
    Slice(Option<i64>, Option<i64>),
    /// What any of these paths finds, in their order.
    Union(Vec<JsonPath>),
    /// The value itself and everything inside it.
    Inside,
    /// Elements in which the value at a path equals a text, or does not.
    Where {
        path: JsonPath,
        equal: bool,
        value: String,
    },
}

impl JsonPath {
    /// Parses a path; none if it is invalid or uses other parts of JSONPath.
    pub fn parse(text: &str) -> Option<JsonPath> {
        let mut steps = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix("..") {
                steps.push(Step::Inside);
                rest = after;
            }
            let (more, after) = parse_steps(rest)?;
            steps.extend(more);
            rest = after;
        }
        // Each of them multiplies the cost by the size of the object.
        let inside = steps.iter().filter(|step| **step == Step::Inside).count();
        let is_bounded = steps.len() <= STEPS_MAX && inside <= 1;
        (!steps.is_empty() && is_bounded).then_some(JsonPath { steps })
    }

    /// The first value at the path.
    pub fn find<'a>(&self, object: &'a Value) -> Option<&'a Value> {
        if self.steps.is_empty() { None } else { follow(&self.steps, object) }
    }

    pub(super) fn cell(&self, kind: &str, object: &Value, now: Timestamp) -> Value {
        let Some(value) = self.find(object).filter(|value| !value.is_null()) else {
            return Value::Null;
        };
        match (kind, value) {
            ("integer", Value::Number(number)) => {
                number.as_i64().or_else(|| number.as_f64().map(|n| n as i64)).into()
            }
            ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) => value.clone(),
            ("string", Value::String(text)) => text.as_str().into(),
            ("string", other) => other.to_string().into(),
            ("date", Value::String(time)) => match age::since(time, now).as_str() {
                "<unknown>" => "<invalid>".into(),
                age => age.into(),
            },
            _ => Value::Null,
        }
    }
}

fn follow<'a>(steps: &[Step], value: &'a Value) -> Option<&'a Value> {
    let Some((step, rest)) = steps.split_first() else { return Some(value) };
    match step {
        Step::Field(name) => follow(rest, value.get(name)?),
        Step::Index(index) => {
            let elements = value.as_array()?;
            let at = usize::try_from(*index).ok().or_else(|| {
                elements.len().checked_sub(usize::try_from(index.checked_neg()?).ok()?)
            })?;
            follow(rest, elements.get(at)?)
        }
        Step::All => inner(value).find_map(|value| follow(rest, value)),
        Step::Slice(from, to) => {
            let elements = value.as_array()?;
            let length = elements.len() as i64;
            let place = |at: i64| (if at < 0 { at + length } else { at }).clamp(0, length);
            let (from, to) = (place(from.unwrap_or(0)), place(to.unwrap_or(length)));
            let slice = elements.get(from as usize..to as usize)?;
            slice.iter().find_map(|value| follow(rest, value))
        }
        Step::Union(paths) => {
            let mut found = paths.iter().filter_map(|path| follow(&path.steps, value));
            found.find_map(|value| follow(rest, value))
        }
        Step::Inside => inside(rest, value),
        Step::Where { path, equal, value: wanted } => value
            .as_array()?
            .iter()
            .filter(|element| path.matches(element, wanted) == *equal)
            .find_map(|element| follow(rest, element)),
    }
}

/// The members or elements of a value.
fn inner(value: &Value) -> impl Iterator<Item = &Value> {
    let elements = value.as_array().into_iter().flatten();
    elements.chain(value.as_object().into_iter().flat_map(headwater_json::Map::values))
}

/// The first value that the steps find in a value, or in one inside it.
fn inside<'a>(steps: &[Step], value: &'a Value) -> Option<&'a Value> {
    follow(steps, value).or_else(|| inner(value).find_map(|value| inside(steps, value)))
}

impl JsonPath {
    fn matches(&self, element: &Value, wanted: &str) -> bool {
        match follow(&self.steps, element) {
            Some(Value::String(text)) => text == wanted,
            Some(other) => {
                let text = other.to_string();
                text == wanted
            }
            None => false,
        }
    }
}

fn parse_steps(text: &str) -> Option<(Vec<Step>, &str)> {
    match text.strip_prefix('[') {
        Some(rest) => parse_bracket(rest),
        None => parse_field(text).map(|(step, rest)| (vec![step], rest)),
    }
}

fn parse_field(text: &str) -> Option<(Step, &str)> {
    let rest = text.strip_prefix('.').unwrap_or(text);
    let mut name = String::new();
    let mut chars = rest.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => name.push(chars.next()?.1),
            '.' | '[' => return named(name, &rest[at..]),
            ' ' | '{' | '}' | '(' | ')' | '\'' | '"' | '@' => return None,
            c => name.push(c),
        }
    }
    named(name, "")
}

fn named(name: String, rest: &str) -> Option<(Step, &str)> {
    match name.as_str() {
        "" => None,
        "*" => Some((Step::All, rest)),
        _ => Some((Step::Field(name), rest)),
    }
}

fn parse_bracket(text: &str) -> Option<(Vec<Step>, &str)> {
    if let Some(filter) = text.strip_prefix("?(@") {
        let (filter, rest) = filter.split_once(")]")?;
        return Some((vec![parse_filter(filter)?], rest));
    }
    if text.starts_with(['\'', '"']) {
        return parse_names(text);
    }
    let (inside, rest) = text.split_once(']')?;
    let number = |text: &str| -> Option<Option<i64>> {
        if text.is_empty() { Some(None) } else { text.parse().ok().map(Some) }
    };
    let steps = match (inside, inside.split_once(':')) {
        ("*", _) => vec![Step::All],
        (_, Some((from, to))) => vec![Step::Slice(number(from.trim())?, number(to.trim())?)],
        (inside, None) if inside.contains(',') => {
            let indexes = inside.split(',').map(|index| {
                let index = index.trim().parse().ok()?;
                Some(JsonPath { steps: vec![Step::Index(index)] })
            });
            vec![Step::Union(indexes.collect::<Option<_>>()?)]
        }
        (index, None) => vec![Step::Index(index.parse().ok()?)],
    };
    Some((steps, rest))
}

/// Quoted names up to the closing bracket; each is a path of fields.
fn parse_names(text: &str) -> Option<(Vec<Step>, &str)> {
    let (mut names, mut rest) = (Vec::new(), text);
    loop {
        let quote = rest.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
        let (name, after) = rest[1..].split_once(quote)?;
        names.push(parse_name(name)?);
        match after.trim_start().strip_prefix(',') {
            Some(after) => rest = after.trim_start(),
            None => {
                let rest = after.trim_start().strip_prefix(']')?;
                return match (names.pop(), names.is_empty()) {
                    (Some(only), true) => Some((only.steps, rest)),
                    (last, _) => {
                        names.extend(last);
                        Some((vec![Step::Union(names)], rest))
                    }
                };
            }
        }
        if names.len() > STEPS_MAX {
            return None;
        }
    }
}

/// `a.b` are two fields, `a\.b` is one.
fn parse_name(name: &str) -> Option<JsonPath> {
    let (mut steps, mut field, mut chars) = (Vec::new(), String::new(), name.chars());
    while let Some(c) = chars.next() {
        match c {
            '\\' => field.push(chars.next()?),
            '.' => steps.push(Step::Field(std::mem::take(&mut field))),
            c => field.push(c),
        }
    }
    steps.push(Step::Field(field));
    let is_valid = steps.iter().all(|step| *step != Step::Field(String::new()));
    is_valid.then_some(JsonPath { steps })
}

/// `.type=="Ready"`, after the `@`.
fn parse_filter(text: &str) -> Option<Step> {
    let (path, equal, value) = match (text.split_once("=="), text.split_once("!=")) {
        (Some((path, value)), _) => (path, true, value),
        (None, Some((path, value))) => (path, false, value),
        (None, None) => return None,
    };
    // A nested filter would let a short path do much work.
    if path.contains('[') {
        return None;
    }
    let value = value.trim();
    let unquoted =
        ['\'', '"'].iter().find_map(|quote| value.strip_prefix(*quote)?.strip_suffix(*quote));
    let value = unquoted.unwrap_or(value).to_owned();
    Some(Step::Where { path: JsonPath::parse(path.trim())?, equal, value })
}

#[cfg(test)]
mod tests {
    use headwater_json::json;

    use super::*;

    #[test]
    fn paths_find_their_values() {
        let object = json!({
            "spec": {"size": 3, "a.b": "dotted"},
            "list": [{"x": 1}, {"x": 2}],
            "status": {"conditions": [
                {"type": "Synced", "status": "False"},
                {"type": "Ready", "status": "True"},
            ]},
        });
        for (path, expected) in [
            (".spec.size", Some(json!(3))),
            ("spec.size", Some(json!(3))),
            (r".spec.a\.b", Some(json!("dotted"))),
            (r".spec['a\.b']", Some(json!("dotted"))),
            (".spec['a.b']", None),
            (".status['conditions'][1]['type']", Some(json!("Ready"))),
            ("['spec.size']", Some(json!(3))),
            (".spec['none','size']", Some(json!(3))),
            (".list[-1:].x", Some(json!(2))),
            (".list[0:2].x", Some(json!(1))),
            (".list[:1].x", Some(json!(1))),
            (".list[1:].x", Some(json!(2))),
            (".list[5:9].x", None),
            (".list[1,0].x", Some(json!(2))),
            ("..size", Some(json!(3))),
            (".status..status", Some(json!("False"))),
            (".list[1].x", Some(json!(2))),
            (".list[-1].x", Some(json!(2))),
            (".list[9].x", None),
            (".list[*].x", Some(json!(1))),
            (r#".status.conditions[?(@.type=="Ready")].status"#, Some(json!("True"))),
            (".status.conditions[?(@.type=='Ready')].status", Some(json!("True"))),
            (r#".status.conditions[?(@.type!="Synced")].status"#, Some(json!("True"))),
            (r#".status.conditions[?(@.type=="None")].status"#, None),
            (".none.size", None),
        ] {
            let found = JsonPath::parse(path).unwrap();
            assert_eq!(found.find(&object).cloned(), expected, "{path}");
        }
    }

    #[test]
    fn an_invalid_path_is_rejected() {
        for bad in [
            "",
            ".",
            "..",
            ".a[",
            ".a[x]",
            ".a[?(@.b)]",
            ".a b",
            "{.a}",
            ".a['b",
            ".a['b',]",
            ".a['.']",
            ".a[1,x]",
            ".a[x:]",
            "..a..b",
            "....",
        ] {
            assert_eq!(JsonPath::parse(bad), None, "{bad}");
        }
        assert_eq!(JsonPath::parse(&".a".repeat(65)), None);
    }
}
