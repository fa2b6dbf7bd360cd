//! Rules of a definition, as a client meets them (S9.12).

use headwater_api::json::json;

use super::{CRDS, WIDGETS, World, schema, spec_fields, widget, widgets};

#[tokio::test]
async fn a_rule_refuses_what_its_schema_lets_pass() {
    let world = World::with_widgets(|definition| {
        spec_fields(definition)["colour"]["x-kubernetes-validations"] =
            json!([{"rule": "self == oldSelf", "message": "the colour is fixed"}]);
        schema(definition, 0)["properties"]["spec"]["x-kubernetes-validations"] =
            json!([{"rule": "!has(self.replicas) || self.replicas <= self.size"}]);
    })
    .await;
    let answer = world.post(WIDGETS, &widget("w", json!({"size": 1, "replicas": 2}))).await;
    answer.fails(
        422,
        "Invalid",
        "Widget.example.com \"w\" is invalid: spec: Invalid value: failed rule: !has(self.replicas) || self.replicas <= self.size",
    );
    world.widget("w", json!({"size": 2, "replicas": 2})).await;
    let target = format!("{WIDGETS}/w");
    world.merge(&target, &json!({"spec": {"replicas": 1}})).await.is(200, "");
    world.merge(&target, &json!({"spec": {"colour": "red"}})).await.fails(
        422,
        "Invalid",
        "Widget.example.com \"w\" is invalid: spec.colour: Invalid value: \"red\": the colour is fixed",
    );
}

#[tokio::test]
async fn a_rule_that_cannot_work_is_refused_with_its_definition() {
    let world = World::start().await;
    let mut definition = widgets();
    schema(&mut definition, 0)["properties"]["spec"]["x-kubernetes-validations"] =
        json!([{"rule": "self.weight > 1"}]);
    let answer = world.post(CRDS, &definition).await;
    assert_eq!(answer.code, 422);
    assert!(answer.text().contains("undefined field 'weight'"), "{}", answer.text());
}
