//! Asks nodes for the verdicts that [`VerdictCache`](crate::state::verdicts::VerdictCache) keeps, and says from them what a request lacks.

use crate::config::Config;
use crate::fit::{self, free};
use crate::reason::{Line, NodeReason, ReasonKey};
use crate::state::State;
use crate::state::keys::{NodeKey, SpecKey};
use crate::state::spec_row::SpecRow;
use crate::state::verdicts::{ABSENT, FITS, OthersVersion, Reasons, VerdictInputs, Verdicts, slot};
use std::sync::Arc;

/// Most nodes that new requests ask in one decision: some 100 ms.
const LOOKS: u64 = 400_000;

impl State {
    /// It is known that the request fits nowhere: nothing was freed since the nodes were asked.
    pub(crate) fn is_known_infeasible(&self, spec: &SpecRow) -> bool {
        let is_current = |all: &Verdicts| spec.stays_out() || all.others == self.others_at(spec);
        let says_no = |all: &Verdicts| all.fits == 0 && is_current(all);
        self.caches.verdicts.at == Some(self.changes.capacity)
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
            .filter_map(|key| Some(self.cells.pod_counts.get(key)?.changed));
        let closed = others.subject.as_ref();
        let closed = closed.map(|subject| self.closed_changed(subject));
        let closed = closed.unwrap_or_default();
        let [_, moved] = self.cells.pod_counts.changed();
        // A node with other labels has its pods in other domains; of counts that is a move.
        let uncounted = self.asks_uncounted(asks);
        let by_nodes = uncounted || spec.is_spread();
        let own = [
            changed.max().unwrap_or(0),
            if uncounted { moved } else { 0 },
            if by_nodes { self.changes.nodes } else { 0 },
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
        for (name, node) in &self.names.nodes {
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
                line.add(name.as_str(), &no.cards, &self.cards);
            }
        }
        line.hide(left);
        Some(line.end())
    }

    /// Some request has not asked the nodes yet: the next decision goes on.
    pub(crate) fn has_pending_verdicts(&self) -> bool {
        self.caches.verdicts.put_off
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
        if self.caches.verdicts.looks > LOOKS {
            self.caches.verdicts.put_off = true;
            return;
        }
        let looks = nodes.saturating_add(self.refresh_domains(key));
        self.caches.verdicts.looks = self.caches.verdicts.looks.saturating_add(looks);
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
            self.caches.verdicts.specs.push(key);
        }
    }

    /// Drops the verdicts of requests that were not used in the last decision.
    pub(crate) fn drop_verdicts(&mut self) {
        self.caches.verdicts.looks = 0;
        self.caches.verdicts.put_off = false;
        let specs = &mut self.specs;
        self.caches.verdicts.specs.retain(|key| {
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
        self.caches.verdicts.at = Some(self.changes.capacity);
        if self.caches.verdicts.volumes != self.changes.volumes {
            self.caches.verdicts.volumes = self.changes.volumes;
            let rows = &mut self.specs;
            self.caches.verdicts.specs.retain(|key| {
                let row = rows.get_mut(*key).filter(|row| !row.spec.claims.is_empty());
                row.is_none_or(|row| {
                    row.verdicts = None;
                    false
                })
            });
        }
        if std::mem::replace(&mut self.caches.verdicts.devices, self.devices.version)
            != self.devices.version
        {
            let rows = &mut self.specs;
            self.caches.verdicts.specs.retain(|key| {
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
        let mut dirty = std::mem::take(&mut self.caches.verdicts.dirty);
        // Those that are gone first: another may have their slot.
        dirty.sort_by_key(|key| self.nodes.contains_key(*key));
        let mut specs = std::mem::take(&mut self.caches.verdicts.specs);
        let mut moved = Vec::with_capacity(dirty.len());
        for node in dirty.drain(..) {
            let old = self.caches.verdicts.basis.get(node).copied();
            let new = self.basis(node);
            match new {
                Some(new) => drop(self.caches.verdicts.basis.insert(node, new)),
                None => drop(self.caches.verdicts.basis.remove(node)),
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
                if self.caches.verdicts.looks > LOOKS && row.spec.others.is_some() {
                    put_off.push(*key);
                    break;
                }
                let looks = self.refresh_domains(*key);
                self.caches.verdicts.looks = self.caches.verdicts.looks.saturating_add(looks);
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
        self.caches.verdicts.dirty = dirty;
        self.caches.verdicts.specs = specs;
        if config.verify {
            self.verify_verdicts(config);
        }
    }

    /// Others may have moved far from every node that was touched: all nodes are asked again.
    fn forget_moved_relations(&mut self) {
        let at = (self.cells.pod_counts.changed(), self.changes.nodes);
        if std::mem::replace(&mut self.caches.verdicts.others, at) == at {
            return;
        }
        let specs = std::mem::take(&mut self.caches.verdicts.specs);
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
        self.caches.verdicts.specs = stay;
    }

    /// All of them again, from the state alone.
    fn verify_verdicts(&mut self, config: &Config) {
        let mut wrong = false;
        for key in &self.caches.verdicts.specs {
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
        let used = self.cells.nodes.get(key).copied().unwrap_or_default();
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
