//! The YAML printer, with the format of Kubernetes.
//!
//! River: value → **yaml** → HTTP body, for clients that accept `application/yaml`.
//! Promise: the text parses as the same value, and long lines are folded where Kubernetes folds them.

use headwater_json::Value;

/// The column from which a scalar is folded at the next space.
const WIDTH: usize = 80;

/// Prints a document: keys sorted, two spaces per level, lists not indented below their key.
pub fn to_string(value: &Value) -> String {
    let mut text = String::new();
    match value {
        Value::Object(members) if !members.is_empty() => mapping(&mut text, value, 0, false),
        Value::Array(elements) if !elements.is_empty() => sequence(&mut text, elements, 0, false),
        scalar => {
            inline(&mut text, scalar, 0);
            text.push('\n');
        }
    }
    text
}

fn indent(text: &mut String, level: usize) {
    (0..level).for_each(|_| text.push_str("  "));
}

/// `started` is true if the first key continues a line (after `- `).
fn mapping(text: &mut String, value: &Value, level: usize, mut started: bool) {
    for (key, value) in value.as_object().into_iter().flatten() {
        if !std::mem::take(&mut started) {
            indent(text, level);
        }
        string(text, key, level, false);
        text.push(':');
        match value {
            Value::Object(members) if !members.is_empty() => {
                text.push('\n');
                mapping(text, value, level + 1, false);
            }
            Value::Array(elements) if !elements.is_empty() => {
                text.push('\n');
                sequence(text, elements, level, false);
            }
            scalar => {
                text.push(' ');
                inline(text, scalar, level + 1);
                text.push('\n');
            }
        }
    }
}

fn sequence(text: &mut String, elements: &[Value], level: usize, mut started: bool) {
    for element in elements {
        if !std::mem::take(&mut started) {
            indent(text, level);
        }
        text.push_str("- ");
        match element {
            Value::Object(members) if !members.is_empty() => {
                mapping(text, element, level + 1, true)
            }
            Value::Array(inner) if !inner.is_empty() => sequence(text, inner, level + 1, true),
            scalar => {
                inline(text, scalar, level + 1);
                text.push('\n');
            }
        }
    }
}

fn inline(text: &mut String, value: &Value, level: usize) {
    match value {
        Value::String(content) => string(text, content, level, true),
        Value::Object(_) => text.push_str("{}"),
        Value::Array(_) => text.push_str("[]"),
        scalar => text.push_str(&scalar.to_string()),
    }
}

fn string(text: &mut String, content: &str, level: usize, folds: bool) {
    if content.contains('\n') && folds && is_printable(content) && !content.starts_with([' ', '\n'])
    {
        return literal(text, content, level);
    }
    match style(content) {
        Style::Plain => folded(text, content, level, folds),
        Style::Single => {
            text.push('\'');
            folded(text, &content.replace('\'', "''"), level, folds);
            text.push('\'');
        }
        // JSON strings are YAML strings.
        Style::Double => text.push_str(&Value::from(content).to_string()),
    }
}

/// A literal block of several lines.
fn literal(text: &mut String, content: &str, level: usize) {
    let body = content.trim_end_matches('\n');
    text.push_str(match content.len() - body.len() {
        0 => "|-",
        1 => "|",
        _ => "|+",
    });
    for line in content.strip_suffix('\n').unwrap_or(content).split('\n') {
        text.push('\n');
        if !line.is_empty() {
            indent(text, level);
            text.push_str(line);
        }
    }
}

/// Folds long lines at single spaces.
fn folded(text: &mut String, content: &str, level: usize, folds: bool) {
    let start = text.rfind('\n').map_or(0, |at| at + 1);
    let mut column = text[start..].chars().count();
    let letters: Vec<char> = content.chars().collect();
    for (at, letter) in letters.iter().enumerate() {
        let is_single_space = *letter == ' '
            && at > 0
            && letters[at - 1] != ' '
            && letters.get(at + 1).is_some_and(|next| *next != ' ');
        if folds && is_single_space && column > WIDTH {
            text.push('\n');
            indent(text, level);
            column = level * 2;
        } else {
            text.push(*letter);
            column += 1;
        }
    }
}

enum Style {
    Plain,
    Single,
    Double,
}

fn style(content: &str) -> Style {
    if !is_printable(content) || content.contains('\n') || is_other_type(content) {
        return Style::Double;
    }
    let first = content.chars().next().unwrap_or(' ');
    let second_is_space = content.chars().nth(1).is_none_or(|second| second == ' ');
    let is_indicator = "#,[]{}&*!|>'\"%@`".contains(first)
        || ("-?:".contains(first) && second_is_space)
        || content.starts_with("---")
        || content.starts_with("...");
    let is_unclear = content.contains(": ")
        || content.contains(" #")
        || content.ends_with(':')
        || content.starts_with(' ')
        || content.ends_with(' ');
    if is_indicator || is_unclear { Style::Single } else { Style::Plain }
}

fn is_printable(content: &str) -> bool {
    content.chars().all(|letter| letter == '\n' || !letter.is_control() && letter != '\u{feff}')
}

/// Whether the plain scalar would parse as another type than a string.
fn is_other_type(content: &str) -> bool {
    const WORDS: &[&str] = &[
        "", "~", "null", "true", "false", "y", "n", "yes", "no", "on", "off", ".nan", ".inf",
        "-.inf", "+.inf", "<<", "=",
    ];
    let lower = content.to_ascii_lowercase();
    if WORDS.contains(&lower.as_str()) {
        return true;
    }
    let first = content.as_bytes().first().copied().unwrap_or_default();
    if !(first.is_ascii_digit() || matches!(first, b'-' | b'+' | b'.')) {
        return false;
    }
    let plain = lower.replace('_', "");
    let digits = plain.trim_start_matches(['-', '+']);
    let is_based = |prefix: &str, base: u32| {
        digits.strip_prefix(prefix).is_some_and(|rest| u64::from_str_radix(rest, base).is_ok())
    };
    plain.parse::<f64>().is_ok()
        || is_based("0x", 16)
        || is_based("0o", 8)
        || is_based("0b", 2)
        || content.parse::<jiff::Timestamp>().is_ok()
        || content.parse::<jiff::civil::Date>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_json::json;
    use proptest::prelude::*;

    #[test]
    fn a_status_prints_as_in_kubernetes() {
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "only the following media types are accepted: application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch",
            "reason": "NotAcceptable", "code": 406,
        });
        let expected = "apiVersion: v1\ncode: 406\nkind: Status\nmessage: 'only the following media types are accepted: application/json;stream=watch,\n  application/vnd.kubernetes.protobuf;stream=watch'\nmetadata: {}\nreason: NotAcceptable\nstatus: Failure\n";
        assert_eq!(to_string(&status), expected);
    }

    #[test]
    fn objects_lists_and_special_strings_print_as_usual() {
        let value = json!({
            "metadata": {
                "creationTimestamp": "2026-11-15T10:00:00Z", "finalizers": ["a/b", "true", "1"],
                "annotations": {"note": "two\nlines\n", "colon": "a: b", "empty": ""},
            },
            "spec": {"ports": [{"port": 80, "name": "http"}], "none": [], "nested": [[1, 2]]},
        });
        let expected = "\
metadata:
  annotations:
    colon: 'a: b'
    empty: \"\"
    note: |
      two
      lines
  creationTimestamp: \"2026-11-15T10:00:00Z\"
  finalizers:
  - a/b
  - \"true\"
  - \"1\"
spec:
  nested:
  - - 1
    - 2
  none: []
  ports:
  - name: http
    port: 80
";
        assert_eq!(to_string(&value), expected);
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back_the_same(
            members in prop::collection::btree_map("[a-z0-9:# ]{1,9}", "[ -~\n\té]{0,120}", 0..6)
        ) {
            let value = json!(members);
            let text = to_string(&value);
            let read = crate::yaml::parse(text.as_bytes()).map(|parsed| parsed.value);
            prop_assert_eq!(read.ok(), Some(value), "{}", text);
        }
    }
}
