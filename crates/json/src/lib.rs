//! JSON trees: a parser, a scanner, and a printer with the output of Go's encoder.
//!
//! River: body → **tree** → defaults, checks, managers → **bytes** that are stored and sent.
//!
//! A write builds, walks and drops several trees, so a tree takes few allocations: the members of
//! an object are one sorted list, and short text (nearly every key and most values) is stored
//! inline. The methods are those of `serde_json`'s tree.

pub mod wide;
pub mod scan;
pub mod edit;
#[cfg(test)]
mod any;
mod value;
mod key;
mod map;
mod equal;
mod index;
mod serial;
mod print;
pub mod path;
mod parse;

pub use serde_json::Number;

pub use key::{MemberKey, Name};
pub use map::{Entry, Map};
pub use parse::{DEPTH_MAX, Malformed, NESTED_MAX, Parsed, field_paths, parse, parse_stored};
pub use print::{push_member, push_string, push_text, push_value, to_vec};
pub use serial::{from_value, to_value};
pub use value::Value;

/// Text of a tree; up to 24 bytes need no allocation.
pub type Text = compact_str::CompactString;

/// Builds a tree from a literal in `serde_json`'s notation. Convenient, not fast: the tree is built
/// twice.
///
/// ```
/// use headwater_json::json;
///
/// let pod = json!({ "metadata": { "name": "web" } });
/// assert_eq!(pod["metadata"]["name"], "web");
/// ```
#[macro_export]
macro_rules! json {
    ($($literal:tt)+) => {
        $crate::Value::from($crate::__serde_json::json!($($literal)+))
    };
}

#[doc(hidden)]
pub use serde_json as __serde_json;
