//! The columns of each built-in kind. The data is in `columns.txt`; this file only reads it.
//!
//! - A line without indentation names the kinds that have the columns below it: `Kind.group`, or
//!   `*` for all kinds that are not named.
//! - `name | type [name] [wide] | cell [argument] [?absent] | description` is a column. Clients show
//!   one with the word `name` as the object's name, and one with `wide` only in wide output. Cells
//!   are functions of [`cells`]; `absent` is shown instead of an empty text.
//! - A name alone is a column of the first block, `shared`. The description `= Name` is that of a
//!   shared column.

use std::sync::LazyLock;

use super::{Cell, Column, cells};

static TABLES: LazyLock<Vec<Table>> = LazyLock::new(|| parse(include_str!("columns.txt")));

/// The columns of some kinds.
struct Table {
    /// The line that names the kinds.
    kinds: &'static str,
    columns: Vec<Column>,
}

/// The columns of a kind.
pub(super) fn of(group: &str, kind: &str) -> &'static [Column] {
    let is_named = |name: &str| match name.split_once('.') {
        Some((name, of)) => name == kind && of == group,
        None => name == "*" || (name == kind && group.is_empty()),
    };
    let table = TABLES.iter().find(|table| table.kinds.split(' ').any(is_named));
    &table.expect("the last table is for all kinds").columns
}

/// A column that most kinds have.
pub(super) fn shared(name: &str) -> &'static Column {
    find(&TABLES, name)
}

fn find<'a>(tables: &'a [Table], name: &str) -> &'a Column {
    let mut shared = tables[0].columns.iter();
    shared.find(|column| column.name == name).unwrap_or_else(|| unreachable!("no column {name}"))
}

fn parse(text: &'static str) -> Vec<Table> {
    let mut tables: Vec<Table> = Vec::new();
    for line in text.lines() {
        match line.strip_prefix("  ") {
            None => tables.push(Table { kinds: line, columns: Vec::new() }),
            Some(line) => {
                let column = column(&tables, line);
                tables.last_mut().expect("the text begins with a table").columns.push(column);
            }
        }
    }
    tables
}

fn column(tables: &[Table], line: &'static str) -> Column {
    let parts: Vec<&str> = line.split(" | ").map(str::trim).collect();
    let [name, kind, cell, description] = parts[..] else { return find(tables, line).clone() };
    let (kind, words) = kind.split_once(' ').unwrap_or((kind, ""));
    Column {
        name: name.into(),
        kind: kind.into(),
        format: if words.contains("name") { "name" } else { "" }.into(),
        description: match description.strip_prefix("= ") {
            Some(other) => find(tables, other).description.clone(),
            None => description.replace("\\n", "\n").into(),
        },
        priority: words.contains("wide").into(),
        cell: parse_cell(cell),
    }
}

fn parse_cell(text: &'static str) -> Cell {
    let (text, absent) = text.split_once(" ?").unwrap_or((text, ""));
    let (name, argument) = text.split_once(' ').unwrap_or((text, ""));
    let found = cells::ALL.iter().find(|(cell, _)| *cell == name);
    let (_, compute) = found.unwrap_or_else(|| unreachable!("no cell {name}"));
    Cell::Computed { compute: *compute, argument, absent }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text of every row, without the lines that name kinds.
    fn rows() -> impl Iterator<Item = Vec<&'static str>> {
        let lines = include_str!("columns.txt").lines();
        lines
            .filter_map(|line| Some(line.strip_prefix("  ")?.split(" | ").map(str::trim).collect()))
    }

    #[test]
    fn every_table_is_for_a_kind_that_is_served() {
        let mut served = vec![("shared".to_owned(), "".to_owned()), ("*".into(), "".into())];
        for kind in crate::kind::builtin() {
            served.push((kind.kind.to_string(), kind.group.to_string()));
            let subresources = kind.subresources.iter().filter_map(|sub| {
                let (group, _, kind) = sub.group_version_kind.clone()?;
                Some((kind.to_string(), group.to_string()))
            });
            served.extend(subresources);
        }
        let mut seen = Vec::new();
        for name in TABLES.iter().flat_map(|table| table.kinds.split(' ')) {
            let (kind, group) = name.split_once('.').unwrap_or((name, ""));
            assert!(served.contains(&(kind.to_owned(), group.to_owned())), "{name}");
            assert!(!seen.contains(&name), "{name} has two tables");
            seen.push(name);
        }
        assert_eq!((seen[0], seen[seen.len() - 1]), ("shared", "*"));
    }

    #[test]
    fn every_row_names_a_cell_and_every_cell_has_a_row() {
        let mut used = Vec::new();
        for row in rows() {
            match row[..] {
                [name] => assert_eq!(shared(name).name, name),
                [_, kind, cell, description] => {
                    let kind = kind.split(' ').next().unwrap();
                    assert!(["string", "integer", "boolean", "date"].contains(&kind), "{row:?}");
                    let cell = cell.split(' ').next().unwrap();
                    assert!(cells::ALL.iter().any(|(name, _)| *name == cell), "{row:?}");
                    assert!(!description.is_empty(), "{row:?}");
                    used.push(cell);
                }
                _ => panic!("{row:?} is no row"),
            }
        }
        for (cell, _) in cells::ALL {
            assert!(used.contains(cell), "{cell} has no row");
        }
    }
}
