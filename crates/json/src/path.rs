//! Where in a document: a chain on the stack, spelled out only when somebody has to be told.

use std::fmt;

/// A position, as a step from the one above it.
#[derive(Clone, Copy)]
pub enum Path<'a> {
    Root,
    /// A field of a type, or a key of a document without one.
    Field(&'a Path<'a>, &'a str),
    /// A key that the type leaves free.
    Key(&'a Path<'a>, &'a str),
    Index(&'a Path<'a>, usize),
    /// A key that the type leaves free, in the notation of field errors.
    Bracket(&'a Path<'a>, &'a str),
}

impl Path<'_> {
    /// Whether it is the metadata of an object.
    pub fn is_metadata(&self) -> bool {
        matches!(self, Path::Field(Path::Root, "metadata"))
    }
}

impl Path<'_> {
    /// Only the fields, joined with dots: how Go names a position in an error.
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
