//! `PreStartContainer`: from device IDs to a CDI file on disk.
//!
//! Reads the checkpoint, lets the core decide, queries the second source, waits for what is late,
//! writes. Repeating it is harmless: the kubelet calls it at every start of a container and
//! whenever it failed. Cancelling it anywhere is harmless too.
//!
//! - `readiness`: are the cards in the share's mode; `files`: the files; `renames`: has the
//!   kernel reported the rename.

mod files;
mod readiness;
mod renames;

use super::pod_resources::Lister;
use crate::Config;
use crate::identity::{self, Checkpoint};
use crate::ledger::{AllocId, Share};
use crate::node::claims::Prepared;
use crate::node::claims::parts::Allocated;
use crate::node::lists::Lists;
use crate::node::{Note, Outcome, Owner, PrepareRequest, RefusedGrant, Source, State, Unready};
use crate::resource::Resource;
use cdi::dir::{OwnDir, Written};
use files::{made, put_share_file};
use proto::names;
use readiness::readiness;
pub use renames::Renames;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{Instrument as _, Span, info_span};

/// Time between two retries while something is late.
const AGAIN: Duration = Duration::from_millis(50);
/// The first retry of a claim. The kubelet and this agent hear of a pod at the same time, by a
/// watch each, so what is late is usually some milliseconds late.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
/// The kubelet writes its file before it calls; `PodResources` is queried after this time.
const RECORD_PATIENCE: Duration = Duration::from_secs(2);
/// How long to wait for pods that the watch does not know when one holder of the IDs is ready: the
/// kubelet's file also names pods that ended while no agent was watching.
const STRANGER_PATIENCE: Duration = Duration::from_secs(2);

/// Everything that a `PreStartContainer` needs.
#[derive(Clone, Debug)]
pub struct PreStart {
    /// Paths and patience.
    pub config: Arc<Config>,
    /// Decides.
    pub owner: Owner,
    /// The decision.
    pub state: watch::Receiver<Arc<State>>,
    /// Which pods may have which share of a claim.
    pub lists: Lists,
    /// The renames in the CDI directory.
    pub renames: Renames,
    /// Where refusals go.
    pub notes: channel::Sender<Note>,
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

/// Of the pod's trace.
fn span_of(share: &Share, alloc: AllocId) -> Span {
    let (pod, uid) = (&share.pod, share.pod.uid.as_str());
    let (container, decision) = (share.container.as_str(), share.decision.as_str());
    let span = info_span!(
        target: trace::TARGET,
        "prestart", %pod, uid, container, decision, %alloc
    );
    trace::of_pod(&span, uid);
    span
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
            return Err(PreStartError::Refused(
                first.unwrap_or_else(|| "no container holds these devices".to_owned()),
            ));
        }
        let mut settled = true;
        for (share, alloc) in ready {
            let span = span_of(&share, alloc);
            let write = async {
                settled &= self.write(&share, alloc).await? == Written::Unchanged;
                tracing::info!("prepared");
                Ok::<(), PreStartError>(())
            };
            write.instrument(span).await?;
        }
        if !settled {
            // The runtime reads its queue of file events, then the file.
            tokio::time::sleep(self.config.cdi_settle()).await;
        }
        Ok(())
    }

    /// Prepares the devices of a claim: the same from the ledger on, without the question of
    /// identity. Adds to `waited` the time in which there was nothing to do.
    ///
    /// # Errors
    /// One readable line; the kubelet calls again.
    pub async fn claim(
        &self,
        allocated: &Allocated,
        waited: &mut Duration,
    ) -> Result<Vec<Prepared>, PreStartError> {
        let deadline = Instant::now() + self.config.prestart_wait();
        let refused = |why: Unready| PreStartError::Refused(why.reason);
        let mut pause = FIRST_PAUSE;
        let prepared = loop {
            match self.owner.prepare_claim(allocated.clone()).await? {
                Ok(prepared) => break prepared,
                Err(why) if !why.may_pass || Instant::now() >= deadline => {
                    return Err(refused(why));
                }
                Err(_) => {
                    tokio::time::sleep(pause).await;
                    *waited += pause;
                    pause = AGAIN.min(pause * 2);
                }
            }
        };
        for Prepared { alloc, share } in &prepared {
            // A container that only monitors a card takes it in any mode.
            if !share.wishes.observes {
                let warming = Instant::now();
                let warm = self.warm(share, deadline).await;
                *waited += warming.elapsed();
                warm.map_err(refused)?;
            }
            // Needs no pause for the runtime: the kubelet prepares claims before it makes the
            // pod's sandbox (`SyncPod` of kuberuntime_manager.go), and its containers after it.
            let write = async {
                self.write(share, *alloc).await?;
                tracing::info!("prepared");
                Ok::<(), PreStartError>(())
            };
            write.instrument(span_of(share, *alloc)).await?;
        }
        Ok(prepared)
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
            let doubts = started.elapsed() > RECORD_PATIENCE;
            let source = self.source(resource, ids, lister, doubts).await;
            let question = PrepareRequest {
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

    /// `doubts`: a checkpoint that has nothing of these IDs is not of a form that is known.
    async fn source(
        &self,
        resource: Resource,
        ids: &BTreeSet<String>,
        lister: &Lister,
        doubts: bool,
    ) -> Source {
        let read = tokio::fs::read(self.config.checkpoint()).await;
        let parsed = read
            .map_err(|error| error.to_string())
            .and_then(|read| Checkpoint::parse(&read).map_err(|error| error.to_string()));
        let silent = |checkpoint: &Checkpoint| {
            doubts && identity::holders(checkpoint, resource, ids).is_empty()
        };
        match parsed {
            Ok(checkpoint) if silent(&checkpoint) => match lister.list().await {
                Ok(told) => Source::Listed(told),
                Err(_) => Source::Checkpoint(checkpoint),
            },
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
                tracing::debug!(%error, "identities come from the checkpoint alone");
                return Ok(());
            }
        };
        let verdict = identity::pod_resources::contradicts(
            pod,
            &holder.container,
            resource,
            ids,
            told.as_ref(),
        );
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
            let late = match readiness(&state.borrow_and_update().mps, share) {
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
        let _ = self.notes.send(Note::Refused(RefusedGrant {
            pod,
            container: container.unwrap_or_default(),
            decision: why.decision.clone(),
            reason: why.reason.clone(),
            is_final: why.is_final,
        }));
    }

    /// Writes the share's CDI file. The runtime's queue of file events has it then.
    async fn write(&self, share: &Share, alloc: AllocId) -> Result<Written, PreStartError> {
        let failed = |error: &dyn std::fmt::Display| PreStartError::Write(error.to_string());
        let state = self.state.borrow().clone();
        let (config, share) = (self.config.clone(), share.clone());
        let lists = self.lists.clone();
        let mut rename_watch = self.renames.look();
        let work = tokio::task::spawn_blocking(move || -> Result<(Written, PathBuf), String> {
            let spec = made(&config, &state, &share, alloc).map_err(|e| e.to_string())?;
            let turn = lists.turn();
            put_share_file(&config.share_dir(), &share, alloc).map_err(|e| e.to_string())?;
            lists.write(&turn, alloc).map_err(|e| e.to_string())?;
            let dir = OwnDir::new(&config.cdi_dir, names::cdi::FILE_PREFIX);
            let id = alloc.to_string();
            let path = dir.path_of(&id).map_err(|e| e.to_string())?;
            let written = dir.write(&id, &spec).map_err(|e| e.to_string())?;
            Ok((written, path))
        });
        let done = work.await.map_err(|error| failed(&error))?;
        let (written, path) = done.map_err(|error| failed(&error))?;
        if let Some(name) = path.file_name().filter(|_| written != Written::Unchanged) {
            rename_watch.heard(name).await;
        }
        Ok(written)
    }
}
