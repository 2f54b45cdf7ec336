//! What is held of one device.

use crate::model::{AllocatedDevice, Amounts, Device};
use crate::state::way::As;
use std::sync::Arc;

/// What counts as in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Free {
    /// Everything allocated, terminating pods included, and promises.
    Now,
    /// The same once terminating pods have ended.
    Later,
    /// Nothing: a ceiling over every set of victims.
    Whatever,
}

/// What is held of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    /// Claims that have all of it.
    pub whole: u32,
    /// Claims that have a part of it.
    pub shares: u32,
    /// By parts.
    pub taken: Amounts,
}

impl Sum {
    pub(crate) fn is_held(&self) -> bool {
        self.whole > 0 || self.shares > 0
    }

    pub(super) fn plus(mut self, other: &Self) -> Self {
        self.whole = self.whole.saturating_add(other.whole);
        self.shares = self.shares.saturating_add(other.shares);
        for (name, amount) in &other.taken {
            let sum = self.taken.entry(Arc::clone(name)).or_default();
            *sum = sum.plus(*amount);
        }
        self
    }

    pub(crate) fn less(mut self, other: &Self) -> Self {
        self.whole = self.whole.saturating_sub(other.whole);
        self.shares = self.shares.saturating_sub(other.shares);
        for (name, amount) in &other.taken {
            let sum = self.taken.entry(Arc::clone(name)).or_default();
            *sum = sum.less(*amount);
        }
        self
    }

    pub(crate) fn change(&mut self, device: &AllocatedDevice, comes: bool) {
        let count = |sum: &mut u32| {
            *sum = if comes {
                sum.saturating_add(1)
            } else {
                sum.saturating_sub(1)
            };
        };
        let Some(consumed) = &device.consumed else {
            return count(&mut self.whole);
        };
        count(&mut self.shares);
        for (name, amount) in consumed {
            let sum = self.taken.entry(Arc::clone(name)).or_default();
            *sum = if comes {
                sum.plus(*amount)
            } else {
                sum.less(*amount)
            };
        }
        self.taken.retain(|_, amount| amount.0 != 0);
    }
}

/// What is held of a device, by whether its holders leave or are only promised it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceUse {
    /// By all that have it, those on their way out too.
    pub held: Sum,
    /// By those on their way out.
    pub leaving: Sum,
    /// Promised on top.
    pub promised: Sum,
}

impl DeviceUse {
    pub(crate) fn is_free(&self) -> bool {
        !self.held.is_held() && !self.promised.is_held()
    }

    pub(crate) fn after(&self) -> Sum {
        self.held.clone().less(&self.leaving).plus(&self.promised)
    }

    pub(crate) fn change(&mut self, device: &AllocatedDevice, how: As, comes: bool) {
        match how {
            As::Taken => self.held.change(device, comes),
            As::Leaving => {
                self.held.change(device, comes);
                self.leaving.change(device, comes);
            }
            As::Promised => self.promised.change(device, comes),
        }
    }

    /// No claim has all of it once those who leave have left. Of a shared device something may be
    /// left however many have a part of it.
    pub(crate) fn leaves_some(&self, device: &Device) -> bool {
        let after = self.after();
        after.whole == 0 && (device.shared || after.shares == 0)
    }
}
