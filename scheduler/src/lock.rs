//! A mutex's guard, whether or not somebody panicked who held it.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// What these mutexes guard is in order after each of its changes: poison says nothing of it.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
