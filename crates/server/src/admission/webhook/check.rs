//! Validation of webhook configurations, with Kubernetes' messages.

use std::collections::HashSet;

use headwater_api::name;
use headwater_api::status::FieldError;
use headwater_cel::Program;
use headwater_json::Value;

use crate::admission::matching::{Conditions, selector};
use crate::kinds::registry::Served;
use crate::outgoing;

/// Whether the kind is one of the two configurations.
pub(crate) fn is_configuration(kind: &Served) -> bool {
    kind.group == "admissionregistration.k8s.io"
        && matches!(
            &*kind.plural,
            "validatingwebhookconfigurations" | "mutatingwebhookconfigurations"
        )
}

/// All validation errors.
pub(crate) fn errors(configuration: &Value) -> Vec<FieldError> {
    let mut check = Check { errors: Vec::new() };
    let webhooks = configuration["webhooks"].as_array();
    let mut names: HashSet<&str> = HashSet::new();
    for (index, hook) in webhooks.into_iter().flatten().enumerate() {
        let at = format!("webhooks[{index}]");
        check.webhook(hook, &at);
        let name = hook["name"].as_str().unwrap_or_default();
        if !names.insert(name) {
            check.errors.push(FieldError::duplicate(format!("{at}.name"), &name.into()));
        }
    }
    check.errors
}

struct Check {
    errors: Vec<FieldError>,
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

impl Check {
    fn required(&mut self, field: String, why: &str) {
        self.errors.push(FieldError::required(field, why));
    }

    fn invalid(&mut self, field: String, value: &Value, why: &str) {
        self.errors.push(FieldError::invalid(field, value, why));
    }

    fn one_of(&mut self, hook: &Value, at: &str, key: &str, words: &[&str]) {
        let value = &hook[key];
        if !value.is_null() && !words.contains(&text(hook, key)) {
            self.errors.push(FieldError::not_supported(format!("{at}.{key}"), value, words));
        }
    }

    fn webhook(&mut self, hook: &Value, at: &str) {
        self.name(text(hook, "name"), &format!("{at}.name"));
        for (index, rule) in hook["rules"].as_array().into_iter().flatten().enumerate() {
            self.rule(rule, &format!("{at}.rules[{index}]"));
        }
        self.one_of(hook, at, "failurePolicy", &["Fail", "Ignore"]);
        self.one_of(hook, at, "matchPolicy", &["Equivalent", "Exact"]);
        self.one_of(hook, at, "reinvocationPolicy", &["IfNeeded", "Never"]);
        let effects = ["None", "NoneOnDryRun"];
        match hook["sideEffects"].is_null() {
            true => {
                self.required(
                    format!("{at}.sideEffects"),
                    "must specify one of None, NoneOnDryRun",
                );
            }
            false => self.one_of(hook, at, "sideEffects", &effects),
        }
        let timeout = &hook["timeoutSeconds"];
        if !timeout.is_null()
            && !timeout.as_i64().is_some_and(|seconds| (1..=30).contains(&seconds))
        {
            let why = "the timeout value must be between 1 and 30 seconds";
            self.invalid(format!("{at}.timeoutSeconds"), timeout, why);
        }
        for key in ["namespaceSelector", "objectSelector"] {
            if let Err(why) = selector(&hook[key]) {
                self.invalid(format!("{at}.{key}"), &hook[key], &why);
            }
        }
        let config = &hook["clientConfig"];
        self.errors.extend(outgoing::check::errors(config, &format!("{at}.clientConfig")));
        self.conditions(&hook["matchConditions"], &format!("{at}.matchConditions"));
        self.versions(&hook["admissionReviewVersions"], &format!("{at}.admissionReviewVersions"));
    }

    fn name(&mut self, name: &str, field: &str) {
        if name.is_empty() {
            return self.required(field.to_owned(), "");
        }
        for why in name::subdomain(name) {
            self.invalid(field.to_owned(), &name.into(), &why);
        }
        if name.split('.').count() < 3 {
            let why = "should be a domain with at least three segments separated by dots";
            self.invalid(field.to_owned(), &name.into(), why);
        }
    }

    fn rule(&mut self, rule: &Value, at: &str) {
        for (key, what) in [
            ("operations", "operations"),
            ("apiGroups", "API groups"),
            ("apiVersions", "API versions"),
            ("resources", ""),
        ] {
            let list: Vec<&str> =
                rule[key].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            if list.is_empty() {
                self.required(format!("{at}.{key}"), "");
            }
            if !what.is_empty() && list.len() > 1 && list.contains(&"*") {
                let why = format!("if '*' is present, must not specify other {what}");
                self.invalid(format!("{at}.{key}"), &rule[key], &why);
            }
        }
        let known = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
        for (index, word) in rule["operations"].as_array().into_iter().flatten().enumerate() {
            if !word.as_str().is_some_and(|word| known.contains(&word)) {
                let field = format!("{at}.operations[{index}]");
                self.errors.push(FieldError::not_supported(field, word, &known));
            }
        }
        self.one_of(rule, at, "scope", &["*", "Cluster", "Namespaced"]);
    }

    fn conditions(&mut self, conditions: &Value, at: &str) {
        let list = conditions.as_array().map(Vec::as_slice).unwrap_or_default();
        if list.len() > 64 {
            let why = "must have at most 64 items";
            self.invalid(at.to_owned(), &list.len().into(), why);
        }
        let mut names: HashSet<&str> = HashSet::new();
        for (index, condition) in list.iter().enumerate() {
            let (name, expression) = (text(condition, "name"), text(condition, "expression"));
            let at = format!("{at}[{index}]");
            if name.is_empty() {
                self.required(format!("{at}.name"), "");
            }
            for why in name::qualified(name).into_iter().filter(|_| !name.is_empty()) {
                self.invalid(format!("{at}.name"), &name.into(), &why);
            }
            if !names.insert(name) {
                self.errors.push(FieldError::duplicate(format!("{at}.name"), &name.into()));
            }
            if expression.trim().is_empty() {
                self.required(format!("{at}.expression"), "");
                continue;
            }
            let why = match Program::compile(expression, &Conditions::names()) {
                Err(error) => Some(format!("compilation failed: {error}")),
                Ok(program) if program.result() != "bool" => {
                    Some(format!("must evaluate to bool but got {}", program.result_shown()))
                }
                Ok(_) => None,
            };
            if let Some(why) = why {
                self.invalid(format!("{at}.expression"), &expression.into(), &why);
            }
        }
    }

    fn versions(&mut self, versions: &Value, at: &str) {
        let list = versions.as_array().map(Vec::as_slice).unwrap_or_default();
        if list.is_empty() {
            self.required(at.to_owned(), "must specify one of v1, v1beta1");
        } else if !list.iter().any(|version| version == "v1" || version == "v1beta1") {
            let why = "must include at least one of v1, v1beta1";
            self.invalid(at.to_owned(), versions, why);
        }
    }
}

#[cfg(test)]
mod tests {
    use headwater_json::json;

    use super::*;

    fn hook() -> Value {
        json!({
            "name": "a.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": "https://127.0.0.1:9443/x"},
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
        })
    }

    #[track_caller]
    fn check(path: &str, value: Value, expected: &str) {
        let mut hook = hook();
        *hook.pointer_mut(path).unwrap() = value;
        let found: Vec<String> =
            errors(&json!({"webhooks": [hook]})).iter().map(ToString::to_string).collect();
        assert_eq!(found.join("; "), expected);
    }

    #[test]
    fn what_could_never_be_called_is_refused() {
        assert_eq!(errors(&json!({"webhooks": [hook()]})), []);
        check(
            "/name",
            json!("short"),
            "webhooks[0].name: Invalid value: \"short\": should be a domain with at least three segments separated by dots",
        );
        check(
            "/sideEffects",
            json!("Some"),
            "webhooks[0].sideEffects: Unsupported value: \"Some\": supported values: \"None\", \"NoneOnDryRun\"",
        );
        check(
            "/sideEffects",
            json!(null),
            "webhooks[0].sideEffects: Required value: must specify one of None, NoneOnDryRun",
        );
        check(
            "/clientConfig",
            json!({}),
            "webhooks[0].clientConfig: Required value: exactly one of url or service is required",
        );
        check(
            "/clientConfig/url",
            json!("http://x/"),
            "webhooks[0].clientConfig.url: Invalid value: \"http\": 'https' is the only allowed URL scheme; desired format: https://host[/path]",
        );
        check(
            "/admissionReviewVersions",
            json!(["v2"]),
            "webhooks[0].admissionReviewVersions: Invalid value: [\"v2\"]: must include at least one of v1, v1beta1",
        );
        check(
            "/rules/0/operations",
            json!(["*", "CREATE"]),
            "webhooks[0].rules[0].operations: Invalid value: [\"*\",\"CREATE\"]: if '*' is present, must not specify other operations",
        );
        check("/rules/0/resources", json!([]), "webhooks[0].rules[0].resources: Required value");
    }
}
