//! Rules of devices: claims, classes and slices of dynamic resource allocation.

use std::sync::LazyLock;

use headwater_cel::{DeclField, DeclType, Environment, Program, TEXT_MAX};
use headwater_json::Value;

use super::rule::{Seen, driver};
use super::{Check, Object, Path, has, is_true, list, map, number, objects, shown, text};
use headwater_api::name;

/// The maximum sizes of lists and values.
const REQUESTS_MAX: usize = 32;
const SUB_REQUESTS_MAX: usize = 8;
const SELECTORS_MAX: usize = 32;
const DEVICES_MAX: usize = 128;
const DEVICES_WITH_MORE_MAX: usize = 64;
const ATTRIBUTES_MAX: usize = 32;
const ATTRIBUTE_BYTES_MAX: usize = 64;
const POOL_BYTES_MAX: usize = 253;
const IDENTIFIER_BYTES_MAX: usize = 32;
const EXPRESSION_BYTES_MAX: usize = 10 * 1024;
const EXPRESSION_COST_MAX: u64 = 1_000_000;

/// Checks the number of items of a list.
fn at_most(check: &mut Check<'_>, of: &Object, name: &str, max: usize, path: &Path<'_>) -> bool {
    let count = list(of, name).len();
    if count > max {
        check.too_many(path.field(name), count, max);
    }
    count <= max
}

/// Checks that the objects of a list have different values of a member.
fn unique(check: &mut Check<'_>, of: &Object, name: &str, key: &str, path: &Path<'_>) {
    let at = path.field(name);
    let mut seen = Seen::default();
    for (index, item) in objects(of, name) {
        let key = text(item, key);
        if !seen.insert(key) {
            check.duplicate(at.index(index), &key.into());
        }
    }
}

/// The requests of a claim.
pub(super) fn claim(check: &mut Check<'_>, claim: &Object, path: &Path<'_>) {
    let mut is_short = true;
    for name in ["requests", "constraints", "config"] {
        is_short &= at_most(check, claim, name, REQUESTS_MAX, path);
    }
    unique(check, claim, "requests", "name", path);
    if !is_short {
        return;
    }
    for name in ["constraints", "config"] {
        let at = path.field(name);
        for (index, user) in objects(claim, name) {
            references(check, claim, user, &at.index(index).field("requests"));
        }
    }
}

/// The names of requests that a constraint or a configuration is for.
fn references(check: &mut Check<'_>, claim: &Object, user: &Object, path: &Path<'_>) {
    let names = list(user, "requests");
    if names.len() > REQUESTS_MAX {
        return check.too_many(path, names.len(), REQUESTS_MAX);
    }
    let why = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";
    let mut seen = Seen::default();
    for (index, name) in names.iter().enumerate() {
        let name = name.as_str().unwrap_or_default();
        let at = path.index(index);
        if !seen.insert(name) {
            check.duplicate(at, &name.into());
        }
        let parts: Vec<&str> = name.split('/').collect();
        if parts.len() <= 2 {
            for part in &parts {
                check.problems(at, part, name::label(part));
            }
        }
        if parts.len() > 2 || !is_request(claim, &parts) {
            check.invalid(at, &name.into(), why);
        }
    }
}

/// Whether a claim has a request, or a request with a sub-request.
fn is_request(claim: &Object, parts: &[&str]) -> bool {
    objects(claim, "requests").any(|(_, request)| {
        let has_sub =
            |sub: &str| objects(request, "firstAvailable").any(|(_, one)| text(one, "name") == sub);
        Some(&text(request, "name")) == parts.first() && parts.get(1).is_none_or(|sub| has_sub(sub))
    })
}

/// A request: exactly one of its two forms.
pub(super) fn request(check: &mut Check<'_>, request: &Object, path: &Path<'_>) {
    let exact = has(request, "exactly");
    match (exact, !list(request, "firstAvailable").is_empty()) {
        (false, false) => {
            check.required(path, "exactly one of `exactly` or `firstAvailable` is required");
        }
        (true, true) => {
            let why = "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set";
            check.invalid(path, &Value::Null, why);
        }
        (false, true) => {
            if at_most(check, request, "firstAvailable", SUB_REQUESTS_MAX, path) {
                unique(check, request, "firstAvailable", "name", path);
            }
        }
        (true, false) => {}
    }
}

/// How many devices a request is for.
pub(super) fn request_mode(check: &mut Check<'_>, request: &Object, path: &Path<'_>) {
    at_most(check, request, "selectors", SELECTORS_MAX, path);
    let count = number(request, "count").unwrap_or(0);
    match text(request, "allocationMode") {
        "All" if count != 0 => {
            let why = "must not be specified when allocationMode is 'All'";
            check.invalid(path.field("count"), &count.into(), why);
        }
        "ExactCount" if count <= 0 => {
            check.invalid(path.field("count"), &count.into(), "must be greater than zero");
        }
        "All" | "ExactCount" => {}
        other => {
            let at = path.field("allocationMode");
            check.not_supported(at, &other.into(), &["All", "ExactCount"]);
        }
    }
}

/// A constraint: the attribute that devices share or that distinguishes them.
pub(super) fn constraint(check: &mut Check<'_>, constraint: &Object, path: &Path<'_>) {
    let names = ["matchAttribute", "distinctAttribute"];
    let Some(name) = names.into_iter().find(|name| has(constraint, name)) else {
        let why = "exactly one of \"matchAttribute\" or \"distinctAttribute\" is required, but multiple fields are set";
        return check.required(path, why);
    };
    let attribute = text(constraint, name);
    let at = path.field(name);
    qualified(check, attribute, &at);
    if !attribute.contains('/') {
        let why = "a fully qualified name must be a domain and a name separated by a slash";
        check.invalid(at, &attribute.into(), why);
    }
}

/// A configuration has opaque parameters.
pub(super) fn claim_configuration(check: &mut Check<'_>, config: &Object, path: &Path<'_>) {
    let at = path.field("opaque");
    let Some(opaque) = map(config, "opaque") else { return check.required(at, "") };
    driver(check, text(opaque, "driver"), &at.field("driver"));
    let parameters = at.field("parameters");
    match opaque.get("parameters") {
        None | Some(Value::Null) => check.required(parameters, ""),
        Some(Value::Object(_)) => {}
        Some(other) => {
            check.invalid(parameters, other, "parameters must be a valid JSON object");
        }
    }
}

/// The lists of a class.
pub(super) fn device_class(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    at_most(check, spec, "selectors", SELECTORS_MAX, path);
    at_most(check, spec, "config", REQUESTS_MAX, path);
    if let Some(name) = spec.get("extendedResourceName").and_then(Value::as_str) {
        let problems = name::qualified(name);
        let at = path.field("extendedResourceName");
        if problems.is_empty() && !name.contains('/') {
            check.invalid(at, &name.into(), "must be a valid extended resource name");
        }
        check.problems(at, name, problems);
    }
}

/// What a selector sees: a device with its attributes.
static DEVICE: LazyLock<DeclType> = LazyLock::new(|| {
    DeclType::object(vec![
        DeclField::new("driver", "driver", DeclType::Text(TEXT_MAX)),
        DeclField::new("attributes", "attributes", DeclType::Dyn),
        DeclField::new("capacity", "capacity", DeclType::Dyn),
        DeclField::new("allowMultipleAllocations", "allowMultipleAllocations", DeclType::Bool),
    ])
});

/// A selector: an expression that compiles, to a truth value, at a bounded cost.
pub(super) fn selector(check: &mut Check<'_>, selector: &Object, path: &Path<'_>) {
    let at = path.field("cel");
    let Some(cel) = map(selector, "cel") else { return check.required(at, "") };
    let expression = text(cel, "expression");
    let at = at.field("expression");
    if expression.len() > EXPRESSION_BYTES_MAX {
        return check.too_long(at, EXPRESSION_BYTES_MAX);
    }
    let known = Environment::default().with("device", &DEVICE);
    match Program::compile(expression, &known) {
        Err(why) => {
            check.invalid(at, &expression.into(), &format!("compilation failed: {why}"));
        }
        Ok(program) if !matches!(program.result(), "bool" | "dyn") => {
            let why = "must evaluate to bool or the unknown type, not another one";
            check.invalid(at, &expression.into(), why);
        }
        Ok(program) if program.cost_max(&known) > EXPRESSION_COST_MAX => {
            check.forbidden(at, "too complex, exceeds cost limit");
        }
        Ok(_) => {}
    }
}

/// A slice: its driver, the nodes that reach its devices, and the devices.
pub(super) fn slice(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    driver(check, text(spec, "driver"), &path.field("driver"));
    let mut nodes = Vec::new();
    if let Some(name) = spec.get("nodeName").and_then(Value::as_str) {
        let at = path.field("nodeName");
        if name.is_empty() {
            check.invalid(at, &"".into(), "must be either unset or set to a non-empty string");
        } else {
            nodes.push("`nodeName`");
            check.problems(at, name, name::subdomain(name));
        }
    }
    if let Some(selector) = map(spec, "nodeSelector") {
        nodes.push("`nodeSelector`");
        if list(selector, "nodeSelectorTerms").len() != 1 {
            let selector_path = path.field("nodeSelector");
            let value = shown(selector, "nodeSelectorTerms");
            let why = "must have exactly one node selector term";
            check.invalid(selector_path.field("nodeSelectorTerms"), &value, why);
        }
    }
    for (name, shown_name) in
        [("allNodes", "`allNodes`"), ("perDeviceNodeSelection", "`perDeviceNodeSelection`")]
    {
        match spec.get(name).and_then(Value::as_bool) {
            Some(true) => nodes.push(shown_name),
            Some(false) => {
                let why = "must be either unset or set to true";
                check.invalid(path.field(name), &false.into(), why);
            }
            None => {}
        }
    }
    let why = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
    match nodes.len() {
        0 => check.required(path, why),
        1 => {}
        _ => {
            let value = format!("{{{}}}", nodes.join(", "));
            check.invalid(path, &value.into(), &format!("{why}, but multiple fields are set"));
        }
    }
    if !list(spec, "sharedCounters").is_empty() && !list(spec, "devices").is_empty() {
        let why = "only one of `sharedCounters` or `devices` is allowed";
        check.invalid(path, &"".into(), why);
    }
    slice_devices(check, spec, path);
}

fn slice_devices(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    let is_advanced = objects(spec, "devices").any(|(_, device)| {
        !list(device, "taints").is_empty() || !list(device, "consumesCounters").is_empty()
    });
    let max = if is_advanced { DEVICES_WITH_MORE_MAX } else { DEVICES_MAX };
    if at_most(check, spec, "devices", max, path) {
        unique(check, spec, "devices", "name", path);
    }
    let is_chosen = is_true(spec, "perDeviceNodeSelection");
    let at = path.field("devices");
    for (index, device) in objects(spec, "devices") {
        device_nodes(check, device, is_chosen, &at.index(index));
    }
}

/// The nodes that reach a device, where its slice leaves that to it.
fn device_nodes(check: &mut Check<'_>, device: &Object, is_chosen: bool, path: &Path<'_>) {
    let given = ["nodeName", "nodeSelector", "allNodes"];
    let count = given.into_iter().filter(|name| has(device, name)).count();
    if !is_chosen {
        if count > 0 {
            let why = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
            check.invalid(path, &Value::Null, why);
        }
        return;
    }
    let why = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
    match count {
        0 => check.required(path, why),
        1 => {}
        _ => check.invalid(path, &Value::Null, why),
    }
    if device.get("allNodes") == Some(&Value::Bool(false)) {
        let why = "must be either unset or set to true";
        check.invalid(path.field("allNodes"), &false.into(), why);
    }
}

/// The pool of a slice.
pub(super) fn pool(check: &mut Check<'_>, pool: &Object, path: &Path<'_>) {
    let name = text(pool, "name");
    let at = path.field("name");
    if name.is_empty() {
        check.required(at, "");
    } else {
        if name.len() > POOL_BYTES_MAX {
            check.too_long(at, POOL_BYTES_MAX);
        }
        for part in name.split('/') {
            check.problems(at, part, name::subdomain(part));
        }
    }
    if number(pool, "resourceSliceCount").unwrap_or(0) <= 0 {
        let value = shown(pool, "resourceSliceCount");
        check.invalid(path.field("resourceSliceCount"), &value, "must be greater than zero");
    }
    if number(pool, "generation").is_some_and(|generation| generation < 0) {
        let why = "must be greater than or equal to zero";
        check.invalid(path.field("generation"), &shown(pool, "generation"), why);
    }
}

/// The attributes and the capacity of a device.
pub(super) fn device(check: &mut Check<'_>, device: &Object, path: &Path<'_>) {
    let count = |name: &str| map(device, name).map_or(0, Object::len);
    let total = count("attributes") + count("capacity");
    if total > ATTRIBUTES_MAX {
        let why = format!(
            "the total number of attributes and capacities must not exceed {ATTRIBUTES_MAX}"
        );
        check.invalid(path, &total.into(), &why);
    }
    qualified_names(check, device, path);
}

/// The names of attributes and capacities. The errors are at the map, as in Kubernetes.
fn qualified_names(check: &mut Check<'_>, device: &Object, path: &Path<'_>) {
    for field in ["attributes", "capacity"] {
        let at = path.field(field);
        for name in map(device, field).into_iter().flat_map(Object::keys) {
            qualified(check, name, &at);
        }
    }
}

/// A name with or without a domain. More than one slash is not noticed, as in Kubernetes.
fn qualified(check: &mut Check<'_>, name: &str, path: &Path<'_>) {
    let parts: Vec<&str> = name.split('/').collect();
    match parts.as_slice() {
        [name] => identifier(check, name, path),
        [domain, name] => {
            match *domain {
                "" => check.invalid(path, &"".into(), "the domain must not be empty"),
                domain => driver(check, domain, path),
            }
            match *name {
                "" => check.invalid(path, &"".into(), "the name must not be empty"),
                name => identifier(check, name, path),
            }
        }
        _ => {}
    }
}

/// An identifier of C.
fn identifier(check: &mut Check<'_>, name: &str, path: &Path<'_>) {
    if name.len() > IDENTIFIER_BYTES_MAX {
        check.too_long(path, IDENTIFIER_BYTES_MAX);
    }
    let is_letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    let is_valid = name.bytes().next().is_some_and(is_letter)
        && name.bytes().all(|byte| is_letter(byte) || byte.is_ascii_digit());
    if !is_valid {
        let why = "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is '[A-Za-z_][A-Za-z0-9_]*')";
        check.invalid(path, &name.into(), why);
    }
}

/// An attribute: exactly one value.
pub(super) fn attribute(check: &mut Check<'_>, attribute: &Object, path: &Path<'_>) {
    let mut count = 0;
    for name in ["bool", "int", "string", "version"] {
        count += usize::from(has(attribute, name));
    }
    for name in ["bools", "ints", "strings", "versions"] {
        count += usize::from(has(attribute, name));
    }
    if has(attribute, "string") && text(attribute, "string").len() > ATTRIBUTE_BYTES_MAX {
        check.too_long(path.field("string"), ATTRIBUTE_BYTES_MAX);
    }
    if has(attribute, "version") {
        version(check, text(attribute, "version"), &path.field("version"));
    }
    for name in ["strings", "versions"] {
        let at = path.field(name);
        for (index, value) in list(attribute, name).iter().enumerate() {
            let value = value.as_str().unwrap_or_default();
            match name {
                "versions" => version(check, value, &at.index(index)),
                _ if value.len() > ATTRIBUTE_BYTES_MAX => {
                    check.too_long(at.index(index), ATTRIBUTE_BYTES_MAX);
                }
                _ => {}
            }
        }
    }
    if count != 1 {
        check.invalid(path, &"".into(), "exactly one value must be specified");
    }
}

fn version(check: &mut Check<'_>, version: &str, path: &Path<'_>) {
    if !is_semantic(version) {
        let why = "must be a string compatible with semver.org spec 2.0.0";
        check.invalid(path, &version.into(), why);
    }
    if version.len() > ATTRIBUTE_BYTES_MAX {
        check.too_long(path, ATTRIBUTE_BYTES_MAX);
    }
}

/// Whether a text is a semantic version: `1.2.3-pre.4+build.5`.
fn is_semantic(version: &str) -> bool {
    let (rest, build) = match version.split_once('+') {
        Some((rest, build)) => (rest, Some(build)),
        None => (version, None),
    };
    let (core, before) = match rest.split_once('-') {
        Some((core, before)) => (core, Some(before)),
        None => (rest, None),
    };
    let is_number = |part: &str| {
        let is_digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        is_digits && (part == "0" || !part.starts_with('0'))
    };
    let is_word = |part: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        !part.is_empty() && part.bytes().all(is_plain)
    };
    let is_before =
        |part: &str| is_number(part) || is_word(part) && !part.bytes().all(|b| b.is_ascii_digit());
    core.split('.').count() == 3
        && core.split('.').all(is_number)
        && before.is_none_or(|before| before.split('.').all(is_before))
        && build.is_none_or(|build| build.split('.').all(is_word))
}
