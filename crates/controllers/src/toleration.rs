//! Whether a toleration tolerates a taint; shared by the scheduler and the node lifecycle.

use k8s_openapi::api::core::v1::{Taint, Toleration};

/// An empty key or effect matches every taint; the operator defaults to `Equal`.
pub(crate) fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let key = toleration.key.as_deref().unwrap_or_default();
    let effect = toleration.effect.as_deref().unwrap_or_default();
    let matches_value = || match toleration.operator.as_deref().unwrap_or("Equal") {
        "Exists" => true,
        _ => {
            toleration.value.as_deref().unwrap_or_default()
                == taint.value.as_deref().unwrap_or_default()
        }
    };
    (effect.is_empty() || effect == taint.effect)
        && (key.is_empty() || key == taint.key)
        && matches_value()
}
