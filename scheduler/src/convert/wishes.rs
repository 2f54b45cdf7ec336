//! Pods that agents want gone.

use proto::telemetry::NodeState;
use scheduler_core::ids::{NodeName, PodUid};
use scheduler_core::{Event, EvictRequest};
use std::collections::BTreeMap;
use std::sync::Arc;

/// By UID of the pod, and by the node whose agent wants it.
#[derive(Debug, Default)]
pub(super) struct Wishes(BTreeMap<(String, NodeName), Wish>);

#[derive(Debug)]
struct Wish {
    reason: Arc<str>,
    /// The core knows.
    told: bool,
}

impl Wishes {
    /// Takes in which pods an agent wants gone: a share that breaks its fence or whose card is broken,
    /// a pod that holds devices without a grant, and any pod that uses a card without one, where the
    /// admin wants that. Returns their UIDs. The core evicts only pods that it has on that node.
    pub(super) fn take(&mut self, node: &str, state: &NodeState) -> Vec<String> {
        let shares = state.shares.iter().filter(|share| share.evict);
        let shares = shares.map(|share| (&share.pod_uid, share.complaint.clone()));
        let ungranted = state.ungranted.iter().map(|one| {
            let why = format!(
                "container {} holds {} of {} and has no grant",
                one.container, one.devices, one.resource
            );
            (&one.pod_uid, why)
        });
        let strangers = state.strangers.iter().filter(|stranger| stranger.evict);
        let strangers = strangers.map(|stranger| {
            let why = format!(
                "process {} ({}) uses card {} without a grant",
                stranger.pid, stranger.command, stranger.gpu_uuid
            );
            (&stranger.pod_uid, why)
        });
        let now: BTreeMap<&String, String> = strangers.chain(ungranted).chain(shares).collect();
        // What was not passed on yet, and is not wanted any more, never happened.
        let node = NodeName::new(node);
        self.0
            .retain(|(uid, by), wish| wish.told || *by != node || now.contains_key(uid));
        for (uid, reason) in &now {
            let key = ((*uid).clone(), node.clone());
            self.0.entry(key).or_insert_with(|| Wish {
                reason: reason.as_str().into(),
                told: false,
            });
        }
        now.into_keys().cloned().collect()
    }

    /// Returns what agents want of a pod and the core does not know yet. It hears only that of the
    /// node on which the pod stands; another's must not be in its way.
    pub(super) fn tell(&mut self, uid: &str) -> Vec<Event> {
        let first = (uid.to_owned(), NodeName::new(""));
        let of_pod = self
            .0
            .range_mut(first..)
            .take_while(|((pod, _), _)| pod == uid);
        of_pod
            .filter(|(_, wish)| !wish.told)
            .map(|((_, node), wish)| {
                wish.told = true;
                Event::EvictRequest(EvictRequest {
                    pod: PodUid::new(uid),
                    node: node.clone(),
                    reason: Arc::clone(&wish.reason),
                })
            })
            .collect()
    }

    /// The pod is gone.
    pub(super) fn forget(&mut self, uid: &str) {
        let first = (uid.to_owned(), NodeName::new(""));
        let of_pod = self.0.range(first..).take_while(|((pod, _), _)| pod == uid);
        let of_pod: Vec<(String, NodeName)> = of_pod.map(|(key, _)| key.clone()).collect();
        for key in of_pod {
            self.0.remove(&key);
        }
    }

    /// What the core does not know yet of an agent that is gone never happened.
    pub(super) fn agent_lost(&mut self, node: &str) {
        self.0
            .retain(|(_, by), wish| wish.told || by.as_str() != node);
    }
}
