//! The audit webhook: events in batches to another program.
//!
//! River: writer → **webhook** → the program. Promise: neither a request nor the log file waits for the
//! webhook. The buffer is bounded in events and in bytes; an event that does not fit, or whose batch is
//! given up, is counted as lost.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use headwater_api::metrics::Counter;
use headwater_cache::Cache;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::outgoing::{Caller, WebhookEndpoint, kubeconfig};

/// Bytes of events in the buffer.
const BYTES_MAX: usize = 64 * 1024 * 1024;
/// A batch with so many bytes is sent, whatever the number of its events.
const BATCH_BYTES: usize = 8 * 1024 * 1024;
/// How often a batch is sent at most.
const TRIES: u32 = 5;
/// How long one call may take.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The same while the server stops.
const LAST_TIMEOUT: Duration = Duration::from_secs(3);

/// Where events are sent, and in which batches.
#[derive(Debug)]
pub struct AuditWebhook {
    endpoint: WebhookEndpoint,
    batches: BatchOptions,
}

/// The size of batches, and the time between tries.
#[derive(Clone, Copy, Debug)]
pub struct BatchOptions {
    /// Events that wait at most.
    pub buffer_max: usize,
    /// Events in one batch.
    pub events_max: usize,
    /// How long an event waits for others.
    pub wait_max: Duration,
    /// The pause before the second try; each later pause is half as long again.
    pub backoff: Duration,
}

impl AuditWebhook {
    /// The webhook of a kubeconfig.
    pub fn open(path: &Path, batches: BatchOptions) -> Result<AuditWebhook, UnusableWebhook> {
        let endpoint = kubeconfig::endpoint(path).map_err(UnusableWebhook)?;
        Ok(AuditWebhook { endpoint, batches })
    }
}

/// The kubeconfig of the webhook cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the audit webhook: {0}")]
pub struct UnusableWebhook(String);

/// The sending half of the buffer.
pub(super) struct EventSender {
    lines: mpsc::Sender<Bytes>,
    bytes: Arc<AtomicUsize>,
}

impl EventSender {
    /// False if the event does not fit into the buffer.
    pub(super) fn push(&self, line: Vec<u8>) -> bool {
        let size = line.len();
        let fits = self.bytes.fetch_add(size, Relaxed).saturating_add(size) <= BYTES_MAX;
        let is_sent = fits && self.lines.try_send(line.into()).is_ok();
        if !is_sent {
            self.bytes.fetch_sub(size, Relaxed);
        }
        is_sent
    }
}

/// The receiving half: sends batches until every sender is gone.
pub(super) struct BatchSender {
    webhook: AuditWebhook,
    lines: mpsc::Receiver<Bytes>,
    bytes: Arc<AtomicUsize>,
    lost: Arc<Counter>,
}

/// A buffer between the writer and the webhook.
pub(super) fn buffer(webhook: AuditWebhook, lost: Arc<Counter>) -> (EventSender, BatchSender) {
    let (sender, lines) = mpsc::channel(webhook.batches.buffer_max.max(1));
    let bytes = Arc::new(AtomicUsize::new(0));
    let sender = EventSender { lines: sender, bytes: Arc::clone(&bytes) };
    (sender, BatchSender { webhook, lines, bytes, lost })
}

impl BatchSender {
    /// Sends batches. After `stop` a batch is sent once, without a second try.
    pub(super) async fn run(mut self, caller: &Caller, cache: &Cache, stop: &CancellationToken) {
        while let Some(batch) = self.next_batch().await {
            let size: usize = batch.iter().map(Bytes::len).sum();
            if let Err(why) = self.send(&batch, (caller, cache), stop).await {
                self.lost.add(batch.len() as u64);
                let events = batch.len();
                tracing::error!(why, events, "cannot send audit events to the webhook");
            }
            self.bytes.fetch_sub(size, Relaxed);
        }
    }

    /// The next events; `None` after the last.
    async fn next_batch(&mut self) -> Option<Vec<Bytes>> {
        let first = self.lines.recv().await?;
        let BatchOptions { events_max, wait_max, .. } = self.webhook.batches;
        let (mut size, until) = (first.len(), Instant::now() + wait_max);
        let mut batch = vec![first];
        while batch.len() < events_max && size < BATCH_BYTES {
            match tokio::time::timeout_at(until, self.lines.recv()).await {
                Ok(Some(line)) => {
                    size += line.len();
                    batch.push(line);
                }
                Ok(None) | Err(_) => break,
            }
        }
        Some(batch)
    }

    async fn send(
        &self,
        batch: &[Bytes],
        (caller, cache): (&Caller, &Cache),
        stop: &CancellationToken,
    ) -> Result<(), String> {
        let body = event_list(batch);
        let mut pause = self.webhook.batches.backoff;
        for attempt in 1.. {
            let is_last = attempt == TRIES || stop.is_cancelled();
            let timeout = if stop.is_cancelled() { LAST_TIMEOUT } else { TIMEOUT };
            let sent = caller.send(cache, &self.webhook.endpoint, body.clone(), timeout).await;
            match sent {
                Ok(()) => return Ok(()),
                Err(why) if is_last => return Err(why),
                Err(_) => {}
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = tokio::time::sleep(pause) => pause = pause * 3 / 2,
            }
        }
        Ok(())
    }
}

/// The body of a call.
fn event_list(batch: &[Bytes]) -> Bytes {
    let mut body =
        br#"{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"items":["#.to_vec();
    for (index, line) in batch.iter().enumerate() {
        if index > 0 {
            body.push(b',');
        }
        body.extend_from_slice(line);
    }
    body.extend_from_slice(b"]}");
    body.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_a_list_of_events() {
        let events = [Bytes::from_static(b"{\"a\":1}"), Bytes::from_static(b"{\"b\":2}")];
        let list: serde_json::Value = serde_json::from_slice(&event_list(&events)).unwrap();
        assert_eq!(list["kind"], "EventList");
        assert_eq!(list["items"].as_array().unwrap().len(), 2);
        assert_eq!(list["items"][1]["b"], 2);
    }
}
