//! Signed tokens (JWS) and the public keys that verify them (JWK).
//!
//! Promise: the algorithm is one of a fixed list and fits the key; a token cannot choose a weaker one.
//! There is no `none` and no HMAC, so a public key is never used as a secret.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use headwater_json::Value;
use ring::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey};

/// The maximum length of a token.
const TOKEN_BYTES_MAX: usize = 64 * 1024;
/// The maximum number of keys of an issuer.
const KEYS_MAX: usize = 100;

/// How signatures are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
}

/// The names of the algorithms that are accepted.
const ALGORITHMS: [(&str, Algorithm); 8] = [
    ("RS256", Algorithm::Rs256),
    ("RS384", Algorithm::Rs384),
    ("RS512", Algorithm::Rs512),
    ("PS256", Algorithm::Ps256),
    ("PS384", Algorithm::Ps384),
    ("PS512", Algorithm::Ps512),
    ("ES256", Algorithm::Es256),
    ("ES384", Algorithm::Es384),
];

impl Algorithm {
    fn named(name: &str) -> Option<Algorithm> {
        ALGORITHMS.iter().find(|(known, _)| *known == name).map(|(_, algorithm)| *algorithm)
    }
}

/// A token whose signature was not verified yet.
pub(crate) struct UnverifiedToken<'a> {
    algorithm: Algorithm,
    key: Option<String>,
    message: &'a str,
    signature: Vec<u8>,
    claims: Value,
}

impl fmt::Debug for UnverifiedToken<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnverifiedToken")
            .field("algorithm", &self.algorithm)
            .finish_non_exhaustive()
    }
}

impl<'a> UnverifiedToken<'a> {
    /// Parses a token; `None` if it is none, or has an algorithm or extension that is not accepted.
    pub(crate) fn parse(token: &'a str) -> Option<UnverifiedToken<'a>> {
        if token.len() > TOKEN_BYTES_MAX {
            return None;
        }
        let (message, signature) = token.rsplit_once('.')?;
        let (header, claims) = message.split_once('.')?;
        let header = document(header)?;
        if !header["crit"].is_null() {
            return None;
        }
        let key = match &header["kid"] {
            Value::Null => None,
            key => Some(key.as_str()?.to_owned()),
        };
        Some(UnverifiedToken {
            algorithm: Algorithm::named(header["alg"].as_str()?)?,
            key,
            message,
            signature: decoded(signature)?,
            claims: document(claims)?,
        })
    }

    /// The issuer that the token names.
    pub(crate) fn issuer(&self) -> Option<&str> {
        self.claims["iss"].as_str()
    }

    /// The claims; not to be believed before the signature is verified.
    pub(crate) fn claims(&self) -> &Value {
        &self.claims
    }
}

fn decoded(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

/// A JSON object in base64.
fn document(text: &str) -> Option<Value> {
    let parsed = headwater_json::parse(&decoded(text)?).ok()?;
    // A member that occurs twice means different things to different readers.
    (parsed.value.is_object() && parsed.duplicates.is_empty()).then_some(parsed.value)
}

/// A public key.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PublicKey {
    id: Option<String>,
    algorithm: Option<String>,
    material: KeyMaterial,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum KeyMaterial {
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// An uncompressed point.
    P256(Vec<u8>),
    P384(Vec<u8>),
}

impl PublicKey {
    /// `None` if the key is not for signatures, or of a type that is not accepted.
    fn read(key: &Value) -> Option<PublicKey> {
        let text = |name: &str| key[name].as_str();
        if text("use").is_some_and(|purpose| purpose != "sig") {
            return None;
        }
        let part = |name: &str| decoded(text(name)?);
        let point = |length: usize| {
            let (x, y) = (part("x")?, part("y")?);
            (x.len() == length && y.len() == length).then(|| [vec![4], x, y].concat())
        };
        let material = match (text("kty")?, text("crv")) {
            ("RSA", _) => KeyMaterial::Rsa { n: part("n")?, e: part("e")? },
            ("EC", Some("P-256")) => KeyMaterial::P256(point(32)?),
            ("EC", Some("P-384")) => KeyMaterial::P384(point(48)?),
            _ => return None,
        };
        let owned = |name: &str| text(name).map(str::to_owned);
        Some(PublicKey { id: owned("kid"), algorithm: owned("alg"), material })
    }

    fn verifies(&self, token: &UnverifiedToken<'_>) -> bool {
        if token.key.is_some() && token.key != self.id {
            return false;
        }
        let own = self.algorithm.as_deref();
        if own.is_some_and(|own| Algorithm::named(own) != Some(token.algorithm)) {
            return false;
        }
        let (message, signature) = (token.message.as_bytes(), &token.signature);
        match (&self.material, token.algorithm) {
            (KeyMaterial::Rsa { n, e }, algorithm) => {
                let parameters = match algorithm {
                    Algorithm::Rs256 => &signature::RSA_PKCS1_2048_8192_SHA256,
                    Algorithm::Rs384 => &signature::RSA_PKCS1_2048_8192_SHA384,
                    Algorithm::Rs512 => &signature::RSA_PKCS1_2048_8192_SHA512,
                    Algorithm::Ps256 => &signature::RSA_PSS_2048_8192_SHA256,
                    Algorithm::Ps384 => &signature::RSA_PSS_2048_8192_SHA384,
                    Algorithm::Ps512 => &signature::RSA_PSS_2048_8192_SHA512,
                    Algorithm::Es256 | Algorithm::Es384 => return false,
                };
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature).is_ok()
            }
            (KeyMaterial::P256(point), Algorithm::Es256) => {
                let key = UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, point);
                key.verify(message, signature).is_ok()
            }
            (KeyMaterial::P384(point), Algorithm::Es384) => {
                let key = UnparsedPublicKey::new(&signature::ECDSA_P384_SHA384_FIXED, point);
                key.verify(message, signature).is_ok()
            }
            _ => false,
        }
    }
}

/// The keys of an issuer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeySet(Vec<PublicKey>);

impl KeySet {
    /// From a JWK set. Keys of other types and for other purposes are left out.
    pub(crate) fn read(document: &Value) -> Result<KeySet, String> {
        let keys = document["keys"].as_array().ok_or("the key set has no list of keys")?;
        if keys.len() > KEYS_MAX {
            return Err(format!("the key set has more than {KEYS_MAX} keys"));
        }
        let keys: Vec<PublicKey> = keys.iter().filter_map(PublicKey::read).collect();
        match keys.is_empty() {
            true => Err("the key set has no key for RS, PS or ES signatures".to_owned()),
            false => Ok(KeySet(keys)),
        }
    }

    /// Whether one of the keys made the signature.
    pub(crate) fn verifies(&self, token: &UnverifiedToken<'_>) -> bool {
        self.0.iter().any(|key| key.verifies(token))
    }
}

#[cfg(test)]
mod tests {
    use headwater_json::json;
    use ring::rand::SystemRandom;
    use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};

    use super::*;

    fn encoded(bytes: impl AsRef<[u8]>) -> String {
        URL_SAFE_NO_PAD.encode(bytes)
    }

    fn key() -> EcdsaKeyPair {
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let made = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        EcdsaKeyPair::from_pkcs8(algorithm, made.as_ref(), &random).unwrap()
    }

    fn published(key: &EcdsaKeyPair, more: &Value) -> Value {
        let point = &key.public_key().as_ref()[1..];
        let mut found = json!({
            "kty": "EC", "crv": "P-256", "kid": "a", "x": encoded(&point[..32]),
            "y": encoded(&point[32..]),
        });
        for (name, value) in more.as_object().unwrap() {
            found[name.as_str()] = value.clone();
        }
        json!({ "keys": [found] })
    }

    fn signed(key: &EcdsaKeyPair, header: &str) -> String {
        let message = format!("{}.{}", encoded(header), encoded(r#"{"iss":"i"}"#));
        let signature = key.sign(&SystemRandom::new(), message.as_bytes()).unwrap();
        format!("{message}.{}", encoded(signature))
    }

    fn verifies(keys: &Value, token: &str) -> bool {
        let Some(token) = UnverifiedToken::parse(token) else { return false };
        KeySet::read(keys).is_ok_and(|keys| keys.verifies(&token))
    }

    /// S8.16, B072
    #[test]
    fn a_token_never_chooses_its_algorithm_or_its_key() {
        let own = key();
        let keys = published(&own, &json!({}));
        for (header, expected) in [
            (r#"{"alg":"ES256","kid":"a"}"#, true),
            (r#"{"alg":"ES256"}"#, true),
            (r#"{"alg":"ES256","kid":"a","typ":"JWT"}"#, true),
            (r#"{"alg":"none"}"#, false),
            (r#"{"alg":"None","kid":"a"}"#, false),
            (r#"{"alg":"HS256","kid":"a"}"#, false),
            (r#"{"alg":"ES384","kid":"a"}"#, false),
            (r#"{"alg":"RS256","kid":"a"}"#, false),
            (r#"{"alg":"es256","kid":"a"}"#, false),
            (r#"{"alg":"ES256","kid":"../../etc/passwd"}"#, false),
            (r#"{"alg":"ES256","kid":""}"#, false),
            (r#"{"alg":"ES256","kid":7}"#, false),
            (r#"{"alg":"ES256","crit":["exp"]}"#, false),
            (r#"{"alg":"ES256","alg":"none"}"#, false),
            (r#"{"kid":"a"}"#, false),
            ("[]", false),
        ] {
            assert_eq!(verifies(&keys, &signed(&own, header)), expected, "{header}");
        }
        assert!(!verifies(&keys, &signed(&key(), r#"{"alg":"ES256"}"#)), "another key");
    }

    /// S8.16
    #[test]
    fn a_key_verifies_only_what_it_is_for() {
        let own = key();
        let token = signed(&own, r#"{"alg":"ES256"}"#);
        for (more, expected) in [
            (json!({ "use": "sig", "alg": "ES256" }), true),
            (json!({ "use": "enc" }), false),
            (json!({ "alg": "ES384" }), false),
            (json!({ "alg": "none" }), false),
            (json!({ "crv": "P-384" }), false),
            (json!({ "kty": "RSA", "n": "AQAB", "e": "AQAB" }), false),
            (json!({ "kty": "oct", "k": "AQAB" }), false),
            (json!({ "x": "AQAB" }), false),
        ] {
            assert_eq!(verifies(&published(&own, &more), &token), expected, "{more}");
        }
    }

    /// B072
    #[test]
    fn changed_tokens_are_refused() {
        let own = key();
        let keys = published(&own, &json!({}));
        let token = signed(&own, r#"{"alg":"ES256"}"#);
        let (message, signature) = token.rsplit_once('.').unwrap();
        let (header, _) = message.split_once('.').unwrap();
        let hmac = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, own.public_key().as_ref());
        let keyed = encoded(ring::hmac::sign(&hmac, message.as_bytes()));
        for wrong in [
            format!("{message}."),
            message.to_owned(),
            format!("{message}.{keyed}"),
            format!("{message}.{}", encoded([0; 64])),
            format!("{header}.{}.{signature}", encoded(r#"{"iss":"j"}"#)),
            format!("{token}="),
            format!("{token}.x"),
            format!("x.{token}"),
            "x".repeat(TOKEN_BYTES_MAX + 1),
            String::new(),
        ] {
            assert!(!verifies(&keys, &wrong), "{wrong}");
        }
        assert!(verifies(&keys, &token));
    }

    #[test]
    fn key_sets_are_bounded() {
        let many: Vec<Value> = vec![json!({}); KEYS_MAX + 1];
        assert!(KeySet::read(&json!({ "keys": many })).unwrap_err().contains("more than"));
        assert!(KeySet::read(&json!({ "keys": [] })).unwrap_err().contains("no key for"));
        assert!(KeySet::read(&json!({})).unwrap_err().contains("no list"));
    }
}
