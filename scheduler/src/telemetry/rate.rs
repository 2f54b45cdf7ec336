//! A client without an accepted token may make the scheduler ask the API server only so often, here
//! and at the status page.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;
use tokio::time::Instant;

/// Number of refused tokens of one address after which its tokens are not reviewed for a while. An
/// agent's own token is refused now and then, while it is renewed.
const REFUSALS: u32 = 5;
/// How long.
const PAUSE: Duration = Duration::from_secs(10);
/// Addresses that are remembered; beyond those all are forgotten.
const KEPT: usize = 4096;

/// Refused tokens by address. Pure: time is an argument.
#[derive(Debug, Default)]
pub(crate) struct Refusals(HashMap<IpAddr, (u32, Instant)>);

impl Refusals {
    /// Whether that address has to wait.
    pub(crate) fn must_wait(&self, peer: IpAddr, now: Instant) -> bool {
        self.0
            .get(&peer)
            .is_some_and(|(count, last)| *count >= REFUSALS && now < *last + PAUSE)
    }

    /// A token from there was refused.
    pub(crate) fn refused(&mut self, peer: IpAddr, now: Instant) {
        if self.0.len() >= KEPT {
            self.0.clear();
        }
        let (count, last) = self.0.entry(peer).or_insert((0, now));
        *count = if now >= *last + PAUSE { 1 } else { *count + 1 };
        *last = now;
    }

    /// One was accepted.
    pub(crate) fn accepted(&mut self, peer: IpAddr) {
        self.0.remove(&peer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_refused_time_and_again_has_to_wait_and_nobody_else() {
        let (one, other) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let mut refusals = Refusals::default();
        let start = Instant::now();
        for _ in 0..REFUSALS {
            assert!(!refusals.must_wait(one, start));
            refusals.refused(one, start);
        }
        assert!(refusals.must_wait(one, start) && !refusals.must_wait(other, start));
        assert!(!refusals.must_wait(one, start + PAUSE));
        refusals.refused(one, start + PAUSE);
        assert!(
            !refusals.must_wait(one, start + PAUSE),
            "counted from the beginning"
        );
        for _ in 0..REFUSALS {
            refusals.refused(other, start);
        }
        refusals.accepted(other);
        assert!(!refusals.must_wait(other, start));
    }
}
