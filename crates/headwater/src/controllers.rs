//! Controllers in this process: beside a server, or alone against one elsewhere.
//!
//! Promise: they talk to the server as any client does, over TLS with a kubeconfig; nothing of the
//! server is shared with them.

use std::future::Future;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use headwater_client::Factory;
use headwater_client::factory::{self, Defaults};
use headwater_client::leader::{Lease, Timing};
use headwater_controllers::nodes::{self, Rules};
use headwater_controllers::{Cluster, ControllerSelection, Options, run as run_controllers};
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};

use crate::flags::{Controllers, Controlling};
use crate::signals::Signals;
use crate::{limits, print};

/// The lease that copies of `headwater controllers` compete for.
const LEASE: &str = "headwater-controllers";
/// Where it is.
const LEASE_NAMESPACE: &str = "kube-system";

/// `headwater controllers`: runs until a signal says otherwise, or until another copy took over.
pub(crate) async fn controllers(flags: Controllers) -> Result<()> {
    limits::raise();
    let mut signals = Signals::new()?;
    let Controlling { controllers, nodes, .. } = &flags.controlling;
    let selected = controllers.clone().unwrap_or_else(ControllerSelection::all);
    let nodes = nodes::Options { count: *nodes, rules: stages(&flags.controlling)? };
    let identity = flags.identity.clone().unwrap_or_else(identity);
    let cluster = open(&flags.remote.kubeconfig).await?.with_nodes(nodes);
    let cluster = cluster.with_node_grace(flags.controlling.node_grace);
    let lease = (!flags.no_leader_election).then(|| lease(&flags, &identity));
    print::data(&format!("controllers as {identity}: {selected}"));
    let mut options = Options::new(selected);
    options.health_on = flags.health_bind;
    options.lease = lease;
    options.identity = identity;
    options.when_synced(|| print::data("ready"));
    Ok(run_controllers(cluster, options, signals.next()).await?)
}

fn lease(flags: &Controllers, identity: &str) -> Lease {
    // The parts of the usual times, whatever the whole is.
    let lease = flags.lease_duration;
    let timing = Timing { lease, renew_deadline: lease * 2 / 3, retry: lease * 2 / 15 };
    Lease::named(LEASE).namespace(LEASE_NAMESPACE).identity(identity).timing(timing)
}

/// A name that no other copy has: two on one machine differ by their process.
fn identity() -> String {
    let mut host = String::new();
    let read = std::fs::File::open("/proc/sys/kernel/hostname")
        .and_then(|file| file.take(256).read_to_string(&mut host));
    let host = if read.is_ok() { host.trim() } else { "localhost" };
    format!("{host}_{}", std::process::id())
}

/// What `--stages` says.
pub(crate) fn stages(flags: &Controlling) -> Result<Rules> {
    let Some(path) = &flags.stages else { return Ok(Rules::default()) };
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the stages in {}", path.display()))?;
    text.parse().with_context(|| path.display().to_string())
}

/// The cluster of a kubeconfig.
async fn open(path: &Path) -> Result<Cluster> {
    let kubeconfig = Kubeconfig::read_from(path)
        .with_context(|| format!("{} is not a kubeconfig", path.display()))?;
    connect(kubeconfig).await
}

async fn connect(kubeconfig: Kubeconfig) -> Result<Cluster> {
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .context("the kubeconfig is not usable")?;
    let defaults = Defaults { component: LEASE.to_owned(), ..Defaults::default() };
    let certificate = root_ca(&config);
    let cluster = Cluster::new(Factory::with_defaults(factory::client_of(config)?, defaults));
    Ok(match certificate {
        Some(certificate) => cluster.with_root_ca(&certificate),
        None => cluster,
    })
}

/// The certificates by which we know the server, for pods to know it by.
fn root_ca(config: &Config) -> Option<String> {
    let certificates = config.root_cert.as_ref().filter(|all| !all.is_empty())?;
    let each = certificates.iter().map(|der| {
        let text = STANDARD.encode(der);
        let lines = text.as_bytes().chunks(64).map(String::from_utf8_lossy).collect::<Vec<_>>();
        let body = lines.join("\n");
        format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n")
    });
    Some(each.collect())
}

/// Controllers beside a server.
pub(crate) struct Controlled {
    selected: ControllerSelection,
    nodes: nodes::Options,
    node_grace: Duration,
}

impl Controlled {
    /// `None` if none are wanted.
    pub(crate) fn new(flags: &Controlling, rules: Rules) -> Option<Controlled> {
        let selected = flags.controllers.clone().unwrap_or_default();
        let nodes = nodes::Options { count: flags.nodes, rules };
        let node_grace = flags.node_grace;
        (!selected.is_empty()).then_some(Controlled { selected, nodes, node_grace })
    }

    /// They run until `stop`, on the server of a kubeconfig.
    pub(crate) fn run(
        &self,
        kubeconfig: &str,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<impl Future<Output = Result<()>> + Send + 'static> {
        let kubeconfig = Kubeconfig::from_yaml(kubeconfig)
            .map_err(|error| anyhow!("our own kubeconfig: {error}"))?;
        let (selected, nodes) = (self.selected.clone(), self.nodes.clone());
        let grace = self.node_grace;
        Ok(async move {
            let cluster = connect(kubeconfig).await?.with_nodes(nodes).with_node_grace(grace);
            let ran = run_controllers(cluster, Options::new(selected), stop).await;
            ran.context("the controllers ended")
        })
    }

    pub(crate) fn announce(&self) {
        print::data(&format!("controllers: {}", self.selected));
        if self.selected.has("simulated-nodes") {
            print::data(&format!("simulated nodes: {}", self.nodes.count));
        }
    }

    /// What to type next.
    pub(crate) fn next(&self) -> &'static str {
        match self.selected.has("deployment") && self.selected.has("simulated-nodes") {
            true => "kubectl create deployment web --image=nginx --replicas=3; kubectl get pods -w",
            false => "kubectl get nodes",
        }
    }
}
