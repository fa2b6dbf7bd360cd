//! The claims of a token: those of RFC 7519, and the bound objects under `kubernetes.io`.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The tolerated clock difference between two servers.
const LEEWAY_SECONDS: i64 = 60;

/// The claims of a token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Claims {
    pub(crate) aud: Vec<String>,
    pub(crate) exp: i64,
    pub(crate) iat: i64,
    pub(crate) iss: String,
    pub(crate) jti: String,
    #[serde(rename = "kubernetes.io")]
    pub(crate) kubernetes: Bound,
    pub(crate) nbf: i64,
    pub(crate) sub: String,
}

/// The objects that a token is bound to; it is invalid once one of them is deleted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Bound {
    pub(crate) namespace: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<Reference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pod: Option<Reference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) secret: Option<Reference>,
    pub(crate) serviceaccount: Reference,
}

/// An object by name and uid.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Reference {
    pub(crate) name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) uid: String,
}

/// The issuer of tokens in Secrets that kube-controller-manager writes.
pub(crate) const LEGACY_ISSUER: &str = "kubernetes/serviceaccount";

/// The claims of a token that kube-controller-manager writes into a Secret. It has no time and no
/// audience: it is valid as long as its Secret contains it.
#[derive(Deserialize)]
struct LegacyClaims {
    iss: String,
    sub: String,
    #[serde(rename = "kubernetes.io/serviceaccount/namespace")]
    namespace: String,
    #[serde(rename = "kubernetes.io/serviceaccount/secret.name")]
    secret: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.name")]
    account: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.uid")]
    uid: String,
}

impl Claims {
    /// Parses the claims of either format; `None` if the token is of another issuer.
    pub(crate) fn parse(bytes: &[u8], issuer: &str) -> Option<Claims> {
        if let Ok(claims) = serde_json::from_slice::<Claims>(bytes) {
            return (claims.iss == issuer).then_some(claims);
        }
        let legacy: LegacyClaims = serde_json::from_slice(bytes).ok()?;
        let LegacyClaims { iss, sub, namespace, secret, account, uid } = legacy;
        let subject = format!("system:serviceaccount:{namespace}:{account}");
        (iss == LEGACY_ISSUER && sub == subject).then(|| Claims {
            aud: vec![issuer.to_owned()],
            exp: i64::MAX,
            iat: 0,
            iss,
            jti: String::new(),
            kubernetes: Bound {
                namespace,
                secret: Some(Reference { name: secret, uid: String::new() }),
                serviceaccount: Reference { name: account, uid },
                ..Bound::default()
            },
            nbf: 0,
            sub,
        })
    }

    /// Whether the token is valid only as long as its Secret contains it.
    pub(crate) fn is_legacy(&self) -> bool {
        self.iss == LEGACY_ISSUER
    }

    /// Rejects a token before and after its validity. `exp` has no leeway: readers may rely on it.
    pub(crate) fn check_time(&self, now: Timestamp) -> Result<(), &'static str> {
        let now = now.as_second();
        if now >= self.exp {
            return Err("service account token has expired");
        }
        if now + LEEWAY_SECONDS < self.nbf {
            return Err("service account token is not valid yet");
        }
        if now + LEEWAY_SECONDS < self.iat {
            return Err("service account token is issued in the future");
        }
        Ok(())
    }

    /// The wanted audiences that the token has.
    pub(crate) fn audiences(&self, wanted: &[String]) -> Vec<String> {
        self.aud.iter().filter(|audience| wanted.contains(audience)).cloned().collect()
    }
}
