//! Aggregated ClusterRoles: their rules are those of the roles that their selectors match.
//!
//! River: a ClusterRole is written → **aggregation** → the aggregated roles → RBAC. A write is
//! acknowledged after the aggregated roles follow it; a task does the same for writes of other
//! servers.

use std::collections::{BTreeMap, HashSet};

use headwater_api::selector::{LabelSelector, StructuredSelector};
use headwater_api::{Object, Status};
use headwater_cache::Snapshot;
use headwater_json::{Value, json};
use headwater_store::key;
use tokio_util::sync::CancellationToken;

use crate::answer::status;
use crate::object::{Current, part, tree};
use crate::request::authorize::rbac::GROUP;
use crate::request::authorize::rbac::rule::PolicyRule;
use crate::server::Server;
use crate::upkeep::follow::ObjectChanges;

const PLURAL: &str = "clusterroles";

/// How often aggregation is repeated for roles that aggregate aggregated roles, or after conflicts.
const ROUNDS_MAX: usize = 16;

/// A role whose rules come from others.
struct AggregatedRole {
    selectors: Vec<LabelSelector>,
    rules: Vec<PolicyRule>,
}

impl Server {
    /// Writes the rules of every aggregated role that differ from those it selects.
    pub(crate) async fn aggregate_roles(&self) -> Result<(), Status> {
        let registry = self.registry();
        let Some(kind) = registry.find(GROUP, "v1", PLURAL) else { return Ok(()) };
        let resource = self.cache().resource(&kind.prefix);
        for _ in 0..ROUNDS_MAX {
            let snapshot = self.cache().snapshot(&resource);
            let outdated = outdated(&snapshot);
            if outdated.is_empty() {
                return Ok(());
            }
            for (name, rules) in outdated {
                let Some(there) = snapshot.get(&name) else { continue };
                let there = Current::of(there)?;
                let mut new = there.value.clone();
                new["rules"] = json!(rules);
                self.put_own(kind, &name, new, Some(there)).await?;
            }
            self.cache().consistent().await.map_err(|error| status::from_cache(&error))?;
        }
        Ok(())
    }

    /// Does what a write of a role or a binding promises: when it is acknowledged, this server
    /// decides by it.
    pub(crate) async fn after_role(&self, plural: &str) {
        let settled = async {
            self.cache().consistent().await.map_err(|error| status::from_cache(&error))?;
            if plural == PLURAL { self.aggregate_roles().await } else { Ok(()) }
        };
        if let Err(status) = settled.await {
            tracing::warn!("cannot aggregate ClusterRoles, will retry: {status}");
        }
    }

    /// Follows the roles until stopped.
    pub(crate) async fn follow_roles(self, stop: CancellationToken) {
        let mut changes = ObjectChanges::new(&self, &key::collection(GROUP, PLURAL));
        while let Some(aggregated) = stop.run_until_cancelled(self.aggregate_roles()).await {
            if !changes.next_or_retry(&self, &stop, aggregated.is_err()).await {
                break;
            }
        }
    }
}

/// The aggregated roles whose rules are not those of the roles that they select.
fn outdated(roles: &Snapshot) -> Vec<(String, Vec<PolicyRule>)> {
    let known: BTreeMap<&str, AggregatedRole> = roles
        .iter("", None)
        .filter_map(|role| Some((role.name(), AggregatedRole::read(role)?)))
        .collect();
    if known.is_empty() {
        return Vec::new();
    }
    // The least rules that contain what they select: roles that select each other add nothing.
    let mut computed: BTreeMap<&str, Vec<PolicyRule>> = BTreeMap::new();
    for _ in 0..known.len() + 2 {
        let next = known
            .iter()
            .map(|(name, role)| (*name, role.selected(name, roles, &known, &computed)))
            .collect();
        if std::mem::replace(&mut computed, next) == computed {
            break;
        }
    }
    let differs = |(name, rules): (&str, Vec<PolicyRule>)| {
        (known[name].rules != rules).then(|| (name.to_owned(), rules))
    };
    computed.into_iter().filter_map(differs).collect()
}

impl AggregatedRole {
    /// `None` for a role with rules of its own.
    fn read(role: &Object) -> Option<AggregatedRole> {
        let text = std::str::from_utf8(role.as_slice()).ok()?;
        // Almost no role has the word: it is looked for before anything is parsed.
        text.contains("\"aggregationRule\"").then_some(())?;
        let value = tree(role.as_slice()).ok()?;
        let selectors = value["aggregationRule"]["clusterRoleSelectors"].as_array()?;
        let read = |selector: &Value| {
            let selector = StructuredSelector::of(selector.as_object()?).ok()?;
            Some(selector.selector())
        };
        let selectors = selectors.iter().map(read).collect::<Option<_>>()?;
        Some(AggregatedRole { selectors, rules: rules(&value) })
    }

    /// The rules of the selected roles, each once, in the order of names.
    fn selected(
        &self,
        own: &str,
        roles: &Snapshot,
        known: &BTreeMap<&str, AggregatedRole>,
        computed: &BTreeMap<&str, Vec<PolicyRule>>,
    ) -> Vec<PolicyRule> {
        let mut all = Vec::new();
        let mut seen = HashSet::new();
        for selector in &self.selectors {
            let selected = roles.iter("", None).filter(|role| selector.matches_object(role));
            for role in selected.filter(|role| role.name() != own) {
                let rules = match known.contains_key(role.name()) {
                    true => computed.get(role.name()).cloned().unwrap_or_default(),
                    false => tree(role.as_slice()).map(|value| rules(&value)).unwrap_or_default(),
                };
                all.extend(rules.into_iter().filter(|rule| seen.insert(rule.clone())));
            }
        }
        all
    }
}

fn rules(role: &Value) -> Vec<PolicyRule> {
    part(&role["rules"]).unwrap_or_default()
}
