//! Selectors and options (B140–B154).

use super::suite::{CMS, Suite, config_map, escaped};

pub(crate) fn rows(suite: &mut Suite) {
    labels(suite);
    fields(suite);
    options(suite);
}

fn by_label(selector: &str) -> String {
    format!("GET {CMS}?labelSelector={}", escaped(selector))
}

fn labels(suite: &mut Suite) {
    suite.row(140, |row| {
        for selector in [
            "a in (",
            "a in b",
            "=b",
            "a=b=c",
            "a,,b",
            ",",
            "(a)",
            "a!b",
            "!!a",
            "!a=b",
            "a>=5",
            "a in (b",
            "a notin",
            "a==",
            "a !",
            "!",
            "a b",
            "a in (b))",
        ] {
            // `a==` has an empty value, which is valid.
            if selector != "a==" {
                row.bad_request(&by_label(selector), "");
            }
        }
    });
    suite.row(141, |row| {
        for selector in ["a>x", "a<99999999999999999999", "a>", "a>1.5", "a<1,b>x"] {
            row.bad_request(&by_label(selector), "");
        }
    });
    suite.row(142, |row| {
        let (long, prefix) = ("x".repeat(64), format!("{}/a", "p".repeat(254)));
        for selector in [
            "-a",
            "a-=b",
            "a=-b",
            "é",
            "a=é",
            "a/b/c",
            "/a",
            "A B",
            "a in (é)",
            &long,
            &prefix,
            &format!("a={long}"),
        ] {
            row.bad_request(&by_label(selector), "");
        }
    });
    suite.row(143, |row| {
        for selector in ["a in ()", "a in (,)", "a=", "in", "notin", "in in (in)", "!in", "a=in"] {
            row.accepted(&by_label(selector), "", 200);
        }
    });
    suite.row(144, |row| {
        let values: Vec<String> = (0..8_000).map(|n| format!("v{n}")).collect();
        let values = values.join(",");
        let raw = format!("GET {CMS}?labelSelector=a+in+({values})");
        row.accepted(&raw, "", 200);
        let terms: Vec<String> = (0..5_000).map(|n| format!("l{n}")).collect();
        row.accepted(&format!("GET {CMS}?labelSelector={}", terms.join(",")), "", 200);
        let long = format!("GET {CMS}?labelSelector=a+in+({values},{values})");
        let answer = row.suite.ask(&long, "");
        row.check(answer.code == 414, || format!("{} {}", answer.code, answer.text()));
    });
    suite.row(145, |row| {
        for query in [
            "labelSelector=a%",
            "labelSelector=a%4",
            "labelSelector=%zz",
            "fieldSelector=%zz",
            "labelSelector=a%ff",
            "limit=%zz",
            "x=%zz",
        ] {
            row.bad_request(&format!("GET {CMS}?{query}"), "");
            row.bad_request(&format!("DELETE {CMS}?{query}"), "");
        }
    });
}

fn fields(suite: &mut Suite) {
    let by_field = |selector: &str| format!("GET {CMS}?fieldSelector={}", escaped(selector));
    suite.row(146, |row| {
        for selector in [
            "nosuch=x",
            "spec.nodeName=x",
            "metadata.name",
            "metadata.name=a\\x",
            "metadata.name=a=b",
            "metadata.name>a",
            "=a",
        ] {
            row.bad_request(&by_field(selector), "");
        }
    });
    suite.row(147, |row| {
        let list = row.accepted(&by_field("metadata.name=a,metadata.name=b"), "", 200);
        row.check(list.names().is_empty(), || list.names());
    });
}

fn options(suite: &mut Suite) {
    suite.row(148, |row| {
        for limit in ["word", "1.5", "", "9223372036854775808", "1e3", "%201"] {
            row.bad_request(&format!("GET {CMS}?limit={limit}"), "");
        }
    });
    suite.row(149, |row| {
        let all = row.accepted(&format!("GET {CMS}"), "", 200).names();
        for limit in ["0", "-1", "-9223372036854775808", "9223372036854775807"] {
            let list = row.accepted(&format!("GET {CMS}?limit={limit}"), "", 200);
            row.check(list.names() == all, || list.names());
        }
    });
    suite.row(150, |row| {
        for seconds in ["word", "9223372036854775808", "1.5", ""] {
            row.bad_request(&format!("GET {CMS}?watch=1&timeoutSeconds={seconds}"), "");
        }
        row.accepted(&format!("GET {CMS}?timeoutSeconds={}", i64::MAX), "", 200);
        let watch = format!("GET {CMS}?watch=1&resourceVersion=0&timeoutSeconds=-1");
        row.accepted(&watch, "", 200);
        // Capped at a year: such a watch must be open, so only the first event is read.
        let watch = format!("GET {CMS}?watch=1&resourceVersion=0&timeoutSeconds={}", i64::MAX);
        let first = row.suite.first_bytes(&watch, "\"type\":");
        row.check(first.starts_with("HTTP/1.1 200"), || first);
    });
    suite.row(151, |row| {
        for timeout in ["abc", "5", "-", "1x"] {
            row.bad_request(&format!("GET {CMS}?timeout={timeout}"), "");
            row.bad_request(&format!("POST {CMS}?timeout={timeout}"), config_map("v").to_string());
        }
        row.accepted(&format!("GET {CMS}?timeout=999h"), "", 200);
    });
    suite.row(152, |row| {
        for word in ["maybe", "true", "1", "yes", ""] {
            let request = format!("GET {CMS}?watch={word}&timeoutSeconds=1&resourceVersion=0");
            let events = row.accepted(&request, "", 200).text();
            row.check(events.starts_with("{\"type\":\"ADDED\""), || format!("{word}: {events}"));
        }
        for word in ["false", "0", "False"] {
            let list = row.accepted(&format!("GET {CMS}?watch={word}"), "", 200);
            row.check(list.json()["kind"] == "ConfigMapList", || list.text());
        }
    });
    suite.row(153, |row| {
        let list = row.accepted(&format!("GET {CMS}?limit=1&limit=500"), "", 200);
        row.check(!list.names().contains(' '), || list.names());
        row.bad_request(&format!("GET {CMS}?limit=x&limit=1"), "");
        row.accepted(&format!("GET {CMS}?limit=1&limit=x"), "", 200);
    });
    suite.row(154, |row| {
        row.accepted(&format!("GET {CMS}?nosuch=1&a=%20&=x&&"), "", 200);
    });
}
