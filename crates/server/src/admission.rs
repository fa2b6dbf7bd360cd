//! Admission: the steps between decoding an object and storing it.
//!
//! River: body → **admission** → store. Each step is small, checks one thing, and either changes the
//! object, rejects it, or accepts it. [`STEPS`] is the table of all steps, in order.

pub(crate) mod addresses;
pub(crate) mod claims;
pub(crate) mod definitions;
pub(crate) mod subresource;
pub(crate) mod manage;
mod account;
mod authority;
mod classes;
mod escalation;
pub(crate) mod extensions;
mod limits;
pub(crate) mod matching;
mod mutate;
mod namespaces;
mod node_labels;
pub(crate) mod node_restriction;
mod nodes;
mod observed;
mod owners;
mod pod_security;
mod pods;
mod policy;
pub(crate) mod quota;
pub(crate) mod request;
mod resources;
mod runtime_class;
pub(crate) mod service_ranges;
pub(crate) mod settings;
mod signing;
mod storage;
mod system;
pub(crate) mod topology;
mod validation;
mod webhook;

use authority::UserChecks;
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
use crate::request::authorize::rbac;
use crate::request::call::Call;
use manage::{Manager, OriginalObject};
pub(crate) use namespaces::is_namespace;
use observed::Observed;
use quota::{QuotaReservation, Quotas};
use request::{AdmissionRequest, Operation};
use settings::AdmissionSettings;

/// An object in admission.
pub(crate) struct Attempt<'a> {
    pub(crate) cache: &'a Cache,
    pub(crate) kind: &'a Served,
    pub(crate) namespace: &'a str,
    /// The store has the namespace, which is so new that the cache lacks it.
    pub(crate) is_namespace_new: bool,
    pub(crate) subresource: &'a str,
    /// The object to store.
    pub(crate) new: &'a mut Value,
    /// The object that it replaces; `None` for a create.
    pub(crate) old: Option<&'a Value>,
    /// The object before the server, webhooks and policies changed it, if they did.
    pub(crate) untouched: Option<OriginalObject>,
    pub(crate) now: Timestamp,
}

/// A step that needs only the object.
pub(crate) trait Admit: Sync {
    /// Changes or rejects the object.
    fn admit(&self, attempt: &mut Attempt<'_>) -> Result<(), Status>;
}

/// The phases of admission. Metrics show the first and the third, as in Kubernetes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Adds to the object: metrics call it `admit`.
    Mutate,
    /// Completes and validates the object by itself.
    Object,
    /// Checks rights, extensions and quotas: metrics call it `validate`.
    Validate,
    /// Converts the object to its stored form.
    Store,
}

/// One row of [`STEPS`].
struct AdmissionStep {
    phase: Phase,
    /// The name, Kubernetes' own where it has the step.
    name: &'static str,
    run: Run,
}

/// The input of a step.
#[derive(Clone, Copy)]
enum Run {
    /// Only the object.
    Object(&'static dyn Admit),
    /// The object and the request.
    Request(RequestStep),
}

/// Steps that need the request. Objects that the server itself writes skip them.
#[derive(Clone, Copy)]
enum RequestStep {
    /// What the kubelet of a node may write.
    NodeRestriction,
    /// Records the fields of a new object that its creator manages.
    OriginalObject,
    /// The service account of a new pod exists.
    AccountExists,
    /// The address family of a Service that names none.
    ServiceFamilies,
    /// The cluster IPs and node ports of Services.
    ServiceAddresses,
    /// Mutating policies, then mutating webhooks.
    MutatingExtensions,
    /// Warnings about the expressions of a policy.
    PolicyTypes,
    /// The right to read the parameters of a policy.
    ParameterRights,
    /// The user of a certificate signing request.
    Requester,
    /// Roles and bindings that grant more than their author holds.
    RoleEscalation,
    /// The Pod Security Standards.
    PodSecurity,
    /// Owner references that block deletion.
    OwnerReferences,
    /// The rights to approve and to sign certificates.
    SignerRights,
    /// Validating policies, then validating webhooks.
    ValidatingExtensions,
    /// The quotas of the namespace. The last step that may reject: only stored objects count.
    Quota,
}

/// Every step, in order.
const STEPS: &[AdmissionStep] = {
    use Phase::{Mutate, Object, Store, Validate};
    use RequestStep as R;
    const fn own(phase: Phase, name: &'static str, step: &'static dyn Admit) -> AdmissionStep {
        AdmissionStep { phase, name, run: Run::Object(step) }
    }
    const fn request(phase: Phase, name: &'static str, step: RequestStep) -> AdmissionStep {
        AdmissionStep { phase, name, run: Run::Request(step) }
    }
    &[
        own(Mutate, "NamespaceLifecycle", &namespaces::Lifecycle),
        request(Mutate, "NodeRestriction", R::NodeRestriction),
        request(Mutate, "ServiceFamilies", R::ServiceFamilies),
        own(Mutate, "Defaults", &system::SystemDefaults),
        own(Mutate, "NamespaceLabels", &namespaces::NamespaceLabels),
        request(Mutate, "ManagedFields", R::OriginalObject),
        request(Mutate, "ServiceAccount", R::AccountExists),
        own(Mutate, "ServiceAccount", &account::Account),
        own(Mutate, "Priority", &pods::Priority),
        own(Mutate, "TaintNodesByCondition", &nodes::NotReadyTaint),
        own(Mutate, "RuntimeClass", &runtime_class::RuntimeClass),
        own(Mutate, "StorageObjectInUseProtection", &storage::Protection),
        own(Mutate, "DefaultClasses", &classes::Classes),
        own(Mutate, "LimitRangerDefaults", &limits::LimitDefaults),
        own(Mutate, "PodTopologyLabels", &topology::TopologyLabels),
        request(Mutate, "MutatingExtensions", R::MutatingExtensions),
        request(Object, "RoleEscalation", R::RoleEscalation),
        own(Object, "SystemFields", &system::SystemFields),
        request(Object, "Requester", R::Requester),
        own(Object, "SigningStatus", &signing::SigningStatus),
        own(Object, "NamespaceLabels", &namespaces::NamespaceLabels),
        own(Object, "Definitions", &Definitions),
        own(Object, "Validation", &validation::FieldValidation),
        request(Object, "ServiceAddresses", R::ServiceAddresses),
        own(Object, "LimitRanger", &limits::Limits),
        request(Object, "PolicyTypes", R::PolicyTypes),
        request(Object, "ParameterRights", R::ParameterRights),
        request(Validate, "PodSecurity", R::PodSecurity),
        own(Validate, "RuntimeClass", &runtime_class::RuntimeOverhead),
        own(Validate, "PersistentVolumeClaimResize", &storage::ClaimResize),
        request(Validate, "OwnerReferencesPermissionEnforcement", R::OwnerReferences),
        own(Validate, "CertificateSubjectRestriction", &signing::SubjectRestriction),
        request(Validate, "CertificateApprovalAndSigning", R::SignerRights),
        request(Validate, "ValidatingExtensions", R::ValidatingExtensions),
        request(Validate, "ResourceQuota", R::Quota),
        own(Store, "StoredForm", &StoredForm),
    ]
};

/// Takes an object of the server's own through every step that needs no request.
pub(crate) fn admit_own(mut attempt: Attempt<'_>) -> Result<(), Status> {
    STEPS.iter().try_for_each(|step| match step.run {
        Run::Object(run) => run.admit(&mut attempt),
        Run::Request(_) => Ok(()),
    })
}

/// The state of admission between requests.
pub(crate) struct Admission {
    pub(crate) settings: AdmissionSettings,
    pub(crate) extensions: Extensions,
    pub(crate) quotas: Quotas,
}

impl Admission {
    /// Reads configurations and quotas from the cache.
    pub(crate) fn new(cache: &Cache, settings: AdmissionSettings) -> Admission {
        Admission { settings, extensions: Extensions::new(cache), quotas: Quotas::new(cache) }
    }
}

/// The request that an object belongs to.
#[derive(Clone, Copy)]
pub(crate) struct Origin<'a> {
    pub(crate) backend: &'a Backend,
    pub(crate) admission: &'a Admission,
    pub(crate) call: &'a Call,
    pub(crate) options: &'a WriteOptions,
    /// Whether `managedFields` are already computed.
    pub(crate) is_managed: bool,
}

impl Origin<'_> {
    /// The `managedFields` of a new object in its current state.
    fn entries(&self, kind: &Served, new: &mut Value) -> Result<Option<Value>, Status> {
        let manager = Manager::new(self.backend, self.call, kind, "", self.options);
        Ok(manager.entries(new)?)
    }
}

/// Whether an object has no `managedFields`.
fn is_unclaimed(object: &Value) -> bool {
    object["metadata"].get("managedFields").is_none()
}

/// The result of admission.
pub(crate) struct Admitted {
    /// Held by the caller until the object is stored.
    pub(crate) held: QuotaReservation,
    /// The object as the client sent it.
    pub(crate) untouched: Option<OriginalObject>,
}

/// Takes an object through every step of [`STEPS`].
pub(crate) async fn admit(attempt: Attempt<'_>, origin: Origin<'_>) -> Result<Admitted, Status> {
    let Origin { backend, admission, call, options, .. } = origin;
    let _span = call.trace.as_ref().map(|trace| trace.part("admission"));
    let operation = match attempt.old {
        None => Operation::Create,
        Some(_) => Operation::Update,
    };
    let extensions = admission.extensions.current().filter(|_| is_open(attempt.kind));
    let shown = extensions.as_ref().map(|_| request::write_options(operation, options));
    let name = extensions.as_ref().map(|_| meta(attempt.new, "name").to_owned());
    let (kind, name) = (attempt.kind, name.unwrap_or_default());
    let checks = UserChecks::new(backend.access(), &call.identity);
    let asked = AdmissionRequest {
        checks: &checks,
        call,
        kind,
        namespace: namespace_of(kind, attempt.namespace, &name),
        name: &name,
        subresource: attempt.subresource,
        operation,
        dry_run: options.dry_run,
        options: shown.as_ref().unwrap_or(&Value::Null),
    };
    let mut pass = Pass {
        attempt,
        origin,
        asked: &asked,
        extensions: extensions.as_deref(),
        warnings: Vec::new(),
        held: QuotaReservation::default(),
    };
    let observed = |step| Observed::new(backend.metrics(), step, operation);
    observed("admit").step(pass.run(Phase::Mutate)).await?;
    pass.run(Phase::Object).await?;
    observed("validate").step(pass.run(Phase::Validate)).await?;
    call.warn(std::mem::take(&mut pass.warnings));
    pass.run(Phase::Store).await?;
    Ok(Admitted { held: pass.held, untouched: pass.attempt.untouched })
}

/// One object on its way through the steps.
struct Pass<'a> {
    attempt: Attempt<'a>,
    origin: Origin<'a>,
    asked: &'a AdmissionRequest<'a>,
    /// Webhooks and policies, if any are configured.
    extensions: Option<&'a Compiled>,
    warnings: Vec<String>,
    held: QuotaReservation,
}

impl Pass<'_> {
    /// Runs the steps of a phase.
    async fn run(&mut self, phase: Phase) -> Result<(), Status> {
        let settings = &self.origin.admission.settings;
        let is_on = |step: &&AdmissionStep| step.phase == phase && !settings.disables(step.name);
        for step in STEPS.iter().filter(is_on) {
            let done = match step.run {
                Run::Object(run) => run.admit(&mut self.attempt),
                Run::Request(run) => self.run_request_step(run).await,
            };
            if let Err(status) = done {
                tracing::debug!(step = step.name, %status, "admission refused the object");
                return Err(status);
            }
        }
        Ok(())
    }

    async fn run_request_step(&mut self, step: RequestStep) -> Result<(), Status> {
        let Origin { backend, admission, call, .. } = self.origin;
        let attempt = &mut self.attempt;
        match (step, self.extensions) {
            (RequestStep::NodeRestriction, _) => node_restriction::check(attempt, &call.identity)?,
            (RequestStep::OriginalObject, _) => self.remember_untouched()?,
            (RequestStep::AccountExists, _) => {
                if admission.settings.requires_accounts && pods::is_new_pod(attempt) {
                    Box::pin(account::check(attempt)).await?;
                }
            }
            (RequestStep::ServiceFamilies, _) => {
                addresses::prefer_primary(attempt, &admission.settings.services);
            }
            (RequestStep::ServiceAddresses, _) => {
                let services = &admission.settings.services;
                Box::pin(addresses::allocate(attempt, services, self.asked.dry_run)).await?;
            }
            (RequestStep::MutatingExtensions, Some(extensions)) => {
                let warnings = &mut self.warnings;
                Box::pin(mutate::mutate(extensions, backend, self.asked, attempt, warnings))
                    .await?;
            }
            (RequestStep::PolicyTypes, _) => {
                policy::typecheck::settle(backend, attempt.kind, attempt.new, attempt.old);
            }
            (RequestStep::ParameterRights, _) => {
                if !is_open(attempt.kind) {
                    Box::pin(policy::parameter_rights::check(attempt, &call.identity, backend))
                        .await?;
                }
            }
            (RequestStep::Requester, _) => signing::name_requester(attempt, &call.identity),
            (RequestStep::SignerRights, _) => {
                Box::pin(signing::check_rights(attempt, &call.identity, backend)).await?;
            }
            (RequestStep::RoleEscalation, _) => {
                if attempt.kind.group == rbac::GROUP {
                    Box::pin(escalation::check(attempt, call, backend)).await?;
                }
            }
            (RequestStep::PodSecurity, _) => {
                if pod_security::concerns(attempt.kind) {
                    Box::pin(pod_security::check(attempt, call)).await?;
                }
            }
            (RequestStep::OwnerReferences, _) => {
                Box::pin(owners::check(attempt, &call.identity, backend)).await?;
            }
            (RequestStep::ValidatingExtensions, Some(extensions)) => {
                let objects = [Some(&*attempt.new), attempt.old];
                let warnings = &mut self.warnings;
                Box::pin(validate(extensions, backend, self.asked, objects, warnings)).await?;
            }
            (RequestStep::Quota, _) => {
                self.held = admission.quotas.admit(backend, attempt).await?;
            }
            (RequestStep::MutatingExtensions | RequestStep::ValidatingExtensions, None) => {}
        }
        Ok(())
    }

    /// Remembers a new object, or who manages its fields, before the server and others add to it.
    fn remember_untouched(&mut self) -> Result<(), Status> {
        let attempt = &mut self.attempt;
        if attempt.old.is_some() || !is_added_to(attempt.kind) || self.origin.is_managed {
            return Ok(());
        }
        attempt.untouched = Some(match self.extensions {
            None if is_unclaimed(attempt.new) => {
                OriginalObject::Entries(self.origin.entries(attempt.kind, attempt.new)?)
            }
            _ => OriginalObject::Object(attempt.new.clone()),
        });
        Ok(())
    }
}

/// Kinds whose new objects get more from the server than defaults: addresses, priorities, volumes,
/// classes, selectors. These fields have no manager, so that no apply conflicts with them.
const ADDED_TO: &[(&str, &str)] = &[
    ("", "namespaces"),
    ("", "nodes"),
    ("", "persistentvolumeclaims"),
    ("", "persistentvolumes"),
    ("", "pods"),
    ("", "services"),
    ("batch", "jobs"),
    ("certificates.k8s.io", "certificatesigningrequests"),
    ("networking.k8s.io", "ingresses"),
    ("storage.k8s.io", "volumeattributesclasses"),
];

fn is_added_to(kind: &Served) -> bool {
    ADDED_TO.iter().any(|(group, plural)| kind.plural == *plural && kind.group == *group)
}

/// Objects that configure admission are exempt from it: otherwise a mistake could not be undone.
fn is_open(kind: &Served) -> bool {
    kind.group != "admissionregistration.k8s.io"
}

/// Runs validating policies, then validating webhooks.
async fn validate(
    extensions: &Compiled,
    backend: &Backend,
    asked: &AdmissionRequest<'_>,
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

/// The namespace of an object; a Namespace is in itself.
fn namespace_of<'a>(kind: &Served, namespace: &'a str, name: &'a str) -> &'a str {
    if is_namespace(kind) { name } else { namespace }
}

/// A deletion in admission.
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
    let checks = UserChecks::new(backend.access(), &call.identity);
    let asked = AdmissionRequest {
        checks: &checks,
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
