//! Values under a seed that a key service encrypts: the envelope encryption of KMS v2.
//!
//! The key service sees no values. It encrypts a random seed, and every value has a key of its own
//! that is derived from the seed (HKDF-SHA-256) with random bytes. A value is stored as Kubernetes
//! stores it: `k8s:enc:kms:v2:NAME:`, then a Protobuf message with the encrypted seed, the id of the
//! service's key and the ciphertext, which AES-GCM binds to the key of the object.
//! Promise: writes use a seed only while the service has confirmed its key within three minutes.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use async_trait::async_trait;
use prost::Message;
use ring::aead::{AES_256_GCM, LessSafeKey, UnboundKey};
use ring::digest;
use ring::hkdf::{HKDF_SHA256, Prk};
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::cipher::{self, InvalidKey, Unreadable};
use super::metrics::{Direction, EncryptionMetrics};
use crate::lock::lock;
use crate::store::Error;

const SEED_LEN: usize = 32;
/// The random bytes from which the key of a value is derived.
const INFO_LEN: usize = 32;
/// The limit of an encrypted seed and of a key id.
pub(super) const FIELD_MAX: usize = 1 << 10;
/// The limit of all annotations together.
const ANNOTATIONS_MAX: usize = 32 << 10;
/// How long a seed may write after the service has named its key.
const CONFIRMED_FOR: Duration = Duration::from_secs(180);
/// Decrypted seeds that are kept: as many as servers were started and keys were rotated.
const SEEDS_MAX: usize = 4096;
/// The value of `source` for a seed; other keys are not supported.
const IS_SEED: i32 = 1;

/// A service that encrypts seeds with a key that it keeps to itself.
#[async_trait]
pub trait KeyService: fmt::Debug + Send + Sync {
    /// The id of the key that the service uses now. Fails if the service is not healthy.
    async fn key_id(&self) -> Result<String, KeyServiceError>;
    /// Encrypts a seed.
    async fn encrypt(&self, seed: &[u8]) -> Result<SealedSeed, KeyServiceError>;
    /// Decrypts a seed.
    async fn decrypt(&self, sealed: &SealedSeed) -> Result<Zeroizing<Vec<u8>>, KeyServiceError>;
}

/// Why a key service did not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyServiceError {
    /// It does not work now; a retry may succeed.
    #[error("{0}")]
    Unavailable(String),
    /// It will never do this.
    #[error("{0}")]
    Refused(String),
}

/// A seed as a key service has encrypted it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SealedSeed {
    /// The ciphertext.
    pub ciphertext: Vec<u8>,
    /// The key of the service.
    pub key_id: String,
    /// What the service needs besides, not secret.
    pub annotations: BTreeMap<String, Vec<u8>>,
}

impl SealedSeed {
    fn check(&self) -> Result<(), String> {
        check_key_id(&self.key_id)?;
        let len = self.ciphertext.len();
        if len == 0 || len > FIELD_MAX {
            return Err(format!("an encrypted seed has {len} bytes; 1 to {FIELD_MAX} are allowed"));
        }
        let size: usize = self.annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
        if size > ANNOTATIONS_MAX {
            return Err(format!("annotations have {size} bytes; {ANNOTATIONS_MAX} are allowed"));
        }
        Ok(())
    }

    /// Names the seed in memory.
    fn digest(&self) -> SeedDigest {
        let mut context = digest::Context::new(&digest::SHA256);
        let mut add = |part: &[u8]| {
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part);
        };
        add(&self.ciphertext);
        add(self.key_id.as_bytes());
        for (key, value) in &self.annotations {
            add(key.as_bytes());
            add(value);
        }
        let mut digest = [0; 32];
        digest.copy_from_slice(context.finish().as_ref());
        digest
    }
}

type SeedDigest = [u8; 32];

fn check_key_id(id: &str) -> Result<(), String> {
    match id.len() {
        0 => Err("the key id is empty".into()),
        len if len > FIELD_MAX => {
            Err(format!("the key id has {len} bytes; {FIELD_MAX} are allowed"))
        }
        _ => Ok(()),
    }
}

/// What is stored after the prefix, with the field numbers of Kubernetes.
#[derive(Clone, PartialEq, Message)]
struct EncryptedObject {
    #[prost(bytes = "vec", tag = "1")]
    data: Vec<u8>,
    #[prost(string, tag = "2")]
    key_id: String,
    #[prost(bytes = "vec", tag = "3")]
    sealed_seed: Vec<u8>,
    #[prost(btree_map = "string, bytes", tag = "4")]
    annotations: BTreeMap<String, Vec<u8>>,
    #[prost(int32, tag = "5")]
    source: i32,
}

impl EncryptedObject {
    fn decode_from(stored: &[u8]) -> Option<(SealedSeed, Vec<u8>)> {
        let EncryptedObject { data, key_id, sealed_seed, annotations, source } =
            EncryptedObject::decode(stored).ok()?;
        let sealed = SealedSeed { ciphertext: sealed_seed, key_id, annotations };
        (source == IS_SEED && sealed.check().is_ok()).then_some((sealed, data))
    }
}

/// A decrypted seed.
struct DataSeed(Prk);

impl DataSeed {
    fn new(seed: &[u8]) -> DataSeed {
        DataSeed(Prk::new_less_safe(HKDF_SHA256, seed))
    }

    fn key(&self, info: &[u8]) -> Option<LessSafeKey> {
        let info = [info];
        let key = self.0.expand(&info, &AES_256_GCM).ok()?;
        Some(LessSafeKey::new(UnboundKey::from(key)))
    }

    /// `None` if the system has no randomness.
    fn seal(&self, object: &str, value: &[u8]) -> Option<Vec<u8>> {
        let mut out = cipher::random::<INFO_LEN>()?.to_vec();
        let key = self.key(&out)?;
        cipher::seal(&key, object, value, &mut out)?;
        Some(out)
    }

    fn open(&self, object: &str, data: &[u8]) -> Result<Vec<u8>, Unreadable> {
        let (info, sealed) = data.split_at_checked(INFO_LEN).ok_or(Unreadable::NotAuthentic)?;
        let key = self.key(info).ok_or(Unreadable::NotAuthentic)?;
        cipher::open(&key, object, sealed)
    }
}

/// The seed that writes.
struct WriteSeed {
    seed: Arc<DataSeed>,
    sealed: SealedSeed,
    /// From then on the service has to confirm the key again.
    expires: Instant,
}

/// Why a value was not decrypted.
pub(super) enum EnvelopeError {
    /// This value cannot be read.
    Unreadable(String),
    /// The key service does not work now.
    Unavailable(String),
}

/// The keys of one key service.
pub struct EnvelopeKeys {
    name: String,
    /// `k8s:enc:kms:v2:NAME:`
    prefix: Vec<u8>,
    service: Arc<dyn KeyService>,
    current: ArcSwapOption<WriteSeed>,
    seeds: Mutex<HashMap<SeedDigest, Arc<DataSeed>>>,
    trouble: Mutex<Option<String>>,
    metrics: EncryptionMetrics,
}

impl fmt::Debug for EnvelopeKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.prefix))
    }
}

impl EnvelopeKeys {
    /// The keys of a service with a name. [`super::Encryption::refresh`] must succeed before a value
    /// is written.
    pub fn new(name: &str, service: Arc<dyn KeyService>) -> Result<EnvelopeKeys, InvalidKey> {
        Ok(EnvelopeKeys {
            name: name.to_owned(),
            prefix: cipher::prefix("kms:v2", name)?,
            service,
            current: ArcSwapOption::empty(),
            seeds: Mutex::default(),
            trouble: Mutex::new(Some("it was not called yet".into())),
            metrics: EncryptionMetrics::default(),
        })
    }

    /// Counts in these metrics.
    #[must_use]
    pub fn with_metrics(mut self, metrics: EncryptionMetrics) -> EnvelopeKeys {
        self.metrics = metrics;
        self
    }

    pub(super) fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    /// Why the service does not work, if so.
    pub(super) fn trouble(&self) -> Option<String> {
        let trouble = lock(&self.trouble);
        trouble.as_ref().map(|why| format!("the KMS provider {:?}: {why}", self.name))
    }

    /// Asks the service for its key, and has it encrypt a new seed if that is not the key of the
    /// current one. Returns whether values are written with another key from now on.
    pub(super) async fn refresh(&self) -> Result<bool, String> {
        let changed = self.confirm().await.map_err(|error| error.to_string());
        lock(&self.trouble).clone_from(&changed.as_ref().err().cloned());
        changed.map_err(|_| self.trouble().unwrap_or_default())
    }

    async fn confirm(&self) -> Result<bool, KeyServiceError> {
        let unavailable = KeyServiceError::Unavailable;
        let asked = Instant::now();
        let key_id = self.service.key_id().await?;
        self.metrics.reported(&self.name, &key_id);
        check_key_id(&key_id).map_err(unavailable)?;
        let expires = asked + CONFIRMED_FOR;
        if let Some(current) = self.current.load_full()
            && current.sealed.key_id == key_id
        {
            let (seed, sealed) = (Arc::clone(&current.seed), current.sealed.clone());
            self.current.store(Some(Arc::new(WriteSeed { seed, sealed, expires })));
            return Ok(false);
        }
        let began = Instant::now();
        let random = cipher::random::<SEED_LEN>();
        self.metrics.seed_generated(random.is_some(), began);
        let plain =
            Zeroizing::new(random.ok_or_else(|| unavailable("there is no randomness".into()))?);
        let sealed = self.service.encrypt(&*plain).await?;
        sealed.check().map_err(unavailable)?;
        if sealed.key_id != key_id {
            return Err(unavailable("its key changed while it encrypted; trying again".into()));
        }
        let seed = Arc::new(DataSeed::new(&*plain));
        self.keep(sealed.digest(), Arc::clone(&seed));
        let is_first = self.current.load().is_none();
        self.current.store(Some(Arc::new(WriteSeed { seed, sealed, expires })));
        if !is_first {
            tracing::info!(provider = self.name, key_id, "the key of the KMS plugin has changed");
        }
        Ok(true)
    }

    fn keep(&self, digest: SeedDigest, seed: Arc<DataSeed>) {
        let mut seeds = lock(&self.seeds);
        if seeds.len() >= SEEDS_MAX {
            seeds.clear();
        }
        seeds.insert(digest, seed);
    }

    /// Whether a value, without its prefix, would be stored under another key now.
    pub(super) fn is_stale(&self, stored: &[u8]) -> bool {
        let Some((sealed, _)) = EncryptedObject::decode_from(stored) else { return true };
        let current = self.current.load();
        current.as_ref().is_some_and(|current| current.sealed.key_id != sealed.key_id)
    }

    pub(super) fn encrypt(&self, object: &str, value: &[u8]) -> Result<Vec<u8>, Error> {
        let failed = |why: &str| {
            let trouble = self.trouble().unwrap_or_default();
            Error::Unavailable(format!("cannot encrypt {object}: {why} {trouble}"))
        };
        let current = self.current.load_full();
        let current = current.ok_or_else(|| failed("no key yet;"))?;
        if Instant::now() >= current.expires {
            return Err(failed("the key was not confirmed for three minutes;"));
        }
        let data = current.seed.seal(object, value);
        let data = data.ok_or_else(|| failed("the system has no randomness"))?;
        let SealedSeed { ciphertext, key_id, annotations } = current.sealed.clone();
        self.metrics.used(Direction::ToStorage, &self.name, &key_id);
        let message =
            EncryptedObject { data, key_id, sealed_seed: ciphertext, annotations, source: IS_SEED };
        let mut out = Vec::with_capacity(self.prefix.len() + message.encoded_len());
        out.extend_from_slice(&self.prefix);
        out.extend_from_slice(&message.encode_to_vec());
        Ok(out)
    }

    /// The value of an object; `stored` is what follows the prefix.
    pub(super) async fn decrypt(
        &self,
        object: &str,
        stored: &[u8],
    ) -> Result<Vec<u8>, EnvelopeError> {
        let unreadable = |why: Unreadable| EnvelopeError::Unreadable(why.to_string());
        let (sealed, data) = EncryptedObject::decode_from(stored)
            .ok_or_else(|| unreadable(Unreadable::NotAuthentic))?;
        let digest = sealed.digest();
        let known = lock(&self.seeds).get(&digest).cloned();
        let seed = match known {
            Some(seed) => seed,
            None => {
                self.metrics.missed();
                let seed = self.unseal(&sealed).await?;
                self.keep(digest, Arc::clone(&seed));
                seed
            }
        };
        let plain = seed.open(object, &data).map_err(unreadable)?;
        self.metrics.used(Direction::FromStorage, &self.name, &sealed.key_id);
        Ok(plain)
    }

    async fn unseal(&self, sealed: &SealedSeed) -> Result<Arc<DataSeed>, EnvelopeError> {
        match self.service.decrypt(sealed).await {
            Ok(seed) if seed.len() == SEED_LEN => Ok(Arc::new(DataSeed::new(&seed))),
            Ok(seed) => Err(EnvelopeError::Unreadable(format!(
                "the KMS provider {:?} returned a seed of {} bytes",
                self.name,
                seed.len()
            ))),
            Err(KeyServiceError::Refused(why)) => Err(EnvelopeError::Unreadable(format!(
                "the KMS provider {:?} does not decrypt its seed: {why}",
                self.name
            ))),
            Err(KeyServiceError::Unavailable(why)) => Err(EnvelopeError::Unavailable(format!(
                "the KMS provider {:?} cannot decrypt: {why}",
                self.name
            ))),
        }
    }
}
