//! The unmodified `kube` crate as a client.

use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{
    Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::{WatchStreamExt, reflector, watcher};
use kube::{Client, Config, ResourceExt};
use serde_json::json;

use crate::process::Process;

/// Timeout of each test.
const LIMIT: Duration = Duration::from_secs(600);

async fn start() -> (Process, Client) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubeconfig");
    let server = Process::serve(&["--memory", "--kubeconfig-out", path.to_str().unwrap()]);
    let file = Kubeconfig::read_from(&path).unwrap();
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
    (server, Client::try_from(config).unwrap())
}

fn config_map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({ "metadata": { "name": name }, "data": { "v": "1" } })).unwrap()
}

#[tokio::test]
async fn objects_are_created_read_updated_and_deleted() {
    let (_server, client) = start().await;
    let api: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let made = api.create(&PostParams::default(), &config_map("a")).await.unwrap();
    assert_eq!(made.name_any(), "a");
    let taken = api.create(&PostParams::default(), &config_map("a")).await.unwrap_err();
    assert!(matches!(taken, kube::Error::Api(status) if status.code == 409));
    let mut changed = made.clone();
    changed.data = Some([("v".to_owned(), "2".to_owned())].into());
    api.replace("a", &PostParams::default(), &changed).await.unwrap();
    let stale = api.replace("a", &PostParams::default(), &made).await.unwrap_err();
    assert!(matches!(stale, kube::Error::Api(status) if status.reason == "Conflict"));
    let patch = Patch::Merge(json!({ "metadata": { "labels": { "l": "1" } } }));
    let patched = api.patch("a", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(patched.labels()["l"], "1");
    let selected = api.list(&ListParams::default().labels("l=1")).await.unwrap();
    assert_eq!(selected.items.len(), 1);
    assert!(api.get_metadata("a").await.unwrap().metadata.uid.is_some());
    api.delete("a", &DeleteParams::default()).await.unwrap();
    assert!(api.get_opt("a").await.unwrap().is_none());
    let namespaces: Api<Namespace> = Api::all(client);
    let page = namespaces.list(&ListParams::default().limit(2)).await.unwrap();
    assert_eq!(page.items.len(), 2);
    let next = page.metadata.continue_.unwrap();
    let rest = namespaces.list(&ListParams::default().continue_token(&next)).await.unwrap();
    assert_eq!(rest.items.len(), 2);
}

#[tokio::test]
async fn a_watch_receives_every_change() {
    let (_server, client) = start().await;
    let api: Api<ConfigMap> = Api::default_namespaced(client);
    let at = api.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let mut watch = api.watch(&WatchParams::default(), &at).await.unwrap().boxed();
    api.create(&PostParams::default(), &config_map("a")).await.unwrap();
    api.delete("a", &DeleteParams::default()).await.unwrap();
    let seen = async {
        let added = watch.try_next().await.unwrap().unwrap();
        assert!(matches!(added, WatchEvent::Added(object) if object.name_any() == "a"));
        let deleted = watch.try_next().await.unwrap().unwrap();
        assert!(matches!(deleted, WatchEvent::Deleted(object) if object.name_any() == "a"));
    };
    tokio::time::timeout(LIMIT, seen).await.unwrap();
}

/// Runs a reflector until it has received a write that followed its first sync.
async fn reflect(config: watcher::Config) {
    let (_server, client) = start().await;
    let api: Api<ConfigMap> = Api::default_namespaced(client);
    api.create(&PostParams::default(), &config_map("before")).await.unwrap();
    let (store, writer) = reflector::store();
    let mut events = reflector(writer, watcher(api.clone(), config)).applied_objects().boxed();
    let run = async {
        let first = events.try_next().await.unwrap().unwrap();
        assert_eq!(first.name_any(), "before");
        api.create(&PostParams::default(), &config_map("after")).await.unwrap();
        let second = events.try_next().await.unwrap().unwrap();
        assert_eq!(second.name_any(), "after");
        store.wait_until_ready().await.unwrap();
        assert_eq!(store.state().len(), 2);
    };
    tokio::time::timeout(LIMIT, run).await.unwrap();
}

/// S11.23
#[tokio::test]
async fn a_reflector_syncs_by_list_and_watch() {
    reflect(watcher::Config::default()).await;
}

/// S11.23
#[tokio::test]
async fn a_reflector_syncs_by_a_streaming_list() {
    reflect(watcher::Config::default().streaming_lists()).await;
}
