//! One policy for poisoned mutexes: the value is used as it is.
//!
//! A panic fails one request. Every critical section leaves its value complete at each step, so the
//! other requests can continue with it.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) use headwater_store::lock::{read, write};

/// Locks a mutex, poisoned or not.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
