//! The specification in docs/spec: every cited clause exists, and tests cite every required clause.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The properties of a clause, besides its text.
#[derive(Debug, PartialEq)]
struct Clause {
    level: char,
    is_met: bool,
}

impl Clause {
    fn needs_test(&self) -> bool {
        self.is_met && self.level != 'C'
    }
}

/// The clauses of a page: `- **S1.2** text`, below a heading that ends in `(level A)`. The text of
/// one that is not met begins with `(not yet: why)`, of one at another level with `(level C)`.
fn clauses(page: &str) -> Vec<(String, Clause)> {
    let mut found = Vec::new();
    let mut section = 'A';
    for line in page.lines() {
        if line.starts_with("## ") {
            section = level(line).unwrap_or('A');
        }
        let Some((name, text)) = line.strip_prefix("- **").and_then(|rest| rest.split_once("** "))
        else {
            continue;
        };
        if clause_at(name).is_some_and(|(_, length)| length == name.len()) {
            let level = if text.starts_with("(level ") { level(text) } else { None };
            let is_met = !text.starts_with("(not yet");
            let clause = Clause { level: level.unwrap_or(section), is_met };
            found.push((name.to_owned(), clause));
        }
    }
    found
}

fn level(text: &str) -> Option<char> {
    text.split_once("(level ")?.1.chars().next()
}

/// The clause that a text begins with, as its letter and numbers, and the length of its name:
/// `S1.2`, `C1.2`, `R7`, `B007`.
fn clause_at(text: &str) -> Option<((char, u32, u32), usize)> {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let letter = text.chars().next()?;
    let first = digits(&text[letter.len_utf8()..]);
    let mut end = 1 + first;
    let second = match letter {
        'S' | 'C' => {
            let rest = text.get(end..)?.strip_prefix('.')?;
            let from = end + 1;
            end = from + digits(rest);
            text[from..end].parse().ok()?
        }
        'R' if first <= 2 => 0,
        'B' if first == 3 => 0,
        _ => return None,
    };
    let is_longer = text[end..].starts_with(|next: char| next.is_alphanumeric() || next == '_');
    let clause = (letter, text[1..1 + first].parse().ok()?, second);
    (!is_longer).then_some((clause, end))
}

fn name((letter, first, second): (char, u32, u32)) -> String {
    match letter {
        'B' => format!("B{first:03}"),
        'R' => format!("R{first}"),
        _ => format!("{letter}{first}.{second}"),
    }
}

/// The clauses that a text names, those within a range (`S1.1–S1.4`, `R3 to R5`) included.
fn cited(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut range: Option<(char, u32, u32)> = None;
    let mut before = ' ';
    for (at, letter) in text.char_indices() {
        let is_start = !before.is_alphanumeric() && before != '_';
        before = letter;
        let Some((clause, length)) = is_start.then(|| clause_at(&text[at..])).flatten() else {
            continue;
        };
        match range.take() {
            Some((letter, first, 0)) if letter == clause.0 => {
                found.extend((first..=clause.1).map(|number| name((letter, number, 0))));
            }
            Some((letter, first, second)) if (letter, first) == (clause.0, clause.1) => {
                found.extend((second..=clause.2).map(|number| name((letter, first, number))));
            }
            _ => _ = found.insert(name(clause)),
        }
        let rest = &text[at + length..];
        if rest.starts_with('–') || rest.starts_with(" to ") {
            range = Some(clause);
        }
    }
    found
}

/// A source file, in comments and as a test.
struct Source<'a> {
    text: &'a str,
    is_test: bool,
}

impl Source<'_> {
    /// The clauses that any comment names.
    fn cited(&self) -> BTreeSet<String> {
        self.text.lines().flat_map(|line| cited(comment(line))).collect()
    }

    /// The clauses that tests claim to check: named in a comment of an item, not of a file, or a
    /// row of the suite of bad inputs.
    fn tested(&self) -> BTreeSet<String> {
        let is_header = |line: &&str| line.trim_start().starts_with("//!");
        let mut found = BTreeSet::new();
        for line in self.tests().lines().filter(|line| !is_header(line)) {
            found.extend(cited(comment(line)));
            if let Some((_, rest)) = line.split_once("suite.row(")
                && let Some(Ok(number)) = rest.split([',', ')']).next().map(str::parse)
            {
                found.insert(name(('B', number, 0)));
            }
        }
        found
    }

    /// The part that is compiled for tests alone.
    fn tests(&self) -> &str {
        let inner = self.text.find("\nmod tests {");
        if self.is_test { self.text } else { inner.map_or("", |at| &self.text[at..]) }
    }
}

fn comment(line: &str) -> &str {
    line.split_once("//").map_or("", |(_, comment)| comment)
}

/// The cited clauses that do not exist.
fn unknown(cited: &BTreeSet<String>, clauses: &BTreeMap<String, Clause>) -> Vec<String> {
    cited.iter().filter(|name| !clauses.contains_key(*name)).cloned().collect()
}

/// The clauses that need a test and have none.
fn uncovered(clauses: &BTreeMap<String, Clause>, tested: &BTreeSet<String>) -> Vec<String> {
    let missing =
        clauses.iter().filter(|(name, clause)| clause.needs_test() && !tested.contains(*name));
    missing.map(|(name, _)| name.clone()).collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The files below a folder with this extension.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|other| other == extension) {
            found.push(path);
        }
    }
    found
}

fn specification() -> BTreeMap<String, Clause> {
    let mut all = BTreeMap::new();
    for page in ["server.md", "client.md", "reliability.md"] {
        let page = fs::read_to_string(root().join("docs/spec").join(page)).unwrap();
        for (name, clause) in clauses(&page) {
            assert!(all.insert(name.clone(), clause).is_none(), "{name} is there twice");
        }
    }
    all
}

/// Every source file of the workspace but this one, which cites examples.
fn sources() -> Vec<(PathBuf, String)> {
    let mut paths = files(&root().join("crates"), "rs");
    paths.retain(|path| !path.ends_with("tests/it/spec.rs"));
    paths.into_iter().map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

/// Files that hold tests and what they are made of.
fn is_test(path: &Path) -> bool {
    let path = path.strip_prefix(root()).unwrap_or(path);
    let within = |name: &str| path.components().any(|part| part.as_os_str() == name);
    within("tests") || within("testkit") || path.ends_with("tests.rs")
}

#[test]
fn every_cited_clause_exists() {
    let clauses = specification();
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        let cited = Source { text: &text, is_test: false }.cited();
        wrong.extend(unknown(&cited, &clauses).into_iter().map(|name| (path.clone(), name)));
    }
    for path in files(&root().join("docs"), "md") {
        let text = fs::read_to_string(&path).unwrap();
        // The number of a clause that was dropped is struck through.
        let kept: Vec<&str> = text.lines().filter(|line| !line.starts_with("- ~~")).collect();
        let cited = cited(&kept.join("\n"));
        wrong.extend(unknown(&cited, &clauses).into_iter().map(|name| (path.clone(), name)));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_required_clause_is_cited_by_a_test() {
    let mut tested = BTreeSet::new();
    for (path, text) in sources() {
        tested.extend(Source { text: &text, is_test: is_test(&path) }.tested());
    }
    let missing = uncovered(&specification(), &tested);
    assert!(missing.is_empty(), "no test cites {}", missing.join(", "));
}

#[test]
fn a_clause_has_the_level_of_its_section_unless_it_says_otherwise() {
    let page = "## S1 Paths (level B)\n- **S1.1** One.\n  **S1.9** no\n- **S1.2** (level C) Two.\n\
                - **S1.3** (not yet: RBAC) Three.\n- **Bold** text\n## R (level A)\n- **R7** Four.\n";
    let clause = |level, is_met| Clause { level, is_met };
    let expected = [
        ("S1.1".to_owned(), clause('B', true)),
        ("S1.2".to_owned(), clause('C', true)),
        ("S1.3".to_owned(), clause('B', false)),
        ("R7".to_owned(), clause('A', true)),
    ];
    assert_eq!(clauses(page), expected);
    let required: Vec<bool> = expected.iter().map(|(_, clause)| clause.needs_test()).collect();
    assert_eq!(required, [true, false, false, true]);
}

#[test]
fn citations_are_found_alone_and_in_ranges() {
    for (text, expected) in [
        ("as S1.2, C10.11 and R7 (B007) say", "B007 C10.11 R7 S1.2"),
        ("S1.2–S1.4", "S1.2 S1.3 S1.4"),
        ("R3 to R5, B010–B012", "B010 B011 B012 R3 R4 R5"),
        ("CRC32C, P99, C5, S1, B12, R100, S1.2x, xR3, B0071, C1.", ""),
        ("two of C5.1.", "C5.1"),
    ] {
        let found: Vec<String> = cited(text).into_iter().collect();
        assert_eq!(found.join(" "), expected, "{text}");
    }
}

#[test]
fn only_comments_of_tests_count_as_tests() {
    let text = "//! S1.1\n/// S1.2\nfn f() {} // S1.3\nlet s = \"S1.4\";\n\
                #[cfg(test)]\nmod tests {\n    /// S1.5\n    suite.row(7, |row| {});\n}\n";
    let found = |is_test| Source { text, is_test }.tested().into_iter().collect::<Vec<_>>();
    assert_eq!(found(false), ["B007", "S1.5"]);
    assert_eq!(found(true), ["B007", "S1.2", "S1.3", "S1.5"]);
    let cited = Source { text, is_test: false }.cited();
    assert_eq!(cited.into_iter().collect::<Vec<_>>(), ["S1.1", "S1.2", "S1.3", "S1.5"]);
}

#[test]
fn a_clause_that_does_not_exist_or_has_no_test_is_reported() {
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let clauses: BTreeMap<String, Clause> =
        clauses("- **S1.1** a\n- **S1.2** b\n- **S1.3** (not yet: c) c\n").into_iter().collect();
    assert_eq!(unknown(&set(&["S1.1", "S1.4"]), &clauses), ["S1.4"]);
    assert_eq!(uncovered(&clauses, &set(&["S1.1"])), ["S1.2"]);
    assert_eq!(uncovered(&clauses, &set(&["S1.1", "S1.2"])), [""; 0]);
}
