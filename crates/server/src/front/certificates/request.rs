//! A request for a certificate (PKCS #10), and the rules of Kubernetes' signers (S8.15).
//!
//! Promise: a request whose signature was not made with its own key is refused.

use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;

use crate::front::identity::{MASTERS, NODE_PREFIX, NODES};

use super::{KUBELET_CLIENT, KUBELET_SERVING, SERVER_CLIENT, SigningRefused};

/// What a request asks for.
#[derive(Debug, Default)]
pub(super) struct ParsedRequest {
    /// The subject, encoded.
    pub(super) subject: Vec<u8>,
    /// The public key with its algorithm, encoded.
    pub(super) public_key: Vec<u8>,
    /// The extension with the alternative names, encoded, if there are any.
    pub(super) names: Option<Vec<u8>>,
    pub(super) common_name: String,
    pub(super) organizations: Vec<String>,
    has_hosts: bool,
    has_other_names: bool,
}

impl ParsedRequest {
    pub(super) fn read(pem: &[u8]) -> Result<ParsedRequest, SigningRefused> {
        let unreadable = || SigningRefused::new("the request cannot be parsed");
        let (_, pem) = x509_parser::pem::parse_x509_pem(pem).map_err(|_| unreadable())?;
        let (rest, request) =
            X509CertificationRequest::from_der(&pem.contents).map_err(|_| unreadable())?;
        if !rest.is_empty() {
            return Err(unreadable());
        }
        let verified = request.verify_signature();
        verified.map_err(|_| SigningRefused::new("the signature of the request is invalid"))?;
        let info = &request.certification_request_info;
        let mut parsed = ParsedRequest {
            subject: info.subject.as_raw().to_vec(),
            public_key: info.subject_pki.raw.to_vec(),
            ..ParsedRequest::default()
        };
        for name in info.subject.iter_common_name() {
            parsed.common_name = name.as_str().map_err(|_| unreadable())?.to_owned();
        }
        for organization in info.subject.iter_organization() {
            let organization = organization.as_str().map_err(|_| unreadable())?;
            parsed.organizations.push(organization.to_owned());
        }
        for attribute in info.iter_attributes() {
            let parsed_attribute = attribute.parsed_attribute();
            if let x509_parser::cri_attributes::ParsedCriAttribute::ExtensionRequest(asked) =
                parsed_attribute
            {
                for extension in &asked.extensions {
                    let found = extension.parsed_extension();
                    if let ParsedExtension::SubjectAlternativeName(names) = found {
                        parsed.names = Some(extension.value.to_vec());
                        let is_host = |name: &GeneralName<'_>| {
                            matches!(name, GeneralName::DNSName(_) | GeneralName::IPAddress(_))
                        };
                        parsed.has_hosts |= names.general_names.iter().any(is_host);
                        parsed.has_other_names |=
                            names.general_names.iter().any(|name| !is_host(name));
                    }
                }
            }
        }
        Ok(parsed)
    }

    /// Checks the rules of a signer.
    pub(super) fn check(&self, signer: &str, usages: &[String]) -> Result<(), SigningRefused> {
        let refuse = |why: &str| Err(SigningRefused::new(why));
        let has = |usage: &str| usages.iter().any(|held| held == usage);
        let only = |purpose: &str| {
            let known = ["digital signature", "key encipherment", purpose];
            has(purpose) && usages.iter().all(|usage| known.contains(&usage.as_str()))
        };
        match signer {
            // Admission refuses these too; a request may be older than that rule.
            SERVER_CLIENT if self.organizations.iter().any(|group| group == MASTERS) => {
                refuse("a certificate for system:masters is not allowed")
            }
            SERVER_CLIENT => match only("client auth") {
                true => Ok(()),
                false => refuse(
                    "the usages must include client auth and may include digital signature and \
                     key encipherment",
                ),
            },
            KUBELET_CLIENT | KUBELET_SERVING => {
                if self.organizations != [NODES] {
                    return refuse("organization in the subject must be system:nodes");
                }
                if self.common_name.strip_prefix(NODE_PREFIX).is_none_or(str::is_empty) {
                    return refuse("subject common name does not begin with system:node:");
                }
                if self.has_other_names {
                    return refuse("subject alternative names must be DNS names or IP addresses");
                }
                let (purpose, needs_hosts) = match signer {
                    KUBELET_CLIENT => ("client auth", false),
                    _ => ("server auth", true),
                };
                if self.has_hosts != needs_hosts {
                    return refuse(match needs_hosts {
                        true => "DNS or IP subjectAltName is required",
                        false => "DNS and IP subjectAltNames are not allowed",
                    });
                }
                match only(purpose) && has("digital signature") {
                    true => Ok(()),
                    false => refuse(&format!(
                        "the usages must be digital signature, {purpose} and optionally key encipherment"
                    )),
                }
            }
            _ => refuse("this signer is not served here"),
        }
    }
}
