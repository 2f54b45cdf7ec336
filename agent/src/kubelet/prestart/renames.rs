//! The agent's own sight of the files that it renames into the CDI directory.
//!
//! One watch serves every start of a container for the life of the process. An inotify instance for
//! each start would use up what the node's root may have (128 by default), which the kubelet,
//! containerd and systemd share.

use futures::StreamExt as _;
use inotify::{EventMask, Inotify, WatchMask};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::broadcast;

/// The event comes within microseconds of a rename, or inotify is not available.
const ECHO_PATIENCE: Duration = Duration::from_millis(500);
/// The time between two tries to watch a directory that is not there, or without inotify.
const AGAIN: Duration = Duration::from_secs(1);
/// The names that a start may lag behind. One that lags more waits for [`ECHO_PATIENCE`].
const LAG: usize = 1024;

/// The renames in the CDI directory. Clones share one watch.
#[derive(Clone, Debug)]
pub struct Renames(broadcast::Sender<OsString>);

/// The renames since one start began to look.
#[derive(Debug)]
pub(super) struct RenameWatch(broadcast::Receiver<OsString>);

impl Renames {
    /// Returns the renames in a directory, and the task that watches it.
    pub fn of(dir: &Path) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (names, _) = broadcast::channel(LAG);
        let task = watch(dir.to_owned(), names.clone());
        (Self(names), task)
    }

    /// Begins to look. What is renamed from now on is seen.
    pub(super) fn look(&self) -> RenameWatch {
        RenameWatch(self.0.subscribe())
    }
}

impl RenameWatch {
    /// Waits until a file of that name was renamed: when the agent's own watch has seen it, the event
    /// is in the runtime's queue, too. Without inotify it waits for [`ECHO_PATIENCE`].
    pub(super) async fn heard(&mut self, name: &OsStr) {
        let heard = async {
            while let Ok(other) = self.0.recv().await {
                if other == name {
                    return;
                }
            }
            // Names were lost, or the watch has ended.
            std::future::pending::<()>().await;
        };
        let _ = tokio::time::timeout(ECHO_PATIENCE, heard).await;
    }
}

/// Watches until the agent ends.
async fn watch(dir: PathBuf, names: broadcast::Sender<OsString>) {
    loop {
        if let Err(error) = follow(&dir, &names).await {
            tracing::debug!(%error, "no inotify on the CDI directory");
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Passes renames on until the directory is removed.
async fn follow(dir: &Path, names: &broadcast::Sender<OsString>) -> io::Result<()> {
    let inotify = Inotify::init()?;
    inotify.watches().add(dir, WatchMask::MOVED_TO)?;
    let mut events = inotify.into_event_stream([0; 4096])?;
    while let Some(event) = events.next().await {
        let event = event?;
        if event.mask.contains(EventMask::IGNORED) {
            break;
        }
        if let Some(name) = event.name {
            // Nobody starts at the moment where this fails.
            let _ = names.send(name);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rename(dir: &Path, name: &str) {
        let draft = dir.join(format!(".{name}"));
        std::fs::write(&draft, "").unwrap();
        std::fs::rename(draft, dir.join(name)).unwrap();
    }

    /// A hundred starts at once have one inotify instance, and each hears of its own file.
    #[tokio::test]
    async fn a_hundred_starts_share_one_instance() {
        let folder = tempfile::tempdir().unwrap();
        let (renames, task) = Renames::of(folder.path());
        tokio::spawn(task);
        // The watch is there when it has told the first name.
        let mut first = renames.look();
        loop {
            rename(folder.path(), "first");
            let heard = tokio::time::timeout(Duration::from_millis(10), first.0.recv());
            if heard.await.is_ok() {
                break;
            }
        }
        let instances = || {
            let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
            let targets = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
            targets
                .filter(|target| target.ends_with("anon_inode:inotify"))
                .count()
        };
        let before = instances();
        let begin = std::time::Instant::now();
        let mut watches: Vec<RenameWatch> = (0..100).map(|_| renames.look()).collect();
        for (at, watch) in watches.iter_mut().enumerate() {
            let name = format!("file-{at}");
            rename(folder.path(), &name);
            watch.heard(OsStr::new(&name)).await;
        }
        // Other tests of this process have some of their own.
        assert!(instances() < before + 50);
        assert!(begin.elapsed() < ECHO_PATIENCE * 50, "none waited in vain");
    }
}
