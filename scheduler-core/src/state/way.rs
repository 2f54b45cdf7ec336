//! How an amount enters or leaves a sum: which of the sums of a place it belongs to ([`As`]), and
//! whether it comes or goes ([`Way`]).

/// How a place counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum As {
    Taken,
    Leaving,
    Promised,
}

/// Whether a task's amounts come or go.
#[derive(Clone, Copy)]
pub(super) struct Way<'a> {
    pub comes: bool,
    /// Set where more goes than there was, or more comes than can be counted.
    pub wrong: &'a std::cell::Cell<bool>,
}

impl Way<'_> {
    pub(super) fn add(self, sum: &mut u128, amount: u128) {
        *sum = if self.comes {
            self.or(sum.checked_add(amount), u128::MAX)
        } else {
            self.or(sum.checked_sub(amount), 0)
        };
    }

    pub(super) fn count(self, sum: &mut u32, holds: u32) {
        *sum = if self.comes {
            self.or(sum.checked_add(holds), u32::MAX)
        } else {
            self.or(sum.checked_sub(holds), 0)
        };
    }

    fn or<T>(self, after: Option<T>, bound: T) -> T {
        after.unwrap_or_else(|| {
            self.wrong.set(true);
            bound
        })
    }
}
