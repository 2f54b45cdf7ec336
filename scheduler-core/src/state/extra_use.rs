//! Sums of what pods of a node, or of a domain, take of one countable thing.

use crate::state::way::{As, Way};

/// What is taken of one other resource of a node; or pods of a domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExtraUse {
    pub used: u128,
    pub releasing: u128,
    pub promised: u128,
}

impl ExtraUse {
    /// Something will be there when those who leave have left.
    pub(crate) fn stays(&self) -> bool {
        self.used + self.promised > self.releasing
    }

    /// Pods of a domain, without those that leave and with those that are promised a place there.
    pub(crate) fn pods(&self) -> i64 {
        let pods = (self.used + self.promised).saturating_sub(self.releasing);
        i64::try_from(pods).unwrap_or(i64::MAX)
    }

    /// What several pods use together, as one: it is leaving when the last of them is.
    pub(crate) fn as_one(&self) -> Self {
        let is_there = self.used > 0;
        Self {
            used: u128::from(is_there),
            releasing: u128::from(is_there && !self.stays()),
            promised: u128::from(!is_there && self.promised > 0),
        }
    }

    pub(super) fn add(&mut self, amount: u128, how: As, way: Way) {
        match how {
            As::Taken => way.add(&mut self.used, amount),
            As::Leaving => {
                way.add(&mut self.used, amount);
                way.add(&mut self.releasing, amount);
            }
            As::Promised => way.add(&mut self.promised, amount),
        }
    }
}
