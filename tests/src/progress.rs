//! How many claims, or runs, of how many are done, on standard error; silent where that or standard
//! output is no terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal as _;

/// See the module.
#[derive(Debug)]
pub struct Progress(ProgressBar);

impl Progress {
    /// The total number of `what`.
    pub fn of(what: &'static str, count: usize) -> Self {
        let seen = std::io::stderr().is_terminal() && std::io::stdout().is_terminal();
        let target = if seen {
            ProgressDrawTarget::stderr_with_hz(5)
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(Some(count as u64), target);
        let style = "{pos} of {len} {msg} {wide_bar} {elapsed}, about {eta} left";
        // The template is well-formed.
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        bar.set_message(what);
        bar.enable_steady_tick(std::time::Duration::from_secs(1));
        Self(bar)
    }

    /// Increases the total.
    pub fn more(&self, count: usize) {
        self.0.inc_length(count as u64);
    }

    /// One is done.
    pub fn step(&self) {
        self.0.inc(1);
    }

    /// Something is written meanwhile.
    pub fn beside<R>(&self, write: impl FnOnce() -> R) -> R {
        self.0.suspend(write)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
