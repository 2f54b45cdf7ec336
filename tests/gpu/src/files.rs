//! What a tenant could do to the files of a server's pipe directory, tried and undone.

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Tries everything; in words, what went through and what did not.
pub(crate) fn tried(folder: &Path) -> String {
    type Try = fn(&Path) -> io::Result<()>;
    let tries: [(&str, Try); 6] = [
        ("8 MiB of a file", |folder| {
            let file = folder.join("x");
            std::fs::write(&file, vec![0; 8 << 20])?;
            std::fs::remove_file(file)
        }),
        ("a folder", |folder| {
            let inner = folder.join("d");
            std::fs::create_dir(&inner)?;
            std::fs::remove_dir(inner)
        }),
        ("a FIFO", |folder| {
            let fifo = folder.join("f");
            mkfifo(&fifo, Mode::S_IRWXU)?;
            std::fs::remove_file(fifo)
        }),
        ("a link to /dev/zero", |folder| {
            let link = folder.join("l");
            std::os::unix::fs::symlink("/dev/zero", &link)?;
            std::fs::remove_file(link)
        }),
        ("another name for `control`", |folder| {
            renamed(folder, "control")
        }),
        ("another name for the pid file", |folder| {
            renamed(folder, "nvidia-cuda-mps-control.pid")
        }),
    ];
    let told: Vec<String> = tries
        .iter()
        .map(|(what, run)| match run(folder) {
            Ok(()) => format!("{what}: CAN"),
            Err(error) => format!("{what}: {error}"),
        })
        .collect();
    told.join(", ")
}

/// Writes a line to what the daemon calls its log there; in words, whether that went through.
pub(crate) fn logged(folder: &Path, line: &str) -> String {
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(libc::O_NONBLOCK);
    let write = || writeln!(options.open(folder.join("log"))?, "{line}");
    match write() {
        Ok(()) => "a line CAN be written to `log`".to_owned(),
        Err(error) => format!("no line can be written to `log`: {error}"),
    }
}

/// Takes a file's name away and gives it back.
fn renamed(folder: &Path, name: &str) -> io::Result<()> {
    let (there, away) = (folder.join(name), folder.join("away"));
    std::fs::rename(&there, &away)?;
    std::fs::rename(away, there)
}
