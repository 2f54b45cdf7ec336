//! The task that makes forecasts, apart from decisions.
//!
//! In: a fork of a cycle's core. Out: estimates, which the cycle reads when it is asked. The work runs
//! on a thread of its own, in place in a simulated world.

use super::estimate::{Estimate, Forecast};
use super::play::{Budget, forecast};
use crate::convert::run_time::RunTime;
use crate::off_thread;
use crate::status::Meters;
use scheduler_core::Core;
use scheduler_core::ids::PodUid;
use scheduler_core::units::Time;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Least time between two forecasts of a cycle.
pub(crate) const PACE: Duration = Duration::from_secs(30);
/// Time after which a forecast is made again though nothing has changed: pods run longer than they
/// were expected to.
pub(crate) const AGAIN: Duration = Duration::from_mins(5);

/// What one forecast is made of.
pub(crate) struct Fork {
    pub(crate) core: Core,
    pub(crate) run_times: BTreeMap<PodUid, RunTime>,
    pub(crate) now: Time,
}

/// The estimates of the last forecast, and the first estimate of each pod that still waits.
#[derive(Debug, Default)]
pub(crate) struct Estimates {
    pub(crate) last: Forecast,
    first: BTreeMap<PodUid, FirstEstimate>,
}

#[derive(Clone, Copy, Debug)]
struct FirstEstimate {
    made: Time,
    start: Time,
}

impl Estimates {
    /// Takes in a new forecast.
    fn renew(&mut self, forecast: Forecast) {
        self.first.retain(|pod, _| forecast.pods.contains_key(pod));
        for (pod, estimate) in &forecast.pods {
            if let Estimate::About { time, .. } = *estimate
                && time > forecast.made
            {
                let first = FirstEstimate {
                    made: forecast.made,
                    start: time,
                };
                self.first.entry(pod.clone()).or_insert(first);
            }
        }
        self.last = forecast;
    }

    /// Returns how far the first estimate of a pod was off that starts now, as a part of its wait since
    /// that estimate. `None`: there was no estimate.
    #[allow(clippy::cast_precision_loss)] // Milliseconds of some days.
    pub(crate) fn error(&self, pod: &PodUid, now: Time) -> Option<f64> {
        let first = self.first.get(pod)?;
        let wait = now.since(first.made).0.max(1);
        Some(now.0.abs_diff(first.start.0) as f64 / wait as f64)
    }
}

/// The channels of the cycle, to the task and from it.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) forks: mpsc::Sender<Fork>,
    pub(crate) estimates: watch::Receiver<Estimates>,
}

/// The other ends of the channels, which the task has.
pub(crate) struct Links {
    forks: mpsc::Receiver<Fork>,
    estimates: watch::Sender<Estimates>,
    meters: Arc<Meters>,
}

impl Line {
    /// Makes the channels, with their other ends.
    pub(crate) fn new(meters: Arc<Meters>) -> (Self, Links) {
        let (forks, forks_in) = mpsc::channel(1);
        let (estimates_out, estimates) = watch::channel(Estimates::default());
        let links = Links {
            forks: forks_in,
            estimates: estimates_out,
            meters,
        };
        (Self { forks, estimates }, links)
    }
}

impl std::fmt::Debug for Fork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fork").finish_non_exhaustive()
    }
}

/// Makes forecasts until `stop`, or until the cycle has ended.
pub(crate) async fn run(mut links: Links, stop: CancellationToken) {
    loop {
        let fork = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            fork = links.forks.recv() => fork,
        };
        let Some(fork) = fork else { return };
        let begin = Instant::now();
        let budget = Budget::of_one();
        let made = off_thread::run(move || forecast(fork.core, &fork.run_times, fork.now, budget));
        match made.await {
            Ok(forecast) => {
                links.meters.forecast(begin.elapsed());
                links
                    .estimates
                    .send_modify(|estimates| estimates.renew(forecast));
            }
            Err(error) => tracing::error!(%error, "a forecast of start times failed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::run_time::Basis;
    use prometheus_client::registry::Registry;
    use scheduler_core::{Config, text};

    const EVENTS: &str = "tick 1000000\nqueue q gpu=-1/-1/1\nnode n cpu=4000 pods=10 gpus=1\n\
        pod runs queue=q gpus.main=1 phase=running on=n\npod waits queue=q gpus.main=1 created=1\n";

    #[tokio::test]
    async fn a_fork_is_answered_by_estimates_and_the_first_one_is_what_counts() {
        let meters = Arc::new(Meters::registered(&mut Registry::default()));
        let (mut line, links) = Line::new(meters);
        let stop = CancellationToken::new();
        let task = tokio::spawn(run(links, stop.clone()));
        let uid = PodUid::new("waits");
        // The pod that runs is expected to end after 100 s, then after 300 s.
        for seconds in [100, 300] {
            let mut core = Core::new(Config::verified());
            for event in text::read(EVENTS).unwrap() {
                core.apply(event);
            }
            let run = RunTime {
                length: scheduler_core::units::Duration::seconds(seconds),
                basis: Basis::Said,
                started: Some(Time(1_000_000)),
            };
            let fork = Fork {
                core,
                run_times: [(PodUid::new("runs"), run)].into(),
                now: Time(1_000_000),
            };
            line.forks.try_send(fork).unwrap();
            line.estimates.changed().await.unwrap();
            let told = line.estimates.borrow().last.line(&uid, Time(1_000_000));
            let words = if seconds == 100 {
                "(in 1 min 40 s)"
            } else {
                "(in 5 min)"
            };
            assert!(told.unwrap().contains(words));
        }
        let estimates = line.estimates.borrow();
        let error = estimates.error(&uid, Time(1_400_000)).unwrap();
        assert!((error - 0.75).abs() < 1e-9, "{error}");
        assert_eq!(estimates.error(&PodUid::new("runs"), Time(1_400_000)), None);
        stop.cancel();
        task.await.unwrap();
    }
}
