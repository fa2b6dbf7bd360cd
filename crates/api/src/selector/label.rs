//! Label selectors: `app=web,tier in (a,b),!old` (S3.30).
//!
//! Promise: a parsed selector prints to a text that parses to the same selector, and matching
//! against a set of n values takes O(log n).

use std::fmt;
use std::sync::Arc;

use super::{check_length, check_terms};
use crate::marks::Marks;
use crate::name;
use crate::object::Object;
use crate::query::{bad_request, quote};
use crate::status::Status;

/// The maximum number of errors in a message: messages repeat the invalid values, and a selector
/// may contain many.
const ERRORS_SHOWN_MAX: usize = 32;

/// A conjunction of requirements. The empty one selects everything.
///
/// ```
/// use headwater_api::selector::LabelSelector;
///
/// let selector = LabelSelector::parse("tier in (web, db), !old").unwrap();
/// assert!(selector.matches(|key| (key == "tier").then_some("web")));
/// assert_eq!(selector.to_string(), "!old,tier in (db,web)");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LabelSelector {
    /// Sorted and without duplicates: the canonical form.
    requirements: Arc<[Requirement]>,
    /// The marks that every matching object has.
    marks: Marks,
}

/// One condition on one label.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Requirement {
    pub(super) key: Box<str>,
    pub(super) condition: Condition,
}

/// The condition on a label's value. `=` is a set of one, `!=` its negation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Condition {
    Exists,
    Absent,
    In(Values),
    NotIn(Values),
    Greater(i64),
    Less(i64),
}

/// Sorted, without duplicates, never empty.
pub(super) type Values = Arc<[Box<str>]>;

impl LabelSelector {
    /// Selects everything.
    pub fn everything() -> LabelSelector {
        LabelSelector::default()
    }

    /// Parses a selector; an error is a complete response.
    pub fn parse(text: &str) -> Result<LabelSelector, Status> {
        check_length(text)?;
        let requirements = Parser::new(text).parse().map_err(bad_request)?;
        check_terms(requirements.len())?;
        Ok(LabelSelector::from_requirements(requirements))
    }

    pub(super) fn from_requirements(mut requirements: Vec<Requirement>) -> LabelSelector {
        requirements.sort_unstable();
        requirements.dedup();
        let mut marks = Marks::default();
        for requirement in &requirements {
            if let Condition::In(values) = &requirement.condition
                && let [value] = &**values
            {
                marks.add(Marks::label(&requirement.key, value));
            }
        }
        LabelSelector { requirements: requirements.into(), marks }
    }

    /// Whether it selects everything.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Whether it matches labels; `label` looks up a key.
    pub fn matches<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.requirements.iter().all(|requirement| requirement.allows(label(&requirement.key)))
    }

    /// The marks that every matching object has.
    pub fn marks(&self) -> Marks {
        self.marks
    }

    /// Whether it matches an object.
    pub fn matches_object(&self, object: &Object) -> bool {
        object.may_have(self.marks) && self.matches(|key| object.label(key))
    }

    /// The keys that must have one of the given values, for indexes over labels. Values are sorted.
    pub fn equalities(&self) -> impl Iterator<Item = (&str, &[Box<str>])> {
        self.requirements.iter().filter_map(|requirement| match &requirement.condition {
            Condition::In(values) => Some((&*requirement.key, &**values)),
            _ => None,
        })
    }

    /// The requirements, sorted.
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.requirements.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            requirement.fmt(f)?;
        }
        Ok(())
    }
}

impl Requirement {
    /// The key of the label.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The operator of a `LabelSelectorRequirement` and its values; `None` for a comparison of numbers,
    /// which has none.
    pub fn operator(&self) -> Option<(&'static str, &[Box<str>])> {
        match &self.condition {
            Condition::Exists => Some(("Exists", &[])),
            Condition::Absent => Some(("DoesNotExist", &[])),
            Condition::In(values) => Some(("In", values)),
            Condition::NotIn(values) => Some(("NotIn", values)),
            Condition::Greater(_) | Condition::Less(_) => None,
        }
    }

    fn allows(&self, value: Option<&str>) -> bool {
        match (&self.condition, value) {
            (Condition::Exists, value) => value.is_some(),
            (Condition::Absent, value) => value.is_none(),
            (Condition::In(values), Some(value)) => contains(values, value),
            (Condition::NotIn(values), Some(value)) => !contains(values, value),
            (Condition::NotIn(_), None) => true,
            (Condition::Greater(than), Some(value)) => number(value).is_some_and(|n| n > *than),
            (Condition::Less(than), Some(value)) => number(value).is_some_and(|n| n < *than),
            (Condition::In(_) | Condition::Greater(_) | Condition::Less(_), None) => false,
        }
    }
}

fn contains(values: &[Box<str>], value: &str) -> bool {
    match values {
        [one] => **one == *value,
        many => many.binary_search_by(|candidate| (**candidate).cmp(value)).is_ok(),
    }
}

fn number(value: &str) -> Option<i64> {
    value.parse().ok()
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.key;
        match &self.condition {
            Condition::Exists => f.write_str(key),
            Condition::Absent => write!(f, "!{key}"),
            Condition::In(values) if values.len() == 1 => write!(f, "{key}={}", values[0]),
            Condition::NotIn(values) if values.len() == 1 => write!(f, "{key}!={}", values[0]),
            Condition::In(values) => write!(f, "{key} in ({})", values.join(",")),
            Condition::NotIn(values) => write!(f, "{key} notin ({})", values.join(",")),
            Condition::Greater(than) => write!(f, "{key}>{than}"),
            Condition::Less(than) => write!(f, "{key}<{than}"),
        }
    }
}

/// A token of a selector's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    Symbol(&'static str),
    End,
}

impl<'a> Token<'a> {
    fn text(self) -> &'a str {
        match self {
            Token::Word(word) => word,
            Token::Symbol(symbol) => symbol,
            Token::End => "",
        }
    }
}

/// Longest first, so that `==` is not read as two.
const SYMBOLS: [&str; 8] = ["==", "!=", "=", "!", ">", "<", "(", ")"];
const COMMA: &str = ",";

struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Parser<'a> {
        Parser { rest: text }
    }

    fn next(&mut self) -> Token<'a> {
        let (token, rest) = self.split();
        self.rest = rest;
        token
    }

    fn peek(&self) -> Token<'a> {
        self.split().0
    }

    fn split(&self) -> (Token<'a>, &'a str) {
        let text = self.rest.trim_start_matches([' ', '\t', '\r', '\n']);
        if text.is_empty() {
            return (Token::End, text);
        }
        for symbol in SYMBOLS.into_iter().chain([COMMA]) {
            if let Some(rest) = text.strip_prefix(symbol) {
                return (Token::Symbol(symbol), rest);
            }
        }
        let end = text.find(|c| " \t\r\n=!(),><".contains(c)).unwrap_or(text.len());
        let (word, rest) = text.split_at(end);
        (Token::Word(word), rest)
    }

    fn parse(mut self) -> Result<Vec<Requirement>, String> {
        let mut requirements = Vec::new();
        loop {
            match self.peek() {
                Token::End => return Ok(requirements),
                Token::Word(_) | Token::Symbol("!") => {}
                other => {
                    let found = other.text();
                    return Err(format!(
                        "found '{found}', expected: !, identifier, or 'end of string'"
                    ));
                }
            }
            let requirement =
                self.requirement().map_err(|why| format!("unable to parse requirement: {why}"))?;
            requirements.push(requirement);
            match self.next() {
                Token::End => return Ok(requirements),
                Token::Symbol(COMMA) => self.expect_another()?,
                other => {
                    let found = other.text();
                    return Err(format!("found '{found}', expected: ',' or 'end of string'"));
                }
            }
        }
    }

    fn expect_another(&self) -> Result<(), String> {
        match self.peek() {
            Token::Word(_) | Token::Symbol("!") => Ok(()),
            other => Err(format!("found '{}', expected: identifier after ','", other.text())),
        }
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let (key, negated) = self.key()?;
        let condition = match self.peek() {
            _ if negated => Condition::Absent,
            Token::End | Token::Symbol(COMMA) => Condition::Exists,
            _ => self.condition(key)?,
        };
        Ok(Requirement { key: key.into(), condition })
    }

    fn key(&mut self) -> Result<(&'a str, bool), String> {
        let (token, negated) = match self.next() {
            Token::Symbol("!") => (self.next(), true),
            token => (token, false),
        };
        let Token::Word(key) = token else {
            return Err(format!("found '{}', expected: identifier", token.text()));
        };
        let problems = name::qualified(key);
        if !problems.is_empty() {
            return Err(format!("<nil>: Invalid value: {}: {}", quote(key), problems.join("; ")));
        }
        Ok((key, negated))
    }

    fn condition(&mut self, key: &str) -> Result<Condition, String> {
        Ok(match self.next() {
            Token::Word("in") => Condition::In(checked(key, self.set()?)?),
            Token::Word("notin") => Condition::NotIn(checked(key, self.set()?)?),
            Token::Symbol("=" | "==") => Condition::In(checked(key, vec![self.value()?])?),
            Token::Symbol("!=") => Condition::NotIn(checked(key, vec![self.value()?])?),
            Token::Symbol(">") => Condition::Greater(bound(key, self.value()?)?),
            Token::Symbol("<") => Condition::Less(bound(key, self.value()?)?),
            other => {
                let found = other.text();
                return Err(format!("found '{found}', expected: in, notin, =, ==, !=, gt, lt"));
            }
        })
    }

    /// `(a,b)`. Elements may be missing: `(a,)` also contains the empty string, as does `()`.
    fn set(&mut self) -> Result<Vec<&'a str>, String> {
        let open = self.next();
        if open != Token::Symbol("(") {
            return Err(format!("found '{}' expected: '('", open.text()));
        }
        match self.peek() {
            Token::Word(_) | Token::Symbol(COMMA) => {}
            Token::Symbol(")") => {
                self.next();
                return Ok(vec![""]);
            }
            other => {
                return Err(format!("found '{}', expected: ',', ')' or identifier", other.text()));
            }
        }
        let mut values = Vec::new();
        loop {
            match self.next() {
                Token::Word(value) => {
                    values.push(value);
                    match self.peek() {
                        Token::Symbol(COMMA | ")") => {}
                        other => {
                            return Err(format!("found '{}', expected: ',' or ')'", other.text()));
                        }
                    }
                }
                Token::Symbol(COMMA) => {
                    if values.is_empty() || matches!(self.peek(), Token::Symbol(COMMA | ")")) {
                        values.push("");
                    }
                }
                Token::Symbol(")") => return Ok(values),
                other => {
                    return Err(format!("found '{}', expected: ',', or identifier", other.text()));
                }
            }
        }
    }

    /// The value after `=`, which may be empty.
    fn value(&mut self) -> Result<&'a str, String> {
        if matches!(self.peek(), Token::End | Token::Symbol(COMMA)) {
            return Ok("");
        }
        match self.next() {
            Token::Word(value) => Ok(value),
            other => Err(format!("found '{}', expected: identifier", other.text())),
        }
    }
}

/// The sorted values, if all are valid label values.
pub(super) fn checked(key: &str, mut values: Vec<&str>) -> Result<Values, String> {
    values.sort_unstable();
    values.dedup();
    aggregate(&value_errors(key, &values))?;
    Ok(values.into_iter().map(Box::from).collect())
}

fn bound(key: &str, value: &str) -> Result<i64, String> {
    let number = value.parse::<i64>();
    let mut errors = Vec::new();
    if number.is_err() {
        let value = quote(value);
        errors.push(format!(
            "values[0]: Invalid value: {value}: for 'Gt', 'Lt' operators, the value must be an integer"
        ));
    }
    errors.extend(value_errors(key, &[value]));
    aggregate(&errors)?;
    number.map_err(|error| error.to_string())
}

fn value_errors(key: &str, values: &[&str]) -> Vec<String> {
    let mut errors = Vec::new();
    for (index, value) in values.iter().enumerate() {
        let problems = name::label_value(value);
        if !problems.is_empty() {
            let (value, problems) = (quote(value), problems.join("; "));
            errors.push(format!("values[{index}][{key}]: Invalid value: {value}: {problems}"));
        }
        if errors.len() == ERRORS_SHOWN_MAX {
            break;
        }
    }
    errors
}

fn aggregate(errors: &[String]) -> Result<(), String> {
    match errors {
        [] => Ok(()),
        [one] => Err(one.clone()),
        many => Err(format!("[{}]", many.join(", "))),
    }
}

#[cfg(test)]
mod tests;
