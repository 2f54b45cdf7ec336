//! The lease's word on whether this replica may write.

use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tower::BoxError;

/// A write was not sent, or was given up, for this reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotLeading {
    /// The write never left this process.
    #[error("not sent: this replica does not hold the lease")]
    NotSent,
    /// The write was in flight when the lease ran out. It is unknown whether it was applied.
    #[error("given up: the lease ran out")]
    GivenUp,
}

/// The time until which this replica holds the lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct Term {
    /// The lease holds until then, if it is not renewed.
    until: Instant,
    /// The lease will be given back, so that no write begins.
    closing: bool,
}

/// The right of this replica to write, which `crate::lease` grants.
#[derive(Clone, Debug)]
pub struct Leadership {
    term: watch::Receiver<Option<Term>>,
    under_way: TaskTracker,
}

/// The end of a [`Leadership`] that grants it.
#[derive(Debug)]
pub struct Grantor {
    term: watch::Sender<Option<Term>>,
    under_way: TaskTracker,
}

/// Makes both ends. Nothing may be written before the first [`Grantor::extend`].
pub fn leadership() -> (Grantor, Leadership) {
    let (sender, term) = watch::channel(None);
    let under_way = TaskTracker::new();
    let grantor = Grantor {
        term: sender,
        under_way: under_way.clone(),
    };
    (grantor, Leadership { term, under_way })
}

impl Grantor {
    /// Writes may be sent until then.
    pub fn extend(&self, until: Instant) {
        let closing = false;
        self.term.send_replace(Some(Term { until, closing }));
    }

    /// Writes may always be sent: there is no other replica.
    pub fn for_ever(&self) {
        // Thirty years: what tokio calls far in the future.
        let years = Duration::from_hours(30 * 365 * 24);
        self.extend(Instant::now() + years);
    }

    /// No write begins any more; those under way may end while the lease lasts.
    pub fn close(&self) {
        self.term.send_modify(|term| {
            if let Some(term) = term {
                term.closing = true;
            }
        });
    }

    /// Ends the right to write: nothing more is sent.
    pub fn revoke(&self) {
        self.term.send_replace(None);
    }

    /// Waits until no write is under way.
    pub async fn written(&self) {
        self.under_way.close();
        self.under_way.wait().await;
    }
}

impl Leadership {
    /// Returns the lease. `None`: it has run out.
    pub(super) fn term(&self) -> Option<Term> {
        let term = *self.term.borrow();
        term.filter(|term| Instant::now() < term.until)
    }

    /// Sends a write, if one may begin now, and gives it up when the lease runs out.
    pub(super) async fn send<T>(
        &self,
        write: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, BoxError> {
        let begins = self.term().filter(|term| !term.closing);
        let mut until = begins.ok_or(NotLeading::NotSent)?.until;
        let mut write = std::pin::pin!(self.under_way.track_future(write));
        loop {
            match tokio::time::timeout_at(until, &mut write).await {
                Ok(answer) => return Ok(answer?),
                // Renewed meanwhile, perhaps.
                Err(_) => until = self.term().ok_or(NotLeading::GivenUp)?.until,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(error: &BoxError) -> Option<NotLeading> {
        error.downcast_ref().copied()
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_is_sent_before_the_deadline_and_not_after_it() {
        let (grantor, leadership) = leadership();
        let refused = leadership
            .send(async { kube::Result::Ok(7_u8) })
            .await
            .unwrap_err();
        assert_eq!(why(&refused), Some(NotLeading::NotSent));
        grantor.extend(Instant::now() + Duration::from_secs(8));
        assert_eq!(
            leadership
                .send(async { kube::Result::Ok(7_u8) })
                .await
                .unwrap(),
            7
        );
        // The process is suspended for longer than the lease lasts.
        tokio::time::advance(Duration::from_secs(9)).await;
        let sent = std::cell::Cell::new(false);
        let late = leadership.send(async {
            sent.set(true);
            kube::Result::Ok(7_u8)
        });
        assert_eq!(why(&late.await.unwrap_err()), Some(NotLeading::NotSent));
        assert!(!sent.get());
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_without_an_answer_is_given_up_when_the_lease_runs_out_and_not_while_it_is_renewed()
     {
        let (grantor, leadership) = leadership();
        let begin = Instant::now();
        grantor.extend(begin + Duration::from_secs(8));
        let renewals = async {
            for second in 1..=5 {
                tokio::time::sleep_until(begin + Duration::from_secs(second)).await;
                grantor.extend(begin + Duration::from_secs(second + 8));
            }
        };
        let write = leadership.send(std::future::pending::<kube::Result<u8>>());
        let (given_up, ()) = tokio::join!(write, renewals);
        assert_eq!(why(&given_up.unwrap_err()), Some(NotLeading::GivenUp));
        assert_eq!(begin.elapsed(), Duration::from_secs(13));
    }

    #[tokio::test(start_paused = true)]
    async fn who_gives_the_lease_back_waits_for_what_is_under_way() {
        let (grantor, leadership) = leadership();
        grantor.extend(Instant::now() + Duration::from_secs(8));
        let write = leadership.send(async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            Ok(7_u8)
        });
        let begin = Instant::now();
        let release = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            grantor.close();
            grantor.written().await;
            begin.elapsed()
        };
        let (answer, waited) = tokio::join!(write, release);
        assert_eq!(answer.unwrap(), 7);
        assert_eq!(waited, Duration::from_secs(2));
        let late = leadership
            .send(async { kube::Result::Ok(7_u8) })
            .await
            .unwrap_err();
        assert_eq!(why(&late), Some(NotLeading::NotSent));
    }
}
