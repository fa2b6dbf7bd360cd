//! Service addresses: allocated once, also by several servers over one store.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::future::join_all;
use headwater_json::{Value, json};

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
        json!({"group": "", "resource": "services", "namespace": "ns", "name": "a"})
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
