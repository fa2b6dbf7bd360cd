//! Conditions in the tables of defaults and validation rules.

use headwater_json::{Map, Value};

/// A path below an object.
pub(crate) type Steps = Vec<&'static str>;

/// When a line of a table applies.
pub(crate) enum When {
    Always,
    /// `path`: the field is present.
    Present(Steps),
    /// `!path`: the field is absent.
    Absent(Steps),
    /// `path=a|b`: it has one of these values.
    OneOf(Steps, Vec<&'static str>),
    /// `path!=a|b`: it has none of them.
    NoneOf(Steps, Vec<&'static str>),
}

impl When {
    /// Splits `line if condition`. Conditions are one word, so texts may have an "if" too.
    pub(crate) fn split(line: &'static str) -> (&'static str, When) {
        match line.rsplit_once(" if ") {
            Some((line, when)) if !when.contains(' ') => (line, When::read(when)),
            _ => (line, When::Always),
        }
    }

    fn read(text: &'static str) -> When {
        let words = |list: &'static str| list.split('|').collect();
        if let Some((path, list)) = text.split_once("!=") {
            When::NoneOf(steps(path), words(list))
        } else if let Some((path, list)) = text.split_once('=') {
            When::OneOf(steps(path), words(list))
        } else if let Some(path) = text.strip_prefix('!') {
            When::Absent(steps(path))
        } else {
            When::Present(steps(text))
        }
    }

    pub(crate) fn holds(&self, object: &Map) -> bool {
        let text = |path| get(object, path).and_then(Value::as_str).unwrap_or_default();
        match self {
            When::Always => true,
            When::Present(path) => !is_absent(get(object, path)),
            When::Absent(path) => is_absent(get(object, path)),
            When::OneOf(path, words) => words.contains(&text(path)),
            When::NoneOf(path, words) => !words.contains(&text(path)),
        }
    }
}

pub(crate) fn steps(text: &'static str) -> Steps {
    text.split('.').collect()
}

pub(crate) fn get<'a>(object: &'a Map, path: &[&str]) -> Option<&'a Value> {
    let (first, rest) = path.split_first()?;
    rest.iter().try_fold(object.get(first)?, |value, name| value.get(name))
}

pub(crate) fn is_absent(value: Option<&Value>) -> bool {
    value.is_none_or(Value::is_null)
}
