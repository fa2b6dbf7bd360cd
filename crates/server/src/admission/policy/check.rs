//! What is wrong with a policy or a binding, in the words of the reference.

use headwater_api::cel::Program;
use headwater_api::status::FieldError;
use serde_json::Value;

use super::known;
use crate::registry::Served;

/// Everything that is wrong with an object of this kind, if it is one of ours.
pub(crate) fn errors(kind: &Served, object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if kind.group != "admissionregistration.k8s.io" {
        return errors;
    }
    let spec = &object["spec"];
    match &*kind.plural {
        "validatingadmissionpolicies" | "mutatingadmissionpolicies" => policy(spec, &mut errors),
        "validatingadmissionpolicybindings" => binding(spec, true, &mut errors),
        "mutatingadmissionpolicybindings" => binding(spec, false, &mut errors),
        _ => {}
    }
    errors
}

fn policy(spec: &Value, errors: &mut Vec<FieldError>) {
    let rules = spec["matchConstraints"]["resourceRules"].as_array();
    if rules.is_none_or(Vec::is_empty) {
        errors.push(FieldError::required("spec.matchConstraints.resourceRules", ""));
    }
    let list = |key: &str| spec[key].as_array().map(Vec::as_slice).unwrap_or_default();
    for (index, condition) in list("matchConditions").iter().enumerate() {
        let at = format!("spec.matchConditions[{index}].expression");
        expression(&condition["expression"], &at, "bool", errors);
    }
    for (index, variable) in list("variables").iter().enumerate() {
        let at = format!("spec.variables[{index}].expression");
        expression(&variable["expression"], &at, "", errors);
    }
    for (index, check) in list("validations").iter().enumerate() {
        let at = format!("spec.validations[{index}]");
        expression(&check["expression"], &format!("{at}.expression"), "bool", errors);
        if check["messageExpression"].is_string() {
            let at = format!("{at}.messageExpression");
            expression(&check["messageExpression"], &at, "string", errors);
        }
        let reasons = ["Forbidden", "Invalid", "RequestEntityTooLarge", "Unauthorized"];
        let reason = &check["reason"];
        if !reason.is_null() && !reasons.iter().any(|known| reason == known) {
            errors.push(FieldError::not_supported(format!("{at}.reason"), reason, &reasons));
        }
    }
    for (index, mutation) in list("mutations").iter().enumerate() {
        let at = format!("spec.mutations[{index}]");
        let key = match mutation["patchType"].as_str() {
            Some("ApplyConfiguration") => "applyConfiguration",
            Some("JSONPatch") => "jsonPatch",
            _ => {
                let known = ["ApplyConfiguration", "JSONPatch"];
                let field = format!("{at}.patchType");
                errors.push(FieldError::not_supported(field, &mutation["patchType"], &known));
                continue;
            }
        };
        expression(&mutation[key]["expression"], &format!("{at}.{key}.expression"), "", errors);
    }
}

fn expression(text: &Value, at: &str, result: &str, errors: &mut Vec<FieldError>) {
    let expression = text.as_str().unwrap_or_default();
    if expression.trim().is_empty() {
        errors.push(FieldError::required(at, "expression is not specified"));
        return;
    }
    let why = match Program::compile(expression, &known()) {
        Err(error) => format!("compilation failed: {error}"),
        Ok(program) if !result.is_empty() && ![result, "dyn"].contains(&program.result()) => {
            format!("must evaluate to {result}")
        }
        Ok(_) => return,
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
    for (index, action) in actions.iter().enumerate() {
        let field = format!("spec.validationActions[{index}]");
        if !known.iter().any(|known| action == known) {
            errors.push(FieldError::not_supported(field, action, &known));
        } else if actions[..index].contains(action) {
            errors.push(FieldError::duplicate(field, action));
        }
    }
    let has = |name: &str| actions.iter().any(|action| action == name);
    if has("Deny") && has("Warn") {
        let why = "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)";
        errors.push(FieldError::invalid("spec.validationActions", &spec["validationActions"], why));
    }
}
