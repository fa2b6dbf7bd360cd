//! Validation of a value against its schema, with Kubernetes' messages (S9.11).
//!
//! All errors are reported at once. Errors in unchanged values are tolerated: the schema may have become
//! stricter (S9.15).

use std::cmp::Ordering;
use std::collections::HashMap;

use headwater_json::{Map, Value};

use super::effort::Effort;
use super::number::{self, Numeric};
use super::{Additional, Limit, List, Node, Rules, Type, identity};
use headwater_api::distinct::Distinct;
use headwater_api::status::{FieldError, FieldErrorKind};
use headwater_json::path::Path;

/// The errors of a value. Fields are below `base`; messages name them relative to it, as in Kubernetes.
pub(super) fn value(
    node: &Node,
    value: &Value,
    old: Option<&Value>,
    base: &str,
) -> Vec<FieldError> {
    let judge = |old| within(&Effort::default(), node, value, old, base);
    // Most values are valid and need no comparison with the old ones.
    match judge(None) {
        errors if errors.is_empty() || old.is_none() => errors,
        _ => judge(old),
    }
}

/// The same, within these limits.
pub(super) fn within(
    effort: &Effort,
    node: &Node,
    value: &Value,
    old: Option<&Value>,
    base: &str,
) -> Vec<FieldError> {
    let mut found = Findings { base, effort, errors: Distinct::default(), matched: 0 };
    found.value(node, value, old, &Path::Root);
    let mut errors = found.errors.into_vec();
    errors.extend(effort.error(base));
    errors
}

/// The errors so far.
struct Findings<'a> {
    base: &'a str,
    effort: &'a Effort,
    errors: Distinct<FieldError>,
    /// The number of passed checks: of several failed alternatives, the errors of the one with the most
    /// are reported.
    matched: u32,
}

impl<'a> Findings<'a> {
    fn value(&mut self, node: &Node, value: &Value, old: Option<&Value>, at: &Path<'_>) {
        if !self.effort.value() {
            return;
        }
        let before = self.errors.list().len();
        self.types(node, value, at);
        if let (Some(rules), false) = (&node.rules, value.is_null()) {
            self.junctors(rules, value, old, at);
        }
        // The weights are Kubernetes'.
        self.matched += match value {
            Value::Null => 0,
            Value::Bool(_) => 4,
            Value::String(_) | Value::Object(_) => 5,
            Value::Number(_) | Value::Array(_) => 6,
        };
        match value {
            Value::Null | Value::Bool(_) => {}
            Value::String(text) => self.text(node, text, at),
            Value::Number(number) => self.number(node, Numeric::of(number), value, at),
            Value::Array(elements) => self.array(node, elements, old, at),
            Value::Object(members) => self.object(node, members, old, at),
        }
        self.enumeration(node, value, at);
        if self.errors.list().len() > before && old == Some(value) {
            self.errors.truncate(before);
        }
    }

    /// Validates the same value by another node, with separate errors.
    fn alternative(
        &self,
        node: &Node,
        value: &Value,
        old: Option<&Value>,
        at: &Path<'_>,
    ) -> Findings<'a> {
        let (base, effort) = (self.base, self.effort);
        let mut found = Findings { base, effort, errors: Distinct::default(), matched: 0 };
        found.value(node, value, old, at);
        found
    }

    fn types(&mut self, node: &Node, value: &Value, at: &Path<'_>) {
        let types = node.types;
        let actual = match value {
            _ if types.is_empty() => return,
            Value::Null if node.nullable => {
                self.matched += 1;
                return;
            }
            Value::Null => None,
            Value::Bool(_) => Some(Type::Boolean),
            Value::String(_) => Some(Type::String),
            Value::Array(_) => Some(Type::Array),
            Value::Object(_) => Some(Type::Object),
            Value::Number(number) => match Numeric::of(number) {
                Numeric::Int(_) if types.has(Type::Number) => return self.passed(),
                Numeric::Int(_) => Some(Type::Integer),
                Numeric::Float(float) if number::is_whole(float) && types.has(Type::Integer) => {
                    return self.passed();
                }
                Numeric::Float(_) => Some(Type::Number),
            },
        };
        if actual.is_some_and(|actual| types.has(actual)) {
            return self.passed();
        }
        self.matched += u32::from(!value.is_null());
        let actual = actual.map_or("null", Type::name);
        let why = format!("must be of type {types}: {actual:?}");
        self.tell(FieldErrorKind::TypeInvalid, at, &format!("{actual:?}"), &why);
    }

    fn passed(&mut self) {
        self.matched += 2;
    }

    fn text(&mut self, node: &Node, text: &str, at: &Path<'_>) {
        let Some(rules) = &node.rules else { return };
        // Only the first error of the string itself is reported.
        let shown = || Value::from(text).to_string();
        let length = match (rules.length.min, rules.length.max) {
            (None, None) => 0,
            _ => text.chars().count() as u64,
        };
        if let Some(max) = rules.length.max.filter(|max| length > *max) {
            let unit = if max == 1 { "byte" } else { "bytes" };
            let detail = format!("may not be more than {max} {unit}");
            self.push(FieldErrorKind::TooLong, at, detail);
        } else if let Some(min) = rules.length.min.filter(|min| length < *min) {
            let why = format!("should be at least {min} chars long");
            self.tell(FieldErrorKind::Invalid, at, &shown(), &why);
        } else if let Some(pattern) =
            rules.pattern.as_ref().filter(|pattern| !self.effort.matches(pattern, text))
        {
            let why = format!("should match '{}'", pattern.text());
            self.tell(FieldErrorKind::Invalid, at, &shown(), &why);
        }
        self.matched += u32::from(rules.format.is_some());
        if let Some(format) = rules.format.as_ref().filter(|format| !format.accepts(text)) {
            let why = format!("must be of type {}: {text:?}", format.name());
            self.tell(FieldErrorKind::TypeInvalid, at, &shown(), &why);
        }
    }

    fn number(&mut self, node: &Node, number: Numeric, value: &Value, at: &Path<'_>) {
        self.range(node, number, at);
        let Some(rules) = &node.rules else { return };
        let shown = || number::show_value(value);
        if let Some(factor) = rules.multiple_of.filter(|factor| !number.is_multiple_of(*factor)) {
            let why = format!("should be a multiple of {}", number::show(factor));
            self.tell(FieldErrorKind::Invalid, at, &shown(), &why);
        }
        let beyond = |limit: Option<Limit>, side: Ordering| {
            limit.filter(|limit| {
                let order = number.compare(limit.value);
                order == side || (limit.exclusive && order == Ordering::Equal)
            })
        };
        for (limit, words) in [
            (beyond(rules.minimum, Ordering::Less), "greater than"),
            (beyond(rules.maximum, Ordering::Greater), "less than"),
        ] {
            let Some(Limit { value, exclusive }) = limit else { continue };
            let or_equal = if exclusive { "" } else { " or equal to" };
            let why = format!("should be {words}{or_equal} {}", number::show(value));
            self.tell(FieldErrorKind::Invalid, at, &shown(), &why);
        }
    }

    /// Whether a number is in the range of its type and format.
    fn range(&mut self, node: &Node, number: Numeric, at: &Path<'_>) {
        let format = node.rules.as_ref().and_then(|rules| rules.format.as_ref());
        let format = format.map_or("", |format| format.name());
        let float = match number {
            Numeric::Int(whole) => whole as f64,
            Numeric::Float(float) => float,
        };
        let fits = match (node.types.single(), format) {
            (Some(Type::Integer), "int32") => {
                float.fract() == 0.0 && (f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(&float)
            }
            (Some(Type::Integer), _) => match number {
                Numeric::Int(_) => true,
                Numeric::Float(float) => float.fract() == 0.0 && float.abs() < 9.2e18,
            },
            (Some(Type::Number), "float") => float.abs() <= f64::from(f32::MAX),
            _ => true,
        };
        if fits {
            return;
        }
        let format = match format {
            "" => "(default format)".to_owned(),
            format => format!("with format {format}"),
        };
        let kind = node.types;
        self.nowhere(&format!("Checked value must be of type {kind} {format} in {at}"));
    }

    fn array(&mut self, node: &Node, elements: &[Value], old: Option<&Value>, at: &Path<'_>) {
        if let Some(items) = &node.items {
            let before = Before::of(node, old);
            for (index, element) in elements.iter().enumerate() {
                let path = Path::Index(at, index);
                self.value(items, element, before.get(element), &path);
            }
        }
        let Some(rules) = &node.rules else { return };
        let size = elements.len() as u64;
        if let Some(min) = rules.items.min.filter(|min| size < *min) {
            let why = format!("should have at least {min} items");
            self.tell(FieldErrorKind::Invalid, at, &size.to_string(), &why);
        }
        self.at_most(rules.items.max, size, at);
    }

    fn object(&mut self, node: &Node, members: &Map, old: Option<&Value>, at: &Path<'_>) {
        if let Some(rules) = &node.rules {
            let size = members.len() as u64;
            if let Some(min) = rules.properties.min.filter(|min| size < *min) {
                let why = format!("should have at least {min} properties");
                self.tell(FieldErrorKind::Invalid, at, &size.to_string(), &why);
            }
            self.at_most(rules.properties.max, size, at);
        }
        let old = if node.atomic { None } else { old };
        for (name, value) in members {
            let old = old.and_then(|old| old.get(name));
            let path = Path::Field(at, name);
            match (node.property(name), &node.additional) {
                (Some(inner), _) => self.value(inner, value, old, &path),
                (None, Some(Additional::Of(inner))) => self.value(inner, value, old, &path),
                (None, Some(Additional::Denied)) => {
                    let shown = Value::from(name.as_str()).to_string();
                    let detail = format!("{shown}: {at}.{name} in body is a forbidden property");
                    self.push(FieldErrorKind::Invalid, at, detail);
                }
                (None, _) => {}
            }
        }
        for name in node.rules.iter().flat_map(|rules| &rules.required) {
            if !members.contains_key(name) {
                self.push(FieldErrorKind::Required, &Path::Field(at, name), String::new());
            }
        }
    }

    fn at_most(&mut self, max: Option<u64>, size: u64, at: &Path<'_>) {
        let Some(max) = max.filter(|max| size > *max) else { return };
        let unit = if max == 1 { "item" } else { "items" };
        self.push(FieldErrorKind::TooMany, at, format!("{size}: must have at most {max} {unit}"));
    }

    fn enumeration(&mut self, node: &Node, value: &Value, at: &Path<'_>) {
        let Some(rules) = node.rules.as_ref().filter(|rules| !rules.enumeration.is_empty()) else {
            return;
        };
        if !self.effort.members(rules.enumeration.len()) {
            return;
        }
        // As in Kubernetes, null is in no enumeration.
        let known = rules.enumeration.iter().any(|known| number::equal(known, value));
        if known && !value.is_null() {
            return;
        }
        let words: Vec<String> = rules
            .enumeration
            .iter()
            .map(|known| match known {
                Value::String(text) => format!("{text:?}"),
                other => format!("{:?}", number::show_value(other)),
            })
            .collect();
        let shown = match value {
            Value::Null => "\"null\"".to_owned(),
            value => number::show_value(value),
        };
        let detail = format!("{shown}: supported values: {}", words.join(", "));
        self.push(FieldErrorKind::NotSupported, at, detail);
    }

    fn junctors(&mut self, rules: &Rules, value: &Value, old: Option<&Value>, at: &Path<'_>) {
        self.any_of(rules, value, old, at);
        self.one_of(rules, value, old, at);
        let mut fit = 0;
        for node in &rules.all_of {
            let found = self.alternative(node, value, old, at);
            fit += usize::from(found.errors.list().is_empty());
            self.merge(found);
        }
        if fit < rules.all_of.len() {
            let none = if fit == 0 { ". None validated" } else { "" };
            let place = at.to_string();
            self.nowhere(&format!("{place:?} must validate all the schemas (allOf){none}"));
        }
        if let Some(node) = &rules.not
            && self.alternative(node, value, old, at).errors.list().is_empty()
        {
            let place = at.to_string();
            self.nowhere(&format!("{place:?} must not validate the schema (not)"));
        }
    }

    fn any_of(&mut self, rules: &Rules, value: &Value, old: Option<&Value>, at: &Path<'_>) {
        let mut best: Option<Findings<'_>> = None;
        for node in &rules.any_of {
            let found = self.alternative(node, value, old, at);
            if found.errors.list().is_empty() {
                return self.merge(found);
            }
            if best.as_ref().is_none_or(|best| found.matched > best.matched) {
                best = Some(found);
            }
        }
        if let Some(best) = best {
            let place = at.to_string();
            self.nowhere(&format!("{place:?} must validate at least one schema (anyOf)"));
            self.merge(best);
        }
    }

    fn one_of(&mut self, rules: &Rules, value: &Value, old: Option<&Value>, at: &Path<'_>) {
        if rules.one_of.is_empty() {
            return;
        }
        let mut best: Option<Findings<'_>> = None;
        let mut first: Option<Findings<'_>> = None;
        let mut fit = 0;
        for node in &rules.one_of {
            let found = self.alternative(node, value, old, at);
            if found.errors.list().is_empty() {
                fit += 1;
                best = None;
                first.get_or_insert(found);
            } else if fit == 0 && best.as_ref().is_none_or(|best| found.matched > best.matched) {
                best = Some(found);
            }
        }
        if fit != 1 {
            let place = at.to_string();
            let how_many = match fit {
                0 => "Found none valid".to_owned(),
                fit => format!("Found {fit} valid alternatives"),
            };
            self.nowhere(&format!(
                "{place:?} must validate one and only one schema (oneOf). {how_many}"
            ));
        }
        if let Some(found) = best.or(first.filter(|_| fit == 1)) {
            self.merge(found);
        }
    }

    fn merge(&mut self, found: Findings<'_>) {
        self.matched += found.matched;
        self.errors.extend(found.errors.into_vec());
    }

    /// `field: value: place in body why`.
    fn tell(&mut self, kind: FieldErrorKind, at: &Path<'_>, shown: &str, why: &str) {
        self.push(kind, at, format!("{shown}: {at} in body {why}"));
    }

    fn push(&mut self, kind: FieldErrorKind, at: &Path<'_>, detail: String) {
        let field = match (self.base, at) {
            ("", Path::Root) => "<nil>".to_owned(),
            ("", at) => at.to_string(),
            (base, Path::Root) => base.to_owned(),
            (base, at @ Path::Index(..)) => format!("{base}{at}"),
            (base, at) => format!("{base}.{at}"),
        };
        self.add(FieldError { kind, field, detail });
    }

    /// An error that Kubernetes reports without a field.
    fn nowhere(&mut self, why: &str) {
        let field = if self.base.is_empty() { "<nil>" } else { self.base }.to_owned();
        let detail = format!("\"\": {why}");
        self.add(FieldError { kind: FieldErrorKind::Invalid, field, detail });
    }

    /// Adds an error unless an alternative has already found it.
    fn add(&mut self, error: FieldError) {
        if self.effort.message(&error) {
            self.errors.insert(error);
        }
    }
}

/// The old elements of a keyed list.
pub(super) struct Before<'a> {
    keys: &'a [Box<str>],
    elements: HashMap<String, &'a Value>,
}

impl<'a> Before<'a> {
    pub(super) fn of(node: &'a Node, old: Option<&'a Value>) -> Before<'a> {
        let (List::Map(keys), Some(Value::Array(old))) = (&node.list, old) else {
            return Before { keys: &[], elements: HashMap::new() };
        };
        let keyed = old.iter().map(|old| (identity::key(keys, old).to_string(), old));
        Before { keys, elements: keyed.collect() }
    }

    pub(super) fn get(&self, element: &Value) -> Option<&'a Value> {
        if self.elements.is_empty() {
            return None;
        }
        self.elements.get(&identity::key(self.keys, element).to_string()).copied()
    }
}
