//! What a pod reads from other objects: claims, ConfigMaps and Secrets.
//!
//! Only the names are kept, because every pod of a cluster is cached.

use serde::{Deserialize, Deserializer};

/// An object in the pod's namespace that must exist before the pod starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodReference {
    /// A PersistentVolumeClaim.
    Claim(String),
    /// A ConfigMap, or one of its keys.
    ConfigMap(SourceReference),
    /// A Secret, or one of its keys.
    Secret(SourceReference),
}

/// A ConfigMap or Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceReference {
    /// The name.
    pub name: String,
    /// The key that must exist.
    pub key: Option<String>,
    /// The volume that mounts it; `None` for an environment variable.
    pub volume: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Volume {
    name: String,
    persistent_volume_claim: Option<ClaimSource>,
    config_map: Option<Source>,
    secret: Option<SecretSource>,
    projected: Option<Projected>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClaimSource {
    claim_name: String,
}

#[derive(Deserialize)]
struct Source {
    name: Option<String>,
    key: Option<String>,
    optional: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SecretSource {
    secret_name: Option<String>,
    optional: Option<bool>,
}

#[derive(Deserialize)]
struct Projected {
    sources: Option<Vec<Projection>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Projection {
    config_map: Option<Source>,
    secret: Option<Source>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Variable {
    value_from: Option<VariableSource>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct VariableSource {
    config_map_key_ref: Option<Source>,
    secret_key_ref: Option<Source>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct VariablesSource {
    config_map_ref: Option<Source>,
    secret_ref: Option<Source>,
}

/// The volume that admission adds to every pod; its sources belong to the cluster.
const SERVICE_ACCOUNT_VOLUME: &str = "kube-api-access-";

/// Deserializes `volumes` as the references in them.
pub(super) fn volumes<'de, D>(deserializer: D) -> Result<Vec<PodReference>, D::Error>
where
    D: Deserializer<'de>,
{
    let volumes = Option::<Vec<Volume>>::deserialize(deserializer)?.unwrap_or_default();
    let mut references = Vec::new();
    for volume in volumes.into_iter().filter(|it| !it.name.starts_with(SERVICE_ACCOUNT_VOLUME)) {
        let in_volume = |source: Source| source.reference(Some(&volume.name));
        let secret = volume.secret.map(|secret| Source {
            name: secret.secret_name,
            key: None,
            optional: secret.optional,
        });
        let claim = volume.persistent_volume_claim.map(|claim| claim.claim_name);
        references.extend(claim.map(PodReference::Claim));
        let map = volume.config_map.and_then(in_volume);
        references.extend(map.map(PodReference::ConfigMap));
        references.extend(secret.and_then(in_volume).map(PodReference::Secret));
        for source in volume.projected.and_then(|it| it.sources).into_iter().flatten() {
            let map = source.config_map.and_then(in_volume);
            references.extend(map.map(PodReference::ConfigMap));
            let secret = source.secret.and_then(in_volume);
            references.extend(secret.map(PodReference::Secret));
        }
    }
    references.shrink_to_fit();
    Ok(references)
}

/// Deserializes `env` as the references in it.
pub(super) fn variables<'de, D>(deserializer: D) -> Result<Vec<PodReference>, D::Error>
where
    D: Deserializer<'de>,
{
    let all = Option::<Vec<Variable>>::deserialize(deserializer)?.unwrap_or_default();
    let mut references = Vec::new();
    for source in all.into_iter().filter_map(|variable| variable.value_from) {
        let map = source.config_map_key_ref.and_then(|it| it.reference(None));
        references.extend(map.map(PodReference::ConfigMap));
        let secret = source.secret_key_ref.and_then(|it| it.reference(None));
        references.extend(secret.map(PodReference::Secret));
    }
    references.shrink_to_fit();
    Ok(references)
}

/// Deserializes `envFrom` as the references in it.
pub(super) fn variable_sources<'de, D>(deserializer: D) -> Result<Vec<PodReference>, D::Error>
where
    D: Deserializer<'de>,
{
    let all = Option::<Vec<VariablesSource>>::deserialize(deserializer)?.unwrap_or_default();
    let mut references = Vec::new();
    for source in all {
        let map = source.config_map_ref.and_then(|it| it.reference(None));
        references.extend(map.map(PodReference::ConfigMap));
        let secret = source.secret_ref.and_then(|it| it.reference(None));
        references.extend(secret.map(PodReference::Secret));
    }
    references.shrink_to_fit();
    Ok(references)
}

impl Source {
    /// The reference; `None` if it is optional or has no name.
    fn reference(self, volume: Option<&str>) -> Option<SourceReference> {
        let is_required = self.optional != Some(true);
        let name = self.name.filter(|name| is_required && !name.is_empty())?;
        Some(SourceReference { name, key: self.key, volume: volume.map(str::to_owned) })
    }
}
