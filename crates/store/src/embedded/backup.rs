//! Backups: writes the state at one revision while the store serves.
//!
//! Promise: a backup has exactly the state at its revision. Its rows stay readable while it is
//! written, whatever is compacted and cleaned meanwhile.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use tokio::sync::{mpsc, watch};
use uuid::Uuid;

use super::archive::{BackupWriter, FRAME_BYTES, Manifest, Object, broken};
use super::{Embedded, Shared};
use crate::store::{Error, Range};

/// Parts that a slow reader of a backup may be behind; then the backup waits.
const STREAM_BACKLOG: usize = 4;

impl Embedded {
    /// Writes a backup to a new file, which appears when it is complete. Blocks; the store continues
    /// to serve.
    pub fn backup(&self, file: &Path) -> Result<Manifest, Error> {
        let failed = |error: io::Error| Error::Unavailable(format!("{}: {error}", file.display()));
        let beside = beside(file);
        let written = new_file(&beside).map_err(failed).and_then(|out| {
            let mut out = BufWriter::new(out);
            let manifest = self.backup_to(&mut out)?;
            out.into_inner()
                .map_err(|error| failed(error.into_error()))?
                .sync_all()
                .map_err(failed)?;
            // Unlike a rename, a link does not replace an existing file.
            fs::hard_link(&beside, file).and_then(|()| sync_parent(file)).map_err(failed)?;
            Ok(manifest)
        });
        // The temporary name is removed in any case.
        let _ = fs::remove_file(&beside);
        written
    }

    /// Writes a backup of the newest state. Blocks; the store continues to serve.
    pub fn backup_to(&self, out: &mut dyn Write) -> Result<Manifest, Error> {
        self.shared.backup_to(out)
    }

    /// Streams a backup of the newest state. The backup waits for a slow reader and ends when the
    /// stream is dropped; an error is the last item.
    pub fn backup_stream(&self) -> BoxStream<'static, Result<Bytes, Error>> {
        let (sender, receiver) = mpsc::channel(STREAM_BACKLOG);
        let shared = self.shared.clone();
        let made = tokio::task::spawn_blocking(move || {
            let out = Sender { parts: &sender, closed: shared.closed.subscribe() };
            let mut out = BufWriter::with_capacity(FRAME_BYTES, out);
            let done = shared.backup_to(&mut out).and_then(|_| out.flush().map_err(|e| broken(&e)));
            if let Err(error) = done {
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

/// Writes into a channel. Waits while it is full, but not once the store is closed.
struct Sender<'a> {
    parts: &'a mpsc::Sender<Result<Bytes, Error>>,
    closed: watch::Receiver<bool>,
}

impl Write for Sender<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let part = Ok(Bytes::copy_from_slice(bytes));
        let sent = tokio::runtime::Handle::current().block_on(async {
            tokio::select! {
                biased;
                _ = self.closed.wait_for(|closed| *closed) => false,
                sent = self.parts.send(part) => sent.is_ok(),
            }
        });
        if sent { Ok(bytes.len()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn backup_to(&self, out: &mut dyn Write) -> Result<Manifest, Error> {
        let (edges, rows, reader) = {
            let published = self.published();
            let edges = published.edges();
            let (rows, _) = published.index.range(&Range::default(), edges.newest);
            (edges, rows, self.reader(&published)?)
        };
        let mut backup = BackupWriter::new(out, &self.identity, edges)?;
        for (key, at) in rows {
            reader.row(at, |row| {
                let (time, expires, value) = (row.time, row.expires, row.value);
                let (key, revision) = (key.as_str(), at.revision);
                backup.add(&Object { key, revision, time, expires, value })
            })?;
        }
        backup.finish()
    }
}

fn new_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

fn beside(file: &Path) -> PathBuf {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    file.with_file_name(format!(".{name}.{}", Uuid::new_v4().simple()))
}

fn sync_parent(file: &Path) -> io::Result<()> {
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}
