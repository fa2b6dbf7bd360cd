//! A complete API server inside a test.
//!
//! River: a test → `kube::Client` → **testing** → server → cache → store, in one process and
//! without a port. The server is the one that `headwater serve` runs, with the same admission,
//! custom resources and watches.
//! Promise: servers share nothing, so a test process may start any number of them; everything that
//! a server runs ends with it.
//!
//! [`TestServer::start`] returns a server that is ready, [`TestServer::client`] a client for it.
//!
//! # With `headwater-client`
//!
//! ```
//! use headwater_client::controller::{Context, Controller, Failure, Next};
//! use headwater_client::{Cached, Factory, Key};
//! use headwater_testing::TestServer;
//! use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
//! use std::{sync::Arc, time::Duration};
//! use tokio_util::sync::CancellationToken;
//!
//! /// Creates a ConfigMap in every namespace.
//! async fn reconcile(namespace: Arc<Namespace>, cx: Context) -> Result<Next, Failure> {
//!     let metadata = serde_json::json!({"name": "greeting", "namespace": namespace.name()});
//!     let map: ConfigMap = serde_json::from_value(serde_json::json!({"metadata": metadata}))?;
//!     match cx.of::<ConfigMap>().create(&map).await {
//!         Err(error) if error.is_exists() => Ok(Next::Done),
//!         created => Ok(created.map(|_| Next::Done)?),
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), headwater_client::Error> {
//! let server = TestServer::start().await;
//! let factory = Factory::new(server.client());
//! let namespaces = factory.informer::<Namespace>().open()?;
//! let maps = factory.informer::<ConfigMap>().open()?;
//! let stop = CancellationToken::new();
//! let test = async {
//!     server.apply_yaml("{apiVersion: v1, kind: Namespace, metadata: {name: shop}}").await.unwrap();
//!     let key = Key::namespaced("shop", "greeting");
//!     maps.wait_for(&key, |map| map.is_some(), Duration::from_secs(60)).await?;
//!     stop.cancel();
//!     Ok(())
//! };
//! let controller = Controller::new("greeter", &namespaces);
//! tokio::try_join!(controller.run(&factory, stop.clone().cancelled_owned(), reconcile), test)?;
//! server.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! # With `kube`, and a custom resource
//!
//! ```
//! use futures::StreamExt;
//! use headwater_testing::TestServer;
//! use k8s_openapi::api::core::v1::ConfigMap;
//! use kube::api::{Api, Patch, PatchParams};
//! use kube::runtime::{Controller, controller::Action, wait::await_condition, watcher};
//! use kube::{Client, CustomResource, CustomResourceExt, ResourceExt};
//! use schemars::JsonSchema;
//! use serde::{Deserialize, Serialize};
//! use std::{sync::Arc, time::Duration};
//!
//! #[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
//! #[kube(group = "example.com", version = "v1", kind = "Greeting", namespaced)]
//! struct GreetingSpec {
//!     text: String,
//! }
//!
//! /// Creates a ConfigMap with the text of each Greeting.
//! async fn reconcile(greeting: Arc<Greeting>, client: Arc<Client>) -> Result<Action, kube::Error> {
//!     let name = greeting.name_any();
//!     let map = serde_json::json!({
//!         "apiVersion": "v1", "kind": "ConfigMap",
//!         "metadata": {"name": name}, "data": {"text": greeting.spec.text},
//!     });
//!     let maps = Api::<ConfigMap>::default_namespaced((*client).clone());
//!     maps.patch(&name, &PatchParams::apply("greeter"), &Patch::Apply(map)).await?;
//!     Ok(Action::await_change())
//! }
//!
//! fn retry(_: Arc<Greeting>, _: &kube::Error, _: Arc<Client>) -> Action {
//!     Action::requeue(Duration::from_secs(1))
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let server = TestServer::start().await;
//! server.define(&[Greeting::crd()]).await.unwrap();
//! let greetings = Api::<Greeting>::default_namespaced(server.client());
//! let operator = Controller::new(greetings, watcher::Config::default());
//! let operator = operator.run(reconcile, retry, Arc::new(server.client())).for_each(|_| async {});
//! let fixture = "
//! apiVersion: example.com/v1
//! kind: Greeting
//! metadata: {name: hi}
//! spec: {text: hello}
//! ";
//! server.apply_yaml(fixture).await.unwrap();
//! let maps = Api::<ConfigMap>::default_namespaced(server.client());
//! let created = await_condition(maps, "hi", |map: Option<&ConfigMap>| map.is_some());
//! tokio::select! {
//!     () = operator => unreachable!("the controller runs until it is dropped"),
//!     map = created => assert_eq!(map.unwrap().unwrap().data.unwrap()["text"], "hello"),
//! }
//! server.stop().await;
//! # }
//! ```

mod in_process;
mod server;
mod fixture;

pub use fixture::Error as FixtureError;
pub use server::TestServer;
