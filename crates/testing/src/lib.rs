//! A complete API server inside a test.
//!
//! River: a test → client → **testing** → server → cache → store, in one process and
//! without a port. The server is the one that `headwater serve` runs, with the same admission,
//! custom resources and watches.
//! Promise: servers share nothing, so a test process may start any number of them; everything that
//! a server runs ends with it.
//!
//! [`TestServer::start`] returns a server that is ready, [`TestServer::factory`] the informers of
//! `headwater-client` for it, and [`TestServer::client`] a `kube::Client` for everything else.
//!
//! ```
//! use headwater_client::controller::{Context, Failure, Next};
//! use headwater_client::{Controller, Key, owner};
//! use headwater_testing::TestServer;
//! use k8s_openapi::api::core::v1::ConfigMap;
//! use kube::{CustomResource, CustomResourceExt, ResourceExt};
//! use schemars::JsonSchema;
//! use serde::{Deserialize, Serialize};
//! use std::{sync::Arc, time::Duration};
//! use tokio_util::sync::CancellationToken;
//!
//! #[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
//! #[kube(group = "example.com", version = "v1", kind = "Greeting", namespaced)]
//! struct GreetingSpec {
//!     text: String,
//! }
//!
//! /// Writes the text of each Greeting to a ConfigMap.
//! async fn reconcile(greeting: Arc<Greeting>, cx: Context) -> Result<Next, Failure> {
//!     let mut map = ConfigMap::default();
//!     map.metadata.name = Some(greeting.name_any());
//!     map.metadata.namespace = greeting.namespace();
//!     map.data = Some([("text".to_owned(), greeting.spec.text.clone())].into());
//!     owner::set_controller(&*greeting, &mut map)?;
//!     cx.apply(&map, "greeter").await?;
//!     Ok(Next::Done)
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), headwater_client::Error> {
//! let server = TestServer::start().await;
//! server.define(&[Greeting::crd()]).await.unwrap();
//! let factory = server.factory();
//! let greetings = factory.informer::<Greeting>().open()?;
//! let maps = factory.informer::<ConfigMap>().open()?;
//! let stop = CancellationToken::new();
//! let test = async {
//!     let fixture = "
//! apiVersion: example.com/v1
//! kind: Greeting
//! metadata: {name: hi}
//! spec: {text: hello}
//! ";
//!     server.apply_yaml(fixture).await.unwrap();
//!     let key = Key::namespaced("default", "hi");
//!     let map = maps.wait_for(&key, |map| map.is_some(), Duration::from_secs(60)).await?;
//!     assert_eq!(map.unwrap().data.as_ref().unwrap()["text"], "hello");
//!     stop.cancel();
//!     Ok(())
//! };
//! let controller = Controller::new("greeter", &greetings).owns(&maps);
//! tokio::try_join!(controller.run(&factory, stop.clone().cancelled_owned(), reconcile), test)?;
//! server.stop().await;
//! # Ok(())
//! # }
//! ```

mod in_process;
mod server;
mod fixture;

pub use fixture::Error as FixtureError;
pub use server::TestServer;
