//! The variables and types of expressions in policies and match conditions.

use std::sync::LazyLock;

use headwater_cel::{DeclType, Environment};
use headwater_json::{Value, json};

/// The types of objects and parameters, where they are known.
pub(crate) struct Names<'s> {
    pub(crate) object: &'s DeclType,
    /// `None` if the policy takes no parameters.
    pub(crate) params: Option<&'s DeclType>,
}

/// The types that a mutation expression may construct.
const PATCH_TYPES: &[&str] = &["Object", "JSONPatch"];

static ANY: DeclType = DeclType::Dyn;
static AUTHORIZER: DeclType = DeclType::Environment("kubernetes.authorization.Authorizer");

impl Names<'static> {
    /// Objects of any type.
    pub(crate) fn open(has_params: bool) -> Names<'static> {
        Names { object: &ANY, params: has_params.then_some(&ANY) }
    }
}

impl<'s> Names<'s> {
    /// The declarations of match conditions, without the policy's variables.
    pub(crate) fn of_conditions(&self) -> Environment<'s> {
        let known = Environment::default()
            .with("object", self.object)
            .with("oldObject", self.object)
            .with("request", &REQUEST)
            .with("namespaceObject", &NAMESPACE)
            .with("authorizer", &AUTHORIZER);
        match self.params {
            Some(params) => known.with("params", params),
            None => known,
        }
    }

    /// The declarations of a policy's expressions, with its variables.
    pub(crate) fn of_policy(&self, spec: &'s Value) -> Environment<'s> {
        let mut known = self.of_conditions().with_variables();
        for variable in spec["variables"].as_array().into_iter().flatten() {
            let text = |key: &str| variable[key].as_str().unwrap_or_default();
            // A variable that does not compile is reported elsewhere; here it has any type.
            let _ = known.add_variable(text("name"), text("expression"));
        }
        known
    }

    /// The declarations of a mutation expression.
    pub(crate) fn of_mutation(&self, spec: &'s Value) -> Environment<'s> {
        self.of_policy(spec).with_types(PATCH_TYPES)
    }
}

/// The type of `request`.
static REQUEST: LazyLock<DeclType> = LazyLock::new(|| {
    let (text, texts) =
        (json!({"type": "string"}), json!({"type": "array", "items": {"type": "string"}}));
    let object = |properties: Value| json!({"type": "object", "properties": properties});
    let kind = object(json!({"group": text, "version": text, "kind": text}));
    let resource = object(json!({"group": text, "version": text, "resource": text}));
    let user = object(json!({"username": text, "uid": text, "groups": texts,
        "extra": {"type": "object", "additionalProperties": texts}}));
    DeclType::of_plain(&object(json!({
        "kind": kind, "resource": resource, "subResource": text, "requestKind": kind,
        "requestResource": resource, "requestSubResource": text, "name": text, "namespace": text,
        "operation": text, "userInfo": user, "dryRun": {"type": "boolean"},
        "options": {"x-kubernetes-int-or-string": true},
    })))
});

/// The type of `namespaceObject`.
static NAMESPACE: LazyLock<DeclType> = LazyLock::new(|| {
    let (text, texts) =
        (json!({"type": "string"}), json!({"type": "array", "items": {"type": "string"}}));
    let (time, number) =
        (json!({"type": "string", "format": "date-time"}), json!({"type": "integer"}));
    let pairs = json!({"type": "object", "additionalProperties": text});
    let object = |properties: Value| json!({"type": "object", "properties": properties});
    let condition = object(json!({"status": text, "type": text, "lastTransitionTime": time,
        "message": text, "reason": text}));
    DeclType::of_plain(&object(json!({
        "metadata": object(json!({
            "name": text, "generateName": text, "namespace": text, "labels": pairs,
            "annotations": pairs, "UID": text, "creationTimestamp": time,
            "deletionGracePeriodSeconds": number, "deletionTimestamp": time, "generation": number,
            "resourceVersion": text, "finalizers": texts,
        })),
        "spec": object(json!({"finalizers": texts})),
        "status": object(json!({
            "conditions": {"type": "array", "items": condition}, "phase": text,
        })),
    })))
});
