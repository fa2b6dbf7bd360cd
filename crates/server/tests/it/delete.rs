//! DELETE: responses, preconditions, finalizers, grace periods, collections (S2.40–S2.47).

use headwater_json::{Value, json};
use headwater_store::{Action, Guard, Op};

use crate::api::{
    Api, CMS, DEPLOYMENTS, NOW, PODS, config_map, deployment, labelled, pod, version,
};
use crate::scripted_store::ScriptedStore;

/// S1.41, S2.40
#[tokio::test(start_paused = true)]
async fn a_delete_returns_the_name_of_the_object() {
    let api = Api::start().await;
    let made = api.create(CMS, &config_map("a")).await;
    let answer = api.delete(&format!("{CMS}/a")).await.is(200, "").json();
    let details = json!({ "name": "a", "kind": "configmaps", "uid": made["metadata"]["uid"] });
    let expected = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
        "details": details,
    });
    assert_eq!(answer, expected);
    let again = api.delete(&format!("{CMS}/a")).await;
    again.fails(404, "NotFound", "configmaps \"a\" not found");
    api.create(DEPLOYMENTS, &deployment("d")).await;
    let answer = api.delete(&format!("{DEPLOYMENTS}/d")).await.is(200, "").json();
    assert_eq!(answer["details"]["group"], "apps");
    // Some kinds return the deleted object.
    let accounts = "/api/v1/namespaces/ns/serviceaccounts";
    api.create(accounts, &json!({ "metadata": { "name": "s" } })).await;
    let answer = api.delete(&format!("{accounts}/s")).await.is(200, "").json();
    assert_eq!(
        (&answer["kind"], &answer["metadata"]["name"]),
        (&json!("ServiceAccount"), &json!("s"))
    );
}

/// S2.41, S6.7
#[tokio::test(start_paused = true)]
async fn failing_preconditions_prevent_a_delete() {
    let api = Api::start().await;
    let made = api.create(CMS, &config_map("a")).await;
    let a = &format!("{CMS}/a");
    let (uid, at) = (&made["metadata"]["uid"], &made["metadata"]["resourceVersion"]);
    let wrong = "11111111-1111-1111-1111-111111111111";
    let options = |preconditions: Value| json!({ "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions });
    let answer = api.delete_with(a, &options(json!({ "uid": wrong }))).await;
    let message = format!(
        "Operation cannot be fulfilled on ConfigMap \"a\": the UID in the precondition ({wrong}) \
         does not match the UID in record ({}). The object might have been deleted and then \
         recreated",
        uid.as_str().unwrap()
    );
    let status = answer.fails(409, "Conflict", &message);
    assert_eq!(status["details"]["kind"], "ConfigMap");
    let answer = api.delete_with(a, &options(json!({ "resourceVersion": "1" }))).await;
    let message = format!(
        "Operation cannot be fulfilled on ConfigMap \"a\": the ResourceVersion in the \
         precondition (1) does not match the ResourceVersion in record ({}). The object might \
         have been modified",
        at.as_str().unwrap()
    );
    answer.fails(409, "Conflict", &message);
    api.delete_with(a, &options(json!({ "uid": uid, "resourceVersion": at }))).await.is(200, "");
}

/// A node removes a marked pod before the delete that marked it does.
#[tokio::test(start_paused = true)]
async fn a_delete_succeeds_if_another_client_removes_what_it_marked() {
    let store = ScriptedStore::new();
    let api = Api::in_namespace(store.clone()).await;
    let p = &format!("{PODS}/p");
    let is_mark = |action: &Action| match action {
        Action::Put { value, .. } => String::from_utf8_lossy(value).contains("deletionTimestamp"),
        _ => false,
    };
    // The other client may also create a pod with the same name.
    for is_created_again in [false, true] {
        let options = |made: &Value| {
            let metadata = &made["metadata"];
            let (uid, at) = (&metadata["uid"], &metadata["resourceVersion"]);
            json!({
                "gracePeriodSeconds": 0,
                "preconditions": { "uid": uid, "resourceVersion": at },
            })
        };
        let rival = move |op: &Op, at| {
            let key = op.key.clone();
            if !is_mark(&op.action) {
                return vec![];
            }
            let remove = Op { key: key.clone(), guard: Guard::At(at), action: Action::Delete };
            let value = r#"{"metadata":{"name":"p","namespace":"ns","uid":"other"}}"#.into();
            let action = Action::Put { value, ttl: None };
            let create = Op { key, guard: Guard::Absent, action };
            if is_created_again { vec![remove, create] } else { vec![remove] }
        };
        let made = api.create(PODS, &pod("p", "node")).await;
        store.follow(rival);
        let deleted = api.delete_with(p, &options(&made)).await.is(200, "").json();
        assert_eq!(deleted["metadata"]["uid"], made["metadata"]["uid"]);
        assert_eq!(deleted["metadata"]["deletionTimestamp"], NOW);
        assert_eq!(api.get(p).await.code, if is_created_again { 200 } else { 404 });
        api.delete(p).await;

        let made = api.create(PODS, &pod("p", "node")).await;
        store.follow(rival);
        let eviction = json!({
            "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": "p" },
            "deleteOptions": options(&made),
        });
        api.post(&format!("{p}/eviction"), &eviction).await.is(201, "");
        assert_eq!(api.get(p).await.code, if is_created_again { 200 } else { 404 });
        api.delete(p).await;
    }
}

/// Another client changes a pod between the mark and the removal.
#[tokio::test(start_paused = true)]
async fn preconditions_of_a_delete_are_checked_before_its_own_mark_only() {
    let store = ScriptedStore::new();
    let api = Api::in_namespace(store.clone()).await;
    let p = &format!("{PODS}/p");
    let made = api.create(PODS, &pod("p", "node")).await;
    store.follow(|op, at| match &op.action {
        Action::Put { value, ttl } => {
            let action = Action::Put { value: value.clone(), ttl: *ttl };
            vec![Op { key: op.key.clone(), guard: Guard::At(at), action }]
        }
        _ => vec![],
    });
    let options = json!({
        "gracePeriodSeconds": 0, "preconditions": { "resourceVersion": version(&made) },
    });
    api.delete_with(p, &options).await.is(200, "");
    assert_eq!(api.get(p).await.code, 404);
}

/// S2.42
#[tokio::test(start_paused = true)]
async fn delete_options_come_in_the_body_or_the_query() {
    let api = Api::start().await;
    for (body, code) in [
        ("{}", 200),
        ("{\"apiVersion\":\"v1\",\"kind\":\"DeleteOptions\"}", 200),
        ("{\"apiVersion\":\"meta.k8s.io/v1\",\"kind\":\"DeleteOptions\"}", 200),
        ("{\"gracePeriodSeconds\":0}", 200),
        ("{not json", 400),
        ("{\"apiVersion\":\"v1\",\"kind\":\"Pod\"}", 400),
        ("[]", 400),
        ("{\"propagationPolicy\":\"Nope\"}", 422),
        ("{\"propagationPolicy\":\"Orphan\",\"orphanDependents\":true}", 422),
        ("{\"dryRun\":[\"Nope\"]}", 422),
    ] {
        let a = format!("{CMS}/a");
        // It may exist from the previous row.
        api.post(CMS, &config_map("a")).await;
        let request = format!("DELETE {a}\nContent-Type: application/json");
        let answer = api.send(&request, body).await;
        assert_eq!(answer.code, code, "{body}: {}", answer.text());
        let left = api.get(&a).await.code;
        assert_eq!(left, if code == 200 { 404 } else { 200 }, "{body}");
    }
    for (query, code) in [
        ("gracePeriodSeconds=abc", 400),
        ("propagationPolicy=Nope", 422),
        ("propagationPolicy=Orphan&orphanDependents=true", 422),
    ] {
        let answer = api.delete(&format!("{CMS}/a?{query}")).await;
        assert_eq!(answer.code, code, "{query}: {}", answer.text());
    }
}

/// S2.43
#[tokio::test(start_paused = true)]
async fn finalizers_keep_an_object_until_the_last_is_removed() {
    let api = Api::start().await;
    let a = &format!("{CMS}/a");
    let mut body = config_map("a");
    body["metadata"]["finalizers"] = json!(["example.com/hold"]);
    let made = api.create(CMS, &body).await;
    let marked = api.delete(a).await.is(200, "").json();
    assert_eq!(marked["metadata"]["deletionTimestamp"], NOW);
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 0);
    assert_ne!(version(&marked), version(&made));
    assert_eq!(api.delete(a).await.is(200, "").json(), marked);

    let more = json!({ "metadata": { "finalizers": ["example.com/hold", "example.com/more"] } });
    let status = api.merge(a, &more).await.fails(422, "Invalid", "");
    let message = status["message"].as_str().unwrap();
    let part = "Forbidden: no new finalizers can be added if the object is being deleted";
    assert!(message.contains(part), "{message}");
    let written = api.merge(a, &json!({ "data": { "k": "v" } })).await.is(200, "").json();
    assert_eq!(written["metadata"]["deletionTimestamp"], NOW);
    // A later timestamp is ignored, and so is a missing one.
    let patch = json!({ "metadata": { "deletionTimestamp": null }, "data": { "k": "w" } });
    let written = api.merge(a, &patch).await.is(200, "").json();
    assert_eq!(written["metadata"]["deletionTimestamp"], NOW);

    let free = json!({ "metadata": { "finalizers": null } });
    let freed = api.merge(a, &free).await.is(200, "").json();
    assert_eq!(version(&freed), version(&written));
    assert!(freed["metadata"].get("finalizers").is_none());
    api.get(a).await.fails(404, "NotFound", "");
}

/// S2.44
#[tokio::test(start_paused = true)]
async fn propagation_policies_set_finalizers_for_the_garbage_collector() {
    let api = Api::start().await;
    for (name, query, finalizers) in [
        ("a", "propagationPolicy=Foreground", Some("foregroundDeletion")),
        ("b", "propagationPolicy=Orphan", Some("orphan")),
        ("c", "propagationPolicy=Background", None),
        ("d", "orphanDependents=true", Some("orphan")),
        ("e", "orphanDependents=false", None),
        ("f", "", None),
    ] {
        let target = format!("{DEPLOYMENTS}/{name}");
        api.create(DEPLOYMENTS, &deployment(name)).await;
        let answer = api.delete(&format!("{target}?{query}")).await.is(200, "").json();
        match finalizers {
            Some(finalizer) => {
                assert_eq!(answer["metadata"]["finalizers"], json!([finalizer]), "{query}");
                assert_eq!(answer["metadata"]["generation"], 2, "{query}");
                api.get(&target).await.is(200, "");
            }
            None => {
                assert_eq!(answer["status"], "Success", "{query}");
                api.get(&target).await.fails(404, "NotFound", "");
            }
        }
    }
    let answer = api.delete(&format!("{DEPLOYMENTS}/a?orphanDependents=false")).await;
    assert!(matches!(answer.code, 200 | 202));
}

/// S2.45
#[tokio::test(start_paused = true)]
async fn a_bound_pod_gets_a_grace_period() {
    let api = Api::start().await;
    let (bound, free) = (&format!("{PODS}/bound"), &format!("{PODS}/free"));
    api.create(PODS, &pod("bound", "n1")).await;
    api.create(PODS, &pod("free", "")).await;
    let marked = api.delete(bound).await.is(200, "").json();
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 30);
    assert_eq!(marked["metadata"]["deletionTimestamp"], "2026-01-02T03:04:35Z");
    assert_eq!(marked["metadata"]["generation"], 2);
    for again in ["", "?gracePeriodSeconds=30", "?gracePeriodSeconds=60"] {
        assert_eq!(api.delete(&format!("{bound}{again}")).await.is(200, "").json(), marked);
    }
    let sooner = api.delete(&format!("{bound}?gracePeriodSeconds=5")).await.is(200, "").json();
    assert_eq!(sooner["metadata"]["deletionGracePeriodSeconds"], 5);
    assert_eq!(sooner["metadata"]["deletionTimestamp"], "2026-01-02T03:04:10Z");
    let gone = api.delete(&format!("{bound}?gracePeriodSeconds=0")).await.is(200, "").json();
    assert_eq!(gone["kind"], "Pod");
    api.get(bound).await.fails(404, "NotFound", "");

    // The answer has the version of the last event.
    let mut watch =
        api.watch(&format!("{PODS}?watch=true&fieldSelector=metadata.name%3Dfree")).await;
    assert_eq!(watch.take(1).await, "ADDED/free");
    let gone = api.delete(free).await.is(200, "").json();
    assert_eq!(gone["kind"], "Pod");
    api.get(free).await.fails(404, "NotFound", "");
    let last = watch.rest().await.pop().unwrap();
    assert_eq!((&last["type"], &last["object"]), (&"DELETED".into(), &gone));

    // A pod that finishes during its grace period keeps it.
    let done = &format!("{PODS}/done");
    api.create(PODS, &pod("done", "n1")).await;
    api.delete(done).await.is(200, "");
    let phase = json!({ "status": { "phase": "Succeeded" } });
    let finished = api.merge(&format!("{done}/status"), &phase).await.is(200, "").json();
    assert_eq!(api.delete(done).await.is(200, "").json(), finished);

    // The pod's own period, and a negative one.
    let mut own = pod("own", "n1");
    own["spec"]["terminationGracePeriodSeconds"] = 7.into();
    api.create(PODS, &own).await;
    let marked = api.delete(&format!("{PODS}/own")).await.is(200, "").json();
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 7);
    api.create(PODS, &pod("negative", "n1")).await;
    let target = format!("{PODS}/negative?gracePeriodSeconds=-5");
    let marked = api.delete(&target).await.is(200, "").json();
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 1);
}

/// S2.46
#[tokio::test(start_paused = true)]
async fn a_collection_delete_respects_selectors() {
    let api = Api::start().await;
    for (name, labels) in [("a", "g=1"), ("b", "g=1"), ("c", "g=2"), ("d", "g=2")] {
        api.create(CMS, &labelled(name, labels)).await;
    }
    let answer = api.delete(&format!("{CMS}?labelSelector=g%3D1")).await;
    assert_eq!(answer.lists("a b").json()["kind"], "ConfigMapList");
    api.get(CMS).await.lists("c d");
    api.delete(&format!("{CMS}?fieldSelector=metadata.name%3Dd")).await.lists("d");
    api.delete(&format!("{CMS}?labelSelector=nothing%3Dhere")).await.lists("");
    api.get(CMS).await.lists("c");
    api.config_maps(&["e", "f"]).await;
    let first = api.delete(&format!("{CMS}?limit=2")).await;
    assert!(!first.lists("c e").token().is_empty());
    api.get(CMS).await.lists("f");
    api.delete(CMS).await.lists("f");
    api.get(CMS).await.lists("");
    api.delete(CMS).await.lists("");
}

/// S2.46
#[tokio::test(start_paused = true)]
async fn a_collection_delete_respects_finalizers() {
    let api = Api::start().await;
    let mut held = config_map("held");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    api.create(CMS, &held).await;
    api.config_maps(&["free"]).await;
    let answer = api.delete(CMS).await;
    answer.lists("free held");
    // The response shows the objects before the delete.
    assert!(answer.json()["items"][1]["metadata"].get("deletionTimestamp").is_none());
    let left = api.get(CMS).await;
    assert_eq!(left.lists("held").json()["items"][0]["metadata"]["deletionTimestamp"], NOW);
    api.delete("/api/v1/namespaces").await.fails(405, "MethodNotAllowed", "");
    api.delete("/api/v1/configmaps").await.fails(405, "MethodNotAllowed", "");
}

#[tokio::test(start_paused = true)]
async fn a_collection_delete_respects_a_resource_version() {
    let api = Api::start().await;
    api.config_maps(&["a", "b"]).await;
    let version = api.get(CMS).await.version();
    api.config_maps(&["c"]).await;
    let future = api.delete(&format!("{CMS}?resourceVersion=999999999")).await;
    future.fails(504, "Timeout", "Timeout: Too large resource version");
    let answer = api.delete(&format!("{CMS}?resourceVersion={version}")).await;
    answer.lists("a b");
    api.get(CMS).await.lists("c");
    let match_any = format!("{CMS}?resourceVersion={version}&resourceVersionMatch=NotOlderThan");
    api.delete(&match_any).await.lists("c");
    api.get(CMS).await.lists("");
}

/// S2.44
#[tokio::test(start_paused = true)]
async fn jobs_and_replication_controllers_orphan_their_pods_by_default() {
    let api = Api::start().await;
    let template = json!({
        "metadata": { "labels": { "app": "a" } },
        "spec": { "restartPolicy": "Never", "containers": [{ "name": "c", "image": "i" }] },
    });
    let jobs = "/apis/batch/v1/namespaces/ns/jobs";
    let job = json!({ "metadata": { "name": "a" }, "spec": { "template": template } });
    for (query, finalizers, warns) in [
        ("", json!(["orphan"]), true),
        ("?propagationPolicy=Orphan", json!(["orphan"]), false),
        ("?propagationPolicy=Background", json!(null), false),
        ("?orphanDependents=false", json!(null), false),
    ] {
        api.create(jobs, &job).await;
        let answer = api.delete(&format!("{jobs}/a{query}")).await.is(200, "").json();
        assert_eq!(answer["metadata"]["finalizers"], finalizers, "{query}");
        let again = api.delete(&format!("{jobs}/a{query}")).await;
        assert_eq!(again.header("warning").contains("child pods are preserved"), warns, "{query}");
        let free = json!({ "metadata": { "finalizers": null } });
        let gone = api.merge(&format!("{jobs}/a"), &free).await.code;
        assert!(matches!(gone, 200 | 404), "{query}: {gone}");
    }
    let controllers = "/api/v1/namespaces/ns/replicationcontrollers";
    let mut controller = json!({ "metadata": { "name": "a" }, "spec": { "template": template } });
    controller["spec"]["template"]["spec"]["restartPolicy"] = "Always".into();
    api.create(controllers, &controller).await;
    let marked = api.delete(&format!("{controllers}/a")).await.is(200, "").json();
    assert_eq!(marked["metadata"]["finalizers"], json!(["orphan"]));
}

/// S2.54
#[tokio::test(start_paused = true)]
async fn a_pod_is_evicted_if_its_budget_allows_it() {
    const BUDGETS: &str = "/apis/policy/v1/namespaces/ns/poddisruptionbudgets";
    let api = Api::start().await;
    let evict = async |name: &str| {
        let metadata = json!({ "name": name });
        let body = json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata });
        api.post(&format!("{PODS}/{name}/eviction"), &body).await
    };
    evict("none").await.fails(404, "NotFound", "pods \"none\" not found");
    for name in ["a", "b"] {
        let mut body = pod(name, "n1");
        body["metadata"]["labels"] = json!({ "app": "web" });
        api.create(PODS, &body).await;
        let running = json!({ "status": { "phase": "Running" } });
        api.merge(&format!("{PODS}/{name}/status"), &running).await.is(200, "");
    }
    let selector = json!({ "matchLabels": { "app": "web" } });
    let budget = json!({
        "metadata": { "name": "web" }, "spec": { "minAvailable": 1, "selector": selector },
    });
    api.create(BUDGETS, &budget).await;
    let status = json!({ "status": {
        "disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2,
        "observedGeneration": 1,
    }});
    api.merge(&format!("{BUDGETS}/web/status"), &status).await.is(200, "");
    let evicted = evict("a").await.is(201, "").json();
    assert_eq!((&evicted["status"], &evicted["code"]), (&json!("Success"), &json!(201)));
    let marked = api.get(&format!("{PODS}/a")).await.json();
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    let message = "Cannot evict pod as it would violate the pod's disruption budget.";
    let refused = evict("b").await.fails(429, "TooManyRequests", message);
    assert_eq!(refused["details"]["causes"][0]["reason"], "DisruptionBudget");
    let kept = api.get(&format!("{PODS}/b")).await.json();
    assert!(kept["metadata"].get("deletionTimestamp").is_none());
}
