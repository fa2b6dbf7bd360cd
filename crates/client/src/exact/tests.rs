//! The same values and errors as the plain decoder, and vectors without room to spare.

use std::collections::BTreeMap;
use std::fmt::Debug;

use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::core::DynamicObject;
use proptest::prelude::*;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::*;

/// A pod with lists of three and of five, and with arrays that no type keeps among them.
fn pod() -> Value {
    let env: Vec<Value> =
        (0..5).map(|n| json!({"name": format!("E{n}"), "value": "a,[b\\\""})).collect();
    let container = |name: &str| {
        json!({
            "name": name, "image": "web:1", "args": ["a", "b", "c"], "env": env,
            "unknown": [[1, 2], {"deep": [3, [4]]}],
            "ports": [{"containerPort": 80}, {"containerPort": 81}, {"containerPort": 82}],
            "livenessProbe": {"httpGet": {"port": "web", "path": "/"}},
            "readinessProbe": {"tcpSocket": {"port": 80}},
            "resources": {"limits": {"cpu": "1"}},
        })
    };
    let condition = |kind: &str| json!({"type": kind, "status": "True"});
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web-0", "namespace": "shop", "finalizers": ["a/b", "c/d", "e/f"],
            "invented": [], "labels": {"app": "web"}},
        "spec": {
            "containers": [container("a"), container("b"), container("c")],
            "tolerations": [{"key": "a"}, {"key": "b"}, {"key": "c"}],
            "nothing": [{}, [[]]],
            "volumes": [{"name": "a", "emptyDir": {}}, {"name": "b"}, {"name": "c"}],
        },
        "status": {"conditions": (0..5).map(|n| condition(&n.to_string())).collect::<Vec<_>>()},
    })
}

#[track_caller]
fn check_full<T>(what: &str, list: Option<&Vec<T>>, len: usize) {
    let list = list.unwrap_or_else(|| panic!("{what} is missing"));
    assert_eq!((list.len(), list.capacity()), (len, len), "{what}");
}

#[test]
fn the_lists_of_a_decoded_pod_have_no_room_to_spare() {
    for text in [pod().to_string(), serde_json::to_string_pretty(&pod()).unwrap()] {
        let pod: Pod = from_str(&text).unwrap();
        let (spec, status) = (pod.spec.unwrap(), pod.status.unwrap());
        check_full("finalizers", pod.metadata.finalizers.as_ref(), 3);
        check_full("containers", Some(&spec.containers), 3);
        for container in &spec.containers {
            check_full("args", container.args.as_ref(), 3);
            check_full("env", container.env.as_ref(), 5);
            check_full("ports", container.ports.as_ref(), 3);
        }
        check_full("tolerations", spec.tolerations.as_ref(), 3);
        check_full("volumes", spec.volumes.as_ref(), 3);
        check_full("conditions", status.conditions.as_ref(), 5);
    }
}

#[test]
fn an_informer_decodes_with_exact_lists() {
    let pod = <Pod as crate::Cached>::decode(&pod().to_string()).unwrap();
    check_full("containers", pod.spec.map(|spec| spec.containers).as_ref(), 3);
}

/// One of everything that serde can ask for.
#[derive(Debug, Deserialize)]
#[expect(dead_code, reason = "compared as text")]
struct Zoo {
    list: Option<Vec<Zoo>>,
    raw: Option<Box<RawValue>>,
    ignored: Option<IgnoredAny>,
    choice: Option<Choice>,
    any_of: Option<AnyOf>,
    wrapped: Option<Wrapped>,
    pair: Option<(Vec<u8>, Vec<String>)>,
    port: Option<IntOrString>,
    tree: Option<Value>,
    tagged: Option<Tagged>,
    #[serde(flatten)]
    rest: Option<Rest>,
}

#[derive(Debug, Deserialize)]
#[expect(dead_code, reason = "compared as text")]
enum Choice {
    Unit,
    Newtype(Vec<i64>),
    Tuple(Vec<i64>, Vec<Value>),
    Struct { list: Vec<i64> },
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
#[expect(dead_code, reason = "compared as text")]
enum AnyOf {
    Numbers(Vec<i64>),
    Lists(Vec<Vec<Value>>),
    Map(BTreeMap<String, Vec<Value>>),
}

#[derive(Debug, Deserialize)]
#[serde(tag = "kind", content = "list")]
#[expect(dead_code, reason = "compared as text")]
enum Tagged {
    Numbers(Vec<i64>),
    Values(Vec<Value>),
}

#[derive(Debug, Deserialize)]
#[expect(dead_code, reason = "compared as text")]
struct Wrapped(Vec<Value>);

#[derive(Debug, Deserialize)]
#[expect(dead_code, reason = "compared as text")]
struct Rest {
    extra: Vec<Value>,
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

/// Both decoders say the same, to the last word of an error.
#[track_caller]
fn check_same<T: DeserializeOwned + Debug>(text: &str) -> bool {
    let say = |result: Result<T, serde_json::Error>| match result {
        Ok(value) => Ok(format!("{value:?}")),
        Err(error) => Err(error.to_string()),
    };
    let (ours, plain) = (say(from_str(text)), say(serde_json::from_str(text)));
    assert_eq!(ours, plain, "{text}");
    ours.is_ok()
}

#[test]
fn everything_serde_asks_for_is_decoded_like_the_plain_decoder() {
    let good = [
        r#"{"list":[{"raw":[1,[2]],"list":[]},{"ignored":[[],[1]],"list":[{}]}]}"#,
        r#"{"choice":"Unit","list":[{},{}]}"#,
        r#"{"choice":{"Newtype":[1,2,3]},"any_of":[1,2,3],"list":[{}]}"#,
        r#"{"choice":{"Tuple":[[1],[[],{"a":[]}]]},"any_of":[[1],[]]}"#,
        r#"{"choice":{"Struct":{"x":[9],"list":[1]}},"any_of":{"a":[1,2]}}"#,
        r#"{"wrapped":[1,[2]],"pair":[[1,2],["a\n","b"]],"port":80}"#,
        r#"{"port":"web","tree":{"a":[1,{"b":[]}]},"extra":[1,2,3],"more":[[]]}"#,
        r#"{"tagged":{"kind":"Numbers","list":[1,2]}}"#,
        r#"{"tagged":{"list":[{},[]],"kind":"Values"}}"#,
        r#"{"tree":{"$serde_json::private::RawValue":"[1,[2]]"}, "list":[{},{}]}"#,
        r#"{"ignored":"\ud800","list":[{"ignored":1e999}]}"#,
    ];
    for text in good {
        assert!(check_same::<Zoo>(text), "{text}");
    }
    let bad = [
        "",
        "[",
        "[]]",
        "{",
        "null x",
        r#"{"list":[{}"#,
        r#"{"list":[{},]}"#,
        r#"{"list":{}}"#,
        r#"{"pair":[[1],[]],"pair":[[1],[]]}"#,
        r#"{"choice":{"Newtype":[1],"Unit":null}}"#,
        r#"{"choice":{"Tuple":[[1]]}}"#,
        r#"{"wrapped":1}"#,
        r#"{"ignored":[1,2"#,
        r#"{"raw":[}"#,
        r#"{"pair":[[300],[]]}"#,
        r#"{"port":[1]}"#,
        r#"{"any_of":[1,"a"]}"#,
    ];
    for text in bad {
        assert!(!check_same::<Zoo>(text), "{text}");
    }
}

#[test]
fn what_is_too_deep_for_the_plain_decoder_is_too_deep_here() {
    for depth in [100, 126, 127, 128, 129, 10_000] {
        let text = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(check_same::<Value>(&text), depth < 128, "{depth}");
        check_same::<Zoo>(&format!(r#"{{"ignored":{text},"list":[{{}},{{}}]}}"#));
    }
}

#[test]
fn no_more_arrays_are_counted_than_there_is_a_bound_for() {
    let text = format!("[{}[]]", "[],".repeat(2 * ARRAYS_MAX));
    assert_eq!(Arrays::count(&text).counted.len(), ARRAYS_MAX);
    assert_eq!(from_str::<Vec<Vec<u8>>>(&text).unwrap().len(), 2 * ARRAYS_MAX + 1);
    assert!(Arrays::count(&"[".repeat(1_000_000)).counted.len() <= DEPTH_MAX);
}

/// A reader that compares the hint of each array it visits with the elements that come.
struct Honest;

impl<'de> Deserialize<'de> for Honest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Honest, D::Error> {
        deserializer.deserialize_any(Honest)
    }
}

impl<'de> Visitor<'de> for Honest {
    type Value = Honest;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_unit<E: Error>(self) -> Result<Honest, E> {
        Ok(Honest)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Honest, E> {
        Ok(Honest)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Honest, E> {
        Ok(Honest)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Honest, E> {
        Ok(Honest)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Honest, E> {
        Ok(Honest)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Honest, A::Error> {
        let hint = array.size_hint();
        let mut elements = 0;
        while array.next_element::<Honest>()?.is_some() {
            elements += 1;
        }
        match hint == Some(elements) {
            true => Ok(Honest),
            false => Err(A::Error::custom(format!("{elements} elements, said {hint:?}"))),
        }
    }

    /// Some members are skipped, some kept as they are.
    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Honest, A::Error> {
        while let Some(key) = object.next_key::<String>()? {
            match key.as_str() {
                "ignored" => drop(object.next_value::<IgnoredAny>()?),
                "raw" => drop(object.next_value::<Box<RawValue>>()?),
                "tree" => drop(object.next_value::<Value>()?),
                _ => {
                    object.next_value::<Option<Honest>>()?;
                }
            }
        }
        Ok(Honest)
    }
}

#[track_caller]
fn check_honest(text: &str) {
    let result = from_str::<Honest>(text).map(drop).map_err(|error| error.to_string());
    assert_eq!(result, Ok(()), "{text}");
}

#[test]
fn arrays_that_nobody_visits_do_not_shift_the_lengths() {
    for member in ["ignored", "raw", "tree", "other"] {
        for value in ["[]", "[[],[1]]", r#"{"a":[1,[2,3]]}"#, r#""[,""#, " [ 1 , 2 ] ", "null"] {
            check_honest(&format!(r#"[{{"{member}":{value},"b":[1,2,3]}},[4,5],[ ],[6]]"#));
        }
    }
}

/// JSON of any shape, with names that the types above know.
fn any_json() -> impl Strategy<Value = Value> {
    let names = [
        "list",
        "raw",
        "ignored",
        "choice",
        "any_of",
        "wrapped",
        "pair",
        "port",
        "tree",
        "extra",
        "Newtype",
        "Struct",
        "metadata",
        "spec",
        "containers",
        "name",
        "env",
        "ports",
        "unknown",
        "tagged",
        "kind",
        "targetPort",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-300..300i64).prop_map(Value::from),
        r#"[a\[\]{},:"\\\n]{0,6}"#.prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 60, 5, move |inner| {
        let member = (prop::sample::select(names.to_vec()), inner.clone());
        prop_oneof![
            prop::collection::vec(inner, 0..6).prop_map(Value::from),
            prop::collection::vec(member, 0..6)
                .prop_map(|members| members.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()),
        ]
    })
}

proptest! {
    #[test]
    fn every_array_is_announced_with_its_true_length(value in any_json(), pretty: bool) {
        let text = match pretty {
            true => format!("{value:#}"),
            false => value.to_string(),
        };
        check_honest(&text);
    }

    #[test]
    fn any_json_decodes_like_the_plain_decoder(value in any_json()) {
        let text = value.to_string();
        prop_assert!(check_same::<Value>(&text));
        check_same::<Zoo>(&text);
        check_same::<Vec<Zoo>>(&text);
        check_same::<Pod>(&text);
        check_same::<Service>(&text);
        check_same::<DynamicObject>(&text);
    }

    /// A pod with a few bytes replaced or its end cut off.
    #[test]
    fn a_damaged_pod_decodes_like_the_plain_decoder(
        damage in prop::collection::vec((any::<prop::sample::Index>(), r#"[\[\]{},:"\\a0 ]?"#), 0..3),
        end in prop::option::weighted(0.3, any::<prop::sample::Index>()),
    ) {
        let mut text = pod().to_string();
        for (place, put) in &damage {
            let at = place.index(text.len());
            text.replace_range(at..=at, put);
        }
        if let Some(end) = end {
            text.truncate(end.index(text.len()));
        }
        check_same::<Pod>(&text);
        check_same::<Value>(&text);
    }

    /// C31.11
    #[test]
    fn any_text_is_survived_like_by_the_plain_decoder(text in r#"[\[\]{}:,"\\a0 ]{0,40}|.*"#) {
        check_same::<Value>(&text);
        check_same::<Zoo>(&text);
    }
}
