//! The fields of an entry: stored text, parsed only when it changes.
//!
//! A set is about as long as its object, and most writes change one or two fields. A walk over the text
//! along the changed paths tells whether they concern the set; everything else is skipped. An unchanged
//! set is written back as its text.

use std::borrow::Cow;

use super::fields::FieldSet;
use super::stored::Meeting;

/// The fields of an entry.
#[derive(Clone, Debug)]
pub(super) enum Owned<'a> {
    /// The stored text.
    Stored(Cow<'a, str>),
    Set(FieldSet<'a>),
}

impl<'a> Owned<'a> {
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Owned::Stored(text) => *text == "{}",
            Owned::Set(set) => set.is_empty(),
        }
    }

    /// The set.
    pub(super) fn set(&self) -> Cow<'_, FieldSet<'_>> {
        match self {
            Owned::Stored(text) => Cow::Owned(read(text)),
            Owned::Set(set) => Cow::Borrowed(set),
        }
    }

    /// The owned set.
    pub(super) fn into_set(self) -> FieldSet<'a> {
        match self {
            Owned::Stored(Cow::Borrowed(text)) => read(text),
            Owned::Stored(Cow::Owned(text)) => read(&text).into_owned(),
            Owned::Set(set) => set,
        }
    }

    /// Whether it intersects another set.
    pub(super) fn touches(&self, other: &FieldSet<'_>) -> bool {
        !other.is_empty()
            && match self.meet(other) {
                Some(meeting) => meeting.touches,
                None => !self.set().intersect(other).is_empty(),
            }
    }

    /// Whether it is a superset of another set.
    fn covers(&self, other: &FieldSet<'_>) -> bool {
        match self.meet(other) {
            Some(meeting) => meeting.covers,
            None => other.is_subset(&self.set()),
        }
    }

    /// Whether it is a subset of another set.
    pub(super) fn is_within(&self, other: &FieldSet<'_>) -> bool {
        match self.meet(other) {
            Some(meeting) => meeting.within,
            None => self.set().is_subset(other),
        }
    }

    fn meet(&self, other: &FieldSet<'_>) -> Option<Meeting> {
        match self {
            Owned::Stored(text) => FieldSet::meet_stored(text, other),
            Owned::Set(_) => None,
        }
    }

    /// Removes the fields of a set.
    pub(super) fn subtract(&mut self, other: &FieldSet<'_>) {
        if other.is_empty() {
            return;
        }
        if let Owned::Stored(text) = self {
            match FieldSet::subtract_stored(text, other) {
                Some(left) if left == **text => {}
                Some(left) => *text = Cow::Owned(left),
                None => *self = Owned::Set(self.clone().into_set()),
            }
        }
        if let Owned::Set(set) = self {
            set.subtract(other);
        }
    }

    /// Adds the fields of a set.
    pub(super) fn union(self, other: FieldSet<'a>) -> Owned<'a> {
        if self.covers(&other) {
            return self;
        }
        if let Owned::Stored(text) = &self
            && let Some(both) = FieldSet::union_stored(text, &other)
        {
            return Owned::Stored(both.into());
        }
        let mut set = self.into_set();
        set.union(other);
        Owned::Set(set)
    }

    /// Writes it as JSON.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Owned::Stored(text) => out.extend_from_slice(text.as_bytes()),
            Owned::Set(set) => set.write(out),
        }
    }
}

impl PartialEq for Owned<'_> {
    fn eq(&self, other: &Owned<'_>) -> bool {
        match (self, other) {
            // The text of a set is canonical.
            (Owned::Stored(one), Owned::Stored(other)) => one == other,
            _ => self.set() == other.set(),
        }
    }
}

/// Parses a set; invalid text is an empty set.
fn read(text: &str) -> FieldSet<'_> {
    FieldSet::stored(text).unwrap_or_default()
}
