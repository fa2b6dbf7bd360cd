//! The manifests: which crate may depend on which, and that every dependency is used.

use super::source;

/// The workspace crates that a crate may depend on, in addition to those for tests.
const ALLOWED: &[(&str, &[&str])] = &[
    ("json", &[]),
    ("api", &["json"]),
    ("cel", &["json", "api"]),
    ("schema", &["json", "api", "cel"]),
    ("store", &["json", "api"]),
    ("store-etcd", &["json", "api", "store"]),
    ("kms", &["json", "api", "store"]),
    ("otlp", &["json", "api"]),
    ("cache", &["json", "api", "store"]),
    ("server", &["json", "api", "cel", "schema", "store", "cache"]),
    ("recording", &["json", "api", "schema", "store"]),
    ("client", &["json", "api"]),
    ("controllers", &["json", "api", "client"]),
    ("relay", &["json", "api", "store", "cache", "server", "client"]),
    ("bench", &["json", "api", "client", "server"]),
];

/// Crates that bring I/O or a runtime.
const IO: &[&str] = &["tokio", "hyper", "futures"];

/// One section of a manifest.
fn section(manifest: &str, name: &str) -> String {
    let text = source::read(manifest);
    let section = text.split(&format!("\n[{name}]")).nth(1).unwrap_or_default();
    section.split("\n[").next().unwrap_or_default().to_owned()
}

/// The dependencies of one section of a crate's manifest.
fn dependencies(name: &str, section_name: &str) -> Vec<String> {
    let section = section(&format!("crates/{name}/Cargo.toml"), section_name);
    let names = section.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let end = line.find(['.', ' ', '='])?;
        Some(line[..end].to_owned())
    });
    names.filter(|name| !name.is_empty()).collect()
}

#[test]
fn crates_depend_only_on_what_is_upstream_of_them() {
    for (name, allowed) in ALLOWED {
        for dependency in dependencies(name, "dependencies") {
            let Some(other) = dependency.strip_prefix("headwater-") else { continue };
            assert!(allowed.contains(&other), "{name} may not depend on {other}");
        }
    }
}

#[test]
fn json_api_cel_and_schema_do_no_io() {
    for name in ["json", "api", "cel", "schema"] {
        for dependency in dependencies(name, "dependencies") {
            assert!(
                !IO.contains(&dependency.as_str()),
                "{name} does no I/O, so it cannot use {dependency}"
            );
        }
    }
}

#[test]
fn every_dependency_is_used() {
    let mut unused = Vec::new();
    for name in source::crates() {
        let text = |folders: &[&str]| -> String {
            let files = folders
                .iter()
                .flat_map(|folder| source::files(&format!("crates/{name}/{folder}"), ".rs"));
            files.map(|file| source::read(&file)).collect()
        };
        let production = text(&["src"]);
        let all = text(&["src", "tests", "benches", "examples"]);
        for (section, text) in [("dependencies", &production), ("dev-dependencies", &all)] {
            for dependency in dependencies(&name, section) {
                if !names(text, &dependency.replace('-', "_")) {
                    unused.push(format!("{name}: {dependency} ({section})"));
                }
            }
        }
    }
    assert!(unused.is_empty(), "dependencies that nothing uses:\n{}", unused.join("\n"));
}

/// Only one version of `k8s-openapi` can be chosen, and a library must leave that to its users.
#[test]
fn libraries_choose_no_version_of_k8s_openapi() {
    let chooses = |section: &str| {
        section.lines().any(|line| line.starts_with("k8s-openapi") && line.contains("\"v1_"))
    };
    assert!(!chooses(&section("Cargo.toml", "workspace.dependencies")), "the workspace");
    for name in source::crates() {
        let chosen = chooses(&section(&format!("crates/{name}/Cargo.toml"), "dependencies"));
        assert!(!chosen || name == "bench", "{name} chooses a version for its users");
    }
    assert!(chooses(&section("tests/outside/Cargo.toml", "dependencies")), "a program chooses");
}

/// Whether the code names a crate.
fn names(code: &str, name: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(name).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = &code[at + name.len()..];
        !before.is_some_and(is_part)
            && (after.starts_with("::") || after.starts_with(';') || after.starts_with(" as "))
    })
}

#[test]
fn a_crate_is_named_by_a_path_or_an_import() {
    assert!(names("use bytes::Bytes;", "bytes"));
    assert!(names("let x = itoa::Buffer::new();", "itoa"));
    assert!(!names("let bytes = 3;", "bytes"));
    assert!(!names("use kbytes::X;", "bytes"));
}
