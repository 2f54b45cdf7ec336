//! A client whose writes are sent only while this replica holds the lease.
//!
//! Bindings, evictions, conditions, statuses, groups and events go through [`client`]; reads
//! pass. It is asked at the moment at which a write is sent, so that a process that stood
//! still longer than its lease lasts sends nothing of what it had decided before.

use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tower::BoxError;

/// Why a write was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotLeading {
    /// It never left this process.
    #[error("not sent: this replica does not hold the lease")]
    NotSent,
    /// It was under way when the lease ran out: nobody knows whether it was taken.
    #[error("given up: the lease ran out")]
    GivenUp,
}

/// Whether this replica may write, as `crate::lease` says.
#[derive(Clone, Debug)]
pub struct Leadership {
    /// Until when; `None`: not at all.
    deadline: watch::Receiver<Option<Instant>>,
    under_way: TaskTracker,
}

/// The other end of a [`Leadership`].
#[derive(Debug)]
pub struct Grantor {
    deadline: watch::Sender<Option<Instant>>,
    under_way: TaskTracker,
}

/// Both ends. Nothing may be written before the first [`Grantor::until`].
pub fn leadership() -> (Grantor, Leadership) {
    let (sender, deadline) = watch::channel(None);
    let under_way = TaskTracker::new();
    let grantor = Grantor {
        deadline: sender,
        under_way: under_way.clone(),
    };
    (
        grantor,
        Leadership {
            deadline,
            under_way,
        },
    )
}

impl Grantor {
    /// Writes may be sent until then; `None`: none may, and those under way go on.
    pub fn until(&self, deadline: Option<Instant>) {
        self.deadline.send_replace(deadline);
    }

    /// Whoever asks may always write: there is no other replica.
    pub fn for_ever(&self) {
        // Thirty years: what tokio calls far in the future.
        let years = Duration::from_hours(30 * 365 * 24);
        self.until(Some(Instant::now() + years));
    }

    /// Waits until no write is under way.
    pub async fn written(&self) {
        self.under_way.close();
        self.under_way.wait().await;
    }
}

impl Leadership {
    fn until(&self) -> Option<Instant> {
        let deadline = *self.deadline.borrow();
        deadline.filter(|deadline| Instant::now() < *deadline)
    }

    /// Sends a write, if it may be sent now, and gives it up when the lease runs out.
    async fn send<T>(&self, write: impl Future<Output = kube::Result<T>>) -> Result<T, BoxError> {
        let mut until = self.until().ok_or(NotLeading::NotSent)?;
        let mut write = std::pin::pin!(self.under_way.track_future(write));
        loop {
            match tokio::time::timeout_at(until, &mut write).await {
                Ok(answer) => return Ok(answer?),
                // Renewed meanwhile, perhaps.
                Err(_) => until = self.until().ok_or(NotLeading::GivenUp)?,
            }
        }
    }
}

/// As `client`, but writes only under `leadership`.
pub fn client(client: Client, leadership: Leadership) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(
        move |request: Request<Body>| -> BoxFuture<'static, Result<Response<Body>, BoxError>> {
            let (client, leadership) = (client.clone(), leadership.clone());
            let reads = matches!(
                *request.method(),
                Method::GET | Method::HEAD | Method::OPTIONS
            );
            async move {
                if reads {
                    return Ok(client.send(request).await?);
                }
                leadership.send(client.send(request)).await
            }
            .boxed()
        },
    );
    Client::new(service, namespace)
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
        grantor.until(Some(Instant::now() + Duration::from_secs(8)));
        assert_eq!(
            leadership
                .send(async { kube::Result::Ok(7_u8) })
                .await
                .unwrap(),
            7
        );
        // The process stands still for longer than the lease lasts.
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
        grantor.until(Some(begin + Duration::from_secs(8)));
        let renewals = async {
            for second in 1..=5 {
                tokio::time::sleep_until(begin + Duration::from_secs(second)).await;
                grantor.until(Some(begin + Duration::from_secs(second + 8)));
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
        grantor.until(Some(Instant::now() + Duration::from_secs(8)));
        let write = leadership.send(async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            Ok(7_u8)
        });
        let begin = Instant::now();
        let release = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            grantor.until(None);
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
