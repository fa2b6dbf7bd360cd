//! Negotiation, tables, metadata-only forms, indentation and compression (S1.30–S1.34, S4.50–S4.53,
//! S8.28, S8.30).

use headwater_json::json;

use crate::api::{Api, CMS, PODS, config_map, labelled, pod, version};

const TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1";
const PARTIAL: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const PARTIALS: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// S1.30
#[tokio::test(start_paused = true)]
async fn the_first_acceptable_media_type_is_sent() {
    let api = Api::start().await;
    api.config_maps(&["a"]).await;
    let yaml = "application/yaml";
    let json = "application/json";
    for (accept, code, content_type) in [
        ("", 200, json),
        ("*/*", 200, json),
        ("application/json", 200, json),
        ("application/yaml", 200, yaml),
        ("application/yaml,application/json", 200, yaml),
        ("application/json;q=0.5,application/yaml", 200, yaml),
        ("application/yaml;q=0.1,application/json;q=0.9", 200, json),
        ("text/html,application/json", 200, json),
        ("text/html, */*;q=0.1", 200, json),
        ("application/json;as=Nosuch;g=meta.k8s.io;v=v1,application/json", 200, json),
        ("application/json;as=Table;g=meta.k8s.io;v=v9,application/yaml", 200, yaml),
        ("application/json; charset=utf-8", 200, json),
        ("application/xml", 406, json),
        ("application/json;as=Nosuch;g=meta.k8s.io;v=v1", 406, json),
    ] {
        let answer = api.accept(CMS, accept).await;
        assert_eq!((answer.code, answer.header("content-type")), (code, content_type), "{accept}");
        if code == 406 {
            answer.fails(406, "NotAcceptable", "");
        }
    }
    let status = api.accept(CMS, "application/json;as=Nosuch;g=meta.k8s.io;v=v1").await;
    let message = "only the following media types are accepted: application/json, \
                   application/yaml, application/vnd.kubernetes.protobuf";
    status.fails(406, "NotAcceptable", message);
    // Errors have the requested media type too.
    let answer = api.accept(&format!("{CMS}/none"), "application/yaml").await;
    assert_eq!(answer.code, 404);
    assert_eq!(answer.header("content-type"), "application/yaml");
    assert!(answer.text().contains("reason: NotFound\n"), "{}", answer.text());
    // An unacceptable media type is rejected before the write.
    let request = format!("POST {CMS}\nAccept: application/xml");
    api.send(&request, config_map("b").to_string()).await.fails(406, "NotAcceptable", "");
    api.get(&format!("{CMS}/b")).await.fails(404, "NotFound", "");
}

/// S1.33
#[tokio::test(start_paused = true)]
async fn json_is_compact_unless_a_person_reads_it() {
    let api = Api::start().await;
    let mut body = config_map("a");
    body["data"] = json!({ "html": "<a & b>" });
    api.create(CMS, &body).await;
    let a = format!("{CMS}/a");
    for (target, agent, is_pretty) in [
        (a.clone(), "", false),
        (a.clone(), "kubectl/v1.36", false),
        (a.clone(), "curl/8.0", true),
        (a.clone(), "Wget/1.0", true),
        (a.clone(), "Mozilla/5.0 (X11)", true),
        (format!("{a}?pretty=true"), "", true),
        (format!("{a}?pretty=1"), "", true),
        (format!("{a}?pretty=false"), "curl/8.0", false),
        (format!("{a}?pretty=0"), "curl/8.0", false),
    ] {
        let answer = api.send(&format!("GET {target}\nUser-Agent: {agent}"), "").await;
        let text = answer.text();
        assert_eq!(text.contains("\n  \"metadata\": {\n"), is_pretty, "{target} {agent}: {text}");
        assert!(text.ends_with('}') || text.ends_with("}\n"));
        assert!(text.contains("\\u003ca \\u0026 b\\u003e"), "{text}");
    }
}

/// S4.50
#[tokio::test(start_paused = true)]
async fn a_table_has_columns_and_rows() {
    let api = Api::start().await;
    let mut a = labelled("a", "l=1");
    a["data"] = json!({ "x": "1", "y": "2" });
    let a = api.create(CMS, &a).await;
    api.config_maps(&["b"]).await;
    let table = api.accept(&format!("{CMS}?limit=1"), TABLE).await;
    assert_eq!(table.header("content-type"), "application/json");
    let table = table.json();
    assert_eq!((&table["kind"], &table["apiVersion"]), (&json!("Table"), &json!("meta.k8s.io/v1")));
    assert_eq!(table["metadata"]["remainingItemCount"], 1);
    assert!(table["metadata"]["continue"].is_string());
    let names: Vec<&str> = table["columnDefinitions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|column| column["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["Name", "Data", "Age"]);
    let rows = table["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0]["cells"], json!(["a", 2, "0s"]));
    let object = &rows[0]["object"];
    assert_eq!(object["kind"], "PartialObjectMetadata");
    assert_eq!(object["metadata"], a["metadata"]);

    for (include, expected) in [("Metadata", "PartialObjectMetadata"), ("Object", "ConfigMap")] {
        let table = api.accept(&format!("{CMS}?includeObject={include}"), TABLE).await.json();
        assert_eq!(table["rows"][0]["object"]["kind"], expected);
    }
    let table = api.accept(&format!("{CMS}?includeObject=None"), TABLE).await.json();
    assert_eq!(table["rows"][0]["object"], json!(null));
    let bad = api.accept(&format!("{CMS}?includeObject=Nope"), TABLE).await;
    bad.fails(400, "BadRequest", "");
    // One object, an old version of Table, an unused fallback, an empty list.
    let one = api.accept(&format!("{CMS}/a"), TABLE).await.json();
    assert_eq!(one["rows"][0]["cells"], json!(["a", 2, "0s"]));
    assert_eq!(one["metadata"]["resourceVersion"], version(&a));
    let beta = TABLE.replace("v=v1", "v=v1beta1");
    let table = api.accept(CMS, &format!("{beta},application/json")).await.json();
    assert_eq!(table["apiVersion"], "meta.k8s.io/v1beta1");
    let empty = api.accept(PODS, TABLE).await.json();
    assert_eq!(empty["rows"], json!([]));
    assert_eq!(empty["columnDefinitions"].as_array().unwrap().len(), 9);
    // Errors are not sent as tables.
    api.accept(&format!("{CMS}/none"), TABLE).await.fails(404, "NotFound", "");
}

#[tokio::test(start_paused = true)]
async fn every_kind_has_a_table_with_a_name() {
    let api = Api::start().await;
    for group_version in ["/api/v1", "/apis/apps/v1", "/apis/batch/v1", "/apis/policy/v1"] {
        let list = api.get(group_version).await.json();
        for entry in list["resources"].as_array().unwrap() {
            let verbs = entry["verbs"].as_array().unwrap();
            // The first column of events is the time they were last seen.
            if !verbs.contains(&json!("list")) || entry["name"] == "events" {
                continue;
            }
            let target = format!("{group_version}/{}", entry["name"].as_str().unwrap());
            let table = api.accept(&target, TABLE).await.json();
            assert_eq!(table["columnDefinitions"][0]["name"], "Name", "{target}");
        }
    }
}

/// S4.51, S4.53
#[tokio::test(start_paused = true)]
async fn a_watched_table_defines_its_columns_once() {
    let api = Api::start().await;
    let a = api.create(CMS, &config_map("a")).await;
    let request =
        format!("GET {CMS}?watch=true&allowWatchBookmarks=true&timeoutSeconds=1\nAccept: {TABLE}");
    api.config_maps(&["b"]).await;
    let text = api.send(&request, "").await.text();
    let events: Vec<headwater_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(events.len(), 3);
    assert_eq!(events[0]["object"]["kind"], "Table");
    assert_eq!(events[0]["object"]["columnDefinitions"].as_array().unwrap().len(), 3);
    assert_eq!(events[0]["object"]["metadata"]["resourceVersion"], version(&a));
    assert_eq!(events[1]["object"]["columnDefinitions"], json!(null));
    assert_eq!(events[1]["object"]["rows"][0]["cells"][0], "b");
    // With `includeObject=Object`, bookmarks hold complete objects.
    let request = request.replace("watch=true", "watch=true&includeObject=Object");
    let text = api.send(&request, "").await.text();
    let mark: headwater_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(mark["object"]["rows"][0]["object"]["kind"], "ConfigMap");
    let mark = &events[2]["object"]["rows"][0]["object"];
    assert_eq!(events[2]["type"], "BOOKMARK");
    assert_eq!(mark["kind"], "PartialObjectMetadata");
    assert_eq!(mark["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
}

/// S4.52, S4.53
#[tokio::test(start_paused = true)]
async fn objects_can_be_read_as_partial_metadata() {
    let api = Api::start().await;
    let mut body = labelled("a", "l=1");
    body["data"] = json!({ "x": "1" });
    let a = api.create(CMS, &body).await;
    let one = api.accept(&format!("{CMS}/a"), PARTIAL).await.json();
    let expected = json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": a["metadata"],
    });
    assert_eq!(one, expected);
    let list = api.accept(CMS, PARTIALS).await.json();
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert_eq!(list["items"][0]["metadata"], a["metadata"]);
    assert!(list["items"][0].get("data").is_none());
    api.accept(CMS, PARTIAL).await.fails(406, "NotAcceptable", "");
    api.accept(&format!("{CMS}/a"), PARTIALS).await.fails(406, "NotAcceptable", "");
    let request = format!(
        "GET {CMS}?watch=true&allowWatchBookmarks=true&timeoutSeconds=1\nAccept: {PARTIAL}"
    );
    let text = api.send(&request, "").await.text();
    let events: Vec<headwater_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(events[0]["object"], expected);
    assert_eq!(events[1]["type"], "BOOKMARK");
    assert_eq!(events[1]["object"]["kind"], "PartialObjectMetadata");
    // Writes may return metadata too.
    let request = format!("POST {CMS}\nAccept: {PARTIAL}");
    let made = api.send(&request, config_map("b").to_string()).await.is(201, "").json();
    assert_eq!(made["kind"], "PartialObjectMetadata");
}

/// S8.30
#[tokio::test(start_paused = true)]
async fn large_responses_are_compressed_on_request() {
    let api = Api::start().await;
    let mut big = config_map("big");
    big["data"] = json!({ "x": "y".repeat(200_000) });
    api.create(CMS, &big).await;
    api.config_maps(&["small"]).await;
    for (target, accept, is_compressed) in [
        (format!("{CMS}/big"), "gzip", true),
        (format!("{CMS}/big"), "deflate, gzip", true),
        (CMS.to_owned(), "gzip", true),
        (format!("{CMS}/big"), "identity", false),
        (format!("{CMS}/big"), "", false),
        (format!("{CMS}/small"), "gzip", false),
        (format!("{CMS}?fieldSelector=metadata.name%3Dsmall"), "gzip", false),
    ] {
        let answer = api.send(&format!("GET {target}\nAccept-Encoding: {accept}"), "").await;
        let encoding = answer.header("content-encoding");
        assert_eq!(encoding == "gzip", is_compressed, "{target} {accept}");
        if is_compressed {
            assert_eq!(answer.header("vary"), "Accept-Encoding");
            let text = unzipped(&answer.body);
            assert!(text.contains("yyyyyyyyyy"));
            assert!(serde_json::from_str::<headwater_json::Value>(&text).is_ok());
        }
    }
}

fn unzipped(body: &[u8]) -> String {
    let mut text = String::new();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(body), &mut text).unwrap();
    text
}

/// Checks that a list is the same with and without compression, and its first and last names.
async fn check_compressed_list(api: &Api, target: &str, expected: (&str, &str)) {
    let plain = api.get(target).await.text();
    // The second request uses the cached result of the first.
    for _ in 0..2 {
        let answer = api.send(&format!("GET {target}\nAccept-Encoding: gzip"), "").await;
        assert_eq!(answer.header("content-encoding"), "gzip", "{target}");
        assert!(answer.body.len() < plain.len() / 4, "{target}: {}", answer.body.len());
        assert!(unzipped(&answer.body) == plain, "{target}");
    }
    let list: headwater_json::Value = serde_json::from_str(&plain).unwrap();
    let names: Vec<&str> = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["metadata"]["name"].as_str().unwrap())
        .collect();
    assert_eq!((names[0], names[names.len() - 1]), expected, "{target}");
}

/// R39
#[tokio::test(start_paused = true)]
async fn a_compressed_list_shows_every_change() {
    let api = Api::start().await;
    let sized = |name: &str, letter: &str| {
        let mut map = config_map(name);
        map["data"] = json!({ "x": letter.repeat(20_000), "of": name });
        map
    };
    for count in 10..50 {
        api.create(CMS, &sized(&format!("c{count}"), "x")).await;
    }
    check_compressed_list(&api, CMS, ("c10", "c49")).await;
    check_compressed_list(&api, &format!("{CMS}?limit=17"), ("c10", "c26")).await;
    // A change in the middle, at the end and at the beginning.
    for name in ["c30", "c49", "c10"] {
        let changed = sized(name, "y").to_string();
        api.send(&format!("PUT {CMS}/{name}"), changed).await.is(200, "");
        check_compressed_list(&api, CMS, ("c10", "c49")).await;
    }
    for (name, expected) in
        [("c20", ("c10", "c49")), ("c10", ("c11", "c49")), ("c49", ("c11", "c48"))]
    {
        api.send(&format!("DELETE {CMS}/{name}"), "").await.is(200, "");
        check_compressed_list(&api, CMS, expected).await;
    }
    api.create(CMS, &sized("c00", "z")).await;
    check_compressed_list(&api, CMS, ("c00", "c48")).await;
    check_compressed_list(
        &api,
        &format!("{CMS}?fieldSelector=metadata.name!%3Dc00"),
        ("c11", "c48"),
    )
    .await;
}

/// S8.28
#[tokio::test(start_paused = true)]
async fn a_body_has_limits() {
    let api = Api::start().await;
    let mut big = config_map("a");
    big["data"] = json!({ "x": "y".repeat(3 * 1024 * 1024 + 100) });
    let message = "Request entity too large: limit is 3145728";
    for request in [format!("POST {CMS}"), format!("PUT {CMS}/a"), format!("DELETE {CMS}/a")] {
        let answer = api.send(&request, big.to_string()).await;
        answer.fails(413, "RequestEntityTooLarge", message);
    }
    let request = format!("POST {CMS}\nContent-Length: 10000000000");
    api.send(&request, "{}").await.fails(413, "RequestEntityTooLarge", message);
    // An object that fits into a request but not into the store.
    let mut big = config_map("a");
    big["metadata"]["annotations"] = json!({});
    big["data"] = json!({ "x": "y".repeat(2 * 1024 * 1024) });
    let answer = api.post(CMS, &big).await;
    assert!(matches!(answer.code, 413 | 422), "{}", answer.code);
    api.get(CMS).await.lists("");
}

/// B004, B005, R44: a missing body gets an error, and the connection is closed.
#[tokio::test(start_paused = true)]
async fn a_missing_request_body_times_out() {
    let api = Api::start().await;
    let a = format!("{CMS}/a");
    for request in [format!("POST {CMS}"), format!("PUT {a}"), format!("DELETE {a}")] {
        for begins in ["", "{\"metadata\":"] {
            let answer = api.send_and_stall(&request, begins).await;
            answer.fails(408, "Timeout", "Timeout: the body of the request did not arrive in time");
        }
    }
    api.get(CMS).await.lists("");
}

/// S2.34
#[tokio::test(start_paused = true)]
async fn deprecated_kinds_return_a_warning() {
    let api = Api::start().await;
    let text =
        "299 - \"v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice\"";
    let endpoints = "/api/v1/namespaces/ns/endpoints";
    assert_eq!(api.get(endpoints).await.header("warning"), text);
    let made = api.post(endpoints, &json!({ "metadata": { "name": "e" } })).await;
    assert_eq!(made.is(201, "").header("warning"), text);
    assert_eq!(api.get(&format!("{endpoints}/e")).await.header("warning"), text);
    let missing = api.get(&format!("{endpoints}/none")).await;
    missing.fails(404, "NotFound", "");
    assert_eq!(missing.header("warning"), text);
    let request = format!("GET {endpoints}?watch=true&timeoutSeconds=1");
    assert_eq!(api.send(&request, "").await.header("warning"), text);
}

/// R39
#[tokio::test(start_paused = true)]
async fn all_representations_of_a_list_agree() {
    let api = Api::start().await;
    for name in ["a", "b", "c"] {
        api.create(PODS, &pod(name, "n1")).await;
    }
    let whole = api.get(PODS).await.json();
    let table = api.accept(&format!("{PODS}?includeObject=Object"), TABLE).await.json();
    let partial = api.accept(PODS, PARTIALS).await.json();
    let yaml = api.accept(PODS, "application/yaml").await.text();
    assert_eq!(table["metadata"], whole["metadata"]);
    assert_eq!(partial["metadata"], whole["metadata"]);
    for (index, item) in whole["items"].as_array().unwrap().iter().enumerate() {
        let row = &table["rows"][index]["object"];
        assert_eq!((&row["metadata"], &row["spec"]), (&item["metadata"], &item["spec"]));
        assert_eq!(partial["items"][index]["metadata"], item["metadata"]);
        assert!(yaml.contains(item["metadata"]["uid"].as_str().unwrap()));
    }
}
