//! Which container holds which part of which card.
//!
//! Pure. In: grants, bindings, ended allocations. Out: the ledger, or a refusal in one line. Must
//! never: read anything, know the time, or keep more on a card than the card can grant. What is
//! kept for a share is its limit, or less where it may burst.

pub mod admit;
mod alloc;
mod claim;
mod holder;
mod record;
mod share;

pub use alloc::{AllocId, ProofName};
pub use claim::Claim;
pub use holder::HolderKey;
pub use record::{HolderRow, key as record_key};
pub use share::{Claimed, LimitScope, Share, ShareOptions, SharePhase, Turn};

use crate::gpu::GpuUuid;
use crate::inventory::{Card, Front};
use api::{Mib, Mode};
use std::collections::{BTreeMap, BTreeSet};

/// Every share on the node, one for each container that holds cards, and the containers that see
/// cards without a share of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    shares: BTreeMap<HolderKey, Share>,
}

impl Ledger {
    /// All rows: shares, and containers that only see their cards.
    pub fn all(&self) -> impl Iterator<Item = &Share> {
        self.shares.values()
    }

    /// All shares, by pod UID and container.
    pub fn shares(&self) -> impl Iterator<Item = &Share> {
        self.all().filter(|share| !share.wishes.observes)
    }

    /// One share for each [`LimitScope`]: a sum over these counts nothing twice.
    pub fn holds(&self) -> impl Iterator<Item = &Share> {
        once(self.shares())
    }

    /// What one container has, a share or the sight of its cards.
    pub fn get(&self, key: &HolderKey) -> Option<&Share> {
        self.shares.get(key)
    }

    /// What one allocation is bound to; several where a claim has several containers.
    pub fn by_alloc(&self, alloc: AllocId) -> impl Iterator<Item = &Share> {
        self.all()
            .filter(move |share| share.alloc_id == Some(alloc))
    }

    /// The containers of a hold.
    pub fn holders<'a>(&'a self, hold: &'a LimitScope) -> impl Iterator<Item = &'a Share> {
        self.all().filter(move |share| share.limit_scope() == *hold)
    }

    /// Shares on one card.
    pub fn on<'a>(&'a self, card: &'a GpuUuid) -> impl Iterator<Item = &'a Share> {
        self.shares().filter(move |share| share.gpus.contains(card))
    }

    /// Of each [`LimitScope`] on one card one share.
    pub fn holds_on<'a>(&'a self, card: &'a GpuUuid) -> impl Iterator<Item = &'a Share> {
        once(self.on(card))
    }

    /// Returns the most memory that is kept for shares of a card at one time. Two containers of one
    /// pod that hold the whole card hold it one after the other, and count once.
    pub fn granted(&self, card: &GpuUuid) -> Mib {
        let holds = || self.holds_on(card);
        let whole = holds().filter(|share| share.mode == Mode::Exclusive);
        let whole = whole.map(|share| share.kept).max().unwrap_or(Mib(0));
        let parts = holds().filter(|share| share.mode != Mode::Exclusive);
        Mib(whole.0.saturating_add(at_once(parts, |share| share.kept.0)))
    }

    /// The most that may be kept on a card. In mode `mps-isolated` each share's server
    /// has a context of its own: one is in the card's reserve, for the share that comes
    /// next; those that are there come on top.
    pub fn grantable(&self, card: &Card) -> Mib {
        let next = self.grantable_in(card, |_| true);
        // What is granted stays so; there may be no room for a next one.
        next.max(self.granted(&card.uuid).min(card.grantable))
    }

    /// The same for a share that is to be placed beside the others, or again.
    fn grantable_beside(&self, card: &Card, mode: Mode, hold: &LimitScope) -> Mib {
        if mode == Mode::MpsIsolated {
            self.grantable_in(card, |share| share.limit_scope() != *hold)
        } else {
            card.grantable
        }
    }

    fn grantable_in(&self, card: &Card, counts: impl Fn(&Share) -> bool) -> Mib {
        card.grantable.saturating_sub(self.servers(card, counts))
    }

    /// What the servers of shares in mode `mps-isolated` hold of a card, beside the shares.
    pub fn servers_of_shares(&self, card: &Card) -> Mib {
        self.servers(card, |_| true)
    }

    fn servers(&self, card: &Card, counts: impl Fn(&Share) -> bool) -> Mib {
        let servers = self
            .holds_on(&card.uuid)
            .filter(|share| share.mode == Mode::MpsIsolated && counts(share))
            .count();
        let servers = u64::try_from(servers).unwrap_or(u64::MAX);
        Mib(card.server_reserve.0.saturating_mul(servers))
    }

    /// The mode that a card is in while something holds it.
    pub fn mode_of(&self, card: &GpuUuid) -> Option<Mode> {
        self.on(card).map(|share| share.mode).next()
    }

    /// Cards with shares that have a limit.
    pub fn watched(&self) -> BTreeSet<GpuUuid> {
        let bound = self
            .shares()
            .filter(|share| share.mode != Mode::Exclusive && share.alloc_id.is_some());
        bound.flat_map(|share| share.gpus.iter().cloned()).collect()
    }

    /// The way by which a card is granted while something holds it.
    pub fn front_of(&self, card: &GpuUuid) -> Option<Front> {
        self.on(card).map(Share::front).next()
    }

    /// Client slots taken on a card.
    pub fn slots_used(&self, card: &GpuUuid) -> u32 {
        let shares = self
            .holds_on(card)
            .filter(|share| share.mode != Mode::Exclusive);
        slots(shares)
    }
}

/// Returns the most of an amount that shares have at one time. The containers of a pod do not all run
/// at once (see [`Turn`]).
fn at_once<'a>(shares: impl Iterator<Item = &'a Share>, amount: impl Fn(&Share) -> u64) -> u64 {
    let mut pods: BTreeMap<&str, Vec<&Share>> = BTreeMap::new();
    for share in shares {
        pods.entry(&share.pod.uid).or_default().push(share);
    }
    let mut sum = 0_u64;
    for mut own in pods.into_values() {
        own.sort_by_key(|share| share.turn.place);
        let (mut running, mut most) = (0_u64, 0);
        for share in own {
            let with = running.saturating_add(amount(share));
            most = with.max(most);
            if !share.turn.init {
                running = with;
            }
        }
        sum = sum.saturating_add(most);
    }
    sum
}

/// Returns the number of client slots for the containers that run at one time.
fn slots<'a>(shares: impl Iterator<Item = &'a Share>) -> u32 {
    u32::try_from(at_once(shares, |_| 1)).unwrap_or(u32::MAX)
}

/// The first of each [`LimitScope`].
fn once<'a>(shares: impl Iterator<Item = &'a Share>) -> impl Iterator<Item = &'a Share> {
    let mut seen = BTreeSet::new();
    shares.filter(move |share| match share.limit_scope() {
        LimitScope::Container(_) => true,
        LimitScope::Claim(alloc) => seen.insert(alloc),
    })
}
