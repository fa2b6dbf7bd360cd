//! Field selectors: `metadata.name=x,status.phase!=Running` (S3.32).
//!
//! Promise: fields are resolved against the kind during parsing, so that matching is a lookup by
//! index in the object's head.

use std::fmt;
use std::sync::Arc;

use super::{check_length, check_terms};
use crate::kind::{Kind, Name};
use crate::marks::Marks;
use crate::object::Object;
use crate::query::{bad_request, quote};
use crate::status::Status;

/// A conjunction of terms. The empty one selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FieldSelector {
    /// Sorted and without duplicates: the canonical form.
    terms: Arc<[Term]>,
    /// The marks that every matching object has.
    marks: Marks,
}

/// One comparison of one field.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Term {
    label: Name,
    place: Place,
    value: Box<str>,
    equal: bool,
    /// The value of an object without the field.
    absent: Name,
}

/// A term of a selector whose field is not resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenTerm {
    /// The field.
    pub label: String,
    /// Whether it must have the value, or must not.
    pub equal: bool,
    /// The value, without escapes.
    pub value: String,
}

/// The part of an object that contains a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Place {
    Name,
    Namespace,
    /// Index into the kind's selectable fields.
    Field(usize),
}

impl FieldSelector {
    /// Selects everything.
    pub fn everything() -> FieldSelector {
        FieldSelector::default()
    }

    /// Selects the object with one name.
    pub fn named(name: &str) -> FieldSelector {
        let term = Term {
            label: Name::Borrowed("metadata.name"),
            place: Place::Name,
            value: name.into(),
            equal: true,
            absent: Name::Borrowed(""),
        };
        FieldSelector { terms: Arc::new([term]), marks: Marks::default() }
    }

    /// Parses a selector for objects of `kind`; an error is a complete response.
    pub fn parse(text: &str, kind: &Kind) -> Result<FieldSelector, Status> {
        Unresolved::parse(text)?.resolve(kind, kind)
    }

    /// The terms of a selector as it is written, for readers that know no kind.
    pub fn written_terms(text: &str) -> Result<Vec<WrittenTerm>, Status> {
        let terms = Unresolved::parse(text)?.terms.into_iter();
        Ok(terms.map(|(label, equal, value)| WrittenTerm { label, equal, value }).collect())
    }

    /// Whether it selects everything.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Whether it has every term of another selector, so that it selects a part of what that selects.
    pub fn implies(&self, other: &FieldSelector) -> bool {
        other.terms.iter().all(|term| self.terms.contains(term))
    }

    /// The fields that are compared.
    pub fn labels(&self) -> impl Iterator<Item = &str> {
        self.terms.iter().map(|term| &*term.label)
    }

    /// The marks that every matching object has.
    pub fn marks(&self) -> Marks {
        self.marks
    }

    /// Whether it matches an object.
    pub fn matches(&self, object: &Object) -> bool {
        object.may_have(self.marks)
            && self.terms.iter().all(|term| {
                let value = match term.place {
                    Place::Name => object.name(),
                    Place::Namespace => object.namespace(),
                    Place::Field(index) => object.field(index).unwrap_or(&term.absent),
                };
                (value == &*term.value) == term.equal
            })
    }

    /// The name that it requires, if any (S3.35).
    pub fn name(&self) -> Option<&str> {
        self.fixed(Place::Name)
    }

    /// The namespace that it requires, if any.
    pub fn namespace(&self) -> Option<&str> {
        self.fixed(Place::Namespace)
    }

    /// The value that it requires for the kind's `index`-th selectable field, if any.
    pub fn field(&self, index: usize) -> Option<&str> {
        self.fixed(Place::Field(index))
    }

    /// Every selectable field for which it requires a value, for indexes over fields.
    pub fn equalities(&self) -> impl Iterator<Item = (usize, &str)> {
        self.terms.iter().filter_map(|term| match term.place {
            Place::Field(index) if term.equal => Some((index, &*term.value)),
            _ => None,
        })
    }

    fn fixed(&self, place: Place) -> Option<&str> {
        self.terms.iter().find(|term| term.place == place && term.equal).map(|term| &*term.value)
    }

    /// For a path that already names an object: the selector must be empty or name the same object.
    pub fn and_named(self, name: &str) -> Result<FieldSelector, Status> {
        match self.name() {
            _ if self.is_empty() => Ok(FieldSelector::named(name)),
            Some(selected) if selected == name => Ok(self),
            _ => Err(bad_request("fieldSelector metadata.name doesn't match requested name")),
        }
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, term) in self.terms.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let operator = if term.equal { "=" } else { "!=" };
            write!(f, "{comma}{}{operator}{}", term.label, escape(&term.value))?;
        }
        Ok(())
    }
}

/// A selector whose fields are not resolved yet: the syntax is checked before the other options,
/// the fields after them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unresolved {
    terms: Vec<(String, bool, String)>,
}

impl Unresolved {
    pub(crate) fn parse(text: &str) -> Result<Unresolved, Status> {
        check_length(text)?;
        let mut parts = split_terms(text);
        // Kubernetes checks terms in sorted order, which decides which error comes first.
        parts.sort_unstable();
        parts.retain(|part| !part.is_empty());
        check_terms(parts.len())?;
        let mut terms = Vec::with_capacity(parts.len());
        for part in parts {
            let (label, equal, value) = split_term(part).ok_or_else(|| {
                bad_request(format!("invalid selector: '{text}'; can't understand '{part}'"))
            })?;
            let value = unescape(value)
                .map_err(|why| bad_request(format!("invalid field selector: {why}")))?;
            terms.push((label.to_owned(), equal, value));
        }
        Ok(Unresolved { terms })
    }

    /// Resolves the field names of the requested kind to the fields of the stored kind.
    pub(crate) fn resolve(self, kind: &Kind, stored: &Kind) -> Result<FieldSelector, Status> {
        let mut terms = Vec::with_capacity(self.terms.len());
        for (label, equal, value) in self.terms {
            let (label, place, absent) =
                resolve(&label, kind, stored).ok_or_else(|| bad_request(unknown(&label, kind)))?;
            terms.push(Term { label, place, value: value.into(), equal, absent });
        }
        terms.sort_unstable();
        terms.dedup();
        let mut marks = Marks::default();
        for term in terms.iter().filter(|term| term.equal && *term.value != *term.absent) {
            if let Place::Field(index) = term.place {
                marks.add(Marks::field(index, &term.value));
            }
        }
        Ok(FieldSelector { terms: terms.into(), marks })
    }
}

fn resolve(label: &str, kind: &Kind, stored: &Kind) -> Option<(Name, Place, Name)> {
    let plain = |label: &'static str, place| (Name::Borrowed(label), place, Name::Borrowed(""));
    // Kinds with fields of their own, and custom kinds, have `metadata.namespace` only if they are
    // namespaced; for all other kinds it is a field that is always empty.
    let namespaced = kind.namespaced || (kind.fields.is_empty() && !kind.custom);
    match label {
        "metadata.name" => return Some(plain("metadata.name", Place::Name)),
        "metadata.namespace" if namespaced => {
            return Some(plain("metadata.namespace", Place::Namespace));
        }
        _ => {}
    }
    // The caller, which has its definition, checks the fields of a custom kind.
    let names = if kind.custom { &stored.fields } else { &kind.fields };
    let named = names.iter().find(|field| field.label == label)?;
    // `spec.host` is an old label of `spec.nodeName`: fields with the same path are one field.
    let index = stored.fields.iter().position(|field| field.path() == named.path())?;
    let field = &stored.fields[index];
    Some((field.label.clone(), Place::Field(index), field.absent.clone()))
}

/// The message differs between kinds for historical reasons.
fn unknown(label: &str, kind: &Kind) -> String {
    if kind.custom {
        return format!("field label not supported: {label}");
    }
    match (&*kind.group, &*kind.kind) {
        ("batch", "Job") => format!("field label {} not supported for Job", quote(label)),
        ("resource.k8s.io", "ResourceSlice") => format!(
            "field label not supported for {}/{}, Kind=ResourceSlice: {label}",
            kind.group, kind.version
        ),
        _ if kind.fields.is_empty() => format!(
            "{} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
            quote(label)
        ),
        _ => format!("field label not supported: {label}"),
    }
}

/// The terms between commas; a comma after a backslash is part of the value.
fn split_terms(text: &str) -> Vec<&str> {
    let mut terms = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b',' => {
                terms.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms
}

/// The field, whether it must be equal, and the value as written.
fn split_term(term: &str) -> Option<(&str, bool, &str)> {
    let at = term.char_indices().map(|(at, _)| at).find(|at| {
        let rest = &term[*at..];
        rest.starts_with("!=") || rest.starts_with('=')
    })?;
    let (label, rest) = term.split_at(at);
    if let Some(value) = rest.strip_prefix("!=") {
        return Some((label, false, value));
    }
    let value = rest.strip_prefix("==").or_else(|| rest.strip_prefix('='))?;
    Some((label, true, value))
}

fn unescape(value: &str) -> Result<String, String> {
    let mut plain = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => plain.push(c),
                Some(c) => return Err(format!("invalid escape sequence: \\{c}")),
                None => return Err("invalid escape sequence: \\".to_owned()),
            },
            ',' | '=' => return Err(format!("unescaped character in value: {}", u32::from(c))),
            c => plain.push(c),
        }
    }
    Ok(plain)
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace(',', "\\,").replace('=', "\\=")
}

#[cfg(test)]
mod tests;
