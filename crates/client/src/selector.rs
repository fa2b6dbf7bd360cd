//! Label selectors for listers and predicates.
//!
//! River: used by listers and predicates. It wraps the selector of the server, from `api`;
//! selectors that match everything or nothing do not read labels.

use std::cell::Cell;
use std::fmt;

use headwater_api::selector::LabelSelector;

use crate::error::Error;
use crate::object::Cached;

/// Selects objects by their labels, with the server's semantics.
///
/// ```
/// use headwater_client::Selector;
///
/// let selector: Selector = "tier=web,env notin (dev),!legacy".parse()?;
/// # Ok::<(), headwater_client::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Selector {
    form: Form,
}

#[derive(Clone, Debug)]
enum Form {
    Everything,
    Nothing,
    Labels(LabelSelector),
}

impl Selector {
    /// Matches every object.
    pub fn everything() -> Selector {
        Selector { form: Form::Everything }
    }

    /// Matches no object.
    pub fn nothing() -> Selector {
        Selector { form: Form::Nothing }
    }

    /// Whether it matches every object.
    pub fn is_everything(&self) -> bool {
        matches!(self.form, Form::Everything)
    }

    pub(crate) fn is_nothing(&self) -> bool {
        matches!(self.form, Form::Nothing)
    }

    /// Whether it matches an object.
    pub fn matches<K: Cached>(&self, object: &K) -> bool {
        match &self.form {
            Form::Everything => true,
            Form::Nothing => false,
            Form::Labels(selector) => labels_match(selector, object),
        }
    }
}

fn labels_match<K: Cached>(selector: &LabelSelector, object: &K) -> bool {
    // A packed object returns borrowed labels unless they contain escapes, which no API server
    // writes; then all metadata is decoded.
    let escaped = Cell::new(false);
    let matched = selector.matches(|key| match object.label(key)? {
        std::borrow::Cow::Borrowed(value) => Some(value),
        std::borrow::Cow::Owned(_) => {
            escaped.set(true);
            None
        }
    });
    if !escaped.get() {
        return matched;
    }
    let metadata = object.metadata();
    selector.matches(|key| metadata.labels.as_ref()?.get(key).map(String::as_str))
}

impl std::str::FromStr for Selector {
    type Err = Error;

    fn from_str(text: &str) -> Result<Selector, Error> {
        let parsed = LabelSelector::parse(text).map_err(|status| {
            Error::Invalid(format!("invalid label selector {text:?}: {}", status.message))
        })?;
        let form = if parsed.is_empty() { Form::Everything } else { Form::Labels(parsed) };
        Ok(Selector { form })
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.form {
            Form::Everything => Ok(()),
            Form::Nothing => f.write_str("<nothing>"),
            Form::Labels(selector) => selector.fmt(f),
        }
    }
}
