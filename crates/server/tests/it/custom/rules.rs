//! Validation rules of a definition (S9.12).

use headwater_json::json;

use super::{CRDS, WIDGETS, World, schema, spec_fields, widget, widgets};

/// S9.12
#[tokio::test]
async fn a_validation_rule_rejects_values_that_the_schema_allows() {
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

/// S9.2, B217
#[tokio::test]
async fn a_definition_with_an_invalid_rule_is_rejected() {
    let world = World::start().await;
    let mut definition = widgets();
    schema(&mut definition, 0)["properties"]["spec"]["x-kubernetes-validations"] =
        json!([{"rule": "self.weight > 1"}]);
    let answer = world.post(CRDS, &definition).await;
    assert_eq!(answer.code, 422);
    assert!(answer.text().contains("undefined field 'weight'"), "{}", answer.text());
}

/// S9.2, B215
#[tokio::test]
async fn a_definition_with_a_too_expensive_rule_is_rejected() {
    let world = World::start().await;
    let mut definition = widgets();
    spec_fields(&mut definition)["names"] = json!({"type": "array", "items": {"type": "string"},
        "x-kubernetes-validations": [{"rule": "self.all(x, self.all(y, x == y))"}]});
    let answer = world.post(CRDS, &definition).await;
    assert_eq!(answer.code, 422);
    let at = "spec.validation.openAPIV3Schema.properties[spec].properties[names].x-kubernetes-validations[0].rule";
    let why = "estimated rule cost exceeds budget by factor of more than 100x";
    assert!(answer.text().contains(&format!("{at}: Forbidden: {why}")), "{}", answer.text());
    let names = &mut spec_fields(&mut definition)["names"];
    names["maxItems"] = 100.into();
    names["items"]["maxLength"] = 63.into();
    world.create(CRDS, &definition).await;
}

#[tokio::test]
async fn policy_expressions_are_type_checked_against_custom_kinds() {
    let world = World::with_widgets(|_| {}).await;
    let policy = |name: &str, expression: &str| {
        json!({"metadata": {"name": name}, "spec": {
            "matchConstraints": {"resourceRules": [{"apiGroups": ["example.com"],
                "apiVersions": ["v1"], "operations": ["*"], "resources": ["widgets"]}]},
            "validations": [{"expression": expression}],
        }})
    };
    let policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
    let right = "object.spec.size < 5 && object.metadata.labels.size() < 9 && has(object.status)";
    let made = world.create(policies, &policy("right", right)).await;
    assert_eq!(made["status"], json!({"observedGeneration": 1, "typeChecking": {}}));
    let made = world.create(policies, &policy("odd", "object.spec.weight < 5")).await;
    let warning = "example.com/v1, Kind=Widget: ERROR: <input>:1:12: undefined field 'weight'\n | object.spec.weight < 5\n | ...........^\n";
    let warnings = json!([{"fieldRef": "spec.validations[0].expression", "warning": warning}]);
    assert_eq!(made["status"]["typeChecking"]["expressionWarnings"], warnings);
}
