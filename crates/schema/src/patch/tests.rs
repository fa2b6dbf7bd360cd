use headwater_json::json;
use proptest::prelude::*;

use super::*;

#[track_caller]
fn check(mut found: Value, patch: Value, expected: &Value) {
    super::json(&mut found, patch).unwrap();
    assert_eq!(&found, expected);
}

#[test]
fn json_patches_apply() {
    let object = json!({"data": {"x": "1"}, "metadata": {"labels": {"k": "v"}}, "list": [1, 2]});
    check(
        object,
        json!([
            {"op": "test", "path": "/data/x", "value": "1"},
            {"op": "replace", "path": "/data/x", "value": "2"},
            {"op": "add", "path": "/data/y", "value": "3"},
            {"op": "remove", "path": "/metadata/labels/k"},
            {"op": "add", "path": "/list/1", "value": 9},
            {"op": "add", "path": "/list/-", "value": 7},
            {"op": "copy", "from": "/data", "path": "/copy"},
            {"op": "move", "from": "/list/0", "path": "/first"},
            {"op": "test", "path": "/data/none", "value": null},
        ]),
        &json!({
            "data": {"x": "2", "y": "3"}, "metadata": {"labels": {}}, "list": [9, 2, 7],
            "copy": {"x": "2", "y": "3"}, "first": 1,
        }),
    );
    check(
        json!({"a/b": 1, "m~n": 2, "~1": 3}),
        json!([
            {"op": "remove", "path": "/a~1b"},
            {"op": "remove", "path": "/m~0n"},
            {"op": "remove", "path": "/~01"},
        ]),
        &json!({}),
    );
    check(json!({"a": 1}), json!([]), &json!({"a": 1}));
    check(json!({"a": 1}), json!([{"op": "test", "path": "/a", "value": 1.0}]), &json!({"a": 1}));
}

#[test]
fn a_json_patch_that_does_not_fit_is_unprocessable() {
    for operation in [
        json!({"op": "test", "path": "/data/x", "value": "nope"}),
        json!({"op": "remove", "path": "/data/none"}),
        json!({"op": "jump", "path": "/data"}),
        json!({"path": "/data"}),
        json!({"op": "remove"}),
        json!({"op": "remove", "path": ""}),
        json!({"op": "add", "path": "", "value": {}}),
        json!({"op": "add", "path": "/data/y"}),
        json!({"op": "add", "path": "/list/3", "value": 1}),
        json!({"op": "add", "path": "/list/-1", "value": 1}),
        json!({"op": "add", "path": "/list/01", "value": 1}),
        json!({"op": "add", "path": "/list/99999999999999999999", "value": 1}),
        json!({"op": "remove", "path": "/list/-"}),
        json!({"op": "remove", "path": "/list/2"}),
        json!({"op": "add", "path": "/data/x/y", "value": 1}),
        json!({"op": "move", "from": "/none", "path": "/a"}),
        json!({"op": "copy", "path": "/a"}),
        json!({"op": "move", "from": "/data", "path": "/data/x"}),
        json!(null),
    ] {
        let mut object = json!({"data": {"x": "1"}, "list": [1, 2]});
        let error = super::json(&mut object, json!([operation])).unwrap_err();
        let status = Status::from(error);
        assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"), "{operation}");
        assert_eq!(
            status.message,
            "the server rejected our request due to an error in our request"
        );
        assert!(status.details.is_some());
    }
}

#[test]
fn an_invalid_json_patch_is_malformed() {
    for (patch, message) in [
        (
            json!({"op": "x"}),
            "error decoding patch: json: cannot unmarshal object into Go value of type \
             []handlers.jsonPatchOp",
        ),
        (
            json!([1]),
            "error decoding patch: json: cannot unmarshal number into Go value of type \
             handlers.jsonPatchOp",
        ),
        (
            json!([{"op": 1}]),
            "error decoding patch: json: cannot unmarshal number into Go struct field \
             jsonPatchOp.op of type string",
        ),
    ] {
        let status = Status::from(super::json(&mut json!({}), patch).unwrap_err());
        assert_eq!((status.code, status.reason.as_str()), (400, "BadRequest"));
        assert_eq!(status.message, message);
    }
}

#[test]
fn too_many_operations_are_too_large() {
    let operation = json!({"op": "add", "path": "/a", "value": 1});
    let patch = |n| Value::Array(vec![operation.clone(); n]);
    super::json(&mut json!({}), patch(10_000)).unwrap();
    let status = Status::from(super::json(&mut json!({}), patch(10_001)).unwrap_err());
    assert_eq!((status.code, status.reason.as_str()), (413, "RequestEntityTooLarge"));
    assert_eq!(
        status.message,
        "Request entity too large: The allowed maximum operations in a JSON patch is 10000, got \
         10001"
    );
}

#[test]
fn copies_cannot_blow_an_object_up() {
    let doubling: Vec<Value> =
        (0..60).map(|n| json!({"op": "copy", "from": "/a", "path": format!("/a/{n}")})).collect();
    let mut object = json!({"a": {"x": "0123456789"}});
    let error = super::json(&mut object, Value::Array(doubling)).unwrap_err();
    assert!(matches!(error, Error::Unprocessable(_)));
    assert!(object.to_string().len() < 8 * 1024 * 1024);
    let mut object = json!({"a": "x".repeat(1024 * 1024)});
    let copies: Vec<Value> =
        (0..8).map(|n| json!({"op": "copy", "from": "/a", "path": format!("/b{n}")})).collect();
    assert!(super::json(&mut object, Value::Array(copies)).is_err());
}

#[test]
fn nothing_gets_deeper_than_the_limit() {
    let nest = |levels| (0..levels).fold(json!(1), |value, _| json!({ "a": value }));
    let path = |steps| "/a".repeat(steps);
    let patch = |op: &str, steps, value| json!([{"op": op, "path": path(steps), "value": value}]);
    super::json(&mut nest(511), patch("replace", 511, json!({}))).unwrap();
    assert!(super::json(&mut nest(511), patch("replace", 511, json!({"a": {}}))).is_err());
    assert!(super::json(&mut json!({}), patch("add", 1, nest(512))).is_err());
    let mut object = json!({"a": nest(300), "b": nest(300)});
    let moved = json!([{"op": "move", "from": "/b", "path": path(300)}]);
    assert!(super::json(&mut object, moved).is_err());
}

#[track_caller]
fn check_merge(mut found: Value, patch: Value, expected: &Value) {
    merge(&mut found, patch).unwrap();
    assert_eq!(&found, expected);
}

#[test]
fn merge_patches_apply() {
    check_merge(json!({"a": "b"}), json!({"a": "c"}), &json!({"a": "c"}));
    check_merge(json!({"a": "b", "b": 1}), json!({"a": null}), &json!({"b": 1}));
    check_merge(json!({"a": ["b"]}), json!({"a": "c"}), &json!({"a": "c"}));
    check_merge(json!({"a": "c"}), json!({"a": ["b"]}), &json!({"a": ["b"]}));
    check_merge(
        json!({"a": {"b": "c"}}),
        json!({"a": {"b": "d", "c": null}}),
        &json!({"a": {"b": "d"}}),
    );
    check_merge(json!({"a": [{"b": "c"}]}), json!({"a": [1]}), &json!({"a": [1]}));
    check_merge(json!({"e": null}), json!({"a": 1}), &json!({"e": null, "a": 1}));
    check_merge(json!({}), json!({"a": {"bb": {"ccc": null}}}), &json!({"a": {"bb": {}}}));
}

#[test]
fn an_invalid_merge_patch_is_malformed() {
    let status = Status::from(merge(&mut json!({}), json!([1])).unwrap_err());
    assert_eq!(status.code, 400);
    assert_eq!(
        status.message,
        "error decoding patch: json: cannot unmarshal array into Go value of type \
         map[string]interface {}"
    );
    assert_eq!(Status::from(merge(&mut json!({}), json!(null)).unwrap_err()).code, 400);
}

#[test]
fn patch_types_are_read_from_the_content_type() {
    let builtin = Kind::default();
    let custom = Kind { custom: true, ..Kind::default() };
    let strategic = "application/strategic-merge-patch+json; charset=utf-8";
    assert_eq!(PatchType::parse(strategic, &builtin).unwrap(), PatchType::Strategic);
    assert_eq!(
        PatchType::parse("application/merge-patch+json", &custom).unwrap(),
        PatchType::Merge
    );
    let status = PatchType::parse("application/json", &builtin).unwrap_err();
    assert_eq!((status.code, status.message.as_str()), (415, "415: Unsupported Media Type"));
    assert!(status.details.is_some());
    let status = PatchType::parse(strategic, &custom).unwrap_err();
    assert!(status.message.starts_with("the body of the request was in an unknown format"));
}

fn tree() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![Just(json!(null)), Just(json!(1)), Just(json!("x"))];
    leaf.prop_recursive(3, 20, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::btree_map("[ab~/]", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Ten thousand inserts at the front of a list of a million elements would move 10^10 of them.
#[test]
fn inserts_into_long_lists_are_limited() {
    let object = json!({"l": vec![Value::from(1); 1_000_000]});
    for (op, from) in [("add", "/x"), ("remove", "/x"), ("move", "/l/0")] {
        let path = if op == "move" { "/l/500000" } else { "/l/0" };
        let operation = json!({"op": op, "path": path, "from": from, "value": 2});
        let mut ours = object.clone();
        let few = Value::Array(vec![operation.clone(); 10]);
        super::json(&mut ours, few).unwrap();
        let many = Value::Array(vec![operation; 5_000]);
        let refused = super::json(&mut ours, many).unwrap_err();
        assert!(refused.to_string().contains("too many elements"), "{refused}");
    }
    // At the end nothing moves.
    let operation = json!({"op": "add", "path": "/l/-", "value": 2});
    let mut ours = object;
    super::json(&mut ours, Value::Array(vec![operation; 10_000])).unwrap();
}

proptest! {
    /// The library is the model: every patch that it accepts has the same result here. Its rollback of
    /// failed patches can panic, so failing patches are skipped.
    #[test]
    fn json_patches_agree_with_the_library(
        object in prop::collection::btree_map("[ab]", tree(), 0..3),
        steps in prop::collection::vec(
            (0usize..6, "(/(a|b|0|1|-|~0|~1)){1,3}", "(/(a|b|0|1)){1,3}", tree()), 0..4),
    ) {
        let ops = ["add", "remove", "replace", "move", "copy", "test"];
        let patch: Vec<Value> = steps
            .iter()
            .map(|(op, path, from, value)| {
                json!({"op": ops[*op], "path": path, "from": from, "value": value})
            })
            .collect();
        let object = Value::Object(object.into_iter().collect());
        let (mut ours, mut theirs) = (object.clone(), serde_json::Value::from(object));
        let found = super::json(&mut ours, Value::Array(patch.clone()));
        let library: json_patch::Patch = headwater_json::from_value(&Value::Array(patch)).unwrap();
        if json_patch::patch_unsafe(&mut theirs, &library).is_ok() {
            prop_assert!(found.is_ok(), "{:?}", found);
            prop_assert_eq!(ours, theirs);
        }
    }

    #[test]
    fn merge_patches_agree_with_the_library(object in tree(), patch in tree()) {
        let (mut ours, mut theirs) = (object.clone(), serde_json::Value::from(object));
        if merge(&mut ours, patch.clone()).is_ok() {
            json_patch::merge(&mut theirs, &patch.into());
            prop_assert_eq!(ours, theirs);
        }
    }
}
