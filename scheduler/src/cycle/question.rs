//! The questions that people and admission ask of a cycle.

use crate::observe;
use scheduler_core::Core;
use scheduler_core::ids::{PodUid, QueueName};
use std::sync::Arc;
use tokio::sync::oneshot;

/// What people ask; answered between decisions.
#[derive(Debug)]
pub enum Question {
    /// The core once more, for what takes long: [`Core::fork`].
    Fork(oneshot::Sender<Box<Core>>),
    /// The same of the shard that has this queue. Nothing is answered where none has.
    ForkOf(QueueName, oneshot::Sender<Box<Core>>),
    /// The same of the shard that has this pod, by UID. `None`: no such pod.
    ForkOfPod(PodUid, oneshot::Sender<Option<Box<Core>>>),
    /// The settings in force.
    Settings(oneshot::Sender<scheduler_core::Config>),
    /// Where a pod may go, by UID: a line per node and card. `None`: no such pod.
    Explain(PodUid, oneshot::Sender<Option<String>>),
    /// Whether a placed pod may have that much, beside everything that was granted before. Answered
    /// only by the leader. `None`: no such pod.
    Resize {
        /// Which pod.
        pod: PodUid,
        /// The requested amounts.
        request: scheduler_core::Request,
        /// False for a dry run: others need not reckon with it.
        lasts: bool,
        /// The answer.
        to: oneshot::Sender<Option<Result<(), Arc<str>>>>,
    },
    /// Something of the shard of that name, where there are several.
    Of(String, Box<Question>),
    /// Where another scheduler decides otherwise. `None`: none is observed.
    Observed(oneshot::Sender<Option<observe::Report>>),
}
