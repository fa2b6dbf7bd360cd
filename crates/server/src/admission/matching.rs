//! The matching of webhooks and policies: rules, selectors, conditions.

use std::sync::Arc;

use headwater_api::selector::{LabelSelector as Selector, StructuredSelector};
use headwater_cache::Cache;
use headwater_cel::{Budget, EXPRESSION_COST_MAX, Environment, Program, Value as Cel, Variables};
use headwater_json::Value;

use super::authority;
use super::policy::names::Names;
use super::request::{AdmissionRequest, Versioned};
use crate::admission::is_namespace;
use crate::kinds::registry::{Registry, Served};

/// The CEL budget of all match conditions of one webhook (Kubernetes' limit).
const CONDITIONS_COST_MAX: u64 = 2_500_000;

/// A rule: operations on resources.
pub(crate) struct Rule {
    operations: Vec<String>,
    groups: Vec<String>,
    versions: Vec<String>,
    resources: Vec<(String, String)>,
    scope: Scope,
    /// Only objects with these names; empty means all.
    names: Vec<String>,
}

enum Scope {
    All,
    Namespaced,
    Cluster,
}

fn words(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

impl Rule {
    pub(crate) fn read(rule: &Value) -> Rule {
        let resource = |text: String| match text.split_once('/') {
            Some((resource, subresource)) => (resource.to_owned(), subresource.to_owned()),
            None => (text, String::new()),
        };
        Rule {
            operations: words(&rule["operations"]),
            groups: words(&rule["apiGroups"]),
            versions: words(&rule["apiVersions"]),
            resources: words(&rule["resources"]).into_iter().map(resource).collect(),
            scope: match rule["scope"].as_str() {
                Some("Namespaced") => Scope::Namespaced,
                Some("Cluster") => Scope::Cluster,
                _ => Scope::All,
            },
            names: words(&rule["resourceNames"]),
        }
    }

    fn everything() -> Rule {
        let all = || vec!["*".to_owned()];
        Rule {
            operations: all(),
            groups: all(),
            versions: all(),
            resources: vec![("*".to_owned(), "*".to_owned())],
            scope: Scope::All,
            names: Vec::new(),
        }
    }

    /// Whether the rule matches the request as a request of this kind.
    fn matches(&self, asked: &AdmissionRequest<'_>, kind: &Served) -> bool {
        let any =
            |words: &[String], word: &str| words.iter().any(|known| known == "*" || known == word);
        let in_namespace = !asked.namespace.is_empty() && !is_namespace(kind);
        let in_scope = match self.scope {
            Scope::All => true,
            Scope::Namespaced => in_namespace,
            Scope::Cluster => !in_namespace,
        };
        in_scope
            && any(&self.operations, asked.operation.name())
            && any(&self.groups, &kind.group)
            && any(&self.versions, &kind.version)
            && self.resources.iter().any(|(resource, subresource)| {
                (resource == "*" || *resource == *kind.plural)
                    && (subresource == "*" || subresource == asked.subresource)
            })
            && (self.names.is_empty() || self.names.iter().any(|name| name == asked.name))
    }
}

/// Selects requests.
pub(crate) struct Match {
    rules: Vec<Rule>,
    excluded: Vec<Rule>,
    /// Whether a rule for another version of the same objects matches too.
    equivalent: bool,
    namespaces: Result<Selector, String>,
    objects: Result<Selector, String>,
}

impl Match {
    /// From a webhook, or from `matchConstraints` of a policy.
    pub(crate) fn read(value: &Value, rules: &str, excluded: &str) -> Match {
        let rules_of =
            |key: &str| value[key].as_array().into_iter().flatten().map(Rule::read).collect();
        Match {
            rules: rules_of(rules),
            excluded: rules_of(excluded),
            equivalent: value["matchPolicy"] != "Exact",
            namespaces: selector(&value["namespaceSelector"]),
            objects: selector(&value["objectSelector"]),
        }
    }

    /// From `matchResources` of a binding: without rules it matches everything.
    pub(crate) fn read_open(value: &Value) -> Match {
        let mut read = Match::read(value, "resourceRules", "excludeResourceRules");
        if read.rules.is_empty() {
            read.rules.push(Rule::everything());
        }
        read
    }

    /// The version in which the request is evaluated; `None` if it does not match.
    pub(crate) fn find(
        &self,
        asked: &AdmissionRequest<'_>,
        registry: &Registry,
        cache: &Cache,
        objects: [Option<&Value>; 2],
    ) -> Result<Option<Arc<Served>>, String> {
        let Some(kind) = self.kind(asked, registry) else { return Ok(None) };
        if self.excluded.iter().any(|rule| rule.matches(asked, &kind)) {
            return Ok(None);
        }
        let namespaces = self.namespaces.as_ref().map_err(Clone::clone)?;
        let selected = self.objects.as_ref().map_err(Clone::clone)?;
        if !in_namespaces(namespaces, asked, cache, objects) {
            return Ok(None);
        }
        let is_selected = |object: &Value| {
            let labels = &object["metadata"]["labels"];
            selected.matches(|key| labels.get(key).and_then(Value::as_str))
        };
        let any = selected.is_empty() || objects.into_iter().flatten().any(is_selected);
        Ok(any.then_some(kind))
    }

    fn kind(&self, asked: &AdmissionRequest<'_>, registry: &Registry) -> Option<Arc<Served>> {
        if self.rules.iter().any(|rule| rule.matches(asked, asked.kind)) {
            let kind = asked.kind;
            return registry.find(&kind.group, &kind.version, &kind.plural).cloned();
        }
        if !self.equivalent {
            return None;
        }
        let same = |row: &&Arc<Served>| row.prefix == asked.kind.prefix;
        self.rules.iter().find_map(|rule| {
            registry.kinds().iter().filter(same).find(|row| rule.matches(asked, row)).cloned()
        })
    }
}

/// Whether the namespace selector matches. Cluster-scoped objects always match; a Namespace is
/// matched by its own labels.
fn in_namespaces(
    selector: &Selector,
    asked: &AdmissionRequest<'_>,
    cache: &Cache,
    objects: [Option<&Value>; 2],
) -> bool {
    if selector.is_empty() {
        return true;
    }
    if is_namespace(asked.kind) {
        let Some(object) = objects.into_iter().flatten().next() else { return true };
        let labels = &object["metadata"]["labels"];
        return selector.matches(|key| labels.get(key).and_then(Value::as_str));
    }
    if asked.namespace.is_empty() {
        return true;
    }
    let snapshot = cache.snapshot(&cache.resource("/registry/core/namespaces/"));
    match snapshot.get(asked.namespace) {
        Some(namespace) => selector.matches_object(namespace),
        None => selector.matches(|_| None),
    }
}

/// Parses a LabelSelector; an absent one matches everything.
pub(crate) fn selector(value: &Value) -> Result<Selector, String> {
    match value.as_object() {
        Some(members) => Ok(StructuredSelector::of(members)?.selector()),
        None => Ok(Selector::everything()),
    }
}

/// Match conditions; all must be true.
pub(crate) struct Conditions(Vec<(String, Result<Program, String>)>);

/// The result of match conditions.
pub(crate) enum Verdict {
    Holds,
    Fails,
    Unknown(String),
}

impl Conditions {
    pub(crate) fn read(conditions: &Value, known: &Environment<'_>) -> Conditions {
        let conditions = conditions.as_array().into_iter().flatten();
        Conditions(
            conditions
                .map(|condition| {
                    let text = condition["expression"].as_str().unwrap_or_default();
                    let program = Program::compile(text, known).map_err(|error| error.to_string());
                    (condition["name"].as_str().unwrap_or_default().to_owned(), program)
                })
                .collect(),
        )
    }

    /// The names of a webhook's conditions.
    pub(crate) fn names() -> Environment<'static> {
        Names::open(false).of_conditions()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A false condition decides, whatever errors the others have.
    pub(crate) fn judge<'a>(&'a self, variables: &Variables<'a>) -> Verdict {
        let mut budget = Budget::new(CONDITIONS_COST_MAX);
        let mut wrong = Vec::new();
        for (name, program) in &self.0 {
            let found = match program {
                Ok(program) => budget
                    .part(EXPRESSION_COST_MAX, |part| program.run(variables, part))
                    .map_err(|error| error.to_string()),
                Err(why) => Err(format!("compilation error: {why}")),
            };
            match found {
                Ok(Cel::Bool(true)) => {}
                Ok(Cel::Bool(false)) => return Verdict::Fails,
                Ok(_) => wrong.push(format!("match condition {name:?} must evaluate to bool")),
                Err(why) => wrong.push(why),
            }
        }
        match wrong.as_slice() {
            [] => Verdict::Holds,
            [one] => Verdict::Unknown(one.clone()),
            many => Verdict::Unknown(format!("[{}]", many.join(", "))),
        }
    }
}

/// The variables of every expression about a request.
pub(crate) fn variables<'a>(
    asked: &AdmissionRequest<'_>,
    seen: &'a Versioned<'_>,
    request: &'a Value,
) -> Variables<'a> {
    Variables::default()
        .with("authorizer", authority::authorizer(asked))
        .with("object", Cel::json(&seen.object))
        .with("oldObject", Cel::json(&seen.old))
        .with("request", Cel::json(request))
}
