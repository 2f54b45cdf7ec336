//! Random numbers by a seed: `SplitMix64`, the same on every machine.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss
)] // Of counts that are far below what a float holds.

/// A sequence of numbers.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The sequence of that seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    #[allow(clippy::should_implement_trait)] // It never ends.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0, below 1.
    pub fn part(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// From 0, below `count`.
    pub fn below(&mut self, count: usize) -> usize {
        (self.part() * count as f64) as usize
    }

    /// A time until something happens that happens every `mean`, on average.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.part()).ln()
    }

    /// Arrivals of a Poisson process within a time in which there are `mean` of them.
    pub fn poisson(&mut self, mean: f64) -> usize {
        let mut count = 0;
        let mut at = self.exponential(1.0);
        while at < mean {
            count += 1;
            at += self.exponential(1.0);
        }
        count
    }

    /// True once in this many times.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}
