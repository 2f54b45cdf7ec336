//! Files on this node's disk: read for the core, and removed when the core says so.
//!
//! In: "read now", "remove this". Out: [`Event::Local`]. Must never remove what the ledger holds,
//! and never treat an unreadable file as a missing one.

use super::containers::Containers;
use super::event::Event;
use super::lists::Lists;
use super::owner::Owner;
use super::state::State;
use crate::Config;
use crate::edit;
use crate::identity::Checkpoint;
use crate::ledger::{AllocId, HolderKey, HolderRow, ProofName, Share, record_key};
use crate::reconcile::{Local, LocalSource, Proof};
use cdi::dir::{DirError, OwnDir};
use cdi::hook::Holders;
use futures::StreamExt as _;
use inotify::{EventMask, Inotify, WatchMask};
use proto::names;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::watch;

/// Several reasons to look within this time are one.
const QUIET: Duration = Duration::from_millis(30);
/// How the hook leaves a proof.
const PROOF_EVENTS: WatchMask = WatchMask::MOVED_TO.union(WatchMask::CLOSE_WRITE);

/// The holder of a file; `None` if the file does not name one.
type FileShares = Option<Vec<Share>>;
/// As [`Local::proofs`].
type Proofs = BTreeMap<ProofName, Option<Proof>>;

/// Reads and clears our folders. Blocking.
#[derive(Debug)]
pub struct Disk {
    checkpoint: PathBuf,
    cdi: OwnDir,
    proof_dir: PathBuf,
    share_dir: PathBuf,
    containers: Containers,
    /// Files change only by a rename of ours; their content is cached.
    read: BTreeMap<AllocId, (SystemTime, FileShares)>,
    /// The last look: what cannot be read now stays as it was.
    last: Local,
}

impl Disk {
    /// Opens these directories, and creates those that are missing. The agent also starts if one
    /// cannot be created: [`Self::look`] then reports it each time, and running shares keep their
    /// agent.
    pub fn open(config: &Config) -> Self {
        for folder in [&config.cdi_dir, &config.proof_dir(), &config.share_dir()] {
            if let Err(error) = std::fs::create_dir_all(folder) {
                tracing::warn!(folder = %folder.display(), %error, "a folder cannot be created");
            }
        }
        let cdi = OwnDir::new(&config.cdi_dir, names::cdi::FILE_PREFIX);
        if let Err(error) = cdi.sweep_temporaries() {
            tracing::warn!(%error, "temporary CDI files cannot be removed");
        }
        Self {
            checkpoint: config.checkpoint(),
            cdi,
            proof_dir: config.proof_dir(),
            share_dir: config.share_dir(),
            containers: Containers::new(config.proc_root.clone()),
            read: BTreeMap::new(),
            last: Local::default(),
        }
    }

    /// Everything as it is now; what cannot be read now as it was, with the reason.
    /// `doubted` are containers of which it has to be known whether they have a process.
    pub fn look(&mut self, doubted: &BTreeSet<String>) -> Local {
        let mut old = std::mem::take(&mut self.last);
        let old_reasons = std::mem::take(&mut old.unreadable);
        let mut unreadable = BTreeMap::new();
        let mut or_old = |part, error: String| {
            unreadable.insert(part, error);
        };
        let checkpoint = self.checkpoint().unwrap_or_else(|error| {
            or_old(LocalSource::Checkpoint, error);
            old.checkpoint
        });
        let folders = names_in(&self.share_dir, AllocId::parse).unwrap_or_else(|error| {
            or_old(LocalSource::ShareFiles, error);
            old.folders
        });
        let (proofs, missed) = self.proofs(&old.proofs, &old.living);
        if let Some(error) = missed {
            or_old(LocalSource::Proofs, error);
        }
        let files = self.files(&proofs).unwrap_or_else(|error| {
            or_old(LocalSource::CdiFiles, error);
            old.files
        });
        let living = self
            .containers
            .living(proofs.values().flatten(), doubted)
            .unwrap_or_else(|error| {
                or_old(LocalSource::Processes, error.to_string());
                let named = proofs.values().flatten();
                let named = named.map(|proof| proof.container_id.clone());
                old.living.into_iter().chain(named).collect()
            });
        for (part, error) in &unreadable {
            if old_reasons.get(part) != Some(error) {
                let part = part.in_words();
                tracing::warn!(
                    error,
                    "{part} cannot be read; its last known state stays in use"
                );
            }
        }
        for part in old_reasons
            .keys()
            .filter(|part| !unreadable.contains_key(part))
        {
            tracing::info!("{} can be read again", part.in_words());
        }
        self.last = Local {
            checkpoint,
            files,
            proofs,
            folders,
            living,
            unreadable,
        };
        self.last.clone()
    }

    /// `None` inside: there is none, as before a kubelet's first allocation.
    fn checkpoint(&self) -> Result<Option<Checkpoint>, String> {
        match std::fs::read(&self.checkpoint) {
            Ok(bytes) => Checkpoint::parse(&bytes)
                .map(Some)
                .map_err(|error| error.to_string()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    fn files(&mut self, proofs: &Proofs) -> Result<BTreeMap<AllocId, FileShares>, String> {
        let ids = self.cdi.ids().map_err(|error| error.to_string())?;
        let mut files = BTreeMap::new();
        for alloc in ids.iter().filter_map(|id| AllocId::parse(id)) {
            if let Some(told) = self
                .file(alloc, proofs)
                .map_err(|error| error.to_string())?
            {
                files.insert(alloc, told);
            }
        }
        self.read.retain(|alloc, _| files.contains_key(alloc));
        Ok(files)
    }

    /// `None`: there is no such file any more.
    fn file(&mut self, alloc: AllocId, proofs: &Proofs) -> Result<Option<FileShares>, DirError> {
        let id = alloc.to_string();
        let path = self.cdi.path_of(&id)?;
        let modified = match std::fs::metadata(&path).and_then(|metadata| metadata.modified()) {
            Ok(modified) => modified,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => {
                let doing = "read";
                return Err(DirError::Io {
                    doing,
                    path,
                    source,
                });
            }
        };
        if let Some((_, known)) = self.read.get(&alloc).filter(|(seen, _)| *seen == modified) {
            return Ok(Some(known.clone()));
        }
        let told = match self.cdi.read(&id) {
            Ok(None) => return Ok(None),
            Ok(Some(spec)) => spec
                .annotations
                .get(&record_key())
                .and_then(|record| Share::of_file(alloc, record, &self.holders(alloc, proofs))),
            Err(error @ DirError::Io { .. }) => return Err(error),
            Err(error) => {
                tracing::warn!(%alloc, %error, "a CDI file of ours is malformed");
                None
            }
        };
        self.read.insert(alloc, (modified, told.clone()));
        Ok(Some(told))
    }

    /// The containers of a claim: those that its file lists, and those that the hook let start,
    /// should that file be lost.
    fn holders(&self, alloc: AllocId, proofs: &Proofs) -> Vec<HolderRow> {
        let file = edit::holders_file(&self.share_dir, alloc);
        let listed = Holders::read(&file, &alloc.to_string()).unwrap_or_else(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!(%alloc, %error, "the list of a claim's containers is not readable");
            }
            Holders::default()
        });
        let row = |pod_uid: String, container: String, pod_name: String| HolderRow {
            key: HolderKey { pod_uid, container },
            pod_name,
        };
        let mut rows: Vec<HolderRow> = listed
            .holders
            .into_iter()
            .map(|one| row(one.pod_uid, one.container, one.pod_name))
            .collect();
        let proven = proofs.keys().filter(|name| name.alloc == alloc);
        for key in proven.filter_map(|name| name.holder.clone()) {
            if !rows.iter().any(|row| row.key == key) {
                rows.push(row(key.pod_uid, key.container, String::new()));
            }
        }
        rows
    }

    /// All proofs, and what went wrong. One that is lost while its container lives stays:
    /// the hook did run.
    fn proofs(&self, old: &Proofs, old_living: &BTreeSet<String>) -> (Proofs, Option<String>) {
        let names = match names_in(&self.proof_dir, ProofName::parse) {
            Ok(names) => names,
            Err(error) => return (old.clone(), Some(error)),
        };
        let mut missed = None;
        let mut proofs = Proofs::new();
        for name in names {
            let path = self.proof_dir.join(name.to_string());
            let before = || old.get(&name).cloned().flatten();
            let proof = match std::fs::read(&path) {
                Ok(bytes) => Proof::parse(&bytes)
                    .inspect_err(
                        |error| tracing::warn!(%name, error, "a proof of the hook is malformed"),
                    )
                    .ok(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => {
                    missed = Some(format!("{}: {error}", path.display()));
                    before()
                }
            };
            proofs.insert(name, proof);
        }
        for (name, proof) in old {
            if let Some(proof) = proof
                && !proofs.contains_key(name)
                && old_living.contains(&proof.container_id)
            {
                if let Err(error) = self.put_back(name, proof) {
                    missed = Some(error.to_string());
                }
                proofs.insert(name.clone(), Some(proof.clone()));
            }
        }
        (proofs, missed)
    }

    /// Never over a newer proof.
    fn put_back(&self, name: &ProofName, proof: &Proof) -> io::Result<()> {
        let path = self.proof_dir.join(name.to_string());
        let temporary = self.proof_dir.join(format!(".{name}.agent"));
        std::fs::write(&temporary, proof.to_json())?;
        let linked = std::fs::hard_link(&temporary, path);
        std::fs::remove_file(temporary)?;
        match linked {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => {
                tracing::warn!(%name, "the proof of a running container was missing and is written again");
                Ok(())
            }
        }
    }

    /// Removes everything of an allocation; the CDI file first, so that nothing starts
    /// with it.
    pub fn forget(&mut self, alloc: AllocId) {
        let id = alloc.to_string();
        if let Err(error) = self.cdi.remove(&id) {
            tracing::warn!(%alloc, %error, "a CDI file cannot be removed");
        }
        unless_gone(std::fs::remove_dir_all(self.share_dir.join(&id)), &id);
        // Those that are there now, and not only those that were there at the last look.
        let proofs = names_in(&self.proof_dir, ProofName::parse).unwrap_or_default();
        for name in proofs.iter().filter(|name| name.alloc == alloc) {
            self.forget_proof(name);
        }
        self.read.remove(&alloc);
    }

    /// Removes the proof of a container whose claim goes on without it.
    pub fn forget_proof(&mut self, name: &ProofName) {
        let text = name.to_string();
        unless_gone(std::fs::remove_file(self.proof_dir.join(&text)), &text);
        self.last.proofs.remove(name);
    }
}

fn unless_gone(removed: io::Result<()>, name: &str) {
    if let Err(error) = removed
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(name, %error, "a file of a dead allocation cannot be removed");
    }
}

fn names_in<T: Ord>(
    folder: &Path,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<BTreeSet<T>, String> {
    let told = |error: io::Error| format!("{}: {error}", folder.display());
    let mut names = BTreeSet::new();
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // It was removed; without it no container starts.
            std::fs::create_dir_all(folder).map_err(told)?;
            return Ok(names);
        }
        entries => entries.map_err(told)?,
    };
    for entry in entries {
        let name = entry.map_err(told)?.file_name();
        names.extend(name.to_str().and_then(&parse));
    }
    Ok(names)
}

/// Requests to the disk's task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskRequest {
    /// Something may have changed.
    Look,
    /// Remove the remaining files of an allocation.
    Forget(AllocId),
    /// Remove the proof of a container that has ended while its claim continues.
    ForgetProof(ProofName),
    /// List the containers that may have the share of a claim.
    List(AllocId),
}

/// Signals that the hook has written a proof. Without inotify, the interval must do.
struct ProofEvents {
    dir: PathBuf,
    stream: Option<inotify::EventStream<[u8; 4096]>>,
    /// The watched directory was removed, and with it the watch.
    lost: bool,
}

impl ProofEvents {
    fn new(dir: &Path) -> Self {
        let stream = Inotify::init().and_then(|inotify| {
            inotify.watches().add(dir, PROOF_EVENTS)?;
            inotify.into_event_stream([0; 4096])
        });
        if let Err(error) = &stream {
            tracing::debug!(%error, "no inotify on the proofs");
        }
        Self {
            dir: dir.to_owned(),
            stream: stream.ok(),
            lost: false,
        }
    }

    /// Also once when the watch on the directory restarts: earlier files caused no event.
    async fn changed(&mut self) {
        let Some(stream) = &mut self.stream else {
            return std::future::pending().await;
        };
        // A reading creates the directory; before that there is nothing to watch.
        if self.lost && stream.watches().add(&self.dir, PROOF_EVENTS).is_ok() {
            self.lost = false;
            return;
        }
        match stream.next().await {
            Some(Ok(event)) => self.lost |= event.mask.contains(EventMask::IGNORED),
            // At worst too many events: a reading finds what they were about.
            Some(Err(_)) => {}
            None => self.stream = None,
        }
    }
}

/// Serves requests until they end; reads at least every `interval`.
pub async fn run(
    mut disk: Disk,
    interval: Duration,
    mut requests: channel::Receiver<DiskRequest>,
    state: watch::Receiver<Arc<State>>,
    lists: Lists,
    owner: Owner,
) {
    let mut proofs = ProofEvents::new(&disk.proof_dir);
    loop {
        let first = tokio::select! {
            request = requests.recv() => match request {
                None => return,
                Some(request) => request,
            },
            // A starting container belongs to no share until its proof is read.
            () = proofs.changed() => DiskRequest::Look,
            () = tokio::time::sleep(interval) => DiskRequest::Look,
        };
        let wait = first == DiskRequest::Look;
        let mut tasks = vec![first];
        if wait {
            tokio::time::sleep(QUIET).await;
        }
        while let Ok(request) = requests.try_recv() {
            tasks.push(request);
        }
        let (state, lists) = (state.clone(), lists.clone());
        let work = tokio::task::spawn_blocking(move || {
            for task in tasks {
                // A claim that is prepared again has the name that it had: what was bound
                // meanwhile is in the state before its file is written.
                let turn = lists.turn();
                let bound = |alloc| state.borrow().ledger.by_alloc(alloc).next().is_some();
                match task {
                    DiskRequest::Forget(alloc) if !bound(alloc) => disk.forget(alloc),
                    DiskRequest::ForgetProof(name) => disk.forget_proof(&name),
                    DiskRequest::List(alloc) => {
                        if let Err(error) = lists.write(&turn, alloc) {
                            tracing::warn!(%alloc, %error, "the list of a claim's containers is not written");
                        }
                    }
                    DiskRequest::Look | DiskRequest::Forget(_) => {}
                }
            }
            let doubted = state.borrow().doubted.clone();
            let local = disk.look(&doubted);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn proofs_are_told_of_in_a_folder_that_was_recreated() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = tmp.path().join("proof");
        std::fs::create_dir(&dir).unwrap();
        let mut proofs = ProofEvents::new(&dir);
        std::fs::remove_dir(&dir).unwrap();
        while !proofs.lost {
            told(&mut proofs).await;
        }
        // As a reading creates it.
        names_in(&dir, AllocId::parse).unwrap();
        told(&mut proofs).await;
        std::fs::write(dir.join("one"), "").unwrap();
        told(&mut proofs).await;
    }

    /// Root may read any file, so the test puts a file of another kind there.
    #[test]
    fn a_proof_that_was_read_once_stands_while_it_or_its_folder_cannot_be_read() {
        let tmp = tempfile::tempdir().unwrap();
        let config = Config {
            cdi_dir: tmp.path().join("cdi"),
            run_dir: tmp.path().join("run"),
            kubelet_dir: tmp.path().join("kubelet"),
            ..Config::for_node("n1")
        };
        let mut disk = Disk::open(&config);
        let alloc = AllocId::new(7);
        let name = ProofName {
            alloc,
            holder: None,
        };
        let file = config.proof_dir().join(name.to_string());
        let proof = Proof {
            version: cdi::hook::PROOF_VERSION,
            alloc_id: alloc.to_string(),
            container_id: "gone".into(),
            ..Proof::default()
        };
        let mut look = || {
            let local = disk.look(&BTreeSet::new());
            (
                local.unreadable.contains_key(&LocalSource::Proofs),
                local.proofs,
            )
        };
        let good = BTreeMap::from([(name, Some(proof.clone()))]);
        std::fs::write(&file, proof.to_json()).unwrap();
        assert_eq!(look(), (false, good.clone()));
        // The file alone.
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        assert_eq!(look(), (true, good.clone()));
        // All of the folder.
        std::fs::remove_dir_all(config.proof_dir()).unwrap();
        std::fs::write(config.proof_dir(), "").unwrap();
        assert_eq!(look(), (true, good));
        // Its container has no process any more.
        std::fs::remove_file(config.proof_dir()).unwrap();
        assert_eq!(look(), (false, BTreeMap::new()));
    }

    async fn told(proofs: &mut ProofEvents) {
        let limit = Duration::from_secs(10);
        let told = tokio::time::timeout(limit, proofs.changed()).await;
        told.expect("nothing is told any more");
    }
}
