//! The client side of List/Watch, for any Kubernetes API server: everything client-go has, in Rust.
//!
//! ```text
//! server ─▶ source ─▶ reflector ─▶ delta queue ─▶ store and indexes ─▶ subscribers
//!                                                                          │
//!           the next write ◀─ calls ◀─ reconciler ◀─ work queue ◀──────────┘
//! ```
//!
//! From left to right and back, this is the whole crate. `kube` supplies kubeconfig, credentials,
//! TLS and transport, `k8s-openapi` the types.
//!
//! # A cache that follows the server
//!
//! A [`Factory`] connects, makes informers and runs them. An [`Informer`](informer::Informer) is
//! one watch, one store and any number of subscribers; whoever asks for the same gets the same one.
//!
//! ```no_run
//! use headwater_client::{Error, Factory};
//! use k8s_openapi::api::core::v1::Pod;
//! use std::time::Duration;
//! use tokio_util::sync::CancellationToken;
//!
//! # async fn example() -> Result<(), Error> {
//! let factory = Factory::connect().await?; // kubeconfig, or in-cluster
//! let pods = factory.informer::<Pod>().labels("tier=web").open()?;
//! let by_node = pods.index("node", |pod: &Pod| pod.spec.as_ref()?.node_name.clone())?;
//!
//! let stop = CancellationToken::new();
//! let work = async {
//!     factory.synced(Duration::from_secs(60)).await?; // the error says who is missing and why
//!     let web = pods.lister().get("shop", "web-0")?; // Option<Arc<Pod>>, from memory
//!     let view = pods.snapshot(); // many reads, one state
//!     println!("{:?} {} at {:?}", web.is_some(), view.by(&by_node, "n7").len(), view.resource_version());
//!     stop.cancel();
//!     Ok(())
//! };
//! tokio::try_join!(factory.run(stop.clone()), work)?; // handles read; only `run` drives
//! # Ok(())
//! # }
//! ```
//!
//! What the store promises: it is always equal to the server's state at one version; reading waits
//! for nobody and copies no object; nothing goes back in time unless the server does
//! ([`Store::epoch`](indexer::Store::epoch)).
//!
//! # Being told
//!
//! ```no_run
//! use headwater_client::change::Change;
//! use headwater_client::informer::{Informer, Subscribe};
//! # use k8s_openapi::api::core::v1::Pod;
//! # async fn example(pods: Informer<Pod>) -> Result<(), headwater_client::Error> {
//! let mut changes = pods.subscribe(Subscribe::named("audit"))?;
//! while let Some(change) = changes.next().await {
//!     match change {
//!         Change::Added { object, initial } => { /* the present first: `initial` */ }
//!         Change::Updated { old, new } => { /* both states, shared with the store */ }
//!         Change::Deleted(gone) => println!("{} is gone", gone.key()),
//!         Change::Synced => println!("that was the present; from here on it is live"),
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Or with a callback: [`Informer::for_each`](informer::Informer::for_each). A slow, blocked or
//! panicking subscriber harms nobody; what happens to it is its [`Buffer`](informer::Buffer).
//!
//! # What is kept
//!
//! | choice | each object is | for |
//! | --- | --- | --- |
//! | [`Factory::informer`], the default | the typed object, without managed fields | most programs |
//! | [`Builder::packed`](factory::Builder::packed) | its bytes, decoded when read: [`Packed`] | large caches that are read in part |
//! | a type of your own with fewer fields, see [`slim`] | what it declares | exports, indexes |
//! | [`Builder::metadata_only`](factory::Builder::metadata_only) | metadata, also on the wire | garbage collection, ownership |
//! | [`Factory::dynamic`] | a JSON tree | kinds known only at run time |
//!
//! # Controllers
//!
//! A [`Controller`] turns changes into keys, keys into calls of a reconciler, and errors into
//! delays. What a reconcile wrote, the next one of the same key sees.
//!
//! ```no_run
//! use headwater_client::controller::{Context, Failure, Next};
//! use headwater_client::{Cached, Controller, Factory, owner, predicate};
//! use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};
//! use std::sync::Arc;
//!
//! async fn reconcile(app: Arc<ConfigMap>, cx: Context) -> Result<Next, Failure> {
//!     let mut wanted = Deployment::default(); // … computed from `app` …
//!     wanted.metadata.name = Some(app.name().to_owned());
//!     owner::set_controller(&*app, &mut wanted)?;
//!     if cx.lister::<Deployment>()?.get_key(&app.key())?.is_none() {
//!         cx.apply(&wanted, "webapp").await?;
//!         cx.normal(&*app, "Applied", format_args!("deployment {}", app.name()));
//!     }
//!     Ok(Next::Done)
//! }
//!
//! # async fn example() -> Result<(), headwater_client::Error> {
//! let factory = Factory::connect().await?;
//! let apps = factory.informer::<ConfigMap>().labels("kind=web-app").open()?;
//! let deployments = factory.informer::<Deployment>().open()?;
//! Controller::new("webapp", &apps)
//!     .owns(&deployments)
//!     .when(predicate::generation_changed())
//!     .workers(8)
//!     .run(&factory, async { tokio::signal::ctrl_c().await.ok(); }, reconcile)
//!     .await?;
//! # Ok(())
//! # }
//! ```
//!
//! A [`Manager`] runs several, with leader election ([`leader`]), an event recorder ([`recorder`])
//! and one page of health and metrics. The [`workqueue`] is usable alone.
//!
//! # Rules
//!
//! - Nothing is spawned that is not awaited by its owner: each part has a `run` that ends after
//!   `stop`, and dropping its future stops it too.
//! - Every queue has a bound and says what happens when it is full.
//! - Every future that is meant for `select!` is cancel-safe, and says so.
//! - Nothing from the network panics: an object that cannot be decoded is left out and reported,
//!   and the rest goes on.
//! - Nothing global: no recorder, no registry, no runtime. [`metrics::Metrics`] is a value.
//!
//! # Testing
//!
//! A [`script::Script`] plays a server request by request; time can be paused, and jitter has a
//! seed. Examples are in the `examples` folder; `docs/client.md` in the repository is the longer
//! page, with every clause of the specification and its test.
#![warn(missing_docs)]

pub mod key;
pub mod version;
pub mod object;
pub mod packed;
pub mod strip;
mod slim;
pub mod query;
pub mod list_watch;
pub mod http;
pub mod transform;
mod backoff;
mod health;
mod reflector;
pub mod change;
mod delta_queue;
pub mod indexer;
pub mod informer;
pub mod lister;
pub mod factory;
pub mod selector;
pub mod workqueue;
pub mod predicate;
pub mod calls;
mod track;
pub mod owner;
pub mod recorder;
pub mod controller;
pub mod leader;
pub mod manager;
pub mod wait;
pub mod script;
pub mod metrics;
mod observe;
pub mod random;
pub mod error;

pub use controller::Controller;
pub use error::Error;
pub use factory::Factory;
pub use key::Key;
pub use manager::Manager;
pub use object::Cached;
pub use packed::Packed;
pub use selector::Selector;
pub use slim::slim;
pub use track::Overlay;
pub use version::ResourceVersion;

/// The snippets of the page are compiled like those above.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/client.md")]
struct Page;
