//! The path of a value in a document: a chain on the stack, formatted only for messages.

use std::fmt;

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
        match self {
            Path::Root => Ok(()),
            Path::Field(Path::Root, name) | Path::Key(Path::Root, name) => f.write_str(name),
            Path::Field(above, name) | Path::Key(above, name) => write!(f, "{above}.{name}"),
            Path::Index(above, index) => write!(f, "{above}[{index}]"),
            Path::Bracket(above, name) => write!(f, "{above}[{name}]"),
        }
    }
}
