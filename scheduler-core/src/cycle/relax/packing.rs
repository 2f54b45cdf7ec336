//! Where every victim must have a place again, the shares must be packed in another way so that one
//! more fits. Evaluated for all permitted jobs where they are few, and for each set of victims before
//! it is tried.
//!
//! Moving changes only the cards of the pods that are moved; every other card can only become fuller.
//! A share that fits nowhere now therefore needs one of those cards. Whole GPUs that are missing on a
//! node need as many of its cards, and every movable pod that would fit nowhere else needs one as
//! well. All of these are packed here into what the cards hold beside the pods that stay, each by its
//! nominal amount, or by the amount that it holds where that is less (it may stay where it is).
//! Everything else is relaxed: pods that could go elsewhere are not packed, and modes, client slots,
//! CPU and memory do not count.
//!
//! The packing is exact and small. With many movable pods, or after many steps without a result, the
//! answer is "perhaps".

use crate::cycle::Cycle;
use crate::cycle::relax::memory::{Bin, Cached, Item, Movable, Packing, PackingCache, Places};
use crate::cycle::relax::victim_filter::VictimFilter;
use crate::cycle::relax::{Asked, Relaxation};
use crate::cycle::search::VictimSet;
use crate::fit;
use crate::ledger::CardMemory;
use crate::model::{Amount, Ask, ContainerAsk, Mode};
use crate::state::card_use::CardSums;
use crate::state::hold::Hold;
use crate::state::keys::{CardKey, JobKey, NodeKey, SpecKey};
use crate::state::spec_row::SpecRow;
use crate::units::Mib;
use rustc_hash::FxHashSet;
use std::sync::Arc;

/// Most that are packed, and most steps of it.
const MOST: usize = 64;

const STEPS: u32 = 4096;

impl Packing {
    pub(in crate::cycle) fn known(&mut self, cycle: &Cycle) -> &mut PackingCache {
        let current = |known: &Cached<_>| known.is_current(cycle.state);
        let known = self.known.take().filter(current);
        let known = known.unwrap_or_else(|| Cached::of(cycle.state, PackingCache::default()));
        &mut self.known.insert(known).value
    }
}

impl Relaxation for Packing {
    fn name(&self) -> &'static str {
        "packing"
    }

    fn admits(&mut self, cycle: &Cycle, asked: &Asked) -> bool {
        let (filter, first) = (asked.query.filter, asked.query.first);
        let moves = filter == VictimFilter::Movable;
        let row = cycle.state.specs.get(first);
        if moves && asked.query.is_placed
            || !row.is_some_and(|row| cycle.everyone_stays(filter, row))
        {
            return true;
        }
        let known = self.known(cycle);
        if let Some(answer) = known.answers.get(&(first, filter)) {
            return *answer;
        }
        let movable = known.movable.clone().filter(|_| moves);
        let movable = movable.unwrap_or_else(|| {
            let jobs = cycle.permitted_jobs(filter, None, MOST + 1);
            Arc::new(cycle.movable_pods(&jobs))
        });
        if moves {
            known.movable = Some(Arc::clone(&movable));
        }
        let answer = cycle.could_be_arranged(first, &movable, &mut known.places);
        known.answers.insert((first, filter), answer);
        answer
    }

    fn admits_set(&mut self, cycle: &Cycle, set: &VictimSet) -> bool {
        let first = set.search.tasks.first();
        let first = first.and_then(|task| Some(cycle.state.tasks.get(*task)?.spec));
        let Some(first) = first.filter(|_| set.search.rules.filter() == VictimFilter::Movable)
        else {
            return true;
        };
        let units = set.scenario.by_job();
        let jobs: Vec<JobKey> = units.iter().map(|unit| unit.job).collect();
        let movable = cycle.movable_pods(&jobs);
        cycle.could_be_arranged(first, &movable, &mut self.known(cycle).places)
    }
}

impl Cycle<'_> {
    /// False: moving these pods, all of which must have a place afterwards, makes no room for the
    /// first pod of that request. `places`: what is known of the pods that have a place as it is,
    /// while nothing has moved.
    fn could_be_arranged(
        &self,
        spec: SpecKey,
        movable_pods: &Movable,
        places: &mut Places,
    ) -> bool {
        let row = self.state.specs.get(spec);
        if movable_pods.perhaps || row.is_some_and(SpecRow::depends_on_others) {
            return true;
        }
        let Some(mut items) = self.own_items(spec, movable_pods, places) else {
            return true;
        };
        for (spec, item) in &movable_pods.items {
            let elsewhere = match item {
                Item::Whole => movable_pods.counted || self.state.caches.rooms.whole > 0,
                Item::Part(amount, _) => self.has_place(*spec, *amount, movable_pods, places),
            };
            if !elsewhere {
                items.push(*item);
            }
        }
        let fractions = items
            .iter()
            .any(|item| matches!(item, Item::Part(Amount::Fraction(_), _)));
        let yardstick = self.smallest();
        items.sort_by_key(|item| {
            std::cmp::Reverse(match item {
                Item::Whole => u64::MAX,
                Item::Part(amount, most) => yardstick.nominal(*amount).min(*most).0,
            })
        });
        let mut packing = PackingSearch {
            items: &items,
            fractions,
            seen: FxHashSet::default(),
            steps: 0,
        };
        let mut bins = movable_pods.bins.clone();
        bins.sort_unstable();
        packing.fits(0, &bins)
    }

    /// What the first pod needs of the cards that are left. `None`: perhaps nothing,
    /// or there is no answer.
    fn own_items(
        &self,
        spec: SpecKey,
        movable_pods: &Movable,
        places: &mut Places,
    ) -> Option<Vec<Item>> {
        let row = self.state.specs.get(spec)?;
        if let Some(own) = one_share(row) {
            let has_place = self.has_place(spec, own, movable_pods, places);
            return (!has_place).then(|| vec![Item::Part(own, Mib(u64::MAX))]);
        }
        let only_whole = row.whole > 0 && !row.shares && row.mig_nano == 0;
        if !only_whole || movable_pods.counted {
            return None;
        }
        // All of one node: its free resources, and the remaining cards.
        let rooms = &self.state.caches.rooms;
        let free = |node: &NodeKey| rooms.of(*node).whole.max(0);
        let most = movable_pods.nodes.iter().map(free).max().unwrap_or(0);
        let missing = usize::try_from(i64::from(row.whole) - most).ok()?;
        let takes = |(_, rank): &(i64, u32)| {
            let node = rooms.node(*rank);
            node.is_some_and(|node| fit::node(self.state, row, node, self.config, true).is_ok())
        };
        let all = rooms.by_whole.range((i64::from(row.whole), 0)..);
        let elsewhere = missing == 0
            || *places
                .entry(spec)
                .or_insert_with(|| all.into_iter().any(takes));
        (!elsewhere).then(|| vec![Item::Whole; missing])
    }

    /// Some card takes it as it is: by the node's own rules on a node that no pod leaves, and by
    /// its size on the others.
    fn has_place(
        &self,
        spec: SpecKey,
        amount: Amount,
        movable_pods: &Movable,
        places: &mut Places,
    ) -> bool {
        let Some(row) = self.state.specs.get(spec) else {
            return true;
        };
        let least = self.smallest().nominal(amount).0;
        let has_room = |node: &NodeKey| self.state.caches.rooms.of(*node).most >= least;
        movable_pods.nodes.iter().any(has_room)
            || *places
                .entry(spec)
                .or_insert_with(|| self.some_node_takes(row, amount))
    }

    /// Some node takes the share as it is.
    pub(super) fn some_node_takes(&self, row: &SpecRow, amount: Amount) -> bool {
        let least = self.smallest().nominal(amount).0;
        let rooms = &self.state.caches.rooms;
        rooms.by_most.range((least, 0)..).any(|(_, rank)| {
            let node = rooms.node(*rank);
            node.is_some_and(|node| fit::node(self.state, row, node, self.config, true).is_ok())
        })
    }

    /// A card of the smallest size.
    fn smallest(&self) -> CardMemory {
        CardMemory {
            total: Mib(u64::try_from(self.shares.smallest_card).unwrap_or(0)),
            ..CardMemory::default()
        }
    }

    /// These jobs, as they are now.
    fn movable_pods(&self, jobs: &[JobKey]) -> Movable {
        if jobs.len() <= MOST {
            return self.pods_of(jobs);
        }
        Movable {
            perhaps: true,
            ..Movable::default()
        }
    }

    fn pods_of(&self, jobs: &[JobKey]) -> Movable {
        let mut movable_pods = Movable::default();
        let mut gone: Vec<(CardKey, CardSums)> = Vec::new();
        let tasks = jobs
            .iter()
            .filter_map(|job| self.state.jobs.get(*job))
            .flat_map(|row| row.tasks.iter());
        for task in tasks {
            let (Some(cell), Some(spec)) = (
                self.state.cells.tasks.get(*task),
                self.state.tasks.get(*task).map(|row| row.spec),
            ) else {
                continue;
            };
            let Some(node) = cell.node.filter(|_| cell.status.is_allocated()) else {
                continue;
            };
            movable_pods.nodes.insert(node);
            let Some(row) = self.state.specs.get(spec) else {
                continue;
            };
            movable_pods.counted |= row.gpus() > 0 && cell.holds().is_empty();
            let is_as_asked = cell.holds().is_empty() || is_as_asked(&row.spec.gpus, cell.holds());
            let in_turn = cell.holds().iter().any(|hold| hold.init);
            if !is_as_asked || in_turn || row.depends_on_others() {
                // On its current node it takes something else than elsewhere, what it gives back
                // makes places on other nodes, or its containers share their places.
                movable_pods.perhaps = true;
                return movable_pods;
            }
            for hold in cell.holds() {
                let mut asks = row.spec.gpus.iter();
                let asked = asks.find(|ask| ask.container == hold.container);
                let item = match asked.map(|asked| &asked.ask) {
                    Some(Ask::Share(share)) => Item::Part(share.amount, hold.limit),
                    Some(Ask::Whole(_)) | None => Item::Whole,
                };
                movable_pods.items.push((spec, item));
                let at = gone.iter().position(|(card, _)| *card == hold.card);
                let at = at.unwrap_or_else(|| {
                    gone.push((hold.card, CardSums::default()));
                    gone.len() - 1
                });
                let sums = &mut gone[at].1;
                sums.add(hold.limit, hold.top(), hold.nominal, hold.mode);
            }
            if movable_pods.items.len() > MOST {
                movable_pods.perhaps = true;
                return movable_pods;
            }
        }
        for (card, gone) in gone {
            let (Some(row), Some(used)) =
                (self.state.cards.get(card), self.state.cells.cards.get(card))
            else {
                movable_pods.perhaps = true;
                return movable_pods;
            };
            let mut stays = used.after();
            if stays.elsewhere() > 0 {
                // Its holders have other cards too, and which is not known.
                movable_pods.perhaps = true;
                return movable_pods;
            }
            stays.limits = stays.limits.saturating_sub(gone.limits);
            stays.nominal = stays.nominal.saturating_sub(gone.nominal);
            for (count, gone) in stays.modes.iter_mut().zip(gone.modes) {
                *count = count.saturating_sub(gone);
            }
            let mut bin = Bin::new(fit::card::memory(row), stays);
            // They may stay, whatever has become of the card.
            bin.limits = bin
                .limits
                .max(u64::try_from(gone.limits).unwrap_or(u64::MAX));
            movable_pods.bins.push(bin);
        }
        movable_pods
    }
}

/// Each container holds as many cards as it asks for, and whole or not as it asks for them.
/// It does not where the pod was changed since, or another scheduler gave it something else.
fn is_as_asked(asks: &[ContainerAsk], holds: &[Hold]) -> bool {
    let as_asked = |asked: &ContainerAsk| {
        let held = || {
            holds
                .iter()
                .filter(|hold| hold.container == asked.container)
        };
        let (cards, whole) = match &asked.ask {
            Ask::Whole(cards) => (*cards, true),
            Ask::Share(share) => (share.devices, false),
        };
        held().count() == cards as usize
            && held().all(|hold| (hold.mode == Mode::Exclusive) == whole)
    };
    let asks_for = |hold: &Hold| asks.iter().any(|asked| asked.container == hold.container);
    asks.iter().all(as_asked) && holds.iter().all(asks_for)
}

/// Its request, if that is one share of one card and no other GPU.
pub(super) fn one_share(row: &SpecRow) -> Option<Amount> {
    if row.whole > 0 || row.mig_nano > 0 {
        return None;
    }
    match row.spec.gpus.as_slice() {
        [ask] => match &ask.ask {
            Ask::Share(share) if share.devices == 1 => Some(share.amount),
            _ => None,
        },
        _ => None,
    }
}

/// A search through all ways to put them onto cards, the largest first.
struct PackingSearch<'a> {
    pub(super) items: &'a [Item],
    pub(super) fractions: bool,
    /// From which one on, and what the cards have left, where there was no way.
    seen: FxHashSet<(usize, Vec<Bin>)>,
    pub(in crate::cycle) steps: u32,
}

impl PackingSearch<'_> {
    /// True also where it takes too long to know.
    fn fits(&mut self, from: usize, bins: &[Bin]) -> bool {
        let Some(item) = self.items.get(from) else {
            return true;
        };
        self.steps += 1;
        if self.steps > STEPS {
            return true;
        }
        let mut last = None;
        for (index, bin) in bins.iter().enumerate() {
            // Cards that are alike are one choice.
            if last.replace(*bin) == Some(*bin) {
                continue;
            }
            let Some(with) = bin.with(*item, self.fractions) else {
                continue;
            };
            let mut next = bins.to_vec();
            next[index] = with;
            next.sort_unstable();
            if self.seen.contains(&(from + 1, next.clone())) {
                continue;
            }
            if self.fits(from + 1, &next) {
                return true;
            }
            self.seen.insert((from + 1, next));
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::NanoGpu;

    fn bin(mib: u64) -> Bin {
        Bin {
            total: 48,
            limits: mib,
            nominal: mib,
            empty: false,
        }
    }

    fn fits(items: &[u64], bins: &[u64]) -> bool {
        let mut items: Vec<Item> = items
            .iter()
            .map(|mib| Item::Part(Amount::Memory(Mib(*mib)), Mib(u64::MAX)))
            .collect();
        items.reverse();
        let mut bins: Vec<Bin> = bins.iter().map(|mib| bin(*mib)).collect();
        bins.sort_unstable();
        PackingSearch {
            items: &items,
            fractions: false,
            seen: FxHashSet::default(),
            steps: 0,
        }
        .fits(0, &bins)
    }

    #[test]
    fn shares_that_cannot_be_arranged_are_known() {
        assert!(
            !fits(&[8, 20, 20], &[26, 26]),
            "none can go for the small one"
        );
        assert!(fits(&[6, 20, 20], &[26, 26]));
        assert!(fits(&[6, 12, 12, 20], &[26, 26]));
        assert!(!fits(&[8, 8, 12, 12, 20], &[26, 26]));
        assert!(!fits(&[8], &[]));
    }

    #[test]
    fn many_alike_take_few_steps() {
        let (items, bins) = (vec![20; 60], vec![26; 59]);
        assert!(!fits(&items, &bins));
    }

    #[test]
    fn a_whole_card_needs_one_that_nobody_is_on() {
        let free = Bin {
            empty: true,
            ..bin(48)
        };
        assert_eq!(bin(48).with(Item::Whole, false), None);
        let taken = free.with(Item::Whole, false).unwrap();
        let small = Item::Part(Amount::Memory(Mib(1)), Mib(u64::MAX));
        assert_eq!(taken.with(small, true), None);
    }

    #[test]
    fn the_last_fraction_may_get_less_than_it_is_worth() {
        let card = Bin {
            limits: 46,
            nominal: 48,
            ..bin(0)
        };
        let half = Item::Part(Amount::Fraction(NanoGpu(500_000_000)), Mib(u64::MAX));
        let one = card.with(half, true).unwrap();
        assert!(one.with(half, true).is_some());
        assert!(one.with(half, false).is_none());
    }
}
