//! Service-account tokens: signing and verification (S2.55, S8.2).
//!
//! River: `serviceaccounts/token` → **issuer** → client → identity.
//! Promise: a valid token is signed with ES256 and this server's key, whatever its header says. A
//! token is rejected if it has expired, is for another audience, or if its account or a bound object
//! was deleted. Neither keys nor tokens are ever printed.

pub(crate) mod accounts;
pub(crate) mod claims;
mod openid;
mod verified;

use std::fmt;
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use headwater_json::json;
use rcgen::PublicKeyData;
use ring::digest;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair,
    UnparsedPublicKey,
};
use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::pki_types::pem::PemObject;
use serde::Deserialize;
use x509_parser::prelude::FromDer;
use x509_parser::x509::SubjectPublicKeyInfo;
use zeroize::Zeroizing;

use crate::front::pki::Secret;
use crate::lock::lock;

pub(crate) use accounts::{AuthenticatedToken, ServiceAccounts, account, groups, parts, user_name};
use claims::Claims;
pub(crate) use openid::path;
use verified::VerifiedTokens;

/// The issuer, and the audience of tokens for this server.
pub const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// The maximum length of a token. Ours are about 1 KB; audiences may make them longer.
const TOKEN_BYTES_MAX: usize = 16 * 1024;

/// The name of the only supported algorithm.
const ALGORITHM: &str = "ES256";

/// Signs tokens and verifies their signatures.
pub struct Issuer {
    key: EcdsaKeyPair,
    random: SystemRandom,
    /// The key id: a digest of the public key.
    id: String,
    /// Keys that signed before; their tokens are still accepted.
    former: Vec<FormerKey>,
    /// A cache: verifying a signature costs more than serving a request.
    verified: Mutex<VerifiedTokens>,
}

/// A key that signed before.
struct FormerKey {
    id: String,
    /// The public key: an uncompressed point.
    point: Vec<u8>,
}

/// Why a token is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    /// The token was not issued by this server: another format or another key.
    #[error("invalid bearer token")]
    Foreign,
    /// The token was issued by this server, but is not valid here or now.
    #[error("[invalid bearer token, {0}]")]
    Invalid(String),
}

/// The key cannot sign tokens.
#[derive(Debug, thiserror::Error)]
#[error("the key that signs service-account tokens is not an ECDSA P-256 key in PKCS #8: {0}")]
pub struct KeyUnusable(String);

impl fmt::Debug for Issuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issuer").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Issuer {
    /// Signs with this key (`Pki::service_account_key`).
    pub fn new(key: &Secret) -> Result<Issuer, KeyUnusable> {
        let pair = rcgen::KeyPair::from_pem(key.reveal())
            .map_err(|error| KeyUnusable(error.to_string()))?;
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let der = Zeroizing::new(pair.serialize_der());
        let key = EcdsaKeyPair::from_pkcs8(algorithm, &der, &random)
            .map_err(|error| KeyUnusable(error.to_string()))?;
        let id = encoded(digest::digest(&digest::SHA256, &pair.subject_public_key_info()));
        Ok(Issuer { key, random, id, former: Vec::new(), verified: Mutex::default() })
    }

    /// Also accepts tokens of these public keys, as PEM (`Pki::former_service_account_keys`).
    pub fn with_former_keys(mut self, keys: &str) -> Result<Issuer, KeyUnusable> {
        for der in SubjectPublicKeyInfoDer::pem_slice_iter(keys.as_bytes()) {
            let der = der.map_err(|error| KeyUnusable(error.to_string()))?;
            let (_, info) = SubjectPublicKeyInfo::from_der(&der)
                .map_err(|error| KeyUnusable(error.to_string()))?;
            let point = info.subject_public_key.data.to_vec();
            if point.len() != self.key.public_key().as_ref().len() {
                return Err(KeyUnusable("it is on another curve".to_owned()));
            }
            self.former
                .push(FormerKey { id: encoded(digest::digest(&digest::SHA256, &der)), point });
        }
        Ok(self)
    }

    /// The public key with this id. Tokens without an id are signed by the current key.
    fn public_key(&self, id: Option<&str>) -> Option<&[u8]> {
        match id {
            Some(id) if id != self.id => {
                self.former.iter().find(|key| key.id == id).map(|key| key.point.as_slice())
            }
            _ => Some(self.key.public_key().as_ref()),
        }
    }

    pub(crate) fn sign(&self, claims: &Claims) -> Option<String> {
        let header = encoded(json!({ "alg": ALGORITHM, "kid": self.id }).to_string());
        let claims = encoded(serde_json::to_vec(claims).ok()?);
        let message = format!("{header}.{claims}");
        let signature = self.key.sign(&self.random, message.as_bytes()).ok()?;
        Some(format!("{message}.{}", encoded(signature)))
    }

    /// The claims of a token with a valid signature. It may have expired.
    fn verify(&self, token: &str) -> Result<Arc<Claims>, Refused> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(Refused::Foreign);
        }
        let digest = digest::digest(&digest::SHA256, token.as_bytes());
        if let Some(claims) = self.remembered().find(digest.as_ref()) {
            return Ok(claims);
        }
        let claims = Arc::new(self.read(token).ok_or(Refused::Foreign)?);
        self.remembered().insert(digest.as_ref(), Arc::clone(&claims));
        Ok(claims)
    }

    fn remembered(&self) -> std::sync::MutexGuard<'_, VerifiedTokens> {
        lock(&self.verified)
    }

    fn read(&self, token: &str) -> Option<Claims> {
        let (message, signature) = token.rsplit_once('.')?;
        let (header, claims) = message.split_once('.')?;
        let header: Header = serde_json::from_slice(&decoded(header)?).ok()?;
        if !header.is_supported() {
            return None;
        }
        let key = self.public_key(header.kid.as_deref())?;
        let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, key);
        public.verify(message.as_bytes(), &decoded(signature)?).ok()?;
        Claims::parse(&decoded(claims)?, ISSUER)
    }
}

/// The header of a token. It is compared with the expected values, never obeyed.
#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    /// Extensions that a reader must understand; none is supported.
    crit: Option<headwater_json::Value>,
}

impl Header {
    fn is_supported(&self) -> bool {
        self.alg == ALGORITHM && self.crit.is_none()
    }
}

fn encoded(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn decoded(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

#[cfg(test)]
mod tests;
