//! A mutex's guard, even if a thread panicked while it held the mutex.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// What these mutexes guard is in order after each of its changes: poison says nothing of it.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
