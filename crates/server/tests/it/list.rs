//! Lists: the matrix of versions, pages, tokens, shape and order (S3).

use headwater_json::{Value, json};

use crate::api::{Api, CMS, PODS, config_map, escaped, labelled, pod, version};

/// The namespace of the matrix: `a` changed, `b` deleted and `d` created after `old`.
async fn changed() -> (Api, String) {
    let api = Api::start().await;
    api.config_maps(&["a", "b", "c"]).await;
    let old = api.get(CMS).await.version();
    api.merge(&format!("{CMS}/a"), &json!({ "data": { "v": "2" } })).await.is(200, "");
    api.delete(&format!("{CMS}/b")).await.is(200, "");
    api.config_maps(&["d"]).await;
    (api, old)
}

/// S3.2, S3.3, R34
#[tokio::test(start_paused = true)]
async fn a_list_respects_resource_version_and_match() {
    let (api, old) = changed().await;
    // version, match, limit, listed names, whether it is the old state
    let rows: [(&str, &str, &str, &str, bool); 16] = [
        ("", "", "", "a c d", false),
        ("", "", "2", "a c", false),
        ("0", "", "", "a c d", false),
        ("0", "", "2", "a c d", false),
        ("0", "NotOlderThan", "", "a c d", false),
        ("0", "NotOlderThan", "2", "a c d", false),
        ("old", "", "", "a c d", false),
        ("old", "", "2", "a b", true),
        ("old", "", "3", "a b c", true),
        ("old", "NotOlderThan", "", "a c d", false),
        ("old", "NotOlderThan", "2", "a c", false),
        ("old", "Exact", "", "a b c", true),
        ("old", "Exact", "2", "a b", true),
        ("", "", "0", "a c d", false),
        ("", "", "-1", "a c d", false),
        ("", "", "3", "a c d", false),
    ];
    for (at, matched, limit, names, is_old) in rows {
        let at = if at == "old" { &old } else { at };
        let mut target = format!("{CMS}?resourceVersion={at}");
        if !matched.is_empty() {
            target += &format!("&resourceVersionMatch={matched}");
        }
        if !limit.is_empty() {
            target += &format!("&limit={limit}");
        }
        let answer = api.get(&target).await;
        answer.lists(names);
        assert_eq!(answer.version() == old, is_old, "{target}");
        let first = &answer.json()["items"][0];
        assert_eq!(first.get("data").is_none(), is_old, "{target}");
    }
}

/// S1.31, S3.2, S3.12, S8.26
#[tokio::test(start_paused = true)]
async fn a_list_with_invalid_options_is_rejected() {
    let (api, old) = changed().await;
    let token = api.get(&format!("{CMS}?limit=1")).await.token();
    let forbidden = "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless \
                     resourceVersion is provided";
    let unknown =
        "Unsupported value: \"Bogus\": supported values: \"Exact\", \"NotOlderThan\", \"\"";
    let rows: [(String, u16, &str, &str); 22] = [
        ("resourceVersionMatch=NotOlderThan".into(), 422, "Invalid", forbidden),
        ("resourceVersionMatch=Exact".into(), 422, "Invalid", forbidden),
        (
            "resourceVersion=0&resourceVersionMatch=Exact".into(),
            422,
            "Invalid",
            "resourceVersionMatch \\\"exact\\\" is forbidden for resourceVersion \\\"0\\\"",
        ),
        ("resourceVersion=1&resourceVersionMatch=Bogus".into(), 422, "Invalid", unknown),
        ("resourceVersion=0&resourceVersionMatch=Bogus".into(), 422, "Invalid", unknown),
        ("resourceVersion=abc".into(), 400, "BadRequest", "invalid resource version"),
        ("resourceVersion=abc&limit=2".into(), 400, "BadRequest", "invalid resource version"),
        ("resourceVersion=-1".into(), 400, "BadRequest", "invalid resource version"),
        ("resourceVersion=1.5".into(), 400, "BadRequest", "invalid resource version"),
        ("resourceVersion=%201".into(), 400, "BadRequest", "invalid resource version"),
        ("resourceVersion=%2B1".into(), 400, "BadRequest", "invalid resource version"),
        ("resourceVersion=0x10".into(), 400, "BadRequest", "invalid resource version"),
        ("resourceVersion=18446744073709551616".into(), 400, "BadRequest", "invalid resource"),
        (
            format!("limit=1&continue={token}&resourceVersion={old}"),
            400,
            "BadRequest",
            "specifying resource version is not allowed when using continue",
        ),
        (
            format!("limit=1&continue={token}&resourceVersion={old}&resourceVersionMatch=Exact"),
            422,
            "Invalid",
            "resourceVersionMatch is forbidden when continue is provided",
        ),
        ("limit=1&continue=notatoken".into(), 400, "BadRequest", "continue key is not valid"),
        ("limit=abc".into(), 400, "BadRequest", "strconv.ParseInt: parsing \\\"abc\\\""),
        ("limit=1.5".into(), 400, "BadRequest", "strconv.ParseInt"),
        ("limit=99999999999999999999".into(), 400, "BadRequest", "strconv.ParseInt"),
        ("timeoutSeconds=x".into(), 400, "BadRequest", "strconv.ParseInt"),
        (
            "sendInitialEvents=true".into(),
            422,
            "Invalid",
            "sendInitialEvents is forbidden for list",
        ),
        ("timeout=abc".into(), 400, "BadRequest", "invalid timeout specified in the request URL"),
    ];
    for (query, code, reason, part) in rows {
        let answer = api.get(&format!("{CMS}?{query}")).await;
        let part = part.replace("\\\"", "\"");
        let said = answer.fails(code, reason, "")["message"].as_str().unwrap().to_owned();
        assert!(said.contains(&part), "{query}: {said}");
    }
}

/// S1.40, S3.4, R34
#[tokio::test(start_paused = true)]
async fn a_future_resource_version_times_out_with_a_retry_hint() {
    let api = Api::start().await;
    api.config_maps(&["a"]).await;
    for query in [
        "resourceVersion=99999999999",
        "resourceVersion=99999999999&limit=2",
        "resourceVersion=99999999999&resourceVersionMatch=Exact",
        "resourceVersion=99999999999&resourceVersionMatch=Exact&limit=2",
        "resourceVersion=99999999999&resourceVersionMatch=NotOlderThan",
        "resourceVersion=9223372036854775807",
        "resourceVersion=9223372036854775808",
        "resourceVersion=18446744073709551615",
    ] {
        for target in [format!("{CMS}?{query}"), format!("/api/v1/configmaps?{query}")] {
            check_too_large(&api, &target).await;
        }
    }
    for at in ["99999999999", "9223372036854775808", "18446744073709551615"] {
        check_too_large(&api, &format!("{CMS}/a?resourceVersion={at}")).await;
    }
}

async fn check_too_large(api: &Api, target: &str) {
    let answer = api.get(target).await;
    let status = answer.fails(504, "Timeout", "Timeout: Too large resource version: ");
    assert_eq!(status["details"]["causes"][0]["reason"], "ResourceVersionTooLarge", "{target}");
    assert_eq!(status["details"]["causes"][0]["message"], "Too large resource version");
    assert_eq!(status["details"]["retryAfterSeconds"], 1, "{target}");
    assert_eq!(answer.header("retry-after"), "1", "{target}");
}

/// S3.3, S5.7, R34
#[tokio::test(start_paused = true)]
async fn a_waiting_read_returns_when_its_resource_version_arrives() {
    let api = Api::start().await;
    let now: u64 = api.get(CMS).await.version().parse().unwrap();
    let ahead = format!("{CMS}?resourceVersion={}&resourceVersionMatch=NotOlderThan", now + 2);
    let (list, ()) = tokio::join!(api.get(&ahead), api.config_maps(&["a", "b"]));
    list.lists("a b");
}

/// S1.35, S1.43, S3.5
#[tokio::test(start_paused = true)]
async fn a_get_is_at_least_as_new_as_its_resource_version() {
    let api = Api::start().await;
    let made = api.create(CMS, &config_map("a")).await;
    for at in ["", "0", "1", &version(&made), &format!("0{}", version(&made))] {
        let answer = api.get(&format!("{CMS}/a?resourceVersion={at}")).await;
        assert_eq!(answer.is(200, "").json(), made, "{at}");
        let missing = api.get(&format!("{CMS}/missing?resourceVersion={at}")).await;
        missing.fails(404, "NotFound", "configmaps \"missing\" not found");
    }
    for at in ["abc", "-1", "1.5", "%201", "0x10", "1e3", "18446744073709551616"] {
        let answer = api.get(&format!("{CMS}/a?resourceVersion={at}")).await;
        answer.fails(400, "BadRequest", "");
    }
}

/// S3.10
#[tokio::test(start_paused = true)]
async fn remaining_item_counts_are_correct_for_concurrent_lists() {
    let api = Api::start().await;
    api.create("/api/v1/namespaces", &json!({ "metadata": { "name": "other" } })).await;
    api.create("/api/v1/namespaces/other/configmaps", &config_map("x")).await;
    api.config_maps(&["a", "b", "c"]).await;
    let targets = [CMS, "/api/v1/configmaps"];
    let mut left = Vec::new();
    for target in targets {
        let all = api.get(target).await.json()["items"].as_array().unwrap().len();
        left.push((target, all, String::new()));
    }
    assert!(left[0].1 < left[1].1, "one is of more than the other");
    for _page in 1..left[0].1 {
        for (target, left, token) in &mut left {
            let page = api.get(&format!("{target}?limit=1&continue={token}")).await;
            *left -= 1;
            assert_eq!(page.json()["metadata"]["remainingItemCount"], *left, "{target}");
            *token = page.token();
        }
    }
}

/// S3.10, S3.13, B284
#[tokio::test(start_paused = true)]
async fn pages_of_one_list_show_one_state() {
    let api = Api::start().await;
    api.config_maps(&["a", "b", "c", "d", "e"]).await;
    let first = api.get(&format!("{CMS}?limit=2")).await;
    first.lists("a b");
    assert_eq!(first.json()["metadata"]["remainingItemCount"], 3);
    api.config_maps(&["bb", "f"]).await;
    api.delete(&format!("{CMS}/d")).await.is(200, "");
    api.merge(&format!("{CMS}/c"), &json!({ "data": { "v": "2" } })).await.is(200, "");

    let token = first.token();
    let second = api.get(&format!("{CMS}?limit=2&continue={token}")).await;
    second.lists("c d");
    assert_eq!(second.version(), first.version());
    assert_eq!(second.json()["metadata"]["remainingItemCount"], 1);
    assert!(second.json()["items"][0].get("data").is_none());
    let third = api.get(&format!("{CMS}?limit=2&continue={}", second.token())).await;
    third.lists("e");
    let metadata = third.json()["metadata"].clone();
    assert_eq!(metadata, json!({ "resourceVersion": first.version() }));

    // A token may be reused with another limit, without one, and with selectors.
    api.get(&format!("{CMS}?limit=3&continue={token}")).await.lists("c d e");
    api.get(&format!("{CMS}?continue={token}")).await.lists("c d e");
    api.get(&format!("{CMS}?limit=9&continue={token}&fieldSelector=metadata.name%3Dd"))
        .await
        .lists("d");
    // At version 0 the limit is ignored.
    api.get(&format!("{CMS}?limit=1&continue={token}&resourceVersion=0")).await.lists("c d e");
    // The limit equals the number of objects: no token.
    let all = api.get(&format!("{CMS}?limit=6")).await;
    assert_eq!(all.lists("a b bb c e f").token(), "");
}

/// S3.13
#[tokio::test(start_paused = true)]
async fn a_continue_token_works_for_another_namespace() {
    let api = Api::start().await;
    api.config_maps(&["a", "b", "c"]).await;
    api.create("/api/v1/namespaces", &json!({ "metadata": { "name": "other" } })).await;
    let other = "/api/v1/namespaces/other/configmaps";
    for name in ["a", "b2", "d"] {
        api.create(other, &config_map(name)).await;
    }
    let token = api.get(&format!("{CMS}?limit=2")).await.token();
    api.get(&format!("{other}?continue={token}&limit=9")).await.lists("b2 d");
    // Across namespaces a key is `namespace/name`.
    let all = api.get("/api/v1/configmaps?limit=4").await;
    all.lists("a b c a");
    api.get(&format!("/api/v1/configmaps?limit=4&continue={}", all.token())).await.lists("b2 d");
}

/// S3.11
#[tokio::test(start_paused = true)]
async fn a_page_with_a_selector_has_no_remaining_count() {
    let api = Api::start().await;
    for (index, name) in ["a", "b", "c", "d", "e", "f"].into_iter().enumerate() {
        api.create(CMS, &labelled(name, &format!("odd={}", index % 2))).await;
    }
    let first = api.get(&format!("{CMS}?limit=2&labelSelector=odd%3D1")).await;
    first.lists("b d");
    assert!(first.json()["metadata"].get("remainingItemCount").is_none());
    let second =
        api.get(&format!("{CMS}?limit=2&labelSelector=odd%3D1&continue={}", first.token())).await;
    assert_eq!(second.lists("f").token(), "");
    // A `metadata.name` selector counts as a selector too.
    let named = format!("{CMS}?limit=1&fieldSelector=metadata.name!%3Da");
    let answer = api.get(&named).await;
    assert!(answer.lists("b").json()["metadata"].get("remainingItemCount").is_none());
}

fn token(content: &Value) -> String {
    use base64::Engine;
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(content.to_string())
}

/// S3.12, S3.13
#[tokio::test(start_paused = true)]
async fn invalid_continue_tokens_are_rejected() {
    let api = Api::start().await;
    api.config_maps(&["a", "b"]).await;
    api.create("/api/v1/namespaces/ns/secrets", &json!({ "metadata": { "name": "s" } })).await;
    let rv: u64 = api.get(CMS).await.version().parse().unwrap();
    let rows = [
        json!({ "v": "v2", "rv": rv, "start": "a\0" }),
        json!({ "v": "meta.k8s.io/v1", "rv": 0, "start": "a\0" }),
        json!({ "v": "meta.k8s.io/v1", "rv": -2, "start": "a\0" }),
        json!({ "v": "meta.k8s.io/v1", "rv": "1", "start": "a\0" }),
        json!({ "v": "meta.k8s.io/v1", "rv": 1.5, "start": "a\0" }),
        json!({ "v": "meta.k8s.io/v1", "rv": rv, "start": "" }),
        json!({ "v": "meta.k8s.io/v1", "rv": rv, "start": "../../secrets/ns/a\0" }),
        json!({ "v": "meta.k8s.io/v1", "rv": rv, "start": "a/../../secrets/a\0" }),
        json!({ "v": "meta.k8s.io/v1", "rv": rv, "start": ".." }),
        json!("text"),
    ];
    for content in rows {
        let target = format!("{CMS}?limit=1&continue={}", token(&content));
        let answer = api.get(&target).await;
        answer.fails(400, "BadRequest", "");
    }
    let plain = token(&json!({ "v": "meta.k8s.io/v1", "rv": rv, "start": "a\0" }));
    for bad in [format!("{plain}="), format!("{plain}!"), "e30".into(), "a".repeat(5000)] {
        api.get(&format!("{CMS}?limit=1&continue={bad}")).await.fails(400, "BadRequest", "");
    }
    api.get(&format!("{CMS}?limit=1&continue={plain}")).await.lists("b");
    let future = token(&json!({ "v": "meta.k8s.io/v1", "rv": 99_999_999, "start": "a\0" }));
    check_too_large(&api, &format!("{CMS}?limit=1&continue={future}")).await;
    let latest = token(&json!({ "v": "meta.k8s.io/v1", "rv": -1, "start": "a\0" }));
    api.config_maps(&["ab"]).await;
    api.get(&format!("{CMS}?limit=9&continue={latest}")).await.lists("ab b");
}

/// S3.14, S6.21
#[tokio::test(start_paused = true)]
async fn an_expired_continue_token_is_answered_with_a_new_one() {
    let api = Api::start().await;
    api.config_maps(&["a", "b", "c", "d"]).await;
    let first = api.get(&format!("{CMS}?limit=2")).await;
    api.config_maps(&["cc"]).await;
    let last = api.create(CMS, &config_map("e")).await;
    api.compact(&version(&last)).await;
    let gone = api.get(&format!("{CMS}?limit=2&continue={}", first.token())).await;
    let message = "The provided continue parameter is too old to display a consistent list result.";
    gone.fails(410, "Expired", message);
    let rest = api.get(&format!("{CMS}?limit=2&continue={}", gone.token())).await;
    rest.lists("c cc");
    assert!(rest.version().parse::<u64>().unwrap() >= version(&last).parse().unwrap());
    // The remainder is consistent in itself.
    api.config_maps(&["f"]).await;
    let end = api.get(&format!("{CMS}?limit=9&continue={}", rest.token())).await;
    assert_eq!(end.lists("d e").version(), rest.version());
}

/// S3.15, S6.21, R34
#[tokio::test(start_paused = true)]
async fn an_exact_read_of_a_compacted_version_fails_and_not_older_than_succeeds() {
    let api = Api::start().await;
    api.config_maps(&["a", "b"]).await;
    let old = api.get(CMS).await.version();
    let last = api.create(CMS, &config_map("c")).await;
    api.compact(&version(&last)).await;
    let message = "The resourceVersion for the provided list is too old.";
    for query in ["resourceVersionMatch=Exact", "resourceVersionMatch=Exact&limit=1", "limit=1"] {
        let answer = api.get(&format!("{CMS}?resourceVersion={old}&{query}")).await;
        answer.fails(410, "Expired", message);
    }
    for query in ["", "&resourceVersionMatch=NotOlderThan"] {
        api.get(&format!("{CMS}?resourceVersion={old}{query}")).await.lists("a b c");
    }
}

/// S1.34, S3.8, S3.20, S3.21, S3.23
#[tokio::test(start_paused = true)]
async fn an_empty_list_has_a_resource_version_and_no_items() {
    let api = Api::start().await;
    for target in [CMS, "/api/v1/namespaces/nowhere/configmaps", "/api/v1/nodes"] {
        let list = api.get(target).await.is(200, "\"items\":[]").json();
        assert!(version(&list).parse::<u64>().unwrap() > 0, "{target}");
        assert_eq!(list["metadata"].as_object().unwrap().len(), 1, "{target}");
    }
    let list = api.get("/apis/apps/v1/namespaces/ns/deployments").await.json();
    assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("DeploymentList"), &json!("apps/v1")));
}

/// S3.21, S3.22
#[tokio::test(start_paused = true)]
async fn a_list_is_in_key_order_and_its_items_have_no_type() {
    let api = Api::start().await;
    api.config_maps(&["b", "a", "a.b", "a-b", "a0", "c"]).await;
    let list = api.get(CMS).await.lists("a a-b a.b a0 b c").json();
    assert_eq!(list["kind"], "ConfigMapList");
    assert_eq!(list["apiVersion"], "v1");
    for item in list["items"].as_array().unwrap() {
        assert!(item.get("kind").is_none() && item.get("apiVersion").is_none(), "{item}");
        assert!(item["metadata"].get("selfLink").is_none());
    }
    let text = api.get(CMS).await.text();
    assert!(text.starts_with("{\"kind\":\"ConfigMapList\",\"apiVersion\":\"v1\",\"metadata\":{"));
    assert!(text.ends_with("}\n"));
}

/// S3.3, S5.6, R22
#[tokio::test(start_paused = true)]
async fn a_list_returns_every_acknowledged_write() {
    let api = Api::start().await;
    for count in 1..=20 {
        let made = api.create(CMS, &config_map(&format!("c{count:02}"))).await;
        for query in ["", "limit=500", &format!("resourceVersion={}", version(&made))] {
            let list = api.get(&format!("{CMS}?{query}")).await;
            assert_eq!(list.json()["items"].as_array().unwrap().len(), count, "{query}");
            assert!(list.version().parse::<u64>().unwrap() >= version(&made).parse().unwrap());
        }
    }
}

/// S3.30
#[tokio::test(start_paused = true)]
async fn label_selectors_select() {
    let api = Api::start().await;
    for (name, labels) in [
        ("a", "env=prod,tier=1"),
        ("b", "env=dev,tier=2"),
        ("c", "tier=3"),
        ("d", ""),
        ("e", "env="),
    ] {
        api.create(CMS, &labelled(name, labels)).await;
    }
    for (selector, names) in [
        ("env=prod", "a"),
        ("env==prod", "a"),
        ("env!=prod", "b c d e"),
        ("env in (prod,dev)", "a b"),
        ("env in ( prod , dev )", "a b"),
        ("env notin (prod)", "b c d e"),
        ("env", "a b e"),
        ("!env", "c d"),
        ("tier>1", "b c"),
        ("tier<3", "a b"),
        ("env>1", ""),
        ("env=prod,tier=1", "a"),
        ("env in (prod,dev),tier!=2", "a"),
        ("env=", "e"),
        ("env in ()", "e"),
        ("env in (,)", "e"),
        ("env in (prod,)", "a e"),
        ("env notin ()", "a b c d"),
        (" env = prod ", "a"),
        ("", "a b c d e"),
        ("  ", "a b c d e"),
        ("env=prod,env=dev", ""),
        ("in", ""),
        ("notin notin (in)", "a b c d e"),
        ("in=in", ""),
    ] {
        api.get(&format!("{CMS}?labelSelector={}", escaped(selector))).await.lists(names);
    }
}

/// S3.31
#[tokio::test(start_paused = true)]
async fn invalid_selectors_are_rejected_by_every_verb() {
    let api = Api::start().await;
    api.config_maps(&["a"]).await;
    let long = format!("a={}", "x".repeat(64));
    for selector in [
        "env=prod=x",
        "env in prod",
        "=x",
        "a b",
        "env>x",
        ",",
        "-bad=1",
        "env in (a",
        &long,
        "a in (",
        "a=b=c",
        "a,,b",
        "(a)",
        "a!b",
        "!!a",
        "!a=b",
        "a>=5",
        "a<99999999999999999999",
        "a>-1",
        "a=é",
        "a in (b c)",
        "a in b)",
        "a notin",
        "a,",
        "A_/b=c",
        "a/b/c=d",
        "/a",
    ] {
        let query = format!("labelSelector={}", escaped(selector));
        for request in [
            format!("GET {CMS}?{query}"),
            format!("GET {CMS}?watch=true&{query}"),
            format!("DELETE {CMS}?{query}"),
        ] {
            let answer = api.send(&request, "").await;
            answer.fails(400, "BadRequest", "");
        }
    }
    let wanted = "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt";
    let said = api.get(&format!("{CMS}?labelSelector=a%20b")).await;
    said.fails(400, "BadRequest", wanted);
    api.get(CMS).await.lists("a");
}

/// S3.32, S3.33, S3.35
#[tokio::test(start_paused = true)]
async fn field_selectors_select_by_name_and_namespace() {
    let api = Api::start().await;
    api.config_maps(&["a", "b", "c"]).await;
    api.create("/api/v1/namespaces", &json!({ "metadata": { "name": "other" } })).await;
    api.create("/api/v1/namespaces/other/configmaps", &config_map("a")).await;
    for (target, selector, names) in [
        (CMS, "metadata.name=a", "a"),
        (CMS, "metadata.name==a", "a"),
        (CMS, "metadata.name!=a", "b c"),
        (CMS, "metadata.name=zz", ""),
        (CMS, "metadata.namespace=ns", "a b c"),
        (CMS, "metadata.namespace=other", ""),
        (CMS, "metadata.name=a,metadata.name=b", ""),
        (CMS, "metadata.name=a,metadata.namespace=ns", "a"),
        (CMS, "metadata.name=a\\,b", ""),
        (CMS, "", "a b c"),
        (CMS, ",", "a b c"),
        (CMS, "metadata.name=a,", "a"),
        ("/api/v1/configmaps", "metadata.name=a", "a a"),
        ("/api/v1/configmaps", "metadata.namespace=other", "a"),
        ("/api/v1/configmaps", "metadata.namespace!=other", "a b c"),
    ] {
        let target = format!("{target}?fieldSelector={}", escaped(selector));
        api.get(&target).await.lists(names);
    }
    let known = "only \"metadata.name\", \"metadata.namespace\"";
    for (target, selector, message) in [
        (CMS, "data.x=1", format!("\"data.x\" is not a known field selector: {known}")),
        (CMS, "metadata.name", "invalid selector: 'metadata.name'; ".into()),
        (
            CMS,
            "metadata.labels=x",
            format!("\"metadata.labels\" is not a known field selector: {known}"),
        ),
        (PODS, "spec.containers=x", "field label not supported: spec.containers".into()),
        (PODS, "metadata.name=a\\x", "".into()),
    ] {
        let query = format!("fieldSelector={}", escaped(selector));
        for request in [
            format!("GET {target}?{query}"),
            format!("GET {target}?watch=true&{query}"),
            format!("DELETE {target}?{query}"),
        ] {
            api.send(&request, "").await.fails(400, "BadRequest", &message);
        }
    }
}

/// S3.34
#[tokio::test(start_paused = true)]
async fn field_selectors_select_by_the_fields_of_a_kind() {
    let api = Api::start().await;
    api.create(PODS, &pod("a", "n1")).await;
    let mut b = pod("b", "");
    b["spec"]["restartPolicy"] = "Never".into();
    b["spec"]["serviceAccountName"] = "sa1".into();
    api.create(PODS, &b).await;
    let mut c = pod("c", "");
    c["spec"]["hostNetwork"] = true.into();
    c["spec"]["schedulerName"] = "other".into();
    api.create(PODS, &c).await;
    for (selector, names) in [
        ("spec.nodeName=n1", "a"),
        ("spec.nodeName=", "b c"),
        ("spec.nodeName!=n1", "b c"),
        ("spec.host=n1", "a"),
        ("status.phase=Pending", "a b c"),
        ("status.phase!=Running", "a b c"),
        ("status.phase=Running", ""),
        ("spec.restartPolicy=Never", "b"),
        ("spec.restartPolicy=Always", "a c"),
        ("spec.serviceAccountName=sa1", "b"),
        ("spec.schedulerName=other", "c"),
        ("spec.schedulerName=default-scheduler", "a b"),
        ("spec.hostNetwork=true", "c"),
        ("spec.hostNetwork=false", "a b"),
        ("status.podIP=", "a b c"),
        ("status.podIPs=", "a b c"),
        ("status.nominatedNodeName=", "a b c"),
        ("spec.nodeName=n1,status.phase=Pending", "a"),
        ("spec.nodeName=n1,status.phase=Running", ""),
    ] {
        api.get(&format!("{PODS}?fieldSelector={}", escaped(selector))).await.lists(names);
    }
    let secrets = "/api/v1/namespaces/ns/secrets";
    api.create(secrets, &json!({ "metadata": { "name": "s" }, "type": "a/b" })).await;
    api.create(secrets, &json!({ "metadata": { "name": "t" } })).await;
    api.get(&format!("{secrets}?fieldSelector=type%3Da%2Fb")).await.lists("s");
    api.get(&format!("{secrets}?fieldSelector=type%3DOpaque")).await.lists("t");
    api.get("/api/v1/namespaces?fieldSelector=status.phase%3DTerminating").await.lists("");
    api.get("/api/v1/namespaces?fieldSelector=metadata.name%3Dns").await.lists("ns");
    api.get("/api/v1/namespaces?fieldSelector=metadata.namespace%3Dns").await.fails(
        400,
        "BadRequest",
        "field label not supported: metadata.namespace",
    );
}

/// S3.7, S3.34, S5.30
#[tokio::test(start_paused = true)]
async fn events_are_read_without_the_cache() {
    let api = Api::start().await;
    let events = "/api/v1/namespaces/ns/events";
    for name in ["a", "b", "c"] {
        let about = json!({ "kind": "Pod", "name": name, "namespace": "ns" });
        let source = if name == "c" { json!({ "component": "kubelet" }) } else { json!({}) };
        let event = json!({
            "metadata": { "name": name }, "involvedObject": about, "reason": "Because",
            "reportingComponent": "me", "reportingInstance": "me-1", "type": "Normal",
            "source": source,
        });
        api.create(events, &event).await;
    }
    let page = api.get(&format!("{events}?resourceVersion=0&limit=2")).await;
    page.lists("a b");
    assert_eq!(page.json()["metadata"]["remainingItemCount"], 1);
    for query in ["", "&resourceVersionMatch=Exact", "&resourceVersionMatch=NotOlderThan"] {
        let answer = api.get(&format!("{events}?resourceVersion=999999999{query}")).await;
        let status = answer.fails(504, "Timeout", "Timeout: Too large resource version");
        assert_eq!(status["details"].get("retryAfterSeconds"), None, "{query}");
        assert_eq!(answer.header("retry-after"), "", "{query}");
    }
    let newer = "/apis/events.k8s.io/v1/namespaces/ns/events";
    for (target, selector, names) in [
        (events, "involvedObject.name=b", "b"),
        // Events without a source have the component that reports them.
        (events, "source=me", "a b"),
        (events, "source=kubelet", "c"),
        (newer, "regarding.name=b", "b"),
        (newer, "regarding.kind=Pod,reason=Because,type=Normal", "a b c"),
        (newer, "reportingController=me,regarding.name!=b", "a c"),
        (newer, "metadata.name=c", "c"),
    ] {
        let target = format!("{target}?fieldSelector={}", escaped(selector));
        api.get(&target).await.lists(names);
    }
    for (target, label) in [
        (newer, "involvedObject.name"),
        (newer, "reportingComponent"),
        (newer, "source"),
        (events, "regarding.name"),
    ] {
        let answer = api.get(&format!("{target}?fieldSelector={label}%3Dx")).await;
        let message = format!("field label not supported: {label}");
        answer.fails(400, "BadRequest", &message);
    }
}

/// Large objects are sent without copying, small ones are copied; the response is the same.
#[tokio::test(start_paused = true)]
async fn large_and_small_objects_appear_in_one_list() {
    let api = Api::start().await;
    // Chunks end with either kind, or hold only one kind.
    let sizes = [0, 9_000, 1, 3_000, 70_000, 10, 2_048, 40_000, 0, 0, 30_000, 5];
    for (index, size) in sizes.iter().enumerate() {
        let mut map = config_map(&format!("m{index:02}"));
        map["data"] = json!({ "text": "\u{e9}<".repeat(*size / 3) });
        api.post(CMS, &map).await.is(201, "");
    }
    let list = api.get(CMS).await;
    list.is(200, "");
    let text = String::from_utf8(list.body.to_vec()).unwrap();
    assert!(text.ends_with("]}\n"), "it is whole");
    let items = list.json()["items"].as_array().unwrap().clone();
    assert_eq!(items.len(), sizes.len());
    for (index, item) in items.iter().enumerate() {
        let mut alone = api.get(&format!("{CMS}/m{index:02}")).await.json();
        for key in ["kind", "apiVersion"] {
            alone.as_object_mut().unwrap().remove(key);
        }
        assert_eq!(*item, alone);
    }
    for few in ["?limit=1", "?limit=4", "?fieldSelector=metadata.name%3Dm04"] {
        let part = api.get(&format!("{CMS}{few}")).await.json();
        let found = part["items"].as_array().unwrap();
        let first = items.iter().position(|item| *item == found[0]).unwrap();
        assert_eq!(found[..], items[first..first + found.len()], "{few}");
    }
}
