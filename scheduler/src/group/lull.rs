//! When pods that do not wait for their group may be grouped: once bindings rest, and now
//! and then where they never do.
//!
//! A group costs the API server as much as several bindings. Bindings come in bursts with
//! gaps between two decisions, and the first burst soon after a replica has begun to lead.

use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Bindings rest when they were few for so long.
const REST: Duration = Duration::from_millis(500);
/// Where they do not rest, some have their turn so long after the last.
const TURN: Duration = Duration::from_secs(5);

/// See above.
#[derive(Debug)]
pub(super) struct Lull {
    busy: watch::Receiver<bool>,
    /// When bindings began or ceased to be many.
    since: Instant,
    /// When somebody had a turn, or nobody wanted one.
    turn: Instant,
}

impl Lull {
    pub(super) fn new(busy: watch::Receiver<bool>) -> Self {
        let now = Instant::now();
        Self {
            busy,
            since: now,
            turn: now,
        }
    }

    /// This replica leads from now on.
    pub(super) fn begin(&mut self) {
        self.since = Instant::now();
        self.turn = self.since;
    }

    /// When it is there, as far as is known.
    pub(super) fn at(&self) -> Instant {
        let turn = self.turn + TURN;
        if *self.busy.borrow() {
            turn
        } else {
            turn.min(self.since + REST)
        }
    }

    /// Somebody has a turn, or nobody wants one.
    pub(super) fn taken(&mut self) {
        self.turn = Instant::now();
    }

    /// Returns when bindings are many, or no longer.
    pub(super) async fn changed(&mut self) {
        if self.busy.changed().await.is_err() {
            // Who bound has ended: nobody is in the way any more.
            std::future::pending::<()>().await;
        }
        self.since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_is_there_when_bindings_have_been_few_for_a_while_and_now_and_then() {
        let (many, busy) = watch::channel(false);
        let mut lull = Lull::new(busy);
        let begin = Instant::now();
        assert_eq!(lull.at(), begin + REST);
        many.send_replace(true);
        lull.changed().await;
        assert_eq!(lull.at(), begin + TURN);
        // A gap that is over before anybody looks is no lull.
        tokio::time::advance(REST).await;
        many.send_replace(false);
        many.send_replace(true);
        many.send_replace(false);
        lull.changed().await;
        assert_eq!(lull.at(), begin + REST + REST);
        many.send_replace(true);
        lull.changed().await;
        tokio::time::advance(TURN).await;
        assert!(lull.at() <= Instant::now());
        lull.taken();
        assert_eq!(lull.at(), Instant::now() + TURN);
    }
}
