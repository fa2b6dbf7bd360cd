//! Rules of security profiles and certificates.

use std::collections::HashSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::{Check, Object, Path, has, list, number, shown, text};
use headwater_api::name;

const PROFILES: &[&str] = &["Localhost", "RuntimeDefault", "Unconfined"];

/// The maximum length of an AppArmor profile path.
const PROFILE_BYTES_MAX: usize = 4095;
/// The maximum length of a signer's domain and of a signer's name.
const DOMAIN_BYTES_MAX: usize = 253;
const SIGNER_BYTES_MAX: usize = DOMAIN_BYTES_MAX + 1 + (253 + 63 + 1);
const EXPIRATION_SECONDS_MIN: i64 = 600;

const USAGES: &[&str] = &[
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

pub(super) fn seccomp(check: &mut Check<'_>, profile: &Object, path: &Path<'_>) {
    let kind = text(profile, "type");
    let at = path.field("type");
    match kind {
        "" => check.required(at, "type is required when seccompProfile is set"),
        kind if !PROFILES.contains(&kind) => check.not_supported(at, &kind.into(), PROFILES),
        _ => {}
    }
    let at = path.field("localhostProfile");
    match (kind, has(profile, "localhostProfile")) {
        ("Localhost", false) => check.required(at, "must be set when seccomp type is Localhost"),
        ("Localhost", true) => descending(check, text(profile, "localhostProfile"), &at),
        (_, true) => {
            let why = "can only be set when seccomp type is Localhost";
            check.invalid(at, &profile.clone().into(), why);
        }
        (_, false) => {}
    }
}

/// A relative path without `..`.
fn descending(check: &mut Check<'_>, target: &str, path: &Path<'_>) {
    if target.starts_with('/') {
        check.invalid(path, &target.into(), "must be a relative path");
    }
    if target.split('/').any(|part| part == "..") {
        check.invalid(path, &target.into(), "must not contain '..'");
    }
}

pub(super) fn app_armor(check: &mut Check<'_>, profile: &Object, path: &Path<'_>) {
    let at = path.field("localhostProfile");
    let target = text(profile, "localhostProfile");
    match text(profile, "type") {
        "Localhost" if target.trim() != target => {
            check.invalid(at, &target.into(), "must not be padded with whitespace");
        }
        "Localhost" if target.is_empty() => {
            check.required(at, "must be set when AppArmor type is Localhost");
        }
        "Localhost" if target.len() > PROFILE_BYTES_MAX => check.too_long(at, PROFILE_BYTES_MAX),
        "Localhost" => {}
        "RuntimeDefault" | "Unconfined" if has(profile, "localhostProfile") => {
            check.invalid(at, &target.into(), "can only be set when AppArmor type is Localhost");
        }
        "RuntimeDefault" | "Unconfined" => {}
        "" => check.required(path.field("type"), "type is required when appArmorProfile is set"),
        other => check.not_supported(path.field("type"), &other.into(), PROFILES),
    }
}

pub(super) fn signing_request(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    if let Err(why) = pem(text(spec, "request")) {
        check.invalid(path.field("request"), &shown(spec, "request"), why);
    }
    let at = path.field("usages");
    let usages = list(spec, "usages");
    if usages.is_empty() {
        check.required(at, "");
    }
    let known =
        |usage: &headwater_json::Value| usage.as_str().is_some_and(|it| USAGES.contains(&it));
    for (index, usage) in usages.iter().enumerate().filter(|(_, usage)| !known(usage)) {
        check.not_supported(at.index(index), usage, USAGES);
    }
    let mut seen = HashSet::new();
    for (index, usage) in usages.iter().enumerate() {
        if !seen.insert(usage.as_str()) {
            check.duplicate(at.index(index), usage);
        }
    }
    signer(check, text(spec, "signerName"), &path.field("signerName"));
    let expires = number(spec, "expirationSeconds");
    if let Some(seconds) = expires.filter(|seconds| *seconds < EXPIRATION_SECONDS_MIN) {
        let why = "may not specify a duration less than 600 seconds (10 minutes)";
        check.invalid(path.field("expirationSeconds"), &seconds.into(), why);
    }
}

/// Whether a field contains a base64-encoded PEM certificate request: a block of that type with one
/// DER sequence. The signer verifies the signature.
fn pem(encoded: &str) -> Result<(), &'static str> {
    let wrong = "PEM block type must be CERTIFICATE REQUEST";
    let bytes = STANDARD.decode(encoded).map_err(|_| wrong)?;
    let text = String::from_utf8(bytes).map_err(|_| wrong)?;
    let begin = text.split_once("-----BEGIN CERTIFICATE REQUEST-----").ok_or(wrong)?.1;
    let body = begin.split_once("-----END CERTIFICATE REQUEST-----").ok_or(wrong)?.0;
    let body: String = body.chars().filter(|letter| !letter.is_ascii_whitespace()).collect();
    let der = STANDARD.decode(body).map_err(|_| wrong)?;
    if is_sequence(&der) {
        Ok(())
    } else {
        Err("asn1: structure error: malformed certificate request")
    }
}

/// Whether these bytes are one DER sequence and nothing else.
fn is_sequence(der: &[u8]) -> bool {
    let [0x30, first, rest @ ..] = der else { return false };
    let long = usize::from(first & 0x7f);
    match first {
        0..0x80 => rest.len() == usize::from(*first),
        _ if !(1..=4).contains(&long) || rest.len() < long => false,
        _ => {
            let length = rest[..long].iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
            rest.len() - long == length
        }
    }
}

/// `example.com/signer-name`.
fn signer(check: &mut Check<'_>, signer: &str, path: &Path<'_>) {
    if signer.is_empty() {
        return check.required(path, "");
    }
    if signer == "kubernetes.io/legacy-unknown" {
        let why = "the legacy signerName is not allowed via this API version";
        return check.invalid(path, &signer.into(), why);
    }
    let parts: Vec<&str> = signer.split('/').collect();
    let [domain, name] = parts.as_slice() else {
        let why = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        return check.invalid(path, &signer.into(), why);
    };
    if domain.len() > DOMAIN_BYTES_MAX {
        check.too_long(path, DOMAIN_BYTES_MAX);
    }
    let mut labels = |of: &str, problems: fn(&str) -> name::Problems| {
        for label in of.split('.') {
            for problem in problems(label) {
                check.invalid(path, &of.into(), &format!("validating label {label:?}: {problem}"));
            }
        }
    };
    labels(domain, name::label);
    labels(name, name::subdomain);
    if !domain.contains('.') {
        let why = "should be a domain with at least two segments separated by dots";
        check.invalid(path, &(*domain).into(), why);
    }
    if signer.len() > SIGNER_BYTES_MAX {
        check.too_long(path, SIGNER_BYTES_MAX);
    }
}
