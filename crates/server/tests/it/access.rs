//! Permission: RBAC, escalation, impersonation and reviews, through requests.

use std::collections::BTreeMap;
use std::sync::Arc;

use headwater_json::{Value, json};
use headwater_store::Memory;

use crate::api::{Api, Asking, CMS, DEPLOYMENTS, PODS, config_map, deployment, pod};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const REVIEWS: &str = "/apis/authorization.k8s.io/v1";

fn cluster_role(name: &str, rules: &Value) -> Value {
    json!({ "metadata": { "name": name }, "rules": rules })
}

fn rule(verbs: &[&str], group: &str, resources: &[&str]) -> Value {
    json!([{ "verbs": verbs, "apiGroups": [group], "resources": resources }])
}

/// A binding of a ClusterRole to a user.
fn binding(name: &str, role: &str, user: &str) -> Value {
    json!({
        "metadata": { "name": name },
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role,
        },
        "subjects": [{ "kind": "User", "name": user }],
    })
}

impl Api {
    /// Lets a user do something in the whole cluster.
    pub(crate) async fn allow(&self, user: &str, verbs: &[&str], group: &str, resources: &[&str]) {
        let name = format!("{user}-{}-{}", verbs.join("-"), resources.join("-").replace('/', "."));
        let role = cluster_role(&name, &rule(verbs, group, resources));
        self.create(&format!("{RBAC}/clusterroles"), &role).await;
        let binding = binding(&name, &name, user);
        self.create(&format!("{RBAC}/clusterrolebindings"), &binding).await;
    }
}

impl Asking<'_> {
    /// Sends a request and checks its code and a part of its message.
    #[track_caller]
    pub(crate) fn check<'a>(
        &'a self,
        request: &'a str,
        body: &'a Value,
        code: u16,
        part: &'a str,
    ) -> impl Future<Output = Value> + 'a {
        let typed = match (body, request.starts_with("PATCH")) {
            (Value::Null, _) => request.to_owned(),
            (_, false) => format!("{request}\nContent-Type: application/json"),
            (_, true) => format!("{request}\nContent-Type: application/merge-patch+json"),
        };
        let body = if *body == Value::Null { String::new() } else { body.to_string() };
        async move {
            let answer = self.send(&typed, body).await;
            assert_eq!(answer.code, code, "{request}: {}", answer.text());
            let json = answer.json();
            let message = json["message"].as_str().unwrap_or_default();
            assert!(message.contains(part), "{request}: no {part:?} in {message}");
            json
        }
    }
}

/// S8.10
#[tokio::test(start_paused = true)]
async fn a_change_of_a_role_or_binding_is_in_force_when_it_is_acknowledged() {
    let api = Api::start().await;
    let joe = api.as_user("joe", &[]);
    let list = format!("GET {CMS}");
    let refused = "configmaps is forbidden: User \"joe\" cannot list resource \"configmaps\" in API \
                   group \"\" in the namespace \"ns\"";
    let roles = format!("{RBAC}/namespaces/ns/roles");
    let bindings = format!("{RBAC}/namespaces/ns/rolebindings");
    let mut bound = binding("b", "r", "joe");
    bound["roleRef"]["kind"] = "Role".into();
    for round in 0..20 {
        joe.check(&list, &Value::Null, 403, refused).await;
        api.create(&bindings, &bound).await;
        let missing = format!("{refused}: RBAC: role.rbac.authorization.k8s.io \"r\" not found");
        joe.check(&list, &Value::Null, 403, &missing).await;
        api.create(&roles, &cluster_role("r", &rule(&["list"], "", &["configmaps"]))).await;
        joe.check(&list, &Value::Null, 200, "").await;
        api.merge(&format!("{roles}/r"), &json!({ "rules": [] })).await.is(200, "");
        joe.check(&list, &Value::Null, 403, refused).await;
        api.merge(&format!("{roles}/r"), &json!({ "rules": rule(&["*"], "*", &["*"]) })).await;
        joe.check(&list, &Value::Null, 200, "").await;
        // Another namespace, and the cluster, are not the role's.
        joe.check("GET /api/v1/configmaps", &Value::Null, 403, "at the cluster scope").await;
        joe.check("GET /api/v1/namespaces/default/configmaps", &Value::Null, 403, "").await;
        match round % 2 {
            0 => api.delete(&format!("{bindings}/b")).await.is(200, ""),
            _ => api.send(&format!("DELETE {bindings}"), "").await.is(200, ""),
        };
        joe.check(&list, &Value::Null, 403, refused).await;
        api.delete(&format!("{roles}/r")).await.is(200, "");
    }
}

/// Another server over the same store follows a change as soon as it sees it.
#[tokio::test(start_paused = true)]
async fn a_change_of_a_role_reaches_other_servers() {
    let store = Arc::new(Memory::default());
    let here = Api::in_namespace(store.clone()).await;
    let there = Api::over(store).await;
    let list = format!("GET {CMS}");
    let becomes = async |code: u16| {
        while there.as_user("joe", &[]).send(&list, "").await.code != code {
            tokio::task::yield_now().await;
        }
    };
    becomes(403).await;
    here.allow("joe", &["list"], "", &["configmaps"]).await;
    becomes(200).await;
    here.merge(&format!("{RBAC}/clusterroles/joe-list-configmaps"), &json!({ "rules": [] })).await;
    becomes(403).await;
}

/// B068
#[tokio::test(start_paused = true)]
async fn each_verb_and_each_subresource_is_a_right_of_its_own() {
    let api = Api::start().await;
    api.allow("joe", &["get"], "", &["pods"]).await;
    let joe = api.as_user("joe", &[]);
    joe.check(&format!("GET {PODS}/a"), &Value::Null, 404, "").await;
    for request in [
        format!("GET {PODS}"),
        format!("GET {PODS}?watch=1"),
        format!("DELETE {PODS}"),
        format!("DELETE {PODS}/a"),
        format!("GET {PODS}/a/status"),
        format!("GET {PODS}/a/log"),
        "GET /api/v1/pods".to_owned(),
        format!("GET /api/v1/watch{}", &PODS["/api/v1".len()..]),
    ] {
        joe.check(&request, &Value::Null, 403, "is forbidden").await;
    }
    for request in [format!("PUT {PODS}/a/status"), format!("PATCH {PODS}/a")] {
        joe.check(&request, &json!({}), 403, "is forbidden").await;
    }
}

/// S8.11, B069
#[tokio::test(start_paused = true)]
async fn a_rule_on_a_name_allows_lists_and_watches_of_that_name_only() {
    let api = Api::start().await;
    api.config_maps(&["one", "two"]).await;
    let mut rules =
        rule(&["get", "list", "watch", "create", "deletecollection"], "", &["configmaps"]);
    rules[0]["resourceNames"] = json!(["one"]);
    api.create(&format!("{RBAC}/clusterroles"), &cluster_role("r", &rules)).await;
    api.create(&format!("{RBAC}/clusterrolebindings"), &binding("b", "r", "joe")).await;
    let joe = api.as_user("joe", &[]);
    joe.check(&format!("GET {CMS}/one"), &Value::Null, 200, "").await;
    joe.check(&format!("GET {CMS}/two"), &Value::Null, 403, "").await;
    let found = joe
        .check(&format!("GET {CMS}?fieldSelector=metadata.name%3Done"), &Value::Null, 200, "")
        .await;
    assert_eq!(found["items"].as_array().unwrap().len(), 1);
    for request in [
        format!("GET {CMS}"),
        format!("GET {CMS}?watch=1"),
        format!("GET {CMS}?fieldSelector=metadata.name%3Dtwo"),
        format!("GET {CMS}?fieldSelector=metadata.name%21%3Done"),
        // The first of repeated parameters is the one that selects.
        format!("GET {CMS}?fieldSelector=metadata.name%3Dtwo&fieldSelector=metadata.name%3Done"),
        format!("GET {CMS}?watch=1&fieldSelector=metadata.name%3Dtwo"),
        format!("DELETE {CMS}?fieldSelector=metadata.name%3Done"),
    ] {
        joe.check(&request, &Value::Null, 403, "is forbidden").await;
    }
    joe.check(&format!("POST {CMS}"), &config_map("one"), 403, "cannot create").await;
}

/// S8.12, B073
#[tokio::test(start_paused = true)]
async fn nobody_grants_what_they_do_not_hold() {
    let api = Api::start().await;
    let all = ["get", "create", "update", "patch", "delete"];
    let kinds = ["roles", "clusterroles", "rolebindings", "clusterrolebindings"];
    api.allow("joe", &all, "rbac.authorization.k8s.io", &kinds).await;
    api.allow("joe", &["get", "list"], "", &["pods"]).await;
    let joe = api.as_user("joe", &[]);
    let roles = format!("{RBAC}/clusterroles");
    let bindings = format!("{RBAC}/clusterrolebindings");

    // A role may contain what its author holds, and no more.
    let post = format!("POST {roles}");
    joe.check(&post, &cluster_role("fine", &rule(&["get"], "", &["pods"])), 201, "").await;
    let more = cluster_role("more", &rule(&["get", "watch", "delete"], "", &["pods"]));
    let message = "clusterroles.rbac.authorization.k8s.io \"more\" is forbidden: user \"joe\" \
                   (groups=[\"system:authenticated\"]) is attempting to grant RBAC permissions not \
                   currently held:\n{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"watch\" \"delete\"]}";
    let refused = joe.check(&post, &more, 403, message).await;
    assert_eq!(refused["reason"], "Forbidden");
    let grow = json!({ "rules": rule(&["*"], "", &["pods"]) });
    joe.check(&format!("PATCH {roles}/fine"), &grow, 403, "not currently held").await;
    let put = cluster_role("fine", &rule(&["*"], "*", &["*"]));
    joe.check(&format!("PUT {roles}/fine"), &put, 403, "not currently held").await;
    let put = cluster_role("new", &rule(&["*"], "*", &["*"]));
    joe.check(&format!("PUT {roles}/new"), &put, 403, "not currently held").await;
    // The same in a namespace, and as a dry run.
    let role = format!("POST {RBAC}/namespaces/ns/roles");
    joe.check(&role, &more, 403, "roles.rbac.authorization.k8s.io \"more\" is forbidden").await;
    joe.check(&format!("{post}?dryRun=All"), &more, 403, "not currently held").await;

    // A binding may name only such a role.
    let post = format!("POST {bindings}");
    joe.check(&post, &binding("fine", "fine", "jane"), 201, "").await;
    let message =
        "clusterrolebindings.rbac.authorization.k8s.io \"root\" is forbidden: user \"joe\"";
    joe.check(&post, &binding("root", "cluster-admin", "joe"), 403, message).await;
    let in_ns = format!("POST {RBAC}/namespaces/ns/rolebindings");
    joe.check(&in_ns, &binding("root", "cluster-admin", "joe"), 403, "not currently held").await;
    let none = "clusterrole.rbac.authorization.k8s.io \"none\" not found";
    joe.check(&post, &binding("none", "none", "joe"), 404, none).await;
    // Subjects cannot be added to a binding whose role the user does not hold.
    let root = format!("PATCH {bindings}/cluster-admin");
    let add = json!({ "subjects": [{ "kind": "User", "name": "joe", "apiGroup": "rbac.authorization.k8s.io" }] });
    joe.check(&root, &add, 403, "not currently held").await;
    // What garbage collection changes is no grant.
    joe.check(&root, &json!({ "metadata": { "finalizers": ["a/b"] } }), 200, "").await;
    api.merge(&format!("{bindings}/cluster-admin"), &json!({ "metadata": { "finalizers": null } }))
        .await;

    // An aggregated role can contain anything.
    let mut aggregated = cluster_role("sum", &json!([]));
    aggregated["aggregationRule"] =
        json!({ "clusterRoleSelectors": [{ "matchLabels": { "a": "b" } }] });
    let message = "must have cluster-admin privileges to use the aggregationRule";
    joe.check(&format!("POST {roles}"), &aggregated, 403, message).await;

    // The verb `escalate` on one name is for requests with this name in their path.
    let mut escalate = rule(&["escalate"], "rbac.authorization.k8s.io", &["clusterroles"]);
    escalate[0]["resourceNames"] = json!(["named"]);
    api.create(&roles, &cluster_role("escalator", &escalate)).await;
    api.create(&bindings, &binding("escalator", "escalator", "joe")).await;
    let named = cluster_role("named", &rule(&["*"], "*", &["*"]));
    joe.check(&format!("POST {roles}"), &named, 403, "not currently held").await;
    joe.check(&format!("PUT {roles}/named"), &named, 201, "").await;
    joe.check(&format!("PUT {roles}/fine"), &named, 400, "does not match the name").await;

    // The verbs `escalate` and `bind` lift the checks.
    api.allow("joe", &["escalate"], "rbac.authorization.k8s.io", &["clusterroles"]).await;
    joe.check(&format!("POST {roles}"), &more, 201, "").await;
    joe.check(&format!("POST {roles}"), &aggregated, 201, "").await;
    joe.check(&role, &more, 403, "not currently held").await;
    joe.check(&post, &binding("more", "more", "joe"), 403, "not currently held").await;
    let mut bind = rule(&["bind"], "rbac.authorization.k8s.io", &["clusterroles"]);
    bind[0]["resourceNames"] = json!(["more"]);
    api.create(&roles, &cluster_role("binder", &bind)).await;
    api.create(&bindings, &binding("binder", "binder", "joe")).await;
    let watch = format!("GET {PODS}?watch=1&timeoutSeconds=0");
    joe.check(&watch, &Value::Null, 403, "").await;
    joe.check(&post, &binding("more", "more", "joe"), 201, "").await;
    assert_eq!(joe.send(&watch, "").await.code, 200);
    joe.check(&post, &binding("root", "cluster-admin", "joe"), 403, "not currently held").await;
}

/// The right to change an object is not the right to create it.
#[tokio::test(start_paused = true)]
async fn an_update_or_apply_that_creates_needs_the_right_to_create() {
    let api = Api::start().await;
    api.allow("joe", &["get", "update", "patch"], "", &["configmaps"]).await;
    api.allow("joe", &["update"], "coordination.k8s.io", &["leases"]).await;
    let joe = api.as_user("joe", &[]);
    let refused = "User \"joe\" cannot create resource \"configmaps\" in API group \"\" in the \
                   namespace \"ns\"";
    let apply = format!("PATCH {CMS}/a?fieldManager=m\nContent-Type: application/apply-patch+yaml");
    let body = config_map("a").to_string();
    joe.send(&apply, body.clone()).await.fails(403, "Forbidden", "configmaps \"a\" is forbidden");
    joe.send(&apply, body.clone()).await.is(403, &refused.replace('"', "\\\""));
    let lease = "PUT /apis/coordination.k8s.io/v1/namespaces/ns/leases/a";
    let spec = json!({ "metadata": { "name": "a" }, "spec": {} });
    joe.check(lease, &spec, 403, "cannot create resource \"leases\"").await;
    api.config_maps(&["a"]).await;
    joe.send(&apply, body).await.is(200, "");
    api.allow("joe", &["create"], "coordination.k8s.io", &["leases"]).await;
    joe.check(lease, &spec, 201, "").await;
}

/// S10.21
#[tokio::test(start_paused = true)]
async fn aggregated_roles_follow_the_roles_that_they_select() {
    let api = Api::start().await;
    api.create(&format!("{RBAC}/clusterrolebindings"), &binding("b", "view", "joe")).await;
    let joe = api.as_user("joe", &[]);
    let widgets = "GET /apis/example.com/v1/namespaces/ns/widgets";
    let refused = "widgets.example.com is forbidden: User \"joe\" cannot list resource \"widgets\" \
                   in API group \"example.com\" in the namespace \"ns\"";
    joe.check(widgets, &Value::Null, 403, refused).await;
    joe.check(&format!("GET {PODS}"), &Value::Null, 200, "").await;
    let mut role = cluster_role("w", &rule(&["list"], "example.com", &["widgets"]));
    role["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] = "true".into();
    let roles = format!("{RBAC}/clusterroles");
    api.create(&roles, &role).await;
    // Allowed; there is no such resource.
    joe.send(widgets, "").await.is(404, "");
    // `edit` selects `view`, `admin` selects `edit`.
    for name in ["view", "edit", "admin"] {
        let rules = api.get(&format!("{roles}/{name}")).await.json()["rules"].to_string();
        assert!(rules.contains("widgets"), "{name}: {rules}");
    }
    api.delete(&format!("{roles}/w")).await.is(200, "");
    joe.check(widgets, &Value::Null, 403, refused).await;
    // The rules of an aggregated role are not for others to write.
    api.merge(&format!("{roles}/view"), &json!({ "rules": [] })).await.is(200, "");
    joe.check(&format!("GET {PODS}"), &Value::Null, 200, "").await;
}

/// S10.21
#[tokio::test(start_paused = true)]
async fn a_start_completes_default_roles_and_keeps_what_was_added() {
    let store = Arc::new(Memory::default());
    let roles = format!("{RBAC}/clusterroles");
    let bindings = format!("{RBAC}/clusterrolebindings");
    let before = {
        let api = Api::over(store.clone()).await;
        let count = |list: Value| list["items"].as_array().unwrap().len();
        assert_eq!(count(api.get(&roles).await.json()), 69);
        assert_eq!(count(api.get(&bindings).await.json()), 50);
        let view = api.get(&format!("{roles}/view")).await.json();
        assert!(view["rules"].as_array().unwrap().len() > 10, "{view}");
        let more = rule(&["get"], "example.com", &["widgets"]);
        let only = json!({ "rules": more, "metadata": { "labels": { "mine": "x" } } });
        api.merge(&format!("{roles}/system:basic-user"), &only).await.is(200, "");
        let joe =
            json!([{ "kind": "User", "name": "joe", "apiGroup": "rbac.authorization.k8s.io" }]);
        api.merge(&format!("{bindings}/system:discovery"), &json!({ "subjects": joe })).await;
        let off = json!({
            "rules": [],
            "metadata": { "annotations": { "rbac.authorization.kubernetes.io/autoupdate": "false" } },
        });
        api.merge(&format!("{roles}/system:discovery"), &off).await.is(200, "");
        api.delete(&format!("{roles}/system:monitoring")).await.is(200, "");
        api.get(&roles).await.json()["metadata"]["resourceVersion"].clone()
    };
    let api = Api::over(store.clone()).await;
    let basic = api.get(&format!("{roles}/system:basic-user")).await.json();
    assert_eq!(basic["rules"].as_array().unwrap().len(), 4, "{basic}");
    assert_eq!(basic["metadata"]["labels"]["mine"], "x");
    let discovery = api.get(&format!("{bindings}/system:discovery")).await.json();
    assert_eq!(discovery["subjects"].as_array().unwrap().len(), 2);
    let off = api.get(&format!("{roles}/system:discovery")).await.json();
    assert_eq!(off["rules"], Value::Null);
    api.get(&format!("{roles}/system:monitoring")).await.is(200, "");
    let after = api.get(&roles).await.json()["metadata"]["resourceVersion"].clone();
    assert_ne!(before, after);
    // A start over complete roles writes nothing.
    drop(api);
    let api = Api::over(store).await;
    assert_eq!(api.get(&roles).await.json()["metadata"]["resourceVersion"], after);
}

/// S8.6, B065
#[tokio::test(start_paused = true)]
async fn impersonation_needs_a_right_for_each_part_of_the_identity() {
    let api = Api::start().await;
    const SELF: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    api.allow("joe", &["impersonate"], "", &["users", "serviceaccounts"]).await;
    let mut groups = rule(&["impersonate"], "", &["groups"]);
    groups[0]["resourceNames"] = json!(["dev"]);
    api.create(&format!("{RBAC}/clusterroles"), &cluster_role("g", &groups)).await;
    api.create(&format!("{RBAC}/clusterrolebindings"), &binding("g", "g", "joe")).await;
    api.allow("joe", &["impersonate"], "authentication.k8s.io", &["userextras/scopes"]).await;
    let joe = api.as_user("joe", &[]);
    for (headers, refused) in [
        ("Impersonate-User: jane", ""),
        ("Impersonate-User: jane\nImpersonate-Group: dev", ""),
        ("Impersonate-User: jane\nImpersonate-Extra-Scopes: x", ""),
        ("Impersonate-User: system:serviceaccount:ns:robot", ""),
        (
            "Impersonate-User: jane\nImpersonate-Group: system:masters",
            "groups \"system:masters\" is forbidden: User \"joe\" cannot impersonate resource \
             \"groups\" in API group \"\" at the cluster scope",
        ),
        (
            "Impersonate-User: jane\nImpersonate-Uid: 7",
            "uids.authentication.k8s.io \"7\" is forbidden",
        ),
        (
            "Impersonate-User: jane\nImpersonate-Extra-Other: x",
            "userextras.authentication.k8s.io \"x\" is forbidden: User \"joe\" cannot impersonate \
             resource \"userextras/other\" in API group \"authentication.k8s.io\" at the cluster scope",
        ),
    ] {
        let code = if refused.is_empty() { 201 } else { 403 };
        joe.check(&format!("POST {SELF}\n{headers}"), &json!({}), code, refused).await;
    }
    // One impersonation does not lead to another: the impersonated user's rights are not used for it.
    let root = "Impersonate-User: joe\nImpersonate-Group: system:masters";
    api.as_user("jane", &[]).check(&format!("POST {SELF}\n{root}"), &json!({}), 403, "jane").await;
    let robot = "Impersonate-User: system:serviceaccount:ns:robot";
    joe.check(&format!("GET {CMS}\n{robot}"), &Value::Null, 403, "serviceaccount:ns:robot").await;
}

/// S8.6: the constrained form needs a right on the identity and one on what is done with it.
#[tokio::test(start_paused = true)]
async fn constrained_impersonation_allows_only_the_named_requests() {
    let api = Api::start().await;
    const AUTHENTICATION: &str = "authentication.k8s.io";
    api.allow("jane", &["get", "list"], "", &["configmaps"]).await;
    api.allow("system:serviceaccount:ns:robot", &["list"], "", &["configmaps"]).await;
    api.allow("joe", &["impersonate:user-info"], AUTHENTICATION, &["users"]).await;
    api.allow("joe", &["impersonate-on:user-info:list"], "", &["configmaps"]).await;
    let joe = api.as_user("joe", &[]);
    let list = format!("GET {CMS}\nImpersonate-User: jane");
    joe.check(&list, &Value::Null, 200, "").await;
    let get = format!("GET {CMS}/a\nImpersonate-User: jane");
    let refused = "users \"jane\" is forbidden: User \"joe\" cannot impersonate resource \"users\"";
    joe.check(&get, &Value::Null, 403, refused).await;
    joe.check(&format!("{list}\nImpersonate-Group: dev"), &Value::Null, 403, "").await;
    // A service account or a node is not any user.
    let robot = format!("GET {CMS}\nImpersonate-User: system:serviceaccount:ns:robot");
    joe.check(&robot, &Value::Null, 403, "cannot impersonate resource \"serviceaccounts\"").await;
    api.allow("joe", &["impersonate:serviceaccount"], AUTHENTICATION, &["serviceaccounts"]).await;
    api.allow("joe", &["impersonate-on:serviceaccount:list"], "", &["configmaps"]).await;
    joe.check(&robot, &Value::Null, 200, "").await;
    let node = format!("GET {CMS}\nImpersonate-User: system:node:n1");
    joe.check(&node, &Value::Null, 403, "").await;
    // Nobody becomes an administrator by it, whatever the rights are.
    let rights = ["users", "groups", "uids", "userextras/acme.io/project", "userextras/project"];
    api.allow("joe", &["impersonate:user-info"], AUTHENTICATION, &rights).await;
    joe.check(&format!("{list}\nImpersonate-Group: dev"), &Value::Null, 200, "").await;
    let administrators = format!("{list}\nImpersonate-Group: system:masters");
    joe.check(&administrators, &Value::Null, 403, "cannot impersonate").await;
    let extra = format!("{list}\nImpersonate-Extra-Acme.io%2Fproject: x");
    joe.check(&extra, &Value::Null, 200, "").await;
    let extra = format!("{list}\nImpersonate-Extra-Project: x");
    joe.check(&extra, &Value::Null, 403, "cannot impersonate").await;
    // The impersonated user's own rights still decide.
    let joes = format!("GET {CMS}\nImpersonate-User: nobody");
    joe.check(&joes, &Value::Null, 403, "User \"nobody\" cannot list").await;
}

/// A stream does not outlive the credential that opened it, whatever it asked for.
#[tokio::test(start_paused = true)]
async fn a_watch_ends_when_its_credential_expires() {
    let api = Api::start().await;
    api.allow("joe", &["list", "watch"], "", &["configmaps"]).await;
    api.allow("joe", &["impersonate"], "", &["users"]).await;
    let now: jiff::Timestamp = crate::api::NOW.parse().unwrap();
    let joe = api.as_user_until("joe", now + std::time::Duration::from_secs(90));
    for headers in ["", "\nImpersonate-User: joe"] {
        let began = tokio::time::Instant::now();
        let target = format!("{CMS}?watch=true&timeoutSeconds=3000{headers}");
        joe.watch(&target).await.rest().await;
        assert_eq!(began.elapsed().as_secs(), 90, "{headers}");
    }
    let began = tokio::time::Instant::now();
    joe.watch(&format!("{CMS}?watch=true&timeoutSeconds=20")).await.rest().await;
    assert_eq!(began.elapsed().as_secs(), 20);
}

/// S8.13
#[tokio::test(start_paused = true)]
async fn reviews_say_why_and_list_the_rules_of_the_caller() {
    let api = Api::start().await;
    api.create(&format!("{RBAC}/namespaces/ns/rolebindings"), &binding("b", "view", "joe")).await;
    let review = |verb: &str| {
        let on = json!({ "verb": verb, "resource": "pods", "namespace": "ns" });
        json!({ "spec": { "user": "joe", "resourceAttributes": on } })
    };
    let target = format!("{REVIEWS}/subjectaccessreviews");
    let status = api.create(&target, &review("list")).await["status"].clone();
    let reason = "RBAC: allowed by RoleBinding \"b/ns\" of ClusterRole \"view\" to User \"joe\"";
    assert_eq!(status, json!({ "allowed": true, "reason": reason }));
    let status = api.create(&target, &review("delete")).await["status"].clone();
    assert_eq!(status, json!({ "allowed": false }));

    let joe = api.as_user("joe", &[]);
    let request = format!("POST {REVIEWS}/selfsubjectrulesreviews");
    let spec = json!({ "spec": { "namespace": "ns" } });
    let status = joe.check(&request, &spec, 201, "").await["status"].clone();
    assert_eq!(status["incomplete"], false);
    let (resources, paths) = (&status["resourceRules"], &status["nonResourceRules"]);
    let text = resources.to_string();
    for part in ["configmaps", "selfsubjectaccessreviews", "deployments"] {
        assert!(text.contains(part), "no {part} in {text}");
    }
    assert!(!text.contains("secrets"), "{text}");
    assert!(paths.to_string().contains("/healthz"), "{paths}");
    let elsewhere = json!({ "spec": { "namespace": "default" } });
    let status = joe.check(&request, &elsewhere, 201, "").await["status"].clone();
    assert!(!status["resourceRules"].to_string().contains("configmaps"), "{status}");
    joe.check(&request, &json!({ "spec": {} }), 400, "no namespace on request").await;
}

/// R49: the path that is authorized is the one that is served.
#[tokio::test(start_paused = true)]
async fn a_path_is_authorized_as_it_is_routed() {
    let api = Api::start().await;
    let rules = json!([{ "verbs": ["get"], "nonResourceURLs": ["/open/*", "/healthz*"] }]);
    api.create(&format!("{RBAC}/clusterroles"), &cluster_role("r", &rules)).await;
    api.create(&format!("{RBAC}/clusterrolebindings"), &binding("b", "r", "joe")).await;
    let joe = api.as_user("joe", &[]);
    let refused = |target: &str| format!("GET {target}");
    for target in [
        "/metrics",
        "/%6detrics",
        "/metrics/",
        "//metrics",
        "/./metrics",
        "/debug/../metrics",
        "/METRICS",
    ] {
        joe.check(&refused(target), &Value::Null, 403, "forbidden: User \"joe\" cannot get path")
            .await;
    }
    // Allowed paths that do not exist stay inside their prefix.
    for target in ["/open/../metrics", "/open/%2e%2e/metrics", "/healthz%2f..%2fmetrics"] {
        let answer = joe.send(&refused(target), "").await;
        assert!(matches!(answer.code, 403 | 404), "{target}: {} {}", answer.code, answer.text());
    }
    for target in [
        "/api/v1/namespaces/ns/secrets",
        "/api/v1/namespaces/ns/%73ecrets",
        "/api/v1/namespaces/ns/secrets/",
        "/api/v1/watch/namespaces/ns/secrets",
        "/api/v1/secrets",
    ] {
        joe.check(&refused(target), &Value::Null, 403, "resource \"secrets\"").await;
    }
    // A legacy watch path is a watch, whatever the method.
    for method in ["GET", "POST", "DELETE", "HEAD"] {
        let request = format!("{method} /api/v1/watch/namespaces/ns/secrets");
        joe.check(&request, &Value::Null, 403, "cannot watch resource \"secrets\"").await;
    }
    let log = "GET /api/v1/watch/namespaces/ns/pods/p/log";
    joe.check(log, &Value::Null, 403, "cannot watch resource \"pods/log\"").await;
    api.create(PODS, &pod("p", "")).await;
    api.send(log, "").await.is(404, "");
    // B070: a cluster-scoped kind has no namespaced path, whatever a role in the namespace allows.
    let admin = binding("admin", "cluster-admin", "joe");
    api.create(&format!("{RBAC}/namespaces/ns/rolebindings"), &admin).await;
    joe.check("GET /api/v1/namespaces/ns/nodes", &Value::Null, 404, "").await;
    joe.check("GET /api/v1/nodes", &Value::Null, 403, "at the cluster scope").await;
}

/// S8.8: a request for the Namespace x is one in the namespace x.
#[tokio::test(start_paused = true)]
async fn a_role_in_a_namespace_covers_the_namespace_object() {
    let api = Api::start().await;
    let joe = api.as_user("joe", &[]);
    let bindings = format!("{RBAC}/namespaces/ns/rolebindings");
    let refused = "cannot get resource \"namespaces\" in API group \"\" in the namespace \"ns\"";
    joe.check("GET /api/v1/namespaces/ns", &Value::Null, 403, refused).await;
    api.create(&bindings, &binding("view", "view", "joe")).await;
    joe.check("GET /api/v1/namespaces/ns", &Value::Null, 200, "").await;
    joe.check("GET /api/v1/namespaces/ns/status", &Value::Null, 200, "").await;
    let refused = "in the namespace \"default\"";
    joe.check("GET /api/v1/namespaces/default", &Value::Null, 403, refused).await;
    for list in ["GET /api/v1/namespaces", "GET /api/v1/namespaces?fieldSelector=metadata.name=ns"]
    {
        joe.check(list, &Value::Null, 403, "at the cluster scope").await;
    }
    let labels = json!({ "metadata": { "labels": { "a": "b" } } });
    joe.check("PATCH /api/v1/namespaces/ns", &labels, 403, "cannot patch").await;
    api.create(&bindings, &binding("all", "cluster-admin", "joe")).await;
    joe.check("PATCH /api/v1/namespaces/ns", &labels, 200, "").await;
    let refused = "in the namespace \"default\"";
    joe.check("PATCH /api/v1/namespaces/default", &labels, 403, refused).await;
    joe.check("DELETE /api/v1/namespaces/ns", &Value::Null, 200, "").await;
}

/// As in Kubernetes since 1.35: a WebSocket to a command is opened by GET, and needs `create` too.
#[tokio::test(start_paused = true)]
async fn the_right_to_read_a_command_is_no_right_to_run_one() {
    let api = Api::start().await;
    api.create(PODS, &pod("p", "")).await;
    let streams = ["exec", "attach", "portforward"];
    let resources = streams.map(|stream| format!("pods/{stream}"));
    let resources: Vec<&str> = resources.iter().map(String::as_str).collect();
    api.allow("joe", &["get"], "", &resources).await;
    api.allow("ann", &["create"], "", &resources).await;
    api.allow("sue", &["get", "create"], "", &resources).await;
    let [joe, ann, sue] = ["joe", "ann", "sue"].map(|name| api.as_user(name, &[]));
    let passed = "pod p does not have a host assigned";
    for stream in streams {
        let (get, post) = (format!("GET {PODS}/p/{stream}"), format!("POST {PODS}/p/{stream}"));
        let refused = format!("cannot create resource \"pods/{stream}\"");
        joe.check(&get, &Value::Null, 403, &refused).await;
        joe.check(&format!("GET {PODS}/none/{stream}"), &Value::Null, 403, &refused).await;
        joe.check(&post, &Value::Null, 403, &refused).await;
        ann.check(&get, &Value::Null, 403, "cannot get").await;
        ann.check(&post, &Value::Null, 400, passed).await;
        sue.check(&get, &Value::Null, 400, passed).await;
    }
}

/// The expected verbs of a role on a resource, by the letters of `roles.txt`.
struct Expected {
    role: &'static str,
    others: &'static str,
    listed: BTreeMap<&'static str, &'static str>,
}

fn expected() -> Vec<Expected> {
    let mut all: Vec<Expected> = Vec::new();
    for line in include_str!("roles.txt").lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let ["role", role] = words.as_slice() {
            all.push(Expected { role, others: "", listed: BTreeMap::new() });
            continue;
        }
        let Some(last) = all.last_mut() else { continue };
        match words.as_slice() {
            ["others", verbs] => last.others = verbs,
            [verbs, resources @ ..] => {
                last.listed.extend(resources.iter().map(|resource| (*resource, *verbs)));
            }
            [] => {}
        }
    }
    all
}

/// Every verb of fourteen default roles on every built-in resource is what the reference's roles say.
#[tokio::test(start_paused = true)]
async fn default_roles_allow_exactly_what_they_allow_in_the_reference() {
    const VERBS: [(char, &str); 8] = [
        ('g', "get"),
        ('l', "list"),
        ('w', "watch"),
        ('c', "create"),
        ('u', "update"),
        ('p', "patch"),
        ('d', "delete"),
        ('D', "deletecollection"),
    ];
    let api = Api::start().await;
    let mut resources = Vec::new();
    let groups = api.get("/apis").await.json();
    let versions = groups["groups"].as_array().unwrap().iter();
    let versions = versions.map(|group| {
        format!("/apis/{}", group["preferredVersion"]["groupVersion"].as_str().unwrap())
    });
    for path in std::iter::once("/api/v1".to_owned()).chain(versions) {
        let group =
            path.split('/').nth(2).filter(|_| path != "/api/v1").unwrap_or("core").to_owned();
        for resource in api.get(&path).await.json()["resources"].as_array().unwrap() {
            resources.push((group.clone(), resource["name"].as_str().unwrap().to_owned()));
        }
    }
    assert!(resources.len() > 100, "{}", resources.len());
    let roles = expected();
    assert_eq!(roles.len(), 14);
    let mut checked = 0;
    for Expected { role, others, listed } in roles {
        let bound = binding(&format!("matrix-{role}"), role, &format!("user-{role}"));
        api.create(&format!("{RBAC}/clusterrolebindings"), &bound).await;
        for (group, resource) in &resources {
            let verbs = listed.get(format!("{group}:{resource}").as_str()).unwrap_or(&others);
            let (plural, subresource) = resource.split_once('/').unwrap_or((resource, ""));
            for (letter, verb) in VERBS {
                let on = json!({
                    "verb": verb, "group": if group == "core" { "" } else { group }, "resource": plural,
                    "subresource": subresource, "namespace": "ns",
                });
                let review = json!({
                    "spec": { "user": format!("user-{role}"), "resourceAttributes": on },
                });
                let review = api.create(&format!("{REVIEWS}/subjectaccessreviews"), &review).await;
                let allowed = review["status"]["allowed"] == true;
                assert_eq!(allowed, verbs.contains(letter), "{role}: {verb} {group}:{resource}");
                checked += 1;
            }
        }
    }
    assert!(checked > 12_000, "{checked}");
}

/// An operator with a service account and a Role: each call needs its own right and no other.
#[tokio::test(start_paused = true)]
async fn taking_one_verb_from_an_operator_makes_exactly_that_call_fail() {
    const CALLS: &[(&str, &str, &str, &str)] = &[
        ("list", "apps", "deployments", "GET {apps}/deployments"),
        ("get", "apps", "deployments", "GET {apps}/deployments/web"),
        ("create", "apps", "deployments", "POST {apps}/deployments?dryRun=All"),
        ("patch", "apps", "deployments", "PATCH {apps}/deployments/web?dryRun=All"),
        ("delete", "apps", "deployments", "DELETE {apps}/deployments/web?dryRun=All"),
        ("patch", "apps", "deployments/scale", "PATCH {apps}/deployments/web/scale?dryRun=All"),
        ("get", "", "configmaps", "GET {core}/configmaps/directory"),
        ("patch", "", "configmaps", "PATCH {core}/configmaps/directory?dryRun=All"),
        ("list", "", "secrets", "GET {core}/secrets"),
    ];
    let api = Api::start().await;
    api.create(DEPLOYMENTS, &deployment("web")).await;
    api.config_maps(&["directory"]).await;
    let rules = |without: usize| -> Value {
        let kept = CALLS.iter().enumerate().filter(|(at, _)| *at != without);
        let each = kept.map(|(_, (verb, group, resource, _))| {
            let (verb, group, resource) = (*verb, *group, *resource);
            json!({ "verbs": [verb], "apiGroups": [group], "resources": [resource] })
        });
        each.collect()
    };
    let roles = format!("{RBAC}/namespaces/ns/roles");
    api.create(&roles, &cluster_role("operator", &rules(CALLS.len()))).await;
    let mut bound = binding("operator", "operator", "");
    bound["roleRef"]["kind"] = "Role".into();
    bound["subjects"] = json!([{ "kind": "ServiceAccount", "name": "operator" }]);
    api.create(&format!("{RBAC}/namespaces/ns/rolebindings"), &bound).await;
    let user = "system:serviceaccount:ns:operator";
    let operator = api.as_user(user, &["system:serviceaccounts", "system:serviceaccounts:ns"]);
    for without in 0..=CALLS.len() {
        let reduced = json!({ "rules": rules(without) });
        api.merge(&format!("{roles}/operator"), &reduced).await.is(200, "");
        for (at, (verb, group, resource, request)) in CALLS.iter().enumerate() {
            let request = request.replace("{apps}", "/apis/apps/v1/namespaces/ns");
            let request = request.replace("{core}", "/api/v1/namespaces/ns");
            let (kind, body) = match *verb {
                "create" => ("\nContent-Type: application/json", deployment("new").to_string()),
                "patch" => ("\nContent-Type: application/merge-patch+json", "{}".to_owned()),
                _ => ("", String::new()),
            };
            let answer = operator.send(&format!("{request}{kind}"), body).await;
            assert_eq!(answer.code == 403, at == without, "{request}: {}", answer.text());
            if at != without {
                assert!(answer.code < 300, "{request}: {}", answer.text());
                continue;
            }
            let message = answer.json()["message"].as_str().unwrap().to_owned();
            let expected = format!(
                "User \"{user}\" cannot {verb} resource \"{resource}\" in API group \"{group}\" in \
                 the namespace \"ns\""
            );
            assert!(message.ends_with(&expected), "{message}");
        }
    }
}
