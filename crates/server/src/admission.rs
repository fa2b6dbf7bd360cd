//! Admission: the steps an object passes between its decoding and the store.
//!
//! River: body → **admission** → store. Each step is small, looks at one thing, and either changes
//! the object, refuses it, or lets it pass. Their order is that of [`WHOLE`], [`FIRST`], [`SECOND`]
//! and [`LAST`]; between those come what administrators add: mutating webhooks, then validating ones.

pub(crate) mod addresses;
pub(crate) mod claims;
pub(crate) mod definitions;
pub(crate) mod doors;
pub(crate) mod manage;
mod account;
mod authority;
mod classes;
pub(crate) mod extensions;
mod limits;
pub(crate) mod matching;
mod mutate;
mod namespaces;
mod nodes;
mod observed;
mod owners;
mod pods;
mod policy;
pub(crate) mod quota;
pub(crate) mod request;
mod resources;
mod system;
mod validation;
mod webhook;

use extensions::{Compiled, Extensions};
use headwater_api::Status;
use headwater_api::options::WriteOptions;
use headwater_cache::Cache;
use headwater_json::{Value, json};
use jiff::Timestamp;

use crate::admission::definitions::{Definitions, StoredForm};
use crate::backend::Backend;
use crate::kinds::registry::Served;
use crate::object::{is_deleting, meta};
use crate::request::call::Call;
use manage::{Manager, Untouched};
pub(crate) use namespaces::is_namespace;
use observed::Observed;
use quota::{Held, Quotas};
use request::{Asked, Operation};

/// An object on its way to the store.
pub(crate) struct Attempt<'a> {
    pub(crate) cache: &'a Cache,
    pub(crate) kind: &'a Served,
    pub(crate) namespace: &'a str,
    pub(crate) subresource: &'a str,
    /// What is to be stored.
    pub(crate) new: &'a mut Value,
    /// What it replaces; `None` for a create.
    pub(crate) old: Option<&'a Value>,
    /// What was to be stored before the server, webhooks and policies added to it, if they did.
    pub(crate) untouched: Option<Untouched>,
    pub(crate) now: Timestamp,
}

/// One step.
pub(crate) trait Admit: Sync {
    /// Changes or refuses the object.
    fn admit(&self, attempt: &mut Attempt<'_>) -> Result<(), Status>;
}

/// Steps that make the object whole, as the reference does when it decodes: whoever creates it
/// manages what is there after them.
const WHOLE: &[&dyn Admit] = &[&namespaces::Lifecycle, &system::Defaults, &namespaces::Labels];

/// Steps that add to it, before mutating webhooks and policies.
const FIRST: &[&dyn Admit] = &[
    &account::Account,
    &pods::Priority,
    &nodes::NotReadyTaint,
    &classes::Classes,
    &limits::Defaults,
];

/// Steps between those and validating ones.
const SECOND: &[&dyn Admit] = &[
    &system::Fields,
    &namespaces::Labels,
    &Definitions,
    &validation::Fields,
    &system::ServiceAddresses,
    &limits::Limits,
];

/// Steps at the end.
const LAST: &[&dyn Admit] = &[&StoredForm];

fn pass(steps: &[&dyn Admit], attempt: &mut Attempt<'_>) -> Result<(), Status> {
    steps.iter().try_for_each(|step| step.admit(attempt))
}

/// Takes an object of the server's own through every step.
pub(crate) fn admit_own(mut attempt: Attempt<'_>) -> Result<(), Status> {
    [WHOLE, FIRST, SECOND, LAST].iter().try_for_each(|steps| pass(steps, &mut attempt))
}

/// What admission keeps between requests.
pub(crate) struct Admission {
    pub(crate) extensions: Extensions,
    pub(crate) quotas: Quotas,
}

impl Admission {
    /// Reads configurations and quotas from the cache.
    pub(crate) fn new(cache: &Cache) -> Admission {
        Admission { extensions: Extensions::new(cache), quotas: Quotas::new(cache) }
    }
}

/// Where an object comes from.
#[derive(Clone, Copy)]
pub(crate) struct Origin<'a> {
    pub(crate) backend: &'a Backend,
    pub(crate) admission: &'a Admission,
    pub(crate) call: &'a Call,
    pub(crate) options: &'a WriteOptions,
    /// Whether it is known already who manages which field.
    pub(crate) is_managed: bool,
}

impl Origin<'_> {
    /// Who manages what in a new object as it is now.
    fn entries(&self, kind: &Served, new: &mut Value) -> Result<Option<Value>, Status> {
        let manager = Manager::new(self.backend, self.call, kind, "", self.options);
        Ok(manager.entries(new)?)
    }
}

/// Whether nobody claims to manage anything in an object.
fn is_unclaimed(object: &Value) -> bool {
    object["metadata"].get("managedFields").is_none()
}

/// What an admitted object leaves.
pub(crate) struct Admitted {
    /// To be held until the object is stored.
    pub(crate) held: Held,
    /// The object before anybody added to it.
    pub(crate) untouched: Option<Untouched>,
}

/// Takes an object through every step, and past webhooks and policies if there are any.
pub(crate) async fn admit(
    mut attempt: Attempt<'_>,
    origin: Origin<'_>,
) -> Result<Admitted, Status> {
    let Origin { backend, admission, call, options, is_managed } = origin;
    let operation = match attempt.old {
        None => Operation::Create,
        Some(_) => Operation::Update,
    };
    let observed = |step| Observed::new(backend.metrics(), step, operation);
    let extensions = admission.extensions.current().filter(|_| is_open(attempt.kind));
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
        pass(WHOLE, &mut attempt)?;
        if attempt.old.is_none() && is_added_to(kind) && !is_managed {
            attempt.untouched = Some(match extensions {
                None if is_unclaimed(attempt.new) => {
                    Untouched::Entries(origin.entries(kind, attempt.new)?)
                }
                _ => Untouched::Object(attempt.new.clone()),
            });
        }
        pass(FIRST, &mut attempt)?;
        match &extensions {
            Some(extensions) => {
                let (attempt, warnings) = (&mut attempt, &mut warnings);
                Box::pin(mutate::mutate(extensions, backend, &asked, attempt, warnings)).await
            }
            None => Ok(()),
        }
    };
    observed("admit").step(mutated).await?;
    pass(SECOND, &mut attempt)?;
    policy::typecheck::settle(backend, kind, attempt.new, attempt.old);
    let validated = async {
        owners::check(&attempt, &call.identity, backend)?;
        if let Some(extensions) = &extensions {
            let objects = [Some(&*attempt.new), attempt.old];
            Box::pin(validate(extensions, backend, &asked, objects, &mut warnings)).await?;
        }
        // Last of all that may refuse: nothing is counted that is not stored.
        admission.quotas.admit(backend, &attempt).await
    };
    let held = observed("validate").step(validated).await?;
    call.warn(warnings);
    pass(LAST, &mut attempt)?;
    Ok(Admitted { held, untouched: attempt.untouched })
}

/// Kinds whose new objects get more from the server than defaults: addresses, priorities, volumes,
/// classes, selectors. Nobody manages that, so that nobody has to fight over it.
const ADDED_TO: &[(&str, &str)] = &[
    ("", "namespaces"),
    ("", "nodes"),
    ("", "persistentvolumeclaims"),
    ("", "pods"),
    ("", "services"),
    ("batch", "jobs"),
    ("networking.k8s.io", "ingresses"),
];

fn is_added_to(kind: &Served) -> bool {
    ADDED_TO.iter().any(|(group, plural)| kind.plural == *plural && kind.group == *group)
}

/// What configures admission is not subject to it: a mistake could not be undone otherwise.
fn is_open(kind: &Served) -> bool {
    kind.group != "admissionregistration.k8s.io"
}

/// Asks validating policies, then validating webhooks.
async fn validate(
    extensions: &Compiled,
    backend: &Backend,
    asked: &Asked<'_>,
    [new, old]: [Option<&Value>; 2],
    warnings: &mut Vec<String>,
) -> Result<(), Status> {
    let observed = Observed::new(backend.metrics(), "validate", asked.operation);
    let policies = &extensions.validating_policies;
    let judged = policy::validate(policies, backend, asked, new, old, warnings);
    observed.controller("ValidatingAdmissionPolicy", policies.len(), judged).await?;
    let hooks = &extensions.validating;
    let judged = webhook::validate(hooks, backend, observed.labels(), asked, [new, old], warnings);
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
    backend: &Backend,
    admission: &Admission,
    call: &Call,
    removal: Removal<'_>,
) -> Result<(), Status> {
    let extensions = admission.extensions.current().filter(|_| is_open(removal.kind));
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
    let observed = Observed::new(backend.metrics(), "admit", Operation::Delete);
    let hooks = &extensions.mutating;
    let judged =
        webhook::validate(hooks, backend, observed.labels(), &asked, objects, &mut warnings);
    let judged = observed.controller("MutatingAdmissionWebhook", hooks.len(), judged);
    observed.step(Box::pin(judged)).await?;
    let observed = Observed::new(backend.metrics(), "validate", Operation::Delete);
    let judged = validate(&extensions, backend, &asked, objects, &mut warnings);
    observed.step(Box::pin(judged)).await?;
    call.warn(warnings);
    Ok(())
}

/// Whether nothing holds a deleted object any more: it goes with the write that notices.
pub(crate) fn is_released(kind: &Served, value: &Value) -> bool {
    let grace = value["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
    let held = is_namespace(kind)
        && value["spec"]["finalizers"].as_array().is_some_and(|list| !list.is_empty());
    is_deleting(value) && grace == 0 && crate::object::finalizers(value).is_empty() && !held
}
