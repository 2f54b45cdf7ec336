//! When pods that need not wait for their group get it: once few bindings are being sent, and from
//! time to time if there are always many.
//!
//! A group costs the API server as much as several bindings. Bindings come in bursts with gaps
//! between two decisions, and the first burst comes soon after a replica has begun to lead.

use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// There have to be few bindings for this long.
const REST: Duration = Duration::from_millis(500);
/// If there are always many, some pods get their turn this long after the last.
const TURN: Duration = Duration::from_secs(5);

/// When the next turn is.
#[derive(Debug)]
pub(super) struct QuietPeriod {
    busy: watch::Receiver<bool>,
    /// When there began to be many bindings, or few.
    since: Instant,
    /// When a pod last had a turn, or no pod needed one.
    turn: Instant,
}

impl QuietPeriod {
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

    /// When the next turn is, as far as is known.
    pub(super) fn at(&self) -> Instant {
        let turn = self.turn + TURN;
        if *self.busy.borrow() {
            turn
        } else {
            turn.min(self.since + REST)
        }
    }

    /// A pod has its turn now, or no pod needs one.
    pub(super) fn taken(&mut self) {
        self.turn = Instant::now();
    }

    /// Returns when many bindings begin to be sent, or cease.
    pub(super) async fn changed(&mut self) {
        if self.busy.changed().await.is_err() {
            // The binder has ended: there are no more bindings.
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
        let mut quiet_period = QuietPeriod::new(busy);
        let begin = Instant::now();
        assert_eq!(quiet_period.at(), begin + REST);
        many.send_replace(true);
        quiet_period.changed().await;
        assert_eq!(quiet_period.at(), begin + TURN);
        // A gap that is over before it is checked is no quiet period.
        tokio::time::advance(REST).await;
        many.send_replace(false);
        many.send_replace(true);
        many.send_replace(false);
        quiet_period.changed().await;
        assert_eq!(quiet_period.at(), begin + REST + REST);
        many.send_replace(true);
        quiet_period.changed().await;
        tokio::time::advance(TURN).await;
        assert!(quiet_period.at() <= Instant::now());
        quiet_period.taken();
        assert_eq!(quiet_period.at(), Instant::now() + TURN);
    }
}
