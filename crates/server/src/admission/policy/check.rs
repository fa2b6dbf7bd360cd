//! Validation of policies and bindings, with Kubernetes' messages.

use std::collections::HashSet;

use headwater_api::name;
use headwater_api::status::FieldError;
use headwater_cel::{Environment, Program};
use headwater_json::Value;

use super::names::Names;
use crate::kinds::registry::Served;

/// The validation errors of a policy or binding; `None` for other kinds.
pub(crate) fn errors(kind: &Served, object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if kind.group != "admissionregistration.k8s.io" {
        return errors;
    }
    let spec = &object["spec"];
    match &*kind.plural {
        "validatingadmissionpolicies" => policy(object, true, &mut errors),
        "mutatingadmissionpolicies" => policy(object, false, &mut errors),
        "validatingadmissionpolicybindings" => binding(spec, true, &mut errors),
        "mutatingadmissionpolicybindings" => binding(spec, false, &mut errors),
        _ => {}
    }
    errors
}

/// The maximum number of audit annotations, and the maximum length of their expressions.
const ANNOTATIONS_MAX: usize = 20;
const ANNOTATION_MAX: usize = 5 * 1024;

fn policy(object: &Value, is_validating: bool, errors: &mut Vec<FieldError>) {
    let spec = &object["spec"];
    let rules = spec["matchConstraints"]["resourceRules"].as_array();
    if rules.is_none_or(Vec::is_empty) {
        errors.push(FieldError::required("spec.matchConstraints.resourceRules", ""));
    }
    let list = |key: &str| spec[key].as_array().map(Vec::as_slice).unwrap_or_default();
    let names = Names::open(spec["paramKind"].is_object());
    let known = names.of_conditions();
    for (index, condition) in list("matchConditions").iter().enumerate() {
        let at = format!("spec.matchConditions[{index}].expression");
        expression(&condition["expression"], &at, &["bool"], &known, errors);
    }
    variables(list("variables"), names.of_conditions().with_variables(), errors);
    match is_validating {
        true => validations(object, &names.of_policy(spec), errors),
        false => mutations(list("mutations"), &names.of_mutation(spec), errors),
    }
}

/// Each variable may use earlier ones.
fn variables<'s>(list: &'s [Value], mut known: Environment<'s>, errors: &mut Vec<FieldError>) {
    for (index, variable) in list.iter().enumerate() {
        let at = format!("spec.variables[{index}]");
        let text = |key: &str| variable[key].as_str().unwrap_or_default();
        let name = text("name");
        let is_word = |c: char| c == '_' || c.is_ascii_alphanumeric();
        if name.trim().is_empty() {
            errors.push(FieldError::required(format!("{at}.name"), "name is not specified"));
        } else if !name.chars().all(is_word) || name.starts_with(|c: char| c.is_ascii_digit()) {
            let why = "must be a valid CEL identifier";
            errors.push(FieldError::invalid(format!("{at}.name"), &variable["name"], why));
        }
        let at = format!("{at}.expression");
        if text("expression").trim().is_empty() {
            errors.push(FieldError::required(at, "expression is not specified"));
        } else if let Err(error) = known.add_variable(name, text("expression")) {
            let why = format!("compilation failed: {error}");
            errors.push(FieldError::invalid(at, &variable["expression"], why));
        }
    }
}

fn validations(object: &Value, known: &Environment<'_>, errors: &mut Vec<FieldError>) {
    let spec = &object["spec"];
    let list = |key: &str| spec[key].as_array().map(Vec::as_slice).unwrap_or_default();
    let (checks, annotations) = (list("validations"), list("auditAnnotations"));
    if checks.is_empty() && annotations.is_empty() {
        let why = "validations or auditAnnotations must contain at least one item";
        errors.push(FieldError::required("spec.validations", why));
        errors.push(FieldError::required("spec.auditAnnotations", why));
    }
    for (index, check) in checks.iter().enumerate() {
        validation(check, &format!("spec.validations[{index}]"), known, errors);
    }
    if annotations.len() > ANNOTATIONS_MAX {
        let why = format!("must not have more than {ANNOTATIONS_MAX} auditAnnotations");
        errors.push(FieldError::invalid("spec.auditAnnotations", &spec["auditAnnotations"], why));
    }
    let mut keys = HashSet::new();
    for (index, annotation) in annotations.iter().enumerate() {
        let at = format!("spec.auditAnnotations[{index}]");
        let key = &annotation["key"];
        let full = format!(
            "{}/{}",
            object["metadata"]["name"].as_str().unwrap_or_default(),
            key.as_str().unwrap_or_default()
        );
        for why in name::qualified(&full) {
            errors.push(FieldError::invalid(format!("{at}.key"), &full.as_str().into(), why));
        }
        if !keys.insert(key) {
            errors.push(FieldError::duplicate(format!("{at}.key"), key));
        }
        let at = format!("{at}.valueExpression");
        let value = &annotation["valueExpression"];
        match value.as_str().unwrap_or_default().trim() {
            "" => errors.push(FieldError::required(at, "valueExpression is not specified")),
            text if text.len() > ANNOTATION_MAX => {
                let why = format!("must not exceed {ANNOTATION_MAX} bytes in length");
                errors.push(FieldError::required(at, &why));
            }
            _ => expression(value, &at, &["string", "null"], known, errors),
        }
    }
}

fn validation(check: &Value, at: &str, known: &Environment<'_>, errors: &mut Vec<FieldError>) {
    expression(&check["expression"], &format!("{at}.expression"), &["bool"], known, errors);
    let text = |key: &str| check[key].as_str().unwrap_or_default();
    let mut empty = |key: &str| {
        let is_empty = !text(key).is_empty() && text(key).trim().is_empty();
        if is_empty {
            let why = "must be non-empty if specified";
            errors.push(FieldError::invalid(format!("{at}.{key}"), &check[key], why));
        }
        is_empty
    };
    let (no_message, no_expression) = (empty("message"), empty("messageExpression"));
    if !no_expression && !text("messageExpression").is_empty() {
        let at = format!("{at}.messageExpression");
        expression(&check["messageExpression"], &at, &["string"], known, errors);
    }
    if !no_message && text("message").trim().contains(['\n', '\r']) {
        let why = "must not contain line breaks";
        errors.push(FieldError::invalid(format!("{at}.message"), &check["message"], why));
    }
    let reasons = ["Forbidden", "Invalid", "RequestEntityTooLarge", "Unauthorized"];
    let reason = &check["reason"];
    if !reason.is_null() && !reasons.iter().any(|known| reason == known) {
        errors.push(FieldError::not_supported(format!("{at}.reason"), reason, &reasons));
    }
}

fn mutations(list: &[Value], known: &Environment<'_>, errors: &mut Vec<FieldError>) {
    if list.is_empty() {
        let why = "mutations must contain at least one item";
        errors.push(FieldError::required("spec.mutations", why));
    }
    for (index, mutation) in list.iter().enumerate() {
        let at = format!("spec.mutations[{index}]");
        let (key, result): (_, &[&str]) = match mutation["patchType"].as_str() {
            Some("ApplyConfiguration") => ("applyConfiguration", &["Object"]),
            // An empty list may be a list of patches.
            Some("JSONPatch") => ("jsonPatch", &["list(JSONPatch)", "list(dyn)"]),
            _ => {
                let known = ["ApplyConfiguration", "JSONPatch"];
                let field = format!("{at}.patchType");
                errors.push(FieldError::not_supported(field, &mutation["patchType"], &known));
                continue;
            }
        };
        let at = format!("{at}.{key}.expression");
        expression(&mutation[key]["expression"], &at, result, known, errors);
    }
}

fn expression(
    text: &Value,
    at: &str,
    results: &[&str],
    known: &Environment<'_>,
    errors: &mut Vec<FieldError>,
) {
    let expression = text.as_str().unwrap_or_default();
    if expression.trim().is_empty() {
        errors.push(FieldError::required(at, "expression is not specified"));
        return;
    }
    let why = match Program::compile(expression, known) {
        Err(error) => format!("compilation failed: {error}"),
        Ok(program) if results.contains(&program.result_shown()) => return,
        Ok(program) => match results {
            ["string", "null"] => {
                let found = program.result_shown();
                format!("must evaluate to one of [string null_type] but got {found}")
            }
            results => {
                let (wanted, found) = (results[0], program.result_shown());
                format!("must evaluate to {wanted} but got {found}")
            }
        },
    };
    errors.push(FieldError::invalid(at, text, why));
}

fn binding(spec: &Value, is_validating: bool, errors: &mut Vec<FieldError>) {
    if spec["policyName"].as_str().unwrap_or_default().is_empty() {
        errors.push(FieldError::required("spec.policyName", ""));
    }
    let parameters = &spec["paramRef"];
    if parameters.is_object() {
        let given = |key: &str| !parameters[key].is_null() && parameters[key] != "";
        if given("name") == given("selector") {
            let why = "one of name or selector must be specified";
            errors.push(FieldError::required("spec.paramRef", why));
        }
        if !given("parameterNotFoundAction") {
            errors.push(FieldError::required("spec.paramRef.parameterNotFoundAction", ""));
        }
    }
    let actions = spec["validationActions"].as_array().map(Vec::as_slice).unwrap_or_default();
    if is_validating && actions.is_empty() {
        errors.push(FieldError::required(
            "spec.validationActions",
            "at least one validation action is required",
        ));
    }
    let known = ["Audit", "Deny", "Warn"];
    let mut seen = HashSet::new();
    for (index, action) in actions.iter().enumerate() {
        let field = format!("spec.validationActions[{index}]");
        if !known.iter().any(|known| action == known) {
            errors.push(FieldError::not_supported(field, action, &known));
        } else if !seen.insert(action) {
            errors.push(FieldError::duplicate(field, action));
        }
    }
    let has = |name: &str| actions.iter().any(|action| action == name);
    if has("Deny") && has("Warn") {
        let why = "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)";
        errors.push(FieldError::invalid("spec.validationActions", &spec["validationActions"], why));
    }
}
