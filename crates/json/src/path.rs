//! The path of a value in a document: a chain on the stack, formatted only for messages.
//!
//! Promise: what is formatted is bounded, whatever the document: a path has a maximum length, and a
//! list of paths a maximum number.

use std::fmt::{self, Write};
use std::ops::Deref;

/// The maximum length of a formatted path. Keys may be as long as a document.
const SHOWN_MAX: usize = 4096;

/// The maximum number of paths in a list.
const LISTED_MAX: usize = 1000;

/// A path: its last segment and the path above.
#[derive(Clone, Copy)]
pub enum Path<'a> {
    Root,
    /// A field of a type, or a key of a document without one.
    Field(&'a Path<'a>, &'a str),
    /// A key of a map.
    Key(&'a Path<'a>, &'a str),
    Index(&'a Path<'a>, usize),
    /// A key of a map, in the notation of field errors.
    Bracket(&'a Path<'a>, &'a str),
}

impl<'a> Path<'a> {
    /// A field below this path.
    pub fn field(&'a self, name: &'a str) -> Path<'a> {
        Path::Field(self, name)
    }

    /// An element below this path.
    pub fn index(&'a self, index: usize) -> Path<'a> {
        Path::Index(self, index)
    }

    /// A key below this path, in the notation of field errors.
    pub fn bracket(&'a self, key: &'a str) -> Path<'a> {
        Path::Bracket(self, key)
    }

    /// The fields only, joined with dots: Go's notation in decoding errors.
    pub fn fields(&self) -> String {
        match self {
            Path::Root => String::new(),
            Path::Key(above, _) | Path::Index(above, _) | Path::Bracket(above, _) => above.fields(),
            Path::Field(above, name) => match above.fields() {
                above if above.is_empty() => (*name).to_owned(),
                above => format!("{above}.{name}"),
            },
        }
    }
}

/// `spec.containers[0].name`.
impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = Shown { out: f, left: SHOWN_MAX };
        match self.write(&mut shown) {
            Err(_) if shown.left == 0 => shown.out.write_char('…'),
            written => written,
        }
    }
}

impl Path<'_> {
    fn write(&self, out: &mut Shown<'_, '_>) -> fmt::Result {
        match self {
            Path::Root => Ok(()),
            Path::Field(Path::Root, name) | Path::Key(Path::Root, name) => out.write_str(name),
            Path::Field(above, name) | Path::Key(above, name) => {
                above.write(out)?;
                out.write_char('.')?;
                out.write_str(name)
            }
            Path::Index(above, index) => {
                above.write(out)?;
                write!(out, "[{index}]")
            }
            Path::Bracket(above, name) => {
                above.write(out)?;
                out.write_char('[')?;
                out.write_str(name)?;
                out.write_char(']')
            }
        }
    }
}

/// A text that ends at its maximum length.
struct Shown<'a, 'b> {
    out: &'a mut fmt::Formatter<'b>,
    left: usize,
}

impl Write for Shown<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if text.len() <= self.left {
            self.left -= text.len();
            return self.out.write_str(text);
        }
        let end = (0..=self.left).rev().find(|at| text.is_char_boundary(*at));
        self.left = 0;
        self.out.write_str(&text[..end.unwrap_or_default()])?;
        Err(fmt::Error)
    }
}

/// Paths for messages about a document: the first ones, and how many there are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PathList {
    list: Vec<String>,
    omitted: usize,
}

impl PathList {
    /// Adds a path. It is formatted only if it is listed.
    pub fn push(&mut self, path: impl fmt::Display) {
        match self.list.len() < LISTED_MAX {
            true => self.list.push(path.to_string()),
            false => self.omitted += 1,
        }
    }

    /// Adds the paths of another list.
    pub fn extend(&mut self, other: &PathList) {
        other.iter().for_each(|path| self.push(path));
        self.omitted += other.omitted;
    }

    /// Sorts the listed paths.
    pub fn sort(&mut self) {
        self.list.sort();
    }

    /// The number of paths that are not listed.
    pub fn omitted(&self) -> usize {
        self.omitted
    }
}

impl Deref for PathList {
    type Target = [String];

    fn deref(&self) -> &[String] {
        &self.list
    }
}

impl PartialEq<Vec<String>> for PathList {
    fn eq(&self, other: &Vec<String>) -> bool {
        self.omitted == 0 && self.list == *other
    }
}

impl PartialEq<&[&str]> for PathList {
    fn eq(&self, other: &&[&str]) -> bool {
        self.omitted == 0 && self.list == *other
    }
}

impl<const N: usize> PartialEq<[&str; N]> for PathList {
    fn eq(&self, other: &[&str; N]) -> bool {
        self.omitted == 0 && self.list == *other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_every_step() {
        let (spec, root) = (Path::Field(&Path::Root, "spec"), Path::Index(&Path::Root, 1));
        let list = spec.field("containers");
        let element = list.index(0);
        assert_eq!(element.field("name").to_string(), "spec.containers[0].name");
        assert_eq!(spec.bracket("a/b").to_string(), "spec[a/b]");
        assert_eq!(root.to_string(), "[1]");
    }

    /// A document of 3 MiB may have a key of 1 MiB above 200,000 fields.
    #[test]
    fn long_paths_and_many_paths_take_bounded_memory() {
        let key = "é".repeat(SHOWN_MAX);
        let above = Path::Field(&Path::Root, &key);
        let mut paths = PathList::default();
        (0..200_000).for_each(|at| paths.push(above.index(at)));
        assert_eq!((paths.len(), paths.omitted()), (LISTED_MAX, 200_000 - LISTED_MAX));
        let bytes: usize = paths.iter().map(String::len).sum();
        assert!(bytes <= LISTED_MAX * (SHOWN_MAX + '…'.len_utf8()), "{bytes}");
        assert!(paths[0].starts_with('é') && paths[0].ends_with('…'));
        let mut both = paths.clone();
        both.extend(&paths);
        assert_eq!((both.len(), both.len() + both.omitted()), (LISTED_MAX, 400_000));
    }

    #[test]
    fn a_deep_path_of_short_names_ends_too() {
        fn below(path: &Path<'_>, levels: usize) -> String {
            match levels {
                0 => path.to_string(),
                levels => below(&path.field("spec"), levels - 1),
            }
        }
        let shown = below(&Path::Root, 2000);
        assert_eq!(shown.len(), SHOWN_MAX + '…'.len_utf8());
    }
}
