//! GPUs that queues held and pods that waited in them, by time. Pure.
//!
//! Every minute for an hour; every hour for 14 days, as the mean of its minutes. 1,600 bytes for
//! each queue. GPUs are kept in thousandths, both numbers to one part in 4,096.

use super::columns::{Columns, Places, Short, mean};
use super::span::{HOUR, MINUTE, Span};
use scheduler_core::units::{Duration, Time};

const MINUTES: u64 = 60;
const HOURS: u64 = 14 * 24;
/// Largest number of queues in the history, deleted ones included: 32 MB.
const MOST: usize = 20_000;
/// Nano-GPU of a thousandth.
const MILLI: u128 = 1_000_000;

/// A queue now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueNow<'a> {
    pub(crate) name: &'a str,
    /// Nano-GPU that its pods hold.
    pub(crate) held: u128,
    /// Its pods that wait.
    pub(crate) waiting: u32,
}

/// A queue then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueuePoint {
    /// Thousandths of a GPU.
    pub(crate) held: u64,
    pub(crate) waiting: u64,
}

/// Thousandths of a GPU, and pods.
#[derive(Clone, Copy, Debug)]
struct Kept(Short, Short);

const NONE: Kept = Kept(Short::NONE, Short::NONE);

impl Kept {
    fn point(self) -> Option<QueuePoint> {
        let (held, waiting) = (self.0.get()?, self.1.get()?);
        Some(QueuePoint { held, waiting })
    }

    fn mean(points: impl Iterator<Item = QueuePoint> + Clone) -> Self {
        let held = mean(points.clone().map(|point| point.held));
        let waiting = mean(points.map(|point| point.waiting));
        let of = |number: Option<u64>| number.map_or(Short::NONE, Short::of);
        Self(of(held), of(waiting))
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Queues {
    places: Places,
    minutes: Columns<Kept>,
    hours: Columns<Kept>,
}

impl Default for Queues {
    fn default() -> Self {
        Self {
            places: Places::default(),
            minutes: Columns::new(MINUTE, MINUTES),
            hours: Columns::new(HOUR, HOURS),
        }
    }
}

impl Queues {
    /// Adds a sample of all queues; the first of each minute counts.
    pub(super) fn sample(&mut self, now: Time, queues: &[QueueNow<'_>]) {
        let minute = self.minutes.slot(now);
        if minute <= self.minutes.newest() {
            return;
        }
        let hour = self.hours.slot(now);
        let last = self.hours.slot(self.minutes.begin(self.minutes.newest()));
        if self.minutes.newest() > 0 && last < hour {
            self.close(last);
            let reach = Duration(HOUR.0 * HOURS);
            self.places.forget(Time(now.0.saturating_sub(reach.0)));
        }
        let mut column = vec![NONE; self.places.width()];
        for queue in queues {
            let Some(place) = self.places.see(queue.name, now, MOST) else {
                continue;
            };
            if place >= column.len() {
                column.resize(place + 1, NONE);
            }
            let held = u64::try_from(queue.held / MILLI).unwrap_or(u64::MAX);
            column[place] = Kept(Short::of(held), Short::of(queue.waiting.into()));
        }
        self.minutes.push(minute, column.into());
    }

    /// An hour is over: the means of its minutes are kept.
    fn close(&mut self, hour: u64) {
        let means = (0..self.places.width()).map(|place| Kept::mean(self.of_hour(place, hour)));
        let column = means.collect();
        self.hours.push(hour, column);
    }

    fn of_hour(&self, place: usize, hour: u64) -> impl Iterator<Item = QueuePoint> + Clone {
        let minutes = hour * MINUTES..(hour + 1) * MINUTES;
        minutes.filter_map(move |minute| self.minutes.get(place, minute)?.point())
    }

    /// A queue's points until now, each with when it begins, the oldest first. Without the queue
    /// there is none.
    pub(crate) fn points(
        &self,
        name: &str,
        span: Span,
        now: Time,
    ) -> Vec<(Time, Option<QueuePoint>)> {
        let Some(place) = self.places.of(name) else {
            return Vec::new();
        };
        if span == Span::Hour {
            let minutes = self.minutes.reach(self.minutes.slot(now));
            let point = |minute| self.minutes.get(place, minute)?.point();
            return minutes
                .map(|minute| (self.minutes.begin(minute), point(minute)))
                .collect();
        }
        let open = self.hours.slot(now);
        let count = if span == Span::Day { 24 } else { HOURS };
        let hours = (open + 1).saturating_sub(count)..=open;
        let point = |hour| match self.hours.get(place, hour) {
            Some(kept) => kept.point(),
            // It is not over.
            None => Kept::mean(self.of_hour(place, hour)).point(),
        };
        hours
            .map(|hour| (self.hours.begin(hour), point(hour)))
            .collect()
    }

    pub(super) fn bytes(&self) -> usize {
        self.places.bytes() + self.minutes.bytes() + self.hours.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: u128 = 1_000_000_000;

    fn look(queues: &mut Queues, minute: u64, held: u128, waiting: u32) {
        let now = QueueNow {
            name: "a",
            held,
            waiting,
        };
        queues.sample(Time(minute * MINUTE.0 + 7), &[now]);
    }

    #[test]
    fn an_hour_is_kept_by_the_minute_and_days_by_the_hour() {
        let mut queues = Queues::default();
        let first = 24 * 60 * 20_000;
        for minute in 0..150 {
            look(&mut queues, first + minute, u128::from(minute) * GPU / 4, 3);
        }
        let now = Time((first + 150) * MINUTE.0 - 1);
        let hour = queues.points("a", Span::Hour, now);
        assert_eq!(hour.len(), 60);
        let (at, last) = hour[59];
        assert_eq!(at, Time((first + 149) * MINUTE.0));
        assert_eq!(
            last,
            Some(QueuePoint {
                held: 37_248,
                waiting: 3
            }),
            "37,250 to one part in 4,096"
        );
        let day = queues.points("a", Span::Day, now);
        assert_eq!(day.len(), 24);
        let held: Vec<_> = day[20..].iter().map(|(_, p)| p.map(|p| p.held)).collect();
        // Means of 0 to 14.75, of 15 to 29.75, and of what there is of the third hour: 7,375,
        // 22,375 and 33,625 to one part in 4,096.
        assert_eq!(held, [None, Some(7376), Some(22_376), Some(33_632)]);
        assert_eq!(queues.points("a", Span::Fortnight, now).len(), 14 * 24);
        assert_eq!(queues.points("b", Span::Hour, now), []);
    }

    #[test]
    fn a_queue_that_is_gone_for_two_weeks_is_forgotten_and_no_other_takes_its_values() {
        let mut queues = Queues::default();
        look(&mut queues, 1000, GPU, 0);
        for hour in 17..17 + 24 * 15 {
            let other = QueueNow {
                name: "b",
                held: 2 * GPU,
                waiting: 0,
            };
            queues.sample(Time(hour * HOUR.0), &[other]);
        }
        let now = Time((17 + 24 * 15) * HOUR.0 - 1);
        assert_eq!(queues.points("a", Span::Day, now), []);
        let c = QueueNow {
            name: "c",
            held: GPU,
            waiting: 0,
        };
        queues.sample(now, &[c]);
        let seen = queues.points("c", Span::Fortnight, now);
        let seen: Vec<_> = seen.into_iter().filter_map(|(_, point)| point).collect();
        assert_eq!(seen.len(), 1, "{seen:?}");
    }
}
