//! What becomes of Secrets in a recording or an export.

use clap::ValueEnum;
use headwater_json::{Map, Value};

/// Carries the values of an applied object.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// What is kept of Secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SecretPolicy {
    /// Leave Secrets out
    Omit,
    /// Keep Secrets with empty values
    Blank,
    /// Keep Secrets with their values
    Keep,
}

impl SecretPolicy {
    /// The object as it may be written to a file; `None` if it may not.
    pub(crate) fn apply(self, mut object: Value) -> Option<Value> {
        if object["kind"] != "Secret" || object["apiVersion"] != "v1" {
            return Some(object);
        }
        match self {
            SecretPolicy::Omit => None,
            SecretPolicy::Keep => Some(object),
            SecretPolicy::Blank => {
                for field in ["data", "stringData"] {
                    if let Some(values) = members(&mut object, &[field]) {
                        values.values_mut().for_each(|value| *value = "".into());
                    }
                }
                if let Some(annotations) = members(&mut object, &["metadata", "annotations"]) {
                    annotations.remove(LAST_APPLIED);
                }
                Some(object)
            }
        }
    }
}

/// The members of an object inside, if it is there.
fn members<'a>(object: &'a mut Value, path: &[&str]) -> Option<&'a mut Map> {
    let mut at = object.as_object_mut()?;
    for name in path {
        at = at.get_mut(name)?.as_object_mut()?;
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use headwater_json::json;

    use super::*;

    #[test]
    fn values_of_secrets_are_kept_only_if_asked_for() {
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "data": {"k": "dmFsdWU="},
            "metadata": {"annotations": {LAST_APPLIED: "dmFsdWU="}}});
        assert_eq!(SecretPolicy::Omit.apply(secret.clone()), None);
        let blank = SecretPolicy::Blank.apply(secret.clone()).unwrap();
        assert!(!blank.to_string().contains("dmFsdWU="), "{blank}");
        assert_eq!(blank["data"]["k"], "");
        assert_eq!(SecretPolicy::Keep.apply(secret.clone()), Some(secret));
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap"});
        assert_eq!(SecretPolicy::Omit.apply(map.clone()), Some(map));
    }
}
