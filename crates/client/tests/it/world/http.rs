//! The world over HTTP: a real server, with a faulty proxy between it and the informer.

use std::collections::BTreeMap;
use std::sync::Arc;

use headwater_client::script::{Http, HttpOptions, ListWatch};
use headwater_client::{Cached, ResourceType};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use tokio::sync::watch;

use super::{Asked, Begin, Kind, NAMESPACE, Refusal, World, Written};
use crate::api::{Api, client};

pub struct OverHttp {
    server: Api,
    written: Vec<Written>,
}

impl OverHttp {
    /// Connected without the proxy, so that only the informer uses the proxy; each request has its
    /// own connection, because a jump of the clock makes the server close idle ones.
    fn maps(&self) -> kube::Api<ConfigMap> {
        kube::Api::namespaced(client(self.server.address), NAMESPACE)
    }
}

impl World for OverHttp {
    async fn open() -> OverHttp {
        OverHttp { server: Api::start().await, written: Vec::new() }
    }

    fn source(&self, begin: Begin) -> Arc<dyn ListWatch<Object = ConfigMap>> {
        let resource = ResourceType::of::<ConfigMap>(&());
        let watch_list = begin == Begin::WatchList;
        let options = HttpOptions { watch_list, ..HttpOptions::default() };
        let client = client(self.server.proxy.address);
        Arc::new(Http::new(client, &resource, Some(NAMESPACE), options))
    }

    async fn put(&mut self, name: &str, value: &str) {
        if value.len() > 1 << 20 {
            let version = self.server.put_large(name, value).await;
            return self.written.push(Written::put(name, &version));
        }
        let patch = serde_json::json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name}, "data": {"value": value},
        });
        let params = PatchParams::apply("scenario").force();
        let map = self.maps().patch(name, &params, &Patch::Apply(patch)).await.unwrap();
        self.written.push(Written::put(name, &map.resource_version().to_string()));
    }

    async fn delete(&mut self, name: &str) {
        self.maps().delete(name, &DeleteParams::default()).await.unwrap();
        self.written.push(Written::deleted(name));
    }

    async fn churn(&mut self, names: &[String], count: usize) {
        let written = self.server.churn(names, count).await;
        self.written.extend(written);
    }

    async fn truth(&mut self) -> BTreeMap<String, String> {
        let maps = self.maps().list(&ListParams::default()).await.unwrap();
        let row = |map: ConfigMap| (map.name().to_owned(), map.resource_version().to_string());
        maps.items.into_iter().map(row).collect()
    }

    fn written(&self) -> &[Written] {
        &self.written
    }

    fn asked(&self) -> watch::Receiver<Vec<Asked>> {
        self.server.proxy.asked()
    }

    fn cut(&self) {
        self.server.proxy.cut();
    }

    fn cut_in_next_frame(&self) {
        self.server.proxy.cut_in_next_frame();
    }

    fn garbage(&self) {
        self.server.proxy.garbage();
    }

    fn silence(&self) {
        self.server.proxy.silence();
    }

    fn down(&self) {
        self.server.proxy.set_down(true);
        self.server.proxy.cut();
    }

    fn up(&self) {
        self.server.proxy.set_down(false);
    }

    fn refuse(&self, kind: Kind, refusal: Refusal) {
        self.server.proxy.refuse(kind, refusal);
    }

    async fn restart(&mut self) {
        self.server.restart().await;
    }

    async fn forget(&mut self) {
        self.server.compact().await;
        self.server.restart().await;
    }
}
