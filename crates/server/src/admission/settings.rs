//! What admission does by configuration: switched-off steps, service accounts, ranges of Services.

use std::collections::BTreeSet;

use super::service_ranges::ServiceRanges;

/// The steps that can be switched off, by the name of Kubernetes' plugin, and their names in the table
/// of steps.
const PLUGINS: &[(&str, &[&str])] = &[
    ("CertificateApproval", &["CertificateApprovalAndSigning"]),
    ("CertificateSigning", &["CertificateApprovalAndSigning"]),
    ("CertificateSubjectRestriction", &["CertificateSubjectRestriction"]),
    ("LimitRanger", &["LimitRangerDefaults", "LimitRanger"]),
    ("NodeRestriction", &["NodeRestriction"]),
    ("OwnerReferencesPermissionEnforcement", &["OwnerReferencesPermissionEnforcement"]),
    ("PersistentVolumeClaimResize", &["PersistentVolumeClaimResize"]),
    ("PodSecurity", &["PodSecurity"]),
    ("PodTopologyLabels", &["PodTopologyLabels"]),
    ("Priority", &["Priority"]),
    ("ResourceQuota", &["ResourceQuota"]),
    ("RuntimeClass", &["RuntimeClass"]),
    ("ServiceAccount", &["ServiceAccount"]),
    ("StorageObjectInUseProtection", &["StorageObjectInUseProtection"]),
    ("TaintNodesByCondition", &["TaintNodesByCondition"]),
];

/// The configuration of admission.
#[derive(Clone, Debug, Default)]
pub struct AdmissionSettings {
    /// The steps that are switched off, by their names in the table of steps.
    disabled: BTreeSet<&'static str>,
    /// Whether a pod of a service account that does not exist is refused.
    pub requires_accounts: bool,
    /// The ranges of cluster IPs and node ports.
    pub services: ServiceRanges,
}

/// No step has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown admission plugin {0:?}; known are {known}", known = names())]
pub struct UnknownPlugin(String);

fn names() -> String {
    PLUGINS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

impl AdmissionSettings {
    /// All steps are on; whether a pod of an absent account is refused, and the ranges of Services.
    pub fn new(requires_accounts: bool, services: ServiceRanges) -> AdmissionSettings {
        AdmissionSettings { disabled: BTreeSet::new(), requires_accounts, services }
    }

    /// Switches steps on and off, by the names of Kubernetes' plugins. A step that is in both lists is
    /// on, as in Kubernetes. All steps are on by default; but only if `ServiceAccount` is switched on, or
    /// controllers that create accounts run, is a pod of an absent service account refused.
    ///
    /// # Errors
    /// A plugin is unknown.
    pub fn switch(&mut self, on: &[String], off: &[String]) -> Result<(), UnknownPlugin> {
        let steps = |name: &String| -> Result<&'static [&'static str], UnknownPlugin> {
            let row = PLUGINS.iter().find(|(known, _)| known == name);
            row.map(|(_, steps)| *steps).ok_or_else(|| UnknownPlugin(name.clone()))
        };
        for name in off {
            self.disabled.extend(steps(name)?);
        }
        for name in on {
            for step in steps(name)? {
                self.disabled.remove(step);
            }
            self.requires_accounts |= name == "ServiceAccount";
        }
        Ok(())
    }

    /// Whether a step is switched off.
    pub(super) fn disables(&self, step: &str) -> bool {
        !self.disabled.is_empty() && self.disabled.contains(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_are_switched_by_name() {
        let mut settings = AdmissionSettings::default();
        let names =
            |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let off = names(&["PodSecurity", "LimitRanger"]);
        settings.switch(&names(&["LimitRanger"]), &off).unwrap();
        assert!(settings.disables("PodSecurity") && !settings.disables("LimitRangerDefaults"));
        assert!(!settings.requires_accounts);
        settings.switch(&names(&["ServiceAccount"]), &[]).unwrap();
        assert!(settings.requires_accounts);
        let wrong = settings.switch(&[], &names(&["PodSecurty"]));
        assert_eq!(wrong, Err(UnknownPlugin("PodSecurty".into())));
    }
}
