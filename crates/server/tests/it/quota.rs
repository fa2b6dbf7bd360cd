//! Limit ranges and resource quotas.

use std::sync::Arc;

use futures::future::join_all;
use headwater_json::{Value, json};
use headwater_store::{Memory, Range, Store};

use crate::api::{Api, CMS, PODS, config_map, pod, version};

const QUOTAS: &str = "/api/v1/namespaces/ns/resourcequotas";
const RANGES: &str = "/api/v1/namespaces/ns/limitranges";

fn quota(name: &str, hard: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name},
        "spec": {"hard": hard},
    })
}

fn range(limits: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "r"},
        "spec": {"limits": [limits]},
    })
}

fn asking(name: &str, requests: &Value, limits: &Value) -> Value {
    let mut pod = pod(name, "");
    pod["spec"]["containers"][0]["resources"] = json!({"requests": requests, "limits": limits});
    pod
}

async fn used(api: &Api, name: &str) -> Value {
    api.get(&format!("{QUOTAS}/{name}")).await.json()["status"]["used"].clone()
}

/// S10.23
#[tokio::test]
async fn containers_without_requests_get_the_defaults_of_the_limit_range() {
    let api = Api::start().await;
    let limits = json!({
        "type": "Container", "default": {"cpu": "500m"}, "defaultRequest": {"cpu": "100m", "memory": "1Gi"},
    });
    api.create(RANGES, &range(&limits)).await;
    let made = api.create(PODS, &pod("p", "")).await;
    assert_eq!(
        made["spec"]["containers"][0]["resources"],
        json!({"limits": {"cpu": "500m"}, "requests": {"cpu": "100m", "memory": "1Gi"}})
    );
    assert_eq!(
        made["metadata"]["annotations"]["kubernetes.io/limit-ranger"],
        "LimitRanger plugin set: cpu, memory request for container c; cpu limit for container c"
    );
    let own = asking("q", &json!({"cpu": "1m", "memory": "2Gi"}), &json!({"cpu": "2m"}));
    let made = api.create(PODS, &own).await;
    assert_eq!(made["spec"]["containers"][0]["resources"]["requests"]["cpu"], "1m");
    assert!(made["metadata"]["annotations"].is_null());
}

#[tokio::test]
async fn requests_must_be_within_the_limit_range() {
    let check = async |limits: Value, requests: Value, most: Value, expected: &str| {
        let api = Api::start().await;
        api.create(RANGES, &range(&limits)).await;
        let answer = api.post(PODS, &asking("p", &requests, &most)).await;
        match expected {
            "" => drop(answer.is(201, "")),
            why => {
                answer.fails(403, "Forbidden", &format!("pods \"p\" is forbidden: {why}"));
            }
        }
    };
    let least = json!({"type": "Container", "min": {"cpu": "100m"}, "max": {"cpu": "1"}});
    check(least.clone(), json!({"cpu": "200m"}), json!({"cpu": "1"}), "").await;
    check(
        least.clone(),
        json!({"cpu": "50m"}),
        json!({"cpu": "1"}),
        "minimum cpu usage per Container is 100m, but request is 50m",
    )
    .await;
    check(
        least,
        json!({"cpu": "200m"}),
        json!({"cpu": "2"}),
        "maximum cpu usage per Container is 1, but limit is 2",
    )
    .await;
    check(
        json!({"type": "Pod", "max": {"memory": "1Gi"}}),
        json!({"cpu": "1"}),
        json!({"cpu": "1"}),
        "maximum memory usage per Pod is 1Gi.  No limit is specified",
    )
    .await;
    check(
        json!({"type": "Pod", "maxLimitRequestRatio": {"cpu": "2"}}),
        json!({"cpu": "100m"}),
        json!({"cpu": "300m"}),
        "cpu max limit to request ratio per Pod is 2, but provided ratio is 3.000000",
    )
    .await;
    let api = Api::start().await;
    let limits = json!({"type": "PersistentVolumeClaim", "max": {"storage": "1Gi"}});
    api.create(RANGES, &range(&limits)).await;
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "c"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}},
    });
    let why = "persistentvolumeclaims \"c\" is forbidden: maximum storage usage per PersistentVolumeClaim is 1Gi, but request is 2Gi";
    api.post("/api/v1/namespaces/ns/persistentvolumeclaims", &claim).await.fails(
        403,
        "Forbidden",
        why,
    );
}

/// S10.23
#[tokio::test]
async fn a_quota_counts_usage_and_reports_it() {
    let api = Api::start().await;
    api.create(CMS, &config_map("before")).await;
    api.create(QUOTAS, &quota("q", &json!({"configmaps": "2", "count/secrets": "1"}))).await;
    assert_eq!(used(&api, "q").await, json!({"configmaps": "1", "count/secrets": "0"}));
    api.create(CMS, &config_map("a")).await;
    assert_eq!(used(&api, "q").await["configmaps"], "2");
    let why = "configmaps \"b\" is forbidden: exceeded quota: q, requested: configmaps=1, used: configmaps=2, limited: configmaps=2";
    api.post(CMS, &config_map("b")).await.fails(403, "Forbidden", why);
    api.merge(&format!("{CMS}/a"), &json!({"data": {"x": "y"}})).await.is(200, "");
    api.delete(&format!("{CMS}/before")).await.is(200, "");
    assert_eq!(used(&api, "q").await["configmaps"], "1");
    api.create(CMS, &config_map("b")).await;
    let other = json!({"metadata": {"name": "other"}});
    api.create("/api/v1/namespaces", &other).await;
    api.create("/api/v1/namespaces/other/configmaps", &config_map("free")).await;
}

#[tokio::test]
async fn pods_count_by_their_requests_until_they_finish() {
    let api = Api::start().await;
    let hard = json!({"pods": "3", "requests.cpu": "1", "limits.memory": "2Gi"});
    api.create(QUOTAS, &quota("q", &hard)).await;
    let ask = |name: &str, cpu: &str| {
        asking(name, &json!({"cpu": cpu}), &json!({"cpu": "2", "memory": "512Mi"}))
    };
    let why = "pods \"x\" is forbidden: failed quota: q: must specify requests.cpu for: c; limits.memory for: c";
    api.post(PODS, &pod("x", "")).await.fails(403, "Forbidden", why);
    api.create(PODS, &ask("a", "600m")).await;
    let why = "pods \"b\" is forbidden: exceeded quota: q, requested: requests.cpu=600m, used: requests.cpu=600m, limited: requests.cpu=1";
    api.post(PODS, &ask("b", "600m")).await.fails(403, "Forbidden", why);
    api.create(PODS, &ask("b", "400m")).await;
    let expected = json!({"pods": "2", "requests.cpu": "1", "limits.memory": "1Gi"});
    assert_eq!(used(&api, "q").await, expected);
    let ended = json!({"status": {"phase": "Succeeded"}});
    api.merge(&format!("{PODS}/a/status"), &ended).await.is(200, "");
    let expected = json!({"pods": "1", "requests.cpu": "400m", "limits.memory": "512Mi"});
    assert_eq!(used(&api, "q").await, expected);
    api.create(PODS, &ask("c", "600m")).await;
}

#[tokio::test]
async fn a_quota_with_scopes_counts_only_matching_pods() {
    let api = Api::start().await;
    let mut scoped = quota("q", &json!({"pods": "1"}));
    scoped["spec"]["scopes"] = json!(["BestEffort"]);
    api.create(QUOTAS, &scoped).await;
    api.create(PODS, &pod("a", "")).await;
    api.post(PODS, &pod("b", "")).await.is(403, "exceeded quota: q");
    api.create(PODS, &asking("c", &json!({"cpu": "1"}), &json!({}))).await;
    assert_eq!(used(&api, "q").await, json!({"pods": "1"}));
}

#[tokio::test]
async fn a_scope_selects_pods_with_an_affinity_across_namespaces() {
    let api = Api::start().await;
    let mut scoped = quota("q", &json!({"pods": "1"}));
    scoped["spec"]["scopeSelector"] = json!({"matchExpressions": [
        {"scopeName": "CrossNamespacePodAffinity", "operator": "Exists"},
    ]});
    api.create(QUOTAS, &scoped).await;
    let near = |name: &str, kind: &str, preferred: bool, more: Value| {
        let mut term = json!({"topologyKey": "zone", "labelSelector": {}});
        term.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let mut pod = pod(name, "");
        pod["spec"]["affinity"][kind] = match preferred {
            true => json!({"preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 1, "podAffinityTerm": term},
            ]}),
            false => json!({"requiredDuringSchedulingIgnoredDuringExecution": [term]}),
        };
        pod
    };
    api.create(PODS, &near("here", "podAffinity", false, json!({}))).await;
    assert_eq!(used(&api, "q").await, json!({"pods": "0"}));
    api.create(PODS, &near("a", "podAffinity", false, json!({"namespaces": ["b"]}))).await;
    assert_eq!(used(&api, "q").await, json!({"pods": "1"}));
    let anywhere = json!({"namespaceSelector": {}});
    for (name, kind, preferred) in [
        ("b", "podAntiAffinity", false),
        ("c", "podAffinity", true),
        ("d", "podAntiAffinity", true),
    ] {
        let pod = near(name, kind, preferred, anywhere.clone());
        api.post(PODS, &pod).await.is(403, "exceeded quota: q");
    }
}

#[tokio::test]
async fn a_scope_selects_claims_by_their_attributes_class() {
    const CLAIMS: &str = "/api/v1/namespaces/ns/persistentvolumeclaims";
    let api = Api::start().await;
    let mut scoped = quota("q", &json!({"persistentvolumeclaims": "1"}));
    scoped["spec"]["scopeSelector"] = json!({"matchExpressions": [
        {"scopeName": "VolumeAttributesClass", "operator": "In", "values": ["gold"]},
    ]});
    api.create(QUOTAS, &scoped).await;
    let claim = |name: &str, class: Value| {
        json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "volumeAttributesClassName": class,
                "resources": {"requests": {"storage": "1Gi"}},
            },
        })
    };
    api.create(CLAIMS, &claim("plain", Value::Null)).await;
    api.create(CLAIMS, &claim("silver", json!("silver"))).await;
    assert_eq!(used(&api, "q").await, json!({"persistentvolumeclaims": "0"}));
    let current = json!({"status": {"currentVolumeAttributesClassName": "gold"}});
    api.merge(&format!("{CLAIMS}/silver/status"), &current).await.is(200, "");
    assert_eq!(used(&api, "q").await, json!({"persistentvolumeclaims": "1"}));
    api.post(CLAIMS, &claim("gold", json!("gold"))).await.is(403, "exceeded quota: q");
}

#[tokio::test]
async fn a_quota_limits_the_devices_that_claims_may_get() {
    const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims";
    let api = Api::start().await;
    let devices = "gpu.deviceclass.resource.k8s.io/devices";
    let hard = json!({devices: "35", "count/resourceclaims.resource.k8s.io": "9"});
    api.create(QUOTAS, &quota("q", &hard)).await;
    let claim = |name: &str, request: Value| {
        let mut request = request;
        request["name"] = json!("r");
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
            "spec": {"devices": {"requests": [request]}},
        })
    };
    let alternatives = json!({"firstAvailable": [
        {"name": "a", "deviceClassName": "gpu", "count": 2},
        {"name": "b", "deviceClassName": "gpu", "count": 1},
    ]});
    api.create(CLAIMS, &claim("a", alternatives)).await;
    let all = json!({"exactly": {"deviceClassName": "gpu", "allocationMode": "All"}});
    api.create(CLAIMS, &claim("b", all)).await;
    let two = json!({"exactly": {"deviceClassName": "gpu", "count": 2}});
    api.post(CLAIMS, &claim("c", two)).await.is(403, "exceeded quota: q");
    let other = json!({"exactly": {"deviceClassName": "fpga"}});
    api.create(CLAIMS, &claim("d", other)).await;
    let expected = json!({devices: "34", "count/resourceclaims.resource.k8s.io": "3"});
    assert_eq!(used(&api, "q").await, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_creates_cannot_exceed_a_quota() {
    let api = Api::start().await;
    api.create(QUOTAS, &quota("q", &json!({"configmaps": "5"}))).await;
    let names: Vec<String> = (0..40).map(|number| format!("m{number}")).collect();
    let objects: Vec<Value> = names.iter().map(|name| config_map(name)).collect();
    let answers = join_all(objects.iter().map(|object| api.post(CMS, object))).await;
    let made = answers.iter().filter(|answer| answer.code == 201).count();
    assert_eq!(made, 5);
    assert!(answers.iter().all(|answer| [201, 403].contains(&answer.code)));
    assert_eq!(used(&api, "q").await, json!({"configmaps": "5"}));
    assert_eq!(api.get(CMS).await.names().split(' ').count(), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn servers_over_one_store_cannot_exceed_a_quota_together() {
    let first = Api::start().await;
    let second = Api::over(std::sync::Arc::clone(first.server.cache().store())).await;
    let servers = [first, second];
    servers[0].create(QUOTAS, &quota("q", &json!({"configmaps": "5", "pods": "100"}))).await;
    let objects: Vec<Value> = (0..40).map(|number| config_map(&format!("m{number}"))).collect();
    let asked = objects.iter().enumerate().map(|(n, object)| servers[n % 2].post(CMS, object));
    let answers = join_all(asked).await;
    assert_eq!(answers.iter().filter(|answer| answer.code == 201).count(), 5);
    assert!(answers.iter().all(|answer| [201, 403].contains(&answer.code)));
    for api in &servers {
        assert_eq!(api.get(CMS).await.names().split(' ').count(), 5);
        assert_eq!(used(api, "q").await, json!({"configmaps": "5", "pods": "0"}));
    }
}

#[tokio::test]
async fn a_quota_and_the_counted_object_are_written_in_one_commit() {
    let api = Api::start().await;
    let made = api.create(QUOTAS, &quota("q", &json!({"configmaps": "5"}))).await;
    let after = made["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let target = format!("{QUOTAS}?watch=true&resourceVersion={after}");
    let mut watch = api.watch(&target).await;
    let map = api.create(CMS, &config_map("a")).await;
    let written = loop {
        let event = watch.next().await.unwrap();
        if event["object"]["status"]["used"]["configmaps"] == "1" {
            break event;
        }
    };
    assert_eq!(version(&written["object"]), version(&map));
}

/// R23: the store in memory gives all changes of a write one revision.
#[tokio::test]
async fn a_watch_of_quotas_that_is_cut_after_any_event_misses_none() {
    let api = Api::start().await;
    let mut versions = Vec::new();
    for name in ["q1", "q2", "q3"] {
        let hard = json!({"configmaps": "5", "resourcequotas": "5"});
        versions.push(version(&api.create(QUOTAS, &quota(name, &hard)).await));
    }
    for name in ["a", "b"] {
        api.create(CMS, &config_map(name)).await;
        assert_eq!(used(&api, "q3").await["configmaps"], used(&api, "q1").await["configmaps"]);
    }
    let start = format!("{QUOTAS}?watch=true&resourceVersion={}", versions[0]);
    let read = async |target: &str, count: usize| {
        let mut watch = api.watch(target).await;
        let mut seen = Vec::new();
        for _ in 0..count {
            let object = watch.next().await.unwrap()["object"].clone();
            let name = object["metadata"]["name"].as_str().unwrap().to_owned();
            seen.push((version(&object).parse::<u64>().unwrap(), name));
        }
        seen
    };
    // Two quotas are created, and each write changes the status of all of them.
    let whole = read(&start, 2 + 2 + 3 + 2 * 3).await;
    assert!(whole.is_sorted_by(|a, b| a.0 < b.0), "a revision has two events: {whole:?}");
    for (n, (version, _)) in whole.iter().enumerate() {
        let target = format!("{QUOTAS}?watch=true&resourceVersion={version}");
        assert_eq!(read(&target, whole.len() - n - 1).await, whole[n + 1..]);
    }
}

#[tokio::test]
async fn the_turn_of_a_namespace_is_deleted_with_it() {
    let store = Arc::new(Memory::default());
    let api = Api::over(store.clone()).await;
    let turns = async || {
        let range = Range { prefix: "/registry/headwater/".into(), ..Range::default() };
        store.range(range).await.unwrap().records.len()
    };
    let namespace = json!({"metadata": {"name": "short"}});
    api.create("/api/v1/namespaces", &namespace).await;
    let quotas = "/api/v1/namespaces/short/resourcequotas";
    api.create(quotas, &quota("q", &json!({"configmaps": "5"}))).await;
    api.create("/api/v1/namespaces/short/configmaps", &config_map("a")).await;
    assert_eq!(turns().await, 1);
    api.delete("/api/v1/namespaces/short").await;
    let done = json!({"metadata": {"name": "short"}, "spec": {"finalizers": []}});
    api.put("/api/v1/namespaces/short/finalize", &done).await.is(200, "");
    assert_eq!(turns().await, 0);
}

#[tokio::test]
async fn a_dry_run_is_checked_and_not_counted() {
    let api = Api::start().await;
    api.create(QUOTAS, &quota("q", &json!({"configmaps": "1"}))).await;
    api.post(&format!("{CMS}?dryRun=All"), &config_map("a")).await.is(201, "");
    assert_eq!(used(&api, "q").await, json!({"configmaps": "0"}));
    api.create(CMS, &config_map("a")).await;
    api.post(&format!("{CMS}?dryRun=All"), &config_map("b")).await.is(403, "exceeded quota");
}
