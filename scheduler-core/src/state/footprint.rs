//! The footprint of a pod on a card: the most that its containers hold there at one time.
//!
//! Input: the holds of one pod, in the order in which its containers start. Output: a footprint for
//! each card. The rule is the one by which Kubernetes counts requests: an init container has ended
//! before the next container starts, and every other container runs until the pod ends.

use crate::state::card_use::{CardSums, square};
use crate::state::hold::Hold;
use crate::state::keys::CardKey;
use crate::units::Mib;

/// What one pod takes of one card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Footprint {
    pub sums: CardSums,
    /// The amount that queues are charged, in nano-GPU.
    pub nano: u128,
}

impl Footprint {
    /// Returns the footprint of the holds on one card, in the order in which their containers start.
    pub(crate) fn of<'a>(holds: impl Iterator<Item = &'a Hold>) -> Self {
        let (mut running, mut most) = (Self::default(), Self::default());
        let mut sizes = Sizes::default();
        for hold in holds {
            let with = running.with(hold);
            most = most.max(with);
            if !hold.init {
                running = with;
            }
            sizes.add(hold.top());
        }
        most.sums.squares = sizes.squares(most.sums.holds());
        most
    }

    fn with(mut self, hold: &Hold) -> Self {
        self.sums
            .add(hold.limit, hold.top(), hold.nominal, hold.mode);
        self.nano += u128::from(hold.nano);
        self
    }

    fn max(self, other: Self) -> Self {
        Self {
            sums: self.sums.max(other.sums),
            nano: self.nano.max(other.nano),
        }
    }
}

/// The limits of all holds of one pod on a card. They show whether the one default limit of a server
/// fits all of them, at whatever time they run.
#[derive(Default)]
struct Sizes {
    first: Option<Mib>,
    differ: bool,
    squares: u64,
}

impl Sizes {
    fn add(&mut self, top: Mib) {
        let first = *self.first.get_or_insert(top);
        self.differ |= first != top;
        self.squares = self.squares.wrapping_add(square(top));
    }

    /// Returns the sum of squares that [`CardSums::all_have`] needs for that many holds. If the limits
    /// differ, this is the sum over all of them. It is larger than the sum for equal limits with the
    /// same total, so `all_have` returns false for every limit.
    fn squares(&self, holds: u32) -> u64 {
        match self.first {
            Some(first) if !self.differ => u64::from(holds).wrapping_mul(square(first)),
            _ => self.squares,
        }
    }
}

/// Returns what a pod with these holds takes of each card.
pub(crate) fn of_pod(holds: &[Hold]) -> impl Iterator<Item = (CardKey, Footprint)> + '_ {
    let cards = holds.iter().enumerate().filter(|(at, hold)| {
        let before = holds.iter().take(*at);
        before.into_iter().all(|other| other.card != hold.card)
    });
    cards.map(|(at, hold)| {
        let own = holds.iter().skip(at);
        let own = own.filter(|other| other.card == hold.card);
        (hold.card, Footprint::of(own))
    })
}

/// Returns the most that other containers of the pod hold of a card while one container runs.
/// `others` are their holds on the card, each with its position in the starting order. `place` is the
/// position of the one container, and `init` is true if it ends before the next container starts.
pub(crate) fn beside<'a>(
    others: impl Iterator<Item = (usize, &'a Hold)>,
    place: usize,
    init: bool,
) -> CardSums {
    let (mut running, mut most) = (Footprint::default(), Footprint::default());
    let mut sizes = Sizes::default();
    for (at, hold) in others {
        sizes.add(hold.top());
        let with = running.with(hold);
        if at > place && !init {
            most = most.max(with);
        }
        if !hold.init && (at < place || !init) {
            running = with;
        }
    }
    let mut sums = most.max(running).sums;
    sums.squares = sizes.squares(sums.holds());
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ContainerName;
    use crate::model::Mode;
    use crate::units::Percent;

    fn hold(init: bool, limit: u64) -> Hold {
        Hold {
            container: ContainerName::new("c"),
            init,
            card: CardKey::default(),
            limit: Mib(limit),
            burst: None,
            nominal: Mib(limit),
            nano: limit,
            compute: Percent::FULL,
            mode: Mode::Mps,
            note: None,
            asked: None,
        }
    }

    fn footprint(holds: &[Hold]) -> (u128, u32) {
        let all: Vec<_> = of_pod(holds).collect();
        let [(_, one)] = all.as_slice() else {
            panic!("{all:?}");
        };
        assert_eq!((one.nano, one.sums.nominal), (one.sums.limits, one.nano));
        (one.sums.limits, one.sums.holds())
    }

    #[test]
    fn containers_that_run_in_turn_count_as_the_larger() {
        let (init, app) = (true, false);
        for (holds, takes) in [
            (vec![(init, 40), (app, 40)], (40, 1)),
            (vec![(init, 30), (init, 60), (app, 40)], (60, 1)),
            (vec![(init, 30), (app, 20), (app, 20)], (40, 2)),
            // A sidecar runs beside every container that starts after it.
            (vec![(app, 20), (init, 60), (app, 40)], (80, 2)),
            (vec![(init, 60), (app, 20), (app, 40)], (60, 2)),
        ] {
            let all: Vec<_> = holds
                .iter()
                .map(|(init, size)| hold(*init, *size))
                .collect();
            assert_eq!(footprint(&all), takes, "{holds:?}");
        }
    }

    #[test]
    fn a_limit_is_the_one_of_all_only_if_every_container_has_it() {
        let all_have =
            |holds: &[Hold], limit| Footprint::of(holds.iter()).sums.all_have(Mib(limit));
        assert!(all_have(&[hold(true, 40), hold(false, 40)], 40));
        let differ = [hold(true, 40), hold(false, 30)];
        assert!(!all_have(&differ, 40) && !all_have(&differ, 30));
        let differ = [hold(true, 40), hold(false, 20), hold(false, 20)];
        assert!(!all_have(&differ, 40) && !all_have(&differ, 20));
    }

    #[test]
    fn a_container_runs_beside_those_that_have_not_ended() {
        // The sidecar holds 10, the init container 60, and the app 20.
        let all = [hold(false, 10), hold(true, 60), hold(false, 20)];
        let beside = |place: usize| {
            let others = all.iter().enumerate().filter(|(at, _)| *at != place);
            beside(others, place, all[place].init).limits
        };
        assert_eq!([beside(0), beside(1), beside(2)], [60, 10, 10]);
    }
}
