//! The background thread that absorbs the log, one job at a time.
//!
//! River: writer → **background** → data file.
//! Promise: either this or the thread owns the absorber. If the thread panics, the absorber is lost
//! and the data file must be reopened.

use std::sync::Arc;
use std::thread::JoinHandle;

use super::Shared;
use super::absorb::{Absorber, Tidy};
use super::row::State;
use super::tail::Tail;
use crate::store::Error;

/// Who has the absorber.
#[derive(Debug)]
pub(super) enum Background {
    Idle(Absorber),
    Busy(JoinHandle<(Absorber, Result<(), Error>)>),
    /// It went down with its thread, or there is no data file to work on.
    Lost,
}

impl Background {
    /// The absorber, if nothing is under way.
    pub(super) fn idle(&self) -> Option<&Absorber> {
        match self {
            Background::Idle(absorber) => Some(absorber),
            Background::Busy(_) | Background::Lost => None,
        }
    }

    /// Starts to bring the tail into the data file; nothing may be under way.
    pub(super) fn start(&mut self, shared: &Arc<Shared>, tidy: Tidy) -> Result<(), Error> {
        let Background::Idle(mut absorber) = std::mem::replace(self, Background::Lost) else {
            return Err(Error::Unavailable("the data file is closed after a failure".into()));
        };
        let tail = shared.published().tail.clone();
        let shared = shared.clone();
        let thread = std::thread::Builder::new().name("store-absorb".into());
        let thread = thread.spawn(move || {
            let done = absorb(&shared, &mut absorber, &tail, tidy);
            drop(tail);
            shared.mailbox.nudge();
            (absorber, done)
        });
        let thread = thread.map_err(|error| Error::Unavailable(error.to_string()))?;
        *self = Background::Busy(thread);
        Ok(())
    }

    /// Whether a job is over and waits to be taken note of.
    pub(super) fn is_over(&self) -> bool {
        matches!(self, Background::Busy(thread) if thread.is_finished())
    }

    /// Waits for the job that is under way, if there is one; then these are the file's sums.
    pub(super) fn wait(&mut self) -> Result<Option<State>, Error> {
        let thread = match std::mem::replace(self, Background::Lost) {
            Background::Busy(thread) => thread,
            other => {
                *self = other;
                return Ok(None);
            }
        };
        let (absorber, done) = thread.join().map_err(|_| panicked())?;
        let state = *absorber.state();
        *self = Background::Idle(absorber);
        done.map(|()| Some(state))
    }
}

fn absorb(shared: &Shared, absorber: &mut Absorber, tail: &Tail, tidy: Tidy) -> Result<(), Error> {
    shared.with_file(|file| absorber.absorb(&*shared.disk, file, tail, tidy))
}

fn panicked() -> Error {
    Error::Unavailable("the storage engine panicked".into())
}
