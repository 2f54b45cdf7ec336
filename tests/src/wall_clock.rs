//! A wall clock of its own for a process: the machine's, and some seconds more or less.
//!
//! In: its offset. Out: a file that `sim-clock`'s library reads.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};

/// The clock; its copies are the same one.
#[derive(Debug, Clone)]
pub struct WallClock {
    path: PathBuf,
    file: Arc<File>,
}

impl WallClock {
    /// As the machine's.
    pub fn at(path: PathBuf) -> Result<Self> {
        let file = File::create(&path).with_context(|| path.display().to_string())?;
        let clock = Self {
            path,
            file: Arc::new(file),
        };
        clock.step_to(0)?;
        Ok(clock)
    }

    /// This many seconds ahead of the machine's, from now on.
    pub fn step_to(&self, seconds: i64) -> Result<()> {
        // In place: its readers have it in memory.
        self.file.write_all_at(&seconds.to_ne_bytes(), 0)?;
        Ok(())
    }

    /// The file to be read.
    pub fn file(&self) -> &Path {
        &self.path
    }
}
