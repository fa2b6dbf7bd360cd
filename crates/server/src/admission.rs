//! Admission: the steps an object passes between its decoding and the store.
//!
//! River: body → **admission** → store. Each step is small, looks at one thing, and either changes
//! the object, refuses it, or lets it pass. Their order is that of [`FIRST`], [`SECOND`] and [`LAST`];
//! between those come what administrators add: mutating webhooks, then validating ones.

mod authority;
pub(crate) mod extensions;
mod limits;
pub(crate) mod matching;
mod mutate;
mod observed;
mod owners;
mod pods;
mod policy;
pub(crate) mod quota;
pub(crate) mod request;
mod resources;
mod webhook;

use extensions::Compiled;
use headwater_api::Status;
use headwater_api::clock::rfc3339;
use headwater_api::json::{Map, Value, json};
use headwater_api::options::WriteOptions;
use headwater_api::status::{Cause, FieldError};
use headwater_api::{defaults, name, status as api_status, validate};
use headwater_cache::Cache;
use jiff::Timestamp;

use crate::addresses::Addresses;
use crate::custom::admit::{self, Definitions, StoredForm};
use crate::object::{is_deleting, meta, metadata};
use crate::registry::Served;
use crate::server::{Call, Server};
use crate::status;
use observed::Observed;
use quota::Held;
use request::{Asked, Operation};

/// An object on its way to the store.
pub(crate) struct Attempt<'a> {
    pub(crate) cache: &'a Cache,
    pub(crate) addresses: &'a Addresses,
    pub(crate) kind: &'a Served,
    pub(crate) namespace: &'a str,
    pub(crate) subresource: &'a str,
    /// What is to be stored.
    pub(crate) new: &'a mut Value,
    /// What it replaces; `None` for a create.
    pub(crate) old: Option<&'a Value>,
    /// What was to be stored before webhooks and policies changed it, if they did: who wrote what
    /// is told by this.
    pub(crate) untouched: Option<Value>,
    pub(crate) now: Timestamp,
}

/// One step.
pub(crate) trait Admit: Sync {
    /// Changes or refuses the object.
    fn admit(&self, attempt: &mut Attempt<'_>) -> Result<(), Status>;
}

/// Steps before mutating webhooks and policies.
const FIRST: &[&dyn Admit] = &[
    &NamespaceLifecycle,
    &pods::Account,
    &pods::Priority,
    &NotReadyTaint,
    &Defaults,
    &limits::Defaults,
];

/// Steps between those and validating ones.
const SECOND: &[&dyn Admit] =
    &[&SystemFields, &Namespaces, &Definitions, &Validation, &ServiceAddresses, &limits::Limits];

/// Steps at the end.
const LAST: &[&dyn Admit] = &[&StoredForm];

fn pass(steps: &[&dyn Admit], attempt: &mut Attempt<'_>) -> Result<(), Status> {
    steps.iter().try_for_each(|step| step.admit(attempt))
}

/// Takes an object of the server's own through every step.
pub(crate) fn admit_own(mut attempt: Attempt<'_>) -> Result<(), Status> {
    [FIRST, SECOND, LAST].iter().try_for_each(|steps| pass(steps, &mut attempt))
}

/// Where an object comes from.
#[derive(Clone, Copy)]
pub(crate) struct Origin<'a> {
    pub(crate) server: &'a Server,
    pub(crate) call: &'a Call,
    pub(crate) options: &'a WriteOptions,
}

/// What an admitted object leaves.
pub(crate) struct Admitted {
    /// To be held until the object is stored.
    pub(crate) _held: Option<Held>,
    /// The object before webhooks and policies changed it.
    pub(crate) untouched: Option<Value>,
}

/// Takes an object through every step, and past webhooks and policies if there are any.
pub(crate) async fn admit(
    mut attempt: Attempt<'_>,
    origin: Origin<'_>,
) -> Result<Admitted, Status> {
    let Origin { server, call, options } = origin;
    let operation = match attempt.old {
        None => Operation::Create,
        Some(_) => Operation::Update,
    };
    let observed = |step| Observed::new(server.metrics(), step, operation);
    let extensions = server.extensions().current().filter(|_| is_open(attempt.kind));
    let shown = extensions.as_ref().map(|_| request::write_options(operation, options));
    let name = extensions.as_ref().map(|_| meta(attempt.new, "name").to_owned());
    let (kind, name) = (attempt.kind, name.unwrap_or_default());
    let asked = Asked {
        call,
        kind,
        namespace: namespace_of(kind, attempt.namespace, &name),
        name: &name,
        subresource: attempt.subresource,
        operation,
        dry_run: options.dry_run,
        options: shown.as_ref().unwrap_or(&Value::Null),
    };
    let mut warnings = Vec::new();
    let mutated = async {
        pass(FIRST, &mut attempt)?;
        match &extensions {
            Some(extensions) => {
                let (attempt, warnings) = (&mut attempt, &mut warnings);
                Box::pin(mutate::mutate(extensions, server, &asked, attempt, warnings)).await
            }
            None => Ok(()),
        }
    };
    observed("admit").step(mutated).await?;
    pass(SECOND, &mut attempt)?;
    policy::typecheck::settle(server, kind, attempt.new, attempt.old);
    let validated = async {
        owners::check(&attempt, &call.identity, server)?;
        if let Some(extensions) = &extensions {
            let objects = [Some(&*attempt.new), attempt.old];
            Box::pin(validate(extensions, server, &asked, objects, &mut warnings)).await?;
        }
        // Last of all that may refuse: nothing is counted that is not stored.
        server.quotas().admit(server, &attempt).await
    };
    let held = observed("validate").step(validated).await?;
    call.warn(warnings);
    pass(LAST, &mut attempt)?;
    Ok(Admitted { _held: held, untouched: attempt.untouched })
}

/// What configures admission is not subject to it: a mistake could not be undone otherwise.
fn is_open(kind: &Served) -> bool {
    kind.group != "admissionregistration.k8s.io"
}

/// Asks validating policies, then validating webhooks.
async fn validate(
    extensions: &Compiled,
    server: &Server,
    asked: &Asked<'_>,
    [new, old]: [Option<&Value>; 2],
    warnings: &mut Vec<String>,
) -> Result<(), Status> {
    let observed = Observed::new(server.metrics(), "validate", asked.operation);
    let policies = &extensions.validating_policies;
    let judged = policy::validate(policies, server, asked, new, old, warnings);
    observed.controller("ValidatingAdmissionPolicy", policies.len(), judged).await?;
    let hooks = &extensions.validating;
    let judged = webhook::validate(hooks, server, observed.labels(), asked, [new, old], warnings);
    observed.controller("ValidatingAdmissionWebhook", hooks.len(), judged).await
}

/// A namespace is in itself.
fn namespace_of<'a>(kind: &Served, namespace: &'a str, name: &'a str) -> &'a str {
    if is_namespace(kind) { name } else { namespace }
}

/// What is about to be deleted.
pub(crate) struct Removal<'a> {
    pub(crate) kind: &'a Served,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    pub(crate) object: &'a Value,
    pub(crate) dry_run: bool,
}

/// Takes a deletion past webhooks and policies.
pub(crate) async fn admit_removal(
    server: &Server,
    call: &Call,
    removal: Removal<'_>,
) -> Result<(), Status> {
    let extensions = server.extensions().current().filter(|_| is_open(removal.kind));
    let Some(extensions) = extensions else { return Ok(()) };
    let mut options = json!({ "kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1" });
    if removal.dry_run {
        options["dryRun"] = json!(["All"]);
    }
    let asked = Asked {
        call,
        kind: removal.kind,
        namespace: namespace_of(removal.kind, removal.namespace, removal.name),
        name: removal.name,
        subresource: "",
        operation: Operation::Delete,
        dry_run: removal.dry_run,
        options: &options,
    };
    let mut warnings = Vec::new();
    let objects = [None, Some(removal.object)];
    // There is nothing to change in what goes away; a mutating webhook may still refuse.
    let observed = Observed::new(server.metrics(), "admit", Operation::Delete);
    let hooks = &extensions.mutating;
    let judged =
        webhook::validate(hooks, server, observed.labels(), &asked, objects, &mut warnings);
    let judged = observed.controller("MutatingAdmissionWebhook", hooks.len(), judged);
    observed.step(Box::pin(judged)).await?;
    let observed = Observed::new(server.metrics(), "validate", Operation::Delete);
    let judged = validate(&extensions, server, &asked, objects, &mut warnings);
    observed.step(Box::pin(judged)).await?;
    call.warn(warnings);
    Ok(())
}

/// Nothing is created in a namespace that is not there or on its way out (S2.8, S10.2).
struct NamespaceLifecycle;

impl Admit for NamespaceLifecycle {
    fn admit(&self, attempt: &mut Attempt<'_>) -> Result<(), Status> {
        if attempt.namespace.is_empty() || attempt.old.is_some() {
            return Ok(());
        }
        check_namespace(attempt.cache, attempt.kind, attempt.namespace, meta(attempt.new, "name"))
    }
}

/// Whether something may be created in a namespace.
pub(crate) fn check_namespace(
    cache: &Cache,
    kind: &Served,
    namespace: &str,
    name: &str,
) -> Result<(), Status> {
    let namespaces = cache.resource("/registry/core/namespaces/");
    let snapshot = cache.snapshot(&namespaces);
    let Some(object) = snapshot.get(namespace) else {
        let message = format!("namespaces \"{namespace}\" not found");
        return Err(Status::failure(404, "NotFound", message).with_details(api_status::Details {
            name: namespace.into(),
            kind: "namespaces".into(),
            ..api_status::Details::default()
        }));
    };
    if !object.is_deleting() {
        return Ok(());
    }
    let why = format!(
        "unable to create new content in namespace {namespace} because it is being terminated"
    );
    let mut status = status::forbidden(&kind.group, &kind.plural, name, &why);
    let cause = Cause {
        reason: "NamespaceTerminating".into(),
        message: format!("namespace {namespace} is being terminated"),
        field: "metadata.namespace".into(),
    };
    status.details.get_or_insert_default().causes.push(cause);
    Err(status)
}

/// What Kubernetes writes where the author wrote nothing.
struct Defaults;

impl Admit for Defaults {
    fn admit(&self, attempt: &mut Attempt<'_>) -> Result<(), Status> {
        if !attempt.kind.custom {
            defaults::apply(attempt.kind.storage(), attempt.new);
        }
        Ok(())
    }
}

/// What the server keeps and clients cannot write (S2.2, S2.14, S2.50).
struct SystemFields;

impl Admit for SystemFields {
    fn admit(&self, attempt: &mut Attempt<'_>) -> Result<(), Status> {
        match attempt.old {
            None => on_create(attempt),
            Some(old) => on_update(attempt, old),
        }
        Ok(())
    }
}

fn on_create(attempt: &mut Attempt<'_>) {
    let kind = attempt.kind;
    if kind.custom && kind.has_status() {
        attempt.new.as_object_mut().map(|object| object.remove("status"));
    }
    let metadata = metadata(attempt.new);
    for key in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "resourceVersion"] {
        metadata.remove(key);
    }
    metadata.insert("uid".into(), uuid::Uuid::new_v4().to_string().into());
    metadata.insert("creationTimestamp".into(), rfc3339(attempt.now).into());
    if kind.traits.generation {
        metadata.insert("generation".into(), 1.into());
    }
    // Last: a Job is labelled with its uid.
    defaults::prepare_for_create(kind.storage(), attempt.new);
}

fn on_update(attempt: &mut Attempt<'_>, old: &Value) {
    if matches!(attempt.subresource, "" | "scale") {
        defaults::prepare_for_update(attempt.kind.storage(), attempt.new, old);
    }
    let before = &old["metadata"];
    let metadata = metadata(attempt.new);
    metadata.remove("selfLink");
    for key in ["creationTimestamp", "generation"] {
        copy(metadata, before, key);
    }
    if metadata.get("uid").and_then(Value::as_str).is_none_or(str::is_empty) {
        copy(metadata, before, "uid");
    }
    for key in ["deletionTimestamp", "deletionGracePeriodSeconds"] {
        if metadata.get(key).is_none_or(Value::is_null) {
            copy(metadata, before, key);
        }
    }
    if attempt.kind.traits.generation && attempt.subresource != "status" {
        let generation = before["generation"].as_i64().unwrap_or(0);
        if spec_changed(attempt.kind, attempt.new, old) {
            let metadata = self::metadata(attempt.new);
            metadata.insert("generation".into(), (generation + 1).into());
        }
    }
}

fn copy(metadata: &mut Map, before: &Value, key: &str) {
    match before.get(key) {
        Some(value) => metadata.insert(key.into(), value.clone()),
        None => metadata.remove(key),
    };
}

/// Whether the desired state differs: for built-in kinds the spec, for custom ones everything but
/// metadata and, if it has its own subresource, status.
fn spec_changed(kind: &Served, new: &Value, old: &Value) -> bool {
    if !kind.custom {
        // A Deployment's annotations are copied to what it makes.
        let is_deployment = kind.plural == "deployments";
        return new.get("spec") != old.get("spec")
            || (is_deployment && new["metadata"]["annotations"] != old["metadata"]["annotations"]);
    }
    let differs = |key: &str| new.get(key) != old.get(key);
    let skipped = |key: &str| {
        matches!(key, "metadata" | "apiVersion" | "kind") || (key == "status" && kind.has_status())
    };
    let mut keys = [new, old].into_iter().filter_map(Value::as_object).flat_map(Map::keys);
    keys.any(|key| !skipped(key) && differs(key))
}

/// Nothing is scheduled on a new node before it has said that it is ready.
///
/// The reference taints every new node, and its node controller takes the taint away again. A
/// server by itself has none, so a node that says from the start that it is ready is left alone.
struct NotReadyTaint;

impl Admit for NotReadyTaint {
    fn admit(&self, attempt: &mut Attempt<'_>) -> Result<(), Status> {
        let is_node = attempt.kind.plural == "nodes" && attempt.kind.group.is_empty();
        if is_node && attempt.old.is_none() && !is_ready(&attempt.new["status"]) {
            taint_not_ready(&mut attempt.new["spec"]);
        }
        Ok(())
    }
}

/// Whether a node says that it is ready, or what pods may use of it and nothing to the contrary.
fn is_ready(status: &Value) -> bool {
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let ready = conditions.into_iter().find(|condition| condition["type"] == "Ready");
    match ready {
        Some(condition) => condition["status"] == "True",
        None => status["allocatable"].is_object(),
    }
}

fn taint_not_ready(spec: &mut Value) {
    let taint = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
    let same = |held: &Value| held["key"] == taint["key"] && held["effect"] == taint["effect"];
    if spec.is_null() {
        *spec = json!({});
    }
    match spec.get_mut("taints").and_then(Value::as_array_mut) {
        Some(taints) if taints.iter().any(same) => {}
        Some(taints) => taints.push(taint),
        None => spec["taints"] = json!([taint]),
    }
}

/// The rules of Namespace objects (S10.1, S10.4).
struct Namespaces;

impl Admit for Namespaces {
    fn admit(&self, attempt: &mut Attempt<'_>) -> Result<(), Status> {
        if !is_namespace(attempt.kind) {
            return Ok(());
        }
        let name = meta(attempt.new, "name").to_owned();
        let labels = metadata(attempt.new).entry("labels").or_insert_with(|| json!({}));
        if let Some(labels) = labels.as_object_mut() {
            labels.insert("kubernetes.io/metadata.name".into(), name.into());
        }
        Ok(())
    }
}

/// Services get their addresses.
struct ServiceAddresses;

impl Admit for ServiceAddresses {
    fn admit(&self, attempt: &mut Attempt<'_>) -> Result<(), Status> {
        let is_service = attempt.kind.plural == "services" && attempt.kind.group.is_empty();
        if !is_service || attempt.subresource == "status" {
            return Ok(());
        }
        attempt.addresses.assign(attempt.cache, attempt.new, attempt.old)
    }
}

/// What Kubernetes refuses with 422.
struct Validation;

impl Admit for Validation {
    fn admit(&self, attempt: &mut Attempt<'_>) -> Result<(), Status> {
        let kind = attempt.kind.storage();
        admit::check_kind(attempt)?;
        let mut errors: Vec<FieldError> = match attempt.old {
            None => name::metadata_on_create(kind, attempt.new),
            Some(old) => name::metadata_on_update(kind, attempt.new, old),
        };
        if attempt.old.is_some() && !kind.custom {
            // The reference checks the metadata of built-in kinds again and again, and lists every
            // finding: what must not change twice, what must be well-formed four times.
            errors.extend_from_within(..);
            let common = name::metadata_alike(kind, attempt.new);
            errors.extend(common.iter().cloned().chain(common.iter().cloned()));
        }
        match attempt.old {
            None => errors.extend(validate::create(kind, attempt.new)),
            // The other doors lead to parts that their own handlers have looked at.
            Some(old) if matches!(attempt.subresource, "" | "scale") => {
                errors.extend(validate::update(kind, attempt.new, old));
            }
            Some(_) if is_namespace(attempt.kind) => {
                errors.extend(namespace_errors(attempt.subresource, attempt.new));
            }
            Some(_) => {}
        }
        errors.extend(admit::errors(attempt));
        if webhook::check::is_configuration(attempt.kind) {
            errors.extend(webhook::check::errors(attempt.new));
        }
        errors.extend(policy::check::errors(attempt.kind, attempt.new));
        if errors.is_empty() {
            return Ok(());
        }
        let name = meta(attempt.new, "name");
        Err(api_status::invalid(&attempt.kind.group, &attempt.kind.kind.kind, name, &errors))
    }
}

/// What the doors of a Namespace do not let pass: a phase that is not that of its life, and
/// finalizers that are nobody's (S10.3).
fn namespace_errors(subresource: &str, namespace: &Value) -> Vec<FieldError> {
    if subresource == "finalize" {
        let finalizers = namespace["spec"]["finalizers"].as_array().into_iter().flatten();
        let names = finalizers.map(|name| name.as_str().unwrap_or_default());
        let checked = names.enumerate().flat_map(|(index, finalizer)| {
            name::finalizer(finalizer, &format!("spec.finalizers[{index}]"))
        });
        return checked.collect();
    }
    let (phase, when) = match is_deleting(namespace) {
        true => ("Terminating", "not empty"),
        false => ("Active", "empty"),
    };
    let found = namespace["status"]["phase"].as_str().unwrap_or_default();
    if found == phase {
        return Vec::new();
    }
    let why = format!("may only be '{phase}' if `deletionTimestamp` is {when}");
    vec![FieldError::invalid("status.Phase", &found.into(), why)]
}

/// Whether nothing holds a deleted object any more: it goes with the write that notices.
pub(crate) fn is_released(kind: &Served, value: &Value) -> bool {
    let grace = value["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
    let held = is_namespace(kind)
        && value["spec"]["finalizers"].as_array().is_some_and(|list| !list.is_empty());
    is_deleting(value) && grace == 0 && crate::object::finalizers(value).is_empty() && !held
}

/// Whether the kind is Namespace.
pub(crate) fn is_namespace(kind: &Served) -> bool {
    kind.plural == "namespaces" && kind.group.is_empty()
}
