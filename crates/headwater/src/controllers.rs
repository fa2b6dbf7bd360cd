//! Controllers in this process, alongside a server or against a remote one.
//!
//! Promise: controllers use the server like any other client, over TLS with a kubeconfig. They
//! share no state with it.

use std::collections::BTreeMap;
use std::future::Future;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use headwater_bench::kubeconfig;
use headwater_client::Factory;
use headwater_client::factory::{self, InformerDefaults};
use headwater_client::leader::{Lease, Timing};
use headwater_controllers::certificates::{AskedCertificate, CertificateSigner};
use headwater_controllers::nodes::{self, Rules};
use headwater_controllers::{
    Cluster, ControllerSelection, Options, identity, run as run_controllers,
};
use headwater_server::certificates::{self, CertificateAuthority, SigningRequest};
use headwater_server::pki::private_file::{self, OthersMayRead};
use headwater_server::pki::{Pair, Secret};
use jiff::Timestamp;
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};

use crate::flags::{ControllerFlags, ControllersFlags};
use crate::signals::Signals;
use crate::{limits, print};

/// The lease for leader election between copies of `headwater controllers`.
const LEASE: &str = "headwater-controllers";
/// The namespace of the lease.
const LEASE_NAMESPACE: &str = "kube-system";

/// The authority that signs certificates for the signing controller.
pub(crate) struct Signer(CertificateAuthority);

impl Signer {
    /// An authority from its certificate and key.
    pub(crate) fn of(pair: &Pair) -> Result<Arc<dyn CertificateSigner>> {
        Ok(Arc::new(Signer(CertificateAuthority::new(pair)?)))
    }

    /// The authority in the files of these flags; `None` without them.
    fn from_files(flags: &ControllersFlags) -> Result<Option<Arc<dyn CertificateSigner>>> {
        let (Some(certificate), Some(key)) =
            (&flags.cluster_signing_cert_file, &flags.cluster_signing_key_file)
        else {
            return Ok(None);
        };
        let text = std::fs::read_to_string(certificate)
            .with_context(|| format!("cannot read {}", certificate.display()))?;
        let key = private_file::read(key, OthersMayRead::Refuse)?;
        Signer::of(&Pair { certificate: text, key: Secret::new(key) }).map(Some)
    }
}

fn signing_request<'a>(asked: &AskedCertificate<'a>) -> SigningRequest<'a> {
    let AskedCertificate { pem, signer, usages, lifetime } = *asked;
    SigningRequest { pem, signer, usages, lifetime }
}

impl CertificateSigner for Signer {
    fn sign(&self, asked: &AskedCertificate<'_>, now: Timestamp) -> Result<String, String> {
        self.0.sign(signing_request(asked), now).map_err(|refused| refused.to_string())
    }

    fn permitted_name(&self, asked: &AskedCertificate<'_>) -> Option<String> {
        certificates::permitted_name(signing_request(asked))
    }
}

/// `headwater controllers`: runs until a signal, or until another copy becomes the leader.
pub(crate) async fn controllers(flags: ControllersFlags) -> Result<()> {
    limits::raise();
    let mut signals = Signals::new()?;
    let ControllerFlags { controllers, nodes, .. } = &flags.controller_flags;
    let selected = controllers.clone().unwrap_or_else(ControllerSelection::all);
    let nodes = nodes::Options { count: *nodes, rules: stages(&flags.controller_flags)? };
    let identity = flags.identity.clone().unwrap_or_else(process_name);
    let cluster = connect(kubeconfig::config(&flags.remote.kubeconfig).await?)?.with_nodes(nodes);
    let mut cluster = cluster.with_node_grace(flags.controller_flags.node_grace);
    if let Some(signer) = Signer::from_files(&flags)? {
        cluster = cluster.with_signer(signer);
    }
    let lease = (!flags.no_leader_election).then(|| lease(&flags, &identity));
    print::data(&format!("controllers as {identity}: {selected}"));
    let mut options = Options::new(selected);
    options.health_on = flags.health_bind;
    options.lease = lease;
    options.identity = identity;
    options.when_synced(|| print::data("ready"));
    Ok(run_controllers(cluster, options, signals.next()).await?)
}

fn lease(flags: &ControllersFlags, identity: &str) -> Lease {
    // The same proportions as client-go's defaults of 15, 10 and 2 seconds.
    let lease = flags.lease_duration;
    let timing = Timing { lease, renew_deadline: lease * 2 / 3, retry: lease * 2 / 15 };
    Lease::named(LEASE).namespace(LEASE_NAMESPACE).identity(identity).timing(timing)
}

/// The default identity: host name and process id, unique per copy.
fn process_name() -> String {
    let mut host = String::new();
    let read = std::fs::File::open("/proc/sys/kernel/hostname")
        .and_then(|file| file.take(256).read_to_string(&mut host));
    let host = if read.is_ok() { host.trim() } else { "localhost" };
    format!("{host}_{}", std::process::id())
}

/// The rules of `--stages`.
pub(crate) fn stages(flags: &ControllerFlags) -> Result<Rules> {
    let Some(path) = &flags.stages else { return Ok(Rules::default()) };
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the --stages file {}", path.display()))?;
    text.parse().with_context(|| format!("invalid --stages file {}", path.display()))
}

async fn config(kubeconfig: Kubeconfig) -> Result<Config> {
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    config.context("cannot use the kubeconfig")
}

fn connect(config: Config) -> Result<Cluster> {
    let defaults = InformerDefaults { component: LEASE.to_owned(), ..InformerDefaults::default() };
    let certificate = root_ca(&config);
    let cluster = Cluster::new(Factory::with_defaults(factory::client_of(config)?, defaults));
    Ok(match certificate {
        Some(certificate) => cluster.with_root_ca(&certificate),
        None => cluster,
    })
}

/// The certificate authorities of the server as PEM, which pods receive.
pub(crate) fn root_ca(config: &Config) -> Option<String> {
    let certificates = config.root_cert.as_ref().filter(|all| !all.is_empty())?;
    let each = certificates.iter().map(|der| {
        let text = STANDARD.encode(der);
        let lines = text.as_bytes().chunks(64).map(String::from_utf8_lossy).collect::<Vec<_>>();
        let body = lines.join("\n");
        format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n")
    });
    Some(each.collect())
}

/// The controllers that run alongside a server.
#[derive(Clone)]
pub(crate) struct LocalControllers {
    selected: ControllerSelection,
    nodes: nodes::Options,
    node_grace: Duration,
}

impl LocalControllers {
    /// `None` if no controller is selected.
    pub(crate) fn new(flags: &ControllerFlags, rules: Rules) -> Option<LocalControllers> {
        let selected = flags.controllers.clone().unwrap_or_default();
        let nodes = nodes::Options { count: flags.nodes, rules };
        let node_grace = flags.node_grace;
        (!selected.is_empty()).then_some(LocalControllers { selected, nodes, node_grace })
    }

    /// Returns a future that runs them until `stop`, each with the kubeconfig of its identity.
    pub(crate) fn run(
        &self,
        kubeconfigs: &BTreeMap<String, String>,
        signer: Arc<dyn CertificateSigner>,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<impl Future<Output = Result<()>> + Send + 'static> {
        let parse = |text: &String| {
            Kubeconfig::from_yaml(text).map_err(|error| {
                anyhow!("internal error: cannot parse the generated kubeconfig: {error}")
            })
        };
        let parsed =
            kubeconfigs.iter().map(|(user, text)| parse(text).map(|parsed| (user.clone(), parsed)));
        let mut kubeconfigs = parsed.collect::<Result<BTreeMap<String, Kubeconfig>>>()?;
        let shared = kubeconfigs.remove(identity::MANAGER);
        let shared = shared.context("internal error: the controllers have no kubeconfig")?;
        let (selected, nodes) = (self.selected.clone(), self.nodes.clone());
        let grace = self.node_grace;
        Ok(async move {
            let cluster = connect(config(shared).await?)?.with_nodes(nodes).with_node_grace(grace);
            let cluster = cluster.with_signer(signer);
            let mut options = Options::new(selected);
            for (user, kubeconfig) in kubeconfigs {
                options.clients.insert(user, factory::client_of(config(kubeconfig).await?)?);
            }
            let ran = run_controllers(cluster, options, stop).await;
            ran.context("the controllers failed")
        })
    }

    /// Whether simulated nodes run.
    pub(crate) fn has_nodes(&self) -> bool {
        self.selected.has("simulated-nodes")
    }

    pub(crate) fn announce(&self) {
        print::data(&format!("controllers: {}", self.selected));
        if self.selected.has("simulated-nodes") {
            print::data(&format!("simulated nodes: {}", self.nodes.count));
        }
    }

    /// A command for the user to try.
    pub(crate) fn example(&self) -> &'static str {
        match self.selected.has("deployment") && self.selected.has("simulated-nodes") {
            true => "kubectl create deployment web --image=nginx --replicas=3; kubectl get pods -w",
            false => "kubectl get nodes",
        }
    }
}
