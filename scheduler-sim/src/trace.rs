//! What happened, in order: a digest of all of it, and its text on request.

use crate::time::Ms;
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;

/// Of one run.
#[derive(Debug)]
pub struct Trace {
    digest: Sha256,
    lines: u64,
    text: Option<String>,
}

impl Trace {
    /// An empty one; `keep`: its text too.
    pub fn new(keep: bool) -> Self {
        Self {
            digest: Sha256::new(),
            lines: 0,
            text: keep.then(String::new),
        }
    }

    /// One more line.
    pub fn line(&mut self, now: Ms, line: &str) {
        self.lines += 1;
        self.digest.update(now.to_le_bytes());
        self.digest.update(line.as_bytes());
        if let Some(text) = &mut self.text {
            let _ = writeln!(text, "{now:>7} {line}");
        }
    }

    /// How many.
    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// The same for the same lines, and for no others.
    pub fn digest(&self) -> String {
        let mut out = String::new();
        for byte in self.digest.clone().finalize().iter().take(16) {
            let _ = write!(out, "{byte:02x}");
        }
        out
    }

    /// All of it, where it was kept.
    pub fn text(&self) -> Option<&str> {
        self.text.as_deref()
    }
}
