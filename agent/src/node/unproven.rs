//! A container that runs with an answer of ours and without the hook's proof was started by a runtime
//! that ignored the CDI name, or the hook. Those that this agent let start are ended; older ones are
//! left alone, and the node offers nothing while they run. Pure.

use super::event::Effect;
use super::note::Note;
use crate::ledger::{HolderKey, Ledger, ProofName};
use crate::pods::{Pods, Standing};
use crate::reconcile::{self, Local, Suspicions, UnprovenContainer};
use crate::termination::Termination;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// A runtime that ignored CDI is not tried again for this time: each try costs a pod. A restarted
/// agent tries at once.
const CDI_PATIENCE: Duration = Duration::from_mins(10);

/// The containers without proof, and the verdict on the runtime that follows.
#[derive(Debug, Default)]
pub(super) struct Unproven {
    suspicions: Suspicions,
    found: BTreeMap<HolderKey, UnprovenContainer>,
    /// Proofs of containers that this agent let start: one without is no container of an
    /// earlier agent's time.
    let_start: BTreeSet<ProofName>,
    /// The time at which the runtime was last seen to ignore CDI, and the evidence.
    cdi_ignored: Option<(Instant, String)>,
}

impl Unproven {
    /// Records that containers may start, which are to leave proofs of these names.
    pub(super) fn let_start(&mut self, names: impl IntoIterator<Item = ProofName>) {
        self.let_start.extend(names);
    }

    /// Returns the containers of which it has to be known whether they have a process.
    pub(super) fn doubted(&self) -> &BTreeSet<String> {
        &self.suspicions.doubted
    }

    /// Returns why nothing is offered, in one sentence. For containers that an earlier agent allowed,
    /// it can no longer be known whether the hook ran, so they are not touched, and nothing is placed
    /// beside them.
    pub(super) fn withdraws(&self, pods: &Pods) -> Option<String> {
        let mut before = self.found.iter();
        let before = before.find(|(_, unproven)| !self.let_start.contains(&unproven.name));
        if let Some((key, _)) = before {
            let pod = match pods.standing(&key.pod_uid) {
                Standing::Present(pod) => pod.identity.to_string(),
                _ => key.pod_uid.clone(),
            };
            return Some(format!(
                "container {} of pod {pod} has run since before this agent started, without proof that the OCI hook ran: restart the pod",
                key.container,
            ));
        }
        self.cdi_ignored.as_ref().map(|(_, why)| why.clone())
    }

    /// Looks for containers without proof, and ends those that this agent let start.
    pub(super) fn look(
        &mut self,
        local: &Local,
        ledger: &Ledger,
        pods: &Pods,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) {
        let found = reconcile::unproven(local, ledger, pods, &mut self.suspicions, now);
        let late = self.found.iter().any(|(key, unproven)| {
            let proof = local.proofs.get(&unproven.name);
            !found.contains_key(key) && proof.is_some_and(Option::is_some)
        });
        let old = (self.cdi_ignored.as_ref())
            .is_some_and(|(at, _)| now.saturating_duration_since(*at) >= CDI_PATIENCE);
        if late || old {
            self.cdi_ignored = None;
        }
        for (key, unproven) in &found {
            let known = self.found.get(key);
            let Standing::Present(pod) = pods.standing(&key.pod_uid) else {
                continue;
            };
            if known.is_some_and(|known| known.container_id == unproven.container_id) {
                continue;
            }
            effects.push(Effect::Tell(Note::Unproven {
                pod: pod.identity.clone(),
                container: key.container.clone(),
            }));
            // A container that is older than this agent may have had its proof; it is left alone.
            if !self.let_start.contains(&unproven.name) {
                continue;
            }
            // A runtime class says nothing about the default runtime.
            if unproven.runtime_class.is_none() {
                let why = format!(
                    "the container runtime ignores CDI: container {} of {} started without running the OCI hook",
                    key.container, pod.identity
                );
                self.cdi_ignored = Some((now, why));
            }
            let reason = match &unproven.runtime_class {
                None => "container started without running the OCI hook".to_owned(),
                Some(class) => format!(
                    "container started without running the OCI hook: runtime class {class} runs no OCI hooks"
                ),
            };
            effects.push(Effect::End(Termination {
                pod_uid: key.pod_uid.clone(),
                container_id: Some(unproven.container_id.clone()),
                pids: Vec::new(),
                server: None,
                reason,
            }));
        }
        self.found = found;
        self.let_start
            .retain(|name| ledger.by_alloc(name.alloc).next().is_some());
    }
}
