//! Metrics of encryption at rest, with the names and labels of Kubernetes.
//!
//! River: encrypted store, keys of key services → **metrics** → `GET /metrics`. No label contains a key,
//! a value or the id of a service's key; ids are shown by their digest.

use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::{Arc, Mutex};

use headwater_api::metrics::{Counter, Desc, Family, Gauge, Histogram, Registry};
use headwater_api::{Clock, SystemClock};
use ring::digest;
use tokio::time::Instant;

use super::envelope::EnvelopeError;
use crate::lock::lock;

/// The keys of services that are shown: those that were used last.
const KEYS_MAX: usize = 10;

/// 5 µs to 84 s.
const TRANSFORMATIONS: &[f64] = &doubled::<25>(5e-6);
/// 5 µs to 41 ms.
const SEEDS: &[f64] = &doubled::<14>(5e-6);
/// 0.1 ms to 52 s.
const CALLS: &[f64] = &doubled::<20>(1e-4);

const fn doubled<const N: usize>(first: f64) -> [f64; N] {
    let mut bounds = [first; N];
    let mut at = 1;
    while at < N {
        bounds[at] = bounds[at - 1] * 2.0;
        at += 1;
    }
    bounds
}

/// Whether a value is read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    FromStorage,
    ToStorage,
}

impl Direction {
    fn name(self) -> &'static str {
        match self {
            Direction::FromStorage => "from_storage",
            Direction::ToStorage => "to_storage",
        }
    }
}

/// The result of a transformation, as metrics show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    Unreadable,
    Unavailable,
}

impl<T> From<&Result<T, EnvelopeError>> for Outcome {
    fn from(result: &Result<T, EnvelopeError>) -> Outcome {
        match result {
            Ok(_) => Outcome::Done,
            Err(EnvelopeError::Unreadable(_)) => Outcome::Unreadable,
            Err(EnvelopeError::Unavailable(_)) => Outcome::Unavailable,
        }
    }
}

/// A key of a service, and its samples. They are removed with the last handle.
struct UsedKey {
    direction: Option<Direction>,
    provider: String,
    id: String,
    uses: Option<Arc<Counter>>,
    last: Arc<Gauge>,
}

/// The metrics of encryption. Cheap to clone.
#[derive(Clone)]
pub struct EncryptionMetrics {
    operations: Family<Counter>,
    durations: Family<Histogram>,
    cache_misses: Family<Counter>,
    seeds: Family<Histogram>,
    failed_seeds: Family<Counter>,
    invalid_key_ids: Family<Counter>,
    key_uses: Family<Counter>,
    key_times: Family<Gauge>,
    status_times: Family<Gauge>,
    /// Calls of key services, by provider, method and code.
    pub calls: Family<Histogram>,
    reloads: Family<Counter>,
    reload_time: Family<Gauge>,
    /// The keys used last come first.
    used: Arc<Mutex<VecDeque<UsedKey>>>,
}

impl std::fmt::Debug for EncryptionMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EncryptionMetrics")
    }
}

impl Default for EncryptionMetrics {
    fn default() -> EncryptionMetrics {
        EncryptionMetrics::new(&Registry::default())
    }
}

impl EncryptionMetrics {
    /// Registers every family, empty.
    pub fn new(registry: &Registry) -> EncryptionMetrics {
        EncryptionMetrics {
            operations: registry.counters(Desc {
                name: "apiserver_storage_transformation_operations_total",
                help: "Values that were encrypted, decrypted or passed on by a provider.",
                labels: &["transformation_type", "transformer_prefix", "status"],
            }),
            durations: registry.histograms(
                Desc {
                    name: "apiserver_storage_transformation_duration_seconds",
                    help: "Time that a provider took for a value, without failures.",
                    labels: &["transformation_type", "transformer_prefix"],
                },
                TRANSFORMATIONS,
            ),
            cache_misses: registry.counters(Desc {
                name: "apiserver_storage_envelope_transformation_cache_misses_total",
                help: "Seeds that a KMS plugin had to decrypt.",
                labels: &[],
            }),
            seeds: registry.histograms(
                Desc {
                    name: "apiserver_storage_data_key_generation_duration_seconds",
                    help: "Time that the generation of a seed took.",
                    labels: &[],
                },
                SEEDS,
            ),
            failed_seeds: registry.counters(Desc {
                name: "apiserver_storage_data_key_generation_failures_total",
                help: "Seeds that could not be generated.",
                labels: &[],
            }),
            invalid_key_ids: registry.counters(Desc {
                name: "apiserver_envelope_encryption_invalid_key_id_from_status_total",
                help: "Invalid key ids that a KMS plugin reported as its current one.",
                labels: &["provider_name", "error"],
            }),
            key_uses: registry.scoped_counters(Desc {
                name: "apiserver_envelope_encryption_key_id_hash_total",
                help: "Values that were encrypted or decrypted under a key of a KMS plugin.",
                labels: &["transformation_type", "provider_name", "key_id_hash"],
            }),
            key_times: registry.scoped_gauges(Desc {
                name: "apiserver_envelope_encryption_key_id_hash_last_timestamp_seconds",
                help: "Time of the last use of a key of a KMS plugin.",
                labels: &["transformation_type", "provider_name", "key_id_hash"],
            }),
            status_times: registry.scoped_gauges(Desc {
                name: "apiserver_envelope_encryption_key_id_hash_status_last_timestamp_seconds",
                help: "Time at which a KMS plugin last reported a key as its current one.",
                labels: &["provider_name", "key_id_hash"],
            }),
            calls: registry.histograms(
                Desc {
                    name: "apiserver_envelope_encryption_kms_operations_latency_seconds",
                    help: "Duration of calls of KMS plugins.",
                    labels: &["provider_name", "method_name", "grpc_status_code"],
                },
                CALLS,
            ),
            reloads: registry.counters(Desc {
                name: "apiserver_encryption_config_controller_automatic_reloads_total",
                help: "Reloads of the encryption configuration.",
                labels: &["status"],
            }),
            reload_time: registry.gauges(Desc {
                name: "apiserver_encryption_config_controller_automatic_reload_last_timestamp_seconds",
                help: "Time of the last reload of the encryption configuration.",
                labels: &["status"],
            }),
            used: Arc::default(),
        }
    }

    /// Counts a value that a provider took since `began`.
    pub(super) fn transformed(
        &self,
        direction: Direction,
        prefix: &[u8],
        outcome: Outcome,
        began: Instant,
    ) {
        let prefix = provider_prefix(prefix);
        let status = match outcome {
            Outcome::Done => "OK",
            Outcome::Unreadable => "unknown-non-grpc",
            Outcome::Unavailable => "Unavailable",
        };
        self.operations.with(&[direction.name(), &prefix, status]).inc();
        if outcome == Outcome::Done {
            let took = began.elapsed().as_secs_f64();
            self.durations.with(&[direction.name(), &prefix]).observe(took);
        }
    }

    /// Counts a seed that is not in memory.
    pub(super) fn missed(&self) {
        self.cache_misses.with(&[]).inc();
    }

    /// Counts a seed that was generated, or not, since `began`.
    pub(super) fn seed_generated(&self, is_done: bool, began: Instant) {
        match is_done {
            true => self.seeds.with(&[]).observe(began.elapsed().as_secs_f64()),
            false => self.failed_seeds.with(&[]).inc(),
        }
    }

    /// Counts a use of a key of a service.
    pub(super) fn used(&self, direction: Direction, provider: &str, key_id: &str) {
        self.seen(Some(direction), provider, key_id);
    }

    /// Notes the key that a service has reported, or why its id is invalid.
    pub(super) fn reported(&self, provider: &str, key_id: &str) {
        match key_id.len() {
            0 => self.invalid_key_ids.with(&[provider, "empty"]).inc(),
            len if len > super::envelope::FIELD_MAX => {
                self.invalid_key_ids.with(&[provider, "too_long"]).inc();
            }
            _ => self.seen(None, provider, key_id),
        }
    }

    /// Counts a reload of the configuration.
    pub fn reloaded(&self, is_done: bool) {
        let status = if is_done { "success" } else { "failure" };
        self.reloads.with(&[status]).inc();
        self.reload_time.with(&[status]).set(SystemClock.now().as_second());
    }

    fn seen(&self, direction: Option<Direction>, provider: &str, id: &str) {
        let mut used = lock(&self.used);
        let is_it =
            |key: &UsedKey| key.direction == direction && key.provider == provider && key.id == id;
        let found = used.iter().position(is_it).and_then(|at| used.remove(at));
        let key = found.unwrap_or_else(|| self.key(direction, provider, id));
        key.last.set(SystemClock.now().as_second());
        if let Some(uses) = &key.uses {
            uses.inc();
        }
        used.push_front(key);
        used.truncate(KEYS_MAX);
    }

    fn key(&self, direction: Option<Direction>, provider: &str, id: &str) -> UsedKey {
        let hash = key_hash(id);
        let (uses, last) = match direction.map(Direction::name) {
            None => (None, self.status_times.with(&[provider, &hash])),
            Some(name) => {
                let labels = [name, provider, &hash];
                (Some(self.key_uses.with(&labels)), self.key_times.with(&labels))
            }
        };
        UsedKey { direction, provider: provider.to_owned(), id: id.to_owned(), uses, last }
    }
}

/// `sha256:` and the digest in hexadecimal digits.
fn key_hash(id: &str) -> String {
    let mut text = "sha256:".to_owned();
    for byte in digest::digest(&digest::SHA256, id.as_bytes()).as_ref() {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// The prefix of a provider: `k8s:enc:aesgcm:v1:` without the name of a key, `k8s:enc:kms:v2:NAME:`.
fn provider_prefix(prefix: &[u8]) -> String {
    let text = String::from_utf8_lossy(prefix);
    match text.match_indices(':').nth(3) {
        Some((end, _)) if !text.starts_with("k8s:enc:kms:") => text[..=end].to_owned(),
        _ => text.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_name_providers_and_not_keys() {
        for (prefix, expected) in [
            ("k8s:enc:aesgcm:v1:k1:", "k8s:enc:aesgcm:v1:"),
            ("k8s:enc:secretbox:v1:k1:", "k8s:enc:secretbox:v1:"),
            ("k8s:enc:kms:v2:vault:", "k8s:enc:kms:v2:vault:"),
            ("", ""),
        ] {
            assert_eq!(provider_prefix(prefix.as_bytes()), expected);
        }
    }

    #[test]
    fn the_keys_used_last_are_shown_by_their_digest() {
        let registry = Registry::default();
        let metrics = EncryptionMetrics::new(&registry);
        for key in 0..30 {
            metrics.used(Direction::ToStorage, "vault", &format!("key-{key}"));
        }
        metrics.used(Direction::ToStorage, "vault", "key-25");
        metrics.reported("vault", "key-29");
        metrics.reported("vault", "");
        metrics.reported("vault", &"x".repeat(2000));
        let text = registry.text();
        let count = |name: &str| text.lines().filter(|line| line.starts_with(name)).count();
        assert_eq!(count("apiserver_envelope_encryption_key_id_hash_total{"), KEYS_MAX - 1);
        assert_eq!(count("apiserver_envelope_encryption_key_id_hash_last_timestamp_seconds{"), 9);
        let status = "apiserver_envelope_encryption_key_id_hash_status_last_timestamp_seconds{";
        assert_eq!(count(status), 1);
        let hash = key_hash("key-25");
        let used = format!(
            "apiserver_envelope_encryption_key_id_hash_total{{transformation_type=\"to_storage\",\
             provider_name=\"vault\",key_id_hash=\"{hash}\"}} 2\n"
        );
        assert!(text.contains(&used), "{text}");
        for error in ["empty", "too_long"] {
            let line = format!(
                "apiserver_envelope_encryption_invalid_key_id_from_status_total\
                 {{provider_name=\"vault\",error=\"{error}\"}} 1\n"
            );
            assert!(text.contains(&line), "{text}");
        }
        assert!(!text.contains("key-2"), "{text}");
    }
}
