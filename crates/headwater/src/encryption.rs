//! Encryption at rest: the file that configures it, and its reload.
//!
//! The file is Kubernetes' `EncryptionConfiguration`. When it changes, or the key of a KMS plugin does,
//! the server uses the new keys from then on and writes the stored values again that are not in the
//! form that they ask for. An invalid new file, or one with a plugin that does not work, leaves the
//! old keys in effect.

mod configuration;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use headwater_server::pki::private_file::{self, OthersMayRead};
use headwater_store::Store;
use headwater_store::encrypted::{Encrypted, Encryption, EncryptionMetrics};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use configuration::parse;

/// How often the file is checked for changes.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often a KMS plugin is asked for its key.
const ASK_EVERY: Duration = Duration::from_secs(10);
/// How long a start waits for KMS plugins: they may be started together with the server.
const START_WAIT: Duration = Duration::from_secs(30);
/// The pause before a plugin is called again at the start.
const START_RETRY: Duration = Duration::from_millis(200);
/// The pause before a failed rewrite or a changed file is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// The encryption of a store, and the file that configures it.
pub(crate) struct EncryptionFile {
    path: PathBuf,
    others: OthersMayRead,
    text: Zeroizing<String>,
    /// When a valid file whose plugins do not work is tried again.
    retry_at: Option<Instant>,
    store: Arc<Encrypted>,
    metrics: EncryptionMetrics,
}

impl EncryptionFile {
    /// Reads the file, and waits for its KMS plugins. The store that it returns encrypts what `inner`
    /// keeps.
    pub(crate) async fn open(
        path: &Path,
        others: OthersMayRead,
        inner: Arc<dyn Store>,
        metrics: &EncryptionMetrics,
    ) -> Result<EncryptionFile> {
        let text = private_file::read(path, others)?;
        let encryption = parse(&text, metrics).with_context(|| {
            format!("the encryption configuration {} is invalid", path.display())
        })?;
        wait_for_keys(&encryption).await?;
        let store = Arc::new(Encrypted::new(inner, encryption).with_metrics(metrics.clone()));
        let (path, metrics) = (path.to_owned(), metrics.clone());
        Ok(EncryptionFile { path, others, text, retry_at: None, store, metrics })
    }

    /// The store that encrypts.
    pub(crate) fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    /// Rewrites stale values, and follows changes of the file and of the plugins' keys, until the
    /// server stops.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let (store, stale) = (Arc::clone(&self.store), Notify::new());
        let work = async { tokio::join!(keep_keys(&store, &stale), self.follow(&stale)) };
        stop.run_until_cancelled(work).await;
    }

    async fn follow(mut self, stale: &Notify) {
        loop {
            self.rewrite().await;
            loop {
                tokio::select! {
                    () = stale.notified() => break,
                    () = sleep(LOOK_EVERY) => if self.reload().await {
                        break;
                    }
                }
            }
        }
    }

    /// Whether a changed file is in effect.
    async fn reload(&mut self) -> bool {
        // A missing file is one that is being replaced; it is read the next time.
        let Ok(text) = private_file::read(&self.path, self.others) else { return false };
        let is_due = self.retry_at.is_some_and(|at| Instant::now() >= at);
        if text == self.text && !is_due {
            return false;
        }
        self.text = text;
        self.retry_at = None;
        let path = self.path.display();
        let encryption = match parse(&self.text, &self.metrics) {
            Ok(encryption) => encryption,
            Err(error) => {
                self.metrics.reloaded(false);
                let error = format!("{error:#}");
                tracing::error!(error, %path,
                    "the changed encryption configuration is invalid; the old one stays in effect");
                return false;
            }
        };
        if let Err(error) = encryption.refresh().await {
            tracing::error!(%error, %path,
                "the changed encryption configuration cannot be used yet; the old one stays in effect");
            self.retry_at = Some(Instant::now() + RETRY_AFTER);
            self.metrics.reloaded(false);
            return false;
        }
        self.store.replace(encryption);
        self.metrics.reloaded(true);
        tracing::info!(%path, "the encryption configuration was reloaded");
        true
    }

    async fn rewrite(&self) {
        loop {
            match self.store.rewrite().await {
                Ok(0) => return,
                Ok(count) => {
                    tracing::info!(count, "stored values were encrypted as configured");
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot encrypt all stored values again; trying later");
                    sleep(RETRY_AFTER).await;
                }
            }
        }
    }
}

/// Waits until every KMS plugin has given a key.
async fn wait_for_keys(encryption: &Encryption) -> Result<()> {
    let until = Instant::now() + START_WAIT;
    let mut is_waiting = false;
    while let Err(error) = encryption.refresh().await {
        if Instant::now() >= until {
            bail!("{error}");
        }
        if !std::mem::replace(&mut is_waiting, true) {
            tracing::warn!(%error, "waiting for a KMS plugin");
        }
        sleep(START_RETRY).await;
    }
    Ok(())
}

/// Asks the KMS plugins for their keys again and again.
async fn keep_keys(store: &Encrypted, stale: &Notify) {
    let mut is_failing = false;
    loop {
        sleep(ASK_EVERY).await;
        let asked = store.refresh().await;
        match (&asked, is_failing) {
            (Ok(_), true) => tracing::info!("the KMS plugins work again"),
            (Err(error), false) => tracing::error!(%error, "a KMS plugin does not work"),
            (Ok(_), false) | (Err(_), true) => {}
        }
        is_failing = asked.is_err();
        if matches!(asked, Ok(true)) {
            stale.notify_one();
        }
    }
}
