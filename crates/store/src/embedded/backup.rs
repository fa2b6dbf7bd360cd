//! Backups: streams the state at one revision while the store serves.
//!
//! Promise: a backup has exactly the state at its revision. Its rows stay readable while it is
//! written, whatever is compacted and cleaned meanwhile.

use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::archive::{BackupWriter, SendPart};
use super::{Embedded, Shared};
use crate::store::{Error, Range};

/// Parts that a slow reader of a backup may be behind; then the backup waits.
const STREAM_BACKLOG: usize = 4;

impl Embedded {
    /// Streams a backup of the newest state. The backup waits for a slow reader and ends when the
    /// stream is dropped or the store is closed; an error is the last item.
    pub fn backup_stream(&self) -> BoxStream<'static, Result<Bytes, Error>> {
        let (sender, receiver) = mpsc::channel(STREAM_BACKLOG);
        let shared = self.shared.clone();
        let made = tokio::task::spawn_blocking(move || {
            let mut closed = shared.closed.subscribe();
            let mut send = |part: Vec<u8>| {
                let sent = Handle::current().block_on(async {
                    tokio::select! {
                        biased;
                        _ = closed.wait_for(|closed| *closed) => false,
                        sent = sender.send(Ok(part.into())) => sent.is_ok(),
                    }
                });
                let why = "the backup is incomplete: the store was closed or the reader is gone";
                if sent { Ok(()) } else { Err(Error::Unavailable(why.into())) }
            };
            if let Err(error) = shared.back_up(&mut send) {
                // The reader may have disconnected.
                let _ = sender.blocking_send(Err(error));
            }
        });
        stream::unfold((receiver, made), |(mut receiver, made)| async move {
            Some((receiver.recv().await?, (receiver, made)))
        })
        .boxed()
    }
}

impl Shared {
    fn back_up(&self, send: SendPart<'_>) -> Result<(), Error> {
        let (edges, rows, reader) = {
            let published = self.published();
            let edges = published.edges();
            let (rows, _) = published.index.range(&Range::default(), edges.newest);
            (edges, rows, self.reader(&published)?)
        };
        let mut backup = BackupWriter::new(send, &self.identity, edges)?;
        for (key, at) in rows {
            reader.row(at, Some(key.as_str()), |row| backup.add(&row))?;
        }
        backup.finish()
    }
}
