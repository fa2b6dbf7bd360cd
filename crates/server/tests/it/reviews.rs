//! Access reviews: what is refused, and their selectors (S8.13).

use headwater_json::{Value, json};

use crate::api::Api;

const REVIEWS: &str = "/apis/authorization.k8s.io/v1";

fn list_pods(selectors: &Value) -> Value {
    let mut attributes = json!({ "verb": "list", "resource": "pods" });
    for (key, selector) in selectors.as_object().unwrap() {
        attributes[key.as_str()] = selector.clone();
    }
    json!({ "user": "system:node:n1", "groups": ["system:nodes"], "resourceAttributes": attributes })
}

fn requirement(key: &str, operator: &str, values: &[&str]) -> Value {
    json!({ "key": key, "operator": operator, "values": values })
}

/// S8.13
#[tokio::test(start_paused = true)]
async fn an_invalid_review_is_refused_with_its_fields() {
    let api = Api::start().await;
    let resource = json!({ "verb": "get", "resource": "pods", "namespace": "ns" });
    let path = json!({ "verb": "get", "path": "/version" });
    let subject = format!("{REVIEWS}/subjectaccessreviews");
    let own = format!("{REVIEWS}/selfsubjectaccessreviews");
    let local = format!("{REVIEWS}/namespaces/ns/localsubjectaccessreviews");
    let elsewhere = json!({ "verb": "get", "resource": "pods", "namespace": "other" });
    for (target, spec, expected) in [
        (&subject, json!({ "resourceAttributes": resource }), "spec.user: Invalid value"),
        (&subject, json!({ "user": "joe" }), "spec.resourceAttributes: Invalid value"),
        (&own, json!({}), "exactly one of nonResourceAttributes or resourceAttributes"),
        (
            &own,
            json!({ "resourceAttributes": resource, "nonResourceAttributes": path }),
            "spec.nonResourceAttributes: Invalid value",
        ),
        (
            &local,
            json!({ "user": "joe", "resourceAttributes": elsewhere }),
            "spec.resourceAttributes.namespace: Invalid value: \"other\": must match metadata.namespace",
        ),
        (
            &local,
            json!({ "user": "joe", "nonResourceAttributes": path }),
            "disallowed on this kind of request",
        ),
    ] {
        let answer = api.post(target, &json!({ "spec": spec })).await;
        answer.fails(422, "Invalid", "");
        assert!(answer.text().contains(&expected.replace('"', "\\\"")), "{}", answer.text());
    }
    let named = json!({
        "metadata": { "name": "x" }, "spec": { "user": "joe", "resourceAttributes": resource },
    });
    for target in [&subject, &local] {
        api.post(target, &named).await.fails(422, "Invalid", "");
    }
    let placed = json!({
        "metadata": { "namespace": "ns" }, "spec": { "user": "joe", "resourceAttributes": resource },
    });
    api.post(&local, &placed).await.is(201, "");
}

/// S8.13: the node authorizer decides by the selectors of a review as by those of a list.
#[tokio::test(start_paused = true)]
async fn the_selectors_of_a_review_limit_what_is_asked_for() {
    let api = Api::start().await;
    let target = format!("{REVIEWS}/subjectaccessreviews");
    let own = requirement("spec.nodeName", "In", &["n1"]);
    let unknown = requirement("a", "Near", &["b"]);
    let partly = "spec.resourceAttributes.fieldSelector partially ignored due to parse error";
    let entirely = "spec.resourceAttributes.fieldSelector ignored due to parse error";
    let labels = "spec.resourceAttributes.labelSelector ignored due to parse error";
    for (selectors, allowed, error) in [
        (json!({}), false, ""),
        (json!({ "fieldSelector": { "rawSelector": "spec.nodeName=n1" } }), true, ""),
        (json!({ "fieldSelector": { "rawSelector": "spec.nodeName=n2" } }), false, ""),
        (json!({ "fieldSelector": { "rawSelector": "spec.nodeName!=n1" } }), false, ""),
        (json!({ "fieldSelector": { "rawSelector": "spec.nodeName" } }), false, entirely),
        (json!({ "fieldSelector": { "requirements": [own] } }), true, ""),
        (json!({ "fieldSelector": { "requirements": [unknown, own] } }), true, partly),
        (json!({ "fieldSelector": { "requirements": [unknown] } }), false, entirely),
        (
            json!({ "fieldSelector": {
                "requirements": [requirement("spec.nodeName", "In", &["n1", "n2"])],
            } }),
            false,
            entirely,
        ),
        (
            // Not two terms: the value of a requirement is one value.
            json!({ "fieldSelector": {
                "requirements": [requirement("metadata.name", "In", &["x,spec.nodeName=n1"])],
            } }),
            false,
            "",
        ),
        (
            json!({
                "fieldSelector": { "requirements": [own] },
                "labelSelector": { "rawSelector": "a in" },
            }),
            true,
            labels,
        ),
    ] {
        let review = api.create(&target, &json!({ "spec": list_pods(&selectors) })).await;
        let status = &review["status"];
        assert_eq!(status["allowed"], allowed, "{selectors}: {status}");
        let reported = status["evaluationError"].as_str().unwrap_or_default();
        assert_eq!(reported, error, "{selectors}");
    }
}

/// S8.13
#[tokio::test(start_paused = true)]
async fn an_invalid_selector_of_a_review_is_refused() {
    let api = Api::start().await;
    let target = format!("{REVIEWS}/subjectaccessreviews");
    let term = requirement("a", "In", &["b"]);
    for (selector, expected) in [
        (
            json!({ "rawSelector": "a=b", "requirements": [term] }),
            ".rawSelector: Invalid value: \"a=b\": may not specified at the same time as requirements",
        ),
        (json!({}), ".requirements: Required value: when spec.resourceAttributes."),
        (
            json!({ "requirements": [requirement("a", "NotIn", &[])] }),
            ".requirements[0].values: Required value",
        ),
        (
            json!({ "requirements": [term, requirement("a", "Exists", &["b"])] }),
            ".requirements[1].values: Forbidden",
        ),
    ] {
        for key in ["fieldSelector", "labelSelector"] {
            let mut selectors = json!({});
            selectors[key] = selector.clone();
            let answer = api.post(&target, &json!({ "spec": list_pods(&selectors) })).await;
            answer.fails(422, "Invalid", "");
            let expected = format!("spec.resourceAttributes.{key}{expected}").replace('"', "\\\"");
            assert!(answer.text().contains(&expected), "{expected}: {}", answer.text());
        }
    }
    let bad = [
        ("fieldSelector", "", "b", "key: Required"),
        ("labelSelector", "a b", "b", "key: Invalid"),
    ];
    let bad = bad.into_iter().chain([("labelSelector", "a", "-b", "values[0]: Invalid")]);
    for (selector, key, value, expected) in bad {
        let mut selectors = json!({});
        selectors[selector] = json!({ "requirements": [requirement(key, "In", &[value])] });
        let answer = api.post(&target, &json!({ "spec": list_pods(&selectors) })).await;
        answer.fails(422, "Invalid", "");
        assert!(answer.text().contains(expected), "{expected}: {}", answer.text());
    }
}
