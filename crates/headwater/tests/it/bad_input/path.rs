//! Paths and names (B080–B091).

use serde_json::json;

use super::suite::{CMS, Suite, config_map};

pub(crate) fn rows(suite: &mut Suite) {
    suite.made(CMS, &config_map("a"));
    paths(suite);
    names(suite);
    neighbours(suite);
}

fn paths(suite: &mut Suite) {
    suite.row(80, |row| {
        for name in ["..", ".", "%2e%2e", "%2E%2E", "a%25b"] {
            row.bad_request(&format!("GET {CMS}/{name}"), "");
            row.bad_request(&format!("DELETE {CMS}/{name}"), "");
        }
    });
    suite.row(81, |row| {
        for name in ["a%2Fb", "%2F", "a;x=1", "a%2F..%2F..%2Fsecrets"] {
            let answer = row.suite.ask(&format!("GET {CMS}/{name}"), "");
            row.check(answer.code == 404, || format!("{name}: {}", answer.code));
        }
        for target in ["//api/v1/namespaces", "/api//v1", "/api/v1//namespaces"] {
            let answer = row.suite.ask(&format!("GET {target}"), "");
            row.check(answer.code == 404, || format!("{target}: {}", answer.code));
        }
    });
    suite.row(82, |row| {
        for name in ["a%00", "%00", "a%ff", "%C3%28", "a%", "a%4", "a%zz"] {
            row.bad_request(&format!("GET {CMS}/{name}"), "");
        }
        row.bad_request("GET /nosuch%00", "");
    });
    suite.row(83, |row| {
        for target in [
            "/api/v2/pods",
            "/api/v1/nosuch",
            "/api/v1/namespaces/ns/nosuch/x",
            "/apis/apps/v9/deployments",
            "/apis/apps/v1/nosuch",
            "/api/v1/namespaces/ns/configmaps/a/nosuch",
            "/api/v1/namespaces/ns/pods/p/status/more",
        ] {
            row.refused(&format!("GET {target}"), "", 404, "NotFound");
            row.refused(&format!("PUT {target}"), "{}", 404, "NotFound");
        }
        for target in ["/nosuch", "/apis/nosuch.example.com/v1/things"] {
            let answer = row.accepted(&format!("GET {target}"), "", 404);
            row.check(answer.text() == "404 page not found\n", || answer.text());
        }
    });
    suite.row(84, |row| {
        let a = format!("{CMS}/a");
        for request in [
            &format!("POST {a}"),
            &format!("PUT {CMS}"),
            &format!("PATCH {CMS}"),
            "POST /api/v1/configmaps",
            "DELETE /api/v1/configmaps",
            "DELETE /api/v1/namespaces",
            "POST /api/v1",
        ] {
            row.refused(request, "{}", 405, "MethodNotAllowed");
        }
    });
    suite.row(85, |row| {
        let target = "/api/v1/namespaces/nosuch/configmaps";
        let status =
            row.refused(&format!("POST {target}"), config_map("x").to_string(), 404, "NotFound");
        let details = &status.json()["details"];
        row.check(details["name"] == "nosuch", || details.to_string());
    });
    suite.row(86, |row| {
        let list = row.accepted("GET /api/v1/namespaces/nosuch/configmaps", "", 200);
        row.check(list.json()["items"] == json!([]), || list.text());
    });
}

fn names(suite: &mut Suite) {
    let post = format!("POST {CMS}");
    suite.row(87, |row| {
        let long = "a".repeat(254);
        for name in [
            "",
            "A",
            "-a",
            "a-",
            "a..b",
            "a/b",
            ".",
            "..",
            &long,
            "é",
            "ａ",
            "\u{200f}a",
            "a\0",
            "a b",
            "a_b",
            ".a",
            "a.",
            "%61",
        ] {
            row.invalid(&post, config_map(name).to_string(), "metadata.name");
        }
        row.accepted(&post, config_map(&long[1..]).to_string(), 201);
        row.accepted(&format!("DELETE {CMS}/{}", &long[1..]), "", 200);
    });
    suite.row(88, |row| {
        let long = "a".repeat(254);
        for prefix in ["A", "a b", "-", "é", "a/", ".."] {
            let body = json!({"metadata": {"generateName": prefix}}).to_string();
            row.refused(&post, body, 422, "Invalid");
        }
        // A long prefix is truncated before the random suffix is added, as in Kubernetes.
        let body = json!({"metadata": {"generateName": long}}).to_string();
        let answer = row.suite.ask(&format!("{post}?dryRun=All"), body);
        row.check(matches!(answer.code, 201 | 422), || answer.text());
    });
    suite.row(90, |row| {
        row.bad_request(
            &post,
            json!({"metadata": {"name": "x", "namespace": "other"}}).to_string(),
        );
        row.bad_request(&format!("PUT {CMS}/a"), config_map("b").to_string());
        let elsewhere = json!({"metadata": {"name": "a", "namespace": "n"}}).to_string();
        row.bad_request(&format!("PUT {CMS}/a"), elsewhere);
    });
}

/// A list of one never contains objects of the other, even if their keys share a prefix.
fn neighbours(suite: &mut Suite) {
    for (namespace, name) in [("n", "one"), ("n2", "two")] {
        let target = format!("/api/v1/namespaces/{namespace}/configmaps");
        suite.made(&target, &config_map(name));
    }
    for plural in ["a", "ab"] {
        suite.made(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            &json!({
                "metadata": {"name": format!("{plural}.near.example.com")},
                "spec": {
                    "group": "near.example.com", "scope": "Namespaced",
                    "names": {"plural": plural, "kind": plural.to_uppercase()},
                    "versions": [{
                        "name": "v1", "served": true, "storage": true,
                        "schema": {"openAPIV3Schema": {"type": "object"}},
                    }],
                },
            }),
        );
        let target = format!("/apis/near.example.com/v1/namespaces/ns/{plural}");
        let object = json!({
            "apiVersion": "near.example.com/v1", "kind": plural.to_uppercase(),
            "metadata": {"name": format!("of-{plural}")},
        });
        suite.until("the type is served", |suite| {
            suite.ask(&format!("GET {target}"), "").code == 200
        });
        suite.made(&target, &object);
    }
    suite.row(91, |row| {
        for (target, names) in [
            ("/api/v1/namespaces/n/configmaps", "one"),
            ("/api/v1/namespaces/n2/configmaps", "two"),
            ("/apis/near.example.com/v1/namespaces/ns/a", "of-a"),
            ("/apis/near.example.com/v1/namespaces/ns/ab", "of-ab"),
            ("/apis/near.example.com/v1/a", "of-a"),
        ] {
            let list = row.accepted(&format!("GET {target}"), "", 200);
            row.check(list.names() == names, || format!("{target}: {}", list.names()));
        }
    });
}
