//! The default class of volume claims and Ingresses that name none (S10.23).
//!
//! River: defaults → **classes** → webhooks. Of several default classes the newest wins, then the first
//! by name.

use headwater_api::Status;
use headwater_cache::Cache;
use headwater_json::Value;

use super::{Admit, Attempt};
use crate::object::{meta, tree};

/// A kind with a class: its field, its legacy annotation, the kind of the classes, and the annotations
/// that mark the default.
struct Classed {
    group: &'static str,
    plural: &'static str,
    field: &'static str,
    older: &'static str,
    classes: &'static str,
    marks: &'static [&'static str],
}

const CLASSED: &[Classed] = &[
    Classed {
        group: "",
        plural: "persistentvolumeclaims",
        field: "storageClassName",
        older: "volume.beta.kubernetes.io/storage-class",
        classes: "/registry/storage.k8s.io/storageclasses/",
        marks: &[
            "storageclass.kubernetes.io/is-default-class",
            "storageclass.beta.kubernetes.io/is-default-class",
        ],
    },
    Classed {
        group: "networking.k8s.io",
        plural: "ingresses",
        field: "ingressClassName",
        older: "kubernetes.io/ingress.class",
        classes: "/registry/networking.k8s.io/ingressclasses/",
        marks: &["ingressclass.kubernetes.io/is-default-class"],
    },
];

/// Sets the default class of a new object that names none.
pub(super) struct Classes;

impl Admit for Classes {
    fn admit(&self, attempt: &mut Attempt<'_>) -> Result<(), Status> {
        let kind = attempt.kind;
        let is_it = |row: &&Classed| row.plural == kind.plural && row.group == kind.group;
        let Some(row) = CLASSED.iter().find(is_it) else { return Ok(()) };
        let says_older = attempt.new["metadata"]["annotations"].get(row.older).is_some();
        if attempt.old.is_some() || !attempt.new["spec"][row.field].is_null() || says_older {
            return Ok(());
        }
        if let Some(name) = default_class(attempt.cache, row)? {
            attempt.new["spec"][row.field] = name.into();
        }
        Ok(())
    }
}

fn default_class(cache: &Cache, row: &Classed) -> Result<Option<String>, Status> {
    let classes = cache.snapshot(&cache.resource(row.classes));
    let mut newest: Option<Value> = None;
    for class in classes.iter("", None) {
        let class = tree(class.as_slice())?;
        let annotations = &class["metadata"]["annotations"];
        let is_default = row.marks.iter().any(|mark| annotations[*mark] == "true");
        let time = |class: &Value| meta(class, "creationTimestamp").to_owned();
        // A snapshot is ordered by name.
        if is_default && newest.as_ref().is_none_or(|newest| time(&class) > time(newest)) {
            newest = Some(class);
        }
    }
    Ok(newest.map(|class| meta(&class, "name").to_owned()))
}
