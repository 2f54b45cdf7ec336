//! What every node answers to the pending requests, counted by reason: whether a request fits anywhere,
//! and why not, is known without visiting the nodes.
//!
//! Input: changed nodes. Output: for each request in use, how many nodes would take it, and how many
//! refuse it for which reasons. A node is asked again only by requests to which its answer may have
//! changed: a fact of the node or of its cards has changed, or its free amount has crossed the
//! requested one. It is brought up to date only outside trials ([`State::refresh_verdicts`]). Pods
//! placed after that only take capacity, so a request that fitted nowhere still fits nowhere.

use super::State;
use super::keys::{NodeKey, SpecKey};
use super::pod_index::TermsVersion;
use super::rows::SpecRow;
use crate::config::Config;
use crate::fit::{self, free};
use crate::reason::{Line, NodeReason, ReasonKey};
use slotmap::{Key as _, SecondaryMap};
use std::sync::Arc;

/// The node would take it, now or when others have left.
const FITS: u16 = u16::MAX;
/// Most nodes that new requests ask in one decision: some 100 ms.
const LOOKS: u64 = 400_000;

/// Nothing is known of the node.
const ABSENT: u16 = u16::MAX - 1;

/// What the nodes say to one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdicts {
    /// By the node's slot: [`FITS`], [`ABSENT`], or which of the sets of reasons.
    of: Vec<u16>,
    sets: Vec<Reasons>,
    /// How many nodes would take it.
    fits: u32,
    /// Whether it was used since the last decision began.
    asked: bool,
    /// [`State::others_at`] when the nodes were asked.
    others: OthersVersion,
    /// What it lacks on the nodes; `None`: it has to be put together again.
    lacks: Option<ReasonKey>,
}

/// What other pods mean to a request is the same while this is: the counts that it asks about, the
/// terms that speak of it, and the nodes that may have a domain.
type OthersVersion = ([u64; 3], TermsVersion);

/// Reasons that hold together, and on how many nodes they do.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Reasons {
    why: Vec<NodeReason>,
    nodes: u32,
}

/// What a verdict may depend on, of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct VerdictInputs {
    /// [`super::rows::NodeRow::facts`].
    facts: u64,
    /// [`super::rows::NodeRow::parts`].
    parts: u64,
    /// What is free or leaving, less promises: pods, millicores, bytes, whole GPUs.
    left: [i128; 4],
}

/// For all requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct VerdictCache {
    /// Requests with verdicts.
    specs: Vec<SpecKey>,
    /// Touched since the last time, each once.
    dirty: Vec<NodeKey>,
    basis: SecondaryMap<NodeKey, VerdictInputs>,
    /// How many nodes new requests have asked in this decision.
    looks: u64,
    /// A request had to wait for the next decision.
    put_off: bool,
    /// [`State::capacity_version`] at the last time.
    at: Option<u64>,
    /// [`State::volumes_version`] at the last time.
    volumes: u64,
    /// [`super::devices::Devices::version`] at the last time.
    devices: u64,
    /// [`super::pod_counts::PodCounts::changed`] and [`State::nodes_changed`] at the last time.
    others: ([u64; 2], u64),
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
fn slot(key: NodeKey) -> usize {
    key.data().as_ffi() as u32 as usize
}

impl Verdicts {
    fn set(&mut self, at: usize, verdict: Option<Result<(), Vec<NodeReason>>>) {
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
    fn lacks(&mut self) -> ReasonKey {
        let sets = &self.sets;
        let all = || sets.iter().filter(|set| set.nodes > 0);
        let lacks = || ReasonKey::nodes(all().flat_map(|set| &set.why));
        self.lacks.get_or_insert_with(lacks).clone()
    }
}

impl State {
    /// It is known that the request fits nowhere: nothing was freed since the nodes were asked.
    pub(crate) fn is_known_infeasible(&self, spec: &SpecRow) -> bool {
        let is_current = |all: &Verdicts| spec.stays_out() || all.others == self.others_at(spec);
        let says_no = |all: &Verdicts| all.fits == 0 && is_current(all);
        self.verdict_cache.at == Some(self.capacity_version)
            && spec.is_assigned_at_once()
            && spec.verdicts.as_deref().is_some_and(says_no)
    }

    /// Something else whenever a count of other pods has moved that the request asks about, or,
    /// for one that is spread or asks uncounted pods, a node that may have a domain.
    fn others_at(&self, spec: &SpecRow) -> OthersVersion {
        let Some((asks, others)) = spec.asks.as_deref().zip(spec.spec.others.as_deref()) else {
            return OthersVersion::default();
        };
        let changed = asks
            .asked()
            .filter_map(|key| Some(self.pod_counts.get(key)?.changed));
        let closed = others.subject.as_ref();
        let closed = closed.map(|subject| self.closed_changed(subject));
        let closed = closed.unwrap_or_default();
        let [_, moved] = self.pod_counts.changed();
        // A node with other labels has its pods in other domains; of counts that is a move.
        let uncounted = self.asks_uncounted(asks);
        let by_nodes = uncounted || spec.is_spread();
        let own = [
            changed.max().unwrap_or(0),
            if uncounted { moved } else { 0 },
            if by_nodes { self.nodes_changed } else { 0 },
        ];
        (own, closed)
    }

    /// Whether the request fits somewhere, now or later, as of the last time that the nodes
    /// were asked; asks them if that is no longer true. True where it is not known yet. Not inside
    /// a trial.
    pub(crate) fn fits_somewhere(&mut self, key: SpecKey, config: &Config) -> bool {
        self.judge(key, config);
        let verdicts = self.specs.get(key).and_then(|row| row.verdicts.as_ref());
        verdicts.is_none_or(|all| all.fits > 0)
    }

    /// What makes the request's reason another one. `None`: it has not asked the nodes yet.
    pub(crate) fn lacks(&mut self, key: SpecKey, config: &Config) -> Option<ReasonKey> {
        self.judge(key, config);
        let all = self.specs.get_mut(key)?.verdicts.as_mut()?;
        Some(all.lacks())
    }

    /// Why it fits nowhere, in words. Nodes in order of name. `None`: as above.
    pub(crate) fn no_fit_line(&mut self, key: SpecKey, config: &Config) -> Option<Arc<str>> {
        self.judge(key, config);
        let spec = &*self.with_domains(self.specs.get(key)?);
        let all = spec.verdicts.as_ref()?;
        let counts = all.sets.iter().filter(|set| set.nodes > 0);
        let counts = counts.flat_map(|set| set.why.iter().map(|why| (why, set.nodes as usize)));
        let mut line = Line::of(counts);
        let of_cards = |set: &Reasons| set.why.iter().any(NodeReason::is_of_cards);
        let with_cards = all.sets.iter().filter(|set| of_cards(set));
        let mut left: usize = with_cards.map(|set| set.nodes as usize).sum();
        for (name, node) in &self.node_names {
            if left == 0 || line.is_full() {
                break;
            }
            let verdict = all.of.get(slot(*node)).copied().unwrap_or(ABSENT);
            let reasons = all.sets.get(usize::from(verdict));
            if !reasons.is_some_and(of_cards) {
                continue;
            }
            left -= 1;
            if let Err(no) = fit::node(self, spec, *node, config, false) {
                line.add(self, name.as_str(), &no.cards);
            }
        }
        line.hide(left);
        Some(line.end())
    }

    /// Some request has not asked the nodes yet: the next decision goes on.
    pub(crate) fn has_pending_verdicts(&self) -> bool {
        self.verdict_cache.put_off
    }

    /// The request has verdicts, and all are up to date; or it waits for the next decision.
    fn judge(&mut self, key: SpecKey, config: &Config) {
        // What a trial has placed takes room and gives none: who fits nowhere still does. And
        // what is found out in one may not hold after it.
        if self.is_tentative() {
            return;
        }
        self.refresh_verdicts(config);
        let Some(row) = self.specs.get_mut(key) else {
            return;
        };
        if let Some(all) = &mut row.verdicts {
            all.asked = true;
            return;
        }
        // Thousands of new requests must not delay a decision: the rest is asked in the next one.
        let nodes = u64::try_from(self.nodes.len()).unwrap_or(u64::MAX);
        if self.verdict_cache.looks > LOOKS {
            self.verdict_cache.put_off = true;
            return;
        }
        let looks = nodes.saturating_add(self.refresh_domains(key));
        self.verdict_cache.looks = self.verdict_cache.looks.saturating_add(looks);
        let Some(row) = self.specs.get(key) else {
            return;
        };
        let mut all = Verdicts {
            asked: true,
            others: self.others_at(row),
            ..Verdicts::default()
        };
        for node in self.nodes.keys() {
            all.set(slot(node), fit::why(self, row, node, config));
        }
        if let Some(row) = self.specs.get_mut(key) {
            row.verdicts = Some(Box::new(all));
            self.verdict_cache.specs.push(key);
        }
    }

    /// Drops the verdicts of requests that were not used in the last decision.
    pub(crate) fn drop_verdicts(&mut self) {
        self.verdict_cache.looks = 0;
        self.verdict_cache.put_off = false;
        let specs = &mut self.specs;
        self.verdict_cache.specs.retain(|key| {
            let Some(row) = specs.get_mut(*key) else {
                return false;
            };
            let asked = row
                .verdicts
                .as_mut()
                .is_some_and(|all| std::mem::take(&mut all.asked));
            if !asked {
                row.verdicts = None;
            }
            asked
        });
    }

    /// Asks the nodes again that were touched. Not inside a trial that has moved anything.
    pub(crate) fn refresh_verdicts(&mut self, config: &Config) {
        debug_assert!(!self.is_tentative(), "a trial may be undone");
        self.verdict_cache.at = Some(self.capacity_version);
        if self.verdict_cache.volumes != self.volumes_version {
            self.verdict_cache.volumes = self.volumes_version;
            let rows = &mut self.specs;
            self.verdict_cache.specs.retain(|key| {
                let row = rows.get_mut(*key).filter(|row| !row.spec.claims.is_empty());
                row.is_none_or(|row| {
                    row.verdicts = None;
                    false
                })
            });
        }
        if std::mem::replace(&mut self.verdict_cache.devices, self.devices.version)
            != self.devices.version
        {
            let rows = &mut self.specs;
            self.verdict_cache.specs.retain(|key| {
                let row = rows
                    .get_mut(*key)
                    .filter(|row| !row.spec.devices.is_empty());
                row.is_none_or(|row| {
                    row.verdicts = None;
                    false
                })
            });
        }
        self.forget_moved_relations();
        let mut dirty = std::mem::take(&mut self.verdict_cache.dirty);
        // Those that are gone first: another may have their slot.
        dirty.sort_by_key(|key| self.nodes.contains_key(*key));
        let mut specs = std::mem::take(&mut self.verdict_cache.specs);
        let mut moved = Vec::with_capacity(dirty.len());
        for node in dirty.drain(..) {
            let old = self.verdict_cache.basis.get(node).copied();
            let new = self.basis(node);
            match new {
                Some(new) => drop(self.verdict_cache.basis.insert(node, new)),
                None => drop(self.verdict_cache.basis.remove(node)),
            }
            if let Some(row) = self.nodes.get_mut(node) {
                row.is_dirty = false;
            }
            moved.push((node, old, new));
        }
        let mut put_off = Vec::new();
        for key in &specs {
            for (node, old, new) in &moved {
                let Some(row) = self.specs.get(*key) else {
                    break;
                };
                if let (Some(old), Some(new)) = (old, new)
                    && is_unchanged_for(row, old, new)
                {
                    continue;
                }
                // A request that depends on many other pods is asked again in a later decision.
                if self.verdict_cache.looks > LOOKS && row.spec.others.is_some() {
                    put_off.push(*key);
                    break;
                }
                let looks = self.refresh_domains(*key);
                self.verdict_cache.looks = self.verdict_cache.looks.saturating_add(looks);
                let Some(row) = self.specs.get(*key) else {
                    break;
                };
                let verdict = fit::why(self, row, *node, config);
                if let Some(row) = self.specs.get_mut(*key)
                    && let Some(all) = &mut row.verdicts
                {
                    all.set(slot(*node), verdict);
                }
            }
        }
        for key in put_off {
            specs.retain(|other| *other != key);
            if let Some(row) = self.specs.get_mut(key) {
                row.verdicts = None;
            }
        }
        self.verdict_cache.dirty = dirty;
        self.verdict_cache.specs = specs;
        if config.verify {
            self.verify_verdicts(config);
        }
    }

    /// Others may have moved far from every node that was touched: all nodes are asked again.
    fn forget_moved_relations(&mut self) {
        let at = (self.pod_counts.changed(), self.nodes_changed);
        if std::mem::replace(&mut self.verdict_cache.others, at) == at {
            return;
        }
        let specs = std::mem::take(&mut self.verdict_cache.specs);
        let stays = |key: &SpecKey| {
            let row = self.specs.get(*key);
            row.is_none_or(|row| {
                let all = row.verdicts.as_ref();
                all.is_none_or(|all| all.others == self.others_at(row))
            })
        };
        let (stay, gone): (Vec<_>, Vec<_>) = specs.into_iter().partition(stays);
        for key in gone {
            if let Some(row) = self.specs.get_mut(key) {
                row.verdicts = None;
            }
        }
        self.verdict_cache.specs = stay;
    }

    /// All of them again, from the state alone.
    fn verify_verdicts(&mut self, config: &Config) {
        let mut wrong = false;
        for key in &self.verdict_cache.specs {
            let Some((row, all)) = self
                .specs
                .get(*key)
                .and_then(|row| Some((row, row.verdicts.as_ref()?)))
            else {
                continue;
            };
            let mut fits = 0;
            for node in self.nodes.keys() {
                let known = all.of.get(slot(node)).copied().unwrap_or(ABSENT);
                let verdict = fit::why(self, row, node, config);
                fits += u32::from(verdict == Some(Ok(())));
                wrong |= match verdict {
                    None => known != ABSENT,
                    Some(Ok(())) => known != FITS,
                    Some(Err(why)) => {
                        let set = all.sets.get(usize::from(known));
                        set.is_none_or(|set| set.why != why || set.nodes == 0)
                    }
                };
                let full = fit::node(self, row, node, config, false);
                let is_announced = self.nodes.get(node).is_some_and(|row| row.node.is_some());
                wrong |= is_announced
                    && full.map(drop).map_err(|no| no.why)
                        != fit::why(self, row, node, config).unwrap_or(Ok(()));
            }

            wrong |= fits != all.fits;
        }
        if wrong {
            self.contradicts("what a node says to a request is not what is known of it");
        }
    }

    fn basis(&self, key: NodeKey) -> Option<VerdictInputs> {
        let row = self.nodes.get(key)?;
        let node = row.node.as_ref()?;
        let used = self.node_use.get(key).copied().unwrap_or_default();
        let signed = |amount: u128| i128::try_from(amount).unwrap_or(i128::MAX);
        let left = |has: u64, used: u128, leaving: u128, promised: u128| {
            signed(u128::from(has) + leaving) - signed(used + promised)
        };
        let (own, leaving, promised) = (used.used, used.releasing, used.promised);
        Some(VerdictInputs {
            facts: row.facts,
            parts: row.parts,
            left: [
                left(node.pods, own.pods, leaving.pods, promised.pods),
                left(node.cpu.0, own.cpu, leaving.cpu, promised.cpu),
                left(node.memory.0, own.memory, leaving.memory, promised.memory),
                i128::from(free::whole_count(self, key).later),
            ],
        })
    }
}

/// Between the two nothing has changed that the request could notice.
fn is_unchanged_for(row: &SpecRow, old: &VerdictInputs, new: &VerdictInputs) -> bool {
    let spec = &row.spec;
    if old.facts != new.facts || !spec.claims.is_empty() || spec.others.is_some() {
        return false;
    }
    let counted = [
        spec.devices.is_empty(),
        spec.extended.is_empty(),
        spec.ports.is_empty(),
        spec.attachments.is_empty(),
    ];
    if row.shares || counted.contains(&false) {
        return old == new;
    }
    let wanted = [
        1,
        i128::from(spec.cpu.0),
        i128::from(spec.memory.0),
        i128::from(row.whole),
    ];
    let has = |left: &[i128; 4]| {
        let mut has = [false; 4];
        for (has, (left, wanted)) in has.iter_mut().zip(left.iter().zip(wanted)) {
            *has = *left >= wanted;
        }
        has
    };
    has(&old.left) == has(&new.left)
}
