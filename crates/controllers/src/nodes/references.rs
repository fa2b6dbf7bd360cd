//! Whether everything exists that a pod reads: claims, ConfigMaps and Secrets.
//!
//! A pod waits for claims without limit. On a real cluster, another pod often creates the ConfigMap
//! or Secret (a hook of a chart, an operator), which no simulated pod does: after a time, the pod
//! starts without it.
//!
//! River: a pod that is about to start → **references** → reads of single objects. Nothing is
//! cached: only pods with references cause reads, as with a kubelet.

use std::time::Duration;

use headwater_client::controller::Context;
use headwater_client::{Cached, Error, Key};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret};

use crate::pod::{Pod, PodReference, SourceReference};

use super::pod_lifecycle::waits_for;
use super::pod_status::waiting_patch;
use super::rules::MISSING_AFTER;

/// How long until a missing object is looked up again.
pub(crate) const RETRY: Duration = Duration::from_secs(2);

/// The reason of a container whose environment cannot be made.
const CONFIG_ERROR: &str = "CreateContainerConfigError";

/// What keeps a pod from starting.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MissingReference {
    /// The volume that cannot be mounted; `None` for an environment variable.
    volume: Option<String>,
    /// Whether it is a claim.
    is_claim: bool,
    /// Such as `configmap "settings" not found`.
    what: String,
}

/// The first object that a pod needs and that does not exist; claims come first.
pub(crate) async fn first_missing(
    pod: &Pod,
    cx: &Context,
) -> Result<Option<MissingReference>, Error> {
    let namespace = pod.namespace().unwrap_or_default();
    let is_claim = |reference: &&PodReference| matches!(reference, PodReference::Claim(_));
    let (claims, contents): (Vec<_>, Vec<_>) = pod.references().partition(is_claim);
    for reference in claims.into_iter().chain(contents) {
        let missing = match reference {
            PodReference::Claim(name) => {
                let key = Key::namespaced(namespace, name);
                let claim = cx.of::<PersistentVolumeClaim>().get(&key).await?;
                let what = claim_problem(name, claim.as_ref());
                let volume = Some(name.clone());
                what.map(|what| MissingReference { volume, is_claim: true, what })
            }
            PodReference::ConfigMap(source) => {
                let key = Key::namespaced(namespace, &source.name);
                let map = cx.of::<ConfigMap>().get(&key).await?;
                let has = |map: &ConfigMap, key: &str| {
                    map.data.as_ref().is_some_and(|data| data.contains_key(key))
                        || map.binary_data.as_ref().is_some_and(|data| data.contains_key(key))
                };
                source_problem("configmap", "ConfigMap", source, &key, map.as_ref(), has)
            }
            PodReference::Secret(source) => {
                let key = Key::namespaced(namespace, &source.name);
                let secret = cx.of::<Secret>().get(&key).await?;
                let has = |secret: &Secret, key: &str| {
                    secret.data.as_ref().is_some_and(|data| data.contains_key(key))
                };
                source_problem("secret", "Secret", source, &key, secret.as_ref(), has)
            }
        };
        if missing.is_some() {
            return Ok(missing);
        }
    }
    Ok(None)
}

fn claim_problem(name: &str, claim: Option<&PersistentVolumeClaim>) -> Option<String> {
    let Some(claim) = claim else {
        return Some(format!("persistentvolumeclaim {name:?} not found"));
    };
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    (phase != Some("Bound")).then(|| format!("persistentvolumeclaim {name:?} is not bound"))
}

fn source_problem<K>(
    resource: &str,
    kind: &str,
    source: &SourceReference,
    key: &Key,
    found: Option<&K>,
    has: impl Fn(&K, &str) -> bool,
) -> Option<MissingReference> {
    let what = match (found, &source.key) {
        (None, _) => format!("{resource} {:?} not found", source.name),
        (Some(found), Some(wanted)) if !has(found, wanted) => {
            format!("couldn't find key {wanted} in {kind} {key}")
        }
        _ => return None,
    };
    Some(MissingReference { volume: source.volume.clone(), is_claim: false, what })
}

impl MissingReference {
    /// Whether it is a claim, for which a pod waits without limit.
    pub(crate) fn is_claim(&self) -> bool {
        self.is_claim
    }

    /// Reports that the pod starts without it.
    pub(crate) fn report_ignored(&self, pod: &Pod, cx: &Context) {
        let what = &self.what;
        let message = format_args!(
            "{what}: the simulated pod starts without it; with the annotation {MISSING_AFTER}: \
             never it waits"
        );
        cx.warning(pod, "MissingContent", message);
    }

    /// Reports it as a kubelet does.
    pub(crate) async fn report(&self, pod: &Pod, cx: &Context) -> Result<(), Error> {
        let Self { volume, what, .. } = self;
        if let Some(volume) = volume {
            let message = format_args!("MountVolume.SetUp failed for volume {volume:?} : {what}");
            cx.warning(pod, "FailedMount", message);
            return Ok(());
        }
        cx.warning(pod, "Failed", format_args!("Error: {what}"));
        if waits_for(pod, CONFIG_ERROR) {
            return Ok(());
        }
        let patch = waiting_patch(pod, CONFIG_ERROR, what);
        match cx.of::<Pod>().merge_status(&pod.key(), &patch).await {
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            written => written.map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_claim_must_be_bound() {
        let claim = |phase: &str| {
            let status = json!({"status": {"phase": phase}});
            serde_json::from_value::<PersistentVolumeClaim>(status).unwrap()
        };
        assert!(claim_problem("c", None).unwrap().ends_with("not found"));
        assert!(claim_problem("c", Some(&claim("Pending"))).unwrap().ends_with("is not bound"));
        assert_eq!(claim_problem("c", Some(&claim("Bound"))), None);
    }

    #[test]
    fn a_source_and_its_key_must_exist() {
        let source = |key: Option<&str>| SourceReference {
            name: "conf".to_owned(),
            key: key.map(str::to_owned),
            volume: None,
        };
        let place = Key::namespaced("shop", "conf");
        let problem = |key: Option<&str>, found: Option<&&str>| {
            let has = |found: &&str, key: &str| *found == key;
            source_problem("configmap", "ConfigMap", &source(key), &place, found, has)
                .map(|missing| missing.what)
        };
        assert_eq!(problem(None, None).unwrap(), "configmap \"conf\" not found");
        assert_eq!(problem(None, Some(&"a")), None);
        assert_eq!(problem(Some("a"), Some(&"a")), None);
        let missing = problem(Some("b"), Some(&"a")).unwrap();
        assert_eq!(missing, "couldn't find key b in ConfigMap shop/conf");
    }
}
