//! Encryption at rest: a store whose values are encrypted before another store keeps them.
//!
//! River: server writes → **encrypted** → engine; engine → **encrypted** → watch cache.
//! Promise: the values of the configured resources are in no file, log, history or backup of the
//! engine as plain bytes (S6.24). A value that cannot be decrypted is passed on as it is stored, so
//! that the reader reports that one object and serves all others; while a key service does not
//! work, reads that need it fail.

mod cipher;
mod envelope;
mod metrics;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use headwater_api::Revision;

pub use cipher::{CipherKey, InvalidKey};
use cipher::{MARK, Unreadable};
use envelope::EnvelopeError;
pub use envelope::{EnvelopeKeys, KeyService, KeyServiceError, SealedSeed};
pub use metrics::EncryptionMetrics;
use metrics::{Direction, Outcome};
use tokio::time::Instant;

use crate::change::{Batch, ChangeKind, Version};
use crate::key::{self, Key};
use crate::store::{
    Action, ChangeStream, Committed, Error, Guard, KeyServiceHealth, Range, RangePage, Record,
    Store, StoreCondition, Write,
};
use crate::versions::{KeyHistory, RevisionAt, VersionRange};

/// Values that are encrypted again in one step of [`Encrypted::rewrite`].
const PAGE: usize = 500;

/// How the values of a resource are written and read.
#[derive(Debug)]
pub enum Provider {
    /// Plain.
    Identity,
    /// Encrypted; the first key writes, all keys read.
    Keys(Vec<CipherKey>),
    /// Encrypted under keys of a key service.
    Service(Box<EnvelopeKeys>),
}

/// What encrypts the values that are written.
enum ValueWriter<'a> {
    Key(&'a CipherKey),
    Service(&'a EnvelopeKeys),
}

impl ValueWriter<'_> {
    fn prefix(&self) -> &[u8] {
        match self {
            ValueWriter::Key(key) => key.prefix(),
            ValueWriter::Service(keys) => keys.prefix(),
        }
    }

    fn encrypt(&self, key: &Key, value: &[u8]) -> Result<Vec<u8>, Error> {
        match self {
            ValueWriter::Key(writer) => writer
                .encrypt(key.as_str(), value)
                .ok_or_else(|| Error::Unavailable(format!("cannot encrypt {key}"))),
            ValueWriter::Service(writer) => writer.encrypt(key.as_str(), value),
        }
    }
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
            Provider::Keys(keys) => keys.iter(),
            Provider::Identity | Provider::Service(_) => [].iter(),
        })
    }

    fn services(&self) -> impl Iterator<Item = &EnvelopeKeys> {
        self.providers.iter().filter_map(|provider| match provider {
            Provider::Service(keys) => Some(&**keys),
            Provider::Identity | Provider::Keys(_) => None,
        })
    }

    /// The key that writes; `None` writes plain values.
    fn writer(&self) -> Option<ValueWriter<'_>> {
        match self.providers.first()? {
            Provider::Keys(keys) => keys.first().map(ValueWriter::Key),
            Provider::Service(keys) => Some(ValueWriter::Service(keys)),
            Provider::Identity => None,
        }
    }

    fn reads_plain(&self) -> bool {
        self.providers.iter().any(|provider| matches!(provider, Provider::Identity))
    }

    /// The plain value, if the stored one is not plain; and the prefix of the provider that knows it.
    async fn decrypt(
        &self,
        key: &Key,
        value: &[u8],
    ) -> (Option<&[u8]>, Result<Option<Vec<u8>>, EnvelopeError>) {
        if !value.starts_with(MARK) {
            if self.reads_plain() {
                return (Some(b""), Ok(None));
            }
            // Somebody who may write to the engine, and does not know the key, wrote it.
            let why = "it is plain, and the providers of its resource do not include identity";
            return (None, Err(EnvelopeError::Unreadable(why.into())));
        }
        let mut failure = (None, Unreadable::UnknownKey);
        for cipher in self.keys() {
            if let Some(sealed) = value.strip_prefix(cipher.prefix()) {
                match cipher.decrypt(key.as_str(), sealed) {
                    Ok(plain) => return (Some(cipher.prefix()), Ok(Some(plain))),
                    Err(why) => failure = (Some(cipher.prefix()), why),
                }
            }
        }
        for service in self.services() {
            if let Some(sealed) = value.strip_prefix(service.prefix()) {
                let plain = service.decrypt(key.as_str(), sealed).await;
                return (Some(service.prefix()), plain.map(Some));
            }
        }
        let (prefix, why) = failure;
        (prefix, Err(EnvelopeError::Unreadable(why.to_string())))
    }
}

impl Encryption {
    fn rule(&self, key: &str) -> Option<&EncryptionRule> {
        let mut parts = key.strip_prefix(key::ROOT)?.split('/');
        let (group, resource) = (parts.next()?, parts.next()?);
        self.rules.iter().find(|rule| rule.names(group, resource))
    }

    /// Asks every key service for its current key. Returns whether some values are written with
    /// another key from now on, or why a service does not work.
    pub async fn refresh(&self) -> Result<bool, Error> {
        let (mut is_changed, mut failure) = (false, None);
        for service in self.rules.iter().flat_map(EncryptionRule::services) {
            match service.refresh().await {
                Ok(changed) => is_changed |= changed,
                Err(why) => failure = Some(why),
            }
        }
        failure.map_or(Ok(is_changed), |why| Err(Error::Unavailable(why)))
    }

    /// The health of the key services; `None` without any.
    fn key_services(&self) -> Option<KeyServiceHealth> {
        let mut services = self.rules.iter().flat_map(EncryptionRule::services).peekable();
        services.peek()?;
        Some(KeyServiceHealth { trouble: services.find_map(EnvelopeKeys::trouble) })
    }

    fn encrypt(&self, key: &Key, value: Bytes, seen: &EncryptionMetrics) -> Result<Bytes, Error> {
        let Some(rule) = self.rule(key.as_str()) else { return Ok(value) };
        let (writer, began) = (rule.writer(), Instant::now());
        let (prefix, sealed) = match &writer {
            None => (&b""[..], Ok(value)),
            Some(writer) => (writer.prefix(), writer.encrypt(key, &value).map(Bytes::from)),
        };
        let outcome = if sealed.is_ok() { Outcome::Done } else { Outcome::Unavailable };
        seen.transformed(Direction::ToStorage, prefix, outcome, began);
        sealed
    }

    /// The plain value; fails only if a key service does not work.
    async fn decrypt(
        &self,
        key: &Key,
        value: Bytes,
        seen: &EncryptionMetrics,
    ) -> Result<Bytes, Error> {
        match self.try_decrypt(key, &value, seen).await {
            Ok(Some(plain)) => Ok(plain.into()),
            Ok(None) => Ok(value),
            Err(EnvelopeError::Unavailable(why)) => Err(Error::Unavailable(why)),
            Err(EnvelopeError::Unreadable(why)) => {
                tracing::error!(%key, "cannot decrypt a stored value: {why}");
                // It is no JSON; the reader reports this object as unreadable.
                Ok(match value.starts_with(MARK) {
                    true => value,
                    false => Bytes::from_static(MARK),
                })
            }
        }
    }

    /// The plain value, if the stored one is not plain.
    async fn try_decrypt(
        &self,
        key: &Key,
        value: &[u8],
        seen: &EncryptionMetrics,
    ) -> Result<Option<Vec<u8>>, EnvelopeError> {
        let rule = self.rule(key.as_str());
        if rule.is_none() && !value.starts_with(MARK) || value.is_empty() {
            return Ok(None);
        }
        let began = Instant::now();
        let (prefix, plain) = match rule {
            None => (None, Err(EnvelopeError::Unreadable(Unreadable::UnknownKey.to_string()))),
            Some(rule) => rule.decrypt(key, value).await,
        };
        let prefix = prefix.unwrap_or(b"unknown");
        seen.transformed(Direction::FromStorage, prefix, Outcome::from(&plain), began);
        plain
    }

    /// Whether a value would be stored in another form if it were written now.
    fn is_stale(&self, key: &Key, stored: &[u8]) -> bool {
        let Some(writer) = self.rule(key.as_str()).and_then(EncryptionRule::writer) else {
            return stored.starts_with(MARK);
        };
        let Some(sealed) = stored.strip_prefix(writer.prefix()) else { return true };
        match writer {
            ValueWriter::Key(_) => false,
            ValueWriter::Service(keys) => keys.is_stale(sealed),
        }
    }

    async fn record(&self, record: Record, seen: &EncryptionMetrics) -> Result<Record, Error> {
        let value = self.decrypt(&record.key, record.value, seen).await?;
        Ok(Record { value, ..record })
    }

    async fn records(
        &self,
        records: Vec<Record>,
        seen: &EncryptionMetrics,
    ) -> Result<Vec<Record>, Error> {
        let mut plain = Vec::with_capacity(records.len());
        for record in records {
            plain.push(self.record(record, seen).await?);
        }
        Ok(plain)
    }

    async fn batch(&self, mut batch: Batch, seen: &EncryptionMetrics) -> Result<Batch, Error> {
        for change in &mut batch.changes {
            let value = std::mem::take(&mut change.value);
            change.value = self.decrypt(&change.key, value, seen).await?;
            if let Some(Version { value, .. }) = &mut change.prev {
                *value = self.decrypt(&change.key, std::mem::take(value), seen).await?;
            }
        }
        Ok(batch)
    }
}

/// A store that encrypts.
pub struct Encrypted {
    inner: Arc<dyn Store>,
    encryption: Arc<ArcSwap<Encryption>>,
    metrics: EncryptionMetrics,
}

impl Encrypted {
    /// Encrypts the values of another store.
    pub fn new(inner: Arc<dyn Store>, encryption: Encryption) -> Encrypted {
        let encryption = Arc::new(ArcSwap::from_pointee(encryption));
        Encrypted { inner, encryption, metrics: EncryptionMetrics::default() }
    }

    /// Counts in these metrics.
    #[must_use]
    pub fn with_metrics(mut self, metrics: EncryptionMetrics) -> Encrypted {
        self.metrics = metrics;
        self
    }

    /// Uses other keys for the following reads and writes. Stored values change when they are
    /// written, or by [`Encrypted::rewrite`].
    pub fn replace(&self, encryption: Encryption) {
        self.encryption.store(Arc::new(encryption));
    }

    /// Asks the key services for their current keys. Returns whether stored values should be
    /// rewritten.
    pub async fn refresh(&self) -> Result<bool, Error> {
        self.encryption.load_full().refresh().await
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
                let tried = encryption.try_decrypt(&record.key, &record.value, &self.metrics);
                let plain = match tried.await {
                    Ok(plain) => plain,
                    Err(EnvelopeError::Unavailable(why)) => return Err(Error::Unavailable(why)),
                    Err(EnvelopeError::Unreadable(why)) => {
                        tracing::error!(
                            key = %record.key,
                            "cannot decrypt a stored value; it is not rewritten: {why}"
                        );
                        continue;
                    }
                };
                let plain = plain.map_or(record.value, Bytes::from);
                let value = encryption.encrypt(&record.key, plain, &self.metrics)?;
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
        match self.inner.get(key).await? {
            Some(record) => {
                self.encryption.load_full().record(record, &self.metrics).await.map(Some)
            }
            None => Ok(None),
        }
    }

    async fn range(&self, range: Range) -> Result<RangePage, Error> {
        let RangePage { records, revision, more } = self.inner.range(range).await?;
        let records = self.encryption.load_full().records(records, &self.metrics).await?;
        Ok(RangePage { records, revision, more })
    }

    async fn commit(&self, mut write: Write) -> Result<Committed, Error> {
        {
            let encryption = self.encryption.load();
            for op in &mut write.ops {
                if let Action::Put { value, .. } = &mut op.action {
                    *value = encryption.encrypt(&op.key, std::mem::take(value), &self.metrics)?;
                }
            }
        }
        match self.inner.commit(write).await {
            Err(Error::Conflict { key, actual: Some(actual) }) => {
                let encryption = self.encryption.load_full();
                let actual = encryption.record(actual, &self.metrics).await?;
                Err(Error::Conflict { key, actual: Some(actual) })
            }
            committed => committed,
        }
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<ChangeStream, Error> {
        let changes = self.inner.watch(prefix, after).await?;
        let (encryption, metrics) = (Arc::clone(&self.encryption), self.metrics.clone());
        let decrypted = changes.then(move |batch| {
            let (encryption, metrics) = (encryption.load_full(), metrics.clone());
            async move { encryption.batch(batch?, &metrics).await }
        });
        Ok(decrypted.boxed())
    }

    async fn compact(&self, at: Revision) -> Result<(), Error> {
        self.inner.compact(at).await
    }

    async fn versions(&self, range: VersionRange) -> Result<KeyHistory, Error> {
        let key = range.key.clone();
        let mut history = self.inner.versions(range).await?;
        let encryption = self.encryption.load_full();
        for version in &mut history.versions {
            if version.kind != ChangeKind::Deleted {
                let value = std::mem::take(&mut version.value);
                version.value = encryption.decrypt(&key, value, &self.metrics).await?;
            }
        }
        Ok(history)
    }

    async fn revision_at(&self, time: i64) -> Result<Option<RevisionAt>, Error> {
        self.inner.revision_at(time).await
    }

    fn condition(&self) -> StoreCondition {
        let key_services = self.encryption.load().key_services();
        StoreCondition { key_services, ..self.inner.condition() }
    }
}
