//! Admission policies and their bindings.

use headwater_json::{Value, json};

use crate::api::{Api, CMS, DEPLOYMENTS, config_map, deployment};

const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";

pub(crate) fn rule(group: &str, resource: &str) -> Value {
    json!({"resourceRules": [{
        "apiGroups": [group], "apiVersions": ["*"], "operations": ["*"], "resources": [resource],
    }]})
}

/// A server with a policy, bound with these actions.
async fn with(spec: Value, binding: Value) -> Api {
    let api = Api::start().await;
    add(&api, "validating", &spec, &binding).await;
    api
}

pub(crate) async fn add(api: &Api, kind: &str, spec: &Value, binding: &Value) {
    let policy = json!({"metadata": {"name": "p"}, "spec": spec});
    api.create(&format!("{GROUP}/{kind}admissionpolicies"), &policy).await;
    let mut spec = binding.clone();
    spec["policyName"] = "p".into();
    let bound = json!({"metadata": {"name": "b"}, "spec": spec});
    api.create(&format!("{GROUP}/{kind}admissionpolicybindings"), &bound).await;
}

fn map_with(name: &str, key: &str) -> Value {
    let mut map = config_map(name);
    map["data"] = json!({key: "x"});
    map
}

const DENIED: &str = "configmaps \"a\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: ";

/// S10.23
#[tokio::test]
async fn a_policy_rejects_objects_that_fail_its_expressions() {
    let spec = json!({
        "matchConstraints": rule("", "configmaps"),
        "variables": [
            {"name": "keys", "expression": "has(object.data) ? object.data.map(k, k) : []"},
            {"name": "count", "expression": "variables.keys.size()"},
        ],
        "validations": [
            {"expression": "variables.count < 2", "messageExpression": "'too many: ' + string(variables.count)"},
            {"expression": "!('bad' in variables.keys)", "message": "no bad keys", "reason": "Forbidden"},
            {"expression": "request.operation != 'DELETE' || oldObject.metadata.name != 'kept'"},
        ],
    });
    let api = with(spec, json!({"validationActions": ["Deny"]})).await;
    api.create(CMS, &map_with("kept", "good")).await;
    api.post(CMS, &map_with("a", "bad")).await.fails(
        403,
        "Forbidden",
        &format!("{DENIED}no bad keys"),
    );
    let mut two = map_with("a", "x");
    two["data"]["y"] = "z".into();
    api.post(CMS, &two).await.fails(422, "Invalid", &format!("{DENIED}too many: 2"));
    api.delete(&format!("{CMS}/kept"))
        .await
        .is(422, "failed expression: request.operation != 'DELETE'");
    api.create(DEPLOYMENTS, &deployment("d")).await;
}

#[tokio::test]
async fn a_binding_may_only_warn() {
    let spec = json!({
        "matchConstraints": rule("", "configmaps"),
        "validations": [{"expression": "false", "message": "hm"}],
    });
    let api = with(spec, json!({"validationActions": ["Warn", "Audit"]})).await;
    let answer = api.post(CMS, &config_map("a")).await;
    answer.is(201, "");
    assert_eq!(
        answer.header("warning"),
        "299 - \"Validation failed for ValidatingAdmissionPolicy 'p' with binding 'b': hm\""
    );
}

#[tokio::test]
async fn bindings_and_match_conditions_restrict_a_policy() {
    let spec = json!({
        "matchConstraints": rule("", "configmaps"),
        "matchConditions": [{"name": "c", "expression": "object.metadata.name != 'free'"}],
        "validations": [{"expression": "namespaceObject.metadata.name == 'other'"}],
    });
    let binding = json!({
        "validationActions": ["Deny"],
        "matchResources": {"objectSelector": {"matchLabels": {"checked": "yes"}}},
    });
    let api = with(spec, binding).await;
    api.create(CMS, &config_map("unchecked")).await;
    let checked = |name: &str| {
        let mut map = config_map(name);
        map["metadata"]["labels"] = json!({"checked": "yes"});
        map
    };
    api.create(CMS, &checked("free")).await;
    api.post(CMS, &checked("a")).await.is(422, "denied request");
    api.create("/api/v1/namespaces", &json!({"metadata": {"name": "other"}})).await;
    api.create("/api/v1/namespaces/other/configmaps", &checked("a")).await;
}

#[tokio::test]
async fn failing_expressions_follow_the_failure_policy() {
    let mut spec = json!({
        "matchConstraints": rule("", "configmaps"),
        "validations": [{"expression": "object.data.x == 'y'"}],
    });
    let deny = json!({"validationActions": ["Deny"]});
    let api = with(spec.clone(), deny.clone()).await;
    let why = "expression 'object.data.x == 'y'' resulted in error: no such key: data";
    api.post(CMS, &config_map("a")).await.fails(422, "Invalid", &format!("{DENIED}{why}"));
    spec["failurePolicy"] = "Ignore".into();
    with(spec, deny).await.create(CMS, &config_map("a")).await;
}

#[tokio::test]
async fn a_policy_reads_its_parameters_from_objects() {
    let spec = json!({
        "paramKind": {"apiVersion": "v1", "kind": "Secret"},
        "matchConstraints": rule("", "configmaps"),
        "validations": [{"expression": "!has(object.data) || object.data.size() <= int(params.metadata.labels.most)"}],
    });
    let binding = json!({
        "validationActions": ["Deny"],
        "paramRef": {"name": "limits", "parameterNotFoundAction": "Deny"},
    });
    let api = with(spec.clone(), binding).await;
    let why = "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction";
    api.post(CMS, &config_map("a")).await.fails(422, "Invalid", &format!("{DENIED}{why}"));
    let limits = json!({"metadata": {"name": "limits", "labels": {"most": "0"}}});
    api.create("/api/v1/namespaces/ns/secrets", &limits).await;
    api.create(CMS, &config_map("a")).await;
    api.post(CMS, &map_with("b", "x")).await.is(422, "failed expression");
    let binding = json!({
        "validationActions": ["Deny"],
        "paramRef": {"selector": {"matchLabels": {"a": "b"}}, "parameterNotFoundAction": "Allow"},
    });
    with(spec, binding).await.create(CMS, &config_map("a")).await;
}

/// A policy shows its parameters in messages, so its author must be allowed to read them.
#[tokio::test]
async fn who_writes_a_policy_may_read_its_parameters() {
    let api = Api::start().await;
    let kinds = ["validatingadmissionpolicies", "mutatingadmissionpolicies"];
    let bindings = ["validatingadmissionpolicybindings", "mutatingadmissionpolicybindings"];
    let (verbs, group) = (["create", "update", "patch"], "admissionregistration.k8s.io");
    api.allow("joe", &verbs, group, &[kinds, bindings].concat()).await;
    let joe = api.as_user("joe", &[]);
    let policy = |name: &str, kind: &str| {
        json!({"metadata": {"name": name}, "spec": {
            "paramKind": {"apiVersion": "v1", "kind": kind},
            "matchConstraints": rule("", "configmaps"),
            "validations": [{"expression": "true"}],
        }})
    };
    let mutating = |name: &str, kind: &str| {
        let mut made = policy(name, kind);
        let spec = made["spec"].as_object_mut().unwrap();
        spec.remove("validations");
        spec.insert("reinvocationPolicy".into(), "Never".into());
        let expression = json!({"expression": "Object{}"});
        let mutation = json!({"patchType": "ApplyConfiguration", "applyConfiguration": expression});
        spec.insert("mutations".into(), json!([mutation]));
        made
    };
    let refused = "spec.paramKind: Forbidden: user joe must have \"get\" permission on all objects of \
                   the referenced paramKind (kind=Secret, apiVersion=v1)";
    let [validating_kind, mutating_kind] = kinds.map(|kind| format!("{GROUP}/{kind}"));
    let (post, put) = (format!("POST {validating_kind}"), format!("PATCH {validating_kind}/free"));
    joe.check(&post, &policy("p", "Secret"), 422, refused).await;
    let post_mutating = format!("POST {mutating_kind}");
    joe.check(&post_mutating, &mutating("p", "Secret"), 422, refused).await;
    let unknown = policy("u", "Unknown");
    joe.check(&post, &unknown, 422, "(kind=Unknown, apiVersion=v1)").await;
    let mut free = policy("free", "");
    free["spec"].as_object_mut().unwrap().remove("paramKind");
    joe.check(&post, &free, 201, "").await;
    let added = json!({"spec": {"paramKind": {"apiVersion": "v1", "kind": "Secret"}}});
    joe.check(&put, &added, 422, refused).await;
    // A right in one namespace is not enough; one in the cluster is.
    api.create(&validating_kind, &policy("p", "Secret")).await;
    api.create(&mutating_kind, &mutating("p", "Secret")).await;
    let labels = json!({"metadata": {"labels": {"a": "b"}}});
    let label = format!("PATCH {validating_kind}/p");
    joe.check(&label, &labels, 200, "").await;
    let bound = |name: &str, policy: &str, reference: &Value| {
        let mut spec = json!({"policyName": policy, "paramRef": reference});
        spec["paramRef"]["parameterNotFoundAction"] = "Allow".into();
        json!({"metadata": {"name": name}, "spec": spec})
    };
    let [validating, mutating] = bindings.map(|kind| format!("POST {GROUP}/{kind}"));
    let in_namespace = json!({"name": "s", "namespace": "ns"});
    let refused = "spec.paramRef: Forbidden: user joe does not have \"get\" permission on the object \
                   referenced by paramRef";
    let with_actions = |mut binding: Value| {
        binding["spec"]["validationActions"] = json!(["Deny"]);
        binding
    };
    let one = with_actions(bound("b", "p", &in_namespace));
    joe.check(&validating, &one, 422, refused).await;
    joe.check(&mutating, &bound("b", "p", &in_namespace), 422, refused).await;
    let role = json!({"metadata": {"name": "r"}, "rules": [
        {"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["s"]},
    ]});
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/ns";
    api.create(&format!("{rbac}/roles"), &role).await;
    let grant = json!({
        "metadata": {"name": "r"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
        "subjects": [{"kind": "User", "name": "joe"}],
    });
    api.create(&format!("{rbac}/rolebindings"), &grant).await;
    joe.check(&validating, &one, 201, "").await;
    joe.check(&mutating, &bound("b", "p", &in_namespace), 201, "").await;
    let of_an_unknown = with_actions(bound("c", "none", &in_namespace));
    joe.check(&validating, &of_an_unknown, 422, refused).await;
    let by_selector = json!({"namespace": "ns", "selector": {"matchLabels": {"a": "b"}}});
    let all = with_actions(bound("d", "p", &by_selector));
    joe.check(&validating, &all, 422, refused).await;
    joe.check(&post, &policy("q", "Secret"), 422, "spec.paramKind").await;
    api.allow("joe", &["get"], "", &["secrets"]).await;
    joe.check(&post, &policy("q", "Secret"), 201, "").await;
    joe.check(&validating, &all, 201, "").await;
}

/// S10.23
#[tokio::test]
async fn a_mutating_policy_changes_what_is_stored() {
    let api = Api::start().await;
    let spec = json!({
        "matchConstraints": rule("apps", "deployments"),
        "matchConditions": [{"name": "new", "expression": "request.operation == 'CREATE'"}],
        "reinvocationPolicy": "Never",
        "mutations": [
            {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression":
                "Object{metadata: Object.metadata{labels: {'made-by': 'policy'}}, spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{containers: [Object.spec.template.spec.containers{name: 'c', imagePullPolicy: 'Always'}]}}}}"}},
            {"patchType": "JSONPatch", "jsonPatch": {"expression":
                "[JSONPatch{op: 'replace', path: '/spec/replicas', value: object.spec.replicas + 1}, JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('a/b'), value: 'c'}]"}},
        ],
    });
    add(&api, "mutating", &spec, &json!({})).await;
    let made = api.create(DEPLOYMENTS, &deployment("d")).await;
    assert_eq!(made["metadata"]["labels"], json!({"made-by": "policy", "a/b": "c"}));
    assert_eq!(made["spec"]["replicas"], 2);
    let container = &made["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(
        (&container["image"], &container["imagePullPolicy"]),
        (&json!("img:1"), &json!("Always"))
    );
    let target = format!("{DEPLOYMENTS}/d");
    api.merge(&target, &json!({"spec": {"replicas": 5}})).await.is(200, "\"replicas\":5");
}

#[tokio::test]
async fn invalid_policies_are_rejected() {
    let api = Api::start().await;
    let check = async |validation: Value, expected: &str| {
        let spec = json!({"matchConstraints": rule("", "pods"), "validations": [validation]});
        let policy = json!({"metadata": {"name": "p"}, "spec": spec});
        let answer = api.post(&format!("{GROUP}/validatingadmissionpolicies"), &policy).await;
        let status = answer.fails(422, "Invalid", "");
        let message = status["message"].as_str().unwrap();
        assert!(message.contains(expected), "{message}");
    };
    check(json!({"expression": "nothing"}), "spec.validations[0].expression: Invalid value: \"nothing\": compilation failed: ERROR: <input>:1:1: undeclared reference to 'nothing'").await;
    check(json!({"expression": "1"}), "must evaluate to bool but got int").await;
    // An expression of unknown type is not known to be a boolean.
    check(json!({"expression": "object.spec.on"}), "must evaluate to bool but got dyn").await;
    check(json!({"expression": "params.on == true"}), "undeclared reference to 'params'").await;
    check(json!({"expression": "request.nothing == ''"}), "undefined field 'nothing'").await;
    check(json!({"expression": "variables.x == 1"}), "undefined field 'x'").await;
    check(json!({"expression": "math.abs(1) == 1"}), "undeclared reference to 'math'").await;
    let message = |text: &str| json!({"expression": "true", "messageExpression": text});
    check(message("1"), "must evaluate to string but got int").await;
    check(message(" "), "spec.validations[0].messageExpression: Invalid value: \" \": must be non-empty if specified").await;
    check(json!({"expression": "true", "message": "a\nb"}), "must not contain line breaks").await;
    let binding = json!({"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": ["Deny", "Warn"]}});
    let answer = api.post(&format!("{GROUP}/validatingadmissionpolicybindings"), &binding).await;
    answer.is(422, "must not contain both Deny and Warn");
}

#[tokio::test]
async fn every_expression_of_a_policy_is_compiled_when_it_is_written() {
    let api = Api::start().await;
    let check = async |kind: &str, mut spec: Value, expected: &str| {
        spec["matchConstraints"] = rule("", "pods");
        let policy = json!({"metadata": {"name": "p"}, "spec": spec});
        let answer = api.post(&format!("{GROUP}/{kind}admissionpolicies"), &policy).await;
        let status = answer.fails(422, "Invalid", "");
        let message = status["message"].as_str().unwrap();
        assert!(message.contains(expected), "{message}");
    };
    let valid = json!([{"expression": "true"}]);
    check("validating", json!({}), "spec.validations: Required value: validations or auditAnnotations must contain at least one item").await;
    check(
        "validating",
        json!({"validations": valid, "matchConditions": [{"name": "c", "expression": "variables.a"}]}),
        "spec.matchConditions[0].expression: Invalid value: \"variables.a\": compilation failed: ERROR: <input>:1:1: undeclared reference to 'variables'",
    )
    .await;
    check(
        "validating",
        json!({"validations": valid, "variables": [{"name": "a", "expression": "variables.b"}]}),
        "spec.variables[0].expression: Invalid value: \"variables.b\": compilation failed: ERROR: <input>:1:10: undefined field 'b'",
    )
    .await;
    check(
        "validating",
        json!({"validations": valid, "variables": [{"name": "a-b", "expression": "1"}]}),
        "spec.variables[0].name: Invalid value: \"a-b\": must be a valid CEL identifier",
    )
    .await;
    // Variables are typed.
    check(
        "validating",
        json!({
            "variables": [{"name": "a", "expression": "size('x')"}],
            "validations": [{"expression": "variables.a == 'x'"}],
        }),
        "found no matching overload for '_==_' applied to '(int, string)'",
    )
    .await;
    check(
        "validating",
        json!({"auditAnnotations": [{"key": "k", "valueExpression": "1"}]}),
        "spec.auditAnnotations[0].valueExpression: Invalid value: \"1\": must evaluate to one of [string null_type] but got int",
    )
    .await;
    let mutation = |expression: &str| {
        json!({"mutations": [{"patchType": "ApplyConfiguration",
            "applyConfiguration": {"expression": expression}}], "reinvocationPolicy": "Never"})
    };
    let at = "spec.mutations[0].applyConfiguration.expression: Invalid value: ";
    check("mutating", mutation("1"), &format!("{at}\"1\": must evaluate to Object but got int"))
        .await;
    check("mutating", mutation("Other{}"), "undeclared reference to 'Other'").await;
}

#[tokio::test]
async fn policy_expressions_are_type_checked_against_matched_kinds() {
    let api = Api::start().await;
    let spec = |group: &str, version: &str, resource: &str, expression: &str| {
        json!({
            "matchConstraints": {"resourceRules": [{
                "apiGroups": [group], "apiVersions": [version], "operations": ["*"],
                "resources": [resource],
            }]},
            "variables": [{"name": "containers", "expression": "object.spec.template.spec.containers"}],
            "validations": [{"expression": expression, "messageExpression": "'got ' + object.spec.replicas"}],
        })
    };
    let policies = format!("{GROUP}/validatingadmissionpolicies");
    let create = async |name: &str, spec: &Value| {
        let policy = json!({"metadata": {"name": name}, "spec": spec});
        api.create(&policies, &policy).await["status"].clone()
    };
    let status = create("odd", &spec("apps", "v1", "deployments", "object.replicas > 1")).await;
    let expected = json!({"observedGeneration": 1, "typeChecking": {"expressionWarnings": [
        {"fieldRef": "spec.validations[0].expression", "warning": "apps/v1, Kind=Deployment: ERROR: <input>:1:7: undefined field 'replicas'\n | object.replicas > 1\n | ......^\n"},
        {"fieldRef": "spec.validations[0].messageExpression", "warning": "apps/v1, Kind=Deployment: ERROR: <input>:1:8: found no matching overload for '_+_' applied to '(string, int)'\n | 'got ' + object.spec.replicas\n | .......^\n"},
    ]}});
    assert_eq!(status, expected);
    let mut fine = spec(
        "apps",
        "v1",
        "deployments",
        "variables.containers.all(c, c.image != '') && object.metadata.namespace != 'x' && object.metadata.labels.all(k, k != '')",
    );
    fine["validations"][0]["messageExpression"] = "'no'".into();
    let right = json!({"observedGeneration": 1, "typeChecking": {}});
    assert_eq!(create("fine", &fine).await, right);
    fine["validations"][0]["expression"] = "variables.containers.all(c, c.imag != '')".into();
    let odd = create("variable", &fine).await.to_string();
    assert!(odd.contains("undefined field 'imag'"), "{odd}");
    // Wildcard rules are not type-checked.
    let status = create("any", &spec("*", "v1", "deployments", "object.replicas > 1")).await;
    assert_eq!(status, right);
    // A changed spec is checked again; other changes are not.
    let target = format!("{policies}/odd");
    let patch = json!({"spec": {"validations": [{"expression": "object.spec.replicas > 1"}]}});
    let changed = api.merge(&target, &patch).await.is(200, "").json();
    assert_eq!(changed["status"], json!({"observedGeneration": 2, "typeChecking": {}}));
    let changed = api.merge(&target, &json!({"metadata": {"labels": {"a": "b"}}})).await;
    assert_eq!(changed.is(200, "").json()["status"]["observedGeneration"], 2);
}

#[tokio::test]
async fn a_policy_may_use_the_authorizer() {
    let spec = json!({
        "matchConstraints": rule("", "configmaps"),
        "matchConditions": [{"name": "c", "expression": "authorizer.requestResource.check('create').allowed()"}],
        "variables": [{"name": "other", "expression": "authorizer.serviceAccount('default', 'web')"}],
        "validations": [
            {"expression": "authorizer.path('/healthz').check('get').allowed()", "message": "no health"},
            {"expression": "variables.other.group('apps').resource('deployments').namespace('default').name('a').subresource('scale').check('update').allowed()", "message": "not for others"},
        ],
    });
    let api = with(spec, json!({"validationActions": ["Deny"]})).await;
    api.post(CMS, &config_map("a")).await.fails(422, "Invalid", &format!("{DENIED}not for others"));
}

#[tokio::test]
async fn policy_expressions_have_a_cost_limit() {
    let spec = |expression: &str| {
        json!({
            "matchConstraints": rule("", "configmaps"),
            "variables": [{"name": "all", "expression": "lists.range(500)"}],
            "validations": [{"expression": expression}],
        })
    };
    let square = "variables.all.all(x, variables.all.all(y, x + y >= 0))";
    let api = with(spec(square), json!({"validationActions": ["Deny"]})).await;
    api.post(CMS, &config_map("a")).await.fails(
        422,
        "Invalid",
        &format!("{DENIED}expression '{square}' resulted in error: operation cancelled: actual cost limit exceeded"),
    );
    // A variable has the same limit, and fails the expressions that use it.
    let mut dear = spec("variables.dear");
    dear["variables"] = json!([{"name": "dear", "expression": "lists.range(1200).all(x, lists.range(1200).all(y, x + y >= 0))"}]);
    let api = with(dear, json!({"validationActions": ["Deny"]})).await;
    api.post(CMS, &config_map("a")).await.fails(
        422,
        "Invalid",
        &format!("{DENIED}expression 'variables.dear' resulted in error: composited variable \"dear\" fails to evaluate: operation cancelled: actual cost limit exceeded"),
    );
}

#[tokio::test]
async fn policy_decisions_are_counted_in_metrics() {
    let spec = json!({
        "matchConstraints": rule("", "configmaps"),
        "matchConditions": [{"name": "not-skipped", "expression": "object.metadata.name != 'skipped'"}],
        "validations": [{"expression": "object.metadata.name != 'bad'"}],
    });
    let api = with(spec, json!({"validationActions": ["Deny"]})).await;
    for name in ["good", "bad", "skipped"] {
        api.post(CMS, &config_map(name)).await;
    }
    let text = api.get("/metrics").await.text();
    for line in [
        r#"validating_admission_policy_check_total{policy="p",policy_binding="b",error_type="no_error",enforcement_action="allow"} 1"#,
        r#"validating_admission_policy_check_total{policy="p",policy_binding="b",error_type="no_error",enforcement_action="deny"} 1"#,
        r#"validating_admission_policy_check_duration_seconds_count{policy="p",policy_binding="b",error_type="no_error",enforcement_action="deny"} 1"#,
        r#"admission_match_condition_exclusions_total{name="p",kind="policy",type="validate",operation="CREATE"} 1"#,
    ] {
        let line = format!("apiserver_{line}\n");
        assert!(text.contains(&line), "no {line} in {text}");
    }
}
