//! OpenID discovery: the documents with which others verify the server's tokens (S1.13).

use headwater_json::{Value, json};
use http::StatusCode;
use http::header;
use ring::signature::KeyPair;

use super::{ALGORITHM, ISSUER, Issuer, encoded};
use crate::answer::body::{self, Response};

/// The path of the key set.
const KEYS: &str = "/openid/v1/jwks";

/// Serves the two paths of the issuer; `None` for any other path.
pub(crate) fn path(issuer: &Issuer, words: &[&str]) -> Option<Response> {
    let (content_type, document) = match words {
        [".well-known", "openid-configuration"] => ("application/json", configuration()),
        ["openid", "v1", "jwks"] => ("application/jwk-set+json", issuer.keys()),
        _ => return None,
    };
    let body = body::full(document.to_string());
    let mut response = body::answer(StatusCode::OK, content_type, body);
    body::set(&mut response, header::CACHE_CONTROL, "public, max-age=3600");
    Some(response)
}

fn configuration() -> Value {
    json!({
        "issuer": ISSUER,
        "jwks_uri": format!("{ISSUER}{KEYS}"),
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": [ALGORITHM],
    })
}

impl Issuer {
    /// The public half of the key as a JSON Web Key Set.
    fn keys(&self) -> Value {
        // An uncompressed point: a tag byte and two coordinates.
        let point = &self.key.public_key().as_ref()[1..];
        let (x, y) = point.split_at(point.len() / 2);
        json!({ "keys": [{
            "use": "sig", "kty": "EC", "kid": self.id, "crv": "P-256", "alg": ALGORITHM,
            "x": encoded(x), "y": encoded(y),
        }]})
    }
}

#[cfg(test)]
mod tests {
    use ring::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};

    use super::super::decoded;
    use super::super::tests::{claims, issuer};

    #[test]
    fn the_published_key_checks_a_token() {
        let issuer = issuer();
        let token = issuer.sign(&claims()).unwrap();
        let keys = issuer.keys();
        let part = |name: &str| decoded(keys["keys"][0][name].as_str().unwrap()).unwrap();
        let point = [vec![4], part("x"), part("y")].concat();
        let (message, signature) = token.rsplit_once('.').unwrap();
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point)
            .verify(message.as_bytes(), &decoded(signature).unwrap())
            .unwrap();
    }
}
