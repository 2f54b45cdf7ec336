//! Why a pod is pending, per node and per card: recomputed on request by the same `fit` that decides.

use crate::action::ReasonKind;
use crate::config::Config;
use crate::cycle::hindrance::{hindrance, no_fit, released_line};
use crate::cycle::history::pause_line;
use crate::ids::{GroupName, NodeName, PodUid};
use crate::reason::{CardLine, WaitReason};
use crate::state::State;
use crate::state::keys::JobKey;
use crate::state::task_cell::Status;
use crate::{fit, product_quota};
use std::borrow::Cow;
use std::sync::Arc;

/// All verdicts on where a pod may be placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Which pod.
    pub pod: PodUid,
    /// The kind of the leading reason; `None` when nothing hinders the pod, or when it
    /// does not wait.
    pub kind: Option<ReasonKind>,
    /// One line; empty where there is no reason.
    pub line: Arc<str>,
    /// Each node, in order of name. Empty for a pod that does not wait.
    pub nodes: Vec<NodeVerdict>,
    /// A line per pod that was to make room for this one's group and may not be evicted now; at
    /// most eight. Before them, that no pod is evicted for the group for a while, where evictions
    /// have gained it nothing. Empty for a pod that does not wait.
    pub spared: Vec<Arc<str>>,
}

/// Pods that are named which may not be evicted now: enough to see which budget is in the
/// way.
const SPARED: usize = 8;

/// What one node says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeVerdict {
    /// Which node.
    pub node: NodeName,
    /// True when the pod fits there now, queues left aside.
    pub fits: bool,
    /// What pods near it are worth to the pod, and the pod to them: the raw score of Kubernetes'
    /// `InterPodAffinity`.
    pub preference: i64,
    /// Reasons of the node, KAI's wording; empty when it fits.
    pub reasons: Vec<Arc<str>>,
    /// A line per card that will not do, such as `GPU-1 (RTX 6000 Ada): 1000 of 46000 MiB free,
    /// 2000 needed`. A node that fits has such lines too if other cards of it are full.
    pub cards: Vec<Arc<str>>,
}

pub(crate) fn explain(state: &State, config: &Config, pod: &PodUid) -> Option<Explanation> {
    let task = state.task_of(pod)?;
    let row = state.tasks.get(task)?;
    let spec = state.specs.get(row.spec)?;
    let spec = &*state.with_domains(spec);
    let nodes: Vec<_> = state.names.nodes.values().copied().collect();
    let mut explanation = Explanation {
        pod: pod.clone(),
        kind: None,
        line: Arc::from(""),
        nodes: Vec::new(),
        spared: Vec::new(),
    };
    if state.cell(task).status != Status::Pending {
        return Some(explanation);
    }
    explanation.spared = spared(state, row.job);
    let held = if state.cells.products.dirty {
        Cow::Owned(state.sum_products())
    } else {
        Cow::Borrowed(&state.cells.products.of)
    };
    let mut later = None;
    // Where a queue may have no more of the product.
    let mut beyond: Option<Arc<WaitReason>> = None;
    explanation.nodes = state
        .names
        .nodes
        .iter()
        .filter_map(|(name, key)| Some((name, key, state.nodes.get(*key)?.node.as_ref()?)))
        .map(|(name, key, node)| {
            let preference = fit::pods::preference(state, spec, *key, node);
            match fit::node(state, spec, *key, config, false) {
                Ok(assignment) => {
                    let (front, now) = (assignment.front, assignment.now);
                    let refusals = fit::each_card::refusals(state, spec, *key, front, now);
                    let cards = lines(state, &refusals);
                    let nano = state.charge(task, &assignment.holds)[0];
                    let over = product_quota::over(state, &held, task, (*key, nano));
                    if let Some(over) = over {
                        let line = Arc::clone(&over.line);
                        beyond = Some(over);
                        return NodeVerdict {
                            node: name.clone(),
                            fits: false,
                            preference,
                            reasons: vec![line],
                            cards,
                        };
                    }
                    if !assignment.now {
                        later.get_or_insert(name);
                    }
                    NodeVerdict {
                        node: name.clone(),
                        fits: assignment.now,
                        preference,
                        reasons: if assignment.now {
                            Vec::new()
                        } else {
                            vec![Arc::from("it fits when what is being released has left")]
                        },
                        cards,
                    }
                }
                Err(no) => NodeVerdict {
                    node: name.clone(),
                    fits: false,
                    preference,
                    reasons: no
                        .why
                        .iter()
                        .map(|why| Arc::from(why.to_string()))
                        .collect(),
                    cards: lines(state, &no.cards),
                },
            }
        })
        .collect();
    if let Some(why) = hindrance(state, row) {
        explanation.kind = Some(why.kind);
        explanation.line = Arc::clone(&why.line);
    } else if explanation.nodes.iter().any(|node| node.fits) {
        // Its turn comes.
    } else if let Some(node) = later {
        explanation.kind = Some(ReasonKind::Promised);
        explanation.line = released_line(node);
    } else if let Some(over) = beyond {
        explanation.kind = Some(over.kind);
        explanation.line = Arc::clone(&over.line);
    } else {
        explanation.kind = Some(ReasonKind::Unschedulable);
        explanation.line = no_fit(state, config, spec, nodes).line;
    }
    Some(explanation)
}

fn lines(state: &State, cards: &[CardLine]) -> Vec<Arc<str>> {
    let lines = cards.iter().map(|line| Arc::from(line.text(&state.cards)));
    lines.collect()
}

/// Number of lines for cards with the same reason; the rest share one.
const ALIKE: usize = 4;

/// A line for each unsuitable card, with its node: for equal reasons except for numbers, the first
/// few, then the number of the others. Then a line for each pod that may not be evicted for it.
/// Checks at most `most` cards, so that it costs the same in a cluster of any size, and says on how
/// many nodes it did not check the cards.
pub(crate) fn cards(state: &State, config: &Config, pod: &PodUid, most: usize) -> Vec<String> {
    let task = state.task_of(pod);
    let row = task.and_then(|key| state.tasks.get(key));
    let waits = task.is_some_and(|key| state.cell(key).status == Status::Pending);
    let spec = row.and_then(|row| state.specs.get(row.spec));
    let Some((row, spec)) = row.zip(spec).filter(|_| waits) else {
        return Vec::new();
    };
    let mut kinds: Vec<(String, Vec<String>, usize)> = Vec::new();
    let spec = &*state.with_domains(spec);
    let (mut looked, mut unseen) = (0, 0_usize);
    for (name, key) in &state.names.nodes {
        if state.nodes.get(*key).is_none_or(|row| row.node.is_none()) {
            continue;
        }
        if looked >= most {
            unseen += 1;
            continue;
        }
        let no = fit::node(state, spec, *key, config, false).err();
        for card in no.map(|no| no.cards).unwrap_or_default() {
            looked += 1;
            let line = format!("node {name}: {}", card.text(&state.cards));
            let kind = card.kind();
            match kinds.iter_mut().find(|(known, ..)| *known == kind) {
                Some((_, lines, more)) if lines.len() >= ALIKE => {
                    *more += 1;
                }
                Some((_, lines, _)) => lines.push(line),
                None => kinds.push((kind, vec![line], 0)),
            }
        }
    }
    let mut lines = Vec::new();
    for (_, alike, more) in kinds {
        lines.extend(alike);
        match more {
            0 => {}
            1 => lines.push("... and 1 more card like these".to_owned()),
            more => lines.push(format!("... and {more} more cards like these")),
        }
    }
    match unseen {
        0 => {}
        1 => lines.push("... and the cards of 1 more node".to_owned()),
        more => lines.push(format!("... and the cards of {more} more nodes")),
    }
    lines.extend(spared(state, row.job).iter().map(ToString::to_string));
    lines
}

fn spared(state: &State, job: Option<JobKey>) -> Vec<Arc<str>> {
    let Some((key, job)) = job.and_then(|key| Some((key, state.jobs.get(key)?))) else {
        return Vec::new();
    };
    let pause = pause_line(state, key).map(Arc::from);
    let spared = state.pauses.tasks.iter().map(|(_, task)| *task);
    let spared = spared.filter(|task| state.is_eviction_postponed(*task));
    let lines = spared.filter_map(|task| {
        let row = state.tasks.get(task)?;
        let pause = row.rare.pause.as_ref()?;
        let is_it = |name: &GroupName| job.name == *name;
        if !pause.in_favour_of.as_ref().is_some_and(is_it) {
            return None;
        }
        let why = &pause.reason;
        let (namespace, name) = (&row.facts.namespace, &row.name);
        Some(format!("pod {namespace}/{name} may not be evicted now: {why}").into())
    });
    pause.into_iter().chain(lines.take(SPARED)).collect()
}

#[cfg(test)]
mod tests {
    use crate::action::Action;
    use crate::event::{Event, Outcome, OutcomeResult};
    use crate::ids::PodUid;
    use crate::units::Time;
    use crate::{Config, Core, text};

    /// No other pod is: the one that is named may be of another tenant.
    #[test]
    fn who_is_to_have_the_room_is_told_which_pod_may_not_be_evicted() {
        let cluster = "node n1 cpu=64000 memory=274877906944 pods=110 gpus=1 managed\n\
            cards n1 default=mps\n  card GPU-1 product=T4 total=15360\n\
            queue q\n\
            pod low queue=q priority=50 gpus.main=1 phase=running on=n1\n  \
            grant main cards=GPU-1 memory=15360 mode=exclusive\n\
            pod high queue=q priority=90 gpus.main=1\n\
            pod other queue=q priority=40 gpus.main=1\n";
        let mut core = Core::new(Config::verified());
        for event in text::read(cluster).expect("a cluster") {
            assert_eq!(core.apply(event), Vec::new());
        }
        let decision = core.decide(Time(1000));
        let [Action::Evict(evict)] = decision.actions.as_slice() else {
            panic!("{decision:?}");
        };
        core.apply(Event::Outcome(Outcome {
            decision: evict.decision,
            result: OutcomeResult::Refused {
                reason: "a budget".into(),
                retryable: true,
            },
        }));
        let mut rebuilt = Core::new(Config::verified());
        for event in core.snapshot() {
            rebuilt.apply(event);
        }
        for core in [&mut core, &mut rebuilt] {
            core.decide(Time(1000));
            let spared = |pod: &str| core.explain(&PodUid::new(pod)).expect("it is there").spared;
            let told = spared("high");
            assert_eq!(told.len(), 1);
            assert!(told[0].starts_with("pod default/low may not be evicted now: a budget"));
            assert!(spared("other").is_empty());
        }
    }

    /// Its pods say so, other pods do not.
    #[test]
    fn a_job_for_which_pods_were_evicted_in_vain_is_said_to_wait() {
        let mut core = Core::new(Config::verified());
        let cluster = "tick 2000\nqueue q\npod high queue=q gpus.main=1\npod other queue=q gpus.main=1\n\
            evicted pod:high active=0 times=3 until=5000\n";
        for event in text::read(cluster).expect("a cluster") {
            core.apply(event);
        }
        let told = |core: &Core, pod: &str| {
            let explanation = core.explain(&PodUid::new(pod)).expect("it is there");
            explanation
                .spared
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        core.decide(Time(2000));
        let [line] = told(&core, "high").try_into().expect("one line");
        assert_eq!(
            line,
            "pods were evicted for this workload 3 times in a row, and it runs no more pods than before: no pod is evicted for it for 4 s"
        );
        assert!(told(&core, "other").is_empty());
        core.decide(Time(5000));
        assert!(told(&core, "high").is_empty());
    }

    /// Eight nodes with eight cards of two sizes, on which 1000 MiB are left, or nothing.
    #[test]
    fn of_cards_alike_the_first_few_are_named_and_the_others_counted() {
        use std::fmt::Write as _;
        let cluster = |nodes: usize| {
            let mut text = String::from("queue q\n");
            for node in 0..nodes {
                let _ = write!(
                    text,
                    "node n{node} cpu=64000 memory=274877906944 pods=110 gpus=8 managed\n\
                    cards n{node} default=time-slicing\n"
                );
                for card in 0..8 {
                    let more = if (node, card) == (0, 1) {
                        " cordoned"
                    } else {
                        ""
                    };
                    let _ = writeln!(
                        text,
                        "  card GPU-{node}-{card} product=T4 total={}{more}",
                        1000 + card
                    );
                }
            }
            text.push_str("pod p queue=q gpu-memory.main=4000\n");
            let mut core = Core::new(Config::verified());
            for event in text::read(&text).expect("a cluster") {
                assert_eq!(core.apply(event), Vec::new());
            }
            core.decide(Time(1000));
            core.explain_cards(&PodUid::new("p"), 64)
        };
        let lines = cluster(8);
        let named = |line: &&String| line.starts_with("node n0: ");
        assert_eq!(lines.iter().filter(named).count(), 5, "{lines:?}");
        assert!(
            lines.contains(&"... and 59 more cards like these".to_owned()),
            "{lines:?}"
        );
        assert!(
            lines.iter().any(|line| line.contains("cordoned")),
            "{lines:?}"
        );
        assert_eq!(lines.len(), 6);
        let lines = cluster(30);
        assert_eq!(lines.last().unwrap(), "... and the cards of 22 more nodes");
    }
}
