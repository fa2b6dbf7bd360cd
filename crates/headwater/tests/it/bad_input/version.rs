//! Resource versions and continue tokens (B160–B176).

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use super::suite::{CMS, Row, Suite, config_map, escaped, version};

const MALFORMED: &[&str] =
    &["abc", "-1", "1.5", "%201", "%2B1", "0x10", "1e3", "18446744073709551616", "1_000", "%00"];
const FUTURE: &[&str] =
    &["999999999", "9223372036854775807", "9223372036854775808", "18446744073709551615"];

pub(crate) fn rows(suite: &mut Suite) {
    for name in ["b", "c"] {
        suite.made(CMS, &config_map(name));
    }
    versions(suite);
    matches(suite);
    tokens(suite);
    forgotten(suite);
}

fn versions(suite: &mut Suite) {
    suite.row(160, |row| {
        for version in MALFORMED {
            row.bad_request(&format!("GET {CMS}?resourceVersion={version}"), "");
        }
    });
    suite.row(161, |row| {
        for version in MALFORMED {
            row.bad_request(&format!("GET {CMS}/a?resourceVersion={version}"), "");
            row.bad_request(&format!("GET {CMS}?watch=1&resourceVersion={version}"), "");
        }
    });
    suite.row(162, |row| {
        row.accepted(&format!("GET {CMS}?resourceVersion=01"), "", 200);
        row.accepted(&format!("GET {CMS}/a?resourceVersion=01"), "", 200);
    });
    suite.row(163, |row| {
        for (n, version) in FUTURE.iter().enumerate() {
            // Each takes three seconds, so only two of them are also sent as a GET.
            let one = (n % 2 == 1).then(|| format!("{CMS}/a"));
            for target in one.into_iter().chain([CMS.to_owned()]) {
                let request = format!("GET {target}?resourceVersion={version}");
                let answer = row.refused(&request, "", 504, "Timeout");
                let status = answer.json();
                let cause = &status["details"]["causes"][0]["reason"];
                row.check(cause == "ResourceVersionTooLarge", || status.to_string());
                row.check(answer.head.contains("retry-after: "), || answer.head.clone());
            }
        }
    });
    suite.row(164, |row| {
        for version in FUTURE {
            let request = format!("GET {CMS}?watch=1&timeoutSeconds=1&resourceVersion={version}");
            let events = row.accepted(&request, "", 200).text();
            row.check(events.is_empty(), || format!("{version}: {events}"));
        }
    });
}

fn matches(suite: &mut Suite) {
    let first = suite.ask(&format!("GET {CMS}?limit=1"), "").json();
    let token = first["metadata"]["continue"].as_str().unwrap().to_owned();
    suite.row(165, |row| {
        for query in [
            "resourceVersionMatch=Exact",
            "resourceVersionMatch=Exact&resourceVersion=0",
            "resourceVersionMatch=Cats&resourceVersion=1",
            "resourceVersionMatch=NotOlderThan",
            &format!("resourceVersionMatch=NotOlderThan&continue={token}"),
        ] {
            row.refused(&format!("GET {CMS}?{query}"), "", 422, "Invalid");
        }
    });
    suite.row(166, |row| {
        for query in [
            "sendInitialEvents=true",
            "sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
            "watch=1&sendInitialEvents=true",
            "watch=1&sendInitialEvents=true&resourceVersionMatch=Exact&resourceVersion=1",
            "watch=1&resourceVersionMatch=NotOlderThan",
        ] {
            row.refused(&format!("GET {CMS}?{query}"), "", 422, "Invalid");
        }
    });
    suite.row(167, |row| {
        row.bad_request(&format!("GET {CMS}?limit=1&continue={token}&resourceVersion=1"), "");
        row.accepted(&format!("GET {CMS}?limit=1&continue={token}&resourceVersion=0"), "", 200);
    });
}

fn forged(content: &Value) -> String {
    URL_SAFE_NO_PAD.encode(content.to_string())
}

fn continued(token: &str) -> String {
    format!("GET {CMS}?limit=1&continue={}", escaped(token))
}

fn tokens(suite: &mut Suite) {
    let now = || json!(5);
    let content = |rv: Value, start: &str| json!({"v": "meta.k8s.io/v1", "rv": rv, "start": start});
    suite.row(168, |row| {
        let good = content(now(), "ns/a\u{0}");
        let mut other = good.clone();
        other["v"] = "meta.k8s.io/v9".into();
        for token in [
            "!!!".to_owned(),
            "a".to_owned(),
            format!("{}==", forged(&good)),
            STANDARD.encode("{\"v\":\"meta.k8s.io/v1\",\"rv\":5,\"start\":\"ÿþ?>\"}"),
            URL_SAFE_NO_PAD.encode("not json"),
            URL_SAFE_NO_PAD.encode("[]"),
            forged(&other),
            forged(&content(json!(0), "ns/a")),
            forged(&content(json!("5"), "ns/a")),
            forged(&content(json!(5.5), "ns/a")),
            URL_SAFE_NO_PAD
                .encode(r#"{"v":"meta.k8s.io/v1","rv":99999999999999999999,"start":"ns/a"}"#),
            forged(&content(now(), "")),
        ] {
            row.bad_request(&continued(&token), "");
        }
    });
    suite.row(169, |row| {
        for start in ["../../secrets/x", "ns/../../secrets", "..", "/../x", "a/../b", "./../x"] {
            row.bad_request(&continued(&forged(&content(now(), start))), "");
        }
    });
    suite.row(170, |row| {
        let token = forged(&content(json!(-1), "a\u{0}"));
        let list = row.accepted(&continued(&token), "", 200);
        row.check(list.names() == "b", || list.names());
    });
    suite.row(171, |row| {
        for rv in [json!(-2), json!(i64::MIN)] {
            row.bad_request(&continued(&forged(&content(rv, "a\u{0}"))), "");
        }
    });
    suite.row(172, |row| {
        let token = forged(&content(json!(999_999_999), "a\u{0}"));
        row.refused(&continued(&token), "", 504, "Timeout");
    });
    suite.row(174, |row| {
        // A token of ConfigMaps, sent for Secrets or another namespace, reads only the requested
        // ones.
        let first = row.accepted(&format!("GET {CMS}?limit=1"), "", 200).json();
        let token = escaped(first["metadata"]["continue"].as_str().unwrap());
        let there = format!("GET /api/v1/namespaces/n/configmaps?limit=1&continue={token}");
        let list = row.accepted(&there, "", 200);
        row.check(list.names() == "one", || list.names());
        let secrets = format!("GET /api/v1/namespaces/ns/secrets?limit=1&continue={token}");
        let list = row.accepted(&secrets, "", 200);
        row.check(list.names().is_empty(), || list.names());
    });
    suite.row(175, |row| {
        for length in [5_000, 40_000] {
            let token = forged(&content(now(), &"a".repeat(length)));
            row.bad_request(&continued(&token), "");
        }
    });
}

/// Requests for compacted history.
fn forgotten(suite: &mut Suite) {
    let old = suite.ask(&format!("GET {CMS}?limit=1"), "").json();
    let token = old["metadata"]["continue"].as_str().unwrap().to_owned();
    let changed = json!({"data": {"changed": "x"}}).to_string();
    let merge = format!("PATCH {CMS}/a\nContent-Type: application/merge-patch+json");
    let newest = version(&suite.ask(&merge, changed).json());
    let compact = format!("POST /debug/headwater/compact?revision={newest}");
    assert_eq!(suite.ask(&compact, "").code, 200);
    suite.until("the cache has noticed", |suite| suite.ask(&continued(&token), "").code == 410);
    suite.row(173, |row| {
        let answer = row.refused(&continued(&token), "", 410, "Expired");
        let next = answer.json()["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
        let list = row.accepted(&continued(&next), "", 200);
        row.check(list.names() == "b", || list.names());
    });
    suite.row(176, |row| {
        for from in ["1", version(&old).as_str()] {
            let request = format!("GET {CMS}?watch=1&timeoutSeconds=5&resourceVersion={from}");
            is_gone(row, &request);
        }
    });
}

fn is_gone(row: &mut Row<'_>, request: &str) {
    let answer = row.suite.ask(request, "");
    let event = answer.json();
    let in_stream = answer.code == 200
        && event["type"] == "ERROR"
        && event["object"]["code"] == 410
        && event["object"]["reason"] == "Expired";
    row.check(in_stream, || format!("{request}: {} {}", answer.code, answer.text()));
}
