//! The cluster as controllers see it: the informer factory, shared informers, settings and clock.
//!
//! River: the informers of all controllers of a process.
//! Promise: controllers that need the same objects share one watch and one store.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use headwater_api::{Clock, SystemClock};
use headwater_client::informer::Informer;
use headwater_client::{Error, Factory, Index};
use kube::Resource;
use serde::de::DeserializeOwned;

use crate::certificates::CertificateSigner;
use crate::pod::Pod;

/// The context from which controllers are prepared. Cheap to clone.
#[derive(Clone)]
pub struct Cluster {
    factory: Factory,
    clock: Arc<dyn Clock>,
    pods: Arc<Mutex<Option<Pods>>>,
    nodes: Arc<crate::nodes::Options>,
    root_ca: Option<Arc<str>>,
    signer: Option<Arc<dyn CertificateSigner>>,
    node_grace: Duration,
}

/// The shared informer of all pods, with its indexes. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Pods {
    /// Every pod of the cluster.
    pub informer: Informer<Pod>,
    /// By the name of the node they are bound to, including finished pods.
    pub by_node: Index<Pod, String>,
    /// By the UID of the object that controls them.
    pub by_controller: Index<Pod, String>,
    /// Pods without a controller, by namespace.
    pub orphans: Index<Pod, String>,
}

impl Cluster {
    /// A cluster with default settings and the system clock.
    pub fn new(factory: Factory) -> Cluster {
        Cluster {
            factory,
            clock: Arc::new(SystemClock),
            pods: Arc::default(),
            nodes: Arc::default(),
            root_ca: None,
            signer: None,
            node_grace: Duration::from_secs(50),
        }
    }

    /// Sets the options of the simulated nodes.
    #[must_use]
    pub fn with_nodes(mut self, nodes: crate::nodes::Options) -> Cluster {
        self.nodes = Arc::new(nodes);
        self
    }

    /// Sets the server's CA certificate (PEM), which is published in every namespace.
    #[must_use]
    pub fn with_root_ca(mut self, certificate: &str) -> Cluster {
        self.root_ca = Some(certificate.into());
        self
    }

    /// The server's CA certificate, if it is known.
    pub fn root_ca(&self) -> Option<&str> {
        self.root_ca.as_deref()
    }

    /// Sets the authority that signs certificates. Without one no request is approved or signed.
    #[must_use]
    pub fn with_signer(mut self, signer: Arc<dyn CertificateSigner>) -> Cluster {
        self.signer = Some(signer);
        self
    }

    /// The authority that signs certificates.
    pub fn signer(&self) -> Option<&Arc<dyn CertificateSigner>> {
        self.signer.as_ref()
    }

    /// Sets how long a node may send no heartbeat before it is unreachable; 50 s by default.
    #[must_use]
    pub fn with_node_grace(mut self, grace: Duration) -> Cluster {
        self.node_grace = grace;
        self
    }

    /// How long a node may send no heartbeat before it is unreachable.
    pub fn node_grace(&self) -> Duration {
        self.node_grace
    }

    /// Sets the clock.
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Cluster {
        self.clock = clock;
        self
    }

    /// The informer factory.
    pub fn factory(&self) -> &Factory {
        &self.factory
    }

    /// The clock.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// The options of the simulated nodes.
    pub fn nodes(&self) -> &Arc<crate::nodes::Options> {
        &self.nodes
    }

    /// All pods, as projections.
    ///
    /// # Errors
    /// The factory has stopped.
    pub fn pods(&self) -> Result<Pods, Error> {
        let mut known = self.pods.lock().expect("no code panics while it is held");
        if let Some(pods) = &*known {
            return Ok(pods.clone());
        }
        let informer = self.factory.informer::<Pod>().drop_last_applied().open()?;
        let by_node = informer.index("node", |pod: &Pod| pod.node().map(str::to_owned))?;
        let by_controller =
            informer.index("controller", |pod: &Pod| pod.controller_uid().map(str::to_owned))?;
        let orphans = informer.index("orphan", |pod: &Pod| match pod.controller_uid() {
            Some(_) => None,
            None => pod.metadata.namespace.clone(),
        })?;
        let pods = Pods { informer, by_node, by_controller, orphans };
        *known = Some(pods.clone());
        Ok(pods)
    }

    /// All objects of a kind, typed.
    ///
    /// # Errors
    /// The factory has stopped.
    pub fn informer<K>(&self) -> Result<Informer<K>, Error>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
    {
        self.factory.informer::<K>().drop_last_applied().open()
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("factory", &self.factory).finish_non_exhaustive()
    }
}
