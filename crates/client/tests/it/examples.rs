//! The examples, run against a real server.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use headwater_client::calls::Calls;
use headwater_client::{Cached, Factory, Key};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use serde_json::json;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::api::{Api, client};
use crate::support::PATIENCE;
use crate::world::{Kind, NAMESPACE};

#[path = "../../examples/pods_table.rs"]
#[expect(dead_code, reason = "its main is for people")]
mod pods_table;

#[path = "../../examples/index_query.rs"]
#[expect(dead_code, reason = "its main is for people")]
mod index_query;

#[path = "../../examples/operator.rs"]
#[expect(dead_code, reason = "its main is for people")]
mod operator;

#[path = "../../examples/export.rs"]
#[expect(dead_code, reason = "its main is for people")]
mod export;

#[test]
fn an_example_fits_on_a_screen() {
    for (name, text) in [
        ("pods_table", include_str!("../../examples/pods_table.rs")),
        ("index_query", include_str!("../../examples/index_query.rs")),
        ("operator", include_str!("../../examples/operator.rs")),
        ("export", include_str!("../../examples/export.rs")),
    ] {
        assert!(text.lines().count() < 60, "{name}");
    }
}

/// The output of an example, for a test that waits for it.
#[derive(Clone, Default)]
struct Screen(Arc<watch::Sender<String>>);

impl Screen {
    async fn shows(&self, condition: impl Fn(&str) -> bool) {
        let mut screen = self.0.subscribe();
        let shown = screen.wait_for(|text| condition(text));
        let shown = tokio::time::timeout(PATIENCE, shown).await.map(|shown| shown.is_ok());
        assert_eq!(shown, Ok(true), "{}", *self.0.borrow());
    }
}

impl Write for Screen {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        self.0.send_modify(|screen| {
            // Clearing the screen starts a new one.
            match text.rsplit_once("\x1b[H") {
                Some((_, fresh)) => *screen = fresh.to_owned(),
                None => screen.push_str(&text),
            }
        });
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn key(name: &str) -> Key {
    Key::namespaced(NAMESPACE, name)
}

async fn pod(api: &Api, name: &str, app: &str, node: &str) -> Pod {
    let pod = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app": app}},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]},
    }));
    Calls::new(api.client.clone()).of().create(&pod.unwrap()).await.unwrap()
}

async fn delete_pod(api: &Api, name: &str) {
    let now = json!({"gracePeriodSeconds": 0});
    Calls::new(api.client.clone()).of::<Pod>().delete_with(&key(name), &now).await.unwrap();
}

#[tokio::test]
async fn the_table_shows_every_pod_and_its_changes() {
    let api = Api::start().await;
    pod(&api, "web-0", "web", "node-1").await;
    let screen = Screen::default();
    let (factory, out) = (Factory::new(api.client.clone()), screen.clone());
    let mut parts = JoinSet::new();
    parts.spawn(async move { pods_table::show(&factory, out).await.unwrap() });
    screen.shows(|text| text.contains("web-0") && text.contains("node-1")).await;
    pod(&api, "web-1", "web", "node-2").await;
    screen.shows(|text| text.contains("web-0") && text.contains("web-1")).await;
    delete_pod(&api, "web-0").await;
    screen.shows(|text| !text.contains("web-0") && text.contains("web-1")).await;
}

#[tokio::test]
async fn the_index_query_finds_the_busiest_node() {
    let api = Api::start().await;
    for (name, app, node) in
        [("a", "web", "quiet"), ("b", "web", "busy"), ("c", "web", "busy"), ("d", "job", "busy")]
    {
        pod(&api, name, app, node).await;
    }
    let mut out = Vec::new();
    index_query::busiest(&Factory::new(api.client.clone()), &mut out).await.unwrap();
    let out = String::from_utf8(out).unwrap();
    assert!(out.starts_with("busy has the most pods"), "{out}");
    for line in ["default/b (2 of its app here)", "default/c (2 of", "default/d (1 of"] {
        assert!(out.contains(line), "{out}");
    }
    assert!(!out.contains("default/a"), "{out}");
}

#[tokio::test]
async fn the_operator_restores_owned_objects_and_cleans_up_others() {
    let api = Api::start().await;
    let factory = Factory::new(api.client.clone());
    let maps = factory.informer::<ConfigMap>().open().unwrap();
    let deployments = factory.informer::<Deployment>().open().unwrap();
    let (stop, stopped) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (ends, ended) = (Arc::clone(&stop), Arc::clone(&stopped));
    let mut parts = JoinSet::new();
    let operating = factory.clone();
    parts.spawn(async move {
        operator::operate(&operating, ends.notified()).await.unwrap();
        ended.notify_one();
    });
    let apps = Calls::new(api.client.clone()).of::<operator::WebApp>();
    let app = serde_json::from_value(json!({
        "apiVersion": "example.com/v1", "kind": "WebApp",
        "metadata": {"name": "shop", "namespace": NAMESPACE},
        "spec": {"image": "shop:1", "replicas": 2},
    }))
    .unwrap();
    let app = eventually(|| apps.create(&app)).await;
    let replicas = |wanted: i32| {
        move |deployment: Option<&Deployment>| {
            deployment.and_then(|found| found.spec.as_ref()?.replicas) == Some(wanted)
        }
    };
    let made = deployments.wait_for(&key("shop"), replicas(2), PATIENCE).await.unwrap().unwrap();
    let owners = made.metadata().owner_references.clone().unwrap();
    assert_eq!(owners[0].uid, app.uid());
    let lists = |image: &'static str| {
        move |map: Option<&ConfigMap>| {
            map.and_then(|map| map.data.as_ref()?.get("shop")).map(String::as_str) == Some(image)
        }
    };
    maps.wait_for(&key("directory"), lists("shop:1"), PATIENCE).await.unwrap();

    // An owned object changes; the WebApp changes; the WebApp is deleted.
    let calls = Calls::new(api.client.clone());
    calls.of::<Deployment>().delete(&key("shop")).await.unwrap();
    let again = |deployment: Option<&Deployment>| {
        deployment.is_some_and(|deployment| deployment.uid() != made.uid())
    };
    deployments.wait_for(&key("shop"), again, PATIENCE).await.unwrap();
    apps.merge(&key("shop"), &json!({"spec": {"replicas": 5, "image": "shop:2"}})).await.unwrap();
    deployments.wait_for(&key("shop"), replicas(5), PATIENCE).await.unwrap();
    maps.wait_for(&key("directory"), lists("shop:2"), PATIENCE).await.unwrap();
    apps.delete(&key("shop")).await.unwrap();
    let emptied = |map: Option<&ConfigMap>| {
        map.is_some_and(|map| map.data.as_ref().is_none_or(|data| !data.contains_key("shop")))
    };
    maps.wait_for(&key("directory"), emptied, PATIENCE).await.unwrap();
    eventually(|| async {
        apps.get(&key("shop")).await.unwrap().is_none().then_some(()).ok_or(())
    })
    .await;
    stop.notify_one();
    stopped.notified().await;
}

#[tokio::test]
async fn the_export_resumes_without_a_list() {
    let api = Api::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pods.json");
    pod(&api, "a", "web", "node-1").await;
    pod(&api, "b", "web", "node-1").await;
    let running = exporting(&api, &file);
    holds(&file, &["a", "b"]).await;
    drop(running);

    pod(&api, "c", "web", "node-2").await;
    delete_pod(&api, "a").await;
    let before = api.proxy.asked().borrow().len();
    let _running = exporting(&api, &file);
    holds(&file, &["b", "c"]).await;
    let asked = api.proxy.asked();
    let kinds: Vec<Kind> = asked.borrow()[before..].iter().map(|asked| asked.kind).collect();
    assert_eq!(kinds, [Kind::Watch], "it goes on from the version in the file");
}

/// The export, through the proxy, which records its requests.
fn exporting(api: &Api, file: &Path) -> JoinSet<()> {
    let factory = Factory::new(client(api.proxy.address));
    let file = file.to_owned();
    let mut parts = JoinSet::new();
    parts.spawn(async move { export::export(&factory, &file).await.unwrap() });
    parts
}

/// Waits until the file lists exactly these pods.
async fn holds(file: &Path, names: &[&str]) {
    let read = || async {
        let text = std::fs::read(file).map_err(drop)?;
        let (_, items): (String, Vec<Pod>) = serde_json::from_slice(&text).unwrap();
        let found: Vec<&str> = items.iter().map(Cached::name).collect();
        if found == names { Ok(()) } else { Err(()) }
    };
    eventually(read).await;
}

/// Retries until it succeeds.
async fn eventually<T, E, F>(attempt: impl Fn() -> F) -> T
where
    F: Future<Output = Result<T, E>>,
{
    let tries = async {
        loop {
            if let Ok(done) = attempt().await {
                return done;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, tries).await.expect("it works in the end")
}
