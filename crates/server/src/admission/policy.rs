//! Admission policies: CEL expressions that validate or mutate objects.
//!
//! River: defaults → **mutating policies** → mutating webhooks → validation → **validating
//! policies** → validating webhooks. A policy takes effect through bindings, which select requests and
//! parameters.
//! Promise: the expressions of one policy stay within Kubernetes' budget for each object; their errors
//! are handled by the failure policy.

use std::collections::BTreeMap;
use std::sync::Arc;

use headwater_api::selector::LabelSelector;
use headwater_api::{Object, Status, status as api_status};
use headwater_cache::Snapshot;
use headwater_cel::{Budget, Environment, Error, Program, Value as Cel, Variables};
use headwater_cel::{EXPRESSION_COST_MAX, OBJECT_COST_MAX};
use headwater_json::Value;
use headwater_schema::patch;
use headwater_schema::types::Types;
use tokio::time::Instant;

use super::matching::{self, Conditions, Match, Verdict};
use super::request::{AdmissionRequest, Versioned, describe};
use super::{Attempt, webhook};
use crate::answer::status;
use crate::backend::Backend;
use crate::kinds::registry::Served;
use crate::kinds::versions;
use crate::object::tree;
use crate::system::metrics::admission::{Admission, AdmissionLabels};
use names::Names;

pub(super) mod check;
pub(super) mod names;
pub(super) mod parameter_rights;
pub(super) mod typecheck;

/// A policy with one of its bindings.
pub(crate) struct Bound {
    policy: Arc<Policy>,
    name: String,
    matching: Option<Match>,
    parameters: Option<Parameters>,
    actions: Actions,
}

/// A policy.
struct Policy {
    name: String,
    matching: Match,
    conditions: Conditions,
    variables: Vec<Variable>,
    checks: Vec<Check>,
    mutations: Vec<Mutation>,
    ignore: bool,
    /// Whether it is reinvoked after a later change.
    again: bool,
    parameter_kind: Option<ParameterKind>,
}

/// The kind of the parameters of a policy.
struct ParameterKind {
    group: String,
    version: String,
    kind: String,
}

impl ParameterKind {
    /// The kind that the spec of a policy names, if the policy has parameters.
    fn of(spec: &Value) -> Option<ParameterKind> {
        let named = spec.get("paramKind").filter(|named| named.is_object())?;
        let version = text(&named["apiVersion"]);
        let (group, version) = version.split_once('/').unwrap_or(("", &version));
        let (group, version) = (group.to_owned(), version.to_owned());
        Some(ParameterKind { group, version, kind: text(&named["kind"]) })
    }
}

/// One of `variables`.
struct Variable {
    name: String,
    /// The name as expressions use it.
    path: String,
    program: Result<Program, String>,
}

struct Check {
    text: String,
    program: Result<Program, String>,
    message: String,
    message_expression: Option<Program>,
    reason: String,
}

struct Mutation {
    program: Result<Program, String>,
    kind: MutationKind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum MutationKind {
    Apply,
    JsonPatch,
}

#[derive(Default)]
struct Actions {
    deny: bool,
    warn: bool,
}

/// The selection of parameter objects.
struct Parameters {
    name: String,
    namespace: String,
    selector: Option<LabelSelector>,
    /// Whether missing parameters are allowed.
    may_be_missing: bool,
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn compile(expression: &Value, known: &Environment<'_>) -> Result<Program, String> {
    let text = expression.as_str().unwrap_or_default();
    Program::compile(text, known).map_err(|error| error.to_string())
}

impl Policy {
    fn read(policy: &Value) -> Policy {
        let spec = &policy["spec"];
        let list = |key: &str| spec[key].as_array().map(Vec::as_slice).unwrap_or_default();
        let parameter_kind = ParameterKind::of(spec);
        let constraints = &spec["matchConstraints"];
        let names = Names::open(parameter_kind.is_some());
        let (known, mutating) = (names.of_policy(spec), names.of_mutation(spec));
        Policy {
            name: text(&policy["metadata"]["name"]),
            matching: Match::read(constraints, "resourceRules", "excludeResourceRules"),
            conditions: Conditions::read(&spec["matchConditions"], &names.of_conditions()),
            variables: list("variables")
                .iter()
                .map(|variable| Variable {
                    name: text(&variable["name"]),
                    path: format!("variables.{}", text(&variable["name"])),
                    program: compile(&variable["expression"], &known),
                })
                .collect(),
            checks: list("validations").iter().map(|check| Check::read(check, &known)).collect(),
            mutations: list("mutations")
                .iter()
                .map(|mutation| Mutation::read(mutation, &mutating))
                .collect(),
            ignore: spec["failurePolicy"] == "Ignore",
            again: spec["reinvocationPolicy"] == "IfNeeded",
            parameter_kind,
        }
    }
}

impl Policy {
    /// Has all questions to authorization webhooks answered before the evaluation that counts.
    async fn settle(&self, setting: &Setting<'_>) {
        let checks = setting.asked.checks;
        while checks.may_wait() {
            self.evaluate_all(setting);
            if !checks.answer_open().await {
                return;
            }
        }
    }

    /// Evaluates every expression, without an effect.
    fn evaluate_all<'a>(&'a self, setting: &Setting<'a>) {
        let mut budget = Budget::new(OBJECT_COST_MAX);
        let variables = setting.with_own(self, &mut budget);
        if !matches!(self.conditions.judge(&variables), Verdict::Holds) {
            return;
        }
        let checks = self.checks.iter().flat_map(|check| {
            check.program.as_ref().ok().into_iter().chain(&check.message_expression)
        });
        let mutations = self.mutations.iter().filter_map(|mutation| mutation.program.as_ref().ok());
        for program in checks.chain(mutations) {
            // An error shows in the evaluation that counts.
            let _ = run(program, &variables, &mut budget);
        }
    }
}

impl Check {
    fn read(check: &Value, known: &Environment<'_>) -> Check {
        let message = &check["messageExpression"];
        Check {
            text: text(&check["expression"]),
            program: compile(&check["expression"], known),
            message: text(&check["message"]).trim().to_owned(),
            message_expression: message.as_str().and_then(|_| compile(message, known).ok()),
            reason: text(&check["reason"]),
        }
    }
}

impl Mutation {
    fn read(mutation: &Value, known: &Environment<'_>) -> Mutation {
        let (kind, expression) = match mutation["patchType"] == "JSONPatch" {
            true => (MutationKind::JsonPatch, &mutation["jsonPatch"]["expression"]),
            false => (MutationKind::Apply, &mutation["applyConfiguration"]["expression"]),
        };
        Mutation { program: compile(expression, known), kind }
    }
}

impl Bound {
    /// Every binding with its policy, by the name of the binding.
    pub(super) fn all(policies: &Snapshot, bindings: &Snapshot) -> Vec<Bound> {
        let read = |object: &Arc<Object>| tree(object.as_slice()).ok();
        let mut known: BTreeMap<String, Arc<Policy>> = BTreeMap::new();
        for policy in policies.iter("", None).filter_map(read) {
            let policy = Policy::read(&policy);
            known.insert(policy.name.clone(), Arc::new(policy));
        }
        let bound = |binding: Value| {
            let policy = known.get(binding["spec"]["policyName"].as_str()?)?;
            Some(Bound::read(&binding, Arc::clone(policy)))
        };
        bindings.iter("", None).filter_map(read).filter_map(bound).collect()
    }

    fn read(binding: &Value, policy: Arc<Policy>) -> Bound {
        let spec = &binding["spec"];
        let parameters = &spec["paramRef"];
        let actions = spec["validationActions"].as_array();
        let has =
            |action: &str| actions.is_some_and(|list| list.iter().any(|known| known == action));
        let resources = &spec["matchResources"];
        Bound {
            policy,
            name: text(&binding["metadata"]["name"]),
            matching: resources.is_object().then(|| Match::read_open(resources)),
            parameters: parameters.is_object().then(|| Parameters {
                name: text(&parameters["name"]),
                namespace: text(&parameters["namespace"]),
                selector: parameters["selector"]
                    .is_object()
                    .then(|| matching::selector(&parameters["selector"]).ok())
                    .flatten(),
                may_be_missing: parameters["parameterNotFoundAction"] == "Allow",
            }),
            actions: Actions { deny: has("Deny"), warn: has("Warn") },
        }
    }

    /// The version in which the request is evaluated; `None` if it does not match.
    fn matches(
        &self,
        backend: &Backend,
        asked: &AdmissionRequest<'_>,
        objects: [Option<&Value>; 2],
    ) -> Result<Option<Arc<Served>>, String> {
        let (registry, cache) = (backend.registry(), backend.cache());
        if let Some(own) = &self.matching
            && own.find(asked, &registry, cache, objects)?.is_none()
        {
            return Ok(None);
        }
        self.policy.matching.find(asked, &registry, cache, objects)
    }

    /// The parameter objects; one `null` if the policy takes none.
    async fn parameters(
        &self,
        backend: &Backend,
        asked: &AdmissionRequest<'_>,
    ) -> Result<Vec<Value>, String> {
        let (Some(ParameterKind { group, version, kind }), Some(wanted)) =
            (&self.policy.parameter_kind, &self.parameters)
        else {
            return Ok(vec![Value::Null]);
        };
        let registry = backend.registry();
        let Some(row) = registry.find_kind(group, version, kind) else {
            return Err(format!(
                "failed to find resource referenced by paramKind: '{group}/{version}, Kind={kind}'"
            ));
        };
        let namespace = match (row.namespaced, wanted.namespace.as_str()) {
            (false, _) => "",
            (true, "") => asked.namespace,
            (true, namespace) => namespace,
        };
        if row.namespaced && namespace.is_empty() {
            return Err("cannot use namespaced paramRef in policy binding that matches cluster-scoped resources".into());
        }
        let cache = backend.cache();
        let snapshot = cache.snapshot(&cache.resource(&row.prefix));
        let selected = snapshot.iter(namespace, None).filter(|object| match &wanted.selector {
            Some(selector) => selector.matches_object(object),
            None => object.name() == wanted.name,
        });
        let found: Vec<Arc<Object>> = selected.cloned().collect();
        let found = versions::objects(backend.converter(), row, &found).await;
        let found = found.map_err(|status| status.message)?;
        let found: Vec<Value> =
            found.iter().filter_map(|object| tree(object.as_slice()).ok()).collect();
        match (found.is_empty(), wanted.may_be_missing) {
            (true, false) => {
                Err("no params found for policy binding with `Deny` parameterNotFoundAction".into())
            }
            _ => Ok(found),
        }
    }

    /// Applies the failure policy to an error.
    fn failed(&self, asked: &AdmissionRequest<'_>, why: &str) -> Result<(), Status> {
        if self.policy.ignore {
            tracing::warn!(
                policy = self.policy.name,
                "ignored because of failurePolicy Ignore: {why}"
            );
            return Ok(());
        }
        Err(self.denied(asked, why, ""))
    }

    fn denied(&self, asked: &AdmissionRequest<'_>, why: &str, reason: &str) -> Status {
        let (policy, binding, kind) = (&self.policy.name, &self.name, asked.kind);
        let message = format!(
            "ValidatingAdmissionPolicy '{policy}' with binding '{binding}' denied request: {why}"
        );
        let mut status = status::forbidden(&kind.group, &kind.plural, asked.name, &message);
        (status.reason, status.code) = match reason {
            "Unauthorized" => ("Unauthorized".into(), 401),
            "Forbidden" => ("Forbidden".into(), 403),
            "RequestEntityTooLarge" => ("RequestEntityTooLarge".into(), 413),
            _ => ("Invalid".into(), 422),
        };
        let cause = api_status::Cause { message, ..api_status::Cause::default() };
        status.details.get_or_insert_default().causes.push(cause);
        status
    }
}

/// The context of one evaluation.
struct Setting<'a> {
    asked: &'a AdmissionRequest<'a>,
    seen: &'a Versioned<'a>,
    request: &'a Value,
    namespace: &'a Value,
    parameters: &'a Value,
}

impl<'a> Setting<'a> {
    fn variables(&self) -> Variables<'a> {
        matching::variables(self.asked, self.seen, self.request)
            .with("namespaceObject", Cel::json(self.namespace))
            .with("params", Cel::json(self.parameters))
    }

    /// Adds the policy's own variables; each may use earlier ones. Using a failed one is an error.
    fn with_own(&self, policy: &'a Policy, budget: &mut Budget) -> Variables<'a> {
        let mut plain = self.variables();
        let mut own: BTreeMap<headwater_cel::MapKey, Cel<'a>> = BTreeMap::new();
        for variable in &policy.variables {
            let variables = plain.clone().with("variables", own.clone().into());
            let (name, how, why) = match &variable.program {
                Ok(program) => match run(program, &variables, budget) {
                    Ok(value) => {
                        let name = headwater_cel::MapKey::Text(variable.name.as_str().into());
                        own.insert(name, value);
                        continue;
                    }
                    Err(why) => (&variable.name, "evaluate", why),
                },
                Err(why) => (&variable.name, "compile", why.clone()),
            };
            let why = format!("composited variable {name:?} fails to {how}: {why}");
            plain.add(&variable.path, Err(Error::Other(why)));
        }
        plain.with("variables", own.into())
    }
}

fn namespace_object(backend: &Backend, asked: &AdmissionRequest<'_>) -> Value {
    if asked.namespace.is_empty() || super::is_namespace(asked.kind) {
        return Value::Null;
    }
    let cache = backend.cache();
    let snapshot = cache.snapshot(&cache.resource("/registry/core/namespaces/"));
    snapshot
        .get(asked.namespace)
        .and_then(|object| tree(object.as_slice()).ok())
        .unwrap_or_default()
}

/// Evaluates every validating policy.
pub(super) async fn validate(
    bound: &[Bound],
    backend: &Backend,
    asked: &AdmissionRequest<'_>,
    new: Option<&Value>,
    old: Option<&Value>,
    warnings: &mut Vec<String>,
) -> Result<(), Status> {
    for bound in bound {
        let kind = match bound.matches(backend, asked, [new, old]) {
            Ok(Some(kind)) => kind,
            Ok(None) => continue,
            Err(why) => {
                bound.failed(asked, &why)?;
                continue;
            }
        };
        let seen = Versioned::new(backend, &kind, new, old).await?;
        let request = describe(asked, &seen);
        let namespace = namespace_object(backend, asked);
        let parameters = match bound.parameters(backend, asked).await {
            Ok(parameters) => parameters,
            Err(why) => {
                bound.failed(asked, &format!("failed to configure binding: {why}"))?;
                continue;
            }
        };
        for parameters in &parameters {
            let setting = Setting {
                asked,
                seen: &seen,
                request: &request,
                namespace: &namespace,
                parameters,
            };
            bound.policy.settle(&setting).await;
            bound.judge(&setting, asked, &backend.metrics().admission, warnings)?;
        }
    }
    Ok(())
}

impl Bound {
    fn judge(
        &self,
        setting: &Setting<'_>,
        asked: &AdmissionRequest<'_>,
        metrics: &Admission,
        warnings: &mut Vec<String>,
    ) -> Result<(), Status> {
        let policy = &*self.policy;
        let labels = AdmissionLabels { step: "validate", operation: asked.operation.name() };
        let mut budget = Budget::new(OBJECT_COST_MAX);
        let variables = setting.with_own(policy, &mut budget);
        match policy.conditions.judge(&variables) {
            Verdict::Holds => {}
            Verdict::Fails => {
                metrics.excluded(&policy.name, "policy", labels);
                return Ok(());
            }
            Verdict::Unknown(why) => {
                metrics.unjudged(&policy.name, "policy", labels);
                return self.failed(asked, &why);
            }
        }
        for check in &policy.checks {
            let begun = Instant::now();
            let found = match &check.program {
                Ok(program) => run(program, &variables, &mut budget),
                Err(why) => Err(format!("compilation error: {why}")),
            };
            let error = match (&check.program, &found) {
                (Err(_), _) => "compile_error",
                (_, Err(_)) => "invalid_error",
                (_, Ok(_)) => "no_error",
            };
            let names = [policy.name.as_str(), self.name.as_str()];
            let count = |action: &str| metrics.expression(names, error, action, begun.elapsed());
            let (why, reason) = match found {
                Ok(Cel::Bool(true)) => {
                    count("allow");
                    continue;
                }
                Err(_) if policy.ignore => {
                    count("allow");
                    continue;
                }
                Ok(_) => (check.message(&variables, &mut budget), check.reason.as_str()),
                Err(why) => (format!("expression '{}' resulted in error: {why}", check.text), ""),
            };
            if self.actions.warn {
                count("warn");
                let (policy, binding) = (&policy.name, &self.name);
                warnings.push(format!(
                    "Validation failed for ValidatingAdmissionPolicy '{policy}' with binding '{binding}': {why}"
                ));
            }
            if self.actions.deny {
                count("deny");
                return Err(self.denied(asked, &why, reason));
            }
        }
        Ok(())
    }
}

/// Runs an expression within its own budget and that of the policy.
fn run<'a>(
    program: &'a Program,
    variables: &Variables<'a>,
    budget: &mut Budget,
) -> Result<Cel<'a>, String> {
    budget.part(EXPRESSION_COST_MAX, |part| program.run(variables, part)).map_err(|e| e.to_string())
}

impl Check {
    fn message<'a>(&'a self, variables: &Variables<'a>, budget: &mut Budget) -> String {
        let made = self.message_expression.as_ref().and_then(|program| {
            let value = run(program, variables, budget).ok()?;
            let text = value.as_text()?.trim().to_owned();
            (!text.is_empty() && !text.contains(['\n', '\r'])).then_some(text)
        });
        made.unwrap_or_else(|| match self.message.is_empty() {
            true => format!("failed expression: {}", self.text.trim()),
            false => self.message.clone(),
        })
    }
}

impl Bound {
    /// Whether it is reinvoked after later changes.
    pub(super) fn looks_again(&self) -> bool {
        self.policy.again
    }

    /// Mutates the object. Returns `None` if it does not match, else whether the object changed.
    pub(super) async fn mutate(
        &self,
        backend: &Backend,
        asked: &AdmissionRequest<'_>,
        attempt: &mut Attempt<'_>,
    ) -> Result<Option<bool>, Status> {
        let found = self.matches(backend, asked, [Some(&*attempt.new), attempt.old]);
        let kind = match found {
            Ok(Some(kind)) => kind,
            Ok(None) => return Ok(None),
            Err(why) => return self.failed(asked, &why).map(|()| None),
        };
        let namespace = namespace_object(backend, asked);
        let parameters = match self.parameters(backend, asked).await {
            Ok(parameters) => parameters,
            Err(why) => {
                let why = format!("failed to configure binding: {why}");
                return self.failed(asked, &why).map(|()| None);
            }
        };
        let mut any = false;
        for parameters in &parameters {
            let changed = self.change(backend, &kind, asked, &namespace, parameters, attempt);
            match changed.await {
                Ok(changed) => any |= changed,
                Err(why) => self.failed(asked, &why)?,
            }
        }
        Ok(Some(any))
    }

    /// Applies the mutations in order; each sees the result of the previous one.
    async fn change(
        &self,
        backend: &Backend,
        kind: &Arc<Served>,
        asked: &AdmissionRequest<'_>,
        namespace: &Value,
        parameters: &Value,
        attempt: &mut Attempt<'_>,
    ) -> Result<bool, String> {
        let mut budget = Budget::new(OBJECT_COST_MAX);
        let mut any = false;
        for mutation in &self.policy.mutations {
            let seen = Versioned::new(backend, kind, Some(&*attempt.new), attempt.old).await;
            let seen = seen.map_err(|status| status.message)?;
            let request = describe(asked, &seen);
            let setting = Setting { asked, seen: &seen, request: &request, namespace, parameters };
            self.policy.settle(&setting).await;
            let variables = setting.with_own(&self.policy, &mut budget);
            match self.policy.conditions.judge(&variables) {
                Verdict::Holds => {}
                Verdict::Fails => return Ok(any),
                Verdict::Unknown(why) => return Err(why),
            }
            let program =
                mutation.program.as_ref().map_err(|why| format!("compilation error: {why}"))?;
            let made = run(program, &variables, &mut budget)?;
            let made = made.to_json().ok_or("the expression does not make an object")?;
            let mut changed = seen.object.clone();
            match mutation.kind {
                MutationKind::JsonPatch => {
                    patch::json(&mut changed, made).map_err(|e| e.to_string())?
                }
                MutationKind::Apply => merge(kind, &mut changed, made)?,
            }
            if changed != seen.object {
                let adopted = webhook::adopt(attempt, backend, asked.call, kind, changed).await;
                adopted.map_err(|status| status.message)?;
                any = true;
            }
        }
        Ok(any)
    }
}

/// Merges an apply configuration: lists of built-in kinds by key, custom ones as a merge patch.
fn merge(kind: &Served, object: &mut Value, made: Value) -> Result<(), String> {
    match Types::builtin().of(kind).filter(|_| !kind.custom) {
        Some(of) => patch::strategic(object, made, of).map_err(|error| error.to_string()),
        None => patch::merge(object, made).map_err(|error| error.to_string()),
    }
}
