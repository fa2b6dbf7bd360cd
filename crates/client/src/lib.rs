//! A client library for programs that follow and change the objects of a Kubernetes API server:
//! reflector, informers, indexers, work queue, controllers, leader election, event recorder. It
//! works with any Kubernetes API server.
//!
//! ```text
//! server ─▶ source ─▶ reflector ─▶ delta queue ─▶ store and indexes ─▶ subscribers
//!                                                                          │
//!           the next write ◀─ calls ◀─ reconciler ◀─ work queue ◀──────────┘
//! ```
//!
//! `kube` supplies kubeconfig, credentials, TLS and transport; `k8s-openapi` supplies the types.
//!
//! # Cache
//!
//! A [`Factory`] connects, makes informers and runs them. An [`Informer`](informer::Informer) is
//! one watch, one store and any number of subscribers. Callers that open an informer with the same
//! options share it.
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
//!     factory.synced(Duration::from_secs(60)).await?; // the error lists what failed
//!     let web = pods.lister().get("shop", "web-0")?; // Option<Arc<Pod>>, from memory
//!     let view = pods.snapshot(); // one state for many reads
//!     println!("{:?} {} at {:?}", web.is_some(), view.by(&by_node, "n7").len(), view.resource_version());
//!     stop.cancel();
//!     Ok(())
//! };
//! tokio::try_join!(factory.run(stop.clone()), work)?; // nothing runs until `run` does
//! # Ok(())
//! # }
//! ```
//!
//! The store always equals the server's state at one version. Reads never wait and copy no object.
//! Versions go backwards only if the server's do ([`Snapshot::epoch`]).
//!
//! # Changes
//!
//! ```no_run
//! use headwater_client::Change;
//! use headwater_client::informer::{Informer, Subscribe};
//! # use k8s_openapi::api::core::v1::Pod;
//! # async fn example(pods: Informer<Pod>) -> Result<(), headwater_client::Error> {
//! let mut changes = pods.subscribe(Subscribe::named("audit"))?;
//! while let Some(change) = changes.next().await {
//!     match change {
//!         Change::Added { object, initial } => { /* `initial`: it existed before the subscription */ }
//!         Change::Updated { old, new } => { /* both states */ }
//!         Change::Deleted(gone) => println!("{} was deleted", gone.key()),
//!         Change::Synced => println!("all initial objects were delivered"),
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`Informer::for_each`](informer::Informer::for_each) calls a function instead. A slow, blocked
//! or panicking subscriber affects no other; its [`Buffer`](informer::Buffer) decides what happens
//! to it.
//!
//! # Representation of objects
//!
//! | builder | stored as | for |
//! | --- | --- | --- |
//! | [`Factory::informer`], the default | the typed object, without managed fields | most programs |
//! | [`Builder::packed`](factory::Builder::packed) | its JSON text, decoded on read: [`Packed`] | large caches that are read in part |
//! | a type of your own with fewer fields, see [`slim`] | the fields it declares | exports, indexes |
//! | [`Builder::metadata_only`](factory::Builder::metadata_only) | metadata; the server sends nothing else | garbage collection, ownership |
//! | [`Factory::dynamic`] | a JSON tree | kinds that are known only at run time |
//!
//! # Controllers
//!
//! A [`Controller`] turns changes into keys and calls a reconciler for each key. It retries errors
//! with a delay per key. A reconcile sees the writes of the previous reconcile of the same key.
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
//! A [`Manager`] runs several controllers, with leader election ([`leader`]) and endpoints for
//! health and metrics. Events are written by a [`recorder`]. The [`workqueue`] can be used without
//! a controller.
//!
//! # Rules
//!
//! - Every task is joined by its owner: each component has a `run` that ends after `stop`, and
//!   dropping its future stops it too.
//! - Every queue has a limit, and its documentation says what happens when it is full.
//! - Every future that is for `select!` is cancel-safe, and its documentation says so.
//! - No input from the network panics: an object that cannot be decoded is reported and left out of
//!   the store; the others are unaffected.
//! - There are no globals: no recorder, no registry, no runtime. [`Metrics`] is a value.
//!
//! # Testing
//!
//! With the feature `testing`, a `script::Script` replaces the server by expected requests and their
//! answers; it works with paused time, and jitter can be seeded. `docs/client.md` in the repository has an example of each
//! component; the `examples` folder has complete programs.
#![warn(missing_docs)]
#![cfg_attr(
    not(any(test, feature = "testing")),
    allow(unreachable_pub, dead_code, reason = "the feature `testing` exports the source")
)]

mod key;
mod version;
mod object;
mod packed;
mod strip;
mod slim;
mod query;
mod list_watch;
mod http;
mod transform;
mod backoff;
mod health;
mod reflector;
mod change;
mod delta_queue;
mod indexer;
pub mod informer;
mod lister;
pub mod factory;
mod selector;
pub mod workqueue;
pub mod predicate;
pub mod calls;
mod track;
pub mod owner;
pub mod recorder;
pub mod controller;
pub mod leader;
pub mod manager;
pub mod shards;
#[cfg(any(test, feature = "testing"))]
pub mod script;
mod metrics;
mod observe;
pub mod error;

/// Lists and watches of objects as text, for programs that keep no types.
pub mod raw {
    pub use crate::http::Options;
    pub use crate::http::raw::{RawCollection, RawEvent, RawPage};
    pub use crate::list_watch::{Error, StatusError};
    pub use crate::query::{At, ListQuery, Selection, WatchQuery};
    pub use crate::strip::Strip;
}

pub use change::{Change, Gone};
pub use controller::Controller;
pub use error::Error;
pub use factory::Factory;
pub use indexer::{Index, Snapshot};
pub use key::Key;
pub use lister::Lister;
pub use manager::Manager;
pub use metrics::Metrics;
pub use object::{Cached, ResourceType};
pub use packed::Packed;
pub use selector::Selector;
pub use slim::slim;
pub use transform::Transform;
pub use version::ResourceVersion;

pub use headwater_api::selector::{ShardField, ShardSelector};

use headwater_api::random;

/// Compiles the snippets of docs/client.md as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/client.md")]
struct Page;
