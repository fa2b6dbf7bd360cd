//! Metrics of admission and conversion, mostly of webhook calls.

use std::time::Duration;

use headwater_api::metrics::{Counter, Desc, Family, Histogram, Registry};

const STEP_DURATIONS: &[f64] = &[0.005, 0.025, 0.1, 0.5, 1.0, 2.5];
const WEBHOOK_DURATIONS: &[f64] = &[0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0];
const EXPRESSION_DURATIONS: &[f64] = &[0.000_000_5, 0.001, 0.01, 0.1, 1.0];
const CONVERSION_DURATIONS: &[f64] =
    &[0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];
const DEFINITION_DURATIONS: &[f64] = &[
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096,
    8.192, 16.384,
];

/// The largest status code with a label value of its own.
const CODE_MAX: u16 = 600;

families! {
    /// Families about admission.
    pub struct Admission {
        steps: Histogram(STEP_DURATIONS) = apiserver_admission_step_admission_duration_seconds(
            type, operation, rejected
        ),
            "Time that the mutating and the validating half of admission took.";
        controllers: Histogram(STEP_DURATIONS) = apiserver_admission_controller_admission_duration_seconds(
            name, type, operation, rejected
        ),
            "Time that parts of admission took that depend on what is configured.";
        webhooks: Histogram(WEBHOOK_DURATIONS) = apiserver_admission_webhook_admission_duration_seconds(
            name, type, operation, rejected
        ),
            "Time that calls of admission webhooks took.";
        requests: Counter = apiserver_admission_webhook_request_total(
            name, type, operation, code, rejected
        ),
            "Calls of admission webhooks.";
        rejections: Counter = apiserver_admission_webhook_rejection_count(
            name, type, operation, error_type, rejection_code
        ),
            "Requests that failed by an admission webhook.";
        fail_open: Counter = apiserver_admission_webhook_fail_open_count(name, type),
            "Failed calls of admission webhooks that were ignored.";
        condition_errors: Counter = apiserver_admission_match_condition_evaluation_errors_total(
            name, kind, type, operation
        ),
            "Match conditions that could not be judged.";
        condition_exclusions: Counter = apiserver_admission_match_condition_exclusions_total(
            name, kind, type, operation
        ),
            "Requests that match conditions left out.";
        policy_checks: Counter = apiserver_validating_admission_policy_check_total(
            policy, policy_binding, error_type, enforcement_action
        ),
            "Expressions of validating policies that were judged.";
        policy_durations: Histogram(EXPRESSION_DURATIONS) = apiserver_validating_admission_policy_check_duration_seconds(
            policy, policy_binding, error_type, enforcement_action
        ),
            "Time that expressions of validating policies took.";
    }
}

/// The labels of an observation: the phase of admission and the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AdmissionLabels {
    /// `admit` or `validate`.
    pub(crate) step: &'static str,
    pub(crate) operation: &'static str,
}

/// The result of a webhook call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WebhookOutcome {
    Allowed,
    /// The webhook rejected the request with this code.
    Refused(u16),
    /// The call failed or its response was invalid, and the request fails.
    Failed,
    /// The call failed, and the request continues.
    Ignored,
}

impl Admission {
    /// Counts one phase of admission.
    pub(crate) fn step(&self, labels: AdmissionLabels, is_rejected: bool, took: Duration) {
        let labels = [labels.step, labels.operation, truth(is_rejected)];
        self.steps.with(&labels).observe(took.as_secs_f64());
    }

    /// Counts one admission step.
    pub(crate) fn controller(
        &self,
        name: &str,
        labels: AdmissionLabels,
        rejected: bool,
        took: Duration,
    ) {
        let labels = [name, labels.step, labels.operation, truth(rejected)];
        self.controllers.with(&labels).observe(took.as_secs_f64());
    }

    /// Counts a call of a webhook.
    pub(crate) fn webhook(
        &self,
        name: &str,
        labels: AdmissionLabels,
        called: WebhookOutcome,
        took: Duration,
    ) {
        let AdmissionLabels { step, operation } = labels;
        let rejected = truth(!matches!(called, WebhookOutcome::Allowed | WebhookOutcome::Ignored));
        let code = match called {
            WebhookOutcome::Allowed => 200,
            WebhookOutcome::Refused(code) => code.min(CODE_MAX),
            WebhookOutcome::Failed | WebhookOutcome::Ignored => 500,
        };
        let code = code.to_string();
        self.requests.with(&[name, step, operation, &code, rejected]).inc();
        self.webhooks.with(&[name, step, operation, rejected]).observe(took.as_secs_f64());
        let (why, code) = match called {
            WebhookOutcome::Allowed => return,
            WebhookOutcome::Ignored => return self.fail_open.with(&[name, step]).inc(),
            WebhookOutcome::Refused(_) => ("no_error", code.as_str()),
            WebhookOutcome::Failed => ("calling_webhook_error", "0"),
        };
        self.rejections.with(&[name, step, operation, why, code]).inc();
    }

    /// Counts an expression of a validating policy, under the names of the policy and its binding.
    pub(crate) fn expression(
        &self,
        [policy, binding]: [&str; 2],
        error: &str,
        action: &str,
        took: Duration,
    ) {
        let labels = [policy, binding, error, action];
        self.policy_checks.with(&labels).inc();
        self.policy_durations.with(&labels).observe(took.as_secs_f64());
    }

    /// Counts match conditions that are false. `kind` is `webhook` or `policy`.
    pub(crate) fn excluded(&self, name: &str, kind: &str, labels: AdmissionLabels) {
        self.condition_exclusions.with(&[name, kind, labels.step, labels.operation]).inc();
    }

    /// Counts match conditions that cannot be evaluated.
    pub(crate) fn unjudged(&self, name: &str, kind: &str, labels: AdmissionLabels) {
        self.condition_errors.with(&[name, kind, labels.step, labels.operation]).inc();
    }
}

fn truth(is: bool) -> &'static str {
    if is { "true" } else { "false" }
}

families! {
    /// Families about conversion webhooks.
    pub struct Conversions {
        requests: Counter = apiserver_conversion_webhook_request_total(result, failure_type),
            "Calls of conversion webhooks.";
        durations: Histogram(CONVERSION_DURATIONS) = apiserver_conversion_webhook_duration_seconds(
            result, failure_type
        ),
            "Time that calls of conversion webhooks took.";
        by_definition: Histogram(DEFINITION_DURATIONS) = apiserver_crd_conversion_webhook_duration_seconds(
            crd_name, from_version, to_version, succeeded
        ),
            "Time that calls of conversion webhooks took, by definition.";
    }
}

impl Conversions {
    /// Counts a call. `versions` are the source and the target version; no `trouble` is success.
    pub(crate) fn called(
        &self,
        definition: &str,
        versions: [&str; 2],
        trouble: &str,
        took: Duration,
    ) {
        let result = if trouble.is_empty() { "success" } else { "failure" };
        self.requests.with(&[result, trouble]).inc();
        self.durations.with(&[result, trouble]).observe(took.as_secs_f64());
        let labels = [definition, versions[0], versions[1], truth(trouble.is_empty())];
        self.by_definition.with(&labels).observe(took.as_secs_f64());
    }
}
