//! A server inside a test: requests, watches, fixtures and stop.

use futures::{StreamExt, TryStreamExt};
use headwater_testing::{FixtureError, TestServer};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::api::{Api, DynamicObject, ListParams, PostParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, Config, ResourceExt};
use serde_json::json;

fn config_map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
}

#[tokio::test]
async fn an_in_process_client_reads_its_own_writes() {
    let server = TestServer::start().await;
    let maps = Api::<ConfigMap>::default_namespaced(server.client());
    maps.create(&PostParams::default(), &config_map("a")).await.unwrap();
    assert_eq!(maps.get("a").await.unwrap().namespace().unwrap(), "default");
    let error = maps.create(&PostParams::default(), &config_map("a")).await.unwrap_err();
    assert!(matches!(&error, kube::Error::Api(status) if status.reason == "AlreadyExists"));
    server.stop().await;
}

#[tokio::test]
async fn a_watch_streams_and_ends_when_the_server_stops() {
    let server = TestServer::start().await;
    let maps = Api::<ConfigMap>::default_namespaced(server.client());
    let plain = WatchParams { bookmarks: false, ..WatchParams::default() };
    let mut events = maps.watch(&plain, "0").await.unwrap().boxed();
    for name in ["a", "b"] {
        maps.create(&PostParams::default(), &config_map(name)).await.unwrap();
        match events.try_next().await.unwrap().unwrap() {
            WatchEvent::Added(map) => assert_eq!(map.name_any(), name),
            other => panic!("{other:?}"),
        }
    }
    server.stop().await;
    assert!(events.next().await.is_none(), "the watch ends without an error");
}

#[tokio::test]
async fn a_kube_watcher_receives_objects() {
    let server = TestServer::start().await;
    let maps = Api::<ConfigMap>::default_namespaced(server.client());
    let seen = watcher(maps.clone(), watcher::Config::default().streaming_lists());
    let mut seen = seen.applied_objects().boxed();
    maps.create(&PostParams::default(), &config_map("a")).await.unwrap();
    assert_eq!(seen.try_next().await.unwrap().unwrap().name_any(), "a");
}

#[tokio::test]
async fn ten_servers_in_one_process_share_nothing() {
    let servers: Vec<TestServer> =
        futures::future::join_all((0..10).map(|_| TestServer::start())).await;
    for (number, server) in servers.iter().enumerate() {
        let maps = Api::<ConfigMap>::default_namespaced(server.client());
        maps.create(&PostParams::default(), &config_map(&format!("of-{number}"))).await.unwrap();
    }
    for (number, server) in servers.into_iter().enumerate() {
        let maps = Api::<ConfigMap>::default_namespaced(server.client());
        let list = maps.list(&ListParams::default()).await.unwrap();
        let names: Vec<String> = list.iter().map(ResourceExt::name_any).collect();
        assert_eq!(names, [format!("of-{number}")]);
        server.stop().await;
    }
}

#[tokio::test]
async fn a_kubeconfig_connects_to_the_same_server_over_tls() {
    let server = TestServer::start().await;
    let text = server.kubeconfig().await;
    assert_eq!(text, server.kubeconfig().await, "the port is opened once");
    let kubeconfig = Kubeconfig::from_yaml(&text).unwrap();
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
    let outside = Api::<ConfigMap>::default_namespaced(Client::try_from(config).unwrap());
    outside.create(&PostParams::default(), &config_map("a")).await.unwrap();
    let inside = Api::<ConfigMap>::default_namespaced(server.client());
    assert_eq!(inside.get("a").await.unwrap().name_any(), "a");
    server.stop().await;
    outside.get("a").await.expect_err("the port is closed");
}

#[tokio::test]
async fn a_client_of_another_user_has_its_permissions() {
    let server = TestServer::start().await;
    let stranger = Api::<Secret>::default_namespaced(server.client_as("jane", &["dev"]));
    let error = stranger.list(&ListParams::default()).await.unwrap_err();
    assert!(matches!(&error, kube::Error::Api(status) if status.code == 403), "{error}");
}

const FIXTURE: &str = r#"
# A namespace, a kind, and objects of it.
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, kind: Widget}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties: {spec: {type: object, properties: {size: {type: integer, maximum: 9}}}}
---
apiVersion: v1
kind: List
items:
- {apiVersion: example.com/v1, kind: Widget, metadata: {name: a, namespace: shop}, spec: {size: 1}}
- {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}
---
"#;

#[tokio::test]
async fn fixtures_are_applied_in_order_and_applying_twice_changes_nothing() {
    let server = TestServer::start().await;
    for _ in 0..2 {
        let applied = server.apply_yaml(FIXTURE).await.unwrap();
        let names: Vec<String> = applied.iter().map(ResourceExt::name_any).collect();
        assert_eq!(names, ["shop", "widgets.example.com", "a", "a"]);
    }
    let widget = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Widget"));
    let widgets = Api::<DynamicObject>::namespaced_with(server.client(), "shop", &widget);
    assert_eq!(widgets.get("a").await.unwrap().data["spec"]["size"], 1);
    Api::<Namespace>::all(server.client()).get("shop").await.unwrap();
}

#[tokio::test]
async fn an_invalid_fixture_is_reported_with_document_and_reason() {
    let server = TestServer::start().await;
    check(&server, "a: 1\n---\na: [", "document 2: yaml: ").await;
    check(
        &server,
        "{apiVersion: v1, kind: Nothing, metadata: {name: x}}",
        "x: the server does not serve kind \"Nothing\"",
    )
    .await;
    server.apply_yaml(FIXTURE).await.unwrap();
    let wrong =
        "{apiVersion: example.com/v1, kind: Widget, metadata: {name: big}, spec: {size: 10}}";
    let error = server.apply_yaml(wrong).await.unwrap_err();
    let FixtureError::Refused { name, source } = error else { panic!("{error}") };
    assert_eq!(name, "big");
    assert!(source.to_string().contains("should be less than or equal to 9"), "{source}");
}

async fn check(server: &TestServer, text: &str, begins: &str) {
    // Documents before an invalid one have already been applied.
    let text = text.replace("a: 1\n", "{apiVersion: v1, kind: ConfigMap, metadata: {name: x}}\n");
    let error = server.apply_yaml(&text).await.unwrap_err().to_string();
    assert!(error.starts_with(begins), "{error}");
}
