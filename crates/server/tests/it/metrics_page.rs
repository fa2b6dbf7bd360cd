//! `docs/metrics.md` is generated from the registry, and the dashboard queries what exists.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use headwater_json::{Value, json};

use crate::api::Api;

const UPDATE: &str = "UPDATE_METRICS_PAGE";

fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// Every family of a running server: its type, its help text and its labels.
async fn families() -> BTreeMap<&'static str, (&'static str, &'static str, String)> {
    let api = Api::start().await;
    let described = api
        .metrics
        .descriptions()
        .into_iter()
        .map(|(family, kind)| (family.name, (kind, family.help, family.labels.join(", "))));
    described.collect()
}

#[tokio::test]
async fn the_page_of_metrics_is_current() {
    let mut page = String::from(
        "# Metrics\n\n`GET /metrics` prints them in the Prometheus text format. Names that begin with \
         `headwater_` are Headwater's\nown; all others are those of Kubernetes, with the same labels. \
         A family without a sample is not printed.\n\n`deploy/grafana.json` is a dashboard of them.\n\n<!-- Generated; do not edit:\n\
         UPDATE_METRICS_PAGE=1 cargo test -p headwater-server --test it metrics_page -->\n\n",
    );
    for (name, (kind, help, labels)) in families().await {
        let labels = match labels.as_str() {
            "" => String::new(),
            labels => format!(" Labels: {labels}."),
        };
        let text = format!("- **{name}** ({kind}): {help}{labels}");
        let mut width = 0;
        for (index, word) in text.split_whitespace().enumerate() {
            let length = word.chars().count();
            if index > 0 && width + 1 + length > 116 {
                page.push_str("\n ");
                width = 1;
            }
            if index > 0 {
                page.push(' ');
                width += 1;
            }
            write!(page, "{word}").unwrap();
            width += length;
        }
        page.push('\n');
    }
    let path = file("docs/metrics.md");
    if std::env::var_os(UPDATE).is_some() {
        return std::fs::write(path, page).unwrap();
    }
    let stored = std::fs::read_to_string(path).unwrap_or_default();
    let stale = page.lines().find(|line| !stored.lines().any(|other| other == *line));
    assert!(
        page == stored,
        "docs/metrics.md is stale (first new line: {stale:?}); run\n\
         UPDATE_METRICS_PAGE=1 cargo test -p headwater-server --test it metrics_page"
    );
}

#[tokio::test]
async fn the_dashboard_queries_metrics_that_exist() {
    let families = families().await;
    let text = std::fs::read(file("deploy/grafana.json")).unwrap();
    let dashboard = headwater_json::parse(&text).unwrap().value;
    let mut queries = Vec::new();
    expressions(&dashboard, &mut queries);
    assert!(queries.len() > 15, "{queries:?}");
    for query in queries {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let names = query.split(|c: char| !is_part(c)).filter(|word| {
            [
                "apiserver_",
                "headwater_",
                "process_",
                "authentication_",
                "authorization_",
                "watch_cache_",
            ]
            .iter()
            .any(|prefix| word.starts_with(prefix))
        });
        for name in names {
            let family =
                ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            let is_known = families.contains_key(name)
                || family.is_some_and(|family| families.contains_key(family));
            assert!(is_known, "{name} in {query}");
        }
    }
}

fn expressions(value: &Value, found: &mut Vec<String>) {
    if let Some(query) = value["expr"].as_str() {
        found.push(query.to_owned());
    }
    for inside in value.as_object().into_iter().flat_map(|members| members.values()) {
        expressions(inside, found);
    }
    for inside in value.as_array().into_iter().flatten() {
        expressions(inside, found);
    }
}

/// S11.1
#[tokio::test]
async fn requests_lists_and_watches_have_samples() {
    let api = Api::start().await;
    let maps = "/api/v1/namespaces/ns/configmaps";
    api.create(maps, &json!({ "metadata": { "name": "a", "labels": { "app": "web" } } })).await;
    api.create(maps, &json!({ "metadata": { "name": "b" } })).await;
    api.get(&format!("{maps}?labelSelector=app=web")).await.is(200, "");
    let streamed = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan\
                    &allowWatchBookmarks=true";
    let mut watch = api.watch(&format!("{maps}?{streamed}")).await;
    while watch.next().await.unwrap()["type"] != "BOOKMARK" {}
    let text = api.metrics.registry.text();
    let value = |start: &str| -> f64 {
        let line = text.lines().find(|line| line.starts_with(start));
        let line = line.unwrap_or_else(|| panic!("no {start} in\n{text}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let of_maps = "group=\"\",version=\"v1\",resource=\"configmaps\"";
    let post = format!("{{verb=\"POST\",{of_maps}");
    assert_eq!(value(&format!("apiserver_request_sli_duration_seconds_count{post}")), 2.0);
    assert!(value(&format!("apiserver_response_sizes_sum{post}")) > 100.0);
    let bodies = "apiserver_request_body_size_bytes_count{resource=\"configmaps\",verb=\"create\"}";
    assert_eq!(value(bodies), 2.0);
    let sizes = format!("apiserver_watch_events_sizes_count{{{of_maps}");
    assert_eq!(value(&sizes), 2.0);
    assert!(value(&sizes.replace("_count", "_sum")) > 200.0);
    assert_eq!(value(&format!("apiserver_watch_list_duration_seconds_count{{{of_maps}")), 1.0);
    let of_maps = "{group=\"\",resource=\"configmaps\"";
    assert!(value(&format!("apiserver_watch_cache_read_wait_seconds_count{of_maps}")) >= 1.0);
    let consistent =
        format!("apiserver_watch_cache_consistent_read_total{of_maps},success=\"true\"");
    assert!(value(&consistent) >= 1.0);
    assert_eq!(value(&format!("apiserver_cache_list_returned_objects_total{of_maps}")), 1.0);
    assert_eq!(value(&format!("apiserver_cache_list_fetched_objects_total{of_maps}")), 2.0);
}
