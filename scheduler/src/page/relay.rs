//! Passes facts and agents' words on in their order, and leaves notes for the rows' owner.

use super::row::{self, Live, PodRow, Uid};
use super::row_store::Change;
use crate::crash;
use crate::history::{Mark, MarkKind, Tenant};
use crate::telemetry::{self, AgentEvent, AgentEventReceiver, AgentEventSender};
use crate::watch::{Fact, Key, Seen};
use api::{GpuNode, PodGroup, Topology};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::ResourceExt as _;
use proto::telemetry::Refusal;
use scheduler_core::units::Time;
use std::collections::HashSet;
use std::sync::Arc;

/// One thing for the rows' owner.
#[derive(Debug)]
pub(super) enum RowEvent {
    /// Pods that do not run yet, by UID.
    Pod(Change<PodRow>),
    /// Nodes with an agent, by name.
    Node(Change<Box<GpuNode>>),
    /// The queues of pod groups, by namespace and name, as in [`PodRow::group`].
    Group(Change<String>),
    /// Values of priority classes, by name.
    Class(Change<Rank>),
    /// The holders of a pod's grant.
    Tenant(Change<Tenant, Uid>),
    /// The names of the containers that do not run, of a pod with a grant, each with the reason.
    Crash(Change<Vec<(String, String)>, Uid>),
    /// Labels of nodes, by name.
    Labels(Change<Vec<(String, String)>>),
    /// Keys of node labels that a topology names, by the topology's name.
    Topology(Change<Vec<String>>),
    /// Something happened; the mark's queue is that of this pod.
    Mark(Mark, Uid),
    /// An agent is connected.
    Live(String, Live),
    /// It is disconnected.
    Silent(String),
    /// It does not honour a grant.
    Refusal(String, Refusal),
}

/// A priority class.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rank {
    pub(super) value: i32,
    pub(super) default: bool,
}

/// See above.
#[derive(Debug)]
pub(super) struct FactRelay {
    scheduler: String,
    /// The key of the label by which the admin has queues named.
    queue_label: String,
    flows: Flows,
    facts: channel::Sender<Fact>,
    heard: AgentEventSender,
    notes: channel::Sender<RowEvent>,
    /// Pods that the rows' owner knows.
    known: HashSet<String>,
    /// Pods that were granted something.
    tenants: HashSet<Uid>,
    /// The pods that have a grant and containers that do not run.
    crashed: HashSet<Uid>,
    /// Pods whose eviction is noted.
    evicted: HashSet<Uid>,
    /// When the first notes are taken: what happened before is not noted.
    begun: Time,
}

impl FactRelay {
    /// Flows come in here and go out at the second.
    pub(super) fn new(
        scheduler: &str,
        queue_label: &str,
        flows: Flows,
        begun: Time,
        lengths: &channel::Lengths,
    ) -> (Self, Flows, channel::Receiver<RowEvent>) {
        let (facts, facts_out) = lengths.unbounded("facts_of_page");
        let (heard, heard_out) = telemetry::channel(None);
        let (notes, told) = lengths.unbounded("notes_of_page");
        let relay = Self {
            scheduler: scheduler.to_owned(),
            queue_label: queue_label.to_owned(),
            flows,
            facts,
            heard,
            notes,
            known: HashSet::new(),
            tenants: HashSet::new(),
            crashed: HashSet::new(),
            evicted: HashSet::new(),
            begun,
        };
        let onward = Flows {
            facts: facts_out,
            heard: heard_out,
        };
        (relay, onward, told)
    }

    /// Until one of the streams ends, or their receiver is gone.
    pub(super) async fn run(mut self) {
        loop {
            tokio::select! {
                biased;
                fact = self.flows.facts.recv() => {
                    let Some(fact) = fact else { return };
                    self.fact(&fact);
                    if self.facts.send(fact).is_err() {
                        return;
                    }
                }
                heard = self.flows.heard.recv() => {
                    let Some(heard) = heard else { return };
                    self.word(&heard);
                    if !self.heard.send(heard) {
                        return;
                    }
                }
            }
        }
    }

    fn fact(&mut self, fact: &Fact) {
        match fact {
            Fact::Pod(seen) => {
                self.holder(seen);
                if let Some(change) = self.pod(seen) {
                    self.say(RowEvent::Pod(change));
                }
            }
            Fact::GpuNode(seen) => {
                let row = change(seen, |node: &GpuNode| {
                    let mut node = node.clone();
                    node.metadata.managed_fields = None;
                    Box::new(node)
                });
                self.say(row.map(RowEvent::Node));
            }
            Fact::Node(seen) => self.say(change(seen, row::labels).map(RowEvent::Labels)),
            Fact::Group(seen) => {
                let queue = |group: &PodGroup| group.spec.queue.clone().unwrap_or_default();
                self.say(change(seen, queue).map(RowEvent::Group));
            }
            Fact::Topology(seen) => {
                let keys = |topology: &Topology| {
                    let levels = topology.spec.levels.iter();
                    levels.map(|level| level.node_label.clone()).collect()
                };
                self.say(change(seen, keys).map(RowEvent::Topology));
            }
            Fact::Class(seen) => {
                let rank = |class: &PriorityClass| Rank {
                    value: class.value.unwrap_or_default(),
                    default: class.global_default == Some(true),
                };
                self.say(change(seen, rank).map(RowEvent::Class));
            }
            _ => {}
        }
    }

    /// Holders, and evicted pods.
    fn holder(&mut self, seen: &Seen<Pod>) {
        let pod = match seen {
            Seen::Listing | Seen::Listed => return,
            Seen::Gone(uid) => {
                let uid = Uid::of(uid);
                if self.crashed.remove(&uid) {
                    self.say(RowEvent::Crash(Change::Drop(uid)));
                }
                if self.tenants.remove(&uid) {
                    self.say(RowEvent::Tenant(Change::Drop(uid)));
                }
                self.evicted.remove(&uid);
                return;
            }
            Seen::There(pod) => pod,
        };
        let Some(uid) = pod.metadata.uid.as_deref().map(Uid::of) else {
            return;
        };
        if let Some((at, words)) = row::evicted(pod)
            && at >= self.begun
            && self.evicted.insert(uid)
        {
            let mark = Mark {
                at,
                kind: MarkKind::Evicted,
                card: Arc::default(),
                queue: Arc::default(),
                namespace: pod.namespace().unwrap_or_default().into(),
                words: words.into(),
            };
            self.say(RowEvent::Mark(mark, uid));
        }
        let tenant = row::tenant(pod);
        let crashes = crash::containers(pod).map(|(name, words)| (name.to_owned(), words));
        let crashes: Vec<_> = crashes.filter(|_| tenant.is_some()).collect();
        if !crashes.is_empty() {
            self.crashed.insert(uid);
            self.say(RowEvent::Crash(Change::Put(uid, crashes)));
        } else if self.crashed.remove(&uid) {
            self.say(RowEvent::Crash(Change::Drop(uid)));
        }
        match tenant {
            Some(tenant) => {
                // Of a pod that holds something nothing of this changes.
                self.tenants.insert(uid);
                self.say(RowEvent::Tenant(Change::Put(uid, tenant)));
            }
            None if self.tenants.remove(&uid) => self.say(RowEvent::Tenant(Change::Drop(uid))),
            None => {}
        }
    }

    fn pod(&mut self, seen: &Seen<Pod>) -> Option<Change<PodRow>> {
        match seen {
            Seen::Listing | Seen::Listed => None,
            Seen::There(pod) => match row::pod(pod, &self.scheduler, &self.queue_label) {
                Some(row) => {
                    self.known.insert(row.uid.clone());
                    Some(Change::Put(row.uid.clone(), row))
                }
                None => self.forget(&pod.key()),
            },
            Seen::Gone(uid) => self.forget(uid),
        }
    }

    fn forget(&mut self, uid: &str) -> Option<Change<PodRow>> {
        let is_known = self.known.remove(uid);
        is_known.then(|| Change::Drop(uid.to_owned()))
    }

    fn word(&self, heard: &AgentEvent) {
        match heard {
            AgentEvent::State { node, state } => {
                self.say(RowEvent::Live(node.clone(), row::live(state)));
            }
            // The row stands until the agent is silent for longer than a restart takes.
            AgentEvent::Disconnected { .. } => {}
            AgentEvent::Lost { node } => self.say(RowEvent::Silent(node.clone())),
            AgentEvent::Refusal { node, refusal } => {
                self.say(RowEvent::Refusal(node.clone(), refusal.clone()));
            }
        }
    }

    fn say(&self, note: impl Into<Option<RowEvent>>) {
        if let Some(note) = note.into() {
            // The rows' owner ends only when everything ends.
            let _ = self.notes.send(note);
        }
    }
}

/// The change of a row; `None`: a listing begins or ends.
fn change<K: Key, V>(seen: &Seen<K>, of: impl Fn(&K) -> V) -> Option<Change<V>> {
    match seen {
        Seen::There(object) => Some(Change::Put(object.key(), of(object))),
        Seen::Gone(key) => Some(Change::Drop(key.clone())),
        Seen::Listing | Seen::Listed => None,
    }
}

/// What comes in on its way to the cycle.
#[derive(Debug)]
pub struct Flows {
    /// Of the API server.
    pub facts: channel::Receiver<Fact>,
    /// Of the agents.
    pub heard: AgentEventReceiver,
}
