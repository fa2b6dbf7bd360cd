//! The writer of audit events: a thread between requests and the backends.
//!
//! River: pipeline → **writer** → log file, webhook. Promise: a request never waits for a backend.
//! The queue is bounded in events and in bytes; an event that does not fit, or that a backend cannot
//! take, is counted as lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use headwater_api::Clock;
use headwater_api::metrics::Counter;

use super::event::AuditEvent;
use super::log_file::LogFile;
use super::webhook::EventSender;
use crate::system::metrics::Metrics;

/// Events in the queue.
const EVENTS_MAX: usize = 10_000;
/// Bytes of bodies in the queue.
const BYTES_MAX: usize = 64 * 1024 * 1024;
/// Bytes of lines in one write.
const WRITE_MAX: usize = 256 * 1024;
/// The interval of log lines about a backend that fails.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);

/// The sending half: hands events to the thread.
pub(super) struct Queue {
    sender: SyncSender<Message>,
    bytes: Arc<AtomicUsize>,
    events: Arc<Counter>,
    lost: Arc<Counter>,
}

enum Message {
    Event(Box<AuditEvent>),
    Stop,
}

/// The backends.
pub(super) struct Backends {
    pub(super) log: Option<LogFile>,
    /// Lines for the webhook.
    pub(super) webhook: Option<EventSender>,
    pub(super) clock: Arc<dyn Clock>,
}

impl Queue {
    /// Starts the thread.
    pub(super) fn start(
        backends: Backends,
        metrics: &Metrics,
    ) -> std::io::Result<(Queue, JoinHandle<()>)> {
        let (sender, receiver) = sync_channel(EVENTS_MAX);
        let bytes = Arc::new(AtomicUsize::new(0));
        let writer = Writer {
            backends,
            bytes: Arc::clone(&bytes),
            log_errors: metrics.audit_errors.with(&["log"]),
            webhook_errors: metrics.audit_errors.with(&["webhook"]),
            complained: None,
        };
        let thread = std::thread::Builder::new()
            .name("audit".to_owned())
            .spawn(move || writer.run(&receiver))?;
        let events = metrics.audit_events.with(&[]);
        let lost = metrics.audit_errors.with(&["buffer"]);
        Ok((Queue { sender, bytes, events, lost }, thread))
    }

    pub(super) fn push(&self, event: AuditEvent) {
        let size = event.size();
        self.events.inc();
        let fits = self.bytes.fetch_add(size, Relaxed).saturating_add(size) <= BYTES_MAX;
        if !fits || self.sender.try_send(Message::Event(Box::new(event))).is_err() {
            self.bytes.fetch_sub(size, Relaxed);
            self.lost.inc();
        }
    }

    /// Asks the thread to end after the events that are in the queue.
    pub(super) fn stop(&self) {
        // If the queue is full, this waits until the thread has written some of it. An error means
        // that the thread has ended.
        let _ = self.sender.send(Message::Stop);
    }
}

struct Writer {
    backends: Backends,
    bytes: Arc<AtomicUsize>,
    log_errors: Arc<Counter>,
    webhook_errors: Arc<Counter>,
    complained: Option<Instant>,
}

impl Writer {
    fn run(mut self, receiver: &Receiver<Message>) {
        let mut lines = Vec::new();
        while let Ok(first) = receiver.recv() {
            let mut next = Some(first);
            let mut count = 0;
            while let Some(Message::Event(event)) = next {
                self.take(&event, &mut lines);
                count += 1;
                next = match lines.len() < WRITE_MAX {
                    true => receiver.try_recv().ok(),
                    false => None,
                };
            }
            self.write(&lines, count);
            lines.clear();
            if matches!(next, Some(Message::Stop)) {
                return;
            }
        }
    }

    fn take(&self, event: &AuditEvent, lines: &mut Vec<u8>) {
        let line = event.line();
        if self.backends.log.is_some() {
            lines.extend_from_slice(&line);
            lines.push(b'\n');
        }
        if let Some(webhook) = &self.backends.webhook
            && !webhook.push(line)
        {
            self.webhook_errors.inc();
        }
        self.bytes.fetch_sub(event.size(), Relaxed);
    }

    fn write(&mut self, lines: &[u8], count: u64) {
        let Some(log) = &mut self.backends.log else { return };
        if lines.is_empty() {
            return;
        }
        if let Err(error) = log.write(lines, self.backends.clock.now()) {
            self.log_errors.add(count);
            if self.complained.is_none_or(|at| at.elapsed() > COMPLAIN_EVERY) {
                tracing::error!(%error, "cannot write to the audit log; events are lost");
                self.complained = Some(Instant::now());
            }
        }
    }
}
