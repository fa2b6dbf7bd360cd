//! `docs/metrics.md` is generated from the registry, and the dashboard queries what exists.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use headwater_json::Value;

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
