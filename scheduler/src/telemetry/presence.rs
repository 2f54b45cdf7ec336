//! The current stream of each node, and nodes that fell silent.
//!
//! The newest stream wins: an agent that reconnects is not blocked by the rest of its previous
//! connection. (Two agents at once are prevented on the node itself.)

use super::agent_events::AgentEventSender;
use super::event::AgentEvent;
use crate::lock::locked;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// A node is lost after this time without a message: three heartbeats.
pub(super) const SILENCE: Duration = Duration::from_secs(15);

/// The current streams. Cheap to clone; all clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Presence(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    speakers: Mutex<NodeStreams>,
    heard: AgentEventSender,
}

#[derive(Debug, Default)]
struct NodeStreams {
    last: u64,
    by_node: HashMap<String, (u64, CancellationToken)>,
}

/// The right to report for a node, until a newer stream has it.
#[derive(Debug)]
pub(super) struct NodeStream {
    presence: Presence,
    node: String,
    number: u64,
    superseded: CancellationToken,
}

impl Presence {
    pub(super) fn new(heard: AgentEventSender) -> Self {
        Self(Arc::new(Inner {
            speakers: Mutex::default(),
            heard,
        }))
    }

    /// A stream begins; an older one of the node is over.
    pub(super) fn enter(&self, node: &str) -> NodeStream {
        let superseded = CancellationToken::new();
        let mut speakers = self.speakers();
        speakers.last += 1;
        let number = speakers.last;
        let place = (number, superseded.clone());
        if let Some((_, older)) = speakers.by_node.insert(node.to_owned(), place) {
            older.cancel();
        }
        NodeStream {
            presence: self.clone(),
            node: node.to_owned(),
            number,
            superseded,
        }
    }

    fn speakers(&self) -> MutexGuard<'_, NodeStreams> {
        locked(&self.0.speakers)
    }

    /// The node is lost, unless a newer stream reports for it.
    fn lose(&self, node: &str, number: u64) {
        let mut speakers = self.speakers();
        if speakers
            .by_node
            .get(node)
            .is_some_and(|(now, _)| *now == number)
        {
            speakers.by_node.remove(node);
            self.0.heard.send(AgentEvent::Lost {
                node: node.to_owned(),
            });
        }
    }
}

impl NodeStream {
    /// Returns when a newer stream reports for the node.
    pub(super) async fn superseded(&self) {
        self.superseded.cancelled().await;
    }

    /// Passes a fact on, unless there is a newer stream: messages of an old connection must not
    /// come after those of the new one.
    pub(super) fn pass(&self, heard: AgentEvent) {
        // Under the lock, so that no newer stream begins in between.
        let speakers = self.presence.speakers();
        if speakers
            .by_node
            .get(&self.node)
            .is_some_and(|(now, _)| *now == self.number)
        {
            self.presence.0.heard.send(heard);
        }
    }

    /// The stream is over. The node is disconnected at once, and lost unless another stream
    /// begins in `grace`.
    pub(super) async fn leave(self, grace: Duration) {
        self.pass(AgentEvent::Disconnected {
            node: self.node.clone(),
        });
        tokio::select! {
            biased;
            () = self.superseded.cancelled() => {}
            () = tokio::time::sleep(grace) => self.presence.lose(&self.node, self.number),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    fn lost(node: &str) -> AgentEvent {
        AgentEvent::Lost { node: node.into() }
    }

    fn disconnected(node: &str) -> AgentEvent {
        AgentEvent::Disconnected { node: node.into() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_is_lost_when_no_stream_follows_and_only_then() {
        let (out, mut heard) = super::super::channel(None);
        let presence = Presence::new(out);
        let first = presence.enter("n1");
        let leaving = tokio::spawn(first.leave(SILENCE));
        advance(SILENCE / 2).await;
        let second = presence.enter("n1");
        leaving.await.expect("no panic");
        advance(SILENCE * 2).await;
        assert_eq!(heard.try_recv(), Some(disconnected("n1")));
        assert!(heard.try_recv().is_none(), "another stream followed");
        let leaving = tokio::spawn(second.leave(SILENCE));
        advance(SILENCE / 2).await;
        assert_eq!(heard.recv().await, Some(disconnected("n1")));
        leaving.await.expect("no panic");
        assert_eq!(heard.recv().await, Some(lost("n1")));
        assert!(heard.try_recv().is_none(), "said once");
    }

    #[tokio::test(start_paused = true)]
    async fn the_newest_stream_wins_and_the_old_one_cannot_speak() {
        let (out, mut heard) = super::super::channel(None);
        let presence = Presence::new(out);
        let (old, other) = (presence.enter("n1"), presence.enter("n2"));
        let new = presence.enter("n1");
        old.superseded().await;
        old.pass(lost("old"));
        new.pass(lost("new"));
        other.pass(lost("other"));
        assert_eq!(heard.recv().await, Some(lost("new")));
        assert_eq!(heard.recv().await, Some(lost("other")));
        old.leave(Duration::ZERO).await;
        assert!(
            heard.try_recv().is_none(),
            "who was superseded loses nothing"
        );
    }
}
