//! What the daemon and its servers write, in the real programs' format:
//! `[2026-02-06 09:34:17.770 Control   261] Accepting connection...`.
//!
//! In the foreground both go to standard output and no file is made; in the background the two
//! have a file each, `control.log` and `server.log` (seen on driver 580.159.04). Must never: fail
//! its caller; a full disk loses lines, as it does for the real daemon.

use std::fs::{File, OpenOptions, Permissions};
use std::io::Write;
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// The daemon's logs.
#[derive(Debug)]
pub(super) struct Log {
    control: Mutex<Option<File>>,
    server: Mutex<Option<File>>,
}

impl Log {
    /// Standard output, or both files in a folder.
    pub(super) fn open(folder: &Path, foreground: bool) -> Self {
        let open = |name: &str| {
            if foreground {
                let output = std::io::stdout().as_fd().try_clone_to_owned();
                return output.ok().map(File::from);
            }
            let mut options = OpenOptions::new();
            let file = options.create(true).append(true).open(folder.join(name));
            file.ok()
        };
        Self {
            control: Mutex::new(open("control.log")),
            server: Mutex::new(open("server.log")),
        }
    }

    /// A line of the daemon's.
    pub(super) fn control(&self, text: &str) {
        write(&self.control, &line("Control", std::process::id(), text));
    }

    /// A line of a server's, which it composed itself.
    pub(super) fn server(&self, line: &str) {
        write(&self.server, line);
    }
}

fn write(file: &Mutex<Option<File>>, line: &str) {
    let line = format!("{line}\n");
    if let Some(file) = file.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
        let _ = file.write_all(line.as_bytes());
    }
}

/// The FIFO that every user may write to, and whose lines appear in no log (driver 580.159.04).
pub(super) fn discard(path: &Path) -> Result<(), String> {
    let failed = |e: &dyn std::fmt::Display| format!("Failed to make {}: {e}", path.display());
    let _ = std::fs::remove_file(path);
    nix::unistd::mkfifo(path, nix::sys::stat::Mode::empty()).map_err(|e| failed(&e))?;
    let all = Permissions::from_mode(0o777);
    std::fs::set_permissions(path, all).map_err(|e| failed(&e))?;
    // Open for writing too, so that it has no end.
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).open(path);
    let mut file = file.map_err(|e| failed(&e))?;
    std::thread::spawn(move || std::io::copy(&mut file, &mut std::io::sink()));
    Ok(())
}

/// A log line of now.
pub(super) fn line(who: &str, pid: u32, text: &str) -> String {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    format!("[{} {who} {pid:5}] {text}", timestamp(since.as_millis()))
}

/// `2026-02-06 09:34:17.770` of milliseconds since 1970, UTC.
fn timestamp(milliseconds: u128) -> String {
    let seconds = u64::try_from(milliseconds / 1000).unwrap_or(0);
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Civil date from days, with years that begin in March.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 {
        month_index + 3
    } else {
        month_index - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}.{:03}",
        rest / 3600,
        rest / 60 % 60,
        rest % 60,
        milliseconds % 1000
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_the_calendars() {
        assert_eq!(timestamp(0), "1970-01-01 00:00:00.000");
        assert_eq!(timestamp(951_827_696_789), "2000-02-29 12:34:56.789");
        assert_eq!(timestamp(1_770_370_457_770), "2026-02-06 09:34:17.770");
        assert!(line("Control", 261, "x").ends_with(" Control   261] x"));
    }
}
