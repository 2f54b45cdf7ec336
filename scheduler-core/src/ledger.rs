//! The units rules of one card: what a share gets of it, as arithmetic over plain numbers.
//!
//! In: the card's memory ([`CardMemory`]), the grants on it ([`Granted`]), and an amount. Out: an
//! [`Offer`], or the missing amount. The only place that decides how many MiB a share is; never
//! changes anything itself.
//!
//! T is the card's total, G = T - reserve, the cap is G less what strangers hold.
//! - A MiB request gets exactly its MiB.
//! - A fraction f gets floor(f x T), plus an allowance for the CUDA context as far as the
//!   card has it left. An allowance never lets reserve and allowances together pass half
//!   of the share's own size: ten shares of 0.1 would otherwise eat up the last ones.
//! - Where the last share misses by no more than reserve and allowances (less what
//!   earlier shares missed), it gets the remainder, and its grant says so. In sums:
//!   floor(f x T) plus what the shares on the card are nominally worth stays within
//!   cap + reserve. So fractions that sum to 1 fit.
//! - What a share may use above its amount (a burst) is not reserved and counts as nothing: it
//!   is at most the cap, and the node takes it back when its owners run short.
//! - The sum of what is kept never passes the cap. Adding is checked; an overflow is a refusal.

use crate::model::Amount;
use crate::units::{Mib, NanoGpu};

/// What one card has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CardMemory {
    /// T.
    pub total: Mib,
    /// T - G.
    pub reserved: Mib,
    /// The most that is kept: G less what strangers hold.
    pub cap: Mib,
    /// Context allowance of a fraction.
    pub allowance: Mib,
}

/// The grants on one card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Granted {
    /// Sum of what is kept.
    pub limits: Mib,
    /// Sum of what the shares are nominally worth: MiB requests, and floor(f x T).
    pub nominal: Mib,
}

/// What a share would get of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// The memory kept for it, and its limit unless it may burst.
    pub limit: Mib,
    /// Its limit, where that is more.
    pub burst: Option<Mib>,
    /// Its nominal value.
    pub nominal: Mib,
}

impl Offer {
    /// What an MPS server or the driver would hold it to.
    pub(crate) fn top(&self) -> Mib {
        self.burst.unwrap_or(self.limit)
    }
}

/// The share does not fit: so much is free, so much was needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Short {
    /// Cap less limits.
    pub free: Mib,
    /// What the share is nominally worth.
    pub needed: Mib,
}

impl CardMemory {
    /// floor(f x T), or the MiB themselves.
    pub(crate) fn nominal(&self, amount: Amount) -> Mib {
        match amount {
            Amount::Memory(mib) => mib,
            Amount::Fraction(part) => {
                let product = u128::from(part.0) * u128::from(self.total.0);
                Mib(u64::try_from(product / u128::from(NanoGpu::ONE.0)).unwrap_or(u64::MAX))
            }
        }
    }

    /// What `amount` gets of this card beside `granted`.
    pub(crate) fn offer(&self, granted: Granted, amount: Amount) -> Result<Offer, Short> {
        let nominal = self.nominal(amount);
        let free = self.cap.less(granted.limits);
        let short = Short {
            free,
            needed: nominal,
        };
        // A fraction of a tiny card may round down to nothing.
        if nominal == Mib(0) {
            return Err(short);
        }
        if let Some(left) = free.checked_sub(nominal) {
            let allowance = match amount {
                Amount::Memory(_) => Mib(0),
                Amount::Fraction(_) => self.allowance.min(left).min(self.spare(granted, nominal)),
            };
            let limit = nominal.checked_add(allowance).ok_or(short)?;
            return Ok(Offer {
                limit,
                burst: None,
                nominal,
            });
        }
        let within = |sum: Mib| {
            self.cap
                .checked_add(self.reserved)
                .is_some_and(|most| sum <= most)
        };
        let last = matches!(amount, Amount::Fraction(_))
            && free > Mib(0)
            && granted.nominal.checked_add(nominal).is_some_and(within);
        if last {
            return Ok(Offer {
                limit: free,
                burst: None,
                nominal,
            });
        }
        Err(short)
    }

    /// The limit of a share that may use `most` of this card, where that is more than what is
    /// kept for it.
    pub(crate) fn burst(&self, offer: Offer, most: Amount) -> Option<Mib> {
        let allowance = match most {
            Amount::Memory(_) => Mib(0),
            Amount::Fraction(_) => self.allowance,
        };
        let most = Mib(self.nominal(most).0.saturating_add(allowance.0)).min(self.cap);
        (most > offer.limit).then_some(most)
    }

    /// The most allowance that leaves reserve and allowances within half of `nominal`.
    fn spare(&self, granted: Granted, nominal: Mib) -> Mib {
        let allowed = granted.limits.less(granted.nominal);
        Mib(nominal.0 / 2).less(self.reserved).less(allowed)
    }
}

/// Billionths of a GPU that an amount counts for in queues: fractions exactly, MiB over
/// the product's base, rounded down.
pub(crate) fn nano(amount: Amount, base: Mib) -> NanoGpu {
    match amount {
        Amount::Fraction(part) => part,
        Amount::Memory(mib) if base.0 > 0 => {
            let product = u128::from(mib.0) * u128::from(NanoGpu::ONE.0);
            NanoGpu(u64::try_from(product / u128::from(base.0)).unwrap_or(u64::MAX))
        }
        Amount::Memory(_) => NanoGpu::ONE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADA: CardMemory = CardMemory {
        total: Mib(46_068),
        reserved: Mib(568),
        cap: Mib(45_500),
        allowance: Mib(512),
    };
    const T4: CardMemory = CardMemory {
        total: Mib(15_360),
        reserved: Mib(450),
        cap: Mib(14_910),
        allowance: Mib(512),
    };

    fn fraction(thousandths: u64) -> Amount {
        Amount::Fraction(NanoGpu(thousandths * 1_000_000))
    }

    /// Grants in order until one does not fit.
    fn fill(card: CardMemory, amounts: &[Amount]) -> Vec<Result<u64, Short>> {
        let mut granted = Granted::default();
        amounts
            .iter()
            .map(|amount| {
                let offer = card.offer(granted, *amount)?;
                granted.limits = granted.limits.checked_add(offer.limit).unwrap();
                granted.nominal = granted.nominal.checked_add(offer.nominal).unwrap();
                assert!(granted.limits <= card.cap);
                Ok(offer.limit.0)
            })
            .collect()
    }

    #[test]
    fn mib_requests_are_exact() {
        let short = Short {
            free: Mib(1),
            needed: Mib(2),
        };
        assert_eq!(
            fill(
                ADA,
                &[
                    Amount::Memory(Mib(2000)),
                    Amount::Memory(Mib(43_499)),
                    Amount::Memory(Mib(2)),
                    Amount::Memory(Mib(1)),
                ]
            ),
            [Ok(2000), Ok(43_499), Err(short), Ok(1)]
        );
    }

    #[test]
    fn a_fraction_is_its_part_and_the_allowance() {
        assert_eq!(fill(ADA, &[fraction(500)]), [Ok(23_034 + 512)]);
        assert_eq!(fill(T4, &[fraction(250)]), [Ok(3840 + 512)]);
    }

    #[test]
    fn halves_fit_one_card_and_the_second_gets_the_remainder() {
        assert_eq!(
            fill(ADA, &[fraction(500), fraction(500)]),
            [Ok(23_546), Ok(45_500 - 23_546)]
        );
    }

    #[test]
    fn seven_and_two_tenths_fit_one_card() {
        let got = fill(ADA, &[fraction(700), fraction(200), fraction(100)]);
        assert!(got.iter().all(Result::is_ok), "{got:?}");
    }

    #[test]
    fn equal_fractions_that_sum_to_one_fit() {
        for (parts, size) in [(2, 500), (4, 250), (5, 200), (8, 125), (10, 100)] {
            for card in [ADA, T4] {
                let got = fill(card, &vec![fraction(size); parts]);
                assert!(got.iter().all(Result::is_ok), "{size}: {got:?}");
                let more = fill(card, &vec![fraction(size); parts + 1]);
                assert!(more[parts].is_err(), "{size}: {more:?}");
            }
        }
    }

    #[test]
    fn the_remainder_is_for_what_reserve_and_allowances_took_only() {
        // 46068 - 568 - (23034 + 512) = 21954 are free; 0.51 misses by 1540, more than 1080.
        assert!(fill(ADA, &[fraction(500), fraction(510)])[1].is_err());
        assert!(
            fill(ADA, &[Amount::Memory(Mib(23_600)), fraction(500)])[1].is_err(),
            "a MiB request took it, not the reserve"
        );
    }

    #[test]
    fn what_a_stranger_took_is_not_made_up_for() {
        let card = CardMemory {
            cap: Mib(40_000),
            ..ADA
        };
        assert!(fill(card, &[fraction(500), fraction(500)])[1].is_err());
    }

    #[test]
    fn a_whole_fraction_is_the_card() {
        assert_eq!(fill(ADA, &[fraction(1000)]), [Ok(45_500)]);
    }

    #[test]
    fn amounts_beyond_any_card_are_refused_not_wrapped() {
        assert!(fill(ADA, &[Amount::Memory(Mib(u64::MAX))])[0].is_err());
        assert!(fill(ADA, &[Amount::Fraction(NanoGpu(u64::MAX))])[0].is_err());
        assert!(fill(CardMemory::default(), &[fraction(500)])[0].is_err());
    }

    #[test]
    fn nano_is_exact_for_fractions_and_rounds_down_for_memory() {
        assert_eq!(nano(fraction(500), Mib(46_068)), NanoGpu(500_000_000));
        assert_eq!(
            nano(Amount::Memory(Mib(2000)), Mib(46_068)),
            NanoGpu(43_414_083)
        );
        assert_eq!(nano(Amount::Memory(Mib(2000)), Mib(0)), NanoGpu::ONE);
    }
}
