//! JSON: trees of it, and how Kubernetes prints it.
//!
//! River: body → **tree** → defaults, checks, managers → **bytes** that are stored and sent.
//!
//! A write builds, walks and drops several trees, so a tree is made of few allocations: members of
//! an object are one sorted list, and short text (nearly every key and most values) lies where it is
//! used. What a write reads of the store stays text as long as nobody looks ([`settle`]). The methods
//! are those of `serde_json`'s tree, so that a reader knows them.

#[cfg(test)]
pub(crate) mod any;
mod value;
mod key;
mod map;
mod kept;
mod equal;
mod index;
mod serial;
mod print;

pub use serde_json::Number;

pub use crate::__json as json;
pub use kept::{is_broken, settle};
pub use key::Key;
pub(crate) use key::Name;
pub use map::{Entry, Map};
pub(crate) use print::printed_at;
pub use print::{push_member, push_string, push_text, push_value, to_vec};
pub use serial::{from_value, to_value};
pub use value::Value;

/// Text of a tree; up to 24 bytes need no allocation.
pub type Text = compact_str::CompactString;

/// A tree from a literal, as `serde_json` writes them. Convenient, not quick: the tree is built
/// twice.
///
/// ```
/// use headwater_api::json::json;
///
/// let pod = json!({ "metadata": { "name": "web" } });
/// assert_eq!(pod["metadata"]["name"], "web");
/// ```
#[macro_export]
#[doc(hidden)]
macro_rules! __json {
    ($($literal:tt)+) => {
        $crate::json::Value::from($crate::json::__serde_json::json!($($literal)+))
    };
}

#[doc(hidden)]
pub use serde_json as __serde_json;
