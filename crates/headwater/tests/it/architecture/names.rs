//! The names of types across the workspace.

use std::collections::BTreeMap;

use super::source;

/// How many types of the workspace may share a name that is visible outside its module.
const MEANINGS_MAX: usize = 2;

/// Names that every crate may have once per module: they are always written with their module,
/// as in `store::Error`.
const QUALIFIED: &[&str] = &["Error", "Options"];

#[test]
fn no_type_name_has_more_than_two_meanings() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for name in source::crates() {
        for file in source::files(&format!("crates/{name}/src/"), ".rs") {
            for declared in visible_types(&source::production_code(&source::read(&file))) {
                places.entry(declared).or_default().push(file.clone());
            }
        }
    }
    let violations: Vec<String> = places
        .iter()
        .filter(|(name, files)| files.len() > MEANINGS_MAX && !QUALIFIED.contains(&name.as_str()))
        .map(|(name, files)| format!("{name}: {}", files.join(", ")))
        .collect();
    assert!(
        violations.is_empty(),
        "these names stand for too many things; rename some of them:\n{}",
        violations.join("\n")
    );
}

/// The types that code declares as visible outside their module.
fn visible_types(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in code.lines() {
        let Some(rest) = line.trim_start().strip_prefix("pub") else { continue };
        let rest = match rest.strip_prefix('(') {
            Some(rest) => rest.split_once(')').map_or("", |(_, rest)| rest),
            None => rest,
        };
        let mut words = rest.split_whitespace();
        if !matches!(words.next(), Some("struct" | "enum" | "trait" | "union" | "type")) {
            continue;
        }
        let name = words.next().unwrap_or_default();
        let end = name.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(name.len());
        found.push(name[..end].to_owned());
    }
    found
}

#[test]
fn visible_types_are_found_whatever_their_visibility() {
    let code = "pub struct A<T>(T);\npub(crate) enum B {\n pub(in crate::x) trait C: D {}\n\
                struct Private;\npub fn f() {}\npub type E = u8;\n";
    assert_eq!(visible_types(code), ["A", "B", "C", "E"]);
}
