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

impl Claims {
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
