//! The subset of JSONPath that printer columns use: `.spec.size`, `.a['b.c']`, `.list[0].x`,
//! `.list[*].x`, `.conditions[?(@.type=="Ready")].status`.

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
            let (step, after) = parse_step(rest)?;
            steps.push(step);
            rest = after;
        }
        (!steps.is_empty() && steps.len() <= STEPS_MAX).then_some(JsonPath { steps })
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
        Step::All => match value {
            Value::Array(elements) => elements.iter().find_map(|value| follow(rest, value)),
            Value::Object(members) => members.values().find_map(|value| follow(rest, value)),
            _ => None,
        },
        Step::Where { path, equal, value: wanted } => value
            .as_array()?
            .iter()
            .filter(|element| path.matches(element, wanted) == *equal)
            .find_map(|element| follow(rest, element)),
    }
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

fn parse_step(text: &str) -> Option<(Step, &str)> {
    if let Some(rest) = text.strip_prefix('[') {
        return parse_bracket(rest);
    }
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

fn parse_bracket(text: &str) -> Option<(Step, &str)> {
    if let Some(filter) = text.strip_prefix("?(@") {
        let (filter, rest) = filter.split_once(")]")?;
        return Some((parse_filter(filter)?, rest));
    }
    for quote in ['\'', '"'] {
        if let Some(rest) = text.strip_prefix(quote) {
            let (name, rest) = rest.split_once(quote)?;
            return Some((Step::Field(name.to_owned()), rest.strip_prefix(']')?));
        }
    }
    let (inside, rest) = text.split_once(']')?;
    match inside {
        "*" => Some((Step::All, rest)),
        number => Some((Step::Index(number.parse().ok()?), rest)),
    }
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
            (".spec['a.b']", Some(json!("dotted"))),
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
        for bad in ["", ".", "..", ".a[", ".a[x]", ".a[?(@.b)]", ".a b", "{.a}", ".a['b"] {
            assert_eq!(JsonPath::parse(bad), None, "{bad}");
        }
        assert_eq!(JsonPath::parse(&".a".repeat(65)), None);
    }
}
