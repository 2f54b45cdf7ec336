//! Past use without a database: what this process saw itself. Pure.
//!
//! Two rings: a slot for each minute of the last hour, and one for each hour of the last 14 days. A
//! slot has the mean of its samples; time without samples counts neither as use nor as capacity, as
//! in Prometheus. Amounts are kept as parts of the largest one of their slot, in 65,535ths: 2,376
//! bytes for each queue, 2.4 MB for 1,000.

use super::ring::Ring;
use super::settings::Settings;
use super::uses::{Uses, part};
use scheduler_core::ids::QueueName;
use scheduler_core::units::{Duration, Time};
use std::collections::BTreeMap;
use std::ops::Range;

/// Period and number of slots of each ring, from the finest.
const RINGS: [(Duration, usize); 2] = [
    (Duration::seconds(60), 60),
    (Duration::seconds(3600), 14 * 24),
];
/// How far back it reaches.
pub(crate) const REACH: Duration = Duration::seconds(14 * 24 * 3600);
/// Time between two samples; more frequent ones would fall into the same slot.
pub(crate) const SAMPLE: Duration = Duration::seconds(60);
/// Largest number of recorded queues, deleted ones included: 48 MB.
const QUEUES: usize = 20_000;
/// The largest amount of a slot.
const FULL: f64 = 65_535.0;

/// GPU, CPU, memory, in the core's units.
type Amounts = [f64; 3];

/// See the module.
#[derive(Clone, Debug)]
pub struct ObservedUsage {
    levels: Vec<Level>,
}

/// One period.
#[derive(Clone, Debug)]
struct Level {
    queues: Ring<QueueName, [u16; 3]>,
    /// What the cluster had, and what the largest amount is.
    scales: Ring<(), Scale>,
    /// The slot that is not over.
    open: Option<Open>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Scale {
    capacity: [f32; 3],
    largest: [f32; 3],
}

#[derive(Clone, Debug)]
struct Open {
    slot: u64,
    samples: f64,
    capacity: Amounts,
    sums: BTreeMap<QueueName, Amounts>,
}

impl Default for ObservedUsage {
    fn default() -> Self {
        let level = |(period, slots)| Level {
            queues: Ring::new(period, slots),
            scales: Ring::new(period, slots),
            open: None,
        };
        Self {
            levels: RINGS.map(level).into(),
        }
    }
}

impl ObservedUsage {
    /// What queues hold and the cluster has now, in the core's units: nano-GPU, millicores,
    /// bytes. A time before the last one is passed over.
    pub fn sample<'a>(
        &mut self,
        now: Time,
        queues: impl Iterator<Item = (&'a QueueName, [u128; 3])> + Clone,
        capacity: [u128; 3],
    ) {
        for level in &mut self.levels {
            level.sample(now, queues.clone(), capacity);
        }
    }

    /// Each queue's part of the cluster in the window that ends now.
    pub fn uses(&self, settings: &Settings, now: Time) -> Uses {
        let begin = settings.window.begin(now);
        let mut capacity: Amounts = [0.0; 3];
        let mut used: BTreeMap<&QueueName, Amounts> = BTreeMap::new();
        // Newer samples are in a finer ring.
        let mut end = now;
        for level in &self.levels {
            let first = level.queues.begin(level.queues.oldest());
            for (slot, span) in level.spans(begin, end) {
                let weight = weight(span, now, settings.half_life);
                level.add(slot, weight, &mut capacity, &mut used);
            }
            end = end.min(first);
        }
        let parts = |used: Amounts| [0, 1, 2].map(|index| part(used[index], capacity[index]));
        used.into_iter()
            .map(|(queue, used)| (queue.clone(), parts(used)))
            .filter(|(_, parts)| *parts != [0; 3])
            .collect()
    }

    /// Its size in bytes, without names.
    pub fn bytes(&self) -> usize {
        let levels = self.levels.iter();
        levels
            .map(|level| level.queues.bytes() + level.scales.bytes())
            .sum()
    }
}

/// What a time counts, in milliseconds of now.
#[expect(clippy::cast_precision_loss, reason = "some years in milliseconds")]
fn weight(span: Range<Time>, now: Time, half_life: Option<Duration>) -> f64 {
    let (from, to) = (now.since(span.start).0 as f64, now.since(span.end).0 as f64);
    match half_life {
        None => from - to,
        Some(half) => {
            let half = half.0.max(1) as f64;
            // The integral of 0.5^(t / half).
            (half / std::f64::consts::LN_2) * ((-to / half).exp2() - (-from / half).exp2())
        }
    }
}

impl Level {
    #[expect(clippy::cast_precision_loss, reason = "amounts of a cluster")]
    fn sample<'a>(
        &mut self,
        now: Time,
        queues: impl Iterator<Item = (&'a QueueName, [u128; 3])>,
        capacity: [u128; 3],
    ) {
        let slot = self.queues.slot(now);
        if slot < self.queues.newest() {
            return;
        }
        if self.open.as_ref().is_some_and(|open| open.slot != slot) {
            self.close();
        }
        self.queues.advance(slot);
        self.scales.advance(slot);
        let open = self.open.get_or_insert_with(|| Open {
            slot,
            samples: 0.0,
            capacity: [0.0; 3],
            sums: BTreeMap::new(),
        });
        open.samples += 1.0;
        let add = |sum: &mut Amounts, more: [u128; 3]| {
            for (sum, more) in sum.iter_mut().zip(more) {
                *sum += more as f64;
            }
        };
        add(&mut open.capacity, capacity);
        for (queue, held) in queues.filter(|(_, held)| *held != [0; 3]) {
            if let Some(sum) = open.sums.get_mut(queue) {
                add(sum, held);
            } else if open.sums.len() < QUEUES {
                add(open.sums.entry(queue.clone()).or_default(), held);
            }
        }
    }

    /// The open slot is over: its means are kept.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "f32 is for what the cluster has; parts are between 0 and FULL"
    )]
    fn close(&mut self) {
        let Some(open) = self.open.take() else {
            return;
        };
        let mut largest = open.capacity;
        for sum in open.sums.values() {
            for (largest, sum) in largest.iter_mut().zip(sum) {
                *largest = largest.max(*sum);
            }
        }
        let mean = |sums: Amounts| sums.map(|sum| (sum / open.samples) as f32);
        let scale = Scale {
            capacity: mean(open.capacity),
            largest: mean(largest),
        };
        self.scales.put((), open.slot, scale);
        let mut room = QUEUES.saturating_sub(self.queues.keys().count());
        for (queue, sum) in open.sums {
            let known = self.queues.get(&queue, open.slot).is_some();
            if !known && room == 0 {
                continue;
            }
            room -= usize::from(!known);
            let kept = [0, 1, 2].map(|index| match largest[index] {
                0.0 => 0,
                largest => (sum[index] / largest * FULL).round() as u16,
            });
            self.queues.put(queue, open.slot, kept);
        }
    }

    /// Its slots with the part of each that lies between two times.
    fn spans(&self, begin: Time, end: Time) -> impl Iterator<Item = (u64, Range<Time>)> + '_ {
        let from = self.queues.oldest().max(self.queues.slot(begin));
        (from..=self.queues.newest()).filter_map(move |slot| {
            let span = self.queues.begin(slot).max(begin)..self.queues.begin(slot + 1).min(end);
            (span.start < span.end).then_some((slot, span))
        })
    }

    fn add<'a>(
        &'a self,
        slot: u64,
        weight: f64,
        capacity: &mut Amounts,
        used: &mut BTreeMap<&'a QueueName, Amounts>,
    ) {
        let mut sum = |queue: &'a QueueName, more: Amounts| {
            let used = used.entry(queue).or_default();
            for (used, more) in used.iter_mut().zip(more) {
                *used += more * weight;
            }
        };
        if let Some(open) = self.open.as_ref().filter(|open| open.slot == slot) {
            for (queue, sums) in &open.sums {
                sum(queue, sums.map(|sum| sum / open.samples));
            }
            for (capacity, more) in capacity.iter_mut().zip(open.capacity) {
                *capacity += more / open.samples * weight;
            }
            return;
        }
        let scale = self.scales.get(&(), slot).unwrap_or_default();
        let largest = scale.largest.map(f64::from);
        for queue in self.queues.keys() {
            let kept = self.queues.get(queue, slot).unwrap_or_default();
            if kept != [0; 3] {
                let of = |index: usize| f64::from(kept[index]) / FULL * largest[index];
                sum(queue, [0, 1, 2].map(of));
            }
        }
        for (capacity, more) in capacity.iter_mut().zip(scale.capacity) {
            *capacity += f64::from(more) * weight;
        }
    }
}
