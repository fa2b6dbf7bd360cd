//! Validation of built-in kinds, with Kubernetes' field paths, reasons and messages.
//!
//! River: defaulted object → **validate** → 422 or the store. The rules are in
//! `validate/table.txt`, by type; rules that do not fit a table are in the submodules. Metadata has its
//! own rules, for all kinds, in [`headwater_api::name`].
//! Promise: no decoded and defaulted object makes it panic.

use std::fmt;
use std::sync::LazyLock;

use headwater_json::path::Path;
use headwater_json::{Map, Name, Value};

use crate::types::{Reach, Steps, Type, Types, ValueType, When, steps};
use headwater_api::kind::Kind;
use headwater_api::status::{FieldError, FieldErrorKind};

mod autoscaler;
mod config;
mod device;
mod flow;
mod job;
mod network;
mod pod;
mod pod_parts;
mod rule;
mod security;
mod storage;
mod update;
mod volume;
mod workload;

use rule::Rule;

type Object = Map;

/// Validates a new object of a built-in kind, without its metadata. It is in the storage version,
/// defaulted and prepared.
pub fn create(kind: &Kind, object: &Value) -> Vec<FieldError> {
    check(kind, object, None)
}

/// Validates an object that replaces `old`, without its metadata.
pub fn update(kind: &Kind, object: &Value, old: &Value) -> Vec<FieldError> {
    check(kind, object, old.as_object())
}

fn check(kind: &Kind, object: &Value, old: Option<&Object>) -> Vec<FieldError> {
    let (Some(of), Value::Object(object)) = (Types::builtin().of(kind), object) else {
        return Vec::new();
    };
    let mut check = Check { kind, root: object, old, errors: Vec::new(), skipped: Vec::new() };
    if let Some(old) = old {
        check.immutable_fields(of, old);
        update::by_kind(&mut check, old);
    }
    check.object(of, object, &Path::Root);
    check.errors
}

/// The validation of one object.
struct Check<'a> {
    kind: &'a Kind,
    root: &'a Object,
    old: Option<&'a Object>,
    errors: Vec<FieldError>,
    /// Members of the current object that are not checked because of another member.
    skipped: Vec<&'static str>,
}

impl Check<'_> {
    fn object(&mut self, of: &Type, object: &Object, path: &Path<'_>) {
        for line in &PLAN.lines[of.id.index()] {
            line.check(self, object, path);
        }
        let skipped = std::mem::take(&mut self.skipped);
        let unchecked = &PLAN.unchecked[of.id.index()];
        for (field, value) in PLAN.reach.members(of, object.iter()) {
            let is_skipped = unchecked
                .iter()
                .any(|(name, always)| *name == field.name && (*always || self.old.is_some()));
            let is_skipped = is_skipped || skipped.contains(&field.name);
            if !is_skipped && !self.is_unchanged(path, field.name, value) {
                self.value(&field.shape, value, &Path::Field(path, field.name));
            }
        }
    }

    /// Whether an update does not change a member. It was validated when it was written, and must not
    /// prevent changes of other members even if it is invalid now.
    fn is_unchanged(&self, path: &Path<'_>, name: &str, value: &Value) -> bool {
        let is_member = matches!(path, Path::Root);
        is_member && self.old.is_some_and(|old| old.get(name) == Some(value))
    }

    fn value(&mut self, shape: &ValueType, value: &Value, path: &Path<'_>) {
        match (shape, value) {
            (ValueType::Struct(id), Value::Object(object)) => {
                self.object(Types::builtin().get(*id), object, path);
            }
            (ValueType::List(inner), Value::Array(items)) => {
                for (index, item) in items.iter().enumerate() {
                    self.value(inner, item, &Path::Index(path, index));
                }
            }
            (ValueType::Map(inner), Value::Object(object)) => {
                for (key, value) in object {
                    self.value(inner, value, &Path::Bracket(path, key));
                }
            }
            _ => {}
        }
    }

    fn immutable_fields(&mut self, of: &Type, old: &Object) {
        for (path, why) in &PLAN.immutable[of.id.index()] {
            update::immutable(self, old, path, *why);
        }
    }

    fn required(&mut self, field: impl fmt::Display, why: &str) {
        self.errors.push(FieldError::required(field.to_string(), why));
    }

    fn invalid(&mut self, field: impl fmt::Display, value: &Value, why: &str) {
        self.errors.push(FieldError::invalid(field.to_string(), value, why));
    }

    fn forbidden(&mut self, field: impl fmt::Display, why: &str) {
        self.errors.push(FieldError::forbidden(field.to_string(), why));
    }

    fn not_supported(&mut self, field: impl fmt::Display, value: &Value, supported: &[&str]) {
        self.errors.push(FieldError::not_supported(field.to_string(), value, supported));
    }

    fn duplicate(&mut self, field: impl fmt::Display, value: &Value) {
        self.errors.push(FieldError::duplicate(field.to_string(), value));
    }

    fn not_found(&mut self, field: impl fmt::Display, value: &Value) {
        let (kind, field) = (FieldErrorKind::NotFound, field.to_string());
        self.errors.push(FieldError { kind, field, detail: value.to_string() });
    }

    fn too_long(&mut self, field: impl fmt::Display, max: usize) {
        let detail = format!("may not be more than {max} bytes");
        let (kind, field) = (FieldErrorKind::TooLong, field.to_string());
        self.errors.push(FieldError { kind, field, detail });
    }

    fn too_many(&mut self, field: impl fmt::Display, count: usize, max: usize) {
        let detail = format!("{count}: must have at most {max} items");
        let (kind, field) = (FieldErrorKind::TooMany, field.to_string());
        self.errors.push(FieldError { kind, field, detail });
    }

    /// Checks no values below a member of the current object.
    fn skip(&mut self, member: &'static str) {
        self.skipped.push(member);
    }

    /// Whether the object is new.
    fn is_new(&self) -> bool {
        self.old.is_none()
    }

    /// Adds an error for each problem of a string.
    fn problems(&mut self, field: impl fmt::Display, text: &str, problems: Vec<String>) {
        for problem in problems {
            self.invalid(&field, &text.into(), &problem);
        }
    }
}

static PLAN: LazyLock<Plan> = LazyLock::new(|| Plan::read(include_str!("validate/table.txt")));

/// The parsed table.
struct Plan {
    /// Lines by index of type.
    lines: Vec<Vec<Line>>,
    /// Immutable paths by index of type, some with the message for an update.
    immutable: Vec<Vec<(Steps, Option<&'static str>)>>,
    /// Members that are not checked, always or in updates, by index of type.
    unchecked: Vec<Vec<(&'static str, bool)>>,
    reach: Reach,
}

/// A line of the table.
enum Line {
    Rules {
        when: When,
        path: Vec<Step>,
        rules: Vec<Rule>,
    },
    Call(Own),
    /// Only for new objects.
    New(Box<Line>),
}

/// A rule that does not fit the table.
type Own = fn(&mut Check<'_>, &Object, &Path<'_>);

enum Step {
    Field(Name),
    Each,
}

impl Plan {
    fn read(text: &'static str) -> Plan {
        let types = Types::builtin();
        let mut lines: Vec<Vec<Line>> = types.iter().map(|_| Vec::new()).collect();
        let mut immutable: Vec<Vec<_>> = types.iter().map(|_| Vec::new()).collect();
        let mut unchecked: Vec<Vec<_>> = types.iter().map(|_| Vec::new()).collect();
        let mut of = usize::MAX;
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some(line) = line.strip_prefix("  ") else {
                of = types.named(line).expect("the table names types").id.index();
                continue;
            };
            let words = line.splitn(3, ' ').collect::<Vec<_>>();
            match words.as_slice() {
                [path, "immutable"] => immutable[of].push((steps(path), None)),
                [path, "frozen", why] => immutable[of].push((steps(path), Some(*why))),
                [name, "unchecked"] => unchecked[of].push((*name, true)),
                [name, "new-only"] => unchecked[of].push((*name, false)),
                _ => lines[of].push(Line::read(line)),
            }
        }
        let reach = Reach::new(types, |id| !lines[id.index()].is_empty());
        Plan { lines, immutable, unchecked, reach }
    }
}

impl Line {
    fn read(line: &'static str) -> Line {
        if let Some(line) = line.strip_prefix("+ ") {
            return Line::New(Box::new(Line::read(line)));
        }
        if let Some(name) = line.strip_prefix('@') {
            return Line::Call(own(name));
        }
        let (line, when) = When::split(line);
        let (path, rules) = line.split_once(' ').expect("a line has a path and rules");
        let mut walk = Vec::new();
        for name in path.split('.') {
            walk.push(Step::Field(Name::new(name.trim_end_matches("[]"))));
            if name.ends_with("[]") {
                walk.push(Step::Each);
            }
        }
        Line::Rules { when, path: walk, rules: rules.split("; ").map(Rule::read).collect() }
    }

    fn check(&self, check: &mut Check<'_>, object: &Object, path: &Path<'_>) {
        match self {
            Line::Call(own) => own(check, object, path),
            Line::Rules { when, path: walk, rules } if when.holds(object) => {
                if let [Step::Field(name), rest @ ..] = walk.as_slice() {
                    let path = Path::Field(path, name.as_str());
                    follow(check, rules, rest, object.named(*name), &path);
                }
            }
            Line::New(line) if check.is_new() => line.check(check, object, path),
            Line::New(_) | Line::Rules { .. } => {}
        }
    }
}

/// Walks to the values of rules. Children of absent values are not checked.
fn follow(
    check: &mut Check<'_>,
    rules: &[Rule],
    walk: &[Step],
    value: Option<&Value>,
    path: &Path<'_>,
) {
    let value = value.filter(|value| !value.is_null());
    match (walk, value) {
        ([], value) => {
            for rule in rules {
                // A missing value needs no further errors.
                if !rule.check(check, value, path) {
                    return;
                }
            }
        }
        ([Step::Field(name), rest @ ..], Some(Value::Object(object))) => {
            let path = Path::Field(path, name.as_str());
            follow(check, rules, rest, object.named(*name), &path);
        }
        ([Step::Each, rest @ ..], Some(Value::Array(items))) => {
            for (index, item) in items.iter().enumerate() {
                follow(check, rules, rest, Some(item), &Path::Index(path, index));
            }
        }
        _ => {}
    }
}

macro_rules! by_name {
    ($name:ident: $($module:ident: $($rule:ident)*;)*) => {
        match $name {
            $($(stringify!($rule) => $module::$rule,)*)*
            other => unreachable!("no rule {other}"),
        }
    };
}

/// The rules that the table names with `@`, by module.
fn own(name: &str) -> Own {
    by_name! { name:
        autoscaler: autoscaler container_metric metric target;
        config: cluster_role cluster_subjects config_map event label_requirement limit_range
            limit_ranges node policy_rule priority_class quota secret subject subject_role;
        device: attribute claim claim_configuration constraint device device_class pool
            request request_mode selector slice;
        flow: flow_rules flow_schema level_parts non_resource_rule priority_level queuing resource_rule
            service_account;
        network: endpoint_ip endpoint_slice endpoint_subset ingress
            ingress_host ingress_path ip_block network_peer network_policy network_port
            service service_cidr zone_hints;
        pod: empty_dir env env_from handler node_requirement one_volume_source
            pod pod_spec pod_template resources runtime_class toleration;
        pod_parts: dns_config field_reference http_headers pod_os pod_security_context
            resource_reference;
        security: app_armor seccomp signing_request;
        storage: claim_spec csi_driver csi_node csi_node_driver parameters
            token_requests volume_source volume_attachment;
        volume: fibre_channel nfs volume_spec;
        workload: cron_job daemon_set deployment disruption_budget job
            job_spec replica_set replication_controller revision_data
            stateful_set;
    }
}

#[inline(always)]
fn text<'a>(object: &'a Object, name: &str) -> &'a str {
    object.get(name).and_then(Value::as_str).unwrap_or_default()
}

#[inline(always)]
fn number(object: &Object, name: &str) -> Option<i64> {
    object.get(name).and_then(Value::as_i64)
}

#[inline(always)]
fn is_true(object: &Object, name: &str) -> bool {
    object.get(name) == Some(&Value::Bool(true))
}

#[inline(always)]
fn list<'a>(object: &'a Object, name: &str) -> &'a [Value] {
    object.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn objects<'a>(object: &'a Object, name: &str) -> impl Iterator<Item = (usize, &'a Object)> {
    let items = list(object, name).iter().enumerate();
    items.filter_map(|(index, item)| Some((index, item.as_object()?)))
}

#[inline(always)]
fn map<'a>(object: &'a Object, name: &str) -> Option<&'a Object> {
    object.get(name).and_then(Value::as_object)
}

#[inline(always)]
fn has(object: &Object, name: &str) -> bool {
    object.get(name).is_some_and(|value| !value.is_null())
}

/// A field in error messages.
fn shown(object: &Object, name: &str) -> Value {
    object.get(name).cloned().unwrap_or_default()
}

/// A string in error messages; absent is empty.
fn shown_text(object: &Object, name: &str) -> Value {
    text(object, name).into()
}

#[cfg(test)]
mod tests;
