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
    /// The public half of each accepted key as a JSON Web Key Set.
    fn keys(&self) -> Value {
        let former = self.former.iter().map(|key| web_key(&key.id, &key.point));
        let current = web_key(&self.id, self.key.public_key().as_ref());
        let keys: Vec<Value> = std::iter::once(current).chain(former).collect();
        json!({ "keys": keys })
    }
}

fn web_key(id: &str, point: &[u8]) -> Value {
    // An uncompressed point: a tag byte and two coordinates.
    let (x, y) = point[1..].split_at(point.len() / 2);
    json!({
        "use": "sig", "kty": "EC", "kid": id, "crv": "P-256", "alg": ALGORITHM,
        "x": encoded(x), "y": encoded(y),
    })
}

#[cfg(test)]
mod tests {
    use ring::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};

    use headwater_api::SystemClock;

    use super::super::tests::{claims, issuer};
    use super::super::{Issuer, decoded};
    use crate::front::pki::private_file::OthersMayRead;
    use crate::front::pki::{self, Pki, service_account_keys};

    #[test]
    fn former_keys_are_published_and_accepted_until_they_are_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let open = || {
            let names = pki::names("127.0.0.1".parse().unwrap(), &[]);
            Pki::open(directory.path(), &names, OthersMayRead::Allow, &SystemClock).unwrap()
        };
        let issuer = |pki: &Pki| {
            let issuer = Issuer::new(&pki.service_account_key).unwrap();
            issuer.with_former_keys(&pki.former_service_account_keys).unwrap()
        };
        let first = issuer(&open());
        let token = first.sign(&claims()).unwrap();
        let change = |finish: bool| match finish {
            false => service_account_keys::begin(directory.path(), OthersMayRead::Allow),
            true => service_account_keys::finish(directory.path(), OthersMayRead::Allow).map(drop),
        };
        assert!(change(true).is_err());
        change(false).unwrap();
        assert!(change(false).is_err());
        let both = issuer(&open());
        assert!(both.verify(&token).is_ok() && both.verify(&both.sign(&claims()).unwrap()).is_ok());
        assert_eq!(both.keys()["keys"][1], first.keys()["keys"][0]);
        assert_ne!(both.keys()["keys"][0], first.keys()["keys"][0]);
        change(true).unwrap();
        let last = issuer(&open());
        assert!(last.verify(&token).is_err());
        assert!(last.verify(&both.sign(&claims()).unwrap()).is_ok());
    }

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
