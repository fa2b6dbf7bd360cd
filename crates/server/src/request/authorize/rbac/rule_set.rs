//! Compiled rules: the question whether a set of rules covers a request takes a few lookups.
//!
//! Words (verbs, groups, resources, paths) are numbered once, when a rule is compiled. A set counts
//! how often each permission was added, so that rules of many roles can be merged into one set and
//! taken out again.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::rule::PolicyRule;

/// The number of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Word(u32);

impl Word {
    /// `*`.
    const ANY: Word = Word(0);
    /// A word that no rule contains.
    const UNKNOWN: Word = Word(u32::MAX);
}

/// The words of all rules.
pub(super) struct Words(HashMap<Box<str>, Word>);

impl Default for Words {
    fn default() -> Words {
        Words(HashMap::from([("*".into(), Word::ANY)]))
    }
}

impl Words {
    fn of(&self, text: &str) -> Word {
        self.0.get(text).copied().unwrap_or(Word::UNKNOWN)
    }

    fn add(&mut self, text: &str) -> Word {
        if let Some(known) = self.0.get(text) {
            return *known;
        }
        let word = Word(u32::try_from(self.0.len()).unwrap_or(u32::MAX - 1));
        self.0.insert(text.into(), word);
        word
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// A request for a resource or a path, in numbered words.
pub(super) enum WordedRequest<'a> {
    Resource {
        verb: Word,
        group: Word,
        /// `resource` or `resource/subresource`.
        resource: Word,
        /// `*/subresource`.
        any_parent: Word,
        name: &'a str,
    },
    Path {
        verb: Word,
        path: &'a str,
    },
}

impl<'a> WordedRequest<'a> {
    pub(super) fn resource(
        words: &Words,
        verb: &str,
        group: &str,
        (resource, subresource): (&str, &str),
        name: &'a str,
    ) -> WordedRequest<'a> {
        let (resource, any_parent) = match subresource {
            "" => (words.of(resource), Word::UNKNOWN),
            subresource => (
                words.of(&[resource, "/", subresource].concat()),
                words.of(&["*/", subresource].concat()),
            ),
        };
        let (verb, group) = (words.of(verb), words.of(group));
        WordedRequest::Resource { verb, group, resource, any_parent, name }
    }

    pub(super) fn path(words: &Words, verb: &str, path: &'a str) -> WordedRequest<'a> {
        WordedRequest::Path { verb: words.of(verb), path }
    }
}

/// The permissions that one set expands. A rule beyond this is kept as it is.
const EXPANDED_MAX: usize = 16_384;

type Permission = (Word, Word, Word);

/// Whether a permission is for all names or only for some, and how often each was added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Names {
    all: u32,
    some: Option<HashMap<Box<str>, u32>>,
}

impl Names {
    fn allows(&self, name: &str) -> bool {
        self.all > 0 || self.some.as_ref().is_some_and(|some| some.contains_key(name))
    }

    fn add(&mut self, other: &Names) {
        self.all += other.all;
        for (name, count) in other.some.iter().flat_map(|some| some.iter()) {
            *self.some.get_or_insert_default().entry(name.clone()).or_default() += count;
        }
    }

    /// Returns whether nothing is left.
    fn remove(&mut self, other: &Names) -> bool {
        self.all = self.all.saturating_sub(other.all);
        if let (Some(some), Some(others)) = (&mut self.some, &other.some) {
            for (name, count) in others {
                if let Some(held) = some.get_mut(name) {
                    *held = held.saturating_sub(*count);
                    if *held == 0 {
                        some.remove(name);
                    }
                }
            }
            if some.is_empty() {
                self.some = None;
            }
        }
        self.all == 0 && self.some.is_none()
    }
}

/// A rule with more permissions than a set expands.
#[derive(Clone, Debug)]
struct BroadRule {
    verbs: Vec<Word>,
    groups: Vec<Word>,
    resources: Vec<Word>,
    names: Vec<Box<str>>,
}

impl BroadRule {
    fn allows(&self, verb: Word, group: Word, resources: [Word; 2], name: &str) -> bool {
        let has = |list: &[Word], word: Word| {
            list.binary_search(&Word::ANY).is_ok() || list.binary_search(&word).is_ok()
        };
        has(&self.verbs, verb)
            && has(&self.groups, group)
            && resources.iter().any(|resource| has(&self.resources, *resource))
            && (self.names.is_empty() || self.names.iter().any(|known| **known == *name))
    }
}

/// The rules of one role, or of several.
#[derive(Clone, Default, Debug)]
pub(super) struct RuleSet {
    permissions: HashMap<Permission, Names, BuildHasherDefault<WordHasher>>,
    /// Permissions with `*` at each place, so that places without one are not looked up.
    any_verb: u32,
    any_group: u32,
    any_resource: u32,
    broad: Vec<BroadRule>,
    paths: PathRules,
}

impl RuleSet {
    pub(super) fn compile(rules: &[PolicyRule], words: &mut Words) -> RuleSet {
        let mut set = RuleSet::default();
        for rule in rules {
            set.compile_resources(rule, words);
            for verb in &rule.verbs {
                let verb = words.add(verb);
                for path in &rule.non_resource_urls {
                    set.paths.add(verb, path, 1);
                }
            }
        }
        set
    }

    fn compile_resources(&mut self, rule: &PolicyRule, words: &mut Words) {
        let mut numbered = |list: &[String]| {
            let mut list: Vec<Word> = list.iter().map(|text| words.add(text)).collect();
            list.sort_unstable();
            list.dedup();
            list
        };
        let verbs = numbered(&rule.verbs);
        let (groups, resources) = (numbered(&rule.api_groups), numbered(&rule.resources));
        let count = verbs.len().saturating_mul(groups.len()).saturating_mul(resources.len());
        let mut names = Names::default();
        match rule.resource_names.as_slice() {
            [] => names.all = 1,
            some => {
                let counted = some.iter().map(|name| (name.as_str().into(), 1));
                names.some = Some(counted.collect());
            }
        }
        let each = rule.resource_names.len().max(1);
        if count.saturating_mul(each) > EXPANDED_MAX.saturating_sub(self.permissions.len()) {
            let names = rule.resource_names.iter().map(|name| name.as_str().into()).collect();
            self.broad.push(BroadRule { verbs, groups, resources, names });
            return;
        }
        for verb in &verbs {
            for group in &groups {
                for resource in &resources {
                    self.insert((*verb, *group, *resource), &names);
                }
            }
        }
    }

    fn insert(&mut self, permission: Permission, names: &Names) {
        let known = self.permissions.entry(permission).or_default();
        let is_new = *known == Names::default();
        known.add(names);
        if is_new {
            let (verb, group, resource) = permission;
            self.any_verb += u32::from(verb == Word::ANY);
            self.any_group += u32::from(group == Word::ANY);
            self.any_resource += u32::from(resource == Word::ANY);
        }
    }

    /// Adds the expanded rules of another set. Its broad rules stay where they are.
    pub(super) fn add(&mut self, other: &RuleSet) {
        for (permission, names) in &other.permissions {
            self.insert(*permission, names);
        }
        self.paths.add_all(&other.paths);
    }

    /// Takes out what `add` added.
    pub(super) fn remove(&mut self, other: &RuleSet) {
        for (permission, names) in &other.permissions {
            let Some(known) = self.permissions.get_mut(permission) else { continue };
            if known.remove(names) {
                self.permissions.remove(permission);
                let (verb, group, resource) = *permission;
                self.any_verb -= u32::from(verb == Word::ANY);
                self.any_group -= u32::from(group == Word::ANY);
                self.any_resource -= u32::from(resource == Word::ANY);
            }
        }
        self.paths.remove_all(&other.paths);
    }

    pub(super) fn has_broad(&self) -> bool {
        !self.broad.is_empty()
    }

    /// Whether a rule covers the request.
    pub(super) fn allows(&self, question: &WordedRequest<'_>) -> bool {
        match *question {
            WordedRequest::Path { verb, path } => self.paths.allow(verb, path),
            WordedRequest::Resource { .. } => {
                self.allows_expanded(question) || self.allows_broad(question)
            }
        }
    }

    fn allows_expanded(&self, question: &WordedRequest<'_>) -> bool {
        let WordedRequest::Resource { verb, group, resource, any_parent, name } = *question else {
            return false;
        };
        let pair = |word: Word, any: u32| {
            [Some(word).filter(|word| *word != Word::UNKNOWN), (any > 0).then_some(Word::ANY)]
        };
        for verb in pair(verb, self.any_verb).into_iter().flatten() {
            for group in pair(group, self.any_group).into_iter().flatten() {
                let [exact, any] = pair(resource, self.any_resource);
                let parent = Some(any_parent).filter(|word| *word != Word::UNKNOWN);
                for resource in [exact, parent, any].into_iter().flatten() {
                    let names = self.permissions.get(&(verb, group, resource));
                    if names.is_some_and(|names| names.allows(name)) {
                        return true;
                    }
                }
            }
        }
        false
    }

    /// The same for rules that are not expanded.
    pub(super) fn allows_broad(&self, question: &WordedRequest<'_>) -> bool {
        let WordedRequest::Resource { verb, group, resource, any_parent, name } = *question else {
            return false;
        };
        let resources = [resource, any_parent];
        self.broad.iter().any(|rule| rule.allows(verb, group, resources, name))
    }
}

/// Rules about non-resource paths.
#[derive(Clone, Default, Debug)]
struct PathRules {
    exact: HashMap<Box<str>, HashMap<Word, u32>>,
    /// What comes before a trailing `*`, and the length of each.
    prefixes: HashMap<Box<str>, HashMap<Word, u32>>,
    lengths: Vec<(usize, u32)>,
}

impl PathRules {
    fn add(&mut self, verb: Word, url: &str, count: u32) {
        if !url.ends_with('*') {
            *self.exact.entry(url.into()).or_default().entry(verb).or_default() += count;
            return;
        }
        let prefix = url.trim_end_matches('*');
        let verbs = self.prefixes.entry(prefix.into()).or_default();
        if verbs.is_empty() {
            match self.lengths.binary_search_by_key(&prefix.len(), |(length, _)| *length) {
                Ok(at) => self.lengths[at].1 += 1,
                Err(at) => self.lengths.insert(at, (prefix.len(), 1)),
            }
        }
        *verbs.entry(verb).or_default() += count;
    }

    fn add_all(&mut self, other: &PathRules) {
        for (url, verb, count) in other.rows() {
            self.add(verb, &url, count);
        }
    }

    fn remove_all(&mut self, other: &PathRules) {
        for (url, verb, count) in other.rows() {
            let prefix = url.trim_end_matches('*');
            let list = if url.ends_with('*') { &mut self.prefixes } else { &mut self.exact };
            let Some(verbs) = list.get_mut(prefix) else { continue };
            if let Some(held) = verbs.get_mut(&verb) {
                *held = held.saturating_sub(count);
                if *held == 0 {
                    verbs.remove(&verb);
                }
            }
            if !verbs.is_empty() {
                continue;
            }
            list.remove(prefix);
            if url.ends_with('*')
                && let Ok(at) =
                    self.lengths.binary_search_by_key(&prefix.len(), |(length, _)| *length)
            {
                self.lengths[at].1 -= 1;
                if self.lengths[at].1 == 0 {
                    self.lengths.remove(at);
                }
            }
        }
    }

    fn rows(&self) -> impl Iterator<Item = (String, Word, u32)> {
        let exact = self.exact.iter().map(|(url, verbs)| (url.to_string(), verbs));
        let prefixes = self.prefixes.iter().map(|(url, verbs)| (format!("{url}*"), verbs));
        exact.chain(prefixes).flat_map(|(url, verbs)| {
            verbs.iter().map(move |(verb, count)| (url.clone(), *verb, *count))
        })
    }

    fn allow(&self, verb: Word, path: &str) -> bool {
        let covers = |verbs: &HashMap<Word, u32>| {
            verbs.contains_key(&verb) || verbs.contains_key(&Word::ANY)
        };
        self.exact.get(path).is_some_and(covers)
            || self.lengths.iter().any(|(length, _)| {
                let prefix = path.get(..*length);
                prefix.and_then(|prefix| self.prefixes.get(prefix)).is_some_and(covers)
            })
    }
}

/// Hashes the numbers of words, which no client chooses.
#[derive(Clone, Copy, Default)]
struct WordHasher(u64);

impl Hasher for WordHasher {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0.rotate_left(23) ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

#[cfg(test)]
mod tests {
    use headwater_json::json;

    use super::*;

    fn rules(rules: &headwater_json::Value) -> Vec<PolicyRule> {
        serde_json::from_slice(&serde_json::to_vec(rules).unwrap()).unwrap()
    }

    /// Requests are `verb group resource[/subresource] name` or `verb /path`.
    fn allows(set: &RuleSet, words: &Words, request: &str) -> bool {
        let parts: Vec<&str> = request.split(' ').collect();
        let question = match parts.as_slice() {
            [verb, path] => WordedRequest::path(words, verb, path),
            [verb, group, resource, name] => {
                let group = if *group == "core" { "" } else { group };
                let (resource, sub) = resource.split_once('/').unwrap_or((resource, ""));
                WordedRequest::resource(words, verb, group, (resource, sub), name)
            }
            _ => panic!("{request}"),
        };
        set.allows(&question)
    }

    #[track_caller]
    fn check(list: &headwater_json::Value, allowed: &[&str], denied: &[&str]) {
        let (mut words, list) = (Words::default(), rules(list));
        let set = RuleSet::compile(&list, &mut words);
        for request in allowed {
            assert!(allows(&set, &words, request), "{request} is denied");
            assert!(list.iter().any(|rule| rule.allows_text(request)), "{request}: naive denial");
        }
        for request in denied {
            assert!(!allows(&set, &words, request), "{request} is allowed");
            assert!(!list.iter().any(|rule| rule.allows_text(request)), "{request}: naive grant");
        }
        // Merging and taking out again leaves nothing.
        let mut merged = set.clone();
        merged.add(&set);
        merged.remove(&set);
        for request in allowed {
            assert!(allows(&merged, &words, request), "{request} is lost");
        }
        merged.remove(&set);
        for request in allowed {
            assert!(!allows(&merged, &words, request) || set.has_broad(), "{request} is kept");
        }
        assert!(merged.permissions.is_empty() && merged.paths.lengths.is_empty());
    }

    /// S8.10
    #[test]
    fn rules_cover_what_they_name_and_what_a_star_covers() {
        let rule = |verbs: &[&str], groups: &[&str], resources: &[&str], names: &[&str]| {
            json!([{
                "verbs": verbs, "apiGroups": groups, "resources": resources, "resourceNames": names,
            }])
        };
        check(
            &rule(&["get", "list"], &[""], &["pods", "pods/log"], &[]),
            &["get core pods a", "list core pods ", "get core pods/log a"],
            &["watch core pods a", "get apps pods a", "get core pods/status a", "get core pod a"],
        );
        check(
            &rule(&["*"], &["apps"], &["*/scale"], &[]),
            &["update apps deployments/scale x", "* apps deployments/scale x"],
            &["update apps deployments x", "update core deployments/scale x", "get apps scale x"],
        );
        check(
            &rule(&["get"], &["*"], &["*"], &[]),
            &["get core pods a", "get x.io ys/z ", "get * * "],
            &["list core pods a", "get /x"],
        );
        check(
            &rule(&["get"], &[""], &["pods"], &[]),
            &["get core pods a"],
            &["get core * a", "* core pods a", "get * pods a"],
        );
        check(
            &rule(&["get", "create"], &[""], &["configmaps"], &["one", "two"]),
            &["get core configmaps one", "create core configmaps two"],
            &["get core configmaps three", "get core configmaps ", "list core configmaps one"],
        );
        // `pods/*` is the literal name of a subresource, not a wildcard.
        check(&rule(&["get"], &[""], &["pods/*"], &[]), &[], &["get core pods/log a"]);
    }

    #[test]
    fn paths_match_whole_or_up_to_a_trailing_star() {
        let rule =
            json!([{ "verbs": ["get"], "nonResourceURLs": ["/metrics", "/debug/*", "/v*"] }]);
        check(
            &rule,
            &["get /metrics", "get /debug/", "get /debug/pprof/x", "get /version", "get /v"],
            &["get /metrics/x", "post /metrics", "get /debug", "get /", "get core metrics a"],
        );
        let all = json!([{ "verbs": ["*"], "nonResourceURLs": ["*"] }]);
        check(&all, &["get /", "post /x/y"], &["get core pods a"]);
    }

    #[test]
    fn a_rule_with_a_huge_product_is_not_expanded() {
        let many = |prefix: &str| (0..200).map(|n| format!("{prefix}{n}")).collect::<Vec<_>>();
        let rule = json!([{ "verbs": ["get"], "apiGroups": many("g"), "resources": many("r") }]);
        check(&rule, &["get g7 r199 x"], &["get g7 s x", "list g7 r199 x"]);
        let (mut words, list) = (Words::default(), rules(&rule));
        assert_eq!(RuleSet::compile(&list, &mut words).permissions.len(), 0);
        assert_eq!(words.len(), 402);
    }
}
