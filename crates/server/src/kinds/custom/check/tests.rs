use super::*;

fn good() -> Value {
    json!({
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {
                        "size": {"type": "integer"}, "list": {"type": "array", "items": {"type": "string"}},
                    }},
                }}},
            }],
        },
        "status": {"storedVersions": ["v1"]},
    })
}

#[track_caller]
fn check(change: impl FnOnce(&mut Value), expected: &[&str]) {
    let mut object = good();
    change(&mut object);
    let found: Vec<String> = definition(&object, None).iter().map(ToString::to_string).collect();
    assert_eq!(found, expected);
}

#[track_caller]
fn check_starts(change: impl FnOnce(&mut Value), expected: &str) {
    let mut object = good();
    change(&mut object);
    let found: Vec<String> = definition(&object, None).iter().map(ToString::to_string).collect();
    assert!(found.iter().any(|text| text.starts_with(expected)), "{found:#?}");
}

#[test]
fn a_good_definition_is_accepted() {
    check(|_| {}, &[]);
}

#[test]
fn names_groups_scopes_and_versions_are_checked() {
    check(
        |d| d["metadata"]["name"] = "x.example.com".into(),
        &[
            "metadata.name: Invalid value: \"x.example.com\": must be spec.names.plural+\".\"+spec.group",
        ],
    );
    check(
        |d| d["spec"]["scope"] = "Galaxy".into(),
        &[
            "spec.scope: Unsupported value: \"Galaxy\": supported values: \"Cluster\", \"Namespaced\"",
        ],
    );
    check_starts(
        |d| d["spec"]["versions"][0]["storage"] = false.into(),
        "spec.versions: Invalid value: ",
    );
    check_starts(
        |d| d["spec"]["versions"] = json!([]),
        "spec.versions: Invalid value: []: must have exactly one",
    );
    check_starts(
        |d| {
            let version = d["spec"]["versions"][0].clone();
            d["spec"]["versions"] = json!([version, version]);
        },
        "spec.versions: Invalid value: ",
    );
    check_starts(
        |d| d["spec"]["names"]["kind"] = "My Kind".into(),
        "spec.names.kind: Invalid value: \"My Kind\": may have mixed case, but should otherwise match: a DNS-1035 label",
    );
    check_starts(
        |d| d["spec"]["group"] = "k8s.io".into(),
        "metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups must have approval annotation",
    );
    check(
        |d| d["spec"]["versions"][0]["schema"] = Value::Null,
        &["spec.versions[0].schema.openAPIV3Schema: Required value"],
    );
}

#[test]
fn a_schema_of_all_versions_is_named_once() {
    let wrong = json!({"openAPIV3Schema": {"type": "object", "properties": {"a": {}}}});
    check(
        |d| d["spec"]["versions"][0]["schema"] = wrong.clone(),
        &[
            "spec.validation.openAPIV3Schema.properties[a].type: Required value: must not be empty for specified object fields",
        ],
    );
    check(
        |d| {
            let mut second = d["spec"]["versions"][0].clone();
            second["name"] = "v2".into();
            second["storage"] = false.into();
            second["schema"] = wrong;
            let first = d["spec"]["versions"][0].clone();
            d["spec"]["versions"] = json!([first, second]);
        },
        &[
            "spec.versions[1].schema.openAPIV3Schema.properties[a].type: Required value: must not be empty for specified object fields",
        ],
    );
}

#[test]
fn columns_scales_and_selectable_fields_are_checked() {
    let version = |d: &mut Value, key: &str, value: Value| d["spec"]["versions"][0][key] = value;
    check(
        |d| {
            version(
                d,
                "additionalPrinterColumns",
                json!([{"name": "A", "type": "text", "jsonPath": "spec"}]),
            )
        },
        &[
            "spec.additionalPrinterColumns[0].type: Invalid value: \"text\": must be one of boolean,date,integer,number,string",
            "spec.additionalPrinterColumns[0].JSONPath: Invalid value: \"spec\": must be a simple json path starting with .",
        ],
    );
    check(
        |d| {
            version(
                d,
                "subresources",
                json!({"scale": {"specReplicasPath": ".status.x", "statusReplicasPath": ".status.x"}}),
            )
        },
        &[
            "spec.subresources.scale.specReplicasPath: Invalid value: \".status.x\": should be a json path under .spec",
        ],
    );
    check(
        |d| {
            version(
                d,
                "selectableFields",
                json!([{"jsonPath": ".spec.size"}, {"jsonPath": ".spec.list"}, {"jsonPath": ".spec.none"}, {"jsonPath": ".spec.size"}]),
            )
        },
        &[
            "spec.selectableFields[1].jsonPath: Invalid value: \".spec.list\": must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.",
            "spec.selectableFields[2].jsonPath: Invalid value: \".spec.none\": is an invalid path: does not refer to a valid field: none",
            "spec.selectableFields[3].jsonPath: Duplicate value: \".spec.size\"",
        ],
    );
}

#[test]
fn a_conversion_webhook_can_be_called() {
    let with = |webhook: Value| {
        move |d: &mut Value| {
            d["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": webhook});
        }
    };
    let url = json!({"url": "https://127.0.0.1:9443/convert"});
    check(with(json!({"clientConfig": url, "conversionReviewVersions": ["v2", "v1"]})), &[]);
    check(
        with(Value::Null),
        &[
            "spec.conversion.webhookClientConfig: Required value: required when strategy is set to Webhook",
            "spec.conversion.conversionReviewVersions: Required value",
        ],
    );
    check(
        with(
            json!({"clientConfig": {"caBundle": "bm8="}, "conversionReviewVersions": ["v2", "v2"]}),
        ),
        &[
            "spec.conversion.webhookClientConfig: Required value: exactly one of url or service is required",
            "spec.conversion.webhookClientConfig.caBundle: Invalid value: \"bm8=\": unable to load root certificates: unable to parse bytes as PEM block",
            "spec.conversion.conversionReviewVersions[1]: Invalid value: \"v2\": duplicate version",
            "spec.conversion.conversionReviewVersions: Invalid value: [\"v2\",\"v2\"]: must include at least one of v1, v1beta1",
        ],
    );
    check(
        with(json!({"clientConfig": {"url": "http://x"}, "conversionReviewVersions": ["v1"]})),
        &[
            "spec.conversion.webhookClientConfig.url: Invalid value: \"http\": 'https' is the only allowed URL scheme; desired format: https://host[/path]",
        ],
    );
    check(
        |d| d["spec"]["conversion"] = json!({"strategy": "None", "webhook": {}}),
        &[
            "spec.conversion.webhookClientConfig: Forbidden: should not be set when strategy is not set to Webhook",
        ],
    );
}

/// S9.4
#[test]
fn what_keys_are_made_of_cannot_change() {
    let mut old = good();
    old["status"]["conditions"] = json!([{"type": "Established", "status": "True"}]);
    let mut new = old.clone();
    new["spec"]["scope"] = "Cluster".into();
    new["spec"]["names"]["kind"] = "Gadget".into();
    new["spec"]["group"] = "other.com".into();
    let found = definition(&new, Some(&old));
    let fields: Vec<&str> = found.iter().map(|error| error.field.as_str()).collect();
    assert_eq!(fields, ["spec.scope", "spec.names.kind", "spec.group"]);
}

/// S9.4
#[test]
fn a_stored_version_cannot_go() {
    check_starts(
        |d| d["status"]["storedVersions"] = json!(["v0", "v1"]),
        "status.storedVersions[0]: Invalid value: \"v0\": missing from spec.versions; v0 was previously",
    );
}

/// B137: with a search of the list for each element, this test does not end.
#[test]
fn long_lists_of_a_definition_are_compared_in_linear_time() {
    let many = |n: usize| (0..n).map(|at| format!("v{at}").into()).collect::<Vec<Value>>();
    check(
        |d| {
            let url = json!({"url": "https://example.com/"});
            d["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {
                "clientConfig": url, "conversionReviewVersions": many(400_000),
            }});
        },
        &[],
    );
    let keys = many(20_000);
    let mut object = good();
    let list = json!({
        "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys,
        "items": {"type": "object", "properties": {"a": {"type": "string"}}},
    });
    let schema = &mut object["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    schema["properties"]["spec"]["properties"]["list"] = list;
    let found = definition(&object, None);
    let named = |why: &str| found.iter().filter(|error| error.detail.contains(why)).count();
    assert_eq!(named("entries must all be names of item properties"), 1);
    let bytes: usize = found.iter().map(|error| error.detail.len()).sum();
    assert!(bytes < 100_000, "{bytes}");
}
