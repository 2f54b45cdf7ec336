//! Values of many things by time: a column for each period, a place in it for each thing. Pure.
//!
//! Values of the most recent periods; a period without a sample has an empty column. Objects are
//! identified by a slot that their owner assigns, so a value costs only its own size.

use scheduler_core::units::{Duration, Time};
use std::collections::{BTreeMap, VecDeque};

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Columns<V> {
    period: Duration,
    slots: u64,
    /// The period of the last column, counted from 1970.
    newest: u64,
    /// The last one is `newest`.
    kept: VecDeque<Box<[V]>>,
}

impl<V: Copy> Columns<V> {
    /// Empty. `period` and `slots` are at least 1.
    pub(super) fn new(period: Duration, slots: u64) -> Self {
        Self {
            period,
            slots,
            newest: 0,
            kept: VecDeque::new(),
        }
    }

    /// The period of this moment.
    pub(super) fn slot(&self, at: Time) -> u64 {
        at.0 / self.period.0
    }

    /// When a period begins.
    pub(super) fn begin(&self, slot: u64) -> Time {
        Time(slot.saturating_mul(self.period.0))
    }

    /// The last period that has a column; 0 without any.
    pub(super) fn newest(&self) -> u64 {
        self.newest
    }

    /// The next column. Periods in between have empty ones; a period that has one is passed
    /// over, and so is one before it.
    pub(super) fn push(&mut self, slot: u64, column: Box<[V]>) {
        if !self.kept.is_empty() && slot <= self.newest {
            return;
        }
        let missed = slot.saturating_sub(self.newest + 1);
        if self.kept.is_empty() || missed >= self.slots {
            self.kept.clear();
        } else {
            for _ in 0..missed {
                self.kept.push_back(Box::default());
            }
        }
        self.kept.push_back(column);
        while self.kept.len() as u64 > self.slots {
            self.kept.pop_front();
        }
        self.newest = slot;
    }

    /// The column of a period; empty where nothing was seen, or it is out of reach.
    pub(super) fn column(&self, slot: u64) -> &[V] {
        let back = self.newest.checked_sub(slot);
        let back = back.and_then(|back| usize::try_from(back).ok());
        back.and_then(|back| self.kept.len().checked_sub(back + 1))
            .and_then(|at| self.kept.get(at))
            .map_or(&[], |column| column)
    }

    /// One thing's value.
    pub(super) fn get(&self, place: usize, slot: u64) -> Option<V> {
        self.column(slot).get(place).copied()
    }

    /// The periods that end with `until`, the oldest first.
    pub(super) fn reach(&self, until: u64) -> impl Iterator<Item = u64> + use<V> {
        (until + 1).saturating_sub(self.slots)..=until
    }

    /// Its size in bytes.
    pub(super) fn bytes(&self) -> usize {
        let held: usize = self.kept.iter().map(|of| size_of_val(&**of)).sum();
        held + self.kept.capacity() * size_of::<Box<[V]>>()
    }
}

/// Which place each name has. A name that was not seen for as long as the columns reach gives
/// its place back.
#[derive(Debug, Default)]
pub(super) struct Places {
    by_name: BTreeMap<Box<str>, Place>,
    free: Vec<usize>,
    /// Places that were ever given out.
    given: usize,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    at: usize,
    seen: Time,
}

impl Places {
    /// The place of a name that is there now; `None`: all of `most` are taken.
    pub(super) fn see(&mut self, name: &str, now: Time, most: usize) -> Option<usize> {
        if let Some(place) = self.by_name.get_mut(name) {
            place.seen = now;
            return Some(place.at);
        }
        if self.by_name.len() >= most {
            return None;
        }
        let at = self.free.pop().unwrap_or_else(|| {
            self.given += 1;
            self.given - 1
        });
        self.by_name.insert(name.into(), Place { at, seen: now });
        Some(at)
    }

    /// The place of a name.
    pub(super) fn of(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).map(|place| place.at)
    }

    /// Names that were not seen since give their places back.
    pub(super) fn forget(&mut self, since: Time) {
        let free = &mut self.free;
        self.by_name.retain(|_, place| {
            let kept = place.seen >= since;
            if !kept {
                free.push(place.at);
            }
            kept
        });
    }

    /// Places that a column has.
    pub(super) fn width(&self) -> usize {
        self.given
    }

    /// Its size in bytes.
    pub(super) fn bytes(&self) -> usize {
        // A tree's nodes are at least half full, of eleven entries.
        let entry = 2 * (size_of::<Box<str>>() + size_of::<Place>());
        let names: usize = self.by_name.keys().map(|name| name.len() + entry).sum();
        names + self.free.capacity() * size_of::<usize>()
    }
}

/// A number in 16 bits, to one part in 4,096: 12 bits, and how often they are doubled. Up to
/// 134 million; more counts as that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Short(u16);

impl Short {
    /// No number.
    pub(super) const NONE: Self = Self(u16::MAX);

    pub(super) fn of(number: u64) -> Self {
        Self(u16::try_from(pack(number, 12, 16)).unwrap_or(u16::MAX - 1))
    }

    pub(super) fn get(self) -> Option<u64> {
        (self != Self::NONE).then(|| unpack(self.0.into(), 12))
    }
}

/// A number in 32 bits, to one part in 134 million: 27 bits, and how often they are doubled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Long(u32);

impl Long {
    pub(super) fn of(number: u64) -> Self {
        Self(u32::try_from(pack(number, 27, 32)).unwrap_or(u32::MAX - 1))
    }

    pub(super) fn get(self) -> u64 {
        unpack(self.0.into(), 27)
    }
}

/// To the nearest; of `bits` bits the lower ones are the mantissa. The largest is never made.
fn pack(number: u64, mantissa: u32, bits: u32) -> u64 {
    let largest = (1 << bits) - 2;
    let number = number.min(unpack(largest, mantissa));
    let length = u64::BITS - number.leading_zeros();
    let mut exponent = length.saturating_sub(mantissa);
    let mut digits = (number + ((1 << exponent) >> 1)) >> exponent;
    if digits >> mantissa > 0 {
        (digits, exponent) = (digits >> 1, exponent + 1);
    }
    u64::min(u64::from(exponent) << mantissa | digits, largest)
}

fn unpack(packed: u64, mantissa: u32) -> u64 {
    (packed & ((1 << mantissa) - 1)) << (packed >> mantissa)
}

/// The mean of numbers, to the nearest; `None` without any.
pub(super) fn mean(numbers: impl Iterator<Item = u64>) -> Option<u64> {
    let (mut count, mut sum) = (0_u64, 0_u64);
    for number in numbers {
        count += 1;
        sum = sum.saturating_add(number);
    }
    (sum + count / 2).checked_div(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_periods_are_kept_and_what_was_not_seen_is_empty() {
        let mut columns = Columns::new(Duration(10), 4);
        for (slot, value) in [(5, 1), (6, 2), (8, 3), (8, 9), (7, 9)] {
            columns.push(slot, Box::new([value]));
        }
        let seen = |columns: &Columns<i32>| {
            let values = columns.reach(columns.newest());
            values.map(|slot| columns.get(0, slot)).collect::<Vec<_>>()
        };
        assert_eq!(seen(&columns), [Some(1), Some(2), None, Some(3)]);
        columns.push(9, Box::new([4]));
        assert_eq!(seen(&columns), [Some(2), None, Some(3), Some(4)]);
        assert_eq!(columns.get(0, 5), None, "out of reach");
        columns.push(1000, Box::new([5]));
        assert_eq!(seen(&columns), [None, None, None, Some(5)]);
        assert!(columns.bytes() < 200, "{}", columns.bytes());
    }

    #[test]
    fn packed_numbers_are_exact_while_they_are_small_and_near_above() {
        let largest = 4094 << 15;
        for number in (0..=4095).chain([4096, 8190, 1 << 20, largest]) {
            assert_eq!(Short::of(number).get(), Some(number));
        }
        for number in [4097, 81_559, 65_535, 8191, 99_999_999, largest - 1] {
            let kept = Short::of(number).get().unwrap();
            assert!(kept.abs_diff(number) <= number >> 12, "{number}: {kept}");
        }
        assert_eq!(Short::of(u64::MAX).get(), Some(largest));
        assert_eq!(Short::NONE.get(), None);
        let mut last = 0;
        for number in (0..200_000).map(|at| at * 997) {
            let kept = Short::of(number).get().unwrap();
            assert!(kept >= last, "{number}: {kept} after {last}");
            last = kept;
        }
        for number in [0, 7, 1 << 26, (1 << 27) - 1, 1 << 57] {
            assert_eq!(Long::of(number).get(), number);
        }
        for number in [3_600_000_000_017, u64::MAX >> 7, (1 << 58) - (1 << 33)] {
            let kept = Long::of(number).get();
            assert!(kept.abs_diff(number) <= number >> 27, "{number}: {kept}");
        }
        assert!(Long::of(u64::MAX).get() >= 1 << 57);
    }

    #[test]
    fn a_name_that_is_gone_for_long_gives_its_place_to_another() {
        let mut places = Places::default();
        assert_eq!(places.see("a", Time(1), 2), Some(0));
        assert_eq!(places.see("b", Time(5), 2), Some(1));
        assert_eq!(places.see("c", Time(6), 2), None, "all are taken");
        assert_eq!(places.see("b", Time(7), 2), Some(1));
        places.forget(Time(5));
        assert_eq!((places.of("a"), places.of("b")), (None, Some(1)));
        assert_eq!(places.see("c", Time(8), 2), Some(0));
        assert_eq!(places.width(), 2);
        assert_eq!(mean([1, 2].into_iter()), Some(2));
        assert_eq!(mean([].into_iter()), None);
    }
}
