//! The index: from a user, a group and a namespace to the roles that are bound to them.
//!
//! River: roles and bindings in the watch cache → **index** → decision.
//! Promise: a change of one object changes only what depends on it; a decision looks at the roles of
//! the user and of the groups, and a subject with many roles has their rules merged.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use serde::Deserialize;

use super::rule::{PolicyRule, nullable};
use super::rule_set::{RuleSet, WordedRequest, Words};
use crate::front::identity::Identity;
use crate::front::service_account;
use crate::request::authorize::Attributes;

/// A subject with more roles than this in one namespace has their rules merged into one set.
const SEPARATE_MAX: usize = 4;

/// A role: its namespace, empty for a ClusterRole, and its name.
type RoleName = (Box<str>, Box<str>);

/// The place of a role in the index.
type RoleId = usize;

/// A role that exists, or that a binding names.
#[derive(Default)]
struct IndexedRole {
    name: RoleName,
    /// `None` if the role does not exist.
    rules: Option<(Arc<[PolicyRule]>, RuleSet)>,
    /// The keys of the bindings that name it.
    bindings: HashSet<Box<str>>,
}

/// A RoleBinding, or a ClusterRoleBinding, which has no namespace.
struct RoleBinding {
    namespace: Box<str>,
    name: Box<str>,
    role: RoleId,
    role_kind: Box<str>,
    subjects: Vec<Subject>,
}

/// A subject of a binding.
#[derive(Clone, Debug, Deserialize)]
struct Subject {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: String,
}

/// The user or group that a subject names.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Holder {
    User(Box<str>),
    Group(Box<str>),
}

impl Subject {
    fn holder(&self, binding_namespace: &str) -> Option<Holder> {
        match self.kind.as_str() {
            "User" => Some(Holder::User(self.name.as_str().into())),
            "Group" => Some(Holder::Group(self.name.as_str().into())),
            "ServiceAccount" => {
                let namespace = match self.namespace.as_str() {
                    "" => binding_namespace,
                    namespace => namespace,
                };
                let user = service_account::user_name(namespace, &self.name);
                (!namespace.is_empty()).then(|| Holder::User(user.into()))
            }
            _ => None,
        }
    }

    fn describe(&self, binding_namespace: &str) -> String {
        match (self.kind.as_str(), self.namespace.as_str()) {
            ("ServiceAccount", "") => {
                format!("ServiceAccount \"{}/{binding_namespace}\"", self.name)
            }
            ("ServiceAccount", namespace) => {
                format!("ServiceAccount \"{}/{namespace}\"", self.name)
            }
            (kind, _) => format!("{kind} \"{}\"", self.name),
        }
    }
}

/// The roles of one user or group in one namespace, or in the cluster.
#[derive(Default)]
struct Holdings {
    /// Each role with the bindings that grant it.
    roles: BTreeMap<RoleId, Vec<Arc<RoleBinding>>>,
    /// The rules of all roles, if there are many.
    merged: Option<MergedRules>,
}

/// The rules of many roles as one set.
#[derive(Default)]
struct MergedRules {
    set: RuleSet,
    /// Roles with rules that are not expanded, and so not merged.
    broad: BTreeSet<RoleId>,
}

impl MergedRules {
    fn add(&mut self, role: RoleId, set: &RuleSet) {
        self.set.add(set);
        if set.has_broad() {
            self.broad.insert(role);
        }
    }

    fn remove(&mut self, role: RoleId, set: &RuleSet) {
        self.set.remove(set);
        self.broad.remove(&role);
    }
}

impl Holdings {
    fn allows(&self, roles: &[IndexedRole], question: &WordedRequest<'_>) -> bool {
        let set = |role: &RoleId| roles[*role].rules.as_ref().map(|(_, set)| set);
        match &self.merged {
            None => self.roles.keys().filter_map(set).any(|set| set.allows(question)),
            Some(merged) => {
                merged.set.allows(question)
                    || merged.broad.iter().filter_map(set).any(|set| set.allows_broad(question))
            }
        }
    }
}

/// The holdings in one namespace, or in the cluster.
#[derive(Default)]
struct Scope {
    users: HashMap<Box<str>, Holdings>,
    groups: HashMap<Box<str>, Holdings>,
}

impl Scope {
    /// The holdings of a user and of the groups.
    fn of<'a>(&'a self, identity: &'a Identity) -> impl Iterator<Item = &'a Holdings> {
        let user = self.users.get(identity.user.as_str());
        user.into_iter()
            .chain(identity.groups.iter().filter_map(|group| self.groups.get(group.as_str())))
    }

    fn holdings(&mut self, holder: &Holder) -> &mut Holdings {
        match holder {
            Holder::User(name) => self.users.entry(name.clone()).or_default(),
            Holder::Group(name) => self.groups.entry(name.clone()).or_default(),
        }
    }

    fn forget(&mut self, holder: &Holder) {
        match holder {
            Holder::User(name) => self.users.remove(name),
            Holder::Group(name) => self.groups.remove(name),
        };
    }
}

/// All roles and bindings, compiled.
#[derive(Default)]
pub(crate) struct RbacIndex {
    words: Words,
    roles: Vec<IndexedRole>,
    role_ids: HashMap<RoleName, RoleId>,
    /// Unused places in `roles`.
    free: Vec<RoleId>,
    /// By `namespace/name`, or `/name` for a ClusterRoleBinding.
    bindings: HashMap<Box<str>, Arc<RoleBinding>>,
    /// Role bindings by namespace; the cluster's are below the empty name.
    scopes: HashMap<Box<str>, Scope>,
}

/// The parts of a stored role that the index reads.
#[derive(Deserialize)]
pub(crate) struct StoredRole {
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) rules: Vec<PolicyRule>,
}

/// The parts of a stored binding that the index reads.
#[derive(Deserialize)]
pub(crate) struct StoredBinding {
    #[serde(default, deserialize_with = "nullable")]
    subjects: Vec<Subject>,
    #[serde(rename = "roleRef")]
    pub(crate) role: RoleReference,
}

/// The role that a binding names.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RoleReference {
    pub(crate) api_group: String,
    pub(crate) kind: String,
    pub(crate) name: String,
}

impl RoleReference {
    /// The namespace of the role, for a binding in a namespace.
    fn role_name(&self, namespace: &str) -> RoleName {
        let namespace = if self.kind == "ClusterRole" { "" } else { namespace };
        (namespace.into(), self.name.as_str().into())
    }
}

fn not_found(kind: &str, name: &str) -> String {
    format!("{}.rbac.authorization.k8s.io \"{name}\" not found", kind.to_ascii_lowercase())
}

impl RbacIndex {
    /// Sets the rules of a role; `None` if it was deleted.
    pub(crate) fn set_role(&mut self, namespace: &str, name: &str, role: Option<StoredRole>) {
        let id = self.role(&(namespace.into(), name.into()));
        let old = self.roles[id].rules.take();
        let new = role.map(|role| {
            let set = RuleSet::compile(&role.rules, &mut self.words);
            (Arc::from(role.rules), set)
        });
        let mut changed: HashSet<(&str, Holder)> = HashSet::new();
        for key in &self.roles[id].bindings {
            let binding = &self.bindings[key];
            for holder in binding.subjects.iter().filter_map(|s| s.holder(&binding.namespace)) {
                changed.insert((&binding.namespace, holder));
            }
        }
        for (namespace, holder) in changed {
            let Some(scope) = self.scopes.get_mut(namespace) else { continue };
            let Some(merged) = &mut scope.holdings(&holder).merged else { continue };
            if let Some((_, old)) = &old {
                merged.remove(id, old);
            }
            if let Some((_, new)) = &new {
                merged.add(id, new);
            }
        }
        self.roles[id].rules = new;
        self.release(id);
    }

    /// Sets a binding; `None` if it was deleted.
    pub(crate) fn set_binding(
        &mut self,
        namespace: &str,
        name: &str,
        binding: Option<StoredBinding>,
    ) {
        let key: Box<str> = [namespace, "/", name].concat().into();
        if let Some(old) = self.bindings.remove(&key) {
            self.unbind(&key, &old);
        }
        let Some(stored) = binding else { return };
        let role = self.role(&stored.role.role_name(namespace));
        self.roles[role].bindings.insert(key.clone());
        let binding = Arc::new(RoleBinding {
            namespace: namespace.into(),
            name: name.into(),
            role,
            role_kind: stored.role.kind.into(),
            subjects: stored.subjects,
        });
        self.bindings.insert(key, Arc::clone(&binding));
        let scope = self.scopes.entry(namespace.into()).or_default();
        for holder in holders(&binding) {
            let holdings = scope.holdings(&holder);
            let bindings = holdings.roles.entry(role).or_default();
            let is_new = bindings.is_empty();
            bindings.push(Arc::clone(&binding));
            if !is_new {
                continue;
            }
            match &mut holdings.merged {
                Some(merged) => {
                    if let Some((_, set)) = &self.roles[role].rules {
                        merged.add(role, set);
                    }
                }
                None if holdings.roles.len() > SEPARATE_MAX => {
                    let merged = holdings.merged.insert(MergedRules::default());
                    for role in holdings.roles.keys() {
                        if let Some((_, set)) = &self.roles[*role].rules {
                            merged.add(*role, set);
                        }
                    }
                }
                None => {}
            }
        }
    }

    fn unbind(&mut self, key: &str, binding: &Arc<RoleBinding>) {
        let role = binding.role;
        if let Some(scope) = self.scopes.get_mut(&binding.namespace) {
            for holder in holders(binding) {
                let holdings = scope.holdings(&holder);
                let Some(bindings) = holdings.roles.get_mut(&role) else { continue };
                bindings.retain(|known| !Arc::ptr_eq(known, binding));
                if !bindings.is_empty() {
                    continue;
                }
                holdings.roles.remove(&role);
                if holdings.roles.len() <= SEPARATE_MAX {
                    holdings.merged = None;
                }
                if let (Some(merged), Some((_, set))) =
                    (&mut holdings.merged, &self.roles[role].rules)
                {
                    merged.remove(role, set);
                }
                if holdings.roles.is_empty() {
                    scope.forget(&holder);
                }
            }
            if scope.users.is_empty() && scope.groups.is_empty() {
                self.scopes.remove(&binding.namespace);
            }
        }
        self.roles[role].bindings.remove(key);
        self.release(role);
    }

    /// The place of a role.
    fn role(&mut self, name: &RoleName) -> RoleId {
        if let Some(known) = self.role_ids.get(name) {
            return *known;
        }
        let role = IndexedRole { name: name.clone(), ..IndexedRole::default() };
        let id = match self.free.pop() {
            Some(id) => {
                self.roles[id] = role;
                id
            }
            None => {
                self.roles.push(role);
                self.roles.len() - 1
            }
        };
        self.role_ids.insert(name.clone(), id);
        id
    }

    /// Frees the place of a role that neither exists nor is bound.
    fn release(&mut self, id: RoleId) {
        let role = &mut self.roles[id];
        if role.rules.is_none() && role.bindings.is_empty() {
            self.role_ids.remove(&role.name);
            self.free.push(id);
        }
    }

    /// The number of numbered words; they are only forgotten when the index is built from nothing.
    pub(crate) fn words(&self) -> usize {
        self.words.len()
    }

    /// The scopes of a request: the cluster, then the namespace.
    fn scopes<'a>(&'a self, namespace: &str) -> impl Iterator<Item = &'a Scope> {
        let own = (!namespace.is_empty()).then(|| self.scopes.get(namespace)).flatten();
        self.scopes.get("").into_iter().chain(own)
    }

    fn question<'a>(&self, attributes: &Attributes<'a>) -> (WordedRequest<'a>, &'a str) {
        match *attributes {
            Attributes::Path { verb, path } => (WordedRequest::path(&self.words, verb, path), ""),
            Attributes::Resource { verb, group, resource, subresource, namespace, name } => {
                let resource = (resource, subresource);
                (WordedRequest::resource(&self.words, verb, group, resource, name), namespace)
            }
        }
    }

    /// Whether a user has the right.
    pub(crate) fn allows(&self, identity: &Identity, attributes: &Attributes<'_>) -> bool {
        let (question, namespace) = self.question(attributes);
        self.scopes(namespace)
            .any(|scope| scope.of(identity).any(|holdings| holdings.allows(&self.roles, &question)))
    }

    /// The binding that grants a right to a user, described.
    pub(crate) fn granted_by(
        &self,
        identity: &Identity,
        attributes: &Attributes<'_>,
    ) -> Option<String> {
        let (question, namespace) = self.question(attributes);
        let holdings = self.scopes(namespace).flat_map(|scope| scope.of(identity));
        let mut bound = holdings.flat_map(|holdings| &holdings.roles);
        let (role, bindings) = bound.find(|(role, _)| {
            let set = self.roles[**role].rules.as_ref().map(|(_, set)| set);
            set.is_some_and(|set| set.allows(&question))
        })?;
        let binding = bindings.first()?;
        let holds = |subject: &&Subject| match subject.holder(&binding.namespace) {
            Some(Holder::User(user)) => *user == *identity.user,
            Some(Holder::Group(group)) => identity.is_in(&group),
            None => false,
        };
        let subject = binding.subjects.iter().find(holds)?.describe(&binding.namespace);
        let (kind, name) = match &*binding.namespace {
            "" => ("ClusterRoleBinding", binding.name.to_string()),
            namespace => ("RoleBinding", format!("{}/{namespace}", binding.name)),
        };
        let role_name = &self.roles[*role].name.1;
        Some(format!("{kind} \"{name}\" of {} \"{role_name}\" to {subject}", binding.role_kind))
    }

    /// The roles that are bound to a user and do not exist: a message about each.
    pub(crate) fn missing_roles(&self, identity: &Identity, namespace: &str) -> Vec<String> {
        let mut missing = Vec::new();
        for holdings in self.scopes(namespace).flat_map(|scope| scope.of(identity)) {
            for (role, bindings) in &holdings.roles {
                let role = &self.roles[*role];
                if role.rules.is_none() {
                    let kind = bindings.first().map_or("", |binding| &binding.role_kind);
                    missing.push(not_found(kind, &role.name.1));
                }
            }
        }
        // Each message once, in the order of the first.
        let mut seen = HashSet::new();
        missing.retain(|message| seen.insert(message.clone()));
        missing
    }

    /// All rules of a user in a namespace, and in the cluster.
    pub(crate) fn rules_of(&self, identity: &Identity, namespace: &str) -> Vec<PolicyRule> {
        let holdings = self.scopes(namespace).flat_map(|scope| scope.of(identity));
        let mut seen = HashSet::new();
        holdings
            .flat_map(|holdings| holdings.roles.keys())
            .filter(|role| seen.insert(**role))
            .filter_map(|role| self.roles[*role].rules.as_ref())
            .flat_map(|(rules, _)| rules.iter().cloned())
            .collect()
    }

    /// The rules of a role that a binding in a namespace names; `None` if it does not exist.
    pub(crate) fn rules_in(
        &self,
        role: &RoleReference,
        namespace: &str,
    ) -> Option<Arc<[PolicyRule]>> {
        let id = self.role_ids.get(&role.role_name(namespace))?;
        Some(Arc::clone(&self.roles[*id].rules.as_ref()?.0))
    }
}

/// The users and groups of a binding, each once.
fn holders(binding: &RoleBinding) -> HashSet<Holder> {
    let subjects = binding.subjects.iter();
    subjects.filter_map(|subject| subject.holder(&binding.namespace)).collect()
}

#[cfg(test)]
mod tests {
    use headwater_json::{Value, json};

    use super::*;

    /// A reproducible sequence of numbers.
    struct Sequence(u64);

    impl Sequence {
        fn below(&mut self, end: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.0 >> 33) % end
        }
    }

    fn role(rules: &Value) -> StoredRole {
        serde_json::from_slice(&serde_json::to_vec(&json!({ "rules": rules })).unwrap()).unwrap()
    }

    fn binding(kind: &str, name: &str, subjects: &Value) -> StoredBinding {
        let role = json!({ "kind": kind, "name": name });
        let binding = json!({ "subjects": subjects, "roleRef": role });
        serde_json::from_slice(&serde_json::to_vec(&binding).unwrap()).unwrap()
    }

    fn user(name: &str, groups: &[&str]) -> Identity {
        Identity {
            user: name.into(),
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
            ..Identity::default()
        }
    }

    fn on<'a>(verb: &'a str, resource: &'a str, namespace: &'a str) -> Attributes<'a> {
        Attributes::Resource { verb, group: "", resource, subresource: "", namespace, name: "" }
    }

    fn get_pods() -> StoredRole {
        role(&json!([{ "verbs": ["get"], "apiGroups": [""], "resources": ["pods"] }]))
    }

    /// S8.10
    #[test]
    fn a_binding_grants_in_its_namespace_and_a_cluster_binding_everywhere() {
        let mut index = RbacIndex::default();
        index.set_role("", "reader", Some(get_pods()));
        let jane = json!([{ "kind": "User", "name": "jane" }]);
        index.set_binding("a", "b", Some(binding("ClusterRole", "reader", &jane)));
        let jane = user("jane", &[]);
        assert!(index.allows(&jane, &on("get", "pods", "a")));
        assert!(!index.allows(&jane, &on("get", "pods", "b")));
        assert!(!index.allows(&jane, &on("get", "pods", "")));
        assert!(!index.allows(&user("joe", &["jane"]), &on("get", "pods", "a")));
        let devs = json!([{ "kind": "Group", "name": "devs" }]);
        index.set_binding("", "b", Some(binding("ClusterRole", "reader", &devs)));
        let joe = user("joe", &["x", "devs"]);
        assert!(index.allows(&joe, &on("get", "pods", "b")));
        assert!(index.allows(&joe, &on("get", "pods", "")));
        assert_eq!(
            index.granted_by(&joe, &on("get", "pods", "b")).unwrap(),
            r#"ClusterRoleBinding "b" of ClusterRole "reader" to Group "devs""#
        );
        assert_eq!(
            index.granted_by(&jane, &on("get", "pods", "a")).unwrap(),
            r#"RoleBinding "b/a" of ClusterRole "reader" to User "jane""#
        );
        index.set_binding("", "b", None);
        assert!(!index.allows(&joe, &on("get", "pods", "b")));
    }

    #[test]
    fn a_service_account_is_one_of_its_namespace() {
        let mut index = RbacIndex::default();
        index.set_role("a", "reader", Some(get_pods()));
        let here = json!([{ "kind": "ServiceAccount", "name": "robot" }]);
        index.set_binding("a", "b", Some(binding("Role", "reader", &here)));
        let robot = |namespace| user(&format!("system:serviceaccount:{namespace}:robot"), &[]);
        assert!(index.allows(&robot("a"), &on("get", "pods", "a")));
        assert!(!index.allows(&robot("b"), &on("get", "pods", "a")));
        let there = json!([{ "kind": "ServiceAccount", "name": "robot", "namespace": "b" }]);
        index.set_binding("a", "b", Some(binding("Role", "reader", &there)));
        assert!(!index.allows(&robot("a"), &on("get", "pods", "a")));
        assert!(index.allows(&robot("b"), &on("get", "pods", "a")));
        assert_eq!(
            index.granted_by(&robot("b"), &on("get", "pods", "a")).unwrap(),
            r#"RoleBinding "b/a" of Role "reader" to ServiceAccount "robot/b""#
        );
        // A Role of another namespace is not the one that the binding names.
        index.set_role("a", "reader", None);
        index.set_role("b", "reader", Some(get_pods()));
        assert!(!index.allows(&robot("b"), &on("get", "pods", "a")));
    }

    #[test]
    fn a_missing_role_grants_nothing_until_it_exists() {
        let mut index = RbacIndex::default();
        let jane = json!([{ "kind": "User", "name": "jane" }]);
        index.set_binding("", "b", Some(binding("ClusterRole", "x", &jane)));
        index.set_binding("ns", "b", Some(binding("Role", "y", &jane)));
        let jane = user("jane", &[]);
        assert_eq!(
            index.missing_roles(&jane, "ns"),
            [
                r#"clusterrole.rbac.authorization.k8s.io "x" not found"#,
                r#"role.rbac.authorization.k8s.io "y" not found"#,
            ]
        );
        index.set_role("", "x", Some(get_pods()));
        assert!(index.allows(&jane, &on("get", "pods", "ns")));
        assert!(index.missing_roles(&jane, "").is_empty());
    }

    /// Random changes: after each the index decides as one that is built from nothing, and lists the
    /// rules that it decides by.
    #[test]
    fn the_index_after_changes_is_the_one_built_from_nothing() {
        let mut random = Sequence(7);
        let mut index = RbacIndex::default();
        let mut roles: BTreeMap<(String, String), Value> = BTreeMap::new();
        let mut bindings: BTreeMap<(String, String), (String, String, Value)> = BTreeMap::new();
        let names = |prefix: &str, n: u64| format!("{prefix}{n}");
        for step in 0..3_000 {
            let namespace = ["", "a", "b"][random.below(3) as usize].to_owned();
            let is_role = random.below(2) == 0;
            let is_removed = random.below(4) == 0;
            if is_role {
                let name = names("r", random.below(12));
                let verb = ["get", "list", "*"][random.below(3) as usize];
                let rules = json!([{
                    "verbs": [verb], "apiGroups": [""],
                    "resources": [names("x", random.below(4))],
                }]);
                let stored = (!is_removed).then(|| role(&rules));
                index.set_role(&namespace, &name, stored);
                match is_removed {
                    true => drop(roles.remove(&(namespace, name))),
                    false => drop(roles.insert((namespace, name), rules)),
                }
            } else {
                let name = names("b", random.below(20));
                let kind = match namespace.is_empty() || random.below(2) == 0 {
                    true => "ClusterRole",
                    false => "Role",
                };
                let subjects = json!([
                    { "kind": "User", "name": names("u", random.below(2)) },
                    { "kind": "Group", "name": names("g", random.below(2)) },
                    { "kind": "User", "name": names("u", random.below(2)) },
                ]);
                let named = names("r", random.below(12));
                let stored = (!is_removed).then(|| binding(kind, &named, &subjects));
                index.set_binding(&namespace, &name, stored);
                match is_removed {
                    true => drop(bindings.remove(&(namespace, name))),
                    false => {
                        drop(bindings.insert((namespace, name), (kind.to_owned(), named, subjects)))
                    }
                }
            }
            if step % 50 != 0 {
                continue;
            }
            let mut fresh = RbacIndex::default();
            for ((namespace, name), rules) in &roles {
                fresh.set_role(namespace, name, Some(role(rules)));
            }
            for ((namespace, name), (kind, role, subjects)) in &bindings {
                fresh.set_binding(namespace, name, Some(binding(kind, role, subjects)));
            }
            // The definition, without an index.
            let naive = |identity: &Identity, attributes: &Attributes<'_>| {
                let Attributes::Resource { verb, resource, namespace, .. } = *attributes else {
                    unreachable!()
                };
                bindings.iter().any(|((scope, _), (kind, role, subjects))| {
                    let role_scope = if kind == "Role" { scope.as_str() } else { "" };
                    let held = subjects.as_array().unwrap().iter().any(|subject| {
                        let name = subject["name"].as_str().unwrap();
                        match subject["kind"].as_str().unwrap() {
                            "User" => identity.user == name,
                            _ => identity.is_in(name),
                        }
                    });
                    let rule = roles.get(&(role_scope.to_owned(), role.clone()));
                    let covers = rule.is_some_and(|rules| {
                        let known = rules[0]["verbs"][0].as_str().unwrap();
                        let of = rules[0]["resources"][0].as_str().unwrap();
                        (known == "*" || known == verb) && of == resource
                    });
                    held && covers && (scope.is_empty() || scope == namespace)
                })
            };
            for who in [user("u0", &["g1"]), user("u1", &[]), user("u2", &["g0", "g1"])] {
                for namespace in ["", "a", "b"] {
                    let listed = index.rules_of(&who, namespace);
                    for resource in ["x0", "x1", "x2", "x3"] {
                        for verb in ["get", "list", "watch"] {
                            let asked = on(verb, resource, namespace);
                            let expected = naive(&who, &asked);
                            assert_eq!(
                                index.allows(&who, &asked),
                                expected,
                                "step {step} {asked:?}"
                            );
                            assert_eq!(fresh.allows(&who, &asked), expected, "fresh {asked:?}");
                            let reason = index.granted_by(&who, &asked);
                            assert_eq!(reason.is_some(), expected, "{reason:?}");
                            let text = format!("{verb} core {resource} -");
                            let is_listed = listed.iter().any(|rule| rule.allows_text(&text));
                            assert_eq!(is_listed, expected, "listed {asked:?}");
                        }
                    }
                }
            }
            assert_eq!(index.role_ids.len(), fresh.role_ids.len());
            assert_eq!(index.scopes.len(), fresh.scopes.len());
        }
    }
}
