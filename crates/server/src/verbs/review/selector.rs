//! The selectors of an access review: their validation, and their form as a list would have them.
//!
//! Promise: a requirement that cannot be used is left out and reported. That only widens what is
//! asked for, so that nothing is allowed by it.

use headwater_api::name;
use headwater_api::selector::{FieldSelector, LabelSelector};
use headwater_api::status::FieldError;
use headwater_json::{Map, Value};

use super::texts;

/// Which selector a member of the attributes is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SelectorKind {
    Field,
    Label,
}

/// The selectors as a list would have them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ReviewedSelectors {
    pub(super) field: String,
    pub(super) label: String,
    /// What of them was ignored.
    pub(super) ignored: Vec<&'static str>,
}

impl ReviewedSelectors {
    /// The selectors of resource attributes.
    pub(super) fn of(attributes: &Map) -> ReviewedSelectors {
        let mut selectors = ReviewedSelectors::default();
        let mut read = |key: &str, kind| {
            attributes.get(key).map_or_else(String::new, |selector| {
                let (text, ignored) = written(selector, kind);
                selectors.ignored.extend(ignored);
                text
            })
        };
        let field = read("fieldSelector", SelectorKind::Field);
        let label = read("labelSelector", SelectorKind::Label);
        ReviewedSelectors { field, label, ..selectors }
    }
}

/// A selector as text, and what of it was ignored.
fn written(selector: &Value, kind: SelectorKind) -> (String, Option<&'static str>) {
    let parses = |text: &str| match kind {
        SelectorKind::Field => FieldSelector::written_terms(text).is_ok(),
        SelectorKind::Label => LabelSelector::parse(text).is_ok(),
    };
    let (partially, entirely) = match kind {
        SelectorKind::Field => (
            "spec.resourceAttributes.fieldSelector partially ignored due to parse error",
            "spec.resourceAttributes.fieldSelector ignored due to parse error",
        ),
        SelectorKind::Label => (
            "spec.resourceAttributes.labelSelector partially ignored due to parse error",
            "spec.resourceAttributes.labelSelector ignored due to parse error",
        ),
    };
    let requirements = selector["requirements"].as_array().into_iter().flatten();
    let raw = selector["rawSelector"].as_str().unwrap_or_default();
    if !raw.is_empty() {
        return match parses(raw) {
            true => (raw.to_owned(), None),
            false => (String::new(), Some(entirely)),
        };
    }
    let (mut terms, mut is_complete) = (Vec::new(), true);
    for requirement in requirements {
        let term = match kind {
            SelectorKind::Field => field_term(requirement),
            SelectorKind::Label => label_term(requirement),
        };
        // An unknown operator, or what a list could not express.
        match term.filter(|term| parses(term)) {
            Some(term) => terms.push(term),
            None => is_complete = false,
        }
    }
    let ignored = match (is_complete, terms.is_empty()) {
        (true, _) => None,
        (false, false) => Some(partially),
        (false, true) => Some(entirely),
    };
    (terms.join(","), ignored)
}

fn field_term(requirement: &Value) -> Option<String> {
    let key = requirement["key"].as_str()?;
    if key.contains([',', '=', '!', '\\']) {
        return None;
    }
    let values = texts(&requirement["values"]);
    let [value] = values.as_slice() else { return None };
    let value = value.replace('\\', "\\\\").replace(',', "\\,").replace('=', "\\=");
    match requirement["operator"].as_str()? {
        "In" => Some(format!("{key}={value}")),
        "NotIn" => Some(format!("{key}!={value}")),
        _ => None,
    }
}

fn label_term(requirement: &Value) -> Option<String> {
    let key = requirement["key"].as_str()?;
    let values = texts(&requirement["values"]);
    if !name::qualified(key).is_empty() || values.iter().any(|v| !name::label_value(v).is_empty()) {
        return None;
    }
    match requirement["operator"].as_str()? {
        "In" => Some(format!("{key} in ({})", values.join(","))),
        "NotIn" => Some(format!("{key} notin ({})", values.join(","))),
        "Exists" => Some(key.to_owned()),
        "DoesNotExist" => Some(format!("!{key}")),
        _ => None,
    }
}

/// What is wrong with the selectors of resource attributes. Unknown operators are not: a newer client
/// may know them.
pub(super) fn errors(attributes: &Map) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (key, kind) in
        [("fieldSelector", SelectorKind::Field), ("labelSelector", SelectorKind::Label)]
    {
        let selector = attributes.get(key).filter(|selector| selector.is_object());
        let Some(selector) = selector else { continue };
        let path = format!("spec.resourceAttributes.{key}");
        let raw = &selector["rawSelector"];
        let requirements = selector["requirements"].as_array().map_or(&[][..], |list| list);
        match (raw.as_str().unwrap_or_default().is_empty(), requirements.is_empty()) {
            (false, false) => {
                let why = "may not specified at the same time as requirements";
                errors.push(FieldError::invalid(format!("{path}.rawSelector"), raw, why));
            }
            (true, true) => {
                let why =
                    format!("when {path} is specified, requirements or rawSelector is required");
                errors.push(FieldError::required(format!("{path}.requirements"), &why));
            }
            _ => {}
        }
        for (at, requirement) in requirements.iter().enumerate() {
            check_requirement(
                &mut errors,
                &format!("{path}.requirements[{at}]"),
                requirement,
                kind,
            );
        }
    }
    errors
}

fn check_requirement(
    errors: &mut Vec<FieldError>,
    path: &str,
    requirement: &Value,
    kind: SelectorKind,
) {
    let key = requirement["key"].as_str().unwrap_or_default();
    let values = texts(&requirement["values"]);
    let at = |field: &str| format!("{path}.{field}");
    if kind == SelectorKind::Field && key.is_empty() {
        errors.push(FieldError::required(at("key"), "must be specified"));
    }
    match requirement["operator"].as_str().unwrap_or_default() {
        "In" | "NotIn" if values.is_empty() => {
            let why = "must be specified when `operator` is 'In' or 'NotIn'";
            errors.push(FieldError::required(at("values"), why));
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            errors.push(FieldError::forbidden(at("values"), why));
        }
        _ => {}
    }
    if kind == SelectorKind::Label {
        let problems = name::qualified(key);
        errors.extend(problems.iter().map(|why| FieldError::invalid(at("key"), &key.into(), why)));
        for (index, value) in values.iter().enumerate() {
            let path = at(&format!("values[{index}]"));
            let problems = name::label_value(value);
            let each = problems.iter();
            errors.extend(each.map(|why| FieldError::invalid(&*path, &value.as_str().into(), why)));
        }
    }
}
