//! Requests that signers accept and refuse, and what is in their certificates.

use rcgen::{CertificateParams, DnType, SanType};

use super::*;
use crate::front::pki::Pki;
use headwater_api::{Clock, SystemClock};

fn authority() -> (CertificateAuthority, Pki) {
    let pki = Pki::in_memory(&std::collections::BTreeSet::new(), &SystemClock).unwrap();
    (CertificateAuthority::new(&pki.signing).unwrap(), pki)
}

fn request(name: &str, organization: &str, names: &[SanType]) -> String {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    if !organization.is_empty() {
        params.distinguished_name.push(DnType::OrganizationName, organization);
    }
    params.subject_alt_names = names.to_vec();
    // An authority never gives what nobody asked the signer for.
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    params.serialize_request(&key).unwrap().pem().unwrap()
}

fn words(list: &str) -> Vec<String> {
    list.split(", ").map(str::to_owned).collect()
}

fn sign(pem: &str, signer: &str, usages: &str) -> Result<String, String> {
    let (authority, _) = authority();
    let usages = words(usages);
    let asked = SigningRequest { pem: pem.as_bytes(), signer, usages: &usages, lifetime: None };
    authority.sign(asked, SystemClock.now()).map_err(|refused| refused.to_string())
}

/// S8.15
#[test]
fn every_signer_has_rules() {
    let host = || SanType::DnsName("node".try_into().unwrap());
    let mail = || SanType::Rfc822Name("a@example.org".try_into().unwrap());
    let all = "digital signature, key encipherment, client auth";
    let serving = "digital signature, key encipherment, server auth";
    let node = "system:node:n";
    for (name, organization, names, signer, usages, expected) in [
        ("alice", "dev", vec![], SERVER_CLIENT, all, ""),
        ("alice", "", vec![mail()], SERVER_CLIENT, "client auth", ""),
        ("alice", "system:masters", vec![], SERVER_CLIENT, all, "not allowed"),
        ("alice", "dev", vec![], SERVER_CLIENT, serving, "usages must"),
        ("alice", "dev", vec![], SERVER_CLIENT, "client auth, cert sign", "usages must"),
        (node, "system:nodes", vec![], KUBELET_CLIENT, all, ""),
        (node, "system:nodes", vec![], KUBELET_CLIENT, "digital signature, client auth", ""),
        (node, "system:nodes", vec![], KUBELET_CLIENT, "client auth", "usages must"),
        (node, "system:masters", vec![], KUBELET_CLIENT, all, "organization"),
        ("alice", "system:nodes", vec![], KUBELET_CLIENT, all, "common name"),
        ("system:node:", "system:nodes", vec![], KUBELET_CLIENT, all, "common name"),
        (node, "system:nodes", vec![host()], KUBELET_CLIENT, all, "not allowed"),
        (node, "system:nodes", vec![host()], KUBELET_SERVING, serving, ""),
        (node, "system:nodes", vec![], KUBELET_SERVING, serving, "is required"),
        (node, "system:nodes", vec![host(), mail()], KUBELET_SERVING, serving, "must be DNS"),
        (node, "system:nodes", vec![host()], KUBELET_SERVING, all, "usages must"),
        ("alice", "dev", vec![], "kubernetes.io/legacy-unknown", all, "not served"),
        ("alice", "dev", vec![], "example.com/mine", all, "not served"),
    ] {
        let result = sign(&request(name, organization, &names), signer, usages);
        match expected {
            "" => drop(result.unwrap()),
            expected => {
                let why = result.unwrap_err();
                assert!(why.contains(expected), "{name} {signer}: {why}");
            }
        }
    }
}

/// S8.15
#[test]
fn a_certificate_has_the_subject_of_the_request_and_the_dates_of_the_signer() {
    let (authority, pki) = authority();
    let now = SystemClock.now();
    let pem = request("alice", "dev", &[]);
    let usages = words("digital signature, client auth");
    let hour = Duration::from_secs(3600);
    for (asked, granted) in [
        (None, LIFETIME_MAX),
        (Some(hour), hour),
        (Some(Duration::from_secs(1)), LIFETIME_MIN),
        (Some(LIFETIME_MAX * 9), LIFETIME_MAX),
    ] {
        let asked = SigningRequest {
            pem: pem.as_bytes(),
            signer: SERVER_CLIENT,
            usages: &usages,
            lifetime: asked,
        };
        let made = authority.sign(asked, now).unwrap();
        let (_, der) = x509_parser::pem::parse_x509_pem(made.as_bytes()).unwrap();
        let (_, found) = X509Certificate::from_der(&der.contents).unwrap();
        let (_, ca) = x509_parser::pem::parse_x509_pem(pki.ca.as_bytes()).unwrap();
        let (_, ca) = X509Certificate::from_der(&ca.contents).unwrap();
        found.verify_signature(Some(ca.public_key())).unwrap();
        assert_eq!(found.issuer(), ca.subject());
        assert_eq!(found.subject().to_string(), "CN=alice, O=dev");
        assert!(!found.is_ca() && found.version().0 == 2);
        let usage = found.extended_key_usage().unwrap().unwrap().value;
        assert!(usage.client_auth && !usage.server_auth);
        let expected = now.as_second() + granted.as_secs() as i64;
        assert_eq!(found.validity().not_after.timestamp(), expected);
        assert_eq!(found.validity().not_before.timestamp(), now.as_second() - 300);
    }
}

/// S8.15
#[test]
fn a_request_with_the_signature_of_another_key_is_refused() {
    let request = request("alice", "dev", &[]);
    let (_, pem) = x509_parser::pem::parse_x509_pem(request.as_bytes()).unwrap();
    let mut der = pem.contents;
    // The name is signed: "alice" becomes "alicf".
    let at = der.windows(5).position(|window| window == b"alice").unwrap();
    der[at + 4] = b'f';
    let forged = super::pem(&der).replace(" CERTIFICATE-", " CERTIFICATE REQUEST-");
    let why = sign(&forged, SERVER_CLIENT, "client auth").unwrap_err();
    assert_eq!(why, "the signature of the request is invalid");
    assert_eq!(organizations(&STANDARD.encode(forged)), None);
    assert_eq!(organizations(&STANDARD.encode(request)).unwrap(), ["dev"]);
    assert_eq!(sign("", SERVER_CLIENT, "client auth").unwrap_err(), "the request cannot be parsed");
}

#[test]
fn a_users_certificate_has_every_group_and_ends_with_the_authority() {
    let (authority, _) = authority();
    let groups = words("dev, ops, system:x");
    let pair = authority.client("alice", &groups, LIFETIME_MAX * 100, SystemClock.now()).unwrap();
    let (_, der) = x509_parser::pem::parse_x509_pem(pair.certificate.as_bytes()).unwrap();
    let (_, found) = X509Certificate::from_der(&der.contents).unwrap();
    assert_eq!(found.subject().to_string(), "O=dev, O=ops, O=system:x, CN=alice");
    assert_eq!(found.validity().not_after.timestamp(), authority.ends.as_second());
    let late = authority.client("alice", &groups, LIFETIME_MAX, authority.ends).unwrap_err();
    assert!(late.to_string().contains("expired"), "{late}");
    assert!(!format!("{authority:?} {pair:?}").contains("PRIVATE"));
}

#[test]
fn a_key_of_another_certificate_is_refused() {
    let ((_, ours), (_, theirs)) = (authority(), authority());
    let mixed = Pair { certificate: ours.signing.certificate, key: theirs.signing.key };
    let error = CertificateAuthority::new(&mixed).unwrap_err().to_string();
    assert!(error.contains("does not belong"), "{error}");
    let leaf = CertificateAuthority::new(&theirs.admin).unwrap_err().to_string();
    assert!(leaf.contains("not one of an authority"), "{leaf}");
}
