//! The documents: line length, links and paths.

use super::source;

/// The longest line of prose.
const LINE_MAX: usize = 120;

fn documents() -> Vec<(String, String)> {
    source::files("", ".md").into_iter().map(|path| (path.clone(), source::read(&path))).collect()
}

/// The lines outside code blocks, numbered from one.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        (!in_code && !is_fence).then_some((index + 1, line))
    })
}

#[test]
fn no_line_of_prose_is_longer_than_120_characters() {
    let mut violations = Vec::new();
    for (path, text) in documents() {
        for (number, line) in prose(&text) {
            let is_table = line.trim_start().starts_with('|');
            if !is_table && line.chars().count() > LINE_MAX {
                violations.push(format!("{path}:{number}"));
            }
        }
    }
    assert!(violations.is_empty(), "lines are too long: {}", violations.join(", "));
}

#[test]
fn every_local_link_leads_to_a_file() {
    let mut violations = Vec::new();
    for (path, text) in documents() {
        let folder = source::root().join(&path).parent().unwrap().to_owned();
        for (number, line) in prose(&text) {
            for target in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                let file = target.split('#').next().unwrap_or_default();
                if !file.is_empty() && !file.contains("://") && !folder.join(file).exists() {
                    violations.push(format!("{path}:{number}: {target}"));
                }
            }
        }
    }
    assert!(violations.is_empty(), "links lead nowhere:\n{}", violations.join("\n"));
}

/// A path in backticks that begins at the root or in a crate must exist: `crates/x/src/y.rs`,
/// `store/src/z.rs`.
#[test]
fn every_source_file_named_in_a_document_exists() {
    let mut violations = Vec::new();
    for (path, text) in documents() {
        for (number, line) in prose(&text) {
            for named in line.split('`').skip(1).step_by(2) {
                if !is_source_path(named) {
                    continue;
                }
                if !exists(named) {
                    violations.push(format!("{path}:{number}: {named}"));
                }
            }
        }
    }
    assert!(violations.is_empty(), "files do not exist:\n{}", violations.join("\n"));
}

/// Whether a named file exists and, if a function of it is named (`crates/x/src/y.rs::function`),
/// has that function.
fn exists(named: &str) -> bool {
    let (file, function) = named.split_once("::").unwrap_or((named, ""));
    let file = file.split(':').next().unwrap_or(file);
    let candidates = [file.to_owned(), format!("crates/{file}")];
    let Some(path) = candidates.iter().find(|path| source::root().join(path).exists()) else {
        return false;
    };
    let function = function.rsplit("::").next().unwrap_or_default();
    let has = |text: String| ['(', '<'].iter().any(|c| text.contains(&format!("fn {function}{c}")));
    function.is_empty() || has(source::read(path))
}

/// The path of a write is the first thing that a newcomer reads. It must stay short, and true.
#[test]
fn a_create_reaches_a_watcher_in_at_most_28_functions() {
    let text = source::read("CONTRIBUTING.md");
    let section =
        text.split("\n**How does a create reach a watcher?**\n").nth(1).expect("the tour");
    let section = section.split("\n**").next().unwrap_or_default();
    let steps: Vec<&str> = section.lines().filter(|line| line.contains(". `crates/")).collect();
    assert!((1..=28).contains(&steps.len()), "the path has {} steps", steps.len());
    for (at, step) in steps.iter().enumerate() {
        let named = step.split('`').nth(1).unwrap_or_default();
        assert!(step.starts_with(&format!("{}. ", at + 1)), "the steps are numbered: {step}");
        assert!(named.contains(".rs::") && exists(named), "this step does not exist: {step}");
    }
}

#[test]
fn every_invariant_names_the_test_that_holds_it() {
    let text = source::read("ARCHITECTURE.md");
    let section = text.split("\n## Invariants\n").nth(1).expect("a section on invariants");
    let section = section.split("\n## ").next().unwrap_or_default();
    let invariants: Vec<&str> = section.split("\n- ").skip(1).collect();
    assert!(invariants.len() > 10, "the invariants are not found");
    for invariant in invariants {
        let item = invariant.split("\n\n").next().unwrap_or(invariant);
        let names_a_test = item
            .split('`')
            .skip(1)
            .step_by(2)
            .any(|named| is_source_path(named) && named.contains(".rs::") && exists(named));
        assert!(names_a_test, "this invariant names no test that exists:\n{item}");
    }
}

fn is_source_path(text: &str) -> bool {
    let plain = text.chars().all(|c| c.is_alphanumeric() || "/_-.:".contains(c));
    plain && (text.starts_with("crates/") || text.contains("/src/") || text.contains("/tests/"))
}

#[test]
fn source_paths_are_told_from_other_words() {
    assert!(is_source_path("crates/cache"));
    assert!(is_source_path("store/src/key.rs"));
    assert!(!is_source_path("spec.replicas"));
    assert!(!is_source_path("crates/*/src"));
}
