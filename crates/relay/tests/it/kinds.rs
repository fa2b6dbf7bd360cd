//! All resources: custom kinds come and go.

use headwater_relay::HeldResources;
use http::Method;
use serde_json::{Value, json};

use crate::world::{ADMIN, RelayChoices, TestRelay, Upstream, eventually, version};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const WIDGETS: &str = "/apis/example.org/v1/namespaces/a/widgets";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

fn definition() -> Value {
    json!({
        "metadata": { "name": "widgets.example.org" },
        "spec": {
            "group": "example.org", "scope": "Namespaced",
            "names": { "plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList" },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object", "properties": {
                    "spec": { "type": "object", "properties": { "size": { "type": "integer" }, "color": { "type": "string" } } },
                } } },
                "selectableFields": [{ "jsonPath": ".spec.color" }],
                "additionalPrinterColumns": [{ "name": "Size", "type": "integer", "jsonPath": ".spec.size" }],
            }],
        },
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn custom_kinds_are_held_as_they_come_and_go() {
    let upstream = Upstream::start().await;
    let relay =
        TestRelay::start(upstream.config(false).await, HeldResources::All, RelayChoices::default())
            .await;
    let (through, direct) = (relay.client(ADMIN).await, upstream.client(ADMIN).await);
    for path in ["/api/v1/pods", "/apis/apps/v1/deployments", "/api/v1/namespaces", DEFINITIONS] {
        let forwarded = relay.sent("forward");
        assert_eq!(through.get(path).await.1["items"], direct.get(path).await.1["items"], "{path}");
        assert_eq!(relay.sent("forward"), forwarded, "{path} is held");
    }
    for round in 0..2 {
        through.ok(Method::POST, DEFINITIONS, Some(definition())).await;
        eventually(async || (direct.get(WIDGETS).await.0 == 200).then_some(())).await;
        for (n, color) in ["red", "blue"].into_iter().enumerate() {
            let widget = json!({
                "apiVersion": "example.org/v1", "kind": "Widget",
                "metadata": { "name": color }, "spec": { "size": n, "color": color },
            });
            through.ok(Method::POST, WIDGETS, Some(widget)).await;
        }
        eventually(async || {
            let forwarded = relay.sent("forward");
            let code = through.get(WIDGETS).await.0;
            (code == 200 && relay.sent("forward") == forwarded).then_some(())
        })
        .await;
        for (path, accept) in [
            (WIDGETS.to_owned(), "application/json"),
            (WIDGETS.to_owned(), TABLE),
            (format!("{WIDGETS}/red"), "application/json"),
            (format!("{WIDGETS}?fieldSelector=spec.color%3Dblue"), "application/json"),
        ] {
            let (here, there) =
                (through.text(&path, accept).await, direct.text(&path, accept).await);
            assert_eq!(here, there, "{round} {path}");
        }
        let list = through.ok(Method::GET, WIDGETS, None).await;
        let mut watch =
            through.watch(&format!("{WIDGETS}?watch=1&resourceVersion={}", version(&list))).await;
        through.ok(Method::DELETE, &format!("{DEFINITIONS}/widgets.example.org"), None).await;
        for _ in 0..2 {
            assert_eq!(watch.next().await["type"], "DELETED", "{round}");
        }
        while watch.line().await.is_some() {}
        eventually(async || (through.get(WIDGETS).await.0 == 404).then_some(())).await;
    }
}
