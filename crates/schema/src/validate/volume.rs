//! Rules of PersistentVolumes and their sources.

use super::{Check, Object, Path, has, list, map, number, shown, text};
use headwater_api::quantity::Quantity;

/// The sources of a volume in Kubernetes' order: the first one is used.
const SOURCES: [&str; 22] = [
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "flocker",
    "nfs",
    "rbd",
    "quobyte",
    "cephfs",
    "iscsi",
    "cinder",
    "fc",
    "flexVolume",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "scaleIO",
    "local",
    "storageos",
    "csi",
];

pub(super) fn volume_spec(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    super::config::access_modes(check, spec, path);
    capacity(check, spec, path);
    sources_of(check, spec, path);
    if has(spec, "volumeAttributesClassName") {
        if text(spec, "volumeAttributesClassName").is_empty() {
            let why = "an empty string is disallowed";
            check.required(path.field("volumeAttributesClassName"), why);
        }
        if !has(spec, "csi") {
            let why = "has to be specified when using volumeAttributesClassName";
            check.required(path.field("csi"), why);
        }
    }
}

fn capacity(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    let none = Object::new();
    let capacity = map(spec, "capacity").unwrap_or(&none);
    let at = path.field("capacity");
    if !capacity.contains_key("storage") || capacity.len() > 1 {
        check.not_supported(at, &shown(spec, "capacity"), &["storage"]);
    }
    for (name, value) in capacity {
        let amount = value.as_str().and_then(|text| Quantity::parse(text).ok());
        if amount.is_some_and(|amount| amount.is_negative() || amount.is_zero()) {
            check.invalid(at.bracket(name), value, "must be greater than zero");
        }
    }
}

fn sources_of(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    let mut given = sources(spec);
    let first = given.next();
    if first.is_none() {
        check.required(path, "must specify a volume type");
    }
    for name in given {
        // The spelling is Kubernetes'.
        let name = if name == "cephfs" { "cephFS" } else { name };
        check.forbidden(path.field(name), "may not specify more than 1 volume type");
    }
    if first == Some("local") && !has(spec, "nodeAffinity") {
        check.required(path.field("nodeAffinity"), "Local volume requires node affinity");
    }
    let is_root = map(spec, "hostPath").is_some_and(|host| is_root(text(host, "path")));
    if is_root && text(spec, "persistentVolumeReclaimPolicy") == "Recycle" {
        let why = "may not be 'recycle' for a hostPath mount of '/'";
        check.forbidden(path.field("persistentVolumeReclaimPolicy"), why);
    }
}

/// Whether a path is equivalent to `/`.
fn is_root(path: &str) -> bool {
    path.starts_with('/') && path.split('/').all(|part| matches!(part, "" | "." | ".."))
}

/// The source fields of a volume's spec.
pub(super) fn sources(spec: &Object) -> impl Iterator<Item = &'static str> {
    SOURCES.into_iter().filter(|name| has(spec, name))
}

/// Fibre Channel: names or ids of the target, and which disk of it.
pub(super) fn fibre_channel(check: &mut Check<'_>, source: &Object, path: &Path<'_>) {
    let at = path.field("targetWWNs");
    let (names, ids) = (list(source, "targetWWNs"), list(source, "wwids"));
    match (names.is_empty(), ids.is_empty()) {
        (true, true) => check.required(at, "must specify either targetWWNs or wwids, but not both"),
        (false, false) => {
            let why = "targetWWNs and wwids can not be specified simultaneously";
            check.invalid(at, &shown(source, "targetWWNs"), why);
        }
        _ => {}
    }
    if names.is_empty() {
        return;
    }
    let at = path.field("lun");
    match number(source, "lun") {
        None => check.required(at, "lun is required if targetWWNs is specified"),
        Some(0..=255) => {}
        Some(lun) => check.invalid(at, &lun.into(), "must be between 0 and 255, inclusive"),
    }
}

pub(super) fn nfs(check: &mut Check<'_>, source: &Object, path: &Path<'_>) {
    let mount = text(source, "path");
    if !mount.starts_with('/') {
        check.invalid(path.field("path"), &mount.into(), "must be an absolute path");
    }
}
