//! Patches: they apply or are rejected, and a merge patch is idempotent.

use std::cell::Cell;

use headwater_json::{Value, json};
use headwater_schema::patch;
use headwater_schema::types::Types;

use super::{anything, each};
use crate::any::{self, Dice};

#[test]
fn patches_fit_or_are_refused() {
    let kind = headwater_api::kind::builtin().into_iter().find(|kind| kind.kind == "Pod").unwrap();
    each(40_000, |dice, _| {
        let object = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": anything(dice, 2),
            "spec": {"containers": anything(dice, 2)},
        });
        let given = anything(dice, 0);
        let mut merged = object.clone();
        if patch::merge(&mut merged, given.clone()).is_ok() {
            let once = merged.clone();
            patch::merge(&mut merged, given.clone()).unwrap();
            assert_eq!(merged, once, "a merge patch twice is once: {given}");
        }
        let of = Types::builtin().of(&kind).unwrap();
        // It returns, whether the patch is rejected or not.
        let _ = patch::strategic(&mut object.clone(), given, of);
        let paths = ["/metadata/name", "/spec/containers/0", "", "/a~1b", "/spec/-", "x", "/é/~2"];
        let ops = ["add", "remove", "replace", "move", "copy", "test", "odd"];
        let list: Vec<Value> = (0..dice.below(4))
            .map(|_| {
                json!({
                    "op": dice.pick(&ops), "path": dice.pick(&paths), "from": dice.pick(&paths),
                    "value": anything(dice, 3),
                })
            })
            .collect();
        let _ = patch::json(&mut object.clone(), list.into());
        let mut object = object;
        let _ = patch::json(&mut object, anything(dice, 0));
    });
}

/// The directives of a strategic merge patch.
fn directed(dice: &mut Dice, mut patch: Value) -> Value {
    let directives = [
        json!({"$patch": "delete"}),
        json!({"$patch": "replace"}),
        json!({"$patch": "odd"}),
        json!({"$retainKeys": ["name", "a"]}),
        json!({"$setElementOrder/containers": [{"name": "a"}, {}, 1]}),
        json!({"$deleteFromPrimitiveList/finalizers": ["a", null]}),
    ];
    let mut places = vec![&mut patch];
    // More paths make deeper patches.
    while let Some(place) = places.pop() {
        match place {
            Value::Object(members) => {
                if dice.below(3) == 0
                    && let Value::Object(said) = dice.pick(&directives).clone()
                {
                    members.extend(said);
                }
                places.extend(members.values_mut().filter(|_| dice.below(2) == 0));
            }
            Value::Array(elements) => places.extend(elements),
            _ => {}
        }
    }
    patch
}

#[test]
fn patches_of_real_objects_with_directives_fit_or_are_refused() {
    let kinds = headwater_api::kind::builtin();
    let fit = Cell::new(0);
    each(15_000, |dice, _| {
        let kind = dice.pick(&kinds);
        let Some(of) = Types::builtin().of(kind) else { return };
        let object = any::object(dice, of);
        let given = any::object(dice, of);
        let given = directed(dice, given);
        let patched = |object: &Value| {
            let mut object = object.clone();
            patch::strategic(&mut object, given.clone(), of).ok().map(|()| object)
        };
        let once = patched(&object);
        fit.set(fit.get() + u32::from(once.as_ref().is_some_and(|once| *once != object)));
        assert_eq!(once, patched(&object), "the same patch does the same");
        // An empty patch changes nothing.
        let mut same = object.clone();
        patch::strategic(&mut same, json!({}), of).unwrap();
        assert_eq!(same, object);
    });
    assert!(fit.get() > 0, "no patch changed anything");
}
