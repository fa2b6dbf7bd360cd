//! The cost of a custom object of 4 KiB on its way to the store: prune, default, validate with and
//! without rules, and the check of stored bytes.
//!
//! `cargo bench -p headwater-schema --bench custom`. The figures are CPU time. The target for
//! validation is 50 µs.

#![expect(clippy::print_stdout, reason = "a benchmark prints")]

use std::hint::black_box;
use std::time::Duration;

use headwater_json::{Value, json};
use headwater_schema::structural::{Schema, SchemaLocation, check};
use rustix::time::{ClockId, clock_gettime};

/// As in the server.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The number of rounds of a stage; the median is reported.
const ROUNDS: usize = 201;

/// The repetitions per round, enough for the clock's resolution.
const BATCH: u32 = 50;

fn main() {
    let plain = schema(false);
    let ruled = schema(true);
    let place = SchemaLocation { path: "schema", has_status: true };
    assert_eq!(check(&ruled, place), [], "a definition with these rules would be accepted");
    let rules = rules(&ruled);
    let compile = |schema: &Value| Schema::compile(schema).expect("the schema below compiles");
    let (plain, ruled) = (compile(&plain), compile(&ruled));
    let mut object = object();
    drop(ruled.default(&mut object));
    let mut changed = object.clone();
    changed["spec"]["replicas"] = 4.into();
    let bytes = object.to_string();
    println!("object of {} bytes, {rules} rules", bytes.len());
    let valid = |schema: &Schema, new: &Value, old: Option<&Value>| {
        assert_eq!(schema.validate(black_box(new), old), []);
    };
    time("clone (part of the next two)", || drop(black_box(object.clone())));
    time("prune", || drop(ruled.prune(&mut black_box(object.clone()))));
    time("default", || drop(ruled.default(&mut black_box(object.clone()))));
    time("validate, no rules", || valid(&plain, &object, None));
    time("validate, create", || valid(&ruled, &object, None));
    time("validate, update", || valid(&ruled, &changed, Some(&object)));
    time("is settled", || assert!(ruled.is_settled(black_box(bytes.as_bytes()))));
}

fn time(what: &str, mut work: impl FnMut()) {
    let mut times: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let began = on_processor();
            (0..BATCH).for_each(|_| work());
            (on_processor() - began) / BATCH
        })
        .collect();
    times.sort_unstable();
    println!("{what:30} {:8.2} µs", times[ROUNDS / 2].as_secs_f64() * 1e6);
}

/// The CPU time of this thread.
fn on_processor() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let part = |value: i64| u64::try_from(value).unwrap_or_default();
    Duration::from_secs(part(time.tv_sec)) + Duration::from_nanos(part(time.tv_nsec))
}

/// How many rules a schema has, at every level.
fn rules(schema: &Value) -> usize {
    match schema {
        Value::Object(members) => members
            .iter()
            .map(|(key, value)| match key.as_str() {
                "x-kubernetes-validations" => value.as_array().map_or(0, Vec::len),
                _ => rules(value),
            })
            .sum(),
        Value::Array(elements) => elements.iter().map(rules).sum(),
        _ => 0,
    }
}

/// The kind of schema that operators ship: nested, with patterns, enumerations, formats and, if
/// asked for, rules at three levels.
fn schema(has_rules: bool) -> Value {
    let mut container = json!({
        "type": "object", "required": ["name", "image"], "properties": {
            "name": {"type": "string", "maxLength": 63, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"},
            "image": {"type": "string", "minLength": 1},
            "pullPolicy": {"type": "string", "enum": ["Always", "IfNotPresent", "Never"], "default": "Always"},
            "port": {"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]},
            "env": {"type": "array", "items": {"type": "object", "required": ["name"], "properties": {
                "name": {"type": "string"}, "value": {"type": "string", "default": ""},
            }}},
            "resources": {"type": "object", "additionalProperties": {
                "x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}],
                "pattern": "^[0-9]+(m|Mi|Gi)?$",
            }},
        },
    });
    if has_rules {
        container["x-kubernetes-validations"] = json!([
            {"rule": "!has(self.port) || type(self.port) == string || self.port > 0"},
            {"rule": "self.pullPolicy != 'Never' || !self.image.endsWith(':latest')", "message": "latest must be pulled"},
        ]);
    }
    let mut schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "required": ["replicas"], "properties": {
            "replicas": {"type": "integer", "format": "int32", "minimum": 0, "maximum": 1000},
            "paused": {"type": "boolean", "default": false},
            "strategy": {"type": "string", "enum": ["Rolling", "Recreate"], "default": "Rolling"},
            "selector": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 63}},
            "containers": {
                "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "maxItems": 64, "items": container,
            },
        }},
        "status": {"type": "object", "properties": {
            "observed": {"type": "integer"},
            "conditions": {"type": "array", "items": {"type": "object", "properties": {
                "type": {"type": "string"}, "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
                "since": {"type": "string", "format": "date-time"}, "message": {"type": "string"},
            }}},
        }},
    }});
    if has_rules {
        schema["properties"]["spec"]["x-kubernetes-validations"] = json!([
            {"rule": "self.strategy != 'Recreate' || self.replicas <= 10"},
            {"rule": "self.paused || self.containers.exists(c, c.name.startsWith('container-'))"},
            {"rule": "self.containers.all(c, !has(c.env) || c.env.size() <= 16)", "messageExpression": "'at most 16 variables, %d containers'.format([self.containers.size()])"},
            {"rule": "self.selector == oldSelf.selector", "message": "the selector is fixed"},
            {"rule": "'app' in self.selector && self.selector['app'].matches('^[a-z-]+$')"},
        ]);
        schema["x-kubernetes-validations"] = json!([
            {"rule": "self.metadata.name.size() <= 40"},
            {"rule": "!has(self.status) || !has(self.status.observed) || self.status.observed >= 0"},
        ]);
    }
    schema
}

fn object() -> Value {
    let containers: Vec<Value> = (0..11)
        .map(|index| {
            json!({
                "name": format!("container-{index}"), "image": format!("registry.example.com/team/app-{index}:1.2.3"),
                "port": if index % 2 == 0 { json!(8080) } else { json!("http") },
                "env": [
                    {"name": "LEVEL", "value": "info"}, {"name": "REGION", "value": "eu-central-1"},
                    {"name": "PEERS", "value": "a.example.com,b.example.com,c.example.com"},
                ],
                "resources": {"cpu": "250m", "memory": "512Mi"},
            })
        })
        .collect();
    let conditions: Vec<Value> = ["Ready", "Progressing", "Degraded"]
        .map(|kind| {
            json!({"type": kind, "status": "True", "since": "2026-01-02T03:04:05Z",
                   "message": "everything that was asked for has been done and is as it should be"})
        })
        .into();
    json!({
        "apiVersion": "example.com/v1", "kind": "App",
        "metadata": {"name": "app", "namespace": "default", "labels": {"app": "app", "team": "t"}},
        "spec": {"replicas": 3, "selector": {"app": "app"}, "containers": containers},
        "status": {"observed": 4, "conditions": conditions},
    })
}
