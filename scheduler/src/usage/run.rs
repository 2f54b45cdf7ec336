//! Asks for past use, apart from decisions.
//!
//! In: the settings in force, and the allocations of queues. Out: the last [`UsageResult`]. A
//! failed query is repeated after 1 s, 2 s, 4 s and so on, up to `fetchInterval`.

use super::observed::{ObservedUsage, SAMPLE};
use super::settings::{Settings, Source};
use super::uses::UsageResult;
use super::{UsageMeters, prometheus};
use crate::clock::Wall;
use crate::report::Views;
use backon::{BackoffBuilder as _, ExponentialBuilder};
use scheduler_core::units::Time;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// After the first question that fails.
const RETRY: Duration = Duration::from_secs(1);
/// Time between two checks of the age.
const AGE: Duration = Duration::from_secs(5);
/// Time between two checks before queues are known.
const NOTHING_YET: Duration = Duration::from_secs(1);

/// The cycle's end.
#[derive(Debug)]
pub(crate) struct UsageClient {
    /// The settings in force.
    pub(crate) settings: watch::Sender<Option<Arc<Settings>>>,
    /// The last published one.
    pub(crate) told: watch::Receiver<Option<UsageResult>>,
}

/// The other one.
#[derive(Debug)]
pub(crate) struct UsageQueryChannels {
    settings: watch::Receiver<Option<Arc<Settings>>>,
    told: watch::Sender<Option<UsageResult>>,
    /// The shard's queues and what the cluster has.
    pub(crate) views: watch::Receiver<Views>,
    pub(crate) wall: Wall,
    pub(crate) meters: Arc<UsageMeters>,
    /// Name of the shard's node pool.
    pub(crate) pool: String,
}

impl UsageClient {
    /// A query without an answer.
    pub(crate) fn silent() -> Self {
        Self {
            settings: watch::Sender::new(None),
            told: watch::channel(None).1,
        }
    }

    /// One with its other end.
    pub(crate) fn new(
        views: watch::Receiver<Views>,
        wall: Wall,
        meters: Arc<UsageMeters>,
        pool: String,
    ) -> (Self, UsageQueryChannels) {
        let (settings, settings_in) = watch::channel(None);
        let (told_out, told) = watch::channel(None);
        let links = UsageQueryChannels {
            settings: settings_in,
            told: told_out,
            views,
            wall,
            meters,
            pool,
        };
        (Self { settings, told }, links)
    }
}

/// Queries until `stop`, or until the cycle has ended.
pub(crate) async fn run(mut links: UsageQueryChannels, stop: CancellationToken) {
    let mut observed = ObservedUsage::default();
    loop {
        let settings = links.settings.borrow_and_update().clone();
        let in_memory = |settings: &Arc<Settings>| settings.source == Source::InMemory;
        if !settings.as_ref().is_some_and(in_memory) {
            observed = ObservedUsage::default();
        }
        let mut changes = links.settings.clone();
        let follow = async {
            match &settings {
                Some(settings) => links.follow(settings, &mut observed).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            changed = changes.changed() => if changed.is_err() { return },
            () = follow => {}
        }
        links.meters.forget(&links.pool);
    }
}

impl UsageQueryChannels {
    /// Queries without end.
    async fn follow(&self, settings: &Arc<Settings>, observed: &mut ObservedUsage) {
        let mut answered = Instant::now();
        let interval = Duration::from_millis(settings.fetch_interval.0);
        let backoff = ExponentialBuilder::new()
            .with_min_delay(RETRY.min(interval))
            .with_max_delay(interval)
            .without_max_times();
        let mut pauses = backoff.build();
        // What is wrong is logged once, not after each query.
        let mut logged = String::new();
        loop {
            let begin = Instant::now();
            let at = self.now();
            let ask = async {
                match &settings.source {
                    Source::Prometheus(_) => prometheus::ask(settings, at).await,
                    Source::InMemory => {
                        self.look(observed).await;
                        Ok(observed.uses(settings, self.now()))
                    }
                }
            };
            let result = self.ageing(answered, ask).await;
            self.meters
                .asked(&self.pool, result.is_ok(), begin.elapsed());
            let next = if result.is_ok() {
                (answered, pauses) = (begin, backoff.build());
                begin + interval
            } else {
                Instant::now() + pauses.next().unwrap_or(interval)
            };
            let told = UsageResult {
                settings: Arc::clone(settings),
                at,
                result: result.map(Arc::new).map_err(Arc::from),
            };
            match &told.result {
                Ok(_) => logged.clear(),
                Err(why) if **why == *logged => {}
                Err(why) => {
                    tracing::warn!(pool = self.pool, "past use: {why}");
                    logged = why.to_string();
                }
            }
            self.told.send_replace(Some(told));
            self.ageing(answered, self.wait(settings, observed, next))
                .await;
        }
    }

    /// Until the next query; in the meantime allocations of queues are recorded, if no other
    /// component does.
    async fn wait(&self, settings: &Settings, observed: &mut ObservedUsage, until: Instant) {
        if settings.source != Source::InMemory {
            return tokio::time::sleep_until(until).await;
        }
        let sample = Duration::from_millis(SAMPLE.0);
        loop {
            let next = Instant::now() + sample;
            if until <= next {
                return tokio::time::sleep_until(until).await;
            }
            tokio::time::sleep_until(next).await;
            self.look(observed).await;
        }
    }

    /// Notes what queues hold, once the cluster is known.
    async fn look(&self, observed: &mut ObservedUsage) {
        loop {
            {
                let views = self.views.borrow();
                if views.capacity != [0; 3] {
                    let held = views.queues.iter().map(|view| (&view.queue, view.held));
                    return observed.sample(self.now(), held, views.capacity);
                }
            }
            tokio::time::sleep(NOTHING_YET).await;
        }
    }

    /// Something, while the age of the last answer is shown.
    async fn ageing<T>(&self, answered: Instant, what: impl Future<Output = T>) -> T {
        let mut what = std::pin::pin!(what);
        loop {
            self.meters.age(&self.pool, answered.elapsed());
            if let Ok(done) = tokio::time::timeout(AGE, &mut what).await {
                return done;
            }
        }
    }

    fn now(&self) -> Time {
        let millis = self.wall.now().as_millisecond();
        Time(u64::try_from(millis).unwrap_or_default())
    }
}
