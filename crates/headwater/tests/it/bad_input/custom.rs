//! Custom types (B210–B222).

use serde_json::{Value, json};

use super::suite::Suite;

const DEFINITIONS: &str = "POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const THINGS: &str = "/apis/bad.example.com/v1/namespaces/ns/things";

pub(crate) fn rows(suite: &mut Suite) {
    definitions(suite);
    schemas(suite);
    objects(suite);
}

fn definition(change: impl FnOnce(&mut Value)) -> String {
    let mut definition = json!({
        "metadata": {"name": "things.bad.example.com"},
        "spec": {
            "group": "bad.example.com", "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "size": {"type": "integer"}, "name": {"type": "string", "pattern": "^(a+)+$"},
                }}},
            }],
        },
    });
    change(&mut definition);
    definition.to_string()
}

fn with_schema(schema: &Value) -> String {
    definition(|made| made["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = schema.clone())
}

fn with_property(property: &Value) -> String {
    with_schema(&json!({"type": "object", "properties": {"p": property}}))
}

fn definitions(suite: &mut Suite) {
    suite.row(210, |row| {
        for body in [
            definition(|made| made["metadata"]["name"] = "other.bad.example.com".into()),
            definition(|made| made["spec"]["versions"][0]["storage"] = false.into()),
            definition(|made| {
                let mut second = made["spec"]["versions"][0].clone();
                second["name"] = "v2".into();
                made["spec"]["versions"].as_array_mut().unwrap().push(second);
            }),
            definition(|made| made["spec"]["versions"] = json!([])),
            definition(|made| made["spec"]["scope"] = "Cats".into()),
            definition(|made| {
                made["spec"]["group"] = "things.k8s.io".into();
                made["metadata"]["name"] = "things.things.k8s.io".into();
            }),
        ] {
            row.refused(DEFINITIONS, body, 422, "Invalid");
        }
    });
}

fn schemas(suite: &mut Suite) {
    suite.row(211, |row| {
        for schema in [
            json!({"type": "string"}),
            json!({"type": "object", "properties": {"p": {"type": "cat"}}}),
            json!({"type": "object", "properties": {"p": {"$ref": "#/definitions/x"}}}),
            json!({"type": "object", "properties": {"p": {"type": "integer", "default": "x"}}}),
            json!({"type": "object", "properties": {"p": {
                "type": "array", "x-kubernetes-list-type": "map",
                "items": {"type": "object", "properties": {"k": {"type": "string"}}},
            }}}),
            json!({"type": "object", "properties": {"p": {"type": "array"}}}),
        ] {
            row.refused(DEFINITIONS, with_schema(&schema), 422, "Invalid");
        }
    });
    suite.row(212, |row| {
        for pattern in ["(", "a(?=b)", "(a)\\1", "a{1001}", "[z-a]", "*"] {
            let property = json!({"type": "string", "pattern": pattern});
            row.refused(DEFINITIONS, with_property(&property), 422, "Invalid");
        }
        let nested = json!({"type": "string", "pattern": "((((a{100}){100}){100}){100})"});
        row.refused(DEFINITIONS, with_property(&nested), 422, "Invalid");
    });
    suite.row(214, |row| {
        for rule in ["(", "self.nosuch > 1", "1 + 1", ""] {
            let property = json!({
                "type": "object", "properties": {"a": {"type": "integer"}},
                "x-kubernetes-validations": [{"rule": rule}],
            });
            row.refused(DEFINITIONS, with_property(&property), 422, "Invalid");
        }
    });
    suite.row(218, |row| {
        let mut schema = json!({"type": "string"});
        for _ in 0..600 {
            schema = json!({"type": "object", "properties": {"p": schema}});
        }
        let answer = row.suite.ask(DEFINITIONS, with_schema(&schema));
        row.check(matches!(answer.code, 400 | 422), || format!("{}", answer.code));
    });
}

fn objects(suite: &mut Suite) {
    let body = definition(|_| ());
    suite.made(&DEFINITIONS["POST ".len()..], &serde_json::from_str(&body).unwrap());
    suite.until("the type is served", |suite| suite.ask(&format!("GET {THINGS}"), "").code == 200);
    let post = format!("POST {THINGS}");
    let thing = |extra: &str| {
        format!(
            r#"{{"apiVersion":"bad.example.com/v1","kind":"Thing","metadata":{{"name":"t"}}{extra}}}"#
        )
    };
    suite.row(213, |row| {
        let long = "a".repeat(100_000);
        row.accepted(&format!("{post}?dryRun=All"), thing(&format!(r#","name":"{long}""#)), 201);
        row.invalid(&post, thing(&format!(r#","name":"{long}!""#)), "name");
    });
    suite.row(220, |row| {
        for size in ["\"x\"", "1.5", "9223372036854775808", "true", "[]"] {
            row.invalid(&post, thing(&format!(r#","size":{size}"#)), "size");
        }
        row.accepted(&format!("{post}?dryRun=All"), thing(r#","size":1.0"#), 201);
    });
    suite.row(221, |row| {
        row.bad_request(&post, r#"{"metadata":{"name":"t"}}"#);
        row.bad_request(
            &post,
            r#"{"apiVersion":"other.example.com/v1","kind":"Thing","metadata":{"name":"t"}}"#,
        );
    });
    suite.row(222, |row| {
        row.bad_request(&format!("GET {THINGS}?fieldSelector=size%3D1"), "");
        row.bad_request(&format!("DELETE {THINGS}?fieldSelector=size%3D1"), "");
    });
    suite.row(224, |row| {
        row.accepted(&post, thing(r#","size":1"#), 201);
        let one = format!("{}/things.bad.example.com", &DEFINITIONS["POST ".len()..]);
        row.accepted(&format!("DELETE {one}"), "", 200);
        row.suite.until("the type is gone", |suite| {
            suite.ask(&format!("GET {one}"), "").code == 404
                && suite.ask(&format!("GET {THINGS}"), "").code == 404
        });
        let other = with_property(&json!({"type": "string"}));
        row.suite.made(&DEFINITIONS["POST ".len()..], &serde_json::from_str(&other).unwrap());
        row.suite
            .until("the type is back", |suite| suite.ask(&format!("GET {THINGS}"), "").code == 200);
        let list = row.accepted(&format!("GET {THINGS}"), "", 200);
        row.check(list.names().is_empty(), || list.names());
    });
}
