//! Bodies (B100–B136).

use serde_json::{Value, json};

use super::suite::{CMS, Row, SECRET, Suite, config_map};

const JSON: &str = "Content-Type: application/json";
const YAML: &str = "Content-Type: application/yaml";
const PROTOBUF: &str = "Content-Type: application/vnd.kubernetes.protobuf";

pub(crate) fn rows(suite: &mut Suite) {
    malformed(suite);
    numbers_and_fields(suite);
    sizes(suite);
    metadata(suite);
    other_forms(suite);
    options(suite);
    exactness(suite);
}

/// A ConfigMap whose only value is this JSON.
fn valued(value: &str) -> String {
    format!(r#"{{"metadata":{{"name":"v"}},"data":{{"k":{value}}}}}"#)
}

fn nested(open: &str, levels: usize, close: &str) -> String {
    format!("{}{}", open.repeat(levels), close.repeat(levels))
}

/// Creates an object, reads it back and deletes it.
fn round(row: &mut Row<'_>, request: &str, body: impl AsRef<[u8]>, name: &str) -> Value {
    row.accepted(request, body, 201);
    let stored = row.accepted(&format!("GET {CMS}/{name}"), "", 200).json();
    row.accepted(&format!("DELETE {CMS}/{name}"), "", 200);
    stored
}

fn malformed(suite: &mut Suite) {
    let post = format!("POST {CMS}");
    suite.row(100, |row| {
        for body in [
            "",
            "[]",
            "\"x\"",
            "1",
            "true",
            "{",
            "{\"metadata\":",
            "{\"metadata\":{}} x",
            "{}{}",
            "{'a':1}",
            "{\"a\":1,}",
            "[{}]",
            "{\"a\" 1}",
            "\u{0}",
            "{]",
        ] {
            row.bad_request(&post, body);
        }
        row.bad_request(&post, format!("{{\"metadata\":{{\"name\":\"{SECRET}\"}}"));
    });
    suite.row(101, |row| row.invalid(&post, "null", "metadata.name"));
    suite.row(102, |row| {
        let plain = valued("\"x\"");
        row.bad_request(&post, format!("\u{feff}{plain}"));
        let wide: Vec<u8> = plain.encode_utf16().flat_map(u16::to_le_bytes).collect();
        row.bad_request(&post, wide);
        for control in ["\u{1}", "\n", "\t", "\u{1f}", "\u{0}"] {
            row.bad_request(&post, valued(&format!("\"{control}\"")));
        }
    });
    suite.row(103, |row| {
        for broken in [&b"\xff"[..], b"\xc3\x28", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80"] {
            let mut body = br#"{"metadata":{"name":"v"},"data":{"k":""#.to_vec();
            body.extend_from_slice(broken);
            body.extend_from_slice(br#""}}"#);
            row.bad_request(&post, body);
        }
    });
    suite.row(104, |row| {
        for lone in [r#""\ud800""#, r#""\udc00""#, r#""\ud800\ud800""#, r#""\ud800x""#] {
            row.bad_request(&post, valued(lone));
        }
    });
    suite.row(105, |row| {
        let stored = round(row, &post, valued(r#""a\u0000b""#), "v");
        row.check(stored["data"]["k"] == "a\0b", || stored.to_string());
    });
    suite.row(106, |row| {
        for value in ["NaN", "Infinity", "-Infinity", "1e400", "-1e400"] {
            row.bad_request(&post, valued(value));
        }
    });
}

fn numbers_and_fields(suite: &mut Suite) {
    let deployments = "POST /apis/apps/v1/namespaces/ns/deployments";
    let post = format!("POST {CMS}");
    suite.row(107, |row| {
        for replicas in ["1.5", "1e2", "2147483648", "99999999999999999999", "\"1\"", "true", "[]"]
        {
            let body = format!(r#"{{"metadata":{{"name":"d"}},"spec":{{"replicas":{replicas}}}}}"#);
            row.bad_request(deployments, body);
        }
    });
    suite.row(108, |row| {
        let twice = r#"{"metadata":{"name":"v","name":"w"},"data":{"k":"1","k":"2"}}"#;
        row.bad_request(&format!("{post}?fieldValidation=Strict"), twice);
        let answer = row.accepted(&post, twice, 201);
        let warned = answer.head.matches("warning: 299").count();
        row.check(warned >= 2, || answer.head.clone());
        let stored = row.accepted(&format!("GET {CMS}/w"), "", 200);
        row.check(stored.json()["data"] == json!({"k": "2"}), || stored.text());
        row.check(stored.text().matches("\"k\":").count() >= 1, || stored.text());
        row.check(!stored.text().contains("\"1\""), || stored.text());
        row.accepted(&format!("DELETE {CMS}/w"), "", 200);
    });
    suite.row(109, |row| {
        let unknown = r#"{"metadata":{"name":"v"},"nosuch":1}"#;
        row.bad_request(&format!("{post}?fieldValidation=Strict"), unknown);
        let answer = row.accepted(&post, unknown, 201);
        row.check(answer.head.contains("warning: 299"), || answer.head.clone());
        row.check(!answer.text().contains("nosuch"), || answer.text());
        row.accepted(&format!("DELETE {CMS}/v"), "", 200);
    });
    suite.row(110, |row| {
        row.invalid(&post, r#"{"Metadata":{"name":"v"}}"#, "metadata.name");
        row.invalid(&post, r#"{"metadata":{"NAME":"v"}}"#, "metadata.name");
    });
}

fn sizes(suite: &mut Suite) {
    let post = format!("POST {CMS}");
    suite.row(111, |row| {
        let levels = |count: usize| valued(&nested("[", count, "]"));
        row.bad_request(&post, levels(600));
        row.bad_request(&format!("{post}\n{YAML}"), levels(600));
        // The deepest accepted nesting is refused for its type, with the same stack size.
        row.bad_request(&post, levels(505));
        let custom = "POST /apis/near.example.com/v1/namespaces/ns/a";
        let (open, close) = ("{\"y\":".repeat(700), "}".repeat(700));
        let deep = format!(
            r#"{{"apiVersion":"near.example.com/v1","kind":"A","metadata":{{"name":"deep"}},"x":{open}1{close}}}"#
        );
        row.bad_request(custom, deep);
    });
    suite.row(112, |row| {
        // If the time were more than linear in the length, this would not finish.
        row.bad_request(&post, "[".repeat(1_500_000));
        row.bad_request(&post, nested("[", 750_000, "]"));
        row.bad_request(&post, nested("{\"a\":", 250_000, "}"));
    });
    suite.row(113, |row| {
        let large = valued(&format!("\"{}\"", "x".repeat(3 * 1024 * 1024)));
        row.refused(&post, &large, 413, "RequestEntityTooLarge");
        row.refused(&format!("PUT {CMS}/a"), &large, 413, "RequestEntityTooLarge");
        let merge = "\nContent-Type: application/merge-patch+json";
        row.refused(&format!("PATCH {CMS}/a{merge}"), &large, 413, "RequestEntityTooLarge");
    });
    suite.row(114, |row| {
        let object = json!({
            "apiVersion": "near.example.com/v1", "kind": "A", "metadata": {"name": "big"},
        });
        let mut annotated = object;
        annotated["metadata"]["labels"] = json!({});
        for n in 0..30_000 {
            annotated["metadata"]["labels"][format!("l{n}")] = "x".repeat(60).into();
        }
        let custom = "POST /apis/near.example.com/v1/namespaces/ns/a";
        row.refused(custom, annotated.to_string(), 413, "RequestEntityTooLarge");
    });
    suite.row(120, |row| {
        let mut many = config_map("labels");
        for n in 0..10_000 {
            many["metadata"]["labels"][format!("l{n}")] = "x".into();
        }
        let stored = round(row, &post, many.to_string(), "labels");
        let count = stored["metadata"]["labels"].as_object().map_or(0, serde_json::Map::len);
        row.check(count == 10_000, || count.to_string());
    });
    suite.row(122, |row| {
        let mut large = config_map("v");
        large["metadata"]["annotations"] = json!({"a": "x".repeat(256 * 1024)});
        row.invalid(&post, large.to_string(), "metadata.annotations");
    });
    suite.row(124, |row| {
        let mut large = config_map("v");
        large["data"] = json!({"k": "x".repeat(1024 * 1024 + 1)});
        row.refused(&post, large.to_string(), 422, "Invalid");
        for key in ["a/b", "..", ".", "", "a b", &"k".repeat(254)] {
            let mut object = config_map("v");
            object["data"] = json!({key: "x"});
            row.refused(&post, object.to_string(), 422, "Invalid");
        }
        let both = json!({
            "metadata": {"name": "v"}, "data": {"k": "x"}, "binaryData": {"k": "eA=="},
        });
        row.refused(&post, both.to_string(), 422, "Invalid");
    });
}

fn metadata(suite: &mut Suite) {
    let post = format!("POST {CMS}");
    suite.row(115, |row| {
        let body = json!({"metadata": {"name": "v", "resourceVersion": "5"}});
        row.bad_request(&post, body.to_string());
    });
    suite.row(116, |row| {
        let body = json!({"metadata": {
            "name": "v", "uid": "mine", "creationTimestamp": "2001-01-01T00:00:00Z",
            "deletionTimestamp": "2001-01-01T00:00:00Z", "deletionGracePeriodSeconds": 5,
            "selfLink": "/mine", "generation": 7,
        }});
        let stored = round(row, &post, body.to_string(), "v");
        let metadata = &stored["metadata"];
        for (field, forged) in [
            ("uid", json!("mine")),
            ("creationTimestamp", json!("2001-01-01T00:00:00Z")),
            ("selfLink", json!("/mine")),
        ] {
            row.check(metadata[field] != forged, || format!("{field}: {metadata}"));
        }
        row.check(metadata["deletionTimestamp"].is_null(), || metadata.to_string());
    });
    suite.row(117, |row| {
        for when in [
            "\"yesterday\"",
            "\"10000-01-01T00:00:00Z\"",
            "\"2001-13-01T00:00:00Z\"",
            "\"2001-01-01T00:00:00+99:99\"",
            "17",
            "\"2001-01-01\"",
            "\"2001-02-30T00:00:00Z\"",
        ] {
            let body = format!(r#"{{"metadata":{{"name":"v","creationTimestamp":{when}}}}}"#);
            row.bad_request(&post, body);
        }
    });
    suite.row(118, |row| {
        for (version, kind) in [
            ("v1", json!("Secret")),
            ("v2", json!("ConfigMap")),
            ("v1", json!(7)),
            ("apps/v1", json!("ConfigMap")),
        ] {
            let body = json!({"apiVersion": version, "kind": kind, "metadata": {"name": "v"}});
            row.bad_request(&post, body.to_string());
        }
        row.bad_request(&post, r#"{"apiVersion":7,"kind":"ConfigMap","metadata":{"name":"v"}}"#);
    });
    suite.row(119, |row| {
        round(row, &post, r#"{"metadata":{"name":"v"}}"#, "v");
        row.bad_request(
            "POST /apis/near.example.com/v1/namespaces/ns/a",
            r#"{"metadata":{"name":"v"}}"#,
        );
    });
    suite.row(121, |row| {
        let long = "x".repeat(64);
        for (key, value) in [
            ("", "v"),
            ("-a", "v"),
            ("a b", "v"),
            ("a/b/c", "v"),
            ("/a", "v"),
            ("A_/x", "v"),
            (&*long, "v"),
            ("a", "-v"),
            ("a", "v v"),
            ("a", "é"),
            ("a", &*long),
            ("a", "v/"),
        ] {
            let body = json!({"metadata": {"name": "v", "labels": {key: value}}});
            row.invalid(&post, body.to_string(), "metadata.labels");
        }
    });
    suite.row(123, |row| {
        let owner = |controller: bool| {
            json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": controller})
        };
        let two = json!({"metadata": {"name": "v", "ownerReferences": [owner(true), {
            "apiVersion": "v1", "kind": "Pod", "name": "q", "uid": "w", "controller": true,
        }]}});
        for body in [
            json!({"metadata": {"name": "v", "finalizers": ["plain"]}}),
            json!({"metadata": {"name": "v", "finalizers": [""]}}),
            json!({"metadata": {"name": "v", "ownerReferences": [{}]}}),
            json!({"metadata": {"name": "v", "ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": ""}]}}),
            two,
        ] {
            row.refused(&post, body.to_string(), 422, "Invalid");
        }
    });
}

fn other_forms(suite: &mut Suite) {
    let post = format!("POST {CMS}");
    let yaml = format!("{post}\n{YAML}");
    suite.row(125, |row| {
        for value in ["\"!\"", "\"YQ=\"", "1", "\"a b\""] {
            let body = format!(r#"{{"metadata":{{"name":"v"}},"binaryData":{{"k":{value}}}}}"#);
            row.bad_request(&post, body);
        }
    });
    suite.row(126, |row| {
        let mut bomb = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
        for n in 1..12 {
            let of = format!("*a{}", n - 1);
            let all = [of.as_str(); 10].join(",");
            bomb.push_str(&format!("a{n}: &a{n} [{all}]\n"));
        }
        row.bad_request(&yaml, format!("{bomb}metadata: {{name: v}}\ndata: {{k: *a11}}\n"));
        let words = format!("a: &a {}\n", "x".repeat(100_000));
        let many = vec!["*a"; 5_000].join(",");
        row.bad_request(&yaml, format!("{words}b: [{many}]\nmetadata: {{name: v}}\n"));
    });
    suite.row(127, |row| {
        for body in [
            "metadata:\n\tname: v\n",
            "metadata: {name: v}\n---\nmetadata: {name: w}\n",
            "a: &a [*a]\nmetadata: {name: v}\n",
            "metadata: {name: v}\ndata: {k: .nan}\n",
            "a: [",
            "? {a: b}\n: c\n",
        ] {
            row.bad_request(&yaml, body);
        }
        // Parsed like Kubernetes parses them, or refused: never a hang or a partial value.
        for body in [
            "\tmetadata: {}".to_owned(),
            "metadata: {name: !mine v}\n".to_owned(),
            "metadata: !!binary aGVsbG8=\n".to_owned(),
            format!("metadata: {{name: v}}\ndata: {{k: \"{}\"}}\n", "x".repeat(3_100_000)),
            nested("[", 100_000, "]"),
            "- ".repeat(500_000),
            "!!set {a, b}".to_owned(),
        ] {
            let answer = row.suite.ask(&yaml, &body);
            row.check(matches!(answer.code, 201 | 400 | 413 | 422), || {
                format!("{:.60}: {} {}", body, answer.code, answer.text())
            });
            if answer.code == 201 {
                row.accepted(&format!("DELETE {CMS}/v"), "", 200);
            }
        }
    });
    suite.row(128, |row| {
        for kind in ["text/plain", "multipart/form-data; boundary=x", "application/cats", "x", ";"]
        {
            row.refused(
                &format!("{post}\nContent-Type: {kind}"),
                config_map("v").to_string(),
                415,
                "UnsupportedMediaType",
            );
        }
    });
    suite.row(129, |row| {
        round(row, &post, config_map("v").to_string(), "v");
        round(row, &format!("{post}\n{JSON}"), config_map("v").to_string(), "v");
    });
    suite.row(130, |row| {
        let protobuf = format!("{post}\n{PROTOBUF}");
        let empty_object = b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\x00";
        row.invalid(&protobuf, empty_object, "metadata.name");
        for body in [
            &b""[..],
            b"k8s",
            b"k8s\0",
            b"k8s\0\xff\xff\xff",
            b"{}",
            b"k8s\0\x12\x7fx",
            b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\x05\xff\xff\xff\xff\xff",
            b"k8s\0\x0a\x0c\x0a\x02v1\x12\x06Secret\x12\x00",
        ] {
            row.bad_request(&protobuf, body);
        }
    });
    suite.row(131, |row| {
        let many = vec!["application/cats"; 2_000].join(",");
        for accept in [
            "application/cats",
            "application/json;as=Cats;g=meta.k8s.io;v=v1",
            "application/json;as=Table;g=meta.k8s.io;v=v9",
            &many,
        ] {
            row.refused(&format!("GET {CMS}\nAccept: {accept}"), "", 406, "NotAcceptable");
            row.refused(
                &format!("{post}\nAccept: {accept}"),
                config_map("v").to_string(),
                406,
                "NotAcceptable",
            );
        }
    });
}

fn options(suite: &mut Suite) {
    let post = format!("POST {CMS}");
    suite.row(132, |row| {
        for option in
            ["dryRun=Some", "dryRun=all", "fieldValidation=Loud", "fieldValidation=strict"]
        {
            for request in [format!("{post}?{option}"), format!("PUT {CMS}/a?{option}")] {
                row.refused(&request, config_map("a").to_string(), 422, "Invalid");
            }
        }
    });
    suite.row(133, |row| {
        let before = row.suite.revision();
        row.accepted(&format!("{post}?dryRun=All"), config_map("dry").to_string(), 201);
        row.accepted(&format!("DELETE {CMS}/a?dryRun=All"), "", 200);
        row.accepted(&format!("DELETE {CMS}?dryRun=All"), "", 200);
        let merge = "Content-Type: application/merge-patch+json";
        let patch = json!({"data": {"dry": "x"}}).to_string();
        row.accepted(&format!("PATCH {CMS}/a?dryRun=All\n{merge}"), patch, 200);
        row.refused(&format!("GET {CMS}/dry"), "", 404, "NotFound");
        let after = row.suite.revision();
        row.check(before == after, || "a dry run wrote".into());
    });
    suite.row(134, |row| {
        let long = "m".repeat(129);
        for manager in [&*long, "a%01b", "a%0Ab", "%7F"] {
            let request = format!("{post}?fieldManager={manager}");
            row.refused(&request, config_map("v").to_string(), 422, "Invalid");
        }
    });
}

/// Every parser reads the stored object as it was sent.
fn exactness(suite: &mut Suite) {
    let post = format!("POST {CMS}");
    suite.row(135, |row| {
        let escaped = r#"{"met\u0061data":{"n\u0061me":"v","labels":{"\u0061":"b"}},
            "data":{"k":"\"resourceVersion\":\"1\",\"metadata\":{\"name\":\"other\"}"}}"#;
        let stored = round(row, &post, escaped, "v");
        row.check(stored["metadata"]["labels"] == json!({"a": "b"}), || stored.to_string());
        let value = r#""resourceVersion":"1","metadata":{"name":"other"}"#;
        row.check(stored["data"]["k"] == value, || stored.to_string());
        let both = r#"{"metadata":{"name":"v","n\u0061me":"w"}}"#;
        row.bad_request(&format!("{post}?fieldValidation=Strict"), both);
    });
    suite.row(136, |row| {
        let target = "/apis/near.example.com/v1/namespaces/ns/free";
        let custom = format!("POST {target}");
        let object = |value: &str| {
            format!(
                r#"{{"apiVersion":"near.example.com/v1","kind":"Free","metadata":{{"name":"f"}},"x":{value}}}"#
            )
        };
        row.suite.made(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            &json!({
                "metadata": {"name": "free.near.example.com"},
                "spec": {
                    "group": "near.example.com", "scope": "Namespaced",
                    "names": {"plural": "free", "kind": "Free"},
                    "versions": [{
                        "name": "v1", "served": true, "storage": true,
                        "schema": {"openAPIV3Schema": {
                            "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                        }},
                    }],
                },
            }),
        );
        row.suite.until("the type is served", |suite| {
            suite.ask(&format!("GET {target}"), "").code == 200
        });
        let digits = "1".repeat(400);
        for (sent, kept) in [
            ("-0", &["-0", "0", "-0.0"][..]),
            ("1E0", &["1", "1.0", "1E0"]),
            ("1e2", &["100", "100.0", "1e2"]),
            ("0.1", &["0.1"]),
            ("9007199254740993", &["9007199254740993"]),
            ("18446744073709551615", &["18446744073709551615"]),
            ("18446744073709551616", &[]),
            (digits.as_str(), &[]),
        ] {
            let answer = row.suite.ask(&custom, object(sent));
            if answer.code == 201 {
                let stored = row.accepted(&format!("GET {target}/f"), "", 200).text();
                let is_kept = kept.iter().any(|kept| stored.contains(&format!("\"x\":{kept}")));
                row.check(is_kept, || format!("{sent:.30} became {stored}"));
                row.accepted(&format!("DELETE {target}/f"), "", 200);
            } else {
                row.is_status(&answer, sent, 400, "BadRequest");
            }
        }
        for wrong in ["01", "-01", "+1", ".5", "1.", "0x10", "1e", "--1"] {
            row.bad_request(&custom, object(wrong));
        }
    });
}
