//! Watches: cursors over the log.
//!
//! River: published → **watch** → watch cache.
//! Promise: returns every change after the position, once and in order, or [`Error::Compacted`]. A
//! watcher near the newest revision reads recent changes from memory; one that is behind reads the
//! log on disk. It holds only its position, so a slow watcher delays no one.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use headwater_api::Revision;
use tokio::sync::watch;

use super::Shared;
use crate::change::{Batch, Change, ChangeKind};
use crate::key::Key;
use crate::recent::BATCH_MAX;
use crate::store::Error;

/// The size of a batch that is read from disk, in bytes.
const BATCH_BYTES_MAX: usize = 1 << 20;

/// A watcher: a position in the log.
pub(super) struct Cursor {
    /// Weak, so that watchers end when the engine is dropped.
    shared: Weak<Shared>,
    newest: watch::Receiver<Revision>,
    prefix: Arc<str>,
    position: Revision,
}

impl Cursor {
    pub(super) fn new(shared: &Arc<Shared>, prefix: &str, after: Revision) -> Cursor {
        Cursor {
            shared: Arc::downgrade(shared),
            newest: shared.newest.subscribe(),
            prefix: prefix.into(),
            position: after,
        }
    }

    /// Waits for changes after the position. An error ends the watch.
    pub(super) async fn step(
        cursor: Option<Cursor>,
    ) -> Option<(Result<Batch, Error>, Option<Cursor>)> {
        let mut cursor = cursor?;
        let position = cursor.position;
        cursor.newest.wait_for(|newest| *newest > position).await.ok()?;
        let shared = cursor.shared.upgrade()?;
        let recent = {
            let published = shared.published();
            published
                .check_kept(position)
                .map(|()| published.recent.batch(&cursor.prefix, position))
        };
        let batch = match recent.transpose() {
            Some(batch) => batch,
            None => {
                let prefix = cursor.prefix.clone();
                shared.blocking(move |shared| shared.old_batch(&prefix, position)).await
            }
        };
        match batch {
            Ok(batch) => {
                cursor.position = batch.complete_to;
                Some((Ok(batch), Some(cursor)))
            }
            Err(error) => Some((Err(error), None)),
        }
    }
}

impl Shared {
    /// The next changes from the log on disk.
    fn old_batch(&self, prefix: &str, after: Revision) -> Result<Batch, Error> {
        let (rows, reader) = {
            let published = self.published();
            published.check_kept(after)?;
            let first = after.max(self.identity.first).next();
            let last = published.newest.min(Revision(first.0 + BATCH_MAX as u64 - 1));
            let rows = published.index.rows(first..=last);
            let rows: Vec<_> = rows.map(|row| (*row, published.index.row(row.prev))).collect();
            (rows, published.reader(self.identity.seed()))
        };
        let mut batch = Batch { changes: Vec::new(), complete_to: after };
        let mut bytes = 0;
        for (row, prev) in rows {
            let change = reader.row(row, None, |row| {
                if !row.key.starts_with(prefix) {
                    return Ok(None);
                }
                let prev = prev.filter(|_| row.kind != ChangeKind::Created);
                let prev = prev.map(|prev| reader.version(prev, row.key)).transpose()?;
                let (revision, key, kind) = (row.revision, Key::new(row.key), row.kind);
                let value = Bytes::copy_from_slice(row.value);
                Ok(Some(Change { revision, key, kind, value, prev }))
            })?;
            if let Some(change) = change {
                bytes += change.value.len();
                batch.changes.push(change);
            }
            batch.complete_to = row.revision;
            if bytes >= BATCH_BYTES_MAX {
                break;
            }
        }
        Ok(batch)
    }
}
