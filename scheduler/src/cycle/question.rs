//! What people and admission ask of a cycle, and its answers.
//!
//! What takes long is asked of a fork of the core, on another thread.

use super::Cycle;
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

impl Cycle {
    pub(super) fn answer(&mut self, question: Question, leading: bool) {
        match question {
            Question::Of(_, question) => self.answer(*question, leading),
            Question::Fork(to) => {
                let _ = to.send(Box::new(self.core.fork()));
            }
            Question::ForkOf(queue, to) => {
                if self.core.has_queue(&queue) {
                    let _ = to.send(Box::new(self.core.fork()));
                }
            }
            Question::Settings(to) => {
                let _ = to.send(self.core.config().clone());
            }
            Question::Observed(to) => {
                let now = self.clock.now();
                let observer = self.observer.as_ref();
                let _ = to.send(observer.map(|observer| observer.report(now)));
            }
            Question::Resize {
                pod,
                request,
                lasts,
                to,
            } => {
                // Before everything is known a queue seems to hold less than it does, and what
                // another replica lets through is not known here.
                if leading && self.world.missing().is_empty() {
                    let granted = &mut self.granted;
                    let _ = to.send(granted.may_have(&mut self.core, &pod, request, lasts));
                }
            }
            Question::Explain(pod, to) => {
                let resize = self.world.resize(&pod).map(str::to_owned);
                let asked = self.scale_up.as_ref().and_then(|line| {
                    let asked = line.asked.borrow();
                    asked.0.get(&pod).map(ToString::to_string)
                });
                let given = self.layouts.as_ref().and_then(|line| {
                    let asked = line.asked.borrow();
                    asked.get(&pod).map(ToString::to_string)
                });
                let _ = to.send(self.core.explain(&pod).map(|explanation| {
                    let mut lines = vec![explanation.line.to_string()];
                    lines.extend(resize);
                    lines.extend(asked);
                    lines.extend(given);
                    for node in &explanation.nodes {
                        let verdict = if node.fits { "fits" } else { "does not fit" };
                        let reasons: Vec<&str> = node.reasons.iter().map(AsRef::as_ref).collect();
                        lines.push(format!("{}: {verdict} {}", node.node, reasons.join(", ")));
                        lines.extend(node.cards.iter().map(|card| format!("  {card}")));
                    }
                    lines.extend(explanation.spared.iter().map(ToString::to_string));
                    lines.join("\n")
                }));
            }
        }
    }
}
