//! Several cores as one: inputs go to the right core, and their outputs are merged.

use crate::cycle::Question;
use crate::report::Views;
use crate::status::Status;
use futures::StreamExt as _;
use futures::stream::select_all;
use scheduler_core::Outcome;
use std::collections::BTreeSet;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::WatchStream;

/// The way to one core and from it.
#[derive(Debug)]
pub struct CoreChannels {
    /// The shard's name.
    pub name: String,
    /// In its decisions' names.
    pub epoch: u64,
    /// How its actions ended.
    pub outcomes: channel::Sender<Outcome>,
    /// Queries to it.
    pub questions: mpsc::Sender<Question>,
    /// Where it is.
    pub status: watch::Receiver<Status>,
    /// Its outputs.
    pub views: watch::Receiver<Views>,
}

/// Goes between until an input ends.
pub async fn run(
    cores: Vec<CoreChannels>,
    mut outcomes: channel::Receiver<Outcome>,
    mut questions: mpsc::Receiver<Question>,
    status: watch::Sender<Status>,
    views: watch::Sender<Views>,
) {
    let mut states = select_all(
        cores
            .iter()
            .map(|f| WatchStream::new(f.status.clone()).map(drop)),
    );
    let mut shown = select_all(
        cores
            .iter()
            .map(|f| WatchStream::new(f.views.clone()).map(drop)),
    );
    loop {
        tokio::select! {
            biased;
            outcome = outcomes.recv() => {
                let Some(outcome) = outcome else { return };
                let of = cores.iter().find(|core| core.epoch == outcome.decision.epoch);
                if of.is_some_and(|core| core.outcomes.send(outcome).is_err()) {
                    return;
                }
            }
            question = questions.recv() => match question {
                Some(question) => ask(&cores, question).await,
                None => return,
            },
            state = states.next() => {
                if state.is_none() {
                    return;
                }
                status.send_replace(one_status(&cores));
            }
            show = shown.next() => {
                if show.is_none() {
                    return;
                }
                views.send_replace(one_view(&cores));
            }
        }
    }
}

/// To the shard that is named, else to the first that has an answer.
async fn ask(cores: &[CoreChannels], question: Question) {
    // A core that does not answer is gone, and the caller sees that.
    match question {
        Question::Of(name, question) => {
            if let Some(core) = cores.iter().find(|core| core.name == name) {
                let _ = core.questions.send(*question).await;
            }
        }
        Question::ForkOf(queue, to) => {
            let has = |core: &&CoreChannels| {
                let views = core.views.borrow();
                views.queues.iter().any(|view| view.queue == queue)
            };
            if let Some(core) = cores.iter().find(has) {
                let _ = core.questions.send(Question::ForkOf(queue, to)).await;
            }
        }
        Question::Explain(pod, to) => {
            let of = |to| Question::Explain(pod.clone(), to);
            first(cores, of, to).await;
        }
        Question::ForkOfPod(pod, to) => {
            let of = |to| Question::ForkOfPod(pod.clone(), to);
            first(cores, of, to).await;
        }
        Question::Resize {
            pod,
            request,
            lasts,
            to,
        } => {
            let of = |to| Question::Resize {
                pod: pod.clone(),
                request,
                lasts,
                to,
            };
            first(cores, of, to).await;
        }
        other => {
            if let Some(core) = cores.first() {
                let _ = core.questions.send(other).await;
            }
        }
    }
}

/// Passes on the first answer that there is; none where a shard does not answer, which may be the
/// one that has it.
async fn first<A>(
    cores: &[CoreChannels],
    of: impl Fn(oneshot::Sender<Option<A>>) -> Question,
    to: oneshot::Sender<Option<A>>,
) {
    let mut all = true;
    for core in cores {
        let (asked, answer) = oneshot::channel();
        let _ = core.questions.send(of(asked)).await;
        match answer.await {
            Ok(None) => {}
            Ok(found) => return drop(to.send(found)),
            Err(_) => all = false,
        }
    }
    if all {
        let _ = to.send(None);
    }
}

fn one_status(cores: &[CoreChannels]) -> Status {
    let states: Vec<Status> = cores
        .iter()
        .map(|core| core.status.borrow().clone())
        .collect();
    let missing: BTreeSet<&'static str> = states
        .iter()
        .flat_map(|state| state.missing.clone())
        .collect();
    Status {
        missing: missing.into_iter().collect(),
        leading: states.iter().all(|state| state.leading),
        agents: states.iter().map(|state| state.agents).sum(),
    }
}

fn one_view(cores: &[CoreChannels]) -> Views {
    if let [core] = cores {
        return core.views.borrow().clone();
    }
    let all: Vec<Views> = cores
        .iter()
        .map(|core| core.views.borrow().clone())
        .collect();
    Views {
        queues: all
            .iter()
            .flat_map(|views| &views.queues)
            .cloned()
            .collect(),
        capacity: all.iter().fold([0; 3], |sum, views| {
            [0, 1, 2].map(|index| sum[index] + views.capacity[index])
        }),
        shown: all.iter().flat_map(|views| views.shown.clone()).collect(),
        leading: all.iter().all(|views| views.leading),
    }
}
