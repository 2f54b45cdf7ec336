//! A stack that is deep enough for every expression.
//!
//! Parser and interpreter recurse: 20 parentheses overflow the stack of a thread in a debug build, and
//! an overflow ends the process.

use std::cell::Cell;
use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};

/// The parser stops at 96 nested parts and the interpreter at 200, of about 100 KiB each in a debug
/// build. Memory is used only as deep as the stack is.
pub const BYTES: usize = 64 << 20;

/// Proof that the work runs on such a stack, and the steps that its evaluations may have cost.
#[derive(Debug, Default)]
pub struct Stack {
    steps: Cell<u64>,
}

impl Stack {
    /// Steps of about 200 ns, at most, of all evaluations until now.
    pub fn steps(&self) -> u64 {
        self.steps.get()
    }

    pub(super) fn spend(&self, steps: u64) {
        self.steps.set(self.steps.get().saturating_add(steps));
    }
}

/// Runs the work on this thread, whose stack the caller has made of at least [`BYTES`].
pub fn here<T>(work: impl FnOnce(&Stack) -> T) -> T {
    work(&Stack::default())
}

/// Runs the work on a thread with such a stack, and waits for it. Costs some 50 us.
pub fn deep<T: Send>(work: impl FnOnce(&Stack) -> T + Send) -> T {
    let work = Mutex::new(Some(work));
    let take = || work.lock().unwrap_or_else(PoisonError::into_inner).take();
    let done = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("selectors".to_owned())
            .stack_size(BYTES)
            .spawn_scoped(scope, || take().map(here));
        thread.ok().map(std::thread::ScopedJoinHandle::join)
    });
    match done {
        Some(Ok(Some(done))) => done,
        Some(Err(panic)) => resume_unwind(panic),
        // The system has no thread to give now: a release build fits any stack of ours.
        _ => match take() {
            Some(work) => here(work),
            None => unreachable!("the thread did not run, so that its work is still here"),
        },
    }
}
