//! A whole API server inside a test.
//!
//! River: a test → `kube::Client` → **testing** → server → cache → store, all in one process and
//! without a port. What is served is what `headwater serve` serves: the same admission, the same
//! custom kinds, the same watches.
//! Promise: servers share nothing, so a test process has as many as it likes; what a server runs
//! ends with it.
//!
//! A complete test of an operator: a kind, its reconciler, and what it should make.
//!
//! ```
//! use futures::StreamExt;
//! use headwater_testing::TestServer;
//! use k8s_openapi::api::core::v1::ConfigMap;
//! use kube::runtime::{controller::Action, wait::await_condition, watcher, Controller};
//! use kube::{api::{Api, Patch, PatchParams}, Client, CustomResource, CustomResourceExt, ResourceExt};
//! use std::{sync::Arc, time::Duration};
//!
//! #[derive(CustomResource, Clone, Debug, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
//! #[kube(group = "example.com", version = "v1", kind = "Greeting", namespaced)]
//! struct GreetingSpec { text: String }
//!
//! async fn reconcile(greeting: Arc<Greeting>, client: Arc<Client>) -> Result<Action, kube::Error> {
//!     let (name, text) = (greeting.name_any(), &greeting.spec.text);
//!     let map = serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"text": text}});
//!     let maps = Api::<ConfigMap>::namespaced((*client).clone(), "default");
//!     maps.patch(&name, &PatchParams::apply("greeter"), &Patch::Apply(map)).await.map(|_| Action::await_change())
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let server = TestServer::start().await;
//! server.define(&[Greeting::crd()]).await.unwrap();
//! let greetings = Api::<Greeting>::namespaced(server.client(), "default");
//! let retry = |_: Arc<Greeting>, _: &kube::Error, _| Action::requeue(Duration::from_secs(1));
//! let operator = Controller::new(greetings, watcher::Config::default());
//! let running = operator.run(reconcile, retry, Arc::new(server.client())).for_each(|_| async {});
//! server.apply_yaml("{apiVersion: example.com/v1, kind: Greeting, metadata: {name: hi}, spec: {text: hello}}").await.unwrap();
//! let made = await_condition(Api::namespaced(server.client(), "default"), "hi", |map: Option<&ConfigMap>| map.is_some_and(|map| map.data.is_some()));
//! tokio::select! { _ = running => unreachable!(), made = made => assert_eq!(made.unwrap().unwrap().data.unwrap()["text"], "hello") }
//! server.stop().await;
//! # }
//! ```

mod in_process;
mod server;
mod fixture;

pub use fixture::Error as FixtureError;
pub use server::TestServer;
