//! Every "no", typed, and its words: KAI's where KAI has them.

use crate::ids::ResourceName;
use crate::ledger::Short;
use crate::model::{Fence, Mode, Taint};
use crate::state::State;
use crate::state::rows::CardKey;
use crate::units::Mib;
use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write as _;
use std::sync::Arc;

/// Why a node will not do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NodeNo {
    Unschedulable,
    NotReady(Arc<str>),
    Taint(Taint),
    Selector,
    Pods,
    Cpu,
    Memory,
    Extended(ResourceName),
    /// It can use no volume for these claims, or not one for each.
    NoVolume(Vec<Arc<str>>),
    /// A claim of the pod is being bound on another node.
    ClaimElsewhere,
    Gpus,
    GpuMemory,
    /// It has no cards at all.
    NoGpus,
    AgentSilent,
    NotOffering(Arc<str>),
    NotMig,
    LegacyMig,
    MigSingle,
    MigMixed,
}

impl fmt::Display for NodeNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unschedulable => f.write_str("node(s) were unschedulable"),
            Self::NotReady(why) => f.write_str(why),
            Self::Taint(taint) => {
                write!(
                    f,
                    "node(s) had untolerated taint {{{}: {}}}",
                    taint.key, taint.value
                )
            }
            Self::Selector => f.write_str("node(s) didn't match Pod's node affinity/selector"),
            Self::Pods => f.write_str("node(s) pod number exceeded"),
            Self::Cpu => f.write_str("node(s) didn't have enough resources: CPU cores"),
            Self::Memory => f.write_str("node(s) didn't have enough resources: memory"),
            Self::Extended(name) if name.as_str().starts_with("nvidia.com/mig-") => {
                write!(f, "node(s) didn't have enough of mig profile: {name}")
            }
            Self::Extended(name) => write!(f, "node(s) didn't have enough resources: {name}"),
            Self::NoVolume(claims) => write!(
                f,
                "node(s) didn't find available persistent volumes to bind to persistentvolumeclaim {}",
                claims.join(", ")
            ),
            Self::ClaimElsewhere => f.write_str("node(s) had volume node affinity conflict"),
            Self::Gpus | Self::NoGpus => f.write_str("node(s) didn't have enough resources: GPUs"),
            Self::GpuMemory => f.write_str("node(s) didn't have enough resources: GPU memory"),
            Self::AgentSilent => f.write_str("node(s) whose agent has not been heard yet"),
            Self::NotMig => f.write_str("MIG job cannot be scheduled on non-MIG node"),
            Self::LegacyMig => {
                f.write_str("MIG job cannot be scheduled on node with legacy MIG jobs")
            }
            Self::MigSingle => {
                f.write_str("only whole gpu jobs can run on a node with MigStrategy='single'")
            }
            Self::MigMixed => {
                f.write_str("non MIG jobs cant run on a node with MigStrategy='mixed'")
            }
            Self::NotOffering(why) => write!(f, "node(s) that offer no shares: {why}"),
        }
    }
}

/// Why a card will not do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CardNo {
    /// The agent does not speak of it (any more).
    Unknown,
    Mig,
    Unhealthy(Arc<str>),
    Cordoned,
    Paused {
        reason: Arc<str>,
    },
    /// Held whole by a pod.
    HeldWhole,
    /// Wanted whole, but shared.
    Shared {
        shares: u32,
    },
    /// Wanted whole, but a process without a grant is on it.
    Strangers(Mib),
    /// In use in another mode.
    InMode {
        is: Mode,
        wanted: Mode,
    },
    /// Cannot be switched to that mode.
    NoMode(Mode),
    /// In use in `mps`, which takes one card per container.
    SeveralOnMps,
    /// In use, and its server would not take another share now.
    NotReady,
    Slots {
        slots: u32,
    },
    Memory {
        short: Short,
        cap: Mib,
    },
    /// Its admin wants a stronger fence than shares there would have.
    Fence {
        fence: Fence,
        least: Fence,
        mode: Mode,
    },
    /// The kubelet does not show it as whole yet.
    PoolShared,
    /// The kubelet shows no tokens of it (yet).
    PoolWhole,
    /// The kubelet does not offer it.
    PoolNone,
}

impl fmt::Display for CardNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("not reported by its agent"),
            Self::Mig => f.write_str("MIG is enabled"),
            Self::Unhealthy(why) if why.is_empty() => f.write_str("unhealthy"),
            Self::Unhealthy(why) => write!(f, "unhealthy: {why}"),
            Self::Cordoned => f.write_str("cordoned"),
            Self::Paused { reason } => write!(f, "paused after a refused grant: {reason}"),
            Self::HeldWhole => f.write_str("held as a whole GPU"),
            Self::Shared { shares: 1 } => f.write_str("1 share on it"),
            Self::Shared { shares } => write!(f, "{shares} shares on it"),
            Self::Strangers(mib) => {
                write!(f, "{mib} held by processes without a grant")
            }
            Self::InMode { is, wanted } => write!(f, "in mode {is}, {wanted} needed"),
            Self::NoMode(mode) => write!(f, "not usable in mode {mode}"),
            Self::SeveralOnMps => f.write_str(
                "in mode mps, several GPUs per container need mps-isolated or time-slicing",
            ),
            Self::NotReady => f.write_str("in use and not ready for another share"),
            Self::Slots { slots } => write!(f, "all {slots} client slots taken"),
            Self::Memory { short, cap } => write!(
                f,
                "{} of {} MiB free, {} needed",
                short.free.0, cap.0, short.needed.0
            ),
            Self::Fence {
                fence,
                least,
                mode: Mode::Mps,
            } => write!(
                f,
                "minimumFence {least} there, and shares of different sizes on one card have {fence} in mode mps"
            ),
            Self::Fence { fence, least, mode } => {
                write!(f, "minimumFence {least} there, and mode {mode} has {fence}")
            }
            Self::PoolWhole => f.write_str("the kubelet does not show it for shares yet"),
            Self::PoolShared => f.write_str("the kubelet does not show it as a whole GPU yet"),
            Self::PoolNone => f.write_str("not offered by the kubelet"),
        }
    }
}

/// A node's "no", with its cards'.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeVerdict {
    pub why: Vec<NodeNo>,
    /// Of its cards. Words are made of it only where somebody reads them.
    pub cards: Vec<CardLine>,
}

/// What is said of a node's cards, one line each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CardLine {
    Card(CardKey, CardNo),
    /// So many whole GPUs are free of those that are wanted.
    Whole {
        free: i64,
        wanted: i64,
    },
    /// So many cards are wanted in one mode.
    OneMode(usize),
}

impl CardLine {
    /// The line, without the node.
    pub(crate) fn text(&self, state: &State) -> String {
        match self {
            Self::Card(key, no) => match state.cards.get(*key) {
                Some(row) => format!("{}: {no}", crate::fit::card::name(row)),
                None => no.to_string(),
            },
            Self::Whole { free, wanted } => format!("{free} of {wanted} whole GPUs free"),
            Self::OneMode(wanted) => format!("{wanted} cards in one mode needed"),
        }
    }
}

/// One line of at most `most` bytes: KAI's histogram of reasons, then a line per card as
/// far as there is room.
pub(crate) fn join(state: &State, verdicts: &[(&str, NodeVerdict)], most: usize) -> String {
    let mut kinds: BTreeMap<&NodeNo, usize> = BTreeMap::new();
    for why in verdicts.iter().flat_map(|(_, verdict)| &verdict.why) {
        *kinds.entry(why).or_default() += 1;
    }
    // Different reasons may have the same words.
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for (why, count) in kinds {
        *counts.entry(why.to_string()).or_default() += count;
    }
    let mut histogram: Vec<String> = counts
        .into_iter()
        .map(|(why, count)| format!("{count} {why}"))
        .collect();
    histogram.sort();
    let mut line = if verdicts.is_empty() {
        "no nodes with enough resources were found: there are no nodes".to_owned()
    } else {
        format!(
            "no nodes with enough resources were found: {}.",
            histogram.join(", ")
        )
    };
    let details = || {
        verdicts
            .iter()
            .flat_map(|(node, verdict)| verdict.cards.iter().map(move |card| (node, card)))
    };
    // Room for the closing count.
    let room = most.saturating_sub(40);
    let mut shown = 0;
    for (node, card) in details() {
        let detail = format!("node {node}: {}", card.text(state));
        if line.len() + detail.len() + 2 > room {
            break;
        }
        line.push_str(if shown == 0 { " " } else { "; " });
        line.push_str(&detail);
        shown += 1;
    }
    let all: usize = verdicts
        .iter()
        .map(|(_, verdict)| verdict.cards.len())
        .sum();
    if shown < all {
        let _ = write!(line, " (and {} more cards)", all - shown);
    }
    cut(line, most)
}

/// At most `most` bytes, at a character's edge.
pub(crate) fn cut(mut line: String, most: usize) -> String {
    if line.len() > most {
        let mut end = most.saturating_sub(3);
        while !line.is_char_boundary(end) {
            end -= 1;
        }
        line.truncate(end);
        line.push_str("...");
    }
    line
}
