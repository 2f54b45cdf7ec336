//! `PreStartContainer`: from device IDs to a CDI file on disk.
//!
//! Reads the checkpoint, lets the core decide, asks the second witness, waits for what is
//! only late, writes. Repeating it is harmless: the kubelet calls it at every start of a
//! container and whenever it failed. Cancelling it anywhere is harmless too.

use super::pod_resources::Lister;
use crate::Config;
use crate::edit::{self, DriverFiles, MpsDirs, Places, trimmed};
use crate::identity::{self, Checkpoint, Resource};
use crate::inventory::GpuUuid;
use crate::ledger::{AllocId, Share};
use crate::mps::plan;
use crate::node::{Ask, MpsView, Note, Outcome, Owner, Refusal, Source, State, Unready};
use api::Mode;
use cdi::dir::{OwnDir, Written};
use cdi::{ContainerEdits, Spec};
use futures::StreamExt as _;
use inotify::{Inotify, WatchMask};
use proto::names;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// Between two tries of what is late.
const AGAIN: Duration = Duration::from_millis(50);
/// When one holder of the IDs is ready, so long is waited for pods that the watch does not
/// know: the kubelet's file also names pods that left while nobody watched.
const STRANGER_PATIENCE: Duration = Duration::from_secs(2);
/// Our own inotify echo of a rename comes within microseconds, or inotify is not there.
const ECHO_PATIENCE: Duration = Duration::from_millis(500);

/// Everything that a `PreStartContainer` needs.
#[derive(Clone, Debug)]
pub struct PreStart {
    /// Paths and patience.
    pub config: Arc<Config>,
    /// Decides.
    pub owner: Owner,
    /// What it decided.
    pub state: watch::Receiver<Arc<State>>,
    /// Where refusals go.
    pub notes: mpsc::UnboundedSender<Note>,
}

/// The text that the kubelet shows in the pod's events.
#[derive(Debug, thiserror::Error)]
pub enum PreStartError {
    /// By identity or by the ledger.
    #[error("{0}")]
    Refused(String),
    /// On this node's disk.
    #[error("the container's CDI file cannot be written: {0}")]
    Write(String),
    /// The agent ends.
    #[error(transparent)]
    Stopped(#[from] crate::node::Stopped),
}

impl PreStart {
    /// Prepares every live allocation of these IDs.
    ///
    /// # Errors
    /// One readable line; the kubelet calls again.
    pub async fn run(
        &self,
        resource: Resource,
        ids: BTreeSet<String>,
    ) -> Result<(), PreStartError> {
        let deadline = Instant::now() + self.config.prestart_wait();
        let lister = Lister::new(self.config.pod_resources());
        let outcomes = self.decide(resource, &ids, &lister, deadline).await?;
        let mut ready: Vec<(Share, AllocId)> = Vec::new();
        let mut unready = Vec::new();
        for outcome in &outcomes {
            match &outcome.result {
                Ok(share) => {
                    let Some(alloc) = share.alloc_id else {
                        continue;
                    };
                    match self.warm(share, deadline).await {
                        Ok(()) => ready.push((share.clone(), alloc)),
                        Err(late) => unready.push((outcome, late)),
                    }
                }
                Err(why) => unready.push((outcome, why.clone())),
            }
        }
        for (outcome, why) in &unready {
            self.report(outcome, why);
        }
        if ready.is_empty() {
            let first = unready.into_iter().next().map(|(_, why)| why.reason);
            return Err(PreStartError::Refused(first.unwrap_or_else(|| {
                "nobody holds these devices any more".to_owned()
            })));
        }
        for (share, alloc) in ready {
            self.write(&share, alloc).await?;
        }
        Ok(())
    }

    /// Asks the core until nothing is late any more, or time is up.
    async fn decide(
        &self,
        resource: Resource,
        ids: &BTreeSet<String>,
        lister: &Lister,
        deadline: Instant,
    ) -> Result<Vec<Outcome>, PreStartError> {
        let started = Instant::now();
        loop {
            let source = self.source(lister).await;
            let question = Ask {
                resource,
                ids: ids.clone(),
                source,
            };
            let mut outcomes = self.owner.prepare(question).await?;
            for outcome in &mut outcomes {
                self.cross_examine(outcome, resource, ids, lister).await?;
            }
            let now = Instant::now();
            let someone = outcomes.iter().any(|outcome| outcome.result.is_ok());
            let late = outcomes.iter().any(|outcome| {
                let unknown = outcome.pod.is_none();
                let patient = !(someone && unknown && now - started > STRANGER_PATIENCE);
                patient && outcome.result.as_ref().is_err_and(|why| why.may_pass)
            });
            if !late || now >= deadline {
                return Ok(outcomes);
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn source(&self, lister: &Lister) -> Source {
        let read = tokio::fs::read(self.config.checkpoint()).await;
        let parsed = read
            .map_err(|error| error.to_string())
            .and_then(|read| Checkpoint::parse(&read).map_err(|error| error.to_string()));
        match parsed {
            Ok(checkpoint) => Source::Checkpoint(checkpoint),
            Err(error) => {
                tracing::warn!(error, "no checkpoint; asking PodResources alone");
                let told = lister.list().await.inspect_err(|error| {
                    tracing::warn!(%error, "no PodResources either");
                });
                Source::Listed(told.unwrap_or_default())
            }
        }
    }

    /// Both witnesses must agree where both answer.
    async fn cross_examine(
        &self,
        outcome: &mut Outcome,
        resource: Resource,
        ids: &BTreeSet<String>,
        lister: &Lister,
    ) -> Result<(), PreStartError> {
        let (Ok(_), Some(pod), Some(holder)) = (&outcome.result, &outcome.pod, &outcome.holder)
        else {
            return Ok(());
        };
        let told = match lister.get(&pod.identity).await {
            Ok(told) => told,
            Err(error) => {
                tracing::debug!(%error, "the checkpoint is the only witness");
                return Ok(());
            }
        };
        let verdict = identity::contradicts(pod, &holder.container, resource, ids, told.as_ref());
        if let Err(error) = verdict {
            self.owner.unbind(holder.alloc)?;
            outcome.result = Err(Unready {
                reason: error.to_string(),
                may_pass: error.may_pass(),
                is_final: error.is_final(),
                decision: String::new(),
            });
        }
        Ok(())
    }

    /// Waits until the share's cards are in its mode.
    async fn warm(&self, share: &Share, deadline: Instant) -> Result<(), Unready> {
        let mut state = self.state.clone();
        loop {
            let late = match warmth(&state.borrow_and_update().mps, share) {
                Ok(()) => return Ok(()),
                Err(late) => late,
            };
            let changed = tokio::time::timeout_at(deadline, state.changed()).await;
            if !matches!(changed, Ok(Ok(()))) {
                return Err(Unready {
                    reason: late,
                    may_pass: true,
                    is_final: false,
                    decision: share.decision.clone(),
                });
            }
        }
    }

    fn report(&self, outcome: &Outcome, why: &Unready) {
        let pod = outcome.identity();
        tracing::warn!(pod = %pod, reason = why.reason, is_final = why.is_final, "refused");
        if pod.uid.is_empty() {
            return;
        }
        let container = outcome.holder.as_ref().map(|h| h.container.clone());
        let _ = self.notes.send(Note::Refused(Refusal {
            pod,
            container: container.unwrap_or_default(),
            decision: why.decision.clone(),
            reason: why.reason.clone(),
            is_final: why.is_final,
        }));
    }

    async fn write(&self, share: &Share, alloc: AllocId) -> Result<(), PreStartError> {
        let failed = |error: &dyn std::fmt::Display| PreStartError::Write(error.to_string());
        let state = self.state.borrow().clone();
        let (config, share) = (self.config.clone(), share.clone());
        let mut echo = Echo::watch(&config.cdi_dir);
        let work = tokio::task::spawn_blocking(move || -> Result<(Written, PathBuf), String> {
            let spec = made(&config, &state, &share, alloc).map_err(|e| e.to_string())?;
            put_share_file(&config.share_dir(), &share, alloc).map_err(|e| e.to_string())?;
            let dir = OwnDir::new(&config.cdi_dir, names::cdi::FILE_PREFIX);
            let id = alloc.to_string();
            let path = dir.path_of(&id).map_err(|e| e.to_string())?;
            let written = dir.write(&id, &spec).map_err(|e| e.to_string())?;
            Ok((written, path))
        });
        let done = work.await.map_err(|error| failed(&error))?;
        let (written, path) = done.map_err(|error| failed(&error))?;
        if written != Written::Unchanged {
            if let Some(name) = path.file_name() {
                echo.heard(name).await;
            }
            tokio::time::sleep(self.config.cdi_settle()).await;
        }
        Ok(())
    }
}

/// Whether the cards' mode is what the share needs; else what is missing, in one line.
fn warmth(mps: &MpsView, share: &Share) -> Result<(), String> {
    for card in &share.gpus {
        let others = mps.seen.servers.iter().any(|server| {
            plan::holds(server, card) && Some(&server.name) != plan::server_name(share).as_ref()
        });
        let planned = mps.applied.servers.iter().any(|s| s.name == card.as_str());
        let own = share.mode == Mode::Mps;
        if share.mode != Mode::MpsIsolated && (others || planned && !own) {
            // One that still holds the card would be all that can use it.
            return Err(format!("an MPS server still holds card {card}"));
        }
        if share.mode == Mode::MpsIsolated && (planned || seen_of_card(mps, card)) {
            return Err(format!("the MPS server of card {card} still holds it"));
        }
    }
    if share.mode == Mode::Exclusive {
        return Ok(());
    }
    if !mps.unreachable.is_empty() {
        return Err(format!(
            "the MPS supervisor does not answer: {}",
            mps.unreachable
        ));
    }
    match plan::server_name(share) {
        Some(name) => served(mps, share, &name),
        None => sliced(mps, share),
    }
}

/// Whether the card's one server is still there.
fn seen_of_card(mps: &MpsView, card: &GpuUuid) -> bool {
    let mut servers = mps.seen.servers.iter();
    servers.any(|server| server.name == card.as_str() && plan::holds(server, card))
}

/// Whether the share's server takes it.
fn served(mps: &MpsView, share: &Share, name: &str) -> Result<(), String> {
    let whose = match share.mode {
        Mode::Mps => format!("of card {name}"),
        _ => "of this share".to_owned(),
    };
    let told = mps.applied.servers.iter().any(|server| {
        let memory = server.default_memory_mib;
        server.name == *name && (memory == 0 || memory >= share.memory.0)
    });
    let seen = mps.seen.servers.iter().find(|s| s.name == *name);
    match seen.map_or(("Absent", ""), |s| (&*s.state, &*s.reason)) {
        ("Ready", _) if told => Ok(()),
        ("Ready", _) => Err(format!(
            "the MPS server {whose} is not yet told of this share"
        )),
        (state, "") => Err(format!("the MPS server {whose} is {state}")),
        (state, reason) => Err(format!("the MPS server {whose} is {state}: {reason}")),
    }
}

/// Whether the cards take processes side by side.
fn sliced(mps: &MpsView, share: &Share) -> Result<(), String> {
    for card in &share.gpus {
        let told = mps.applied.cards.iter().any(|c| c.uuid == card.as_str());
        let seen = mps.seen.cards.iter().find(|c| c.uuid == card.as_str());
        match seen {
            Some(seen) if seen.ready && told => {}
            Some(seen) if !seen.reason.is_empty() => {
                return Err(format!(
                    "card {card} cannot be time-sliced: {}",
                    seen.reason
                ));
            }
            _ => return Err(format!("card {card} is not yet set to time-slicing")),
        }
    }
    Ok(())
}

#[derive(Debug, thiserror::Error)]
enum MakeError {
    #[error("card {0} is not known any more")]
    Card(GpuUuid),
    #[error("the driver's files cannot be listed: {0}")]
    Driver(#[from] io::Error),
    #[error(transparent)]
    Foreign(#[from] cdi::dir::DirError),
}

/// The share's CDI file.
fn made(config: &Config, state: &State, share: &Share, alloc: AllocId) -> Result<Spec, MakeError> {
    let driver = driver_edits(config, state, share)?;
    let mps = plan::server_name(share).map(|name| mps_dirs(config, &state.mps, &name));
    let places = Places {
        cdi_dir: config.cdi_dir.clone(),
        share_dir: config.share_dir(),
        proof_dir: config.proof_dir(),
        hook: config.hook_path.clone(),
    };
    let hints = match share.mode {
        Mode::TimeSlicing => edit::hints::of(share, &state.inventory),
        _ => Vec::new(),
    };
    let made = edit::Made {
        driver,
        mps: mps.as_ref(),
        hints,
    };
    Ok(edit::spec(share, alloc, made, &places))
}

/// NVIDIA's own edits where every card has them, else what is found under the driver root.
fn driver_edits(
    config: &Config,
    state: &State,
    share: &Share,
) -> Result<ContainerEdits, MakeError> {
    let mut theirs = ContainerEdits::default();
    let mut complete = true;
    for card in &share.gpus {
        let search = cdi::foreign::find_gpu(&config.nvidia_cdi_dirs, card.as_str())?;
        for complaint in search.complaints {
            tracing::debug!(complaint, "another vendor's CDI file");
        }
        match search.found {
            Some(found) => theirs.merge(found.edits),
            None => complete = false,
        }
    }
    if complete {
        return Ok(trimmed(theirs));
    }
    let minors = share
        .gpus
        .iter()
        .map(|uuid| {
            let card = state.inventory.card(uuid);
            card.map(|card| card.minor)
                .ok_or_else(|| MakeError::Card(uuid.clone()))
        })
        .collect::<Result<Vec<u32>, _>>()?;
    let files = DriverFiles::find(&config.driver_root, config.driver_root_here())?;
    Ok(files.edits(&minors))
}

/// As the supervisor says, else where it puts them by its rules.
fn mps_dirs(config: &Config, mps: &MpsView, name: &str) -> MpsDirs {
    let server = mps.seen.servers.iter().find(|s| s.name == *name);
    let place = |told: Option<&str>, part: &str| match told {
        Some(told) if !told.is_empty() => PathBuf::from(told),
        _ => config.mps_dir().join(name).join(part),
    };
    MpsDirs {
        pipe: place(server.map(|s| s.pipe_dir.as_str()), "pipe"),
        shm: place(server.map(|s| s.shm_dir.as_str()), "shm"),
    }
}

/// Before the CDI file that mounts it.
fn put_share_file(share_dir: &Path, share: &Share, alloc: AllocId) -> io::Result<()> {
    let file = edit::share_file(share_dir, alloc);
    let text = edit::share_text(share);
    if std::fs::read_to_string(&file).is_ok_and(|old| old == text) {
        return Ok(());
    }
    let folder = share_dir.join(alloc.to_string());
    std::fs::create_dir_all(&folder)?;
    let temporary = folder.join(".share.json");
    std::fs::write(&temporary, text)?;
    std::fs::rename(temporary, file)
}

/// Our own watch on the CDI directory: when it has seen the rename, so has the runtime's
/// kernel queue. `None` inside: no inotify to be had, the settling time must do.
struct Echo(Option<inotify::EventStream<[u8; 4096]>>);

impl Echo {
    fn watch(dir: &Path) -> Self {
        let stream = Inotify::init().and_then(|inotify| {
            inotify.watches().add(dir, WatchMask::MOVED_TO)?;
            inotify.into_event_stream([0; 4096])
        });
        if let Err(error) = &stream {
            tracing::debug!(%error, "no inotify on the CDI directory");
        }
        Self(stream.ok())
    }

    async fn heard(&mut self, name: &std::ffi::OsStr) {
        let Some(stream) = &mut self.0 else { return };
        let mut until = std::pin::pin!(tokio::time::sleep(ECHO_PATIENCE));
        loop {
            tokio::select! {
                event = stream.next() => match event {
                    Some(Ok(event)) if event.name.as_deref() == Some(name) => return,
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None => return,
                },
                () = &mut until => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::mps::{Observation, Plan, Server, ServerState};

    fn share(mode: &str) -> Share {
        let record = format!(
            r#"{{"version":1,"pod":{{"uid":"u","namespace":"n","name":"p"}},"container":"c",
               "gpus":["GPU-0"],"memoryMib":2000,"computePercent":100,"mode":"{mode}","decision":"d"}}"#
        );
        Share::from_record(AllocId::new(1), &record).unwrap()
    }

    fn view(planned: Option<u64>, state: Option<&str>) -> MpsView {
        MpsView {
            applied: Plan {
                servers: planned
                    .map(|mib| Server {
                        name: "GPU-0".into(),
                        default_memory_mib: mib,
                        ..Server::default()
                    })
                    .into_iter()
                    .collect(),
                ..Plan::default()
            },
            seen: Observation {
                servers: state
                    .map(|state| ServerState {
                        name: "GPU-0".into(),
                        state: state.into(),
                        ..ServerState::default()
                    })
                    .into_iter()
                    .collect(),
                ..Observation::default()
            },
            unreachable: String::new(),
        }
    }

    #[test]
    fn a_share_waits_for_a_server_that_knows_of_it() {
        let share = share("mps");
        for (view, expected) in [
            (view(Some(2000), Some("Ready")), ""),
            (view(Some(0), Some("Ready")), ""),
            (
                view(Some(1000), Some("Ready")),
                "the MPS server of card GPU-0 is not yet told of this share",
            ),
            (view(None, None), "the MPS server of card GPU-0 is Absent"),
            (
                view(Some(2000), Some("Starting")),
                "the MPS server of card GPU-0 is Starting",
            ),
        ] {
            assert_eq!(warmth(&view, &share).err().unwrap_or_default(), expected);
        }
        let silent = MpsView {
            unreachable: "connection refused".into(),
            ..view(Some(2000), Some("Ready"))
        };
        assert_eq!(
            warmth(&silent, &share).unwrap_err(),
            "the MPS supervisor does not answer: connection refused"
        );
    }

    #[test]
    fn an_isolated_share_waits_for_its_own_server_and_for_the_cards_to_leave() {
        let share = share("mps-isolated");
        let name = AllocId::new(1).to_string();
        let mut own = view(Some(2000), Some("Ready"));
        own.applied.servers[0].name.clone_from(&name);
        own.seen.servers[0].name.clone_from(&name);
        own.seen.servers[0].gpu_uuids = vec!["GPU-0".into()];
        assert_eq!(warmth(&own, &share), Ok(()));
        assert_eq!(
            warmth(&MpsView::default(), &share).unwrap_err(),
            "the MPS server of this share is Absent"
        );
        own.seen.servers.push(ServerState {
            name: "GPU-0".into(),
            state: "Draining".into(),
            ..ServerState::default()
        });
        assert_eq!(
            warmth(&own, &share).unwrap_err(),
            "the MPS server of card GPU-0 still holds it"
        );
    }

    #[test]
    fn a_slice_waits_for_the_cards_mode_and_for_servers_to_leave() {
        let share = share("time-slicing");
        let card = |ready, reason: &str| {
            let mut view = MpsView::default();
            view.applied.cards = vec![proto::mps::Card {
                uuid: "GPU-0".into(),
                time_slice: None,
            }];
            view.seen.cards = vec![proto::mps::CardState {
                uuid: "GPU-0".into(),
                ready,
                reason: reason.into(),
            }];
            view
        };
        assert_eq!(warmth(&card(true, ""), &share), Ok(()));
        for (view, expected) in [
            (
                MpsView::default(),
                "card GPU-0 is not yet set to time-slicing",
            ),
            (
                card(false, "no permission"),
                "card GPU-0 cannot be time-sliced: no permission",
            ),
            (
                view(None, Some("Draining")),
                "an MPS server still holds card GPU-0",
            ),
        ] {
            assert_eq!(warmth(&view, &share).unwrap_err(), expected);
        }
    }

    #[test]
    fn a_whole_card_waits_for_the_server_to_leave() {
        let share = share("exclusive");
        assert!(warmth(&view(None, None), &share).is_ok());
        assert!(warmth(&view(None, Some("Absent")), &share).is_ok());
        for view in [view(None, Some("Draining")), view(Some(1), None)] {
            assert_eq!(
                warmth(&view, &share).unwrap_err(),
                "an MPS server still holds card GPU-0"
            );
        }
        // A node that never shared anything needs no supervisor.
        let silent = MpsView {
            unreachable: "no socket".into(),
            ..MpsView::default()
        };
        assert!(warmth(&silent, &share).is_ok());
    }
}
