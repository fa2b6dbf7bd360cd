//! The keys of an issuer: fetched when they are needed, kept, and refreshed.
//!
//! Promise: one request at a time fetches, and at most one fetch is sent per interval, whatever tokens
//! arrive. If the issuer cannot be reached, the last keys stay in use.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::KeyFetcher;
use super::config::{ConfigurationError, IssuerConfig};
use super::jwk::{KeySet, UnverifiedToken};
use crate::outgoing::WebhookEndpoint;

/// How long a fetch may take.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);
/// After this time keys are fetched again, so that a withdrawn key ends.
const KEYS_AGE_MAX: Duration = Duration::from_secs(600);
/// The shortest time between two fetches: tokens with unknown keys cost no more.
const FETCH_INTERVAL: Duration = Duration::from_secs(10);
/// The longest time between two attempts while the issuer cannot be reached.
const BACKOFF_MAX: Duration = Duration::from_secs(60);

/// The keys of one issuer.
#[derive(Debug)]
pub(super) struct IssuerKeys {
    issuer: String,
    discovery: WebhookEndpoint,
    authority: Vec<u8>,
    current: ArcSwapOption<FetchedKeys>,
    schedule: Mutex<FetchSchedule>,
}

#[derive(Debug)]
struct FetchedKeys {
    keys: KeySet,
    at: Instant,
}

/// When the next fetch may begin.
#[derive(Debug, Default)]
struct FetchSchedule {
    not_before: Option<Instant>,
    failures: u32,
}

impl IssuerKeys {
    pub(super) fn new(config: &IssuerConfig) -> Result<IssuerKeys, ConfigurationError> {
        let authority = config.certificate_authority.clone().unwrap_or_default().into_bytes();
        let discovery = WebhookEndpoint::at(&config.discovery(), authority.clone())
            .map_err(|why| ConfigurationError::new(format!("issuer {:?}: {why}", config.url)))?;
        Ok(IssuerKeys {
            issuer: config.url.clone(),
            discovery,
            authority,
            current: ArcSwapOption::empty(),
            schedule: Mutex::default(),
        })
    }

    /// Checks the signature of a token; fetches the keys if they are missing, old, or do not fit.
    pub(super) async fn verify(
        &self,
        token: &UnverifiedToken<'_>,
        fetcher: KeyFetcher<'_>,
    ) -> Result<(), String> {
        let held = self.current.load_full();
        let is_fresh = held.as_ref().is_some_and(|held| held.at.elapsed() < KEYS_AGE_MAX);
        if is_fresh && held.as_ref().is_some_and(|held| held.keys.verifies(token)) {
            return Ok(());
        }
        self.refresh(held.as_ref(), fetcher).await;
        match self.current.load_full() {
            Some(now) if now.keys.verifies(token) => Ok(()),
            Some(_) => Err("failed to verify the signature".to_owned()),
            None => Err("the keys of the issuer are not available".to_owned()),
        }
    }

    /// Fetches the keys, unless another request did since `held` was read, or it is too early.
    async fn refresh(&self, held: Option<&Arc<FetchedKeys>>, fetcher: KeyFetcher<'_>) {
        let mut schedule = self.schedule.lock().await;
        let is_changed = match (held, &*self.current.load()) {
            (Some(held), Some(now)) => !Arc::ptr_eq(held, now),
            (None, now) => now.is_some(),
            (Some(_), None) => false,
        };
        let now = Instant::now();
        if is_changed || schedule.not_before.is_some_and(|earliest| now < earliest) {
            return;
        }
        // If this request is cancelled, the next one waits too.
        schedule.not_before = Some(now + FETCH_INTERVAL);
        match self.fetch(fetcher).await {
            Ok(keys) => {
                schedule.failures = 0;
                self.current.store(Some(Arc::new(FetchedKeys { keys, at: Instant::now() })));
            }
            Err(why) => {
                let wait = Duration::from_secs(1 << schedule.failures.min(6)).min(BACKOFF_MAX);
                schedule.failures += 1;
                schedule.not_before = Some(Instant::now() + wait);
                tracing::error!(issuer = self.issuer, why, "cannot fetch the keys of the issuer");
            }
        }
    }

    async fn fetch(&self, KeyFetcher { caller, cache }: KeyFetcher<'_>) -> Result<KeySet, String> {
        let about = caller.get(cache, &self.discovery, FETCH_TIMEOUT).await?;
        // A document of another issuer would let that issuer speak for this one.
        if about["issuer"] != self.issuer.as_str() {
            return Err(format!("its discovery document is of {}", about["issuer"]));
        }
        let url = about["jwks_uri"].as_str().unwrap_or_default();
        if !url.starts_with("https://") {
            return Err("its discovery document has no https jwks_uri".to_owned());
        }
        let place = WebhookEndpoint::at(url, self.authority.clone())?;
        KeySet::read(&caller.get(cache, &place, FETCH_TIMEOUT).await?)
    }
}
