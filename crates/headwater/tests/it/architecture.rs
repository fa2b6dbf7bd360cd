//! The invariants of ARCHITECTURE.md that a manifest can break.

use std::path::Path;

/// The workspace crates that a crate may depend on, beside those for tests.
const ALLOWED: &[(&str, &[&str])] = &[
    ("api", &[]),
    ("store", &["api"]),
    ("store-etcd", &["api", "store"]),
    ("cache", &["api", "store"]),
    ("server", &["api", "store", "cache"]),
    ("client", &["api"]),
    ("controllers", &["api", "client"]),
];

/// Crates that bring I/O or a runtime.
const IO: &[&str] = &["tokio", "hyper", "redb", "futures"];

fn dependencies(name: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../{name}/Cargo.toml"));
    let text = std::fs::read_to_string(&path).unwrap();
    let section = text.split("\n[dependencies]").nth(1).unwrap_or_default();
    let section = section.split("\n[").next().unwrap_or_default();
    section.lines().filter_map(|line| Some(line.split_once('.')?.0.trim().to_owned())).collect()
}

#[test]
fn crates_depend_only_on_what_is_upstream_of_them() {
    for (name, allowed) in ALLOWED {
        for dependency in dependencies(name) {
            let Some(other) = dependency.strip_prefix("headwater-") else { continue };
            assert!(allowed.contains(&other), "{name} may not depend on {other}");
        }
    }
}

#[test]
fn api_does_no_io() {
    for dependency in dependencies("api") {
        assert!(
            !IO.contains(&dependency.as_str()),
            "api does no I/O, so it cannot use {dependency}"
        );
    }
}
