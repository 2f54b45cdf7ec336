//! What is on a card, in sums.

use crate::model::Mode;
use crate::units::Mib;

/// Returns the place of a mode in [`CardSums::modes`].
pub(crate) fn mode_index(mode: Mode) -> usize {
    Mode::ALL
        .iter()
        .position(|candidate| *candidate == mode)
        .unwrap_or_default()
}

/// What is taken of a card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CardUse {
    /// By all that are on it, those on their way out too.
    pub held: CardSums,
    /// By those on their way out.
    pub releasing: CardSums,
    /// Promised on top.
    pub promised: CardSums,
}

/// Sums over some of the holds on a card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CardSums {
    /// Of what is kept for each: its limit, or its request where it may burst.
    pub limits: u128,
    /// Of limits.
    pub tops: u128,
    /// Of nominal worth.
    pub nominal: u128,
    /// Of the limits' squares, modulo 2^64: with the sum of the limits and their number it
    /// says whether all are alike.
    pub squares: u64,
    /// Holds per mode, in the order of [`crate::model::Mode::ALL`].
    pub modes: [u32; 4],
}

impl CardSums {
    /// One more share, or a whole card.
    pub(crate) fn add(&mut self, limit: Mib, top: Mib, nominal: Mib, mode: Mode) {
        self.limits += u128::from(limit.0);
        self.tops += u128::from(top.0);
        self.nominal += u128::from(nominal.0);
        self.squares = self.squares.wrapping_add(square(top));
        if let Some(count) = self.modes.get_mut(mode_index(mode)) {
            *count = count.saturating_add(1);
        }
    }

    /// Returns the larger value of each sum. The squares stay as they are: sums modulo 2^64 cannot be
    /// compared.
    pub(crate) fn max(mut self, other: Self) -> Self {
        self.limits = self.limits.max(other.limits);
        self.tops = self.tops.max(other.tops);
        self.nominal = self.nominal.max(other.nominal);
        for (count, other) in self.modes.iter_mut().zip(other.modes) {
            *count = other.max(*count);
        }
        self
    }

    /// Returns the sums over the holds of both.
    pub(crate) fn plus(mut self, other: Self) -> Self {
        self.limits += other.limits;
        self.tops += other.tops;
        self.nominal += other.nominal;
        self.squares = self.squares.wrapping_add(other.squares);
        for (count, other) in self.modes.iter_mut().zip(other.modes) {
            *count = count.saturating_add(other);
        }
        self
    }

    /// Every share here has this very limit: the sum of (x - limit)^2 is 0.
    pub(crate) fn all_have(&self, limit: Mib) -> bool {
        let count = self.holds();
        self.tops == u128::from(count) * u128::from(limit.0)
            && self.squares == u64::from(count).wrapping_mul(square(limit))
    }

    pub(crate) fn holds(&self) -> u32 {
        self.modes.iter().sum()
    }

    /// How many other cards of the node these holds take. The kubelet chooses the cards of whole
    /// GPUs, and admits pods in an order of its own: until the agent has said which cards a pod
    /// got, its expected card may be another pod's actual one. Both are counted here, and one of
    /// them is on a card that seems free.
    pub(crate) fn elsewhere(&self) -> u32 {
        let [whole, shares @ ..] = self.modes;
        let shared = u32::from(shares.iter().any(|count| *count > 0));
        (whole + shared).saturating_sub(1)
    }
}

/// Modulo 2^64.
pub(crate) fn square(limit: Mib) -> u64 {
    limit.0.wrapping_mul(limit.0)
}

impl CardUse {
    /// How many holds are on it, those on their way out too.
    pub(crate) fn holders(&self) -> u32 {
        self.held.holds()
    }

    /// As it will be when everything on its way out is gone and every promise is kept.
    pub(crate) fn after(&self) -> CardSums {
        let mut after = self.held;
        after.limits = after.limits.saturating_sub(self.releasing.limits) + self.promised.limits;
        after.tops = after.tops.saturating_sub(self.releasing.tops) + self.promised.tops;
        after.nominal =
            after.nominal.saturating_sub(self.releasing.nominal) + self.promised.nominal;
        after.squares = after
            .squares
            .wrapping_sub(self.releasing.squares)
            .wrapping_add(self.promised.squares);
        for (index, count) in after.modes.iter_mut().enumerate() {
            *count = count.saturating_sub(self.releasing.modes[index]) + self.promised.modes[index];
        }
        after
    }

    /// Every holder of it, if there is one, is on its way out.
    pub(crate) fn is_leaving(&self) -> bool {
        self.held.modes == self.releasing.modes
    }
}
