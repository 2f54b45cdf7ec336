//! Every negative verdict, typed, and its text: KAI's where KAI has one.

use crate::action::{MAX_LINE, ReasonKind};
use crate::devices::{ClaimsReason, DeviceReason};
use crate::ids::{DeviceId, NodeName, ResourceName};
use crate::ledger::Short;
use crate::model::{Fence, Mode, Taint};
use crate::state::keys::{CardKey, QueueKey};
use crate::state::rows::CardRow;
use crate::units::Mib;
use slotmap::SlotMap;
use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write as _;
use std::sync::Arc;

/// Why a node will not do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NodeReason {
    Unschedulable,
    NotReady(Arc<str>),
    Taint(Taint),
    Selector,
    /// It lacks the label of nodes for pods with GPUs.
    NoGpuWorker(Arc<str>),
    /// It lacks the label of nodes for pods without.
    NoCpuWorker(Arc<str>),
    Pods,
    Cpu,
    Memory,
    Extended(ResourceName),
    /// It can use no volume for these claims, or not one for each.
    NoVolume(Vec<Arc<str>>),
    /// A claim of the pod is being bound on another node.
    ClaimElsewhere,
    /// Its CSI driver attaches no more volumes to it.
    VolumeLimit,
    /// A claim that one pod uses at a time is another pod's.
    ClaimInUse,
    /// A host port is taken.
    Ports,
    /// No pod that it is to go beside is there.
    Affinity,
    /// A pod that it avoids is there.
    AntiAffinity,
    /// A pod that avoids it is there.
    AvoidedBy,
    /// Its domain would have too many.
    Spread,
    /// It has no domain to spread over.
    SpreadLabel,
    /// Its devices will not do for the pod's claims.
    Devices(ClaimsReason),
    Gpus,
    GpuMemory,
    /// It has no cards at all.
    NoGpus,
    AgentSilent,
    NotOffering(Arc<str>),
    /// Its kubelet would refuse the pod with `TopologyAffinityError`, or might: pods before it are
    /// not reported yet.
    NumaAlignment,
    NotMig,
    LegacyMig,
    MigSingle,
    MigMixed,
}

impl fmt::Display for NodeReason {
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
            Self::NoGpuWorker(label) => {
                write!(f, "node(s) had no label {label}, which GPU pods need")
            }
            Self::NoCpuWorker(label) => {
                write!(f, "node(s) had no label {label}, which pods without GPUs need")
            }
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
            Self::VolumeLimit => f.write_str("node(s) exceed max volume count"),
            Self::ClaimInUse => f.write_str(
                "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod",
            ),
            Self::Ports => {
                f.write_str("node(s) didn't have free ports for the requested pod ports")
            }
            Self::Affinity => f.write_str("node(s) didn't match pod affinity rules"),
            Self::AntiAffinity => f.write_str("node(s) didn't match pod anti-affinity rules"),
            Self::AvoidedBy => {
                f.write_str("node(s) didn't satisfy existing pods anti-affinity rules")
            }
            Self::Spread => f.write_str("node(s) didn't match pod topology spread constraints"),
            Self::SpreadLabel => f.write_str(
                "node(s) didn't match pod topology spread constraints (missing required label)",
            ),
            Self::Devices(why) => why.fmt(f),
            Self::Gpus | Self::NoGpus => f.write_str("node(s) didn't have enough resources: GPUs"),
            Self::GpuMemory => f.write_str("node(s) didn't have enough resources: GPU memory"),
            Self::AgentSilent => f.write_str("node(s) whose agent is not connected"),
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
            Self::NumaAlignment => f.write_str(
                "node cannot NUMA-align the pod's resources under its Topology Manager policy",
            ),
            Self::NotOffering(why) => write!(f, "node(s) that offer no shares: {why}"),
        }
    }
}

/// Why a card will not do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CardReason {
    /// The agent does not report it (any more).
    Unknown,
    /// The node that has it now: its agent is connected and names it, too.
    Elsewhere(NodeName),
    Mig,
    /// Wanted for a share.
    Slice,
    Unhealthy(Arc<str>),
    Cordoned,
    Paused {
        reason: Arc<str>,
    },
    /// Held whole by a pod.
    HeldWhole {
        /// As many other cards its holders have, and the agent has not reported which.
        elsewhere: u32,
    },
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
    /// The kubelet does not show the card as whole yet.
    PoolWhole,
    /// The kubelet does not offer it.
    PoolNone,
    /// A claim holds it: a card has one front at a time.
    Claimed,
    /// A claim holds the card, and a card has one front at a time.
    NotMig,
    /// The pod needs a slice of the card, which is not in MIG mode.
    Device(DeviceReason),
}

impl fmt::Display for CardReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("not reported by its agent"),
            Self::Elsewhere(node) => write!(
                f,
                "on node {node} as well, whose agent is connected and has it"
            ),
            Self::Mig => f.write_str(
                "MIG is enabled: its slices are given whole, and a slice holds no shares",
            ),
            Self::Slice => f.write_str("a MIG slice, which is given whole and holds no shares"),
            Self::Unhealthy(why) if why.is_empty() => f.write_str("unhealthy"),
            Self::Unhealthy(why) => write!(f, "unhealthy: {why}"),
            Self::Cordoned => f.write_str("cordoned"),
            Self::Paused { reason } => write!(f, "paused after a refused grant: {reason}"),
            Self::HeldWhole { elsewhere: 0 } => f.write_str("held as a whole GPU"),
            Self::HeldWhole { elsewhere } => write!(
                f,
                "held as a whole GPU by several pods, which hold {elsewhere} more of the node's GPUs: the agent has not reported which yet",
            ),
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
            Self::PoolShared => f.write_str("the kubelet does not show it as a whole GPU yet"),
            Self::PoolWhole => f.write_str("the kubelet does not offer it for shares yet"),
            Self::PoolNone => f.write_str("not offered by the kubelet"),
            Self::Claimed => f.write_str("allocated to a resource claim"),
            Self::NotMig => f.write_str("MIG is not enabled"),
            Self::Device(no) => no.fmt(f),
        }
    }
}

/// A node's "no", with its cards'.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeVerdict {
    pub why: Vec<NodeReason>,
    /// Of its cards. The text is only built when it is read.
    pub cards: Vec<CardLine>,
}

/// The reasons of a node's cards, one line each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CardLine {
    Card(CardKey, CardReason),
    /// The number of free whole GPUs, and the number requested.
    Whole {
        free: i64,
        wanted: i64,
    },
    /// The number of cards requested in one mode.
    OneMode(usize),
    Device(DeviceId, DeviceReason),
}

impl CardLine {
    /// The reason without the card's name and the numbers.
    pub(crate) fn kind(&self) -> String {
        let words = match self {
            Self::Card(_, no) => no.to_string(),
            Self::Whole { .. } => "whole".to_owned(),
            Self::OneMode(_) => "one mode".to_owned(),
            Self::Device(_, no) => no.to_string(),
        };
        words.chars().filter(|c| !c.is_ascii_digit()).collect()
    }

    /// The line, without the node.
    pub(crate) fn text(&self, cards: &SlotMap<CardKey, CardRow>) -> String {
        match self {
            Self::Card(key, no) => match cards.get(*key) {
                Some(row) => format!("{}: {no}", row.shown_name()),
                None => no.to_string(),
            },
            Self::Whole { free, wanted } => format!("{free} of {wanted} whole GPUs free"),
            Self::OneMode(wanted) => format!("{wanted} cards in one mode needed"),
            Self::Device(id, no) => format!("device {id}: {no}"),
        }
    }
}

/// Why a pod waits, in one line, and what makes it another reason than the last.
#[derive(Clone, Debug)]
pub(crate) struct WaitReason {
    pub kind: ReasonKind,
    pub line: Arc<str>,
    pub about: ReasonKey,
}

/// What a reason is about. A change of the numbers in its text does not make it another reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReasonKey {
    /// Its words.
    Words,
    /// What the nodes lack, whichever and however many they are.
    Nodes {
        lacks: Arc<[String]>,
        /// Some other nodes are temporarily unavailable, and the reason says so.
        unavailable: bool,
        /// The reason says how many pods its gang needs.
        of_gang: bool,
    },
    /// A limit or quota of a queue, by resource.
    Limit(QueueKey, usize),
    /// A limit or quota of a queue, by GPU product.
    Product(QueueKey, Arc<str>),
}

impl ReasonKey {
    /// The text of what nodes lack; nodes that are temporarily unavailable count only if all nodes
    /// are.
    pub(crate) fn nodes<'a>(all: impl IntoIterator<Item = &'a NodeReason>) -> Self {
        let all: Vec<&NodeReason> = all.into_iter().collect();
        let lasting = all.iter().any(|why| !why.is_transient());
        let told = all.iter().filter(|why| !(lasting && why.is_transient()));
        let mut words: Vec<String> = told.map(ToString::to_string).collect();
        words.sort_unstable();
        words.dedup();
        Self::Nodes {
            lacks: Arc::from(words),
            unavailable: lasting && all.iter().any(|why| why.is_transient()),
            of_gang: false,
        }
    }

    /// Returns the key of the same reason in a sentence that also says how many pods the gang needs.
    pub(crate) fn in_gang_words(mut self) -> Self {
        if let Self::Nodes { of_gang, .. } = &mut self {
            *of_gang = true;
        }
        self
    }

    /// Returns true if a reason with this key is still true when the present key is `now`. A reason
    /// that names unavailable nodes becomes false when they are available. A reason stays true when
    /// more nodes become unavailable.
    pub(crate) fn covers(&self, now: &Self) -> bool {
        match (self, now) {
            (
                Self::Nodes {
                    lacks,
                    unavailable,
                    of_gang,
                },
                Self::Nodes {
                    lacks: lacked,
                    unavailable: still,
                    of_gang: in_gang,
                },
            ) => lacks == lacked && of_gang == in_gang && (!unavailable || *still),
            _ => self == now,
        }
    }
}

impl WaitReason {
    pub(crate) fn of(kind: ReasonKind, line: impl Into<Arc<str>>) -> Arc<Self> {
        Arc::new(Self {
            kind,
            line: line.into(),
            about: ReasonKey::Words,
        })
    }

    /// Returns true if `now` need not be reported because this reason was.
    pub(crate) fn covers(&self, now: &Self) -> bool {
        self.kind == now.kind
            && self.about.covers(&now.about)
            && (self.about != ReasonKey::Words || self.line == now.line)
    }
}

/// A line about many nodes, of at most [`MAX_LINE`] bytes: KAI's histogram of reasons, then a
/// line per card as far as there is room.
pub(crate) struct Line {
    text: String,
    cards: usize,
    /// Nodes with cards for which there was no room.
    hidden: usize,
}

impl Line {
    /// `counts`: reasons, and of how many nodes.
    pub(crate) fn of<'a>(counts: impl IntoIterator<Item = (&'a NodeReason, usize)>) -> Self {
        // Different reasons may have the same words.
        let mut by_words: BTreeMap<String, usize> = BTreeMap::new();
        for (why, count) in counts {
            *by_words.entry(why.to_string()).or_default() += count;
        }
        let mut histogram: Vec<String> = by_words
            .into_iter()
            .map(|(why, count)| format!("{count} {why}"))
            .collect();
        histogram.sort();
        let text = if histogram.is_empty() {
            "no nodes with enough resources were found: there are no nodes".to_owned()
        } else {
            format!(
                "no nodes with enough resources were found: {}.",
                histogram.join(", ")
            )
        };
        Self {
            text,
            cards: 0,
            hidden: 0,
        }
    }

    /// No more cards have room.
    pub(crate) fn is_full(&self) -> bool {
        self.hidden > 0
    }

    /// What the cards of one node say.
    pub(crate) fn add(
        &mut self,
        node: &str,
        lines: &[CardLine],
        cards: &SlotMap<CardKey, CardRow>,
    ) {
        // Room for the closing count.
        const ROOM: usize = MAX_LINE - 40;
        for line in lines {
            let detail = format!("node {node}: {}", line.text(cards));
            if self.is_full() || self.text.len() + detail.len() + 2 > ROOM {
                self.hidden += 1;
                return;
            }
            self.text.push_str(if self.cards == 0 { " " } else { "; " });
            self.text.push_str(&detail);
            self.cards += 1;
        }
    }

    /// Nodes with cards that were not asked.
    pub(crate) fn hide(&mut self, nodes: usize) {
        self.hidden += nodes;
    }

    pub(crate) fn end(mut self) -> Arc<str> {
        match self.hidden {
            0 => {}
            1 => self.text.push_str(" (and cards of 1 more node)"),
            more => {
                let _ = write!(self.text, " (and cards of {more} more nodes)");
            }
        }
        Arc::from(cut(self.text, MAX_LINE))
    }
}

impl NodeReason {
    /// It passes by itself, and is no reason of the pod's: another node that is in this state
    /// for a while is no news for pods that wait for other reasons.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::NotReady(_) | Self::Unschedulable | Self::AgentSilent
        )
    }

    /// Cards say more about it.
    pub(crate) fn is_of_cards(&self) -> bool {
        matches!(
            self,
            Self::Gpus | Self::GpuMemory | Self::Devices(ClaimsReason::Request(_))
        )
    }
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

#[cfg(test)]
mod tests;
