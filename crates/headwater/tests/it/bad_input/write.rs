//! Writes and patches (B180–B201), repeated and concurrent ones included.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde_json::{Value, json};

use super::suite::{Answer, CMS, Row, Suite, config_map, version, wire};

const JSON_PATCH: &str = "Content-Type: application/json-patch+json";
const MERGE: &str = "Content-Type: application/merge-patch+json";
const STRATEGIC: &str = "Content-Type: application/strategic-merge-patch+json";
const APPLY: &str = "Content-Type: application/apply-patch+yaml";

pub(crate) fn rows(suite: &mut Suite) {
    suite.made(CMS, &json!({"metadata": {"name": "p"}, "data": {"k": "v"}}));
    updates(suite);
    json_patches(suite);
    other_patches(suite);
    applies(suite);
    deletes(suite);
    repeats(suite);
    racing(suite);
}

fn patch(target: &str, kind: &str) -> String {
    format!("PATCH {target}\n{kind}")
}

fn updates(suite: &mut Suite) {
    let p = format!("{CMS}/p");
    suite.row(180, |row| {
        for version in ["1", "999999999", "18446744073709551615"] {
            let body = json!({"metadata": {"name": "p", "resourceVersion": version}}).to_string();
            row.refused(&format!("PUT {p}"), body, 409, "Conflict");
        }
        let body = json!({"metadata": {"name": "p", "uid": "another"}}).to_string();
        row.refused(&format!("PUT {p}"), body, 409, "Conflict");
    });
    suite.row(181, |row| {
        for version in ["abc", "-1", "1.5", " 1", "0x10", "99999999999999999999"] {
            let body = json!({"metadata": {"name": "p", "resourceVersion": version}}).to_string();
            row.bad_request(&format!("PUT {p}"), &body);
            row.bad_request(&patch(&p, MERGE), &body);
        }
    });
    suite.row(182, |row| {
        let body = json!({"metadata": {"name": "p"}, "data": {"k": "v"}}).to_string();
        row.accepted(&format!("PUT {p}"), body, 200);
        let object = json!({
            "apiVersion": "near.example.com/v1", "kind": "A", "metadata": {"name": "of-a"},
        });
        row.invalid(
            "PUT /apis/near.example.com/v1/namespaces/ns/a/of-a",
            object.to_string(),
            "metadata.resourceVersion",
        );
    });
    suite.row(183, |row| {
        let body = config_map("nosuch").to_string();
        row.refused(&format!("PUT {CMS}/nosuch"), &body, 404, "NotFound");
        row.refused(&patch(&format!("{CMS}/nosuch"), MERGE), &body, 404, "NotFound");
    });
}

fn json_patches(suite: &mut Suite) {
    let p = patch(&format!("{CMS}/p"), JSON_PATCH);
    suite.row(184, |row| {
        for body in ["", "{}", "1", "[1]", "[[]]", "[{", "x"] {
            row.bad_request(&p, body);
        }
        for body in ["[{\"op\":1}]", "[null]"] {
            let answer = row.suite.ask(&p, body);
            row.check(matches!(answer.code, 400 | 422), || answer.text());
        }
    });
    suite.row(185, |row| {
        let steps = [
            json!({"op": "frob", "path": "/data/k", "value": "x"}),
            json!({"op": "remove", "path": "/data/nosuch"}),
            json!({"op": "add", "path": "/nosuch/deep/er", "value": "x"}),
            json!({"op": "test", "path": "/data/k", "value": "other"}),
            json!({"op": "copy", "from": "/nosuch/deep", "path": "/data/c"}),
            json!({"op": "move", "from": "/nosuch", "path": "/data/c"}),
            json!({"op": "add", "path": "/metadata/finalizers/7", "value": "x"}),
            json!({"op": "add", "path": "/metadata/finalizers/-1", "value": "x"}),
            json!({"op": "add", "path": "/metadata/managedFields/99999999999999999999", "value": {}}),
            json!({"op": "remove", "path": ""}),
            json!({"op": "replace", "value": "x"}),
        ];
        for step in steps {
            // The first operation alone would succeed: it must have no effect.
            let first = json!({"op": "add", "path": "/data/half", "value": "done"});
            row.refused(&p, json!([first, step]).to_string(), 422, "Invalid");
        }
        let kept = row.accepted(&format!("GET {CMS}/p"), "", 200).json();
        row.check(kept["data"] == json!({"k": "v"}), || kept.to_string());
    });
    suite.row(186, |row| {
        let step = json!({"op": "test", "path": "/data/k", "value": "v"});
        let steps = |count: usize| Value::from(vec![step.clone(); count]).to_string();
        row.refused(&p, steps(10_001), 413, "RequestEntityTooLarge");
        row.accepted(&p, steps(10_000), 200);
    });
    suite.row(187, |row| {
        let mut doubling = vec![json!({"op": "add", "path": "/data/x", "value": {"a": "x"}})];
        for _ in 0..40 {
            doubling.push(json!({"op": "copy", "from": "/data", "path": "/data/x/a"}));
        }
        row.refused(&p, Value::from(doubling).to_string(), 422, "Invalid");
        let mut eight =
            vec![json!({"op": "add", "path": "/data/big", "value": "x".repeat(1 << 20)})];
        for n in 0..8 {
            eight.push(json!({"op": "copy", "from": "/data/big", "path": format!("/data/b{n}")}));
        }
        row.refused(&p, Value::from(eight).to_string(), 422, "Invalid");
        // Depth without size: each operation adds one level of nesting.
        let free = patch("/apis/near.example.com/v1/namespaces/ns/a/of-a", JSON_PATCH);
        let mut deep = vec![json!({"op": "add", "path": "/metadata/annotations", "value": {}})];
        let mut path = String::from("/metadata/annotations");
        for _ in 0..600 {
            path.push_str("/d");
            deep.push(json!({"op": "add", "path": path, "value": {}}));
        }
        let answer = row.suite.ask(&free, Value::from(deep).to_string());
        row.check(matches!(answer.code, 400 | 422), || answer.text());
    });
    suite.row(188, |row| {
        for (path, value) in [
            ("/metadata/name", "other"),
            ("/metadata/uid", "other"),
            ("/metadata/namespace", "other"),
            ("/kind", "Secret"),
            ("/apiVersion", "v2"),
        ] {
            let step = json!([{"op": "replace", "path": path, "value": value}]).to_string();
            let answer = row.suite.ask(&p, step);
            // The uid is also a precondition; another uid is a conflict.
            row.check(matches!(answer.code, 400 | 409 | 422), || {
                format!("{path}: {} {}", answer.code, answer.text())
            });
        }
    });
}

fn other_patches(suite: &mut Suite) {
    let p = format!("{CMS}/p");
    suite.row(189, |row| {
        for body in ["", "[]", "\"x\"", "1", "{", "[{}]", "{}x"] {
            row.bad_request(&patch(&p, MERGE), body);
        }
    });
    suite.row(190, |row| {
        for body in [r#"{"metadata":null}"#, r#"{"metadata":{"name":null}}"#] {
            row.bad_request(&patch(&p, MERGE), body);
        }
    });
    suite.row(191, |row| {
        let pods = "/api/v1/namespaces/ns/pods";
        let container = |name: &str| json!({"name": name, "image": "i"});
        row.suite.made(
            pods,
            &json!({"metadata": {"name": "s"}, "spec": {"containers": [container("c")]}}),
        );
        let strategic = patch(&format!("{pods}/s"), STRATEGIC);
        for body in [
            json!({"$patch": "frob"}),
            json!({"spec": {"containers": [{"$patch": "frob", "name": "c"}]}}),
            json!({"spec": {"containers": [{"$patch": "delete"}]}}),
            json!({"spec": {"containers": [{"image": "without a key"}]}}),
            json!({"spec": {
                "$setElementOrder/containers": [{"name": "other"}],
                "containers": [{"name": "c", "image": "j"}],
            }}),
            json!({"spec": {"$deleteFromPrimitiveList/containers": "c"}}),
            json!({"spec": {"$retainKeys": "x"}}),
        ] {
            row.bad_request(&strategic, body.to_string());
        }
        row.bad_request(&strategic, "[]");
        row.bad_request(&strategic, "");
    });
    suite.row(192, |row| {
        row.refused(
            &patch("/apis/near.example.com/v1/namespaces/ns/a/of-a", STRATEGIC),
            "{}",
            415,
            "UnsupportedMediaType",
        );
    });
    suite.row(197, |row| {
        for kind in ["application/json", "application/cats", "text/plain", "x"] {
            let request = patch(&p, &format!("Content-Type: {kind}"));
            row.refused(&request, "{}", 415, "UnsupportedMediaType");
        }
    });
}

fn applies(suite: &mut Suite) {
    let configuration = |extra: Value| {
        let mut object = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "ap"}, "data": {"k": "v"},
        });
        for (key, value) in extra.as_object().unwrap() {
            object[key] = value.clone();
        }
        object.to_string()
    };
    let ap = format!("{CMS}/ap");
    suite.row(193, |row| {
        row.refused(&patch(&ap, APPLY), configuration(json!({})), 422, "Invalid");
        let forced = format!("{CMS}/p?force=true");
        row.refused(&patch(&forced, MERGE), "{}", 422, "Invalid");
        row.refused(&patch(&forced, JSON_PATCH), "[]", 422, "Invalid");
    });
    let mine = format!("{ap}?fieldManager=mine");
    suite.row(194, |row| {
        let managed = json!({"metadata": {"name": "ap", "managedFields": [{"manager": "m"}]}});
        for body in [
            configuration(managed),
            configuration(json!({"kind": null})),
            configuration(json!({"kind": "Secret"})),
            configuration(json!({"apiVersion": ""})),
            configuration(json!({"metadata": {"name": "other"}})),
            "a: [".to_owned(),
            "\tx".to_owned(),
            "[]".to_owned(),
            String::new(),
        ] {
            row.bad_request(&patch(&mine, APPLY), body);
        }
    });
    suite.row(195, |row| {
        row.accepted(&patch(&mine, APPLY), configuration(json!({})), 201);
        let other = patch(&format!("{ap}?fieldManager=other"), APPLY);
        let changed = configuration(json!({"data": {"k": "w"}}));
        let answer = row.refused(&other, changed, 409, "Conflict");
        let causes = answer.json()["details"]["causes"].clone();
        let expected = json!([{
            "reason": "FieldManagerConflict", "message": "conflict with \"mine\"", "field": ".data.k",
        }]);
        row.check(causes == expected, || causes.to_string());
    });
    suite.row(196, |row| {
        for forged in [
            json!([{"manager": "m", "operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": 7}]),
            json!([{"manager": "m", "operation": "Frob", "fieldsV1": {"f:x": {}}}]),
            json!([{"manager": "m", "operation": "Update", "apiVersion": "nosuch/v9",
                "fieldsType": "FieldsV1", "fieldsV1": {"x:": {}, "k:{": {}, "v:": {}}}]),
            json!([{}]),
        ] {
            let body = json!({
                "metadata": {"name": "ap", "managedFields": forged}, "data": {"k": "v"},
            });
            let answer = row.suite.ask(&format!("PUT {ap}"), body.to_string());
            row.check(matches!(answer.code, 200 | 400 | 422), || {
                format!("{forged}: {} {}", answer.code, answer.text())
            });
        }
    });
}

fn deletes(suite: &mut Suite) {
    let p = format!("DELETE {CMS}/p");
    suite.row(198, |row| {
        // The largest grace period, in the query, in the options and in the object.
        let pods = "/api/v1/namespaces/ns/pods";
        for (at, body) in [
            (format!("?gracePeriodSeconds={}", i64::MAX), String::new()),
            (String::new(), json!({"gracePeriodSeconds": i64::MAX}).to_string()),
            (String::new(), String::new()),
        ] {
            let pod = json!({
                "metadata": {"name": "patient"},
                "spec": {
                    "nodeName": "nowhere",
                    "terminationGracePeriodSeconds": i64::MAX,
                    "containers": [{"name": "a", "image": "a"}]
                }
            });
            row.suite.made(pods, &pod);
            row.accepted(&format!("DELETE {pods}/patient{at}"), body, 200);
            row.accepted(&format!("DELETE {pods}/patient?gracePeriodSeconds=0"), "", 200);
        }
    });
    suite.row(198, |row| {
        for wrong in [json!({"uid": "another"}), json!({"resourceVersion": "1"})] {
            let body = json!({"preconditions": wrong}).to_string();
            row.refused(&p, body, 409, "Conflict");
        }
    });
    suite.row(199, |row| {
        for body in ["garbage", "[]", "{", r#"{"kind":"Cats","apiVersion":"v1"}"#, "1"] {
            row.bad_request(&p, body);
        }
        for body in [
            r#"{"propagationPolicy":"Cats"}"#,
            r#"{"propagationPolicy":"Orphan","orphanDependents":true}"#,
            r#"{"dryRun":["Some"]}"#,
        ] {
            row.refused(&p, body, 422, "Invalid");
        }
        row.bad_request(&p, r#"{"gracePeriodSeconds":"soon"}"#);
        row.bad_request(&format!("{p}?gracePeriodSeconds=soon"), "");
    });
    suite.row(200, |row| {
        let before = row.accepted(&format!("GET {CMS}"), "", 200).names();
        for query in ["labelSelector=a%20in%20(", "fieldSelector=nosuch%3Dx", "limit=x"] {
            row.bad_request(&format!("DELETE {CMS}?{query}"), "");
        }
        let after = row.accepted(&format!("GET {CMS}"), "", 200).names();
        row.check(before == after, || after.clone());
    });
}

/// The same request, sent again after the connection broke.
fn repeats(suite: &mut Suite) {
    suite.row(285, |row| {
        let (post, again) = (format!("POST {CMS}"), config_map("again").to_string());
        row.accepted(&post, &again, 201);
        row.refused(&post, &again, 409, "AlreadyExists");
        row.accepted(&format!("DELETE {CMS}/again"), "", 200);
        row.refused(&format!("DELETE {CMS}/again"), "", 404, "NotFound");
    });
    suite.row(283, |row| {
        let start = row.suite.revision();
        for _ in 0..100 {
            row.accepted(&format!("POST {CMS}"), config_map("churn").to_string(), 201);
            row.accepted(&format!("DELETE {CMS}/churn"), "", 200);
        }
        let request = format!(
            "GET {CMS}?watch=1&timeoutSeconds=2&resourceVersion={start}\
             &fieldSelector=metadata.name%3Dchurn"
        );
        let events = row.accepted(&request, "", 200).text();
        let count = |kind: &str| events.matches(&format!("{{\"type\":\"{kind}\"")).count();
        let (added, deleted) = (count("ADDED"), count("DELETED"));
        row.check((added, deleted) == (100, 100), || format!("{added} and {deleted}"));
    });
}

/// Many clients patch one object: each gets 200 or 409, and the counter is exact.
fn racing(suite: &mut Suite) {
    const WRITERS: usize = 16;
    const TRIES: usize = 12;
    suite.made(CMS, &json!({"metadata": {"name": "counter"}, "data": {"n": "0"}}));
    let (added, odd) = (AtomicU64::new(0), AtomicU64::new(0));
    let address = suite.process.plain;
    let ask = |request: &str, body: &str| {
        use std::io::Write;
        let mut socket = std::net::TcpStream::connect(address).unwrap();
        socket.write_all(&wire(request, body.as_bytes())).unwrap();
        Answer::parse(&super::suite::read_to_end(&mut socket))
    };
    std::thread::scope(|scope| {
        for _ in 0..WRITERS {
            scope.spawn(|| {
                for _ in 0..TRIES {
                    let now = ask(&format!("GET {CMS}/counter"), "").json();
                    let n: u64 = now["data"]["n"].as_str().unwrap().parse().unwrap();
                    let change = json!({
                        "metadata": {"resourceVersion": version(&now)},
                        "data": {"n": (n + 1).to_string()},
                    });
                    match ask(&patch(&format!("{CMS}/counter"), MERGE), &change.to_string()).code {
                        200 => added.fetch_add(1, Relaxed),
                        409 => 0,
                        _ => odd.fetch_add(1, Relaxed),
                    };
                }
            });
        }
    });
    suite.row(201, |row| {
        row.check(odd.load(Relaxed) == 0, || "neither 200 nor 409".into());
        counted(row, added.load(Relaxed));
    });
}

fn counted(row: &mut Row<'_>, expected: u64) {
    let stored = row.accepted(&format!("GET {CMS}/counter"), "", 200).json();
    let stored = stored["data"]["n"].as_str().unwrap().to_owned();
    row.check(stored == expected.to_string(), || format!("{stored} is not {expected}"));
}
