//! The code map: every crate and module with the first sentence of its header.
//!
//! The map is generated, so that it cannot go stale: `UPDATE_CODE_MAP=1 cargo test -p headwater
//! --test it code_map` writes it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::source;

const PATH: &str = "docs/code-map.md";
const WIDTH_MAX: usize = 118;
const INTRODUCTION: &str = "\
# Code map

Every crate and module, in reading order, with the first sentence of its header. A test generates
this page and fails when it is stale:

```sh
UPDATE_CODE_MAP=1 cargo test -p headwater --test it code_map
```
";

#[test]
fn the_code_map_is_current() {
    let map = code_map();
    let path = source::root().join(PATH);
    if std::env::var_os("UPDATE_CODE_MAP").is_some() {
        std::fs::write(path, map).unwrap();
        return;
    }
    let stored = std::fs::read_to_string(path).unwrap_or_default();
    let stale = map.lines().find(|line| !stored.lines().any(|other| other == *line));
    assert!(
        map == stored,
        "{PATH} is stale (first new line: {stale:?}); run\n\
         UPDATE_CODE_MAP=1 cargo test -p headwater --test it code_map"
    );
}

#[test]
fn every_module_has_a_header() {
    let mut missing = Vec::new();
    for name in source::crates() {
        for (module, text) in source::modules(&name) {
            let is_tests = module.last().is_some_and(|last| last.ends_with("tests"));
            if !is_tests && source::first_sentence(&text).is_none() {
                missing.push(format!("{name}::{}", module.join("::")));
            }
        }
    }
    assert!(missing.is_empty(), "these modules lack a //! header: {}", missing.join(", "));
}

fn code_map() -> String {
    let mut map = INTRODUCTION.to_owned();
    for name in source::crates() {
        let modules = source::modules(&name);
        let sentence = source::first_sentence(&modules[&Vec::new()]).unwrap_or_default();
        write!(map, "\n## `crates/{name}`\n\n{}.\n\n", wrap(&sentence, 0)).unwrap();
        list(&modules, &[], &mut map);
    }
    map
}

/// Lists the children of a module, each followed by its own.
fn list(modules: &BTreeMap<Vec<String>, String>, parent: &[String], map: &mut String) {
    for child in children(&modules[parent]) {
        let path = [parent, &[child]].concat();
        let Some(text) = modules.get(&path) else { continue };
        let Some(sentence) = source::first_sentence(text) else { continue };
        let indent = 2 * parent.len();
        let line = wrap(&format!("- `{}` {sentence}", path.join("/")), indent + 2);
        writeln!(map, "{:indent$}{line}", "").unwrap();
        list(modules, &path, map);
    }
}

/// The modules that a file declares in files of their own, without tests.
fn children(text: &str) -> Vec<String> {
    let declared = text.lines().filter_map(|line| {
        let line = line.trim();
        let line = match line.strip_prefix("pub") {
            Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
            Some(rest) => rest.trim_start(),
            None => line,
        };
        line.strip_prefix("mod ")?.strip_suffix(';')
    });
    declared.filter(|name| !name.ends_with("tests")).map(str::to_owned).collect()
}

/// Breaks text into lines of at most [`WIDTH_MAX`] characters; lines after the first are indented.
fn wrap(text: &str, indent: usize) -> String {
    let mut wrapped = String::new();
    let mut width = indent;
    for (index, word) in text.split(' ').enumerate() {
        let length = word.chars().count() + 1;
        if index > 0 && width + length > WIDTH_MAX {
            write!(wrapped, "\n{:indent$}", "").unwrap();
            width = indent;
        } else if index > 0 {
            wrapped.push(' ');
        }
        wrapped.push_str(word);
        width += length;
    }
    wrapped
}

#[test]
fn children_are_declared_modules_but_not_tests() {
    let text = "mod a;\npub mod b;\npub(crate) mod c;\nmod inline {\n}\n#[cfg(test)]\nmod tests;\n";
    assert_eq!(children(text), ["a", "b", "c"]);
}
