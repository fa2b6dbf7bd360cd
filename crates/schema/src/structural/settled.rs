//! Whether stored bytes are already pruned and defaulted, read without building a tree.
//!
//! This is true for almost every object, because it was written under the same schema. The check lets
//! the cache keep the bytes unchanged.

use super::{Additional, META_FIELDS, Node};
use headwater_json::scan::{Malformed, Scanner};

/// The object needs a change, or the bytes are not JSON.
struct Unsettled;

impl From<Malformed> for Unsettled {
    fn from(_: Malformed) -> Unsettled {
        Unsettled
    }
}

pub(super) fn is_settled(root: &Node, bytes: &[u8]) -> bool {
    object(root, &mut Scanner::new(bytes), true).is_ok()
}

fn value(node: Option<&Node>, at: &mut Scanner<'_>) -> Result<(), Unsettled> {
    let Some(node) = node else {
        // Without a schema only a value without fields needs no change.
        return match at.peek() {
            Some(b'{' | b'[') => Err(Unsettled),
            _ => Ok(at.value().map(drop)?),
        };
    };
    match at.peek() {
        Some(b'{') => object(node, at, node.embedded),
        Some(b'[') => match &node.items {
            Some(items) => at.array(|at| match at.peek() {
                Some(b'n') if !items.nullable => Err(Unsettled),
                _ if node.preserve => Err(Unsettled),
                _ => value(Some(items), at),
            }),
            None if node.preserve => Ok(at.value().map(drop)?),
            None => at.array(|at| value(None, at)),
        },
        _ => Ok(at.value().map(drop)?),
    }
}

fn object(node: &Node, at: &mut Scanner<'_>, embedded: bool) -> Result<(), Unsettled> {
    let wanted = node.properties.iter().filter(|(_, inner)| inner.default.is_some()).count();
    let mut found = 0;
    at.object(|key, at| {
        let name = at.text(key)?;
        if embedded && META_FIELDS.contains(&&*name) {
            return Ok(at.value().map(drop)?);
        }
        let is_null = at.peek() == Some(b'n');
        match (node.property(&name), &node.additional) {
            (Some(inner), _) if is_null && !inner.nullable => Err(Unsettled),
            (Some(inner), _) => {
                found += usize::from(inner.default.is_some());
                value(Some(inner), at)
            }
            (None, Some(Additional::Of(inner))) if is_null && !inner.nullable => Err(Unsettled),
            (None, Some(Additional::Of(inner))) => value(Some(inner), at),
            _ if node.preserve => Ok(at.value().map(drop)?),
            (None, Some(_)) => value(None, at),
            (None, None) => Err(Unsettled),
        }
    })?;
    if found < wanted { Err(Unsettled) } else { Ok(()) }
}
