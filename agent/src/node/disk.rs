//! What lies on this node's disk: read for the core, removed on its word.
//!
//! In: "look now", "forget this". Out: [`Event::Local`]. Must never remove what the ledger
//! holds.

use super::core::Event;
use super::owner::Owner;
use super::state::State;
use crate::Config;
use crate::identity::Checkpoint;
use crate::ledger::{AllocId, Share, record_key};
use crate::reconcile::{Local, Proof};
use cdi::dir::OwnDir;
use futures::StreamExt as _;
use inotify::{Inotify, WatchMask};
use proto::names;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::{mpsc, watch};

/// Several reasons to look within this time are one.
const QUIET: Duration = Duration::from_millis(30);

/// Whose a file is; `None` for one that does not tell.
type Told = Option<Share>;

/// Reads and clears our folders. Blocking.
#[derive(Debug)]
pub struct Disk {
    checkpoint: PathBuf,
    cdi: OwnDir,
    proof_dir: PathBuf,
    share_dir: PathBuf,
    /// Files do not change but by a rename of ours; what was read once is kept.
    read: BTreeMap<AllocId, (SystemTime, Told)>,
}

impl Disk {
    /// Of these folders; makes what is missing.
    ///
    /// # Errors
    /// A folder that cannot be made.
    pub fn open(config: &Config) -> io::Result<Self> {
        for folder in [&config.cdi_dir, &config.proof_dir(), &config.share_dir()] {
            std::fs::create_dir_all(folder)?;
        }
        let cdi = OwnDir::new(&config.cdi_dir, names::cdi::FILE_PREFIX);
        if let Err(error) = cdi.sweep_temporaries() {
            tracing::warn!(%error, "temporary CDI files stay");
        }
        Ok(Self {
            checkpoint: config.checkpoint(),
            cdi,
            proof_dir: config.proof_dir(),
            share_dir: config.share_dir(),
            read: BTreeMap::new(),
        })
    }

    /// Everything as it is now. What cannot be read is not there.
    pub fn look(&mut self) -> Local {
        let checkpoint = match std::fs::read(&self.checkpoint) {
            Ok(bytes) => Checkpoint::parse(&bytes)
                .inspect_err(|error| tracing::warn!(%error, "identities need PodResources"))
                .ok(),
            Err(error) => {
                tracing::debug!(%error, "no checkpoint");
                None
            }
        };
        let mut files = BTreeMap::new();
        for alloc in self
            .cdi
            .ids()
            .unwrap_or_default()
            .iter()
            .filter_map(|id| AllocId::parse(id))
        {
            if let Some(share) = self.file(alloc) {
                files.insert(alloc, share);
            }
        }
        self.read.retain(|alloc, _| files.contains_key(alloc));
        let proofs = names_in(&self.proof_dir)
            .into_iter()
            .filter_map(|alloc| {
                let bytes = std::fs::read(self.proof_dir.join(alloc.to_string())).ok()?;
                Some((alloc, Proof::parse(&bytes)?))
            })
            .collect();
        Local {
            checkpoint,
            files,
            proofs,
            folders: names_in(&self.share_dir),
        }
    }

    /// `None`: there is no such file.
    fn file(&mut self, alloc: AllocId) -> Option<Told> {
        let id = alloc.to_string();
        let path = self.cdi.path_of(&id).ok()?;
        let modified = std::fs::metadata(path).and_then(|m| m.modified()).ok()?;
        if let Some((_, known)) = self.read.get(&alloc).filter(|(seen, _)| *seen == modified) {
            return Some(known.clone());
        }
        let told = match self.cdi.read(&id) {
            Ok(None) => return None,
            Ok(Some(spec)) => spec
                .annotations
                .get(&record_key())
                .and_then(|record| Share::from_record(alloc, record)),
            Err(error) => {
                tracing::warn!(%alloc, %error, "a CDI file of ours is not readable");
                None
            }
        };
        self.read.insert(alloc, (modified, told.clone()));
        Some(told)
    }

    /// Removes everything of an allocation; the CDI file first, so that nothing starts
    /// with it.
    pub fn forget(&mut self, alloc: AllocId) {
        let id = alloc.to_string();
        if let Err(error) = self.cdi.remove(&id) {
            tracing::warn!(%alloc, %error, "a CDI file stays");
        }
        let folder = self.share_dir.join(&id);
        let gone = [
            std::fs::remove_dir_all(folder),
            std::fs::remove_file(self.proof_dir.join(&id)),
        ];
        for error in gone.into_iter().filter_map(Result::err) {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!(%alloc, %error, "something of a dead allocation stays");
            }
        }
        self.read.remove(&alloc);
    }
}

fn names_in(folder: &Path) -> BTreeSet<AllocId> {
    std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| AllocId::parse(entry.file_name().to_str()?))
        .collect()
}

/// What the disk's task is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errand {
    /// Something may have changed.
    Look,
    /// Remove what is left of an allocation.
    Forget(AllocId),
}

/// Tells that the hook has left something. Without inotify, the interval must do.
struct Proofs(Option<inotify::EventStream<[u8; 4096]>>);

impl Proofs {
    async fn changed(&mut self) {
        match &mut self.0 {
            Some(stream) => {
                if stream.next().await.is_none() {
                    self.0 = None;
                }
            }
            None => std::future::pending().await,
        }
    }
}

fn proofs(dir: &Path) -> Proofs {
    let stream = Inotify::init().and_then(|inotify| {
        let mask = WatchMask::MOVED_TO | WatchMask::CLOSE_WRITE;
        inotify.watches().add(dir, mask)?;
        inotify.into_event_stream([0; 4096])
    });
    if let Err(error) = &stream {
        tracing::debug!(%error, "no inotify on the proofs");
    }
    Proofs(stream.ok())
}

/// Serves errands until they end; looks at least every `interval`.
pub async fn run(
    mut disk: Disk,
    interval: Duration,
    mut errands: mpsc::UnboundedReceiver<Errand>,
    state: watch::Receiver<Arc<State>>,
    owner: Owner,
) {
    let mut proofs = proofs(&disk.proof_dir);
    loop {
        let first = tokio::select! {
            errand = errands.recv() => match errand {
                None => return,
                Some(errand) => errand,
            },
            // A container that starts is nobody's until its proof is read.
            () = proofs.changed() => Errand::Look,
            () = tokio::time::sleep(interval) => Errand::Look,
        };
        let mut forget = Vec::new();
        let mut take = |errand| {
            if let Errand::Forget(alloc) = errand {
                forget.push(alloc);
            }
        };
        take(first);
        if first == Errand::Look {
            tokio::time::sleep(QUIET).await;
        }
        while let Ok(errand) = errands.try_recv() {
            take(errand);
        }
        // A binding that was made meanwhile is in the state before its file is written.
        let ledger = state.borrow().clone();
        forget.retain(|alloc| ledger.ledger.by_alloc(*alloc).is_none());
        let work = tokio::task::spawn_blocking(move || {
            for alloc in forget {
                disk.forget(alloc);
            }
            let local = disk.look();
            (disk, local)
        });
        let Ok((back, local)) = work.await else {
            return;
        };
        disk = back;
        if owner.tell(Event::Local(local)).is_err() {
            return;
        }
    }
}
