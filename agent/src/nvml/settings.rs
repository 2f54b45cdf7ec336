//! The settings of NVML's owner do not change while the agent runs.

use std::path::PathBuf;
use std::time::Duration;

/// The longest time between two full readings of all cards. Reports on fences are as old as the last
/// reading, so a longer interval would report fences that are gone.
pub const LONGEST_LOOK: Duration = Duration::from_secs(1);

/// The settings of the thread that owns NVML.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The paths at which the library may be. The first path that exists is loaded, otherwise the last one is
    /// tried, which may be a name for the dynamic loader.
    pub libraries: Vec<PathBuf>,
    /// Time between two full readings.
    pub interval: Duration,
    /// Time between two samples of the cards that are watched.
    pub sample_interval: Duration,
    /// The folder in which processes are looked up.
    pub proc_root: PathBuf,
    /// True if the slices of cards in MIG mode are read.
    pub slices: bool,
}
