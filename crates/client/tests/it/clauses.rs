//! The table of clauses and their tests: complete, and every test exists.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The sections of the specification at levels A and B: number, last clause, and the clauses that
/// are of level C.
const SECTIONS: [(u32, u32, &[u32]); 30] = [
    (1, 21, &[17]),
    (2, 16, &[]),
    (3, 13, &[]),
    (4, 14, &[]),
    (5, 13, &[]),
    (6, 6, &[]),
    (7, 5, &[]),
    (9, 14, &[]),
    (10, 12, &[]),
    (11, 24, &[23]),
    (12, 9, &[]),
    (13, 22, &[]),
    (14, 8, &[]),
    (15, 10, &[]),
    (16, 10, &[]),
    (17, 14, &[]),
    (18, 14, &[]),
    (19, 13, &[]),
    (20, 6, &[]),
    (21, 5, &[]),
    (22, 25, &[]),
    (23, 6, &[]),
    (24, 6, &[]),
    (25, 12, &[]),
    (26, 10, &[]),
    (27, 15, &[]),
    (28, 5, &[]),
    (29, 4, &[]),
    (30, 7, &[]),
    (31, 12, &[]),
];

fn clauses() -> BTreeSet<String> {
    let numbers = SECTIONS.iter().flat_map(|(section, last, other)| {
        let ours = (1..=*last).filter(|number| !other.contains(number));
        ours.map(move |number| format!("C{section}.{number}"))
    });
    numbers.collect()
}

/// The rows of the table: a clause and its tests.
fn table(page: &str) -> BTreeMap<String, Vec<String>> {
    let rows = page.lines().filter_map(|line| {
        let (clause, tests) = line.strip_prefix("| C")?.strip_suffix(" |")?.split_once(" | ")?;
        let tests = tests.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        Some((format!("C{clause}"), tests))
    });
    rows.collect()
}

/// The names of all tests under a folder: functions that are marked as one, and scenarios.
fn tests_in(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            tests_in(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            tests_of(&fs::read_to_string(path).unwrap(), found);
        }
    }
}

fn tests_of(source: &str, found: &mut BTreeSet<String>) {
    let mut marked = false;
    let mut scenarios = false;
    for line in source.lines().map(str::trim) {
        scenarios = (scenarios || line == "scenarios! {") && line != "#[tokio::test]";
        if scenarios && let Some(name) = line.strip_suffix(',') {
            found.insert(name.to_owned());
        }
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            marked = true;
        } else if let Some(name) = function(line) {
            if marked {
                found.insert(name.to_owned());
            }
            marked = false;
        }
    }
}

/// The name in `fn name(` or `async fn name(`.
fn function(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ")?;
    rest.split(['(', '<']).next()
}

#[test]
fn every_clause_has_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("../../docs/spec/client-coverage.md")).unwrap();
    let table = table(&page);
    let mut tests = BTreeSet::new();
    tests_in(&root.join("src"), &mut tests);
    tests_in(&root.join("tests"), &mut tests);
    let mut wrong = Vec::new();
    for clause in clauses() {
        match table.get(&clause) {
            None => wrong.push(format!("{clause} is not in the table")),
            Some(tests) if tests.is_empty() => wrong.push(format!("{clause} has no test")),
            Some(_) => {}
        }
    }
    for (clause, named) in &table {
        for name in named.iter().filter(|name| !tests.contains(*name)) {
            wrong.push(format!("{clause} names {name}, which is no test"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_table_is_read_as_it_stands() {
    let table = table("| clause | tests |\n| --- | --- |\n| C1.2 | `a`, `b` |\n| C1.3 |  |\n");
    assert_eq!(table["C1.2"], ["a", "b"]);
    assert_eq!(table["C1.3"], [""; 0]);
    let mut tests = BTreeSet::new();
    tests_of("#[tokio::test(start_paused = true)]\nasync fn one() {}\nfn two() {}\n", &mut tests);
    assert_eq!(tests, BTreeSet::from(["one".to_owned()]));
    assert_eq!(clauses().len(), 349);
}
