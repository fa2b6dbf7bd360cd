//! Online backup (`headwater backup`).
//!
//! River: store → **backup** → HTTP. The storage engine makes the backup; the binary, which opens the
//! engine, passes it in.

use std::fmt;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use headwater_api::Status;
use http::StatusCode;

use crate::answer::body::{self, Response};
use crate::answer::status;

/// A backup stream; an error ends it.
pub type Stream = BoxStream<'static, Result<Bytes, headwater_store::Error>>;

/// Makes backups, if the engine can; says why not otherwise.
#[derive(Clone)]
pub struct Backup(Result<Arc<dyn Fn() -> Stream + Send + Sync>, &'static str>);

impl Default for Backup {
    fn default() -> Backup {
        Backup::refused("data is kept in memory only: there is nothing to back up")
    }
}

impl Backup {
    /// Backups as this function makes them.
    pub fn new(make: impl Fn() -> Stream + Send + Sync + 'static) -> Backup {
        Backup(Ok(Arc::new(make)))
    }

    /// No backups, for this reason.
    pub fn refused(why: &'static str) -> Backup {
        Backup(Err(why))
    }

    /// A backup as a response. If it breaks off, so does the response: no client can take a part
    /// for the whole.
    pub(crate) fn response(&self) -> Result<Response, Status> {
        let make = self.0.as_ref().map_err(|why| status::bad_request(*why))?;
        let parts = make().map(|part| {
            part.map_err(|error| {
                tracing::error!(%error, "a backup failed");
                io::Error::other(error)
            })
        });
        let body = body::try_stream(parts);
        Ok(body::answer(StatusCode::OK, "application/octet-stream", body))
    }
}

impl fmt::Debug for Backup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Backup({})", if self.0.is_ok() { "yes" } else { "no" })
    }
}
