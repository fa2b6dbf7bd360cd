//! Selectors: which objects a list or watch includes.
//!
//! River: options → **selector** → views, indexes, per-object matching.
//! Promise: a parsed selector is canonical, so two requests with the same selection are equal, have
//! the same hash and share one view. Matching parses nothing.

pub mod field;
pub mod label;
mod shard;
mod structured;

pub use field::{FieldSelector, WrittenTerm};
pub use label::LabelSelector;
pub use shard::{ShardField, ShardSelector};
pub use structured::{LabelExpression, StructuredSelector};

use crate::query::bad_request;
use crate::status::Status;

/// The maximum length of a selector, in bytes (B144).
const LENGTH_MAX: usize = 64 * 1024;

/// The maximum number of terms of a selector; the values of a set do not count.
const TERMS_MAX: usize = 10_000;

fn check_length(text: &str) -> Result<(), Status> {
    if text.len() > LENGTH_MAX {
        let message = format!("selector too long: limit is {LENGTH_MAX} bytes");
        return Err(Status::failure(414, "", message));
    }
    Ok(())
}

fn check_terms(terms: usize) -> Result<(), Status> {
    if terms > TERMS_MAX {
        return Err(bad_request(format!("selector has too many terms: limit is {TERMS_MAX}")));
    }
    Ok(())
}
