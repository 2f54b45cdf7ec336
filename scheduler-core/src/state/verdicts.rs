//! What every node answers to the pending requests, counted by reason: whether a request fits anywhere,
//! and why not, is known without visiting the nodes.
//!
//! Input: changed nodes. Output: for each request in use, how many nodes would take it, and how many
//! refuse it for which reasons. A node is asked again only by requests to which its answer may have
//! changed: a fact of the node or of its cards has changed, or its free amount has crossed the
//! requested one. It is brought up to date only outside trials ([`State::refresh_verdicts`](super::State::refresh_verdicts)). Pods
//! placed after that only take capacity, so a request that fitted nowhere still fits nowhere.
use crate::reason::{NodeReason, ReasonKey};
use crate::state::keys::{NodeKey, SpecKey};
use crate::state::pod_index::TermsVersion;
use slotmap::{Key as _, SecondaryMap};

/// The node would take it, now or when others have left.
pub(crate) const FITS: u16 = u16::MAX;

/// Nothing is known of the node.
pub(crate) const ABSENT: u16 = u16::MAX - 1;

/// What the nodes say to one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdicts {
    /// By the node's slot: [`FITS`], [`ABSENT`], or which of the sets of reasons.
    pub(crate) of: Vec<u16>,
    pub(crate) sets: Vec<Reasons>,
    /// How many nodes would take it.
    pub(crate) fits: u32,
    /// Whether it was used since the last decision began.
    pub(crate) asked: bool,
    /// [`State::others_at`](super::State::others_at) when the nodes were asked.
    pub(crate) others: OthersVersion,
    /// What it lacks on the nodes; `None`: it has to be put together again.
    pub(crate) lacks: Option<ReasonKey>,
}

/// What other pods mean to a request is the same while this is: the counts that it asks about, the
/// terms that speak of it, and the nodes that may have a domain.
pub(crate) type OthersVersion = ([u64; 3], TermsVersion);

/// Reasons that hold together, and on how many nodes they do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reasons {
    pub(crate) why: Vec<NodeReason>,
    pub(crate) nodes: u32,
}

/// What a verdict may depend on, of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct VerdictInputs {
    /// [`super::rows::NodeRow::facts`].
    pub(crate) facts: u64,
    /// [`super::rows::NodeRow::parts`].
    pub(crate) parts: u64,
    /// What is free or leaving, less promises: pods, millicores, bytes, whole GPUs.
    pub(crate) left: [i128; 4],
}

/// For all requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct VerdictCache {
    /// Requests with verdicts.
    pub(crate) specs: Vec<SpecKey>,
    /// Touched since the last time, each once.
    pub(crate) dirty: Vec<NodeKey>,
    pub(crate) basis: SecondaryMap<NodeKey, VerdictInputs>,
    /// How many nodes new requests have asked in this decision.
    pub(crate) looks: u64,
    /// A request had to wait for the next decision.
    pub(crate) put_off: bool,
    /// [`Changes::capacity`](crate::state::changes::Changes::capacity) at the last time.
    pub(crate) at: Option<u64>,
    /// [`Changes::volumes`](crate::state::changes::Changes::volumes) at the last time.
    pub(crate) volumes: u64,
    /// [`super::devices::Devices::version`] at the last time.
    pub(crate) devices: u64,
    /// [`super::pod_counts::PodCounts::changed`] and [`Changes::nodes`](crate::state::changes::Changes::nodes) at the last time.
    pub(crate) others: ([u64; 2], u64),
}

impl VerdictCache {
    /// The node has changed somehow for the first time since.
    pub(super) fn touch(&mut self, key: NodeKey) {
        self.dirty.push(key);
    }

    pub(super) fn forget(&mut self, spec: SpecKey) {
        self.specs.retain(|other| *other != spec);
    }
}

/// Dense, and reused when the node is gone.
#[allow(clippy::cast_possible_truncation)] // The lower half is the slot.
pub(crate) fn slot(key: NodeKey) -> usize {
    key.data().as_ffi() as u32 as usize
}

impl Verdicts {
    pub(crate) fn set(&mut self, at: usize, verdict: Option<Result<(), Vec<NodeReason>>>) {
        if self.of.len() <= at {
            self.of.resize(at + 1, ABSENT);
        }
        let new = match verdict {
            None => ABSENT,
            Some(Ok(())) => FITS,
            Some(Err(why)) => self.index(why),
        };
        let old = std::mem::replace(&mut self.of[at], new);
        if old == new {
            return;
        }
        self.count(old, false);
        self.count(new, true);
    }

    fn count(&mut self, verdict: u16, comes: bool) {
        let count = match verdict {
            ABSENT => return,
            FITS => &mut self.fits,
            set => {
                let Some(set) = self.sets.get_mut(usize::from(set)) else {
                    return;
                };
                // The first or the last: the request may lack something else.
                if set.nodes == u32::from(!comes) {
                    self.lacks = None;
                }
                &mut set.nodes
            }
        };
        *count = if comes {
            *count + 1
        } else {
            count.saturating_sub(1)
        };
    }

    fn index(&mut self, why: Vec<NodeReason>) -> u16 {
        let known = self.sets.iter().position(|set| set.why == why);
        let free = || self.sets.iter().position(|set| set.nodes == 0);
        let at = known.or_else(|| (self.sets.len() > 32).then(free).flatten());
        let at = at.unwrap_or(self.sets.len());
        match self.sets.get_mut(at) {
            Some(set) => set.why = why,
            None => self.sets.push(Reasons { why, nodes: 0 }),
        }
        // More sets than that are as good as the last one: it is only words.
        u16::try_from(at).unwrap_or(ABSENT - 1).min(ABSENT - 1)
    }

    /// What the request lacks.
    pub(crate) fn lacks(&mut self) -> ReasonKey {
        let sets = &self.sets;
        let all = || sets.iter().filter(|set| set.nodes > 0);
        let lacks = || ReasonKey::nodes(all().flat_map(|set| &set.why));
        self.lacks.get_or_insert_with(lacks).clone()
    }
}
