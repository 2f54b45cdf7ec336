//! Passes facts and agents' words on in their order, and leaves notes for the desk.

use super::Flows;
use super::row::{self, Live, PodRow};
use super::shelf::Change;
use crate::telemetry::{self, Heard, HeardSender};
use crate::watch::{Fact, Seen};
use api::GpuNode;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::ResourceExt as _;
use std::collections::HashSet;
use tokio::sync::mpsc;

/// One thing for the desk.
#[derive(Debug)]
pub(super) enum Note {
    /// Pods that do not run yet, by UID.
    Pod(Change<PodRow>),
    /// Nodes with an agent, by name.
    Node(Change<Box<GpuNode>>),
    /// Values of priority classes, by name.
    Class(Change<Rank>),
    /// An agent is heard.
    Live(String, Live),
    /// It is heard no more.
    Silent(String),
}

/// A priority class.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rank {
    pub(super) value: i32,
    pub(super) default: bool,
}

/// See above.
#[derive(Debug)]
pub(super) struct Tap {
    scheduler: String,
    flows: Flows,
    facts: mpsc::UnboundedSender<Fact>,
    heard: HeardSender,
    notes: mpsc::UnboundedSender<Note>,
    /// Pods that the desk knows.
    known: HashSet<String>,
}

impl Tap {
    /// Flows come in here and go out at the second.
    pub(super) fn new(
        scheduler: &str,
        flows: Flows,
    ) -> (Self, Flows, mpsc::UnboundedReceiver<Note>) {
        let (facts, facts_out) = mpsc::unbounded_channel();
        let (heard, heard_out) = telemetry::channel(None);
        let (notes, told) = mpsc::unbounded_channel();
        let tap = Self {
            scheduler: scheduler.to_owned(),
            flows,
            facts,
            heard,
            notes,
            known: HashSet::new(),
        };
        let onward = Flows {
            facts: facts_out,
            heard: heard_out,
        };
        (tap, onward, told)
    }

    /// Until one of the flows ends, or nobody takes them.
    pub(super) async fn run(mut self) {
        loop {
            tokio::select! {
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
        let note = match fact {
            Fact::Pod(seen) => match self.pod(seen) {
                Some(change) => Note::Pod(change),
                None => return,
            },
            Fact::GpuNode(seen) => Note::Node(change(seen, |node: &GpuNode| {
                let mut node = node.clone();
                node.metadata.managed_fields = None;
                Box::new(node)
            })),
            Fact::Class(seen) => Note::Class(change(seen, |class: &PriorityClass| Rank {
                value: class.value.unwrap_or_default(),
                default: class.global_default == Some(true),
            })),
            _ => return,
        };
        self.say(note);
    }

    fn pod(&mut self, seen: &Seen<Pod>) -> Option<Change<PodRow>> {
        match seen {
            Seen::Listing => Some(Change::Begin),
            Seen::Listed => Some(Change::End),
            Seen::There(pod) => match row::pod(pod, &self.scheduler) {
                Some(row) => {
                    self.known.insert(row.uid.clone());
                    Some(Change::Put(row.uid.clone(), row))
                }
                None => self.forget(pod),
            },
            Seen::Gone(pod) => self.forget(pod),
        }
    }

    fn forget(&mut self, pod: &Pod) -> Option<Change<PodRow>> {
        let uid = pod.uid()?;
        self.known.remove(&uid).then_some(Change::Drop(uid))
    }

    fn word(&self, heard: &Heard) {
        match heard {
            Heard::State { node, state } => self.say(Note::Live(node.clone(), row::live(state))),
            Heard::Lost { node } => self.say(Note::Silent(node.clone())),
            Heard::Refusal { .. } => {}
        }
    }

    fn say(&self, note: Note) {
        // The desk is gone only when everything ends.
        let _ = self.notes.send(note);
    }
}

fn change<K: kube::Resource, V>(seen: &Seen<K>, of: impl Fn(&K) -> V) -> Change<V> {
    match seen {
        Seen::Listing => Change::Begin,
        Seen::There(object) => Change::Put(object.name_any(), of(object)),
        Seen::Gone(object) => Change::Drop(object.name_any()),
        Seen::Listed => Change::End,
    }
}
