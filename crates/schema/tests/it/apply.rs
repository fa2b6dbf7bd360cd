//! Applying random objects, once and again.

use headwater_api::Kind;
use headwater_json::{self as json, Value};
use headwater_schema::managed::{self, Builtin, Write};
use headwater_schema::{decode, defaults};
use jiff::Timestamp;
use proptest::prelude::*;

use crate::any::{self, Dice};
use crate::formats::kinds;

/// The stored object after an apply at some second.
fn applied(
    kind: &Kind,
    live: Option<&Value>,
    config: &Value,
    (manager, second): (&str, i64),
) -> Result<Value, String> {
    let write = Write {
        manager,
        subresource: "",
        api_version: &kind.api_version(),
        now: Timestamp::from_second(second).unwrap(),
        ignored: &["status"],
    };
    let structure = Builtin::of(kind).unwrap();
    let object = managed::apply(live, config, &write, false, kind, structure);
    let object = object.map_err(|error| error.to_string())?;
    let mut object = decode::refit(kind, object, live).map_err(|error| error.to_string())?.value;
    defaults::apply(kind, &mut object, live);
    if let Some(live) = live {
        managed::keep_times(live, &mut object);
    }
    Ok(object)
}

/// Removes some members of an object, and possibly the last element of a list.
fn thin(dice: &mut Dice, value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|key, _| {
                matches!(key.as_str(), "apiVersion" | "kind") || dice.below(12) > 0
            });
            members.values_mut().for_each(|value| thin(dice, value));
        }
        Value::Array(items) => {
            if dice.below(12) == 0 {
                items.pop();
            }
            items.iter_mut().for_each(|item| thin(dice, item));
        }
        _ => {}
    }
}

proptest! {
    #[test]
    fn what_is_applied_again_changes_nothing(seed: u64) {
        let kinds = kinds();
        let (kind, of) = kinds[seed as usize % kinds.len()];
        let mut config = any::object(&mut Dice::new(seed), of);
        config["apiVersion"] = kind.api_version().into();
        config["kind"] = kind.kind.to_string().into();
        // The server handles it separately.
        config.as_object_mut().unwrap().remove("status");
        // A random object may have two elements with the same key, which an apply rejects.
        if let Ok(stored) = applied(kind, None, &config, ("m", 1)) {
            let again = applied(kind, Some(&stored), &config, ("m", 2));
            prop_assert_eq!(again.as_ref(), Ok(&stored), "{}", config);
        }
    }

    /// An apply has the same result for an object that was printed and parsed.
    #[test]
    fn what_was_stored_is_applied_to_as_the_tree_is(seed: u64, other: u64, place: usize) {
        let kinds = kinds();
        let (kind, of) = kinds[seed as usize % kinds.len()];
        let named = |seed| {
            let mut config = any::object(&mut Dice::new(seed), of);
            config["apiVersion"] = kind.api_version().into();
            config["kind"] = kind.kind.to_string().into();
            config
        };
        let (mut first, mut second) = (named(seed), named(seed));
        // The configurations differ in one member, or one is a part of the other.
        let part = if place % 2 == 0 { &mut first } else { &mut second };
        thin(&mut Dice::new(other), part);
        let mut strange = named(other);
        let members: Vec<String> = second.as_object().unwrap().keys().map(|k| k.to_string()).collect();
        let member = &members[place % members.len()];
        if !matches!(member.as_str(), "apiVersion" | "kind") {
            match place % 3 {
                0 => second[member.as_str()] = strange[member.as_str()].take(),
                1 => drop(second.as_object_mut().unwrap().remove(member)),
                _ => {}
            }
        }
        if let Ok(tree) = applied(kind, None, &first, ("m", 1)) {
            let mut whole = tree.clone();
            managed::unpack(&mut whole);
            let mut text = Vec::new();
            json::push_value(&mut text, &whole);
            let stored = decode::stored(&text).unwrap();
            for manager in ["m", "n"] {
                let expected = applied(kind, Some(&tree), &second, (manager, 2));
                let found = applied(kind, Some(&stored), &second, (manager, 2));
                prop_assert_eq!(found, expected, "{}", second);
            }
        }
    }
}
