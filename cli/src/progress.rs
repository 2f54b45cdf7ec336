//! Where long work is, on standard error; silent where that is no terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal as _;
use std::time::Duration;

/// Work that takes no longer is not shown.
const SHORT: Duration = Duration::from_millis(400);
/// Pictures a second.
const OFTEN: u8 = 10;

/// Gone without a trace when it is dropped.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    begin: std::time::Instant,
    shown: bool,
}

impl Progress {
    /// The total; 0: unknown.
    pub(crate) fn of(what: &'static str, pieces: usize) -> Self {
        let bar = ProgressBar::with_draw_target(Some(pieces as u64), ProgressDrawTarget::hidden());
        let template = if pieces == 0 {
            "{spinner} {msg}, {elapsed}"
        } else {
            "{msg} {wide_bar} {pos} of {len}, {eta} left"
        };
        // The templates above are well-formed.
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message(what);
        Self {
            bar,
            begin: std::time::Instant::now(),
            shown: false,
        }
    }

    /// One more piece is done.
    pub(crate) fn step(&mut self) {
        self.bar.inc(1);
        self.show();
    }

    /// The number of finished pieces.
    pub(crate) fn at(&mut self, pieces: usize) {
        self.bar.set_position(pieces as u64);
        self.show();
    }

    /// While another thread does the work.
    pub(crate) fn spin(&mut self) {
        if std::io::stderr().is_terminal() {
            self.shown = true;
            let target = ProgressDrawTarget::stderr_with_hz(OFTEN);
            self.bar.set_draw_target(target);
            self.bar.enable_steady_tick(SHORT / 4);
        }
    }

    fn show(&mut self) {
        if self.shown || self.begin.elapsed() < SHORT || !std::io::stderr().is_terminal() {
            return;
        }
        self.shown = true;
        let target = ProgressDrawTarget::stderr_with_hz(OFTEN);
        self.bar.set_draw_target(target);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
