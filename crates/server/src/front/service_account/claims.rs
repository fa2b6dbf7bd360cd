//! What a token says: the claims of RFC 7519, and under `kubernetes.io` whose it is.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// How far the clocks of two servers may differ.
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

/// The objects a token lives and dies with.
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

/// One object, and no other that may get its name later.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Reference {
    pub(crate) name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) uid: String,
}

impl Claims {
    /// Refuses a token before and after its time. There is no leeway at its end: whoever reads
    /// `exp` may rely on it.
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

    /// The audiences that the token and somebody who asks have in common.
    pub(crate) fn audiences(&self, wanted: &[String]) -> Vec<String> {
        self.aud.iter().filter(|audience| wanted.contains(audience)).cloned().collect()
    }
}
