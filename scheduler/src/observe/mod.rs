//! What this scheduler would do where another one decides.
//!
//! - `comparison`: pure: Aliquot's decisions, the other scheduler's actions, and the differences.
//! - `estimated`: cards of nodes without an agent, from their labels.
//! - `agents`: what an agent wrote, as if it had sent it: agents do not connect to an observer.
//!
//! In: every event before the core applies it, and the core. Out: a [`Report`], and a log line for
//! each difference. Each decision is made on a core of its own, rebuilt from the known state of the
//! cluster, and discarded with it, so no decision assumes the effects of another. Must never write,
//! nor hold anything that could.

mod agents;
mod comparison;
mod estimated;

pub use comparison::{Counts, Difference, Kind, Report};

use crate::status::Meters;
use crate::watch::{Fact, Seen};
use comparison::Comparison;
use estimated::EstimatedCards;
use k8s_openapi::api::core::v1::Pod as KubePod;
use kube::ResourceExt as _;
use scheduler_core::ids::PodUid;
use scheduler_core::model::Phase;
use scheduler_core::units::Time;
use scheduler_core::{Core, Event};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use agents::said;

/// Shortest interval of extra decisions, as a multiple of the time that the last one took.
const SPARED: u32 = 4;
/// Between two decisions at least.
const PAUSE: Duration = Duration::from_millis(100);
/// And at least this multiple of the time that the last one took.
const REST: u32 = 10;

/// Watches another scheduler at work.
#[derive(Debug)]
pub struct Observer {
    comparison: Comparison,
    estimated: EstimatedCards,
    meters: Arc<Meters>,
    pause: Duration,
    /// When the last look was, how long it took, and whether something happened since.
    looked: Instant,
    took: Duration,
    stale: bool,
}

impl Observer {
    /// `scheduler`: whose pods.
    pub fn new(scheduler: &str, meters: Arc<Meters>) -> Self {
        Self {
            comparison: Comparison::new(scheduler),
            estimated: EstimatedCards::default(),
            meters,
            pause: PAUSE,
            looked: Instant::now(),
            took: Duration::ZERO,
            stale: true,
        }
    }

    /// Time from one decision to the next.
    pub fn pause(&self) -> Duration {
        self.pause
    }

    /// The other scheduler's conditions on its pods.
    pub fn hear(&mut self, fact: &Fact, now: Time) {
        let Fact::Pod(Seen::There(pod)) = fact else {
            return;
        };
        let Some(uid) = pod.uid() else { return };
        let uid = PodUid::new(&uid);
        if let Some(message) = condition(pod, "PodScheduled", "False") {
            self.comparison.said(&uid, message);
        }
        if pod.metadata.deletion_timestamp.is_some()
            && let Some(message) = condition(pod, "DisruptionTarget", "True")
        {
            let difference = self.comparison.evicted(&uid, &pod_name(pod), message, now);
            self.tell(difference);
        }
    }

    /// An event, before the core applies it; returns the events for the core in its place.
    pub fn take(&mut self, core: &Core, event: Event, now: Time) -> Vec<Event> {
        match &event {
            Event::Pod(pod) if pod.ours => match &pod.phase {
                Phase::Pending => {
                    let name = format!("{}/{}", pod.namespace, pod.name);
                    self.comparison.waits(&pod.uid, &name, now);
                }
                Phase::Bound(place) | Phase::Running(place) => {
                    if self.comparison.is_open(&pod.uid) {
                        // A pod that is reported as waiting, and does not wait, is checked again:
                        // perhaps what it waited for has come.
                        let mut judged = true;
                        if self.stale && !self.comparison.has_place(&pod.uid) {
                            judged = self.looked.elapsed() >= self.took * SPARED;
                            if judged {
                                self.decide(core, now);
                            }
                        }
                        let cards = place.grants.iter().flat_map(|grant| grant.cards.clone());
                        let cards = cards.collect::<Vec<_>>();
                        let why = |node: &scheduler_core::ids::NodeName| {
                            let explanation = core.explain(&pod.uid)?;
                            let verdict =
                                explanation.nodes.into_iter().find(|v| v.node == *node)?;
                            (!verdict.fits).then(|| {
                                let words = verdict.reasons.iter().chain(&verdict.cards);
                                words.map(AsRef::as_ref).collect::<Vec<&str>>().join("; ")
                            })
                        };
                        if judged {
                            let difference =
                                self.comparison
                                    .bound(&pod.uid, &place.node, &cards, why, now);
                            self.tell(difference);
                        } else {
                            self.comparison.unseen(&pod.uid);
                        }
                    }
                }
                Phase::Releasing(_) | Phase::Stuck(_) | Phase::Succeeded | Phase::Failed => {
                    self.comparison.gone(&pod.uid);
                }
            },
            Event::PodGone(uid) => self.comparison.gone(uid),
            _ => {}
        }
        self.stale = true;
        self.estimated.take(event)
    }

    /// What would be decided now.
    pub fn decide(&mut self, core: &Core, now: Time) {
        let begin = Instant::now();
        let decision = core.fork().decide(now);
        for difference in self.comparison.decided(&decision, now) {
            self.tell(Some(difference));
        }
        self.took = begin.elapsed();
        self.looked = Instant::now();
        self.stale = false;
        self.pause = PAUSE.max(self.took * REST);
    }

    /// Everything so far.
    pub fn report(&self, now: Time) -> Report {
        self.comparison.report(now)
    }

    fn tell(&self, difference: Option<Difference>) {
        let Some(difference) = difference else { return };
        self.meters.difference(difference.kind.as_str());
        tracing::info!(
            pod = difference.pod,
            kind = difference.kind.as_str(),
            here = difference.here,
            there = difference.there,
            why = difference.why,
            "differs"
        );
    }
}

/// The message of a condition that has that status.
fn condition<'a>(pod: &'a KubePod, kind: &str, status: &str) -> Option<&'a str> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let found = conditions
        .iter()
        .find(|condition| condition.type_ == kind && condition.status == status)?;
    Some(found.message.as_deref().unwrap_or_default())
}

fn pod_name(pod: &KubePod) -> String {
    format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any())
}

#[cfg(test)]
mod tests;
