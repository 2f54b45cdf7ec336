//! A card's compute mode, time slice and memory limits, through `nvidia-smi`.
//!
//! In: a card and a mode. Out: the mode as read back. The supervisor holds no NVML: it
//! must outlive driver faults that take a process with NVML along.

use super::program::Program;
use crate::gpu::{ComputeMode, DriverBranch};
use crate::line::one_line;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

/// Without persistence mode the program initialises the card first, which takes seconds.
const LIMIT: Duration = Duration::from_secs(20);
/// Longest part of its output that is reported, in characters.
const SAID: usize = 200;

/// Runs `nvidia-smi`.
#[derive(Clone, Debug)]
pub struct Smi {
    program: Program,
}

/// Why a mode is not set. All are worth another try.
#[derive(Debug, thiserror::Error)]
pub enum SmiError {
    /// The program does not run, or not to its end.
    #[error("cannot run {}: {source}", program.display())]
    Run {
        /// Which.
        program: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It hangs.
    #[error("nvidia-smi does not end within {} s", LIMIT.as_secs())]
    TimedOut,
    /// It says no.
    #[error("nvidia-smi: {0}")]
    Refused(String),
    /// It says something else than it should.
    #[error("the output of nvidia-smi {asked} cannot be parsed: {answer:?}")]
    NotUnderstood {
        /// The wanted value.
        asked: &'static str,
        /// Its whole output.
        answer: String,
    },
    /// The card has another mode or slice than was set.
    #[error("card {uuid} was set to {wanted} and reads back {answer:?}")]
    NotSet {
        /// Which card.
        uuid: String,
        /// As set.
        wanted: &'static str,
        /// As read.
        answer: String,
    },
}

/// Every compute mode that a driver prints, but for its case.
const MODES: [&str; 4] = [
    "DEFAULT",
    "EXCLUSIVE_THREAD",
    "PROHIBITED",
    "EXCLUSIVE_PROCESS",
];
/// Every time slice, by the number with which it is set.
const SLICES: [&str; 4] = ["DEFAULT", "SHORT", "MEDIUM", "LONG"];

/// As it is set.
fn word(mode: ComputeMode) -> &'static str {
    match mode {
        ComputeMode::Default => "DEFAULT",
        ComputeMode::ExclusiveProcess => "EXCLUSIVE_PROCESS",
        ComputeMode::Prohibited => "PROHIBITED",
    }
}

/// Whether clients and server of this driver find each other's memory by names in
/// `/dev/shm`: before r580.
pub fn shares_memory_by_name(branch: DriverBranch) -> bool {
    branch < DriverBranch(580)
}

/// Compute mode and driver's version of one card; warnings may stand around them.
pub fn query_of(text: &str) -> Option<(&'static str, &str)> {
    let one = |line| {
        let (mode, driver) = str::split_once(line, ',')?;
        Some((word_of(&MODES, mode.trim())?, driver.trim()))
    };
    single(text.lines().filter_map(one))
}

/// The one time slice that a listing names. Its wording differs between drivers.
pub fn slice_of(text: &str) -> Option<&'static str> {
    let words = text.split(|c: char| !c.is_ascii_alphabetic());
    single(words.filter_map(|text| word_of(&SLICES, text)))
}

fn word_of(words: &[&'static str], text: &str) -> Option<&'static str> {
    let mut words = words.iter().copied();
    words.find(|word| word.eq_ignore_ascii_case(text))
}

/// The only one.
fn single<T>(mut all: impl Iterator<Item = T>) -> Option<T> {
    let first = all.next();
    first.filter(|_| all.next().is_none())
}

impl Smi {
    /// By this program.
    pub fn new(program: Program) -> Self {
        Self { program }
    }

    /// Sets a card's mode where it is another one, and reads it back. Answers the driver's
    /// version.
    pub async fn set_compute_mode(
        &self,
        uuid: &str,
        mode: ComputeMode,
    ) -> Result<String, SmiError> {
        let wanted = word(mode);
        let (mut now, mut driver) = self.query(uuid).await?;
        if now != wanted {
            self.run(&["-i", uuid, "-c", wanted]).await?;
            (now, driver) = self.query(uuid).await?;
        }
        read_back(uuid, wanted, now)?;
        Ok(driver)
    }

    /// Sets how long a process has the card while another waits: 0 the driver's own, 1
    /// short, 2 medium, 3 long. NVML has no call for it. Not every card has it.
    ///
    /// # Errors
    /// Also where the listing afterwards names another slice, several or none.
    pub async fn set_time_slice(&self, uuid: &str, slice: u32) -> Result<(), SmiError> {
        let number = slice.to_string();
        self.run(&["compute-policy", "-i", uuid, "--set-timeslice", &number])
            .await?;
        let listed = self.run(&["compute-policy", "-i", uuid, "-l"]).await?;
        let now = slice_of(&listed).ok_or_else(|| not_understood("compute-policy", &listed))?;
        let wanted = usize::try_from(slice).ok().and_then(|at| SLICES.get(at));
        read_back(uuid, wanted.copied().unwrap_or("no slice"), now)
    }

    /// As in `580.65.06`.
    pub async fn driver_version(&self, uuid: &str) -> Result<String, SmiError> {
        Ok(self.query(uuid).await?.1)
    }

    /// Compute mode and driver version.
    async fn query(&self, uuid: &str) -> Result<(&'static str, String), SmiError> {
        let fields = "--query-gpu=compute_mode,driver_version";
        let text = self
            .run(&["-i", uuid, fields, "--format=csv,noheader"])
            .await?;
        let read = query_of(&text).map(|(mode, driver)| (mode, driver.to_owned()));
        read.ok_or_else(|| not_understood("--query-gpu", &text))
    }

    /// Runs it with these arguments. Returns what it prints.
    ///
    /// # Errors
    /// It cannot be started, does not end in time, or refuses.
    pub async fn run(&self, arguments: &[&str]) -> Result<String, SmiError> {
        let failed = |source| SmiError::Run {
            program: self.program.path().to_owned(),
            source,
        };
        let mut command = self.program.command(None).map_err(failed)?;
        let output = command
            .args(arguments)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(LIMIT, output)
            .await
            .map_err(|_| SmiError::TimedOut)?
            .map_err(failed)?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            Ok(text)
        } else {
            let complaint = String::from_utf8_lossy(&output.stderr);
            let said = format!("{} {complaint}", text.trim());
            Err(SmiError::Refused(one_line(&said, SAID)))
        }
    }
}

fn read_back(uuid: &str, wanted: &'static str, now: &str) -> Result<(), SmiError> {
    if now == wanted {
        return Ok(());
    }
    Err(SmiError::NotSet {
        uuid: uuid.to_owned(),
        wanted,
        answer: now.to_owned(),
    })
}

fn not_understood(asked: &'static str, answer: &str) -> SmiError {
    SmiError::NotUnderstood {
        asked,
        answer: one_line(answer, SAID),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_for_drivers_that_need_it() {
        for (branch, shares) in [(570, true), (579, true), (580, false), (615, false)] {
            let branch = DriverBranch(branch);
            assert_eq!(shares_memory_by_name(branch), shares, "{branch:?}");
        }
    }

    #[test]
    fn one_cards_mode_and_driver_are_read_and_nothing_else_is_taken_for_them() {
        let warning = "WARNING: infoROM is corrupted at gpu 0000:01:00.0";
        for (text, expected) in [
            ("Default, 580.65.06\n", Some(("DEFAULT", "580.65.06"))),
            (
                &format!("Exclusive_Process, 570.86\n{warning}\n"),
                Some(("EXCLUSIVE_PROCESS", "570.86")),
            ),
            ("", None),
            ("580.65.06, Default", None),
            ("[N/A], 580.65.06", None),
            ("Default 580.65.06", None),
            ("Default, 580.65.06\nProhibited, 580.65.06\n", None),
            ("compute mode: Default, 580.65.06", None),
        ] {
            assert_eq!(query_of(text), expected, "{text:?}");
        }
    }

    #[test]
    fn a_listing_of_no_slice_or_of_several_is_not_understood() {
        for (text, expected) in [
            ("GPU 0: compute time slice: LONG\n", Some("LONG")),
            ("Timeslice\n  GPU 00000000:01:00.0 : Medium", Some("MEDIUM")),
            ("", None),
            ("GPU 0: time slice: 2 ms", None),
            ("GPU 0: longer", None),
            ("default policy\n  time slice: LONG", None),
            ("GPU 0: LONG\nGPU 1: LONG", None),
        ] {
            assert_eq!(slice_of(text), expected, "{text:?}");
        }
    }
}
