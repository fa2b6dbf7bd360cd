//! What a custom object of 4 KiB costs on its way to the store: prune, default, validate, and the
//! look at stored bytes that reads rely on.
//!
//! `cargo run --release -p headwater-api --example custom_object_cost`

#![expect(clippy::print_stdout, reason = "it prints its result")]

use std::hint::black_box;
use std::time::Instant;

use headwater_api::json::{Value, json};
use headwater_api::structural::Schema;

/// Each figure is that of the best batch: what the machine does besides does not count.
const BATCHES: usize = 400;
const BATCH: u32 = 50;

fn main() {
    let schema = Schema::compile(&schema()).expect("the schema below compiles");
    let mut object = object();
    schema.default(&mut object);
    let bytes = object.to_string();
    println!("object of {} bytes", bytes.len());
    time("clone (part of the next two)", || drop(black_box(object.clone())));
    time("prune", || drop(schema.prune(&mut black_box(object.clone()))));
    time("default", || schema.default(&mut black_box(object.clone())));
    time("validate", || assert!(schema.validate(black_box(&object), None).is_empty()));
    time("validate an update", || {
        assert!(schema.validate(black_box(&object), Some(&object)).is_empty());
    });
    time("is settled", || assert!(schema.is_settled(black_box(bytes.as_bytes()))));
}

fn time(what: &str, mut work: impl FnMut()) {
    let batch = |work: &mut dyn FnMut()| {
        let began = Instant::now();
        (0..BATCH).for_each(|_| work());
        began.elapsed() / BATCH
    };
    let best = (0..BATCHES).map(|_| batch(&mut work)).min().unwrap_or_default();
    println!("{what:30} {:8.2} µs", best.as_secs_f64() * 1e6);
}

/// The kind of schema that operators ship: nested, with patterns, enumerations and formats.
fn schema() -> Value {
    let container = json!({
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
    json!({"type": "object", "properties": {
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
    }})
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
