//! Members of a stored object that stay text until a caller reads them.
//!
//! River: stored bytes → **kept** → stored bytes. Most writes leave most of an object unchanged: a
//! member that no caller reads is never parsed, a member that is equal in the old and the new
//! object is one shared value, and an unchanged member is printed by copying its text.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use super::map::Members;
use super::{Map, Text, Value};
use crate::parse;
use crate::scan::{Malformed, Scanner};
use crate::wide;

/// The members of a stored object, shared by all values that contain them.
pub(super) struct Kept {
    /// The key under which the object stores them.
    member: Text,
    /// The text, as [`super::push_value`] prints it.
    text: Box<str>,
    /// Parsed on first access; `None` if the text is not an object.
    members: OnceLock<Option<Members>>,
}

impl Kept {
    fn new(member: &str, text: &str) -> Kept {
        Kept { member: member.into(), text: text.into(), members: OnceLock::new() }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// The members; empty if they cannot be parsed, which [`Kept::is_broken`] reports.
    pub(super) fn members(&self) -> &Members {
        static NONE: Members = Members::Few(Vec::new());
        self.members.get_or_init(|| self.read()).as_ref().unwrap_or(&NONE)
    }

    fn read(&self) -> Option<Members> {
        parse::kept(&self.text).ok().map(Map::into_members)
    }

    /// One member. Parses the others only if an earlier access did.
    pub(super) fn peek(&self, key: &str) -> Option<Cow<'_, Value>> {
        if self.members.get().is_some() {
            return self.members().find(wide::begin(key), key).map(Cow::Borrowed);
        }
        let mut found = None;
        let scanned = Scanner::new(self.text.as_bytes()).object::<Malformed>(|name, at| {
            let (is_it, value) = (at.is(name, key), at.value()?);
            if is_it {
                found = Some(&self.text[value.start as usize..value.end as usize]);
            }
            Ok(())
        });
        let value = scanned.ok().and(found)?;
        parse::parse(value.as_bytes()).ok().map(|parsed| Cow::Owned(parsed.value))
    }

    /// Whether an access tried to parse the text and failed.
    pub(super) fn is_broken(&self) -> bool {
        matches!(self.members.get(), Some(None))
    }

    /// The members for one owner, without the text.
    pub(super) fn take(self: Arc<Kept>) -> Members {
        match Arc::try_unwrap(self) {
            Ok(kept) => {
                kept.members();
                kept.members.into_inner().flatten().unwrap_or_default()
            }
            Err(shared) => shared.members().clone(),
        }
    }

    /// Stores the members that another parse of the same text produced.
    fn settle(&self, members: Members) {
        // If an earlier access has parsed the text, these members are dropped.
        let _ = self.members.set(Some(members));
    }
}

impl Map {
    /// The members that this text of a stored object contains.
    pub(crate) fn kept(member: &str, text: &str) -> Map {
        Map::of_kept(Arc::new(Kept::new(member, text)))
    }

    /// Whether this is the stored value of `member`. A patch may have moved a stored value to
    /// another field, where it must be checked like any other value.
    #[inline]
    pub fn is_kept_as(&self, member: &str) -> bool {
        self.as_kept().is_some_and(|kept| kept.member == member)
    }

    /// Whether this is a stored value, which was decoded, defaulted and validated before.
    #[inline]
    pub fn is_kept(&self) -> bool {
        self.as_kept().is_some()
    }

    /// The stored text, if this is a stored value.
    #[inline]
    pub fn stored_text(&self) -> Option<&str> {
        self.as_kept().map(|kept| kept.text())
    }

    /// The value of a key, for callers that read few keys of members that may be text.
    pub fn peek(&self, key: &str) -> Option<Cow<'_, Value>> {
        match self.as_kept() {
            Some(kept) => kept.peek(key),
            None => self.get(key).map(Cow::Borrowed),
        }
    }

    /// Becomes the same value as `kept` if it prints to the same text: comparing and printing the
    /// two then costs nothing.
    fn settle_on(&mut self, kept: &Map) {
        let Some(shared) = kept.as_kept().filter(|_| !self.is_kept()) else { return };
        if super::print::is_printed(self, shared.text()) {
            shared.settle(std::mem::take(self).into_members());
            *self = kept.clone();
        }
    }
}

/// Replaces the members of `new` that equal the stored ones with the stored values. Call it when
/// `new` is complete, before the two are compared.
pub fn settle(new: &mut Value, old: &Value) {
    let (Value::Object(new), Value::Object(old)) = (new, old) else { return };
    for (key, old) in old {
        if let (Value::Object(old), Some(Value::Object(new))) = (old, new.get_mut(key)) {
            new.settle_on(old);
        }
    }
}

/// Whether an access to a member of a stored object failed to parse it.
pub fn is_broken(object: &Value) -> bool {
    let members = object.as_object().into_iter().flat_map(Map::values);
    members.filter_map(Value::as_object).any(|map| map.as_kept().is_some_and(|k| k.is_broken()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{json, push_value};
    use proptest::prelude::*;

    fn printed(value: &Value) -> String {
        let mut bytes = Vec::new();
        push_value(&mut bytes, value);
        String::from_utf8(bytes).unwrap()
    }

    const LAZY: parse::Lazy = parse::Lazy { parsed: "metadata", text: "managedFields" };

    /// An object as it is read from the store.
    fn stored(value: &Value) -> Value {
        parse::parse_lazily(printed(value).as_bytes(), LAZY).unwrap()
    }

    fn is_shared(object: &Value, key: &str) -> bool {
        object[key].as_object().is_some_and(Map::is_kept)
    }

    #[test]
    fn an_unchanged_member_is_one_shared_value() {
        let before =
            json!({ "metadata": {}, "spec": { "a": [1, { "b": "<x>" }] }, "status": { "c": 1 } });
        let old = stored(&before);
        assert!(is_shared(&old, "spec") && !is_shared(&old, "metadata"));
        let mut new = before.clone();
        new["status"]["c"] = 2.into();
        settle(&mut new, &old);
        assert!(is_shared(&new, "spec") && !is_shared(&new, "status"));
        assert_eq!(new["spec"], old["spec"]);
        assert_ne!(new["status"], old["status"]);
        assert_eq!(new["spec"]["a"][1]["b"], "<x>");
        assert!(printed(&new).contains(r#""spec":{"a":[1,{"b":"\u003cx\u003e"}]}"#));
        new["spec"]["a"] = 7.into();
        assert_eq!(printed(&new["spec"]), r#"{"a":7}"#);
        assert_eq!(printed(&old), printed(&before), "a change is nobody else's");
    }

    #[test]
    fn text_inside_a_string_is_not_mistaken_for_a_member() {
        let old = stored(&json!({ "spec": { "a": "b", "c": "d" } }));
        let mut new = json!({ "spec": { "a": "b\",\"c\":\"d" } });
        settle(&mut new, &old);
        assert_ne!(new, old);
        assert!(!is_shared(&new, "spec"));
    }

    #[test]
    fn a_member_that_cannot_be_parsed_is_reported_after_an_access() {
        let old = parse::parse_lazily(br#"{"metadata":{},"spec":{"a" 1}}"#, LAZY).unwrap();
        assert!(!is_broken(&old));
        assert_eq!(printed(&old), r#"{"metadata":{},"spec":{"a" 1}}"#, "it stays as it is");
        assert_eq!(old["spec"]["a"], Value::Null);
        assert!(is_broken(&old));
    }

    fn values() -> impl Strategy<Value = Value> {
        crate::any::values("[a-c\"\\\\<é]{0,20}", "[a-c\"<]{0,3}")
    }

    /// A value that differs slightly from another one, or not at all.
    fn near(value: &Value, place: usize, other: &Value) -> Value {
        let mut near = value.clone();
        let mut places = Vec::new();
        collect(&mut near, &mut places);
        let count = places.len().max(1);
        if let Some(found) = places.into_iter().nth(place % (2 * count)) {
            *found = other.clone();
        }
        near
    }

    fn collect<'a>(value: &'a mut Value, leaves: &mut Vec<&'a mut Value>) {
        match value {
            Value::Array(items) => items.iter_mut().for_each(|item| collect(item, leaves)),
            Value::Object(members) => members.values_mut().for_each(|item| collect(item, leaves)),
            leaf => leaves.push(leaf),
        }
    }

    proptest! {
        /// An object behaves the same whether its members are text, shared or parsed.
        #[test]
        fn lazy_members_behave_like_parsed_members(
            spec in values(), status in values(), place in any::<usize>(), other in values(),
        ) {
            let old = json!({ "kind": "A" });
            let mut old = old;
            old["spec"] = spec;
            old["status"] = status;
            let new = near(&old, place, &other);
            let (kept, mut settled) = (stored(&old), new.clone());
            prop_assert_eq!(printed(&kept), printed(&old));
            if let (Value::Object(kept), Value::Object(old)) = (&kept["spec"], &old["spec"]) {
                for key in old.keys().map(|key| key.as_str()).chain(["", "d"]) {
                    let found = kept.peek(key);
                    prop_assert_eq!(found.as_deref(), old.get(key));
                }
            }
            settle(&mut settled, &kept);
            prop_assert_eq!(printed(&settled), printed(&new));
            prop_assert_eq!(settled == kept, new == old);
            for key in ["spec", "status"] {
                let is_same = new[key].is_object() && printed(&new[key]) == printed(&old[key]);
                prop_assert_eq!(is_shared(&settled, key), is_same);
            }
            prop_assert_eq!(&settled, &new);
            prop_assert_eq!(&kept, &old);
            // A change makes a copy.
            let before = printed(&kept);
            settled["spec"] = other;
            prop_assert_eq!(printed(&kept), before);
        }
    }
}
