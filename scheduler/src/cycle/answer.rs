//! The answers to the questions that people and admission ask of a cycle.
//!
//! A question that takes long is answered by a fork of the core, on another thread.

use super::{Cycle, Question};

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
            Question::ForkOfPod(pod, to) => {
                let there = self.core.pod(&pod).is_some();
                let _ = to.send(there.then(|| Box::new(self.core.fork())));
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
                let now = self.clock.now();
                let start = self.estimated_start(&pod, now).filter(|_| leading);
                let _ = to.send(self.core.explain(&pod).map(|explanation| {
                    let mut lines = vec![explanation.line.to_string()];
                    // A pod that has its place by now has no verdicts.
                    lines.extend(start.filter(|_| !explanation.nodes.is_empty()));
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
