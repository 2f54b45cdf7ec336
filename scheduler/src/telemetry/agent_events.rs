//! Reports of agents that the core has not applied yet: of each node the latest state, and few
//! refusals. So a node that sends more than can be processed loses its own messages, and costs no
//! memory.

use super::event::AgentEvent;
use super::meters::AgentMeters;
use crate::lock::locked;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

/// Pending refusals of one node; the oldest is dropped first. A refusal that still matters is sent
/// again with the kubelet's next retry.
const REFUSALS: usize = 64;

/// The channel. With meters where its length is to be seen.
pub fn channel(meters: Option<Arc<AgentMeters>>) -> (AgentEventSender, AgentEventReceiver) {
    let (bell, news) = mpsc::channel(1);
    let waiting = Arc::new(Mutex::new(Waiting {
        meters,
        ..Waiting::default()
    }));
    let sender = AgentEventSender {
        waiting: Arc::clone(&waiting),
        bell,
    };
    (sender, AgentEventReceiver { waiting, news })
}

/// Where it goes in. Cheap to clone; all clones are the same.
#[derive(Clone, Debug)]
pub struct AgentEventSender {
    waiting: Arc<Mutex<Waiting>>,
    bell: mpsc::Sender<()>,
}

/// Where it comes out.
#[derive(Debug)]
pub struct AgentEventReceiver {
    waiting: Arc<Mutex<Waiting>>,
    news: mpsc::Receiver<()>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Nodes in `by_node`, in turn.
    turns: VecDeque<String>,
    by_node: HashMap<String, NodeQueue>,
    meters: Option<Arc<AgentMeters>>,
}

#[derive(Debug, Default)]
struct NodeQueue {
    /// Its last state, or that it is lost.
    last: Option<AgentEvent>,
    /// Its stream has ended since.
    disconnected: Option<AgentEvent>,
    refusals: VecDeque<AgentEvent>,
}

impl AgentEventSender {
    /// Never waits. Of states of one node, and of its loss, the latest counts alone; that its
    /// stream has ended comes after the state before it.
    /// False once the receiver is gone.
    pub fn send(&self, heard: AgentEvent) -> bool {
        locked(&self.waiting).put(heard);
        // One that is full has rung already.
        !matches!(self.bell.try_send(()), Err(TrySendError::Closed(())))
    }

    /// The receiver is gone.
    pub fn is_closed(&self) -> bool {
        self.bell.is_closed()
    }
}

impl AgentEventReceiver {
    /// The next; `None` once all senders are gone. A dropped call loses nothing.
    pub async fn recv(&mut self) -> Option<AgentEvent> {
        loop {
            if let Some(heard) = self.try_recv() {
                return Some(heard);
            }
            if self.news.recv().await.is_none() {
                return self.try_recv();
            }
        }
    }

    /// The next, if one waits. Nodes take turns.
    pub fn try_recv(&mut self) -> Option<AgentEvent> {
        locked(&self.waiting).next()
    }
}

impl Waiting {
    fn put(&mut self, heard: AgentEvent) {
        let node = heard.node();
        if !self.by_node.contains_key(node) {
            self.turns.push_back(node.to_owned());
        }
        let words = self.by_node.entry(node.to_owned()).or_default();
        let replaced = match heard {
            AgentEvent::Refusal { .. } => {
                words.refusals.push_back(heard);
                words.refusals.len() > REFUSALS && words.refusals.pop_front().is_some()
            }
            AgentEvent::Disconnected { .. } => words.disconnected.replace(heard).is_some(),
            AgentEvent::State { .. } | AgentEvent::Lost { .. } => {
                words.disconnected = None;
                words.last.replace(heard).is_some()
            }
        };
        if let Some(meters) = &self.meters {
            meters.waiting(self.by_node.len());
            if replaced {
                meters.replaced();
            }
        }
    }

    fn next(&mut self) -> Option<AgentEvent> {
        let node = self.turns.pop_front()?;
        let words = self.by_node.get_mut(&node)?;
        let heard = words
            .last
            .take()
            .or_else(|| words.disconnected.take())
            .or_else(|| words.refusals.pop_front());
        if words.disconnected.is_none() && words.refusals.is_empty() {
            self.by_node.remove(&node);
        } else {
            self.turns.push_back(node);
        }
        if let Some(meters) = &self.meters {
            meters.waiting(self.by_node.len());
        }
        heard
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::telemetry::{NodeState, Refusal};

    fn state(node: &str, driver: &str) -> AgentEvent {
        AgentEvent::State {
            node: node.into(),
            state: NodeState {
                driver_version: driver.into(),
                ..NodeState::default()
            },
        }
    }

    fn refusal(node: &str, pod: usize) -> AgentEvent {
        AgentEvent::Refusal {
            node: node.into(),
            refusal: Refusal {
                pod_uid: pod.to_string(),
                ..Refusal::default()
            },
        }
    }

    #[tokio::test]
    async fn of_a_node_that_says_too_much_the_latest_counts_and_others_have_their_turn() {
        let (sender, mut receiver) = channel(None);
        for number in 0..10_000 {
            sender.send(state("loud", &number.to_string()));
            sender.send(refusal("loud", number));
        }
        sender.send(state("quiet", "1"));
        assert_eq!(receiver.recv().await, Some(state("loud", "9999")));
        assert_eq!(receiver.recv().await, Some(state("quiet", "1")));
        let mut rest = Vec::new();
        while let Some(heard) = receiver.try_recv() {
            rest.push(heard);
        }
        let kept: Vec<_> = (10_000 - REFUSALS..10_000)
            .map(|pod| refusal("loud", pod))
            .collect();
        assert_eq!(rest, kept);
    }

    #[tokio::test]
    async fn what_was_said_last_is_taken_after_its_sender_is_gone() {
        let (sender, mut receiver) = channel(None);
        sender.send(state("n1", "1"));
        let lost = AgentEvent::Lost { node: "n1".into() };
        sender.send(lost.clone());
        // That its stream has ended comes after the state before it, and a state after it stands.
        let ended = AgentEvent::Disconnected { node: "n2".into() };
        sender.send(state("n2", "1"));
        sender.send(ended.clone());
        let again = AgentEvent::Disconnected { node: "n3".into() };
        sender.send(again);
        sender.send(state("n3", "2"));
        drop(sender);
        assert_eq!(receiver.recv().await, Some(lost));
        assert_eq!(receiver.recv().await, Some(state("n2", "1")));
        assert_eq!(receiver.recv().await, Some(state("n3", "2")));
        assert_eq!(receiver.recv().await, Some(ended));
        assert_eq!(receiver.recv().await, None);
        let (sender, receiver) = channel(None);
        drop(receiver);
        assert!(sender.is_closed() && !sender.send(state("n1", "1")));
    }
}
