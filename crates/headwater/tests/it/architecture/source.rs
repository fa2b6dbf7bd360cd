//! The sources of the workspace as text: crates, modules and documents.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The crates of the workspace by folder name, in the order of the root manifest.
pub(crate) fn crates() -> Vec<String> {
    let manifest = read("Cargo.toml");
    let members = manifest.split("members = [").nth(1).and_then(|rest| rest.split(']').next());
    let members = members.expect("the root manifest lists its members");
    members
        .lines()
        .filter_map(|line| line.trim().strip_prefix("\"crates/")?.strip_suffix("\","))
        .map(str::to_owned)
        .collect()
}

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The text of a file, named from the root.
pub(crate) fn read(path: &str) -> String {
    let full = root().join(path);
    std::fs::read_to_string(&full).unwrap_or_else(|error| panic!("{}: {error}", full.display()))
}

/// All files below a folder whose names end in `ending`, named from the root, sorted. Build output
/// and hidden folders are left out.
pub(crate) fn files(folder: &str, ending: &str) -> Vec<String> {
    let mut found = Vec::new();
    collect(&root(), Path::new(folder), ending, &mut found);
    found.sort();
    found
}

fn collect(root: &Path, folder: &Path, ending: &str, found: &mut Vec<String>) {
    let Ok(entries) = std::fs::read_dir(root.join(folder)) else { return };
    for entry in entries {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let path = folder.join(&name);
        if entry.file_type().unwrap().is_dir() {
            if !name.starts_with('.') && name != "target" && name != "__pycache__" {
                collect(root, &path, ending, found);
            }
        } else if name.ends_with(ending) {
            found.push(path.to_str().unwrap().to_owned());
        }
    }
}

/// The modules of a crate: the path inside the crate (empty for the root) and the text.
pub(crate) fn modules(name: &str) -> BTreeMap<Vec<String>, String> {
    let src = format!("crates/{name}/src/");
    let mut modules = BTreeMap::new();
    for file in files(&src, ".rs") {
        let path = file[src.len()..].trim_end_matches(".rs");
        let path = match path {
            "lib" | "main" => Vec::new(),
            _ => path.split('/').map(str::to_owned).collect(),
        };
        modules.insert(path, read(&file));
    }
    modules
}

/// The source without comments and without test modules at its end.
pub(crate) fn production_code(text: &str) -> String {
    let tests = ["\n#[cfg(test)]\nmod ", "\n#[cfg(test)]\npub(crate) mod "]
        .iter()
        .filter_map(|start| {
            let at = text.find(start)?;
            // A test module in a file of its own is one line, and code may follow it.
            let line = text[at..].lines().nth(2)?;
            line.ends_with('{').then_some(at)
        })
        .min();
    let text = &text[..tests.unwrap_or(text.len())];
    text.lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n")
}

/// The first sentence of the `//!` header, without its full stop.
pub(crate) fn first_sentence(text: &str) -> Option<String> {
    let header: Vec<&str> = text
        .lines()
        .take_while(|line| line.starts_with("//!"))
        .map(|line| line.trim_start_matches("//!").trim())
        .take_while(|line| !line.is_empty())
        .collect();
    let header = header.join(" ");
    let end = header.find(". ").unwrap_or(header.len());
    let sentence = header[..end].trim_end_matches('.').trim();
    (!sentence.is_empty()).then(|| sentence.to_owned())
}

#[test]
fn comments_and_inline_tests_are_not_production_code() {
    let text =
        "use crate::a; // crate::b\nfn f() {}\n#[cfg(test)]\nmod tests {\n use crate::c;\n}\n";
    assert_eq!(production_code(text), "use crate::a; \nfn f() {}");
    let text = "fn f() {}\n#[cfg(test)]\nmod tests;\nuse crate::d;\n";
    assert!(production_code(text).contains("crate::d"));
}

#[test]
fn the_first_sentence_ends_at_its_full_stop() {
    let text =
        "//! The window: recent changes,\n//! oldest first. It is a ring.\n//!\n//! River: x.\n";
    assert_eq!(first_sentence(text).as_deref(), Some("The window: recent changes, oldest first"));
    assert_eq!(first_sentence("use std::fmt;\n"), None);
}
