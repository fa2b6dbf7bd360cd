//! The gate: whether objects of a custom kind may still be created.
//!
//! River: create → **gate** → store. A definition that is being deleted closes its gate and then
//! deletes its objects.
//! Promise: once the gate is closed, no create that passed it is still on its way (R36): what is
//! listed afterwards is all there ever will be.

use headwater_api::{Kind, Status};
use tokio::sync::{RwLock, RwLockReadGuard};

use crate::answer::status;

/// Whether objects may still be created.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    closed: RwLock<bool>,
}

/// A create on its way.
pub(crate) struct Passing<'a> {
    _open: RwLockReadGuard<'a, bool>,
}

impl Gate {
    /// Enters with an object to create; the gate waits for it when it is closed.
    pub(crate) async fn enter(&self, kind: &Kind, name: &str) -> Result<Passing<'_>, Status> {
        let closed = self.closed.read().await;
        if *closed {
            let why = "create not allowed while custom resource definition is terminating";
            return Err(status::forbidden(&kind.group, &kind.plural, name, why));
        }
        Ok(Passing { _open: closed })
    }

    /// Closes the gate for good, and waits for everyone who is inside.
    pub(crate) async fn close(&self) {
        *self.closed.write().await = true;
    }
}
