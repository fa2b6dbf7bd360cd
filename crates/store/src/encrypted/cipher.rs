//! The ciphers of values: AES-GCM and XSalsa20-Poly1305, each with named keys.
//!
//! An encrypted value begins with `k8s:enc:CIPHER:v1:KEY:`, as in Kubernetes; then come the nonce and
//! the ciphertext. With AES-GCM the key of the object is authenticated too, so that a value cannot be
//! moved to another object; secretbox has no such data, and so the object's key is a part of its
//! plaintext.

use std::fmt;

use crypto_secretbox::aead::{Aead, KeyInit};
use crypto_secretbox::{Nonce as BoxNonce, XSalsa20Poly1305};
use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};

/// The first bytes of every encrypted value. JSON never begins so.
pub(super) const MARK: &[u8] = b"k8s:enc:";

const BOX_NONCE_LEN: usize = 24;

/// A key that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the key {name:?} {why}")]
pub struct InvalidKey {
    name: String,
    why: String,
}

/// Why a value cannot be decrypted.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unreadable {
    #[error("its key is not configured")]
    UnknownKey,
    #[error("it was changed, moved, or encrypted with another key of this name")]
    NotAuthentic,
}

/// One named key of one cipher.
pub struct CipherKey {
    /// `k8s:enc:CIPHER:v1:KEY:`
    prefix: Vec<u8>,
    cipher: Cipher,
}

enum Cipher {
    AesGcm(Box<LessSafeKey>),
    Secretbox(Box<XSalsa20Poly1305>),
}

/// The key itself is never printed.
impl fmt::Debug for CipherKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.prefix))
    }
}

impl CipherKey {
    /// A key for AES-GCM, of 16 or 32 bytes.
    pub fn aes_gcm(name: &str, secret: &[u8]) -> Result<CipherKey, InvalidKey> {
        let algorithm = match secret.len() {
            16 => &AES_128_GCM,
            32 => &AES_256_GCM,
            len => {
                let why = format!("must have 16 or 32 bytes for AES-GCM, and has {len}");
                return Err(InvalidKey { name: name.to_owned(), why });
            }
        };
        let unbound = UnboundKey::new(algorithm, secret)
            .map_err(|_| InvalidKey { name: name.to_owned(), why: "is not usable".into() })?;
        CipherKey::named("aesgcm", name, Cipher::AesGcm(Box::new(LessSafeKey::new(unbound))))
    }

    /// A key for XSalsa20-Poly1305, of 32 bytes.
    pub fn secretbox(name: &str, secret: &[u8]) -> Result<CipherKey, InvalidKey> {
        let Ok(cipher) = XSalsa20Poly1305::new_from_slice(secret) else {
            let why = format!("must have 32 bytes for secretbox, and has {}", secret.len());
            return Err(InvalidKey { name: name.to_owned(), why });
        };
        CipherKey::named("secretbox", name, Cipher::Secretbox(Box::new(cipher)))
    }

    fn named(kind: &str, name: &str, cipher: Cipher) -> Result<CipherKey, InvalidKey> {
        Ok(CipherKey { prefix: prefix(&format!("{kind}:v1"), name)?, cipher })
    }

    pub(super) fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    /// The value encrypted; `None` if the system has no randomness.
    pub(super) fn encrypt(&self, object: &str, value: &[u8]) -> Option<Vec<u8>> {
        let mut out = self.prefix.clone();
        match &self.cipher {
            Cipher::AesGcm(key) => seal(key, object, value, &mut out)?,
            Cipher::Secretbox(cipher) => {
                let nonce = random::<BOX_NONCE_LEN>()?;
                let mut plain = Vec::with_capacity(object.len() + 1 + value.len());
                plain.extend_from_slice(object.as_bytes());
                plain.push(0);
                plain.extend_from_slice(value);
                let sealed = cipher.encrypt(&BoxNonce::from(nonce), plain.as_slice()).ok()?;
                out.extend_from_slice(&nonce);
                out.extend_from_slice(&sealed);
            }
        }
        Some(out)
    }

    /// The value of an object; `sealed` is what follows the prefix.
    pub(super) fn decrypt(&self, object: &str, sealed: &[u8]) -> Result<Vec<u8>, Unreadable> {
        match &self.cipher {
            Cipher::AesGcm(key) => open(key, object, sealed),
            Cipher::Secretbox(cipher) => {
                let (nonce, sealed) =
                    sealed.split_first_chunk::<BOX_NONCE_LEN>().ok_or(Unreadable::NotAuthentic)?;
                let open = cipher
                    .decrypt(&BoxNonce::from(*nonce), sealed)
                    .map_err(|_| Unreadable::NotAuthentic)?;
                let value = open
                    .strip_prefix(object.as_bytes())
                    .and_then(|rest| rest.strip_prefix(&[0]))
                    .ok_or(Unreadable::NotAuthentic)?;
                Ok(value.to_vec())
            }
        }
    }
}

/// What the values of a named key begin with.
pub(super) fn prefix(kind: &str, name: &str) -> Result<Vec<u8>, InvalidKey> {
    if name.is_empty() || name.contains(':') {
        let why = "needs a name without \":\"".to_owned();
        return Err(InvalidKey { name: name.to_owned(), why });
    }
    Ok(format!("k8s:enc:{kind}:{name}:").into_bytes())
}

/// Appends a nonce and the value of an object, encrypted with AES-GCM; `None` if the system has no
/// randomness.
pub(super) fn seal(key: &LessSafeKey, object: &str, value: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let nonce = random::<NONCE_LEN>()?;
    let mut sealed = value.to_vec();
    let tag = key.seal_in_place_separate_tag(
        Nonce::assume_unique_for_key(nonce),
        Aad::from(object.as_bytes()),
        &mut sealed,
    );
    out.extend_from_slice(&nonce);
    out.extend_from_slice(&sealed);
    out.extend_from_slice(tag.ok()?.as_ref());
    Some(())
}

/// The value of an object that [`seal`] has encrypted.
pub(super) fn open(key: &LessSafeKey, object: &str, sealed: &[u8]) -> Result<Vec<u8>, Unreadable> {
    let (nonce, sealed) =
        sealed.split_first_chunk::<NONCE_LEN>().ok_or(Unreadable::NotAuthentic)?;
    let mut open = sealed.to_vec();
    let nonce = Nonce::assume_unique_for_key(*nonce);
    let opened = key.open_in_place(nonce, Aad::from(object.as_bytes()), &mut open);
    let len = opened.map_err(|_| Unreadable::NotAuthentic)?.len();
    open.truncate(len);
    Ok(open)
}

/// Bytes that nobody can predict; `None` if the system has no randomness.
pub(super) fn random<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> [CipherKey; 3] {
        [
            CipherKey::aes_gcm("a", &[1; 32]).unwrap(),
            CipherKey::aes_gcm("b", &[2; 16]).unwrap(),
            CipherKey::secretbox("c", &[3; 32]).unwrap(),
        ]
    }

    #[test]
    fn a_value_is_read_with_its_key_and_for_its_object_only() {
        for key in keys() {
            let stored = key.encrypt("/registry/core/secrets/a/b", b"hunter2").unwrap();
            assert!(stored.starts_with(MARK) && !stored.windows(7).any(|part| part == b"hunter2"));
            let sealed = stored.strip_prefix(key.prefix()).unwrap();
            let read = |object: &str, sealed: &[u8]| key.decrypt(object, sealed);
            assert_eq!(read("/registry/core/secrets/a/b", sealed).unwrap(), b"hunter2");
            assert_eq!(read("/registry/core/secrets/a/c", sealed), Err(Unreadable::NotAuthentic));
            for bit in 0..sealed.len() * 8 {
                let mut changed = sealed.to_vec();
                changed[bit / 8] ^= 1 << (bit % 8);
                let read = read("/registry/core/secrets/a/b", &changed);
                assert_eq!(read, Err(Unreadable::NotAuthentic), "{key:?}, bit {bit}");
            }
            for len in 0..sealed.len() {
                let read = read("/registry/core/secrets/a/b", &sealed[..len]);
                assert_eq!(read, Err(Unreadable::NotAuthentic), "{key:?}, {len} bytes");
            }
        }
    }

    #[test]
    fn equal_values_are_stored_as_different_bytes() {
        for key in keys() {
            assert_ne!(key.encrypt("k", b"v"), key.encrypt("k", b"v"));
        }
    }

    #[test]
    fn a_key_of_the_wrong_length_is_refused_without_showing_it() {
        let error = CipherKey::aes_gcm("a", &[7; 31]).unwrap_err().to_string();
        assert_eq!(error, "the key \"a\" must have 16 or 32 bytes for AES-GCM, and has 31");
        CipherKey::secretbox("a", &[7; 16]).unwrap_err();
        CipherKey::secretbox("a:b", &[7; 32]).unwrap_err();
        assert_eq!(format!("{:?}", keys()[0]), "k8s:enc:aesgcm:v1:a:");
    }
}
