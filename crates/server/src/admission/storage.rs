//! Storage objects: protection against deletion while in use, and the growth of claims.
//!
//! River: defaults → **storage** → validation → store. New claims, volumes and classes of volume
//! attributes get a finalizer, which a controller removes when nothing uses them any more.

use headwater_api::Status;
use headwater_api::quantity::Quantity;
use headwater_cache::Cache;
use headwater_json::{Value, json};

use super::{Admit, Attempt};
use crate::answer::status;
use crate::object::{meta, metadata, tree};

/// The protected kinds, by group and plural, and their finalizers.
const PROTECTED: &[(&str, &str, &str)] = &[
    ("", "persistentvolumeclaims", "kubernetes.io/pvc-protection"),
    ("", "persistentvolumes", "kubernetes.io/pv-protection"),
    ("storage.k8s.io", "volumeattributesclasses", "kubernetes.io/vac-protection"),
];

/// Adds the finalizer of a new storage object.
pub(super) struct Protection;

impl Admit for Protection {
    fn admit(&self, attempt: &mut Attempt<'_>) -> Result<(), Status> {
        let kind = attempt.kind;
        if attempt.old.is_some() {
            return Ok(());
        }
        let row = PROTECTED.iter().find(|row| row.1 == kind.plural && row.0 == kind.group);
        let Some((_, _, finalizer)) = row else { return Ok(()) };
        let list = metadata(attempt.new).entry("finalizers").or_insert_with(|| json!([]));
        if list.is_null() {
            *list = json!([]);
        }
        if let Some(list) = list.as_array_mut()
            && !list.iter().any(|name| name == finalizer)
        {
            list.push((*finalizer).into());
        }
        Ok(())
    }
}

/// Refuses the growth of a claim that is not bound or whose class does not allow it.
pub(super) struct ClaimResize;

impl Admit for ClaimResize {
    fn admit(&self, attempt: &mut Attempt<'_>) -> Result<(), Status> {
        let kind = attempt.kind;
        let is_claim = kind.plural == "persistentvolumeclaims" && kind.group.is_empty();
        let Some(old) = attempt.old.filter(|_| is_claim && attempt.subresource.is_empty()) else {
            return Ok(());
        };
        let size = |claim: &Value| {
            let size = claim["spec"]["resources"]["requests"]["storage"].as_str().unwrap_or("0");
            Quantity::parse(size).ok()
        };
        if size(attempt.new) <= size(old) {
            return Ok(());
        }
        let why = if old["status"]["phase"] != "Bound" {
            "Only bound persistent volume claims can be expanded"
        } else if !may_grow(attempt.cache, attempt.new, old)? {
            "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize"
        } else {
            return Ok(());
        };
        Err(status::forbidden("", &kind.plural, meta(attempt.new, "name"), why))
    }
}

fn may_grow(cache: &Cache, new: &Value, old: &Value) -> Result<bool, Status> {
    let (name, before) = (class_of(new), class_of(old));
    if name.is_empty() || name != before {
        return Ok(false);
    }
    let classes = cache.snapshot(&cache.resource("/registry/storage.k8s.io/storageclasses/"));
    let Some(class) = classes.get(name) else { return Ok(false) };
    Ok(tree(class.as_slice())?["allowVolumeExpansion"] == true)
}

/// The storage class of a claim; the older annotation takes precedence.
fn class_of(claim: &Value) -> &str {
    let older = &claim["metadata"]["annotations"]["volume.beta.kubernetes.io/storage-class"];
    let name = older.as_str().or_else(|| claim["spec"]["storageClassName"].as_str());
    name.unwrap_or_default()
}
