//! Which n of a node's free cards a pod gets: the best `NVLink` set first, then a single NUMA node,
//! then the set that leaves the best remaining cards, then the node's own order.
//!
//! Input: the free cards in the node's order. Output: n of them, in the same order.

use crate::model::Card;
use crate::state::State;
use crate::state::keys::CardKey;

/// Above this number of sets, cards are added one by one instead of trying every set.
const MOST_SETS: u64 = 20_000;

/// `wanted` of `free`, which has at least as many.
pub(crate) fn choose(state: &State, free: &[CardKey], wanted: usize) -> Vec<CardKey> {
    if wanted >= free.len() {
        return free.to_vec();
    }
    let cards: Vec<&Card> = free
        .iter()
        .filter_map(|key| state.cards.get(*key)?.card.as_ref())
        .collect();
    if cards.len() != free.len() {
        return free.iter().copied().take(wanted).collect();
    }
    let picked = pick(&cards, wanted);
    picked.into_iter().map(|index| free[index]).collect()
}

/// The same over the cards themselves.
pub(crate) fn pick(cards: &[&Card], wanted: usize) -> Vec<usize> {
    if are_alike(cards) {
        return (0..wanted).collect();
    }
    if sets(cards.len() as u64, wanted as u64) > MOST_SETS {
        return greedy(cards, wanted);
    }
    let mut best: Option<(Cost, Vec<usize>)> = None;
    let mut set: Vec<usize> = (0..wanted).collect();
    loop {
        let cost = cost(cards, &set);
        if best.as_ref().is_none_or(|(least, _)| cost < *least) {
            best = Some((cost, set.clone()));
        }
        // The next set in order; the last one ends it.
        let Some(moving) = (0..wanted)
            .rev()
            .find(|index| set[*index] < cards.len() - wanted + index)
        else {
            break;
        };
        set[moving] += 1;
        for index in moving + 1..wanted {
            set[index] = set[index - 1] + 1;
        }
    }
    best.map(|(_, set)| set).unwrap_or_default()
}

/// All sets of so many of them cost the same, so that the first one is taken.
fn are_alike(cards: &[&Card]) -> bool {
    let plain = |card: &&Card| card.nvlink_peers.is_empty();
    let alike =
        |pair: &[&Card]| (pair[0].nvswitch, pair[0].numa) == (pair[1].nvswitch, pair[1].numa);
    cards.iter().all(plain) && cards.windows(2).all(alike)
}

/// Least is best: pairs without a link, NUMA nodes, links cut, NUMA groups cut.
type Cost = (usize, usize, usize, usize);

fn cost(cards: &[&Card], set: &[usize]) -> Cost {
    let mut unlinked = 0;
    let mut numa: Vec<Option<u32>> = Vec::new();
    for (position, one) in set.iter().enumerate() {
        numa.push(cards[*one].numa);
        for other in &set[..position] {
            unlinked += usize::from(!linked(cards[*one], cards[*other]));
        }
    }
    numa.sort_unstable();
    numa.dedup();
    let mut links_cut = 0;
    let mut groups_cut = 0;
    for rest in (0..cards.len()).filter(|index| !set.contains(index)) {
        for one in set {
            links_cut += usize::from(linked(cards[rest], cards[*one]));
            groups_cut += usize::from(cards[rest].numa == cards[*one].numa);
        }
    }
    (unlinked, numa.len(), links_cut, groups_cut)
}

fn linked(one: &Card, other: &Card) -> bool {
    one.nvswitch && other.nvswitch
        || one.nvlink_peers.contains(&other.uuid)
        || other.nvlink_peers.contains(&one.uuid)
}

fn greedy(cards: &[&Card], wanted: usize) -> Vec<usize> {
    let mut set: Vec<usize> = Vec::new();
    while set.len() < wanted {
        let next = (0..cards.len())
            .filter(|index| !set.contains(index))
            .min_by_key(|index| {
                let mut with = set.clone();
                with.push(*index);
                cost(cards, &with)
            });
        let Some(next) = next else {
            break;
        };
        set.push(next);
    }
    set.sort_unstable();
    set
}

fn sets(of: u64, wanted: u64) -> u64 {
    let mut count = 1_u64;
    for step in 0..wanted.min(of) {
        count = count.saturating_mul(of - step) / (step + 1);
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::GpuUuid;
    use std::collections::BTreeSet;

    fn switched(count: u32) -> Vec<Card> {
        (0..count)
            .map(|index| {
                let mut card = Card::named(&format!("GPU-{index}"), index, "H100", 80_000);
                card.nvswitch = true;
                card.numa = Some(index / (count / 2));
                card
            })
            .collect()
    }

    /// Pairs 0-1, 2-3, ... with a bridge, half of them on each socket.
    fn pairs(count: u32) -> Vec<Card> {
        (0..count)
            .map(|index| {
                let mut card = Card::named(&format!("GPU-{index}"), index, "A40", 48_000);
                card.nvlink_peers = vec![GpuUuid::new(format!("GPU-{}", index ^ 1))];
                card.numa = Some(index / (count / 2));
                card
            })
            .collect()
    }

    fn pick_of(cards: &[Card], free: &[usize], wanted: usize) -> Vec<usize> {
        let free_cards: Vec<&Card> = free.iter().map(|index| &cards[*index]).collect();
        pick(&free_cards, wanted)
            .into_iter()
            .map(|index| free[index])
            .collect()
    }

    #[test]
    fn of_a_switch_one_numa_node_is_taken() {
        let cards = switched(8);
        let all: Vec<usize> = (0..8).collect();
        assert_eq!(pick_of(&cards, &all, 4), [0, 1, 2, 3]);
        assert_eq!(pick_of(&cards, &all, 2), [0, 1]);
        assert_eq!(
            pick_of(&cards, &[0, 3, 4, 5, 6], 2),
            [0, 3],
            "the smaller remainder is used up"
        );
        assert_eq!(pick_of(&cards, &[1, 4, 5, 6, 7], 4), [4, 5, 6, 7]);
    }

    /// Among cards that are alike no set is tried: another one is not better.
    #[test]
    fn of_cards_that_are_alike_the_first_are_taken() {
        for nvswitch in [false, true] {
            let mut cards = switched(8);
            for card in &mut cards {
                (card.nvswitch, card.numa) = (nvswitch, Some(0));
            }
            let of: Vec<&Card> = cards.iter().collect();
            assert!(are_alike(&of));
            let costs = (0..6).map(|first| cost(&of, &[first, first + 1, 7]));
            assert_eq!(costs.collect::<BTreeSet<Cost>>().len(), 1);
            assert_eq!(pick(&of, 3), [0, 1, 2]);
        }
        let apart = pairs(8);
        assert!(!are_alike(&apart.iter().collect::<Vec<&Card>>()));
        let switched = switched(8);
        assert!(!are_alike(&switched.iter().collect::<Vec<&Card>>()));
    }

    #[test]
    fn of_pairs_whole_pairs_are_taken() {
        let cards = pairs(8);
        let all: Vec<usize> = (0..8).collect();
        assert_eq!(pick_of(&cards, &all, 2), [0, 1]);
        assert_eq!(pick_of(&cards, &all, 4), [0, 1, 2, 3]);
        assert_eq!(pick_of(&cards, &[0, 2, 3, 5], 2), [2, 3]);
    }

    #[test]
    fn a_single_card_breaks_no_pair() {
        let cards = pairs(8);
        assert_eq!(pick_of(&cards, &[0, 1, 2, 3, 5], 1), [5]);
    }

    #[test]
    fn many_cards_do_not_try_every_set() {
        let cards = switched(64);
        let all: Vec<usize> = (0..64).collect();
        assert_eq!(pick_of(&cards, &all, 32).len(), 32);
    }
}
