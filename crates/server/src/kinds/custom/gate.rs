//! The gate of a custom kind: it stops creation before the definition is deleted.
//!
//! River: create → **gate** → store. Deletion of a definition closes its gate and then deletes its
//! objects.
//! Promise: once the gate is closed, no create that passed it is in flight (R36): a later list contains
//! all objects.

use headwater_api::{Kind, Status};
use tokio::sync::{RwLock, RwLockReadGuard};

use crate::answer::status;

/// Admits creates until it is closed.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    closed: RwLock<bool>,
}

/// A create in flight.
pub(crate) struct Passing<'a> {
    _open: RwLockReadGuard<'a, bool>,
}

impl Gate {
    /// Enters the gate for a create; closing waits for it.
    pub(crate) async fn enter(&self, kind: &Kind, name: &str) -> Result<Passing<'_>, Status> {
        let closed = self.closed.read().await;
        if *closed {
            let why = "create not allowed while custom resource definition is terminating";
            return Err(status::forbidden(&kind.group, &kind.plural, name, why));
        }
        Ok(Passing { _open: closed })
    }

    /// Closes the gate and waits for creates in flight.
    pub(crate) async fn close(&self) {
        *self.closed.write().await = true;
    }
}
