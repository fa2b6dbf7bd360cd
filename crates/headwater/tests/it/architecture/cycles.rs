//! Dependency cycles between the modules of a crate.

use std::collections::{BTreeMap, BTreeSet};

use super::source;

/// The largest number of sibling modules that may depend on each other in a circle.
const CYCLE_MAX: usize = 3;

type Module = Vec<String>;
type Graph = BTreeMap<String, BTreeSet<String>>;

#[test]
fn no_cycle_of_modules_is_larger_than_three() {
    let mut violations = Vec::new();
    for name in source::crates() {
        let modules = source::modules(&name);
        let uses = dependencies(&modules);
        let parents: BTreeSet<&[String]> =
            modules.keys().filter_map(|module| Some(module.split_last()?.1)).collect();
        for parent in parents {
            for cycle in cycles(&siblings(parent, &uses)) {
                if cycle.len() > CYCLE_MAX {
                    let place = [std::slice::from_ref(&name), parent].concat().join("::");
                    violations.push(format!("{place}: {}", cycle.join(", ")));
                }
            }
        }
    }
    assert!(violations.is_empty(), "modules depend on each other:\n{}", violations.join("\n"));
}

/// The modules that each module names in its production code.
fn dependencies(modules: &BTreeMap<Module, String>) -> BTreeMap<Module, BTreeSet<Module>> {
    let mut uses = BTreeMap::new();
    for (module, text) in modules {
        if module.last().is_some_and(|name| name.ends_with("tests")) {
            continue;
        }
        let code = source::production_code(text);
        let named = paths(&code).iter().filter_map(|path| resolve(modules, module, path)).collect();
        uses.insert(module.clone(), named);
    }
    uses
}

/// Every path in `use` declarations, and every `crate::` and `super::` path outside of them.
fn paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut rest = String::new();
    for (index, statement) in code.split(';').enumerate() {
        let start = statement.rfind("use ").filter(|at| {
            statement[..*at].chars().next_back().is_none_or(|before| before.is_whitespace())
        });
        match start {
            Some(at) => {
                expand(&[], &statement[at + 4..], &mut found);
                rest.push_str(&statement[..at]);
            }
            None => rest.push_str(statement),
        }
        if index > 0 {
            rest.push(' ');
        }
    }
    for word in rest.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')) {
        let path: Vec<String> =
            word.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
        if path.len() > 1 && (path[0] == "crate" || path[0] == "super") {
            found.push(path);
        }
    }
    found
}

/// Writes out a `use` tree: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn expand(prefix: &[String], tree: &str, found: &mut Vec<Vec<String>>) {
    let (head, body) = match tree.split_once('{') {
        Some((head, body)) => (head, Some(body.rsplit_once('}').map_or(body, |(body, _)| body))),
        None => (tree.split(" as ").next().unwrap_or(tree), None),
    };
    let mut path = prefix.to_vec();
    path.extend(head.split("::").map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned));
    let Some(body) = body else { return found.push(path) };
    let (mut depth, mut start) = (0usize, 0);
    for (at, c) in body.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                expand(&path, &body[start..at], found);
                start = at + 1;
            }
            _ => {}
        }
    }
    if !body[start..].trim().is_empty() {
        expand(&path, &body[start..], found);
    }
}

/// The module that a path inside `module` points into.
fn resolve<V>(modules: &BTreeMap<Module, V>, module: &Module, path: &[String]) -> Option<Module> {
    let (mut at, mut rest) = match path.first()?.as_str() {
        "crate" => (Vec::new(), &path[1..]),
        "self" => (module.clone(), &path[1..]),
        "super" => (module.clone(), path),
        child if modules.contains_key(&[module, [child.to_owned()].as_slice()].concat()) => {
            (module.clone(), path)
        }
        _ => return None,
    };
    while rest.first().is_some_and(|part| part == "super") {
        at.pop();
        rest = &rest[1..];
    }
    while let Some(part) = rest.first() {
        let child = [at.as_slice(), std::slice::from_ref(part)].concat();
        if !modules.contains_key(&child) {
            break;
        }
        at = child;
        rest = &rest[1..];
    }
    Some(at)
}

/// The dependencies between the children of one module; what a child contains counts as the child.
fn siblings(parent: &[String], uses: &BTreeMap<Module, BTreeSet<Module>>) -> Graph {
    let child = |module: &Module| {
        let inside = module.len() > parent.len() && module.starts_with(parent);
        inside.then(|| module[parent.len()].clone())
    };
    let mut graph = Graph::new();
    for (module, named) in uses {
        let Some(from) = child(module) else { continue };
        let targets = graph.entry(from.clone()).or_default();
        targets.extend(named.iter().filter_map(child).filter(|to| *to != from));
    }
    graph
}

/// The groups of nodes that all reach each other, each with two members or more.
fn cycles(graph: &Graph) -> Vec<Vec<String>> {
    let reached: BTreeMap<&String, BTreeSet<&String>> =
        graph.keys().map(|node| (node, reachable(graph, node))).collect();
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for node in graph.keys() {
        let cycle: Vec<String> = graph
            .keys()
            .filter(|other| reached[node].contains(other) && reached[other].contains(node))
            .cloned()
            .collect();
        if cycle.len() > 1 && seen.insert(cycle.clone()) {
            found.push(cycle);
        }
    }
    found
}

fn reachable<'a>(graph: &'a Graph, start: &'a String) -> BTreeSet<&'a String> {
    let mut reached = BTreeSet::new();
    let mut open = vec![start];
    while let Some(node) = open.pop() {
        for next in graph.get(node).into_iter().flatten() {
            if reached.insert(next) {
                open.push(next);
            }
        }
    }
    reached
}

#[test]
fn a_cycle_through_a_submodule_and_an_inline_path_is_found() {
    let texts = [
        ("a", "use crate::b::Thing;\n"),
        ("b", "use crate::{c::{deep::X, Y}, other};\n"),
        ("c", "mod deep;\n"),
        ("c/deep", "fn f() { crate::d::go(); super::super::a::go() }\n"),
        ("d", "use super::a;\n"),
        ("e", "// crate::a\nuse crate::a::Thing;\n"),
    ];
    let modules = texts
        .iter()
        .map(|(path, text)| (path.split('/').map(str::to_owned).collect(), (*text).to_owned()))
        .collect();
    let graph = siblings(&[], &dependencies(&modules));
    assert_eq!(cycles(&graph), [["a", "b", "c", "d"]]);
}
