use std::collections::BTreeSet;

use headwater_json::{Map, json};
use proptest::prelude::*;

use super::apply::LAST_APPLIED;
use super::fields::FieldSet;
use super::stored::Meeting;
use super::*;
use headwater_api::kind::{Kind, builtin};

fn kind(group: &str, name: &str) -> Kind {
    builtin().into_iter().find(|kind| kind.group == group && kind.kind == name).unwrap()
}

fn config_maps() -> Kind {
    kind("", "ConfigMap")
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

fn by(manager: &str, seconds: i64) -> Write<'_> {
    Write { manager, subresource: "", api_version: "v1", now: at(seconds), ignored: &[] }
}

fn structure(kind: &Kind) -> Builtin {
    Builtin::of(kind).unwrap()
}

/// The stored object after a write, with server-set fields.
fn stored(mut object: Value) -> Value {
    object["metadata"]["uid"] = "u".into();
    object["metadata"]["creationTimestamp"] = "2024-01-02T03:04:05Z".into();
    object
}

fn created(kind: &Kind, object: Value, write: &Write<'_>) -> Value {
    let mut object = stored(object);
    track_update(None, &mut object, write, structure(kind)).unwrap();
    unpack(&mut object);
    object
}

fn updated(kind: &Kind, old: &Value, change: impl FnOnce(&mut Value), write: &Write<'_>) -> Value {
    let mut new = old.clone();
    change(&mut new);
    track_update(Some(old), &mut new, write, structure(kind)).unwrap();
    unpack(&mut new);
    new
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "a test makes a configuration where it applies it"
)]
fn applied(
    kind: &Kind,
    live: Option<&Value>,
    config: Value,
    write: &Write<'_>,
    force: bool,
) -> Result<Value, Error> {
    apply(live, &config, write, force, kind, structure(kind)).map(stored)
}

/// The entries as `manager operation time fields`, with relative times.
fn entries(object: &Value) -> Vec<(String, String, Option<i64>, Value)> {
    let mut object = object.clone();
    unpack(&mut object);
    let list = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    list.iter()
        .map(|entry| {
            let text = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
            let time = entry["time"]
                .as_str()
                .map(|time| time.parse::<Timestamp>().unwrap().as_second() - 1_700_000_000);
            (text("manager"), text("operation"), time, entry["fieldsV1"].clone())
        })
        .collect()
}

fn fields_of(object: &Value, manager: &str) -> Value {
    let found = entries(object).into_iter().find(|(name, ..)| name == manager);
    found.map_or(Value::Null, |(.., fields)| fields)
}

fn config_map(data: Value) -> Value {
    let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    object["data"] = data;
    object
}

#[test]
fn a_create_owns_what_it_sets() {
    let kind = config_maps();
    let mut object = config_map(json!({"x": "1"}));
    object["metadata"]["labels"] = json!({"l": "1"});
    let object = created(&kind, object, &by("probe", 0));
    assert_eq!(
        object["metadata"]["managedFields"],
        json!([{
            "manager": "probe", "operation": "Update", "apiVersion": "v1",
            "time": "2023-11-14T22:13:20Z", "fieldsType": "FieldsV1",
            "fieldsV1": {
                "f:data": {".": {}, "f:x": {}},
                "f:metadata": {"f:labels": {".": {}, "f:l": {}}},
            },
        }])
    );
    let empty = created(&kind, json!({"metadata": {"name": "b"}}), &by("probe", 0));
    assert_eq!(empty["metadata"].get("managedFields"), None);
}

#[test]
fn structs_that_are_always_present_have_no_manager() {
    let kind = Types::review();
    let write = Write { api_version: "authorization.k8s.io/v1", ..by("probe", 0) };
    let mut object = json!({
        "metadata": {},
        "spec": {"resourceAttributes": {"namespace": "default", "resource": "pods", "verb": "list"}},
        "status": {"allowed": false},
    });
    track_update(None, &mut object, &write, kind).unwrap();
    assert_eq!(
        fields_of(&object, "probe"),
        json!({"f:spec": {"f:resourceAttributes": {
            ".": {}, "f:namespace": {}, "f:resource": {}, "f:verb": {}}}})
    );
}

struct Types;

impl Types {
    fn review() -> Builtin {
        let types = crate::types::Types::builtin();
        Builtin::root(types.named("authorization/v1.SelfSubjectAccessReview").unwrap())
    }
}

/// S2.27
#[test]
fn lists_of_a_pod_are_owned_element_by_element() {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "finalizers": ["x.io/f"]},
        "spec": {
            "containers": [{
                "name": "c", "image": "i", "args": ["a"], "resources": {},
                "ports": [{"containerPort": 80, "protocol": "TCP"}],
            }],
            "nodeSelector": {"a": "b"}, "tolerations": [{"key": "k"}],
        },
        "status": {},
    });
    let object = created(&kind("", "Pod"), pod, &by("m", 0));
    assert_eq!(
        fields_of(&object, "m"),
        json!({
            "f:metadata": {"f:finalizers": {".": {}, "v:\"x.io/f\"": {}}},
            "f:spec": {
                "f:containers": {"k:{\"name\":\"c\"}": {
                    ".": {}, "f:name": {}, "f:image": {}, "f:args": {}, "f:resources": {},
                    "f:ports": {".": {}, "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {
                        ".": {}, "f:containerPort": {}, "f:protocol": {}}},
                }},
                "f:nodeSelector": {}, "f:tolerations": {},
            },
        })
    );
}

/// S2.26
#[test]
fn an_update_takes_the_fields_it_changes() {
    let kind = config_maps();
    let first = created(&kind, config_map(json!({"x": "1", "y": "1", "z": "1"})), &by("m1", 0));
    let second = updated(
        &kind,
        &first,
        |object| {
            object["data"]["x"] = "2".into();
            object["data"].as_object_mut().unwrap().remove("y");
        },
        &by("m2", 5),
    );
    assert_eq!(
        entries(&second),
        [
            ("m1".into(), "Update".into(), Some(0), json!({"f:data": {".": {}, "f:z": {}}})),
            ("m2".into(), "Update".into(), Some(5), json!({"f:data": {"f:x": {}}})),
        ]
    );
    let same = updated(&kind, &second, |_| {}, &by("m3", 9));
    assert_eq!(same, second);
    let removed = updated(
        &kind,
        &second,
        |object| drop(object["data"].as_object_mut().unwrap().remove("x")),
        &by("m3", 9),
    );
    let names: Vec<String> = entries(&removed).into_iter().map(|(name, ..)| name).collect();
    assert_eq!(names, ["m1"], "a manager without fields is gone, and removing owns nothing");
}

/// S2.28
#[test]
fn writes_through_a_subresource_are_entries_of_their_own() {
    let kind = kind("", "Namespace");
    let object = json!({"metadata": {"name": "n", "labels": {"a": "b"}}, "spec": {}, "status": {}});
    let first = created(&kind, object, &by("m", 0));
    let write = Write { subresource: "status", ..by("m", 1) };
    let second =
        updated(&kind, &first, |object| object["status"]["phase"] = "Active".into(), &write);
    let entry = &second["metadata"]["managedFields"][1];
    assert_eq!(entry["subresource"], "status");
    assert_eq!(entry["fieldsV1"], json!({"f:status": {"f:phase": {}}}));
}

/// S2.28
#[test]
fn too_many_updaters_become_ancient() {
    let kind = config_maps();
    let mut object = created(&kind, config_map(json!({"x": "0"})), &by("m00", 0));
    for n in 1..15 {
        let manager = format!("m{n:02}");
        object = updated(
            &kind,
            &object,
            |object| object["data"][format!("k{n}")] = "1".into(),
            &by(&manager, n),
        );
    }
    let found = entries(&object);
    assert_eq!(found.len(), 10);
    assert_eq!(found[0].0, "ancient-changes");
    assert!(
        found[0].3["f:data"].get("f:x").is_some() && found[0].3["f:data"].get("f:k5").is_some()
    );
    assert_eq!(found[9].0, "m14");
}

/// S2.28
#[test]
fn entries_of_a_client_are_used_unless_they_are_invalid() {
    let kind = config_maps();
    let first = created(&kind, config_map(json!({"x": "1"})), &by("m1", 0));
    let send = |managed: Value| {
        let managed = move |object: &mut Value| object["metadata"]["managedFields"] = managed;
        updated(&kind, &first, managed, &by("m2", 1))
    };
    for reset in [json!([]), json!([{}])] {
        assert_eq!(send(reset)["metadata"].get("managedFields"), None);
    }
    for broken in [
        json!(null),
        json!("x"),
        json!([1]),
        json!([{"operation": "Update"}]),
        json!([{"manager": "e", "operation": "Eat", "apiVersion": "v1", "fieldsType": "FieldsV1"}]),
        json!([{"manager": "e", "operation": "Update", "apiVersion": "v1",
                "fieldsType": "FieldsV1", "fieldsV1": {"x": {}}}]),
        json!([{"manager": "e", "operation": "Update", "apiVersion": "v1",
                "fieldsType": "FieldsV1", "fieldsV1": {"k:[": {}}}]),
    ] {
        assert_eq!(send(broken.clone()), first, "{broken}");
    }
    let sent = json!([{"manager": "other", "operation": "Apply", "apiVersion": "v1",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:metadata": {"f:ownerReferences": {"k:{ \"uid\" : \"u\" }": {}}}}}]);
    let fields = fields_of(&send(sent), "other");
    assert_eq!(fields, json!({"f:metadata": {"f:ownerReferences": {"k:{\"uid\":\"u\"}": {}}}}));
}

/// S2.24
#[test]
fn applies_create_give_up_conflict_and_force() {
    let kind = config_maps();
    let first =
        applied(&kind, None, config_map(json!({"x": "1", "y": "1"})), &by("m1", 0), false).unwrap();
    assert_eq!(first["data"], json!({"x": "1", "y": "1"}));
    assert_eq!(
        entries(&first),
        [("m1".into(), "Apply".into(), Some(0), json!({"f:data": {"f:x": {}, "f:y": {}}}))]
    );
    let second =
        applied(&kind, Some(&first), config_map(json!({"x": "1"})), &by("m1", 1), false).unwrap();
    assert_eq!(second["data"], json!({"x": "1"}));
    assert_eq!(
        entries(&second),
        [("m1".into(), "Apply".into(), Some(1), json!({"f:data": {"f:x": {}}}))]
    );
    let wanted = config_map(json!({"x": "2"}));
    let error = applied(&kind, Some(&second), wanted.clone(), &by("m2", 2), false).unwrap_err();
    let status = Status::from(error);
    assert_eq!((status.code, status.reason.as_str()), (409, "Conflict"));
    assert_eq!(status.message, "Apply failed with 1 conflict: conflict with \"m1\": .data.x");
    let cause = &status.details.unwrap().causes[0];
    assert_eq!(
        (cause.field.as_str(), cause.message.as_str(), cause.reason.as_str()),
        (".data.x", "conflict with \"m1\"", "FieldManagerConflict")
    );
    let forced = applied(&kind, Some(&second), wanted, &by("m2", 3), true).unwrap();
    assert_eq!(forced["data"], json!({"x": "2"}));
    assert_eq!(
        entries(&forced),
        [("m2".into(), "Apply".into(), Some(3), json!({"f:data": {"f:x": {}}}))]
    );
}

/// S2.26
#[test]
fn an_apply_without_changes_keeps_the_time() {
    let kind = config_maps();
    let config = || config_map(json!({"x": "1"}));
    let first = applied(&kind, None, config(), &by("m1", 0), false).unwrap();
    let again = applied(&kind, Some(&first), config(), &by("m1", 9), false).unwrap();
    assert_eq!(again, first);
    let shared = applied(&kind, Some(&first), config(), &by("m2", 9), false).unwrap();
    let times: Vec<_> =
        entries(&shared).into_iter().map(|(name, _, time, _)| (name, time)).collect();
    assert_eq!(times, [("m2".to_owned(), None), ("m1".to_owned(), Some(0))]);
    let given_up =
        applied(&kind, Some(&shared), config_map(json!({})), &by("m1", 10), false).unwrap();
    assert_eq!(given_up["data"], json!({"x": "1"}), "m2 owns it still");
    let gone =
        applied(&kind, Some(&given_up), config_map(json!({})), &by("m2", 11), false).unwrap();
    // Nothing remains of it; decoding drops the null.
    assert_eq!(gone.get("data"), Some(&headwater_json::Value::Null));
}

#[test]
fn conflicts_are_listed_by_manager() {
    let kind = config_maps();
    let config = config_map(json!({"x": "1", "y": "1"}));
    let first = applied(&kind, None, config, &by("m1", 0), false).unwrap();
    let second = updated(&kind, &first, |object| object["data"]["z"] = "1".into(), &by("m0", 1));
    let config = config_map(json!({"x": "2", "y": "2", "z": "2"}));
    let error = applied(&kind, Some(&second), config, &by("m2", 2), false).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Apply failed with 3 conflicts: conflicts with \"m0\" using v1:\n- .data.z\nconflicts \
         with \"m1\":\n- .data.x\n- .data.y"
    );
}

/// S2.28
#[test]
fn fields_before_the_first_apply_get_their_own_manager() {
    let kind = config_maps();
    let live = stored(config_map(json!({"x": "1", "y": "1"})));
    let same = applied(&kind, Some(&live), config_map(json!({"x": "1"})), &by("m", 5), false);
    let same = same.unwrap();
    assert_eq!(
        entries(&same),
        [
            ("m".into(), "Apply".into(), None, json!({"f:data": {"f:x": {}}})),
            (
                "before-first-apply".into(),
                "Update".into(),
                Some(5),
                json!({"f:data": {".": {}, "f:x": {}, "f:y": {}}})
            ),
        ]
    );
    let error = applied(&kind, Some(&live), config_map(json!({"x": "2"})), &by("m", 5), false);
    assert!(error.unwrap_err().to_string().contains("\"before-first-apply\" using v1: .data.x"));
    let mut untracked = live.clone();
    untracked["data"]["x"] = "3".into();
    track_update(Some(&live), &mut untracked, &by("m", 6), structure(&kind)).unwrap();
    assert_eq!(untracked["metadata"].get("managedFields"), None);
}

fn deployment(containers: Value) -> Value {
    let mut object = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"selector": {"matchLabels": {"a": "b"}},
                 "template": {"metadata": {"labels": {"a": "b"}}, "spec": {}}},
    });
    object["spec"]["template"]["spec"]["containers"] = containers;
    object
}

fn containers(object: &Value) -> Value {
    object["spec"]["template"]["spec"]["containers"].clone()
}

#[test]
fn keyed_lists_merge_element_by_element() {
    let kind = kind("apps", "Deployment");
    let apps = |manager, seconds| Write { api_version: "apps/v1", ..by(manager, seconds) };
    let config =
        deployment(json!([{"name": "c", "image": "c:1", "ports": [{"containerPort": 80}]}]));
    let first = applied(&kind, None, config.clone(), &apps("m1", 0), false).unwrap();
    // The defaulted protocol has no manager, and it is still the same port.
    let mut first = first;
    let port = "/spec/template/spec/containers/0/ports/0/protocol";
    first["spec"]["template"]["spec"]["containers"][0]["ports"][0]["protocol"] = "TCP".into();
    let again = applied(&kind, Some(&first), config, &apps("m1", 1), false).unwrap();
    assert_eq!(again, first);
    assert_eq!(again.pointer(port), Some(&json!("TCP")));
    let sidecar = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"template": {"spec": {"containers": [{"name": "s", "image": "s:1"}]}}},
    });
    let both = applied(&kind, Some(&first), sidecar, &apps("m2", 2), false).unwrap();
    let names = |object: &Value| -> Vec<String> {
        let list = containers(object);
        list.as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&both), ["c", "s"]);
    let nothing = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}});
    let one = applied(&kind, Some(&both), nothing, &apps("m2", 3), false).unwrap();
    assert_eq!(names(&one), ["c"]);
    assert_eq!(entries(&one).len(), 1);
    let replaced = deployment(json!([{"name": "x", "image": "x:1"}]));
    let replaced = applied(&kind, Some(&both), replaced, &apps("m1", 4), false).unwrap();
    assert_eq!(names(&replaced), ["s", "x"], "m1's own container went, m2's stayed");
}

#[test]
fn the_order_of_a_configuration_is_kept() {
    let kind = kind("apps", "Deployment");
    let write = |manager, n| Write { api_version: "apps/v1", ..by(manager, n) };
    let list = |names: &[&str]| -> Value {
        names.iter().map(|name| json!({"name": name, "image": "i"})).collect()
    };
    let first = applied(&kind, None, deployment(list(&["a", "b", "c"])), &write("m", 0), false);
    let config = deployment(list(&["c", "x", "a"]));
    let second = applied(&kind, Some(&first.unwrap()), config, &write("n", 1), false).unwrap();
    assert_eq!(containers(&second), list(&["b", "c", "x", "a"]));
}

#[test]
fn sets_are_owned_value_by_value() {
    let kind = config_maps();
    let config = |finalizers: Value| {
        json!({"apiVersion": "v1", "kind": "ConfigMap",
               "metadata": {"name": "a", "finalizers": finalizers}})
    };
    let first = applied(&kind, None, config(json!(["x/1"])), &by("m1", 0), false).unwrap();
    let both = applied(&kind, Some(&first), config(json!(["x/2"])), &by("m2", 1), false).unwrap();
    assert_eq!(both["metadata"]["finalizers"], json!(["x/1", "x/2"]));
    assert_eq!(fields_of(&both, "m2"), json!({"f:metadata": {"f:finalizers": {"v:\"x/2\"": {}}}}));
    let one = applied(&kind, Some(&both), config(json!([])), &by("m1", 2), false).unwrap();
    assert_eq!(one["metadata"]["finalizers"], json!(["x/2"]));
}

#[test]
fn a_default_of_a_custom_kind_has_no_manager() {
    let kind = Kind {
        group: "example.com".into(),
        version: "v1".into(),
        kind: "Widget".into(),
        custom: true,
        ..Kind::default()
    };
    let write = |manager| Write { api_version: "example.com/v1", ..by(manager, 0) };
    let config = |spec: Value| {
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "a"},
               "spec": spec})
    };
    let first = apply(None, &config(json!({"size": 1})), &write("m1"), false, &kind, Loose::Root);
    let mut first = stored(first.unwrap());
    assert_eq!(fields_of(&first, "m1"), json!({"f:spec": {".": {}, "f:size": {}}}));
    first["spec"]["colour"] = "blue".into();
    let config = config(json!({"colour": "red"}));
    let second = apply(Some(&first), &config, &write("m2"), false, &kind, Loose::Root).unwrap();
    assert_eq!(second["spec"], json!({"colour": "red", "size": 1}));
}

#[test]
fn a_configuration_must_fit_its_type() {
    let kind = kind("apps", "Deployment");
    let write = Write { api_version: "apps/v1", ..by("m", 0) };
    let check = |config: Value, message: &str| {
        let status = Status::from(applied(&kind, None, config, &write, false).unwrap_err());
        assert_eq!((status.code, status.message.as_str()), (400, message));
    };
    check(json!({"metadata": {"name": "a"}}), "invalid object type: /, Kind=");
    check(
        json!({"apiVersion": "v1", "kind": "Deployment"}),
        "invalid object type: /v1, Kind=Deployment",
    );
    let with = |key: &str, value: Value| {
        let mut object = deployment(json!([{"name": "c"}]));
        object[key] = value;
        object
    };
    check(
        with("metadata", json!({"name": "d", "managedFields": []})),
        "metadata.managedFields must be nil",
    );
    let typed = "failed to create typed patch object (/d; apps/v1, Kind=Deployment): ";
    check(
        with("spec", json!({"unknown": 1})),
        &format!("{typed}.spec.unknown: field not declared in schema"),
    );
    check(
        with("spec", json!({"replicas": "3"})),
        &format!("{typed}.spec.replicas: expected numeric (int or float), got string"),
    );
    check(
        deployment(json!([{"name": "c"}, {"name": "c"}])),
        &format!("{typed}.spec.template.spec.containers: duplicate entries for key [name=\"c\"]"),
    );
    check(
        deployment(json!([{"image": "c"}])),
        &format!(
            "{typed}.spec.template.spec.containers: element 0: associative list with keys has an \
             element that omits all key fields [\"name\"] (and doesn't have default values for \
             any key fields)"
        ),
    );
}

/// S2.27
#[test]
fn ignored_members_have_no_manager() {
    let kind = kind("apps", "Deployment");
    let write = Write { api_version: "apps/v1", ignored: &["status"], ..by("m", 0) };
    let mut config = deployment(json!([{"name": "c"}]));
    config["status"] = json!({"replicas": 3});
    let object = applied(&kind, None, config, &write, false).unwrap();
    assert_eq!(fields_of(&object, "m").get("f:status"), None);
}

#[test]
fn kubectl_may_take_over_fields_of_client_side_apply() {
    let kind = config_maps();
    let last = config_map(json!({"x": "1"})).to_string();
    let mut object = config_map(json!({"x": "1"}));
    object["metadata"]["annotations"] = json!({LAST_APPLIED: last});
    let live = created(&kind, object, &by("kubectl-client-side-apply", 0));
    let config = || config_map(json!({"x": "2"}));
    let error = applied(&kind, Some(&live), config(), &by("other", 1), false).unwrap_err();
    assert!(matches!(error, Error::Conflicts(_)));
    let taken = applied(&kind, Some(&live), config(), &by("kubectl", 1), false).unwrap();
    assert_eq!(taken["data"]["x"], "2");
    let annotation = taken["metadata"]["annotations"][LAST_APPLIED].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(annotation).unwrap(), config());
    let edited = updated(&kind, &live, |object| object["data"]["x"] = "3".into(), &by("edit", 1));
    let error = applied(&kind, Some(&edited), config(), &by("kubectl", 2), false).unwrap_err();
    assert!(matches!(error, Error::Conflicts(_)), "somebody changed it since");
}

/// A set in its simplest form: the paths of its members.
fn model(set: &FieldSet<'_>) -> BTreeSet<String> {
    set.paths().list.into_iter().collect()
}

fn set() -> impl Strategy<Value = Value> {
    let leaf = Just(Value::Object(Map::new()));
    let node = leaf.prop_recursive(3, 24, 4, |inner| {
        prop::collection::btree_map("(f:[abc]|v:[12]|\\.)", inner, 1..4).prop_map(|mut members| {
            if members.len() == 1 {
                members.remove(".");
            }
            if members.contains_key(".") {
                members.insert(".".into(), json!({}));
            }
            Value::Object(members.into_iter().collect())
        })
    });
    node.prop_map(|node| match node {
        Value::Object(mut members) => {
            members.remove(".");
            Value::Object(members)
        }
        _ => json!({}),
    })
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![Just(json!(null)), Just(json!(1)), Just(json!("x")), Just(json!(true))];
    leaf.prop_recursive(5, 40, 4, |inner| {
        let key = prop_oneof![
            Just("metadata".to_owned()),
            Just("spec".to_owned()),
            Just("containers".to_owned()),
            Just("name".to_owned()),
            Just("ports".to_owned()),
            Just("containerPort".to_owned()),
            Just("labels".to_owned()),
            Just("finalizers".to_owned()),
            Just("volumes".to_owned()),
            Just("managedFields".to_owned()),
            Just("status".to_owned()),
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::btree_map(key, inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Pods, most of them valid: lists with and without keys, duplicate and unsorted elements, strings
/// that need escapes, and unknown members.
fn pod() -> impl Strategy<Value = Value> {
    let text = "[a-c\"\\\\é<]{0,3}";
    let texts = prop::collection::btree_map(text, text, 0..4);
    let port = (0..3_i32, prop::option::of(prop::sample::select(vec!["TCP", "UDP"]))).prop_map(
        |(number, protocol)| match protocol {
            Some(protocol) => json!({"containerPort": number, "protocol": protocol}),
            None => json!({"containerPort": number}),
        },
    );
    let variable = (text, value()).prop_map(|(name, value)| json!({"name": name, "value": value}));
    let container = (
        text,
        prop::collection::vec(port, 0..4),
        prop::collection::vec(prop_oneof![9 => variable, 1 => value()], 0..4),
        prop::option::of(value()),
    )
        .prop_map(|(name, ports, env, strange)| {
            let mut container = json!({"name": name, "ports": ports, "env": env});
            if let Some(strange) = strange {
                container["resources"] = strange.clone();
                container["unheardOf"] = strange;
            }
            container
        });
    let status = prop_oneof![Just(json!({})), Just(json!({"phase": "Pending"})), value()];
    (texts, prop::collection::vec(text, 0..4), prop::collection::vec(container, 0..4), status)
        .prop_map(|(labels, finalizers, containers, status)| {
            json!({
                "apiVersion": "v1", "kind": "Pod", "status": status,
                "metadata": {"name": "p", "labels": labels, "finalizers": finalizers},
                "spec": {"containers": containers, "nodeName": "n", "tolerations": [{"key": "a"}]},
            })
        })
}

/// The fields of a configuration's manager.
fn set_of<S: Structure>(config: &Value, ignored: &[&str], structure: S) -> String {
    let mut text = Vec::new();
    compare::fields_of_object(config, structure).write(&mut text);
    let mut set: Value = serde_json::from_slice(&text).unwrap();
    let members = set.as_object_mut().unwrap();
    for name in ["apiVersion", "kind"].iter().chain(ignored) {
        members.remove(&format!("f:{name}"));
    }
    if let Some(Value::Object(metadata)) = members.get_mut("f:metadata") {
        metadata.remove(".");
        for name in SYSTEM_METADATA {
            metadata.remove(&format!("f:{name}"));
        }
        if metadata.is_empty() {
            members.remove("f:metadata");
        }
    }
    let mut text = Vec::new();
    push_value(&mut text, &set);
    String::from_utf8(text).unwrap()
}

/// The same, as the entry of an apply has it.
fn entry_of<S: Structure>(config: &Value, ignored: &[&str], structure: S) -> String {
    let mut fields = compare::fields_of_object(config, structure);
    ignored.iter().for_each(|member| fields.remove_field(member));
    let mut text = Vec::new();
    fields.without_system_fields().write(&mut text);
    String::from_utf8(text).unwrap()
}

proptest! {
    #[test]
    fn what_an_applier_owns_is_what_its_configuration_has(
        config in prop_oneof![3 => pod(), 1 => value()],
        with_status: bool,
    ) {
        let ignored: &[&str] = if with_status { &[] } else { &["status"] };
        for kind in [kind("", "Pod"), kind("apps", "Deployment")] {
            let structure = Builtin::of(&kind).unwrap();
            // For example duplicate elements, which an apply rejects earlier.
            if merge::validate(&config, structure).is_ok() {
                let found = entry_of(&config, ignored, structure);
                prop_assert_eq!(found, set_of(&config, ignored, structure));
            }
        }
        if config.is_object() {
            let found = entry_of(&config, ignored, Loose::Root);
            prop_assert_eq!(found, set_of(&config, ignored, Loose::Root));
        }
    }

    #[test]
    fn sets_behave_like_sets_of_paths(a in set(), b in set()) {
        let (one, other) = (FieldSet::read(&a).unwrap(), FieldSet::read(&b).unwrap());
        let (x, y) = (model(&one), model(&other));
        let mut found = one.clone();
        found.union(other.clone());
        prop_assert_eq!(model(&found), x.union(&y).cloned().collect::<BTreeSet<_>>());
        let mut found = one.clone();
        found.subtract(&other);
        prop_assert_eq!(model(&found), x.difference(&y).cloned().collect::<BTreeSet<_>>());
        let found = one.intersect(&other);
        prop_assert_eq!(model(&found), x.intersection(&y).cloned().collect::<BTreeSet<_>>());
        prop_assert_eq!(one.is_subset(&other), x.is_subset(&y));
        let mut text = Vec::new();
        one.write(&mut text);
        let text = String::from_utf8(text).unwrap();
        prop_assert_eq!(&text, &a.to_string());
        let meeting = FieldSet::meet_stored(&text, &other);
        let (touches, covers) = (!x.is_disjoint(&y), y.is_subset(&x));
        let expected = Meeting { touches, covers, within: x.is_subset(&y) };
        prop_assert_eq!(meeting, Some(expected));
        let mut left = one.clone();
        left.subtract(&other);
        let mut expected = Vec::new();
        left.write(&mut expected);
        let left = FieldSet::subtract_stored(&text, &other);
        prop_assert_eq!(left, Some(String::from_utf8(expected).unwrap()));
        let mut both = one.clone();
        both.union(other.clone());
        let mut expected = Vec::new();
        both.write(&mut expected);
        let both = FieldSet::union_stored(&text, &other);
        let expected = (text != "{}").then(|| String::from_utf8(expected).unwrap());
        prop_assert_eq!(both, expected);
        prop_assert_eq!(FieldSet::stored(&text), Some(one));
    }

    #[test]
    fn no_object_is_too_strange_to_track(old in value(), new in value(), config in value()) {
        let kind = kind("", "Pod");
        let mut tracked = new.clone();
        track_update(Some(&old), &mut tracked, &by("m", 0), structure(&kind)).unwrap();
        let mut tracked = new;
        track_update(None, &mut tracked, &by("m", 0), structure(&kind)).unwrap();
        let mut config = config;
        if let Value::Object(members) = &mut config {
            members.insert("apiVersion".into(), "v1".into());
            members.insert("kind".into(), "Pod".into());
        }
        let _ = apply(Some(&old), &config, &by("m", 1), false, &kind, structure(&kind));
        let _ = apply(Some(&tracked), &config, &by("n", 1), true, &kind, structure(&kind));
    }

    #[test]
    fn applies_follow_a_model_of_keys_and_owners(
        steps in prop::collection::vec((0usize..3, prop::collection::btree_map("[a-d]", "[12]", 0..4)), 1..12)
    ) {
        // Every key of `data` has a value and the managers that want it.
        let kind = config_maps();
        let managers = ["m0", "m1", "m2"];
        let mut wants: Vec<std::collections::BTreeMap<String, String>> = vec![Default::default(); 3];
        let mut data: std::collections::BTreeMap<String, String> = Default::default();
        let mut live: Option<Value> = None;
        for (step, (who, wanted)) in (0i64..).zip(&steps) {
            let clash = wanted.iter().any(|(key, value)| {
                data.get(key).is_some_and(|there| there != value)
                    && (0..3).any(|other| other != *who && wants[other].contains_key(key))
            });
            let mut config = config_map(json!(wanted));
            if wanted.is_empty() {
                config.as_object_mut().unwrap().remove("data");
            }
            let result = applied(&kind, live.as_ref(), config, &by(managers[*who], step), false);
            prop_assert_eq!(result.is_err(), clash);
            if let Ok(object) = result {
                let before = std::mem::replace(&mut wants[*who], wanted.clone());
                for key in before.keys() {
                    if !wants.iter().any(|wants| wants.contains_key(key)) {
                        data.remove(key);
                    }
                }
                data.extend(wanted.clone());
                let found = object.get("data").cloned().unwrap_or(json!({}));
                prop_assert_eq!(found, json!(data));
                live = Some(object);
            }
        }
    }
}
