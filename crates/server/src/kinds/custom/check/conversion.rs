//! Validation of the conversion strategy of a definition.

use std::collections::HashSet;

use headwater_api::name;
use headwater_api::status::FieldError;
use headwater_json::Value;

use super::{Check, list};
use crate::outgoing;

impl Check<'_> {
    pub(super) fn conversion(&mut self) {
        let conversion = &self.spec["conversion"];
        let at = "spec.conversion";
        match conversion["strategy"].as_str().unwrap_or_default() {
            _ if conversion.is_null() => {}
            "" => self.require(format!("{at}.strategy"), ""),
            "None" => {
                if !conversion["webhook"].is_null() {
                    let why = "should not be set when strategy is not set to Webhook";
                    let field = format!("{at}.webhookClientConfig");
                    self.errors.push(FieldError::forbidden(field, why));
                }
            }
            "Webhook" => self.webhook(at, &conversion["webhook"]),
            other => {
                let supported = ["None", "Webhook"];
                let field = format!("{at}.strategy");
                self.errors.push(FieldError::not_supported(field, &other.into(), &supported));
            }
        }
    }

    /// Errors name the fields as Kubernetes does, which differs from their names in YAML.
    fn webhook(&mut self, at: &str, webhook: &Value) {
        let (config, field) = (&webhook["clientConfig"], format!("{at}.webhookClientConfig"));
        match config.is_null() {
            true => self.require(field, "required when strategy is set to Webhook"),
            false => {
                self.errors.extend(outgoing::check::errors(config, &field));
                if let Err(why) = outgoing::authority(config) {
                    let why = format!("unable to load root certificates: {why}");
                    self.invalid(format!("{field}.caBundle"), &config["caBundle"], why);
                }
            }
        }
        self.review_versions(
            &format!("{at}.conversionReviewVersions"),
            &webhook["conversionReviewVersions"],
        );
    }

    fn review_versions(&mut self, at: &str, versions: &Value) {
        let found: Vec<&str> = list(versions).filter_map(Value::as_str).collect();
        if found.is_empty() {
            return self.require(at, "");
        }
        let mut seen = HashSet::new();
        for (index, version) in found.iter().enumerate() {
            let field = format!("{at}[{index}]");
            if !seen.insert(version) {
                self.invalid(field, &(*version).into(), "duplicate version");
                continue;
            }
            self.text(field, version, &name::label_1035(version));
        }
        if !found.iter().any(|version| matches!(*version, "v1" | "v1beta1")) {
            self.invalid(at, versions, "must include at least one of v1, v1beta1");
        }
    }
}
