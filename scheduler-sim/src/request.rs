//! Requests and watches that are under way.

use crate::replica::{Line, Reply};
use crate::server::{Answer, Asked};
use crate::time::Ms;
use tokio::sync::{mpsc, oneshot};

/// A request under way.
#[derive(Debug)]
pub struct InFlight {
    /// The replica that sent the request.
    pub(crate) replica: usize,
    /// The number of the replica's process that sent the request.
    pub(crate) start: u64,
    /// The request.
    pub(crate) asked: Asked,
    /// The receiver of the answer.
    pub(crate) reply: Option<oneshot::Sender<Reply>>,
    /// The fault that the request meets.
    pub(crate) fault: RequestFault,
    /// The server's answer.
    pub(crate) answer: Option<Answer>,
}

/// The fault that a request meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestFault {
    /// The request is served, and its answer arrives.
    Fine,
    /// The request is served, and its answer is lost.
    Silent,
    /// The request is served, and the connection breaks.
    Broken,
    /// The request is served, and the server answers 500.
    Failed,
    /// The server says this and does nothing.
    Refused(u16),
}

/// An eviction, as its scheduler says it.
#[derive(Clone, Debug)]
pub struct Eviction {
    /// The time of the decision.
    pub at: Ms,
    /// The evicted pod.
    pub of: String,
    /// The cause, and the beneficiary.
    pub note: String,
}

/// A watch that is open.
#[derive(Debug)]
pub struct Watch {
    /// The replica that opened the watch.
    pub replica: usize,
    pub(crate) asked: Asked,
    /// The last version that was sent on it.
    pub(crate) version: u64,
    pub(crate) to: mpsc::UnboundedSender<Line>,
    /// The watch tells nothing until this time.
    pub stalled: Ms,
    /// The time at which the watch was opened.
    pub(crate) since: Ms,
    /// The time of its last bookmark.
    pub(crate) marked: Ms,
    /// True while a `Feed` is on the agenda.
    pub(crate) due: bool,
}
