//! Rules of claims, attachments, drivers and classes of storage.

use headwater_json::Value;

use super::rule::Seen;
use super::{Check, Object, Path, has, list, map, number, objects, shown, text};
use headwater_api::name;
use headwater_api::quantity::Quantity;

pub(super) fn claim_spec(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    super::config::access_modes(check, spec, path);
    let requests = map(spec, "resources").and_then(|resources| map(resources, "requests"));
    let resources = path.field("resources");
    let at = resources.bracket("storage");
    match requests.and_then(|requests| requests.get("storage")) {
        None => check.required(at, ""),
        Some(value) => {
            let amount = value.as_str().and_then(|text| Quantity::parse(text).ok());
            if amount.is_some_and(|amount| amount.is_negative() || amount.is_zero()) {
                check.invalid(at, value, "must be greater than zero");
            }
        }
    }
    for name in ["dataSource", "dataSourceRef"] {
        if let Some(source) = map(spec, name) {
            data_source(check, source, &path.field(name));
        }
    }
    let (Some(source), Some(reference)) = (map(spec, "dataSource"), map(spec, "dataSourceRef"))
    else {
        return;
    };
    let same = |name: &str| text(source, name) == text(reference, name);
    if !text(reference, "namespace").is_empty() {
        let why = "may not be specified when dataSourceRef.namespace is specified";
        check.invalid(path, &"spec.dataSource".into(), why);
    } else if !["apiGroup", "kind", "name"].into_iter().all(same) {
        check.invalid(path, &"spec.dataSource".into(), "must match dataSourceRef");
    }
}

/// The group and kind of a data source. A group that a claim has already is not checked again.
fn data_source(check: &mut Check<'_>, source: &Object, path: &Path<'_>) {
    for name in ["name", "kind"] {
        if text(source, name).is_empty() {
            check.required(path.field(name), "");
        }
    }
    let (group, kind) = (text(source, "apiGroup"), text(source, "kind"));
    if group.is_empty() && kind != "PersistentVolumeClaim" {
        let why = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
        check.invalid(path, &kind.into(), why);
    }
    let old = check.old.and_then(|old| map(old, "spec"));
    let had_group = |name: &str| {
        old.and_then(|old| map(old, name)).is_some_and(|source| has(source, "apiGroup"))
    };
    if !group.is_empty() && !had_group("dataSource") && !had_group("dataSourceRef") {
        check.problems(path.field("apiGroup"), group, name::subdomain(group));
    }
}

/// The maximum number of parameters of a class, and of their bytes.
const PARAMETERS_MAX: usize = 512;
const PARAMETER_BYTES_MAX: usize = 256 * 1024;

/// The parameters of a storage class.
pub(super) fn parameters(check: &mut Check<'_>, class: &Object, path: &Path<'_>) {
    let Some(parameters) = map(class, "parameters") else { return };
    let at = path.field("parameters");
    if parameters.len() > PARAMETERS_MAX {
        return check.too_long(at, PARAMETERS_MAX);
    }
    if parameters.contains_key("") {
        check.invalid(at, &"".into(), "field can not be empty.");
    }
    let length = |value: &Value| value.as_str().map_or(0, str::len);
    let bytes: usize = parameters.iter().map(|(key, value)| key.len() + length(value)).sum();
    if bytes > PARAMETER_BYTES_MAX {
        check.too_long(at, PARAMETER_BYTES_MAX);
    }
}

/// The volume of an attachment: exactly one source.
pub(super) fn volume_source(check: &mut Check<'_>, source: &Object, path: &Path<'_>) {
    let why = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
    match (has(source, "inlineVolumeSpec"), has(source, "persistentVolumeName")) {
        (false, false) => check.required(path, why),
        (true, true) => check.forbidden(path, why),
        (false, true) => {
            let name = text(source, "persistentVolumeName");
            let at = path.field("persistentVolumeName");
            if name.is_empty() {
                check.required(at, "must specify non empty persistentVolumeName");
            }
            check.problems(at, name, name::subdomain(name));
        }
        (true, false) => {}
    }
}

/// The maximum size of the metadata of an attachment.
const ATTACHMENT_BYTES_MAX: usize = 256 * 1024;

pub(super) fn volume_attachment(check: &mut Check<'_>, status: &Object, path: &Path<'_>) {
    let metadata = map(status, "attachmentMetadata").into_iter().flatten();
    let length = |value: &Value| value.as_str().map_or(0, str::len);
    let bytes: usize = metadata.map(|(key, value)| key.len() + length(value)).sum();
    if bytes > ATTACHMENT_BYTES_MAX {
        check.too_long(path.field("attachmentMetadata"), ATTACHMENT_BYTES_MAX);
    }
}

/// The drivers of a node: each once.
pub(super) fn csi_node(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    let at = path.field("drivers");
    let mut names = Seen::default();
    for (index, driver) in objects(spec, "drivers") {
        let name = text(driver, "name");
        if !names.insert(name) {
            check.duplicate(at.index(index).field("name"), &name.into());
        }
    }
}

const NODE_ID_BYTES_MAX: usize = 256;

/// A driver of a node. The errors of its topology keys are at the driver, as in Kubernetes.
pub(super) fn csi_node_driver(check: &mut Check<'_>, driver: &Object, path: &Path<'_>) {
    let id = text(driver, "nodeID");
    if id.len() > NODE_ID_BYTES_MAX {
        let why = format!("must be {NODE_ID_BYTES_MAX} characters or less");
        check.invalid(path.field("nodeID"), &id.into(), &why);
    }
    let mut keys = Seen::default();
    for key in list(driver, "topologyKeys").iter().filter_map(Value::as_str) {
        if key.is_empty() {
            check.required(path, "");
        }
        if !keys.insert(key) {
            check.duplicate(path, &key.into());
        }
        check.problems(path, key, name::qualified(key));
    }
}

/// The tokens that a driver asks for.
pub(super) fn token_requests(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    let at = path.field("tokenRequests");
    let mut audiences = Seen::default();
    for (index, request) in objects(spec, "tokenRequests") {
        let request_path = at.index(index);
        let audience = text(request, "audience");
        if !audiences.insert(audience) {
            check.duplicate(request_path.field("audience"), &audience.into());
            continue;
        }
        let expires = request_path.field("expirationSeconds");
        match number(request, "expirationSeconds") {
            Some(seconds) if seconds < 600 => {
                let why = "may not specify a duration less than 10 minutes";
                check.invalid(expires, &seconds.into(), why);
            }
            Some(seconds) if seconds > 1 << 32 => {
                let why = "may not specify a duration larger than 2^32 seconds";
                check.invalid(expires, &seconds.into(), why);
            }
            _ => {}
        }
    }
    if has(spec, "serviceAccountTokenInSecrets") && list(spec, "tokenRequests").is_empty() {
        let why = "serviceAccountTokenInSecrets is set but no tokenRequests are specified";
        let value = shown(spec, "serviceAccountTokenInSecrets");
        check.invalid(path.field("serviceAccountTokenInSecrets"), &value, why);
    }
}

/// The ways in which a driver's volumes live.
pub(super) fn csi_driver(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    const MODES: [&str; 2] = ["Persistent", "Ephemeral"];
    let at = path.field("volumeLifecycleModes");
    for mode in list(spec, "volumeLifecycleModes") {
        if mode.as_str().is_some_and(|mode| !MODES.contains(&mode)) {
            check.not_supported(at, mode, &MODES);
        }
    }
}
