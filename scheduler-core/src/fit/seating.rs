//! Which cards of a node the shares of one pod get: its containers are seated one after the other.

use crate::config::{Config, Placement};
use crate::fit::card;
use crate::ledger::Offer;
use crate::model::{Amount, ContainerAsk, Fence, Front, Mode, Pool, Share};
use crate::reason::{CardLine, CardReason};
use crate::state::State;
use crate::state::card_use::CardUse;
use crate::state::footprint::{self, Footprint};
use crate::state::hold::Hold;
use crate::state::keys::CardKey;
use crate::state::room::WholeCount;
use crate::state::rows::CardRow;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Tentative allocations while the containers of one pod are assigned one after the other.
#[derive(Default)]
pub(super) struct Tentative {
    /// What was assigned so far, in the order in which the containers start.
    pub(super) seated: Vec<Seated>,
    /// Whole cards that shares of this pod have opened.
    opened: i64,
}

/// One card of a container that has been assigned.
pub(super) struct Seated {
    /// The position of the container among those of the pod that ask for cards.
    place: usize,
    pub(super) hold: Hold,
    /// The card has room only once other pods have left.
    promised: bool,
}

impl Tentative {
    fn found(&self, state: &State, key: CardKey, place: usize, init: bool) -> Found {
        let card = state.cells.cards.get(key).copied().unwrap_or_default();
        let mut found = Found {
            all: card,
            at_once: card,
            own: None,
        };
        let own = || self.seated.iter().filter(move |one| one.hold.card == key);
        let Some(first) = own().next() else {
            return found;
        };
        found.own = Some(first.hold.mode);
        for promised in [false, true] {
            let part = || own().filter(move |one| one.promised == promised);
            let all = Footprint::of(part().map(|one| &one.hold)).sums;
            let others = part().map(|one| (one.place, &one.hold));
            let at_once = footprint::beside(others, place, init);
            for (used, takes) in [(&mut found.all, all), (&mut found.at_once, at_once)] {
                let sums = if promised {
                    &mut used.promised
                } else {
                    &mut used.held
                };
                *sums = sums.plus(takes);
            }
        }
        found
    }

    fn seat(&mut self, seated: Seated) {
        let at = self
            .seated
            .partition_point(|other| other.place <= seated.place);
        self.seated.insert(at, seated);
    }
}

/// The use of a card as a container finds it that is still to be assigned.
struct Found {
    /// The use including everything that other containers of the pod take.
    all: CardUse,
    /// The use including only what other containers of the pod take while this one runs.
    at_once: CardUse,
    /// The mode in which another container of the pod has the card. `None`: none has it.
    own: Option<Mode>,
}

impl Found {
    /// Returns true if the container would use the card in turn with others of its pod.
    fn in_turn(&self) -> bool {
        self.own.is_some() && self.all != self.at_once
    }
}

/// A container that asks for a share.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    /// Its place among those of the pod that ask for cards, in the order in which they start.
    pub(super) place: usize,
    pub(super) ask: &'a ContainerAsk,
    pub(super) share: &'a Share,
}

/// A card that would do for a share, and how good it is: larger first.
struct Candidate {
    pub(super) key: CardKey,
    offer: Offer,
    pub(super) now: bool,
    opens: bool,
    /// Opening it costs a whole GPU.
    costs_whole: bool,
    rank: Rank,
}

/// The rank of a candidate, larger is better. The first part is true if another container of the pod
/// has the card in turn: such a card costs less than any other. The second part says how well the
/// share fits on the card.
type Rank = (bool, (bool, bool, u128, bool, Reverse<u64>, bool));

/// What a card says to a share in one mode.
fn candidate(
    state: &State,
    key: CardKey,
    row: &CardRow,
    found: &Found,
    share: &Share,
    mode: Mode,
    placement: Placement,
) -> Result<Candidate, CardReason> {
    let used = found.all;
    let after = used.after();
    let offer_later = card::share(state, row, found.at_once.after(), share, mode)?;
    if found.in_turn() {
        beside_own(row, found, offer_later, mode)?;
    }
    let strong = card::fence(row, after, offer_later.top(), mode) > Fence::ClientLimit;
    // The kubelet permanently rejects a pod whose tokens it does not show (yet).
    let shown = row
        .card
        .as_ref()
        .is_none_or(|card| card.pool != Pool::WholeOnly);
    let offer_now = if shown {
        card::share(state, row, found.at_once.held, share, mode).ok()
    } else {
        None
    };
    let opens = after.holds() == 0;
    let whole = card::whole_usable(state, row).is_ok();
    let cap = card::memory(row).cap;
    let total = u128::from(card::memory(row).total.0).max(1);
    // The fullest first, with leaving pods counted, as KAI does. Of equally full ones the one that
    // is fuller after all leaving pods have ended.
    let full = |limits: u128| limits.saturating_mul(1_000_000) / total;
    let fullness = (full(used.held.limits + used.promised.limits) << 64)
        + full(after.limits).min(u64::MAX.into());
    Ok(Candidate {
        key,
        offer: offer_now.unwrap_or(offer_later),
        now: offer_now.is_some(),
        opens,
        costs_whole: opens && card::whole_in_time(state, row),
        rank: (
            found.in_turn(),
            match (opens, placement) {
                // Idle ones first, then those that are no whole GPU anyhow, then the smallest.
                (true, _) => (
                    placement == Placement::Spread,
                    false,
                    u128::from(used.holders() == 0),
                    !whole,
                    Reverse(cap.0),
                    false,
                ),
                (false, Placement::Spread) => (
                    false,
                    false,
                    u128::MAX - fullness,
                    false,
                    Reverse(0),
                    strong,
                ),
                // Where a share keeps to its limit by its server's word, and those on it still
                // do, before the fullest: no card is opened for it.
                (false, Placement::Binpack) => (true, strong, fullness, false, Reverse(0), false),
                (false, Placement::Fragmentation) => {
                    (true, false, fullness, false, Reverse(0), strong)
                }
            },
        ),
    })
}

/// Checks the rules that hold for all containers of a pod, even if they do not run at the same time:
/// a card is in one mode, and its server has one default limit.
fn beside_own(row: &CardRow, found: &Found, offer: Offer, mode: Mode) -> Result<(), CardReason> {
    if let Some(is) = found.own.filter(|is| *is != mode) {
        return Err(CardReason::InMode { is, wanted: mode });
    }
    let fence = card::fence(row, found.all.after(), offer.top(), mode);
    match row.card.as_ref().and_then(|card| card.minimum_fence) {
        Some(least) if fence < least => Err(CardReason::Fence { fence, least, mode }),
        _ => Ok(()),
    }
}

/// Seats the shares of a pod on the cards of one node, container by container.
pub(super) struct Seating<'a> {
    pub(super) state: &'a State,
    pub(super) config: &'a Config,
    /// The mode of shares that do not ask for one.
    pub(super) default: Mode,
    /// Whole GPUs of the node.
    pub(super) count: WholeCount,
    /// The pod is to be promised a place only.
    pub(super) promise: bool,
    pub(super) tentative: Tentative,
}

impl Seating<'_> {
    /// Seats one container's share. On failure, a line per card.
    pub(super) fn assign(
        &mut self,
        cards: &[CardKey],
        wanted: Wanted<'_>,
        assignment: &mut Assignment,
    ) -> Result<(), Vec<CardLine>> {
        let (state, config) = (self.state, self.config);
        let share = wanted.share;
        let devices = share.devices as usize;
        let mut found: BTreeMap<Mode, Vec<Candidate>> = BTreeMap::new();
        let mut order: Vec<Mode> = Vec::new();
        let mut lines = Vec::new();
        for key in cards {
            let Some(row) = state.cards.get(*key) else {
                continue;
            };
            let mut first_no = None;
            let mut fits = false;
            for mode in card::modes(share, row, self.default) {
                if !order.contains(&mode) {
                    order.push(mode);
                }
                match candidate(
                    state,
                    *key,
                    row,
                    &self
                        .tentative
                        .found(state, *key, wanted.place, wanted.ask.init),
                    share,
                    mode,
                    config.cards(),
                ) {
                    Ok(candidate) => {
                        found.entry(mode).or_default().push(candidate);
                        fits = true;
                    }
                    Err(no) => {
                        first_no.get_or_insert(no);
                    }
                }
            }
            if let (false, Some(no)) = (fits, first_no) {
                lines.push(CardLine::Card(*key, no));
            }
        }
        let whole_left =
            |count: i64| usize::try_from((count - self.tentative.opened).max(0)).unwrap_or(0);
        let picked = order.iter().find_map(|mode| {
            let mut candidates = found.remove(mode)?;
            // Stable: equals stay in the node's order.
            candidates.sort_by_key(|candidate| Reverse(candidate.rank));
            let mut whole = whole_left(self.count.later);
            candidates.retain(|candidate| {
                if candidate.costs_whole {
                    if whole == 0 {
                        return false;
                    }
                    whole -= 1;
                }
                true
            });
            (candidates.len() >= devices).then_some((*mode, candidates))
        });
        let Some((mode, mut candidates)) = picked else {
            if devices > 1 {
                lines.push(CardLine::OneMode(devices));
            }
            return Err(lines);
        };
        // KAI's `IsTaskAllocatable` for shares: whole GPUs free now, and cards that are
        // shared and will hold it.
        let joinable = candidates
            .iter()
            .filter(|candidate| !candidate.opens)
            .count();
        let free = candidates
            .iter()
            .filter(|candidate| candidate.opens && candidate.now && !candidate.costs_whole)
            .count();
        let now = assignment.allocatable && whole_left(self.count.now) + free + joinable >= devices;
        assignment.allocatable &= now;
        if self.promise || !now {
            // A promise uses resources that are being released before idle ones.
            let packs = config.cards() == Placement::Binpack;
            candidates.sort_by_key(|candidate| {
                let last = candidate.opens == packs && !candidate.rank.0;
                (last, candidate.opens && candidate.now)
            });
        }
        candidates.truncate(devices);
        assignment.now &= now && candidates.iter().all(|candidate| candidate.now);
        // A card that another container of this pod opens was not shared before.
        assignment.joins |= candidates.iter().any(|candidate| {
            !candidate.opens
                && state
                    .cells
                    .cards
                    .get(candidate.key)
                    .is_some_and(|used| used.after().holds() > 0)
        });
        self.take(wanted, mode, &candidates, !assignment.now);
        Ok(())
    }

    /// Notes the cards that the container gets in `mode`.
    fn take(&mut self, wanted: Wanted<'_>, mode: Mode, candidates: &[Candidate], promised: bool) {
        let Wanted { place, ask, share } = wanted;
        // One limit for all of the container's cards: the smallest of the offers.
        let limit = candidates
            .iter()
            .map(|candidate| candidate.offer.limit)
            .min()
            .unwrap_or_default();
        let burst = candidates
            .iter()
            .map(|candidate| candidate.offer.top())
            .min()
            .filter(|top| *top > limit);
        let note: Option<Arc<str>> = candidates
            .iter()
            .find(|candidate| limit < candidate.offer.nominal)
            .map(|candidate| {
                Arc::from(format!(
                    "the last share of its card: {} of {} MiB, the rest is reserve and context allowances",
                    limit.0, candidate.offer.nominal.0
                ))
            });
        let mut chosen: Vec<&Candidate> = candidates.iter().collect();
        chosen.sort_by_key(|candidate| {
            self.state
                .cards
                .get(candidate.key)
                .and_then(|row| Some((row.card.as_ref()?.index, row.uuid.clone())))
        });
        for candidate in chosen {
            let Some(row) = self.state.cards.get(candidate.key) else {
                continue;
            };
            let hold = Hold {
                container: ask.container.clone(),
                init: ask.init,
                card: candidate.key,
                limit,
                burst,
                nominal: candidate.offer.nominal,
                nano: card::nano(row, share.amount, &self.config.bases),
                compute: card::compute(share, mode),
                mode,
                note: note.clone(),
                asked: (share.amount != Amount::Memory(limit)).then_some(share.amount),
            };
            self.tentative.opened += i64::from(candidate.costs_whole);
            self.tentative.seat(Seated {
                place,
                hold,
                promised,
            });
        }
    }
}

/// Where on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Assignment {
    /// How the node gives whole GPUs.
    pub front: Front,
    /// Shares on their cards; whole GPUs are not in it.
    pub holds: Vec<Hold>,
    /// Free now; else only once something has left.
    pub now: bool,
    /// The countable resources are free now: what KAI scores.
    pub allocatable: bool,
    /// A share of it joins a card that is shared already.
    pub joins: bool,
}
