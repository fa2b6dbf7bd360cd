//! Encryption at rest: a store whose values are encrypted before another store keeps them.
//!
//! River: server writes → **encrypted** → engine; engine → **encrypted** → watch cache.
//! Promise: the values of the configured resources are in no file, log, history or backup of the
//! engine as plain bytes (S6.24). A value that cannot be decrypted is passed on as it is stored, so
//! that the reader reports that one object and serves all others.

mod cipher;

use std::sync::Arc;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use headwater_api::Revision;

pub use cipher::{CipherKey, InvalidKey};
use cipher::{MARK, Unreadable};

use crate::change::Version;
use crate::key::{self, Key};
use crate::store::{
    Action, ChangeStream, Committed, Error, Guard, Range, RangePage, Record, Store, StoreCondition,
    Write,
};

/// Values that are encrypted again in one step of [`Encrypted::rewrite`].
const PAGE: usize = 500;

/// How the values of a resource are written and read.
#[derive(Debug)]
pub enum Provider {
    /// Plain.
    Identity,
    /// Encrypted; the first key writes, all keys read.
    Keys(Vec<CipherKey>),
}

/// The providers of some resources. The first one writes, all of them read.
#[derive(Debug)]
pub struct EncryptionRule {
    /// `secrets`, `deployments.apps`, `*.apps`, `*.` (the core group) or `*.*`.
    pub resources: Vec<String>,
    /// In order of preference.
    pub providers: Vec<Provider>,
}

/// Which resources are encrypted, and how. The first rule that names a resource decides; a resource
/// without a rule is plain.
#[derive(Debug, Default)]
pub struct Encryption {
    /// In order.
    pub rules: Vec<EncryptionRule>,
}

impl EncryptionRule {
    fn names(&self, group: &str, resource: &str) -> bool {
        let group = if group == "core" { "" } else { group };
        self.resources.iter().any(|pattern| match pattern.split_once('.') {
            None => group.is_empty() && (pattern == resource),
            Some(("*", "*")) => true,
            Some(("*", of)) => of == group,
            Some((name, of)) => name == resource && of == group,
        })
    }

    fn keys(&self) -> impl Iterator<Item = &CipherKey> {
        self.providers.iter().flat_map(|provider| match provider {
            Provider::Identity => [].iter(),
            Provider::Keys(keys) => keys.iter(),
        })
    }

    /// The key that writes; `None` writes plain values.
    fn writer(&self) -> Option<&CipherKey> {
        match self.providers.first() {
            Some(Provider::Keys(keys)) => keys.first(),
            Some(Provider::Identity) | None => None,
        }
    }

    fn reads_plain(&self) -> bool {
        self.providers.iter().any(|provider| matches!(provider, Provider::Identity))
    }
}

impl Encryption {
    fn rule(&self, key: &str) -> Option<&EncryptionRule> {
        let mut parts = key.strip_prefix(key::ROOT)?.split('/');
        let (group, resource) = (parts.next()?, parts.next()?);
        self.rules.iter().find(|rule| rule.names(group, resource))
    }

    fn encrypt(&self, key: &Key, value: Bytes) -> Result<Bytes, Error> {
        let Some(writer) = self.rule(key.as_str()).and_then(EncryptionRule::writer) else {
            return Ok(value);
        };
        let sealed = writer.encrypt(key.as_str(), &value);
        let sealed = sealed.ok_or_else(|| Error::Unavailable(format!("cannot encrypt {key}")))?;
        Ok(sealed.into())
    }

    fn decrypt(&self, key: &Key, value: Bytes) -> Bytes {
        match self.try_decrypt(key, &value) {
            Ok(Some(plain)) => plain.into(),
            Ok(None) => value,
            Err(why) => {
                tracing::error!(%key, "cannot decrypt a stored value: {why}");
                // It is no JSON; the reader reports this object as unreadable.
                match value.starts_with(MARK) {
                    true => value,
                    false => Bytes::from_static(MARK),
                }
            }
        }
    }

    /// The plain value, if the stored one is not plain.
    fn try_decrypt(&self, key: &Key, value: &[u8]) -> Result<Option<Vec<u8>>, String> {
        let rule = self.rule(key.as_str());
        if !value.starts_with(MARK) {
            return match rule {
                // Somebody who may write to the engine, and does not know the key, wrote it.
                Some(rule) if !rule.reads_plain() && !value.is_empty() => {
                    Err("it is plain, and the providers of its resource do not include identity"
                        .into())
                }
                _ => Ok(None),
            };
        }
        let keys = rule.into_iter().flat_map(EncryptionRule::keys);
        let mut failure = Unreadable::UnknownKey;
        for cipher in keys {
            if let Some(sealed) = value.strip_prefix(cipher.prefix()) {
                match cipher.decrypt(key.as_str(), sealed) {
                    Ok(plain) => return Ok(Some(plain)),
                    Err(why) => failure = why,
                }
            }
        }
        Err(failure.to_string())
    }

    /// Whether a value would be stored in another form if it were written now.
    fn is_stale(&self, key: &Key, stored: &[u8]) -> bool {
        match self.rule(key.as_str()).and_then(EncryptionRule::writer) {
            Some(writer) => !stored.starts_with(writer.prefix()),
            None => stored.starts_with(MARK),
        }
    }

    fn record(&self, record: Record) -> Record {
        let value = self.decrypt(&record.key, record.value);
        Record { value, ..record }
    }
}

/// A store that encrypts.
pub struct Encrypted {
    inner: Arc<dyn Store>,
    encryption: Arc<ArcSwap<Encryption>>,
}

impl Encrypted {
    /// Encrypts the values of another store.
    pub fn new(inner: Arc<dyn Store>, encryption: Encryption) -> Encrypted {
        Encrypted { inner, encryption: Arc::new(ArcSwap::from_pointee(encryption)) }
    }

    /// Uses other keys for the following reads and writes. Stored values change when they are
    /// written, or by [`Encrypted::rewrite`].
    pub fn replace(&self, encryption: Encryption) {
        self.encryption.store(Arc::new(encryption));
    }

    /// Writes every value again that is not in the form in which it would be written now. Returns
    /// their number. Values with a time to live are left to expire. A value that another write
    /// changes meanwhile is in the new form already.
    pub async fn rewrite(&self) -> Result<u64, Error> {
        let mut rewritten = 0;
        let mut after = None;
        loop {
            let range = Range { prefix: key::ROOT.to_owned(), after, at: None, limit: Some(PAGE) };
            let page = self.inner.range(range).await?;
            after = page.records.last().map(|record| record.key.clone());
            for record in page.records {
                let encryption = self.encryption.load_full();
                if expires(&record.key) || !encryption.is_stale(&record.key, &record.value) {
                    continue;
                }
                let Ok(plain) = encryption.try_decrypt(&record.key, &record.value) else {
                    tracing::error!(key = %record.key, "cannot decrypt a stored value; it is not rewritten");
                    continue;
                };
                let plain = plain.map_or(record.value, Bytes::from);
                let value = encryption.encrypt(&record.key, plain)?;
                let action = Action::Put { value, ttl: None };
                let write = Write::one(record.key, Guard::At(record.revision), action);
                match self.inner.commit(write).await {
                    Ok(_) => rewritten += 1,
                    Err(Error::Conflict { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            if !page.more {
                return Ok(rewritten);
            }
        }
    }
}

/// Whether values of this key have a time to live, which a rewrite would lose.
fn expires(key: &Key) -> bool {
    let collection = key::collection_of(key.as_str());
    [key::collection("", "events"), key::collection("events.k8s.io", "events")]
        .iter()
        .any(|events| events == collection)
}

#[async_trait]
impl Store for Encrypted {
    async fn revision(&self) -> Result<Revision, Error> {
        self.inner.revision().await
    }

    async fn get(&self, key: &Key) -> Result<Option<Record>, Error> {
        let found = self.inner.get(key).await?;
        Ok(found.map(|record| self.encryption.load().record(record)))
    }

    async fn range(&self, range: Range) -> Result<RangePage, Error> {
        let mut page = self.inner.range(range).await?;
        let encryption = self.encryption.load();
        page.records = page.records.into_iter().map(|record| encryption.record(record)).collect();
        Ok(page)
    }

    async fn commit(&self, mut write: Write) -> Result<Committed, Error> {
        {
            let encryption = self.encryption.load();
            for op in &mut write.ops {
                if let Action::Put { value, .. } = &mut op.action {
                    *value = encryption.encrypt(&op.key, std::mem::take(value))?;
                }
            }
        }
        let committed = self.inner.commit(write).await;
        committed.map_err(|error| match error {
            Error::Conflict { key, actual } => {
                let actual = actual.map(|record| self.encryption.load().record(record));
                Error::Conflict { key, actual }
            }
            error => error,
        })
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<ChangeStream, Error> {
        let changes = self.inner.watch(prefix, after).await?;
        let encryption = Arc::clone(&self.encryption);
        let decrypted = changes.map(move |batch| {
            let mut batch = batch?;
            let encryption = encryption.load();
            for change in &mut batch.changes {
                change.value = encryption.decrypt(&change.key, std::mem::take(&mut change.value));
                if let Some(Version { value, .. }) = &mut change.prev {
                    *value = encryption.decrypt(&change.key, std::mem::take(value));
                }
            }
            Ok(batch)
        });
        Ok(decrypted.boxed())
    }

    async fn compact(&self, at: Revision) -> Result<(), Error> {
        self.inner.compact(at).await
    }

    fn condition(&self) -> StoreCondition {
        self.inner.condition()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;

    fn aes(name: &str, byte: u8) -> Provider {
        Provider::Keys(vec![CipherKey::aes_gcm(name, &[byte; 32]).unwrap()])
    }

    fn secrets(providers: Vec<Provider>) -> Encryption {
        Encryption { rules: vec![EncryptionRule { resources: vec!["secrets".into()], providers }] }
    }

    fn put(key: &str, guard: Guard) -> Write {
        let action = Action::Put { value: Bytes::from_static(b"{\"a\":1}"), ttl: None };
        Write::one(Key::new(key), guard, action)
    }

    const SECRET: &str = "/registry/core/secrets/ns/a";
    const MAP: &str = "/registry/core/configmaps/ns/a";

    async fn stored(store: &dyn Store, key: &str) -> Bytes {
        store.get(&Key::new(key)).await.unwrap().unwrap().value
    }

    /// S6.24
    #[tokio::test]
    async fn values_of_the_configured_resources_are_encrypted() {
        let inner = Arc::new(Memory::default());
        let store = Encrypted::new(inner.clone(), secrets(vec![aes("k", 1), Provider::Identity]));
        let mut watch = store.watch(key::ROOT, crate::FIRST).await.unwrap();
        for key in [SECRET, MAP] {
            store.commit(put(key, Guard::Absent)).await.unwrap();
            let change = watch.next().await.unwrap().unwrap().changes.remove(0);
            assert_eq!(change.value, "{\"a\":1}");
            assert_eq!(stored(&store, key).await, "{\"a\":1}");
        }
        assert!(stored(&*inner, SECRET).await.starts_with(b"k8s:enc:aesgcm:v1:k:"));
        assert_eq!(stored(&*inner, MAP).await, "{\"a\":1}");
        let all =
            store.range(Range { prefix: key::ROOT.into(), ..Range::default() }).await.unwrap();
        assert!(all.records.iter().all(|record| record.value == "{\"a\":1}"));
        // A conflict returns the plain value.
        match store.commit(put(SECRET, Guard::Absent)).await.unwrap_err() {
            Error::Conflict { actual, .. } => assert_eq!(actual.unwrap().value, "{\"a\":1}"),
            other => panic!("{other}"),
        }
        // So do deletes, with the previous value.
        let revision = store.get(&Key::new(SECRET)).await.unwrap().unwrap().revision;
        let delete = Write::one(Key::new(SECRET), Guard::At(revision), Action::Delete);
        store.commit(delete).await.unwrap();
        let change = watch.next().await.unwrap().unwrap().changes.remove(0);
        assert_eq!(change.prev.unwrap().value, "{\"a\":1}");
    }

    #[tokio::test]
    async fn rotation_reads_with_old_keys_and_rewrites_with_the_first() {
        let inner = Arc::new(Memory::default());
        let store = Encrypted::new(inner.clone(), secrets(vec![Provider::Identity]));
        store.commit(put(SECRET, Guard::Absent)).await.unwrap();
        assert_eq!(stored(&*inner, SECRET).await, "{\"a\":1}");
        for (providers, prefix) in [
            (vec![aes("new", 2), Provider::Identity], "k8s:enc:aesgcm:v1:new:"),
            (vec![aes("newer", 3), aes("new", 2)], "k8s:enc:aesgcm:v1:newer:"),
            (vec![Provider::Identity, aes("newer", 3)], "{\"a\":1}"),
        ] {
            store.replace(secrets(providers));
            assert_eq!(stored(&store, SECRET).await, "{\"a\":1}");
            assert_eq!(store.rewrite().await.unwrap(), 1);
            assert_eq!(store.rewrite().await.unwrap(), 0);
            assert!(stored(&*inner, SECRET).await.starts_with(prefix.as_bytes()), "{prefix}");
            assert_eq!(stored(&store, SECRET).await, "{\"a\":1}");
        }
    }

    #[tokio::test]
    async fn an_unreadable_value_is_passed_on_and_harms_no_other() {
        let inner = Arc::new(Memory::default());
        let store = Encrypted::new(inner.clone(), secrets(vec![aes("k", 1)]));
        inner.commit(put(SECRET, Guard::Absent)).await.unwrap();
        store.commit(put("/registry/core/secrets/ns/b", Guard::Absent)).await.unwrap();
        // Plain bytes are not accepted without the identity provider.
        assert_eq!(stored(&store, SECRET).await, MARK);
        assert_eq!(stored(&store, "/registry/core/secrets/ns/b").await, "{\"a\":1}");
        store.replace(secrets(vec![aes("other", 1), Provider::Identity]));
        assert!(stored(&store, "/registry/core/secrets/ns/b").await.starts_with(MARK));
        assert_eq!(stored(&store, SECRET).await, "{\"a\":1}");
    }

    #[test]
    fn the_first_rule_that_names_a_resource_decides() {
        let rule = |resources: &[&str]| EncryptionRule {
            resources: resources.iter().map(|name| (*name).to_owned()).collect(),
            providers: Vec::new(),
        };
        let names =
            |pattern: &str, group: &str, resource: &str| rule(&[pattern]).names(group, resource);
        assert!(names("secrets", "core", "secrets") && !names("secrets", "apps", "secrets"));
        assert!(names("deployments.apps", "apps", "deployments"));
        assert!(names("*.apps", "apps", "x") && !names("*.apps", "core", "x"));
        assert!(names("*.", "core", "pods") && !names("*.", "apps", "pods"));
        assert!(
            names("*.*", "a.example.org", "x") && names("*.a.example.org", "a.example.org", "x")
        );
        let all = Encryption { rules: vec![rule(&["secrets"]), rule(&["*.*"])] };
        let found = all.rule(SECRET).unwrap();
        assert_eq!(found.resources, ["secrets"]);
        assert_eq!(all.rule(MAP).unwrap().resources, ["*.*"]);
    }
}
