//! The hash of a pod template, for the names of ReplicaSets and ControllerRevisions.

use k8s_openapi::api::core::v1::PodTemplateSpec;

/// The hash of a template. `collisions` gives the same template another hash.
pub(crate) fn hash(template: &PodTemplateSpec, collisions: i32) -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789"; // no vowels, so that no words appear
    let mut text = serde_json::to_vec(template).expect("API types are JSON");
    if collisions > 0 {
        text.extend(collisions.to_le_bytes());
    }
    let hash = text
        .iter()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    let digits = hash.to_string();
    digits.bytes().map(|digit| char::from(ALPHABET[usize::from(digit) % ALPHABET.len()])).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn template(image: &str) -> PodTemplateSpec {
        let containers = json!([{"name": "c", "image": image}]);
        serde_json::from_value(json!({"spec": {"containers": containers}})).unwrap()
    }

    #[test]
    fn equal_templates_have_equal_hashes_and_others_differ() {
        assert_eq!(hash(&template("v1"), 0), hash(&template("v1"), 0));
        assert_ne!(hash(&template("v1"), 0), hash(&template("v2"), 0));
        assert_ne!(hash(&template("v1"), 0), hash(&template("v1"), 1), "collisions count");
        let name = hash(&template("v1"), 0);
        assert!(
            (1..=10).contains(&name.len()) && name.bytes().all(|it| it.is_ascii_alphanumeric())
        );
    }
}
