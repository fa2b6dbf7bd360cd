//! Values under a seed that a key service encrypts, with a service in memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use zeroize::Zeroizing;

use super::{MAP, SECRET, put, secrets, stored};
use crate::encrypted::{
    Encrypted, Encryption, EnvelopeKeys, KeyService, KeyServiceError, Provider, SealedSeed,
};
use crate::lock::lock;
use crate::memory::Memory;
use crate::{Action, Error, Guard, Key, KeyServiceHealth, Store, Write, key};

/// A service that "encrypts" by adding the length of its key id to each byte.
#[derive(Debug, Default)]
struct ScriptedService {
    state: Mutex<ScriptedState>,
}

#[derive(Debug, Default)]
struct ScriptedState {
    key_id: String,
    /// The id that encryptions report, if another one.
    writes_with: Option<String>,
    failure: Option<KeyServiceError>,
    ciphertext_len: Option<usize>,
    encrypted: usize,
    decrypted: usize,
}

impl ScriptedService {
    fn new(key_id: &str) -> Arc<ScriptedService> {
        let service = ScriptedService::default();
        service.set(|state| key_id.clone_into(&mut state.key_id));
        Arc::new(service)
    }

    fn set(&self, change: impl FnOnce(&mut ScriptedState)) {
        change(&mut lock(&self.state));
    }

    fn fail(&self, failure: Option<KeyServiceError>) {
        self.set(|state| state.failure = failure);
    }

    fn calls(&self) -> (usize, usize) {
        let state = lock(&self.state);
        (state.encrypted, state.decrypted)
    }

    fn provider(self: &Arc<ScriptedService>) -> Provider {
        Provider::Service(Box::new(EnvelopeKeys::new("vault", self.clone()).unwrap()))
    }
}

fn shifted(bytes: &[u8], by: u8) -> Vec<u8> {
    bytes.iter().map(|byte| byte.wrapping_add(by)).collect()
}

fn shift(key_id: &str) -> u8 {
    u8::try_from(key_id.len()).unwrap()
}

#[async_trait]
impl KeyService for ScriptedService {
    async fn key_id(&self) -> Result<String, KeyServiceError> {
        let state = lock(&self.state);
        state.failure.clone().map_or_else(|| Ok(state.key_id.clone()), Err)
    }

    async fn encrypt(&self, seed: &[u8]) -> Result<SealedSeed, KeyServiceError> {
        let mut state = lock(&self.state);
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        state.encrypted += 1;
        let key_id = state.writes_with.clone().unwrap_or_else(|| state.key_id.clone());
        let mut ciphertext = shifted(seed, shift(&key_id));
        if let Some(len) = state.ciphertext_len {
            ciphertext.resize(len, 0);
        }
        let annotations = BTreeMap::from([("version.example.org".to_owned(), vec![7])]);
        Ok(SealedSeed { ciphertext, key_id, annotations })
    }

    async fn decrypt(&self, sealed: &SealedSeed) -> Result<Zeroizing<Vec<u8>>, KeyServiceError> {
        let mut state = lock(&self.state);
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        state.decrypted += 1;
        if sealed.annotations.get("version.example.org").is_none_or(|value| *value != [7]) {
            return Err(KeyServiceError::Refused("the annotations were changed".into()));
        }
        let back = 0u8.wrapping_sub(shift(&sealed.key_id));
        Ok(Zeroizing::new(shifted(&sealed.ciphertext, back)))
    }
}

/// A store over these bytes, as another process would open it.
async fn open(inner: &Arc<Memory>, service: &Arc<ScriptedService>) -> Encrypted {
    let store = Encrypted::new(inner.clone(), secrets(vec![service.provider()]));
    store.refresh().await.unwrap();
    store
}

fn other(name: &str) -> String {
    format!("/registry/core/secrets/ns/{name}")
}

#[tokio::test]
async fn the_service_sees_one_seed_and_no_value() {
    let (inner, service) = (Arc::new(Memory::default()), ScriptedService::new("one"));
    let store = open(&inner, &service).await;
    for name in 0..100 {
        store.commit(put(&other(&format!("s{name}")), Guard::Absent)).await.unwrap();
    }
    store.commit(put(MAP, Guard::Absent)).await.unwrap();
    assert_eq!(stored(&store, &other("s7")).await, "{\"a\":1}");
    assert_eq!(service.calls(), (1, 0));
    let raw = stored(&*inner, &other("s7")).await;
    assert!(raw.starts_with(b"k8s:enc:kms:v2:vault:"));
    assert_ne!(raw, stored(&*inner, &other("s8")).await, "each value has a key of its own");
    assert_eq!(stored(&*inner, MAP).await, "{\"a\":1}");

    // Another process asks for the seed once, however many values there are.
    let second = open(&inner, &service).await;
    let page = second.range(crate::Range { prefix: key::ROOT.into(), ..Default::default() });
    let page = page.await.unwrap();
    assert!(page.records.iter().all(|record| record.value == "{\"a\":1}"));
    assert_eq!(service.calls(), (2, 1));
}

#[tokio::test]
async fn a_value_is_bound_to_its_object_and_every_bit_counts() {
    let service = ScriptedService::new("one");
    let Provider::Service(keys) = service.provider() else { unreachable!() };
    keys.refresh().await.unwrap();
    let value = keys.encrypt(SECRET, b"hunter2").unwrap();
    let sealed = value.strip_prefix(keys.prefix()).unwrap();
    assert!(matches!(keys.decrypt(SECRET, sealed).await, Ok(plain) if plain == b"hunter2"));
    assert!(keys.decrypt(&other("b"), sealed).await.is_err());
    for bit in 0..sealed.len() * 8 {
        let mut changed = sealed.to_vec();
        changed[bit / 8] ^= 1 << (bit % 8);
        let read = keys.decrypt(SECRET, &changed).await;
        assert!(!matches!(read, Ok(plain) if plain != b"hunter2"), "bit {bit}");
    }
    for len in 0..sealed.len() {
        let read = keys.decrypt(SECRET, &sealed[..len]);
        assert!(!matches!(read.await, Ok(plain) if plain != b"hunter2"), "{len} bytes");
    }
}

#[tokio::test]
async fn a_new_key_id_writes_with_a_new_seed_and_old_values_are_rewritten() {
    let (inner, service) = (Arc::new(Memory::default()), ScriptedService::new("one"));
    let store = open(&inner, &service).await;
    store.commit(put(SECRET, Guard::Absent)).await.unwrap();
    assert!(!store.refresh().await.unwrap(), "the key is the same");
    assert_eq!(store.rewrite().await.unwrap(), 0);

    service.set(|state| "three".clone_into(&mut state.key_id));
    assert!(store.refresh().await.unwrap());
    assert_eq!(service.calls(), (2, 0));
    assert_eq!(stored(&store, SECRET).await, "{\"a\":1}");
    assert_eq!(store.rewrite().await.unwrap(), 1);
    assert_eq!(store.rewrite().await.unwrap(), 0);
    let raw = stored(&*inner, SECRET).await;
    assert!(raw.windows(5).any(|part| part == b"three") && !raw.windows(3).any(|p| p == b"one"));
    assert_eq!(stored(&open(&inner, &service).await, SECRET).await, "{\"a\":1}");
}

#[tokio::test(start_paused = true)]
async fn writes_stop_when_the_key_is_not_confirmed_and_reads_go_on() {
    let (inner, service) = (Arc::new(Memory::default()), ScriptedService::new("one"));
    let store = open(&inner, &service).await;
    store.commit(put(SECRET, Guard::Absent)).await.unwrap();
    let is_healthy = |store: &Encrypted| store.condition().key_services.unwrap().trouble;
    assert_eq!(is_healthy(&store), None);

    service.fail(Some(KeyServiceError::Unavailable("no route to the HSM".into())));
    let error = store.refresh().await.unwrap_err().to_string();
    assert!(error.contains("the KMS provider \"vault\": no route to the HSM"), "{error}");
    let expected = "the KMS provider \"vault\": no route to the HSM";
    assert_eq!(is_healthy(&store).as_deref(), Some(expected));
    tokio::time::advance(Duration::from_secs(179)).await;
    store.commit(put(&other("b"), Guard::Absent)).await.unwrap();
    tokio::time::advance(Duration::from_secs(1)).await;
    let error = store.commit(put(&other("c"), Guard::Absent)).await.unwrap_err();
    assert!(matches!(&error, Error::Unavailable(why) if why.contains("no route")), "{error}");
    // What needs no key of the service works as before.
    assert_eq!(stored(&store, SECRET).await, "{\"a\":1}");
    store.commit(put(MAP, Guard::Absent)).await.unwrap();
    let revision = store.get(&Key::new(SECRET)).await.unwrap().unwrap().revision;
    let delete = Write::one(Key::new(SECRET), Guard::At(revision), Action::Delete);
    store.commit(delete).await.unwrap();

    service.fail(None);
    assert!(!store.refresh().await.unwrap());
    store.commit(put(&other("c"), Guard::Absent)).await.unwrap();
    assert_eq!(is_healthy(&store), None);
    let plain = Encrypted::new(inner, Encryption::default());
    assert_eq!(plain.condition().key_services, None::<KeyServiceHealth>);
}

#[tokio::test]
async fn a_read_fails_while_the_service_is_away_and_an_object_is_unreadable_if_it_refuses() {
    let (inner, service) = (Arc::new(Memory::default()), ScriptedService::new("one"));
    open(&inner, &service).await.commit(put(SECRET, Guard::Absent)).await.unwrap();
    let store = open(&inner, &service).await;
    service.fail(Some(KeyServiceError::Unavailable("it starts".into())));
    let all = || crate::Range { prefix: key::ROOT.into(), ..Default::default() };
    for error in [
        store.get(&Key::new(SECRET)).await.unwrap_err(),
        store.range(all()).await.unwrap_err(),
        store.commit(put(SECRET, Guard::Absent)).await.unwrap_err(),
        store
            .rewrite()
            .await
            .map_or_else(|error| error, |_| Error::Unavailable("it starts".into())),
    ] {
        assert!(matches!(&error, Error::Unavailable(why) if why.contains("it starts")), "{error}");
    }
    let mut watch = store.watch(key::ROOT, crate::FIRST).await.unwrap();
    let batch = futures::StreamExt::next(&mut watch).await.unwrap();
    assert!(matches!(batch, Err(Error::Unavailable(_))));

    service.fail(Some(KeyServiceError::Refused("the key was destroyed".into())));
    assert_eq!(stored(&store, SECRET).await, stored(&*inner, SECRET).await);
    service.fail(None);
    assert_eq!(stored(&store, SECRET).await, "{\"a\":1}");
}

#[tokio::test]
async fn a_service_that_makes_no_sense_is_not_used() {
    let service = ScriptedService::new("");
    let Provider::Service(keys) = service.provider() else { unreachable!() };
    let refused = async |expected: &str| {
        let error = keys.refresh().await.unwrap_err();
        assert!(error.contains(expected), "{error}");
        assert!(matches!(keys.encrypt(SECRET, b"v"), Err(Error::Unavailable(_))));
    };
    refused("the key id is empty").await;
    service.set(|state| state.key_id = "k".repeat(1025));
    refused("the key id has 1025 bytes").await;
    service.set(|state| state.key_id = "one".into());
    service.set(|state| state.writes_with = Some("two".into()));
    refused("its key changed").await;
    service.set(|state| (state.writes_with, state.ciphertext_len) = (None, Some(0)));
    refused("an encrypted seed has 0 bytes").await;
    service.set(|state| state.ciphertext_len = Some(1025));
    refused("an encrypted seed has 1025 bytes").await;
    service.set(|state| state.ciphertext_len = None);
    keys.refresh().await.unwrap();
    assert!(EnvelopeKeys::new("a:b", service).is_err());
}
