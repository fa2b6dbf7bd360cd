//! The names that macros bind, for the type check, the cost estimate and the evaluation.

/// A name bound by a macro, and the enclosing ones.
pub(super) struct Scope<'o, T> {
    pub(super) name: &'o str,
    pub(super) value: T,
    pub(super) outer: Outer<'o, T>,
}

pub(super) type Outer<'o, T> = Option<&'o Scope<'o, T>>;

/// What the innermost macro binds to a name.
pub(super) fn bound<'o, T>(mut scope: Outer<'o, T>, name: &str) -> Option<&'o T> {
    while let Some(found) = scope {
        if found.name == name {
            return Some(&found.value);
        }
        scope = found.outer;
    }
    None
}
