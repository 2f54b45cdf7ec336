//! Requests and watches that are under way.

use crate::replica::{Line, Reply};
use crate::server::{Answer, Asked};
use crate::time::Ms;
use tokio::sync::{mpsc, oneshot};

/// A request under way.
#[derive(Debug)]
pub struct InFlight {
    /// Of which replica.
    pub(crate) replica: usize,
    /// Of which of its processes.
    pub(crate) start: u64,
    /// The request.
    pub(crate) asked: Asked,
    /// Where the answer goes.
    pub(crate) reply: Option<oneshot::Sender<Reply>>,
    /// What becomes of it.
    pub(crate) fault: RequestFault,
    /// The server's answer.
    pub(crate) answer: Option<Answer>,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestFault {
    /// All is well.
    Fine,
    /// It is done, and the answer is lost.
    Silent,
    /// It is done, and the connection breaks.
    Broken,
    /// It is done, and the server says 500.
    Failed,
    /// The server says this and does nothing.
    Refused(u16),
}

/// An eviction, as its scheduler says it.
#[derive(Clone, Debug)]
pub struct Eviction {
    /// When.
    pub at: Ms,
    /// Which pod.
    pub of: String,
    /// The cause, and the beneficiary.
    pub note: String,
}

/// A watch that is open.
#[derive(Debug)]
pub struct Watch {
    /// Whose.
    pub replica: usize,
    pub(crate) asked: Asked,
    /// The last version that was sent on it.
    pub(crate) version: u64,
    pub(crate) to: mpsc::UnboundedSender<Line>,
    /// It says nothing until then.
    pub stalled: Ms,
    /// When it was opened.
    pub(crate) since: Ms,
    /// When it had its last bookmark.
    pub(crate) marked: Ms,
    /// A `Feed` is on the agenda.
    pub(crate) due: bool,
}
