//! Quantities. All integers; anything that counts memory is added with a check.

use std::fmt;

/// Mebibytes of GPU memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mib(pub u64);

impl Mib {
    /// `None` when the sum does not fit in 64 bits.
    pub fn checked_add(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).map(Self)
    }

    /// `None` when `other` is larger.
    pub fn checked_sub(self, other: Self) -> Option<Self> {
        self.0.checked_sub(other.0).map(Self)
    }

    /// The difference, never below zero.
    #[must_use]
    pub fn less(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for Mib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MiB", self.0)
    }
}

/// Billionths of a GPU: the unit of queue accounting, so that fractions add up exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NanoGpu(pub u64);

impl NanoGpu {
    /// One whole GPU.
    pub const ONE: Self = Self(1_000_000_000);
}

/// Thousandths of a core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuMilli(pub u64);

/// Bytes of main memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

/// An amount of something that a driver counts: a Kubernetes quantity, in billionths, which is
/// its smallest step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Quantity(pub i128);

impl Quantity {
    /// Billionths of one.
    const ONE: i128 = 1_000_000_000;

    /// This number.
    pub const fn whole(amount: i64) -> Self {
        Self(amount as i128 * Self::ONE)
    }

    /// In whole numbers, rounded up: Kubernetes' `Value()`.
    pub(crate) fn rounded_up(self) -> i128 {
        self.0.div_euclid(Self::ONE) + i128::from(self.0.rem_euclid(Self::ONE) != 0)
    }

    /// What `Display` printed.
    pub fn parse(text: &str) -> Option<Self> {
        match text.strip_suffix('n') {
            Some(nano) => nano.parse().ok().map(Self),
            None => text.parse().ok().map(Self::whole),
        }
    }

    /// The sum; the largest amount where it would be more.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The difference; the smallest amount where it would be less.
    #[must_use]
    pub fn less(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 % Self::ONE == 0 && i64::try_from(self.0 / Self::ONE).is_ok() {
            write!(f, "{}", self.0 / Self::ONE)
        } else {
            write!(f, "{}n", self.0)
        }
    }
}

/// Milliseconds since 1970, by the shell's clock. The core only compares and adds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// So much later.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration.0))
    }

    /// How long since `earlier`; zero when that is in the future.
    pub fn since(self, earlier: Self) -> Duration {
        Duration(self.0.saturating_sub(earlier.0))
    }
}

/// Milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration(pub u64);

impl Duration {
    /// Whole seconds.
    pub const fn seconds(seconds: u64) -> Self {
        Self(seconds * 1000)
    }
}

/// 1 to 100 per cent of a card's compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Percent(u8);

impl Percent {
    /// The whole card.
    pub const FULL: Self = Self(100);

    /// `None` outside 1 to 100.
    pub fn new(value: u8) -> Option<Self> {
        (1..=100).contains(&value).then_some(Self(value))
    }

    /// 1 to 100.
    pub fn get(self) -> u8 {
        self.0
    }
}

/// An amount that may be without bound, as KAI's -1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bound {
    /// -1.
    Unlimited,
    /// So much, in the unit of its resource: nano-GPU, millicores or bytes.
    Exactly(u64),
}

impl Default for Bound {
    /// Nothing, as KAI's unset.
    fn default() -> Self {
        Self::Exactly(0)
    }
}
