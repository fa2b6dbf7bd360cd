//! The certificates that the authority issues: the server's and the administrator's.
//!
//! River: authority → **leaf** → TLS, the admin's kubeconfig.
//! Promise: the dates of a leaf are within those of its authority. A clock outside of them renews
//! nothing.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyUsagePurpose};

use super::authority::SigningAuthority;
use super::certificate::{
    Dates, authority_of, belongs_to, distinguished, generate, key_id_of, key_pair, seconds,
    subject_names, with_certificate,
};
use super::{Error, Pair, SKEW, Secret};

const LIFETIME: Duration = Duration::from_secs(365 * 86_400);
/// A certificate that expires within this time is renewed.
const RENEW_BEFORE: Duration = Duration::from_secs(30 * 86_400);

/// A certificate that the authority issues.
pub(super) struct Leaf {
    common_name: String,
    organizations: Vec<String>,
    names: BTreeSet<String>,
    /// [`names`](Leaf::names) as rcgen's parameters, already validated.
    params: CertificateParams,
    usage: ExtendedKeyUsagePurpose,
}

pub(super) fn server(names: &BTreeSet<String>) -> Result<Leaf, Error> {
    for name in names {
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-._*".contains(c);
        if name.parse::<IpAddr>().is_err() && (name.is_empty() || !name.chars().all(is_name)) {
            return Err(Error::Name(name.clone()));
        }
    }
    let params = CertificateParams::new(names.iter().cloned().collect::<Vec<_>>())
        .map_err(Error::certificate("name the serving certificate"))?;
    Ok(Leaf {
        common_name: "headwater".to_owned(),
        organizations: Vec::new(),
        names: names.clone(),
        params,
        usage: ExtendedKeyUsagePurpose::ServerAuth,
    })
}

pub(super) fn admin() -> Leaf {
    client("kubernetes-admin", &["system:masters".to_owned()])
}

/// The certificate of a user with these groups.
pub(super) fn client(user: &str, groups: &[String]) -> Leaf {
    Leaf {
        common_name: user.to_owned(),
        organizations: groups.to_vec(),
        names: BTreeSet::new(),
        params: CertificateParams::default(),
        usage: ExtendedKeyUsagePurpose::ClientAuth,
    }
}

impl Leaf {
    /// A new certificate with a new key.
    pub(super) fn issue(
        &self,
        authority: &SigningAuthority,
        now: Timestamp,
    ) -> Result<Pair, Error> {
        let key = generate()?;
        let mut params = self.params.clone();
        params.distinguished_name = distinguished(&self.common_name);
        for organization in &self.organizations {
            params.distinguished_name.push(DnType::OrganizationName, organization.as_str());
        }
        dates_within(authority.dates, seconds(now)).set_in(&mut params);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![self.usage.clone()];
        params.use_authority_key_identifier_extension = true;
        let certificate = params
            .signed_by(&key, &authority.issuer)
            .map_err(Error::certificate("sign a certificate"))?
            .pem();
        Ok(Pair { certificate, key: Secret::new(key.serialize_pem()) })
    }

    /// Whether a stored certificate can be kept: not about to expire, issued by this authority, with
    /// its key and the same names.
    pub(super) fn fits(
        &self,
        pem: &str,
        key: &str,
        authority: &SigningAuthority,
        now: Timestamp,
    ) -> bool {
        let same_key = key_pair(key).is_ok_and(|key| belongs_to(&key, pem));
        let names = with_certificate(pem, subject_names);
        let signer = with_certificate(pem, authority_of).flatten();
        let issuer = with_certificate(&authority.certificate, key_id_of).flatten();
        Dates::of(pem).is_some_and(|dates| is_current(dates, authority.dates, seconds(now)))
            && same_key
            && names.as_ref() == Some(&self.names)
            && signer.is_some()
            && signer == issuer
    }
}

/// The dates of a certificate issued now: a lifetime, cut to the dates of the authority. With a clock
/// outside of these, the first or the last lifetime within them.
fn dates_within(authority: Dates, now: i64) -> Dates {
    let lifetime = LIFETIME.as_secs() as i64;
    let now = match now {
        now if now < authority.from => authority.from,
        now if now > authority.to => authority.to - lifetime,
        now => now,
    };
    let from = now - SKEW.as_secs() as i64;
    Dates { from: from.max(authority.from), to: authority.to.min(now + lifetime) }
}

/// Whether a certificate with these dates is kept. A clock outside the authority's dates is wrong, or
/// the authority has expired: a new certificate would not help.
fn is_current(leaf: Dates, authority: Dates, now: i64) -> bool {
    if !authority.contain(now) {
        return true;
    }
    let is_last = leaf.to >= authority.to;
    leaf.from <= now && (is_last || now + (RENEW_BEFORE.as_secs() as i64) < leaf.to)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400;

    #[test]
    fn the_dates_of_a_leaf_are_within_those_of_its_authority() {
        let authority = Dates { from: 1_000 * DAY, to: 4_000 * DAY };
        for (now, from, to) in [
            (0, 1_000 * DAY, 1_365 * DAY),
            (1_000 * DAY, 1_000 * DAY, 1_365 * DAY),
            (2_000 * DAY, 2_000 * DAY - 3_600, 2_365 * DAY),
            (3_900 * DAY, 3_900 * DAY - 3_600, 4_000 * DAY),
            (4_000 * DAY, 4_000 * DAY - 3_600, 4_000 * DAY),
            (9_000 * DAY, 3_635 * DAY - 3_600, 4_000 * DAY),
        ] {
            assert_eq!(dates_within(authority, now), Dates { from, to }, "{now}");
        }
        let short = Dates { from: 1_000 * DAY, to: 1_010 * DAY };
        for now in [0, 1_005 * DAY, 2_000 * DAY] {
            let leaf = dates_within(short, now);
            assert!(
                short.from <= leaf.from && leaf.from < leaf.to && leaf.to <= short.to,
                "{leaf:?}"
            );
        }
    }

    #[test]
    fn a_clock_outside_the_dates_of_the_authority_renews_nothing() {
        let authority = Dates { from: 1_000 * DAY, to: 4_000 * DAY };
        let leaf = Dates { from: 2_000 * DAY, to: 2_365 * DAY };
        for (now, expected) in [
            (0, true),
            (1_500 * DAY, false),
            (2_100 * DAY, true),
            (2_336 * DAY, false),
            (3_000 * DAY, false),
            (4_001 * DAY, true),
        ] {
            assert_eq!(is_current(leaf, authority, now), expected, "{now}");
        }
        let last = Dates { from: 3_700 * DAY, to: 4_000 * DAY };
        assert!(is_current(last, authority, 3_990 * DAY));
    }
}
