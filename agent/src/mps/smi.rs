//! A card's compute mode and time slice, through `nvidia-smi`.
//!
//! In: a card and a mode. Out: the mode as read back. The supervisor holds no NVML: it
//! must outlive driver faults that take a process with NVML along.

use super::program::Program;
use crate::inventory::{ComputeMode, DriverBranch};
use crate::line::one_line;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

/// Without persistence mode the program initialises the card first, which takes seconds.
const LIMIT: Duration = Duration::from_secs(20);
/// Of what it says, so many characters are told.
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

/// As it is set, and read back but for its case.
fn word(mode: ComputeMode) -> &'static str {
    match mode {
        ComputeMode::Default => "DEFAULT",
        ComputeMode::ExclusiveProcess => "EXCLUSIVE_PROCESS",
        ComputeMode::Prohibited => "PROHIBITED",
    }
}

/// Whether clients and server of this driver find each other's memory by names in
/// `/dev/shm`: before r580. What is no version is taken for an old one.
pub fn shares_memory_by_name(driver_version: &str) -> bool {
    DriverBranch::of(driver_version).is_none_or(|branch| branch < DriverBranch(580))
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
        if !now.eq_ignore_ascii_case(wanted) {
            self.run(&["-i", uuid, "-c", wanted]).await?;
            (now, driver) = self.query(uuid).await?;
        }
        if now.eq_ignore_ascii_case(wanted) {
            Ok(driver)
        } else {
            Err(SmiError::NotSet {
                uuid: uuid.to_owned(),
                wanted,
                answer: now,
            })
        }
    }

    /// Sets how long a process has the card while another waits: 0 the driver's own, 1
    /// short, 2 medium, 3 long. NVML has no call for it. Not every card has it.
    ///
    /// # Errors
    /// Also where the listing afterwards names another slice. Its wording is the driver's:
    /// one that names no slice at all is not held against it.
    pub async fn set_time_slice(&self, uuid: &str, slice: u32) -> Result<(), SmiError> {
        const WORDS: [&str; 4] = ["default", "short", "medium", "long"];
        let number = slice.to_string();
        self.run(&["compute-policy", "-i", uuid, "--set-timeslice", &number])
            .await?;
        let listed = self.run(&["compute-policy", "-i", uuid, "-l"]).await?;
        let listed = listed.to_ascii_lowercase();
        let wanted = usize::try_from(slice).ok().and_then(|at| WORDS.get(at));
        let says = |word: &&str| {
            listed
                .split(|c: char| !c.is_ascii_alphabetic())
                .any(|w| w == *word)
        };
        let other = WORDS
            .iter()
            .find(|word| Some(*word) != wanted && says(word));
        match (wanted, other) {
            (Some(wanted), Some(_)) if !says(wanted) => Err(SmiError::NotSet {
                uuid: uuid.to_owned(),
                wanted,
                answer: one_line(&listed, SAID),
            }),
            _ => Ok(()),
        }
    }

    /// As in `580.65.06`.
    pub async fn driver_version(&self, uuid: &str) -> Result<String, SmiError> {
        Ok(self.query(uuid).await?.1)
    }

    /// Compute mode and driver version.
    async fn query(&self, uuid: &str) -> Result<(String, String), SmiError> {
        let fields = "--query-gpu=compute_mode,driver_version";
        let text = self
            .run(&["-i", uuid, fields, "--format=csv,noheader"])
            .await?;
        text.trim()
            .split_once(',')
            .map(|(mode, driver)| (mode.trim().to_owned(), driver.trim().to_owned()))
            .ok_or_else(|| SmiError::Refused(one_line(&text, SAID)))
    }

    async fn run(&self, arguments: &[&str]) -> Result<String, SmiError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_for_drivers_that_need_it() {
        for (version, shares) in [
            ("570.172.08", true),
            ("579.99", true),
            ("580.65.06", false),
            ("615.1", false),
            ("", true),
            ("[N/A]", true),
        ] {
            assert_eq!(shares_memory_by_name(version), shares, "{version}");
        }
    }
}
