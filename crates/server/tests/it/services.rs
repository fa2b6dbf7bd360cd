//! Service addresses: allocated once, also by several servers over one store.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::future::join_all;
use headwater_json::{Value, json};

use headwater_cache::Options as CacheOptions;
use headwater_server::{AdmissionSettings, ServiceRanges, Settings};

use crate::api::{Api, NOW};

const SERVICES: &str = "/api/v1/namespaces/ns/services";
const ADDRESSES: &str = "/apis/networking.k8s.io/v1/ipaddresses";

fn service(name: &str, spec: &Value) -> Value {
    let mut service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"type": "NodePort", "ports": [{"port": 80}]},
    });
    for (key, value) in spec.as_object().into_iter().flatten() {
        service["spec"][key] = value.clone();
    }
    service
}

/// Two servers over one store.
async fn two() -> [Api; 2] {
    let first = Api::start().await;
    let second = Api::over(Arc::clone(first.server.cache().store())).await;
    [first, second]
}

/// All names except that of the server's own address.
async fn names(api: &Api, target: &str) -> BTreeSet<String> {
    let names = api.get(target).await.names();
    let others = names.split(' ').filter(|name| !matches!(*name, "" | "10.96.0.1"));
    others.map(str::to_owned).collect()
}

#[tokio::test]
async fn a_cluster_ip_is_allocated_while_its_service_exists() {
    let api = Api::start().await;
    let made = api.create(SERVICES, &service("a", &json!({"clusterIP": "10.96.1.2"}))).await;
    assert_eq!(made["spec"]["clusterIPs"], json!(["10.96.1.2"]));
    let address = api.get(&format!("{ADDRESSES}/10.96.1.2")).await.json();
    assert_eq!(
        address["spec"]["parentRef"],
        json!({"resource": "services", "namespace": "ns", "name": "a"})
    );
    assert_eq!(address["metadata"]["creationTimestamp"], NOW);
    let labels = &address["metadata"]["labels"];
    assert_eq!(labels["ipaddress.kubernetes.io/managed-by"], "ipallocator.k8s.io");
    assert_eq!(labels["ipaddress.kubernetes.io/ip-family"], "IPv4");
    let taken = api.post(SERVICES, &service("b", &json!({"clusterIP": "10.96.1.2"}))).await;
    taken.is(422, "provided IP is already allocated");
    // A claim that was edited by hand is deleted too.
    let mark = json!({"metadata": {"labels": {"mark": "yes"}}});
    api.merge(&format!("{ADDRESSES}/10.96.1.2"), &mark).await.is(200, "");
    api.delete(&format!("{SERVICES}/a")).await.is(200, "");
    assert_eq!(names(&api, ADDRESSES).await, BTreeSet::new());
    api.create(SERVICES, &service("b", &json!({"clusterIP": "10.96.1.2"}))).await;
    let headless = json!({"clusterIP": "None", "type": "ClusterIP"});
    api.create(SERVICES, &service("headless", &headless)).await;
    assert_eq!(names(&api, ADDRESSES).await, ["10.96.1.2".to_owned()].into());
}

#[tokio::test]
async fn a_released_address_can_be_allocated_again() {
    let api = Api::start().await;
    let ports = |number: i64| json!({"ports": [{"port": 80, "nodePort": number}]});
    api.create(SERVICES, &service("a", &ports(30_100))).await;
    api.post(SERVICES, &service("b", &ports(30_100))).await.is(422, "already allocated");
    let other = json!({"spec": ports(30_101)});
    api.merge(&format!("{SERVICES}/a"), &other).await.is(200, "");
    api.create(SERVICES, &service("b", &ports(30_100))).await;
    let taken = api.merge(&format!("{SERVICES}/a"), &json!({"spec": ports(30_100)})).await;
    taken.is(422, "provided port is already allocated");
    let inside = json!({"spec": {
        "type": "ClusterIP", "externalTrafficPolicy": null, "ports": [{"port": 80}],
    }});
    api.merge(&format!("{SERVICES}/a"), &inside).await.is(200, "");
    api.create(SERVICES, &service("c", &ports(30_101))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_two_servers_over_one_store_one_allocates_an_address() {
    let servers = two().await;
    for round in 0..20 {
        let spec = json!({
            "clusterIP": format!("10.96.7.{round}"),
            "ports": [{"port": 80, "nodePort": 30_500 + round}],
        });
        let bodies = [0, 1].map(|n| service(&format!("s{round}-{n}"), &spec));
        let asked = servers.iter().zip(&bodies).map(|(api, body)| api.post(SERVICES, body));
        let mut codes: Vec<u16> = join_all(asked).await.iter().map(|it| it.code).collect();
        codes.sort_unstable();
        assert_eq!(codes, [201, 422], "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn servers_over_one_store_allocate_different_addresses() {
    let servers = two().await;
    let bodies: Vec<Value> =
        (0..80).map(|number| service(&format!("s{number}"), &json!({}))).collect();
    let asked = bodies.iter().enumerate().map(|(n, body)| servers[n % 2].post(SERVICES, body));
    let made: Vec<Value> = join_all(asked).await.iter().map(|answer| answer.json()).collect();
    let ips: BTreeSet<String> =
        made.iter().map(|made| made["spec"]["clusterIP"].as_str().unwrap().to_owned()).collect();
    let ports: BTreeSet<i64> =
        made.iter().map(|made| made["spec"]["ports"][0]["nodePort"].as_i64().unwrap()).collect();
    assert_eq!((ips.len(), ports.len()), (80, 80));
    assert_eq!(names(&servers[0], ADDRESSES).await, ips);
}

#[tokio::test]
async fn a_start_creates_missing_claims_and_removes_stale_ones() {
    let api = Api::start().await;
    api.create(SERVICES, &service("a", &json!({"clusterIP": "10.96.1.2"}))).await;
    api.delete(&format!("{ADDRESSES}/10.96.1.2")).await.is(200, "");
    let address = |name: &str, made: &str, manager: &str| {
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "IPAddress",
            "metadata": {
                "name": name, "creationTimestamp": made,
                "labels": {"ipaddress.kubernetes.io/managed-by": manager},
            },
            "spec": {"parentRef": {"resource": "services", "namespace": "ns", "name": "gone"}},
        })
    };
    let store = Arc::clone(api.server.cache().store());
    for (name, made, manager) in [
        ("10.96.1.3", "2026-01-01T00:00:00Z", "ipallocator.k8s.io"),
        // One that is being created, and one of another component.
        ("10.96.1.4", NOW, "ipallocator.k8s.io"),
        ("10.96.1.5", "2026-01-01T00:00:00Z", "somebody.example.com"),
    ] {
        use headwater_store::{Action, Guard, Key, Write, key::collection};
        let value = address(name, made, manager).to_string().into();
        let key = Key::in_collection(&collection("networking.k8s.io", "ipaddresses"), name);
        let put = Action::Put { value, ttl: None };
        store.commit(Write::one(key, Guard::Absent, put)).await.unwrap();
    }
    let again = Api::over(store).await;
    let expected = ["10.96.1.2", "10.96.1.4", "10.96.1.5"].map(str::to_owned);
    assert_eq!(names(&again, ADDRESSES).await, expected.into());
}

/// A server with other ranges.
async fn ranged(addresses: &str, ports: &str) -> Api {
    let services = ServiceRanges::new(addresses, ports).unwrap();
    let admission = AdmissionSettings::new(false, services);
    Api::with(Settings { admission, ..Settings::default() }, CacheOptions::default()).await
}

#[tokio::test(start_paused = true)]
async fn addresses_outside_the_ranges_are_refused() {
    let api = ranged("10.0.0.0/29", "30000-30001").await;
    let own = api.get("/api/v1/namespaces/default/services/kubernetes").await.json();
    assert_eq!(own["spec"]["clusterIP"], "10.0.0.1");
    let why = "Service \"a\" is invalid: spec.clusterIPs: Invalid value: [\"10.0.1.1\"]: failed to allocate IP 10.0.1.1: the provided IP (10.0.1.1) is not in the valid range. The range of valid IPs is 10.0.0.0/29";
    let outside = service("a", &json!({"clusterIP": "10.0.1.1"}));
    api.post(SERVICES, &outside).await.fails(422, "Invalid", why);
    let why = "Service \"a\" is invalid: spec.ports[0].nodePort: Invalid value: 80: provided port is not in the valid range. The range of valid ports is 30000-30001";
    let low = service("a", &json!({"ports": [{"port": 80, "nodePort": 80}]}));
    api.post(SERVICES, &low).await.fails(422, "Invalid", why);
    let why = "Service \"a\" is invalid: spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster";
    let other = service("a", &json!({"ipFamilies": ["IPv6"]}));
    api.post(SERVICES, &other).await.fails(422, "Invalid", why);
    let why = "Service \"a\" is invalid: spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack services";
    let dual = service("a", &json!({"ipFamilyPolicy": "RequireDualStack"}));
    api.post(SERVICES, &dual).await.fails(422, "Invalid", why);
    // All five of the range that are left, and no sixth.
    let plain = |name: &str| service(name, &json!({"type": "ClusterIP"}));
    for name in ["a", "b", "c", "d", "e"] {
        api.create(SERVICES, &plain(name)).await;
    }
    api.post(SERVICES, &plain("f")).await.is(500, "range is full");
}

#[tokio::test(start_paused = true)]
async fn a_service_can_have_both_families() {
    let api = ranged("fd00::/108,10.0.0.0/24", "30000-32767").await;
    let plain = api.create(SERVICES, &service("a", &json!({}))).await;
    assert_eq!(plain["spec"]["ipFamilies"], json!(["IPv6"]));
    assert!(plain["spec"]["clusterIP"].as_str().unwrap().starts_with("fd00::"));
    let both = service("b", &json!({"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv4"]}));
    let both = api.create(SERVICES, &both).await;
    assert_eq!(both["spec"]["ipFamilies"], json!(["IPv4", "IPv6"]));
    let ips = both["spec"]["clusterIPs"].as_array().unwrap();
    assert!(ips[0].as_str().unwrap().starts_with("10.0.0."));
    assert!(ips[1].as_str().unwrap().starts_with("fd00::"));
    // One family is released again.
    let single = json!({"spec": {"ipFamilyPolicy": "SingleStack"}});
    let single = api.merge(&format!("{SERVICES}/b"), &single).await.is(200, "").json();
    assert_eq!(single["spec"]["clusterIPs"], json!([ips[0]]));
    assert_eq!(single["spec"]["ipFamilies"], json!(["IPv4"]));
}

#[tokio::test(start_paused = true)]
async fn a_load_balancer_that_keeps_traffic_local_has_a_health_check_port() {
    let api = Api::start().await;
    let local = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local",
        "allocateLoadBalancerNodePorts": false});
    let made = api.create(SERVICES, &service("a", &local)).await;
    let port = made["spec"]["healthCheckNodePort"].as_i64().unwrap();
    assert!((30000..=32767).contains(&port) && made["spec"]["ports"][0]["nodePort"].is_null());
    let mut other = local.clone();
    other["healthCheckNodePort"] = port.into();
    let taken = api.post(SERVICES, &service("b", &other)).await;
    taken.is(422, "spec.healthCheckNodePort");
    // A replacement without the number keeps it.
    let mut whole = made.clone();
    whole["spec"]["healthCheckNodePort"] = Value::Null;
    let kept = api.put(&format!("{SERVICES}/a"), &whole).await.json();
    assert_eq!(kept["spec"]["healthCheckNodePort"], port);
    let cluster = json!({"spec": {"externalTrafficPolicy": "Cluster"}});
    let freed = api.merge(&format!("{SERVICES}/a"), &cluster).await.json();
    assert!(freed["spec"]["healthCheckNodePort"].is_null(), "{freed}");
    api.create(SERVICES, &service("b", &other)).await;
}

#[tokio::test(start_paused = true)]
async fn a_requested_node_port_must_be_in_the_range_also_if_none_are_allocated() {
    let api = Api::start().await;
    let spec = json!({"type": "LoadBalancer", "allocateLoadBalancerNodePorts": false,
        "ports": [{"port": 80, "nodePort": 80}]});
    let refused = api.post(SERVICES, &service("a", &spec)).await;
    refused.is(422, "spec.ports[0].nodePort");
}

#[tokio::test(start_paused = true)]
async fn fields_of_a_service_without_effect_or_future_get_a_warning() {
    let api = Api::start().await;
    let warning = async |name: &str, spec: Value| {
        let answer = api.post(SERVICES, &service(name, &spec)).await;
        answer.is(201, "").header("warning").replace('\\', "")
    };
    let external = json!({"externalIPs": ["192.0.2.1"]});
    assert_eq!(warning("a", external).await, "299 - \"spec.externalIPs is deprecated\"");
    let headless = json!({"type": "ClusterIP", "clusterIP": "None", "sessionAffinity": "ClientIP"});
    let expected = "299 - \"spec.SessionAffinity is ignored for headless services\"";
    assert_eq!(warning("b", headless).await, expected);
    assert_eq!(warning("c", json!({})).await, "");
}
