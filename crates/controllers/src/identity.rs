//! The identities of controllers: each calls the server as a user of its own.
//!
//! The users are those of Kubernetes, so that its default roles apply. Informers are shared by all
//! controllers and read as [`MANAGER`].

/// The user that reads for all controllers, and writes their events.
pub const MANAGER: &str = "system:kube-controller-manager";

/// The namespace of the service accounts.
const NAMESPACE: &str = "kube-system";

/// The service account of each controller. One that is not listed calls as [`MANAGER`].
const ACCOUNTS: &[(&str, &str)] = &[
    ("deployment", "deployment-controller"),
    ("replicaset", "replicaset-controller"),
    ("statefulset", "statefulset-controller"),
    ("daemonset", "daemon-set-controller"),
    ("replicationcontroller", "replication-controller"),
    ("cronjob", "cronjob-controller"),
    ("endpointslicemirroring", "endpointslicemirroring-controller"),
    ("persistentvolume-binder", "persistent-volume-binder"),
    ("persistentvolume-phases", "persistent-volume-binder"),
    ("persistentvolume-protection", "pv-protection-controller"),
    ("persistentvolumeclaim-protection", "pvc-protection-controller"),
    ("volumeattributesclass-protection", "volumeattributesclass-protection-controller"),
    ("default-storageclass", "persistent-volume-binder"),
    ("horizontalpodautoscaler", "horizontal-pod-autoscaler"),
    ("namespace", "namespace-controller"),
    ("garbage", "generic-garbage-collector"),
    ("serviceaccount", "service-account-controller"),
    ("root-ca", "root-ca-cert-publisher"),
    ("endpointslice", "endpointslice-controller"),
    ("service-lb-controller", "service-controller"),
    ("job", "job-controller"),
    ("disruption", "disruption-controller"),
    ("nodelifecycle", "node-controller"),
    ("csrapproving", "certificate-controller"),
    ("csrsigning", "certificate-controller"),
    ("csrcleaner", "certificate-controller"),
    ("tokencleaner", "token-cleaner"),
    ("simulated-nodes", "simulated-nodes"),
    ("simulated-kubelets", "simulated-nodes"),
    ("simulated-leases", "simulated-nodes"),
];

/// The components in events, where they are not the names of the service accounts.
const COMPONENTS: &[(&str, &str)] = &[
    ("daemonset", "daemonset-controller"),
    ("disruption", "controllermanager"),
    ("endpointslicemirroring", "endpoint-slice-mirroring-controller"),
    ("endpointslice", "endpoint-slice-controller"),
    ("persistentvolume-binder", "persistentvolume-controller"),
    ("scheduler", "default-scheduler"),
    ("simulated-kubelets", "kubelet"),
];

/// The component that a controller reports events as, as in Kubernetes.
pub(crate) fn component(controller: &str) -> Option<&'static str> {
    let named = |(name, _): &&(&str, &str)| *name == controller;
    let found = COMPONENTS.iter().find(named).or_else(|| ACCOUNTS.iter().find(named));
    found.map(|(_, component)| *component)
}

/// A user with its groups.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ComponentIdentity {
    /// The name.
    pub user: String,
    /// The groups.
    pub groups: Vec<String>,
}

impl ComponentIdentity {
    fn user(name: &str) -> ComponentIdentity {
        ComponentIdentity { user: name.to_owned(), groups: Vec::new() }
    }

    fn account(name: &str) -> ComponentIdentity {
        ComponentIdentity {
            user: format!("system:serviceaccount:{NAMESPACE}:{name}"),
            groups: vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{NAMESPACE}"),
            ],
        }
    }
}

/// The identity of a controller; `None` for one that calls as [`MANAGER`].
pub(crate) fn of(controller: &str) -> Option<ComponentIdentity> {
    if controller == "scheduler" {
        return Some(ComponentIdentity::user("system:kube-scheduler"));
    }
    let account = ACCOUNTS.iter().find(|(name, _)| *name == controller);
    account.map(|(_, account)| ComponentIdentity::account(account))
}

/// The identities of all controllers, each once; the first is [`MANAGER`].
pub fn all() -> Vec<ComponentIdentity> {
    let mut all = vec![ComponentIdentity::user(MANAGER)];
    all.extend(of("scheduler"));
    all.extend(ACCOUNTS.iter().map(|(_, account)| ComponentIdentity::account(account)));
    let mut seen = std::collections::HashSet::new();
    all.retain(|identity| seen.insert(identity.user.clone()));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_controller_is_an_administrator() {
        assert!(
            all().iter().all(|identity| !identity.groups.contains(&"system:masters".to_owned()))
        );
        assert_eq!(all().len(), 26);
        assert_eq!(of("scheduler").unwrap().user, "system:kube-scheduler");
        assert_eq!(of("unknown"), None);
        assert_eq!(component("simulated-kubelets"), Some("kubelet"));
        assert_eq!(component("deployment"), Some("deployment-controller"));
        assert_eq!(component("unknown"), None);
    }
}
