//! The registry: every controller by name, and the selection of those that run.

use headwater_client::Error;
use headwater_client::controller::Prepared;

use crate::cluster::Cluster;
use crate::{
    autoscaling, certificates, cronjob, daemonset, deployment, disruption, endpointslice, garbage,
    job, loadbalancer, namespace, nodelifecycle, nodes, replicaset, scheduler, serviceaccount,
    statefulset, token_secrets, volumes,
};

/// Opens a controller's informers and returns it ready to run.
type Prepare = fn(&Cluster) -> Result<Prepared, Error>;

/// Every controller, under Kubernetes' name where it has one. Controllers that only work together
/// share a name.
#[rustfmt::skip] // one row per line
const ALL: &[(&str, Prepare)] = &[
    ("scheduler", scheduler::prepare),
    ("simulated-nodes", nodes::node),
    ("simulated-nodes", nodes::lease),
    ("simulated-nodes", nodes::kubelet),
    ("replicaset", replicaset::prepare),
    ("replicationcontroller", replicaset::prepare_replication),
    ("deployment", deployment::prepare),
    ("statefulset", statefulset::prepare),
    ("daemonset", daemonset::prepare),
    ("namespace", namespace::prepare),
    ("garbage", garbage::prepare),
    ("serviceaccount", serviceaccount::prepare),
    ("serviceaccount", serviceaccount::prepare_root_ca),
    ("endpointslice", endpointslice::prepare),
    ("endpointslicemirroring", endpointslice::prepare_mirroring),
    ("service-lb-controller", loadbalancer::prepare),
    ("job", job::prepare),
    ("cronjob", cronjob::prepare),
    ("horizontalpodautoscaler", autoscaling::prepare),
    ("disruption", disruption::prepare),
    ("persistentvolume-binder", volumes::prepare),
    ("persistentvolume-binder", volumes::prepare_phases),
    ("persistentvolume-protection", volumes::volume_protection),
    ("persistentvolumeclaim-protection", volumes::claim_protection),
    ("volumeattributesclass-protection", volumes::attribute_class_protection),
    ("default-storageclass", volumes::default_class),
    ("nodelifecycle", nodelifecycle::prepare),
    ("serviceaccount-token", token_secrets::prepare),
    ("tokencleaner", token_secrets::prepare_cleaner),
    ("csrapproving", certificates::prepare_approver),
    ("csrsigning", certificates::prepare_signer),
    ("csrcleaner", certificates::prepare_cleaner),
];

/// The names of all controllers.
pub fn names() -> impl Iterator<Item = &'static str> {
    let before = |at: usize, name: &str| ALL[..at].iter().any(|(other, _)| *other == name);
    let each = ALL.iter().enumerate();
    each.filter(move |(at, (name, _))| !before(*at, name)).map(|(_, (name, _))| *name)
}

/// Which controllers run.
///
/// ```
/// use headwater_controllers::ControllerSelection;
///
/// let all_but_one: ControllerSelection = "*,-scheduler".parse()?;
/// assert!(all_but_one.has("simulated-nodes") && !all_but_one.has("scheduler"));
/// assert!("schedular".parse::<ControllerSelection>().is_err());
/// # Ok::<(), headwater_controllers::registry::UnknownController>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControllerSelection {
    names: Vec<&'static str>,
}

/// No controller has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown controller {0:?}; known controllers: {all}", all = names().collect::<Vec<_>>().join(", "))]
pub struct UnknownController(String);

impl ControllerSelection {
    /// All controllers.
    pub fn all() -> ControllerSelection {
        ControllerSelection { names: names().collect() }
    }

    /// Whether a controller is selected.
    pub fn has(&self, name: &str) -> bool {
        self.names.contains(&name)
    }

    /// Whether no controller is selected.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    pub(crate) fn prepare(&self, cluster: &Cluster) -> Result<Vec<Prepared>, Error> {
        let selected = ALL.iter().filter(|(name, _)| self.has(name));
        selected.map(|(_, prepare)| prepare(cluster)).collect()
    }
}

impl std::fmt::Display for ControllerSelection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.names.join(", "))
    }
}

/// Parses a list such as `deployment,replicaset`, `*`, or `*,-scheduler`; later entries win.
impl std::str::FromStr for ControllerSelection {
    type Err = UnknownController;

    fn from_str(text: &str) -> Result<ControllerSelection, UnknownController> {
        let mut selected = ControllerSelection::default();
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            match word.strip_prefix('-') {
                _ if word == "*" => selected = ControllerSelection::all(),
                Some(name) => {
                    let name = known(name)?;
                    selected.names.retain(|chosen| *chosen != name);
                }
                None => {
                    let name = known(word)?;
                    if !selected.has(name) {
                        selected.names.push(name);
                    }
                }
            }
        }
        Ok(selected)
    }
}

fn known(name: &str) -> Result<&'static str, UnknownController> {
    names().find(|known| *known == name).ok_or_else(|| UnknownController(name.to_owned()))
}

#[cfg(test)]
#[allow(clippy::needless_pass_by_value, reason = "tables write values where they are used")]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_names_selects_controllers() {
        let all = names().count();
        check("*", Ok(all));
        check("", Ok(0));
        check("scheduler", Ok(1));
        check("scheduler,scheduler", Ok(1));
        check("*,-scheduler", Ok(all - 1));
        check("-scheduler,*", Ok(all));
        check(" scheduler , simulated-nodes ", Ok(2));
        check("schedular", Err(UnknownController("schedular".into())));
        check("-nobody", Err(UnknownController("nobody".into())));
    }

    #[track_caller]
    fn check(text: &str, expected: Result<usize, UnknownController>) {
        assert_eq!(
            text.parse::<ControllerSelection>().map(|selected| selected.names.len()),
            expected
        );
    }
}
