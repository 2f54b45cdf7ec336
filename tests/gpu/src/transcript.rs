//! Commands and their output, in order.
//!
//! Owns the lines since they were last taken. In: a command and its answer. Out: lines of a
//! transcript. Must never lose one.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A line longer than this says nothing more.
const LONGEST: usize = 4000;

/// Lines since they were last taken.
#[derive(Debug, Default)]
pub(crate) struct Transcript(Mutex<Vec<String>>);

impl Transcript {
    fn lines(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A command, its exit status and its output.
    pub(crate) fn ran(&self, command: &str, exit: Option<i32>, said: &str) {
        let mut lines = self.lines();
        lines.push(format!("$ {command}"));
        let said: String = said.trim_end().chars().take(LONGEST).collect();
        lines.extend(said.lines().map(str::to_owned));
        match exit {
            Some(0) => {}
            Some(code) => lines.push(format!("(exit {code})")),
            None => lines.push("(ended by a signal)".to_owned()),
        }
    }

    /// A line of ours.
    pub(crate) fn note(&self, text: impl Into<String>) {
        self.lines().push(text.into());
    }

    /// Everything since the last time.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.lines())
    }
}
