//! Other tasks send events and questions to the core by a handle of the task that owns it.

use super::claims::Prepared;
use super::claims::parts::Allocated;
use super::event::Event;
use super::prepare::{Outcome, PrepareRequest, Unready};
use crate::ledger::AllocId;
use tokio::sync::oneshot;

/// Messages to the owner.
#[derive(Debug)]
pub enum Message {
    /// Something happened.
    Event(Event),
    /// Bind what these IDs are for.
    Prepare(PrepareRequest, oneshot::Sender<Vec<Outcome>>),
    /// Enter what a claim was allocated.
    PrepareClaim(
        Box<Allocated>,
        oneshot::Sender<Result<Vec<Prepared>, Unready>>,
    ),
    /// Free what the claim of this UID had.
    Unprepare(String, oneshot::Sender<Result<(), String>>),
    /// The second witness disagreed.
    Unbind(AllocId),
}

/// A handle of the task that owns the state.
#[derive(Clone, Debug)]
pub struct Owner {
    messages: channel::Sender<Message>,
}

/// The owner has ended, so the agent is ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the agent is stopping")]
pub struct Stopped;

impl Owner {
    /// A handle, and the messages that come in by it.
    pub fn channel(lengths: &channel::Lengths) -> (Self, channel::Receiver<Message>) {
        let (messages, inbox) = lengths.unbounded("events");
        (Self { messages }, inbox)
    }

    /// Something happened. Never waits.
    ///
    /// # Errors
    /// The agent is stopping.
    pub fn tell(&self, event: Event) -> Result<(), Stopped> {
        self.messages
            .send(Message::Event(event))
            .map_err(|_| Stopped)
    }

    /// Binds what these IDs are for.
    ///
    /// # Errors
    /// The agent is stopping.
    pub async fn prepare(&self, ask: PrepareRequest) -> Result<Vec<Outcome>, Stopped> {
        let (answer, outcome) = oneshot::channel();
        self.messages
            .send(Message::Prepare(ask, answer))
            .map_err(|_| Stopped)?;
        outcome.await.map_err(|_| Stopped)
    }

    /// Enters what a claim was allocated.
    ///
    /// # Errors
    /// The agent is stopping.
    pub async fn prepare_claim(
        &self,
        allocated: Allocated,
    ) -> Result<Result<Vec<Prepared>, Unready>, Stopped> {
        let (answer, result) = oneshot::channel();
        self.messages
            .send(Message::PrepareClaim(Box::new(allocated), answer))
            .map_err(|_| Stopped)?;
        result.await.map_err(|_| Stopped)
    }

    /// Frees what a claim had, or says what of it still runs.
    ///
    /// # Errors
    /// The agent is stopping.
    pub async fn unprepare(&self, uid: &str) -> Result<Result<(), String>, Stopped> {
        let (answer, result) = oneshot::channel();
        self.messages
            .send(Message::Unprepare(uid.to_owned(), answer))
            .map_err(|_| Stopped)?;
        result.await.map_err(|_| Stopped)
    }

    /// Takes a binding back.
    ///
    /// # Errors
    /// The agent is stopping.
    pub fn unbind(&self, alloc: AllocId) -> Result<(), Stopped> {
        self.messages
            .send(Message::Unbind(alloc))
            .map_err(|_| Stopped)
    }
}
