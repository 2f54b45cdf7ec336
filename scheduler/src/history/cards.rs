//! Memory granted and used on each card, by time. Pure.
//!
//! Every 30 s for an hour, to 2 MiB of an 80 GiB card; every 5 min for a day, as the mean of the
//! ten before it and to one part in 250 of the card. 1,056 bytes for each card, and its name.

use super::columns::{Columns, Places, mean};
use super::span::{FIVE_MINUTES, PERIOD, Span};
use scheduler_core::units::{Duration, Time};

/// Columns of an hour.
const FINE: u64 = 120;
/// Columns of a day.
const COARSE: u64 = 288;
/// Fine ones in a coarse one.
const TEN: u64 = 10;
/// Largest number of cards in the history, removed ones included: 128 MB.
const MOST: usize = 100_000;
/// A card's memory, in a coarse column.
const WHOLE: u64 = 250;

/// A card whose agent is connected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CardNow<'a> {
    pub(crate) uuid: &'a str,
    /// All amounts in MiB. The card's memory.
    pub(crate) total: u64,
    /// The most that may be kept for shares.
    pub(crate) grantable: u64,
    /// What is kept for shares.
    pub(crate) granted: u64,
    /// Memory in use.
    pub(crate) used: u64,
}

/// A card then, in MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CardPoint {
    pub(crate) granted: u64,
    pub(crate) used: u64,
}

/// All cards then, in MiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FleetPoint {
    pub(crate) cards: u64,
    pub(crate) grantable: u64,
    pub(crate) granted: u64,
    pub(crate) used: u64,
    /// Granted on a card and not in use there.
    pub(crate) idle: u64,
}

/// Granted and used, divided by the card's unit.
type CardUsage16 = [u16; 2];
/// The same, in parts of the card.
type CardUsage8 = [u8; 2];
const NO_FINE: CardUsage16 = [u16::MAX; 2];
const NO_COARSE: CardUsage8 = [u8::MAX; 2];

/// See the module.
#[derive(Debug)]
pub(crate) struct Cards {
    places: Places,
    /// Memory of each card in MiB, by its place.
    totals: Vec<u32>,
    fine: Columns<CardUsage16>,
    coarse: Columns<CardUsage8>,
    fleet_fine: Columns<FleetPoint>,
    fleet_coarse: Columns<FleetPoint>,
}

impl Default for Cards {
    fn default() -> Self {
        Self {
            places: Places::default(),
            totals: Vec::new(),
            fine: Columns::new(PERIOD, FINE),
            coarse: Columns::new(FIVE_MINUTES, COARSE),
            fleet_fine: Columns::new(PERIOD, FINE),
            fleet_coarse: Columns::new(FIVE_MINUTES, COARSE),
        }
    }
}

impl Cards {
    /// Adds a sample of all cards.
    pub(super) fn sample(&mut self, now: Time, cards: &[CardNow<'_>]) {
        let slot = self.fine.slot(now);
        if slot <= self.fine.newest() {
            return;
        }
        let (last, newest) = (self.fine.newest(), slot / TEN);
        if last > 0 && last / TEN < newest {
            self.close(last / TEN);
            let day = Duration(FIVE_MINUTES.0 * COARSE);
            self.places.forget(Time(now.0.saturating_sub(day.0)));
        }
        let mut column = vec![NO_FINE; self.places.width()];
        let mut fleet = FleetPoint::default();
        for card in cards {
            fleet.cards += 1;
            fleet.grantable += card.grantable;
            fleet.granted += card.granted;
            fleet.used += card.used;
            fleet.idle += card.granted.saturating_sub(card.used);
            let Some(place) = self.places.see(card.uuid, now, MOST) else {
                continue;
            };
            if place >= column.len() {
                column.resize(place + 1, NO_FINE);
            }
            if place >= self.totals.len() {
                self.totals.resize(place + 1, 0);
            }
            let total = u32::try_from(card.total.max(1)).unwrap_or(u32::MAX);
            self.totals[place] = total;
            let unit = unit(total);
            let kept = |mib: u64| {
                let mib = mib.min(total.into());
                u16::try_from((mib + unit / 2) / unit).unwrap_or(u16::MAX - 1)
            };
            column[place] = [kept(card.granted), kept(card.used)];
        }
        self.fine.push(slot, column.into());
        self.fleet_fine.push(slot, Box::new([fleet]));
    }

    /// Five minutes are over: the means are kept.
    fn close(&mut self, coarse: u64) {
        let column = (0..self.places.width()).map(|place| {
            let Some(point) = self.mean(place, coarse) else {
                return NO_COARSE;
            };
            let total = self.total(place);
            [point.granted, point.used].map(|mib| {
                let part = (mib.min(total) * WHOLE + total / 2) / total;
                u8::try_from(part).unwrap_or(u8::MAX - 1)
            })
        });
        let column = column.collect();
        self.coarse.push(coarse, column);
        let fleet = self.fleet_mean(coarse).unwrap_or_default();
        self.fleet_coarse.push(coarse, Box::new([fleet]));
    }

    fn total(&self, place: usize) -> u64 {
        self.totals.get(place).copied().unwrap_or(1).max(1).into()
    }

    fn fine_point(&self, place: usize, slot: u64) -> Option<CardPoint> {
        let kept = self.fine.get(place, slot)?;
        let unit = unit(u32::try_from(self.total(place)).unwrap_or(u32::MAX));
        let [granted, used] = kept.map(|kept| u64::from(kept) * unit);
        (kept != NO_FINE).then_some(CardPoint { granted, used })
    }

    fn mean(&self, place: usize, coarse: u64) -> Option<CardPoint> {
        let slots = coarse * TEN..(coarse + 1) * TEN;
        let points = slots.filter_map(|slot| self.fine_point(place, slot));
        Some(CardPoint {
            granted: mean(points.clone().map(|point| point.granted))?,
            used: mean(points.map(|point| point.used))?,
        })
    }

    fn fleet_mean(&self, coarse: u64) -> Option<FleetPoint> {
        let slots = coarse * TEN..(coarse + 1) * TEN;
        let points = slots.filter_map(|slot| self.fleet_fine.get(0, slot));
        let points = points.filter(|point| point.cards > 0);
        let of = |field: fn(FleetPoint) -> u64| mean(points.clone().map(field));
        Some(FleetPoint {
            cards: of(|point| point.cards)?,
            grantable: of(|point| point.grantable)?,
            granted: of(|point| point.granted)?,
            used: of(|point| point.used)?,
            idle: of(|point| point.idle)?,
        })
    }

    /// A card's points until now, each with when it begins, the oldest first: of a day at most.
    /// Without the card there is none.
    pub(crate) fn points(
        &self,
        uuid: &str,
        span: Span,
        now: Time,
    ) -> Vec<(Time, Option<CardPoint>)> {
        let Some(place) = self.places.of(uuid) else {
            return Vec::new();
        };
        if span == Span::Hour {
            let slots = self.fine.reach(self.fine.slot(now));
            return slots
                .map(|slot| (self.fine.begin(slot), self.fine_point(place, slot)))
                .collect();
        }
        let total = self.total(place);
        let point = |slot| match self.coarse.get(place, slot) {
            Some(NO_COARSE) => None,
            Some(kept) => {
                let [granted, used] =
                    kept.map(|part| (u64::from(part) * total + WHOLE / 2) / WHOLE);
                Some(CardPoint { granted, used })
            }
            // They are not over.
            None => self.mean(place, slot),
        };
        let slots = self.coarse.reach(self.coarse.slot(now));
        slots
            .map(|slot| (self.coarse.begin(slot), point(slot)))
            .collect()
    }

    /// The points of all cards together.
    pub(crate) fn fleet(&self, span: Span, now: Time) -> Vec<(Time, Option<FleetPoint>)> {
        let heard = |point: &FleetPoint| point.cards > 0;
        if span == Span::Hour {
            let slots = self.fleet_fine.reach(self.fleet_fine.slot(now));
            let point = |slot| self.fleet_fine.get(0, slot).filter(heard);
            return slots
                .map(|slot| (self.fleet_fine.begin(slot), point(slot)))
                .collect();
        }
        let point = |slot| match self.fleet_coarse.get(0, slot) {
            Some(point) => Some(point).filter(heard),
            None => self.fleet_mean(slot),
        };
        let slots = self.fleet_coarse.reach(self.fleet_coarse.slot(now));
        slots
            .map(|slot| (self.fleet_coarse.begin(slot), point(slot)))
            .collect()
    }

    pub(super) fn bytes(&self) -> usize {
        self.places.bytes()
            + self.totals.capacity() * size_of::<u32>()
            + self.fine.bytes()
            + self.coarse.bytes()
            + self.fleet_fine.bytes()
            + self.fleet_coarse.bytes()
    }
}

/// MiB of one step: the smallest power of two with which the card fits into 16 bits.
fn unit(total: u32) -> u64 {
    let steps = u64::from(total) / u64::from(u16::MAX) + 1;
    steps.next_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(cards: &mut Cards, slot: u64, granted: u64, used: u64) {
        let now = CardNow {
            uuid: "GPU-1",
            total: 81_559,
            grantable: 80_944,
            granted,
            used,
        };
        cards.sample(Time(slot * PERIOD.0 + 11), &[now]);
    }

    #[test]
    fn an_hour_is_kept_by_30_s_and_a_day_by_5_min() {
        let mut cards = Cards::default();
        let first = 1_000_000;
        for slot in 0..300 {
            look(&mut cards, first + slot, 40_000, slot * 100);
        }
        let now = Time((first + 300) * PERIOD.0 - 1);
        let hour = cards.points("GPU-1", Span::Hour, now);
        assert_eq!(hour.len(), 120);
        let point = |granted, used| Some(CardPoint { granted, used });
        assert_eq!(
            hour[119],
            (Time((first + 299) * PERIOD.0), point(40_000, 29_900))
        );
        assert_eq!(hour[0].1, point(40_000, 18_000));
        let day = cards.points("GPU-1", Span::Day, now);
        assert_eq!(day.len(), 288);
        assert_eq!(day[257].1, None);
        // To one part in 250: 326 MiB.
        let (_, first_five) = day[258];
        let first_five = first_five.unwrap();
        assert!(first_five.granted.abs_diff(40_000) <= 163, "{first_five:?}");
        assert!(first_five.used.abs_diff(450) <= 163, "{first_five:?}");
        let fleet = cards.fleet(Span::Day, now);
        let known = fleet.iter().filter_map(|(_, point)| *point);
        let expected = FleetPoint {
            cards: 1,
            grantable: 80_944,
            granted: 40_000,
            used: 450,
            idle: 39_550,
        };
        assert_eq!(known.clone().count(), 30);
        assert_eq!(known.clone().next(), Some(expected));
        assert_eq!(cards.fleet(Span::Hour, now).len(), 120);
    }

    #[test]
    fn what_is_not_over_is_seen_and_what_was_not_heard_is_not_nothing() {
        let mut cards = Cards::default();
        look(&mut cards, 1000, 2000, 0);
        look(&mut cards, 1002, 4000, 4000);
        let now = Time(1003 * PERIOD.0);
        let hour = cards.points("GPU-1", Span::Hour, now);
        let last: Vec<_> = hour[116..]
            .iter()
            .map(|(_, point)| point.map(|point| point.used))
            .collect();
        assert_eq!(last, [Some(0), None, Some(4000), None]);
        let day = cards.points("GPU-1", Span::Day, now);
        assert_eq!(
            day.last().unwrap().1,
            Some(CardPoint {
                granted: 3000,
                used: 2000
            })
        );
        // Its agent is disconnected for an hour: it is in no column.
        cards.sample(Time(1120 * PERIOD.0), &[]);
        let now = Time(1121 * PERIOD.0);
        let hour = cards.points("GPU-1", Span::Hour, now);
        assert_eq!(hour.iter().filter(|(_, point)| point.is_some()).count(), 1);
        cards.sample(Time(5000 * PERIOD.0), &[]);
        cards.sample(Time(5010 * PERIOD.0), &[]);
        let now = Time(5011 * PERIOD.0);
        assert_eq!(cards.points("GPU-1", Span::Day, now), [], "forgotten");
    }

    #[test]
    fn the_largest_cards_there_are_fit() {
        for total in [16_384, 65_534, 65_535, 81_559, 196_608, 294_912, u32::MAX] {
            let most = (u64::from(total) + unit(total) / 2) / unit(total);
            assert!(most < u64::from(u16::MAX), "{total}");
        }
        assert_eq!((unit(24_576), unit(81_559), unit(196_608)), (1, 2, 4));
    }
}
