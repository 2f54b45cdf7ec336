//! Polling a condition until a deadline.
//!
//! In: a probe that answers "not yet" (with what it saw) or a value. Out: the value, or an error
//! that says what was awaited and what was last seen. Must never be used to let time pass: a wait
//! names what it waits for.

use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// The shortest pause between two checks of a condition.
const INTERVAL: Duration = Duration::from_millis(30);
/// The longest.
const LONGEST: Duration = Duration::from_millis(500);
/// What is waited for is seen late by at most this part of the time that it took, or by the
/// shortest pause. More often is not better: each check is a request, and a list of a hundred pods, read every 30 ms, takes the
/// API server and the test a core that the pods wait for.
const PART: u32 = 32;

/// The factor by which all limits are longer on a slow node.
static PATIENCE: AtomicU32 = AtomicU32::new(1);

/// Makes every limit longer by this factor from now on. An emulated node needs that.
pub fn patience(factor: u32) {
    PATIENCE.store(factor, Ordering::Relaxed);
}

/// The pause before the next check of a wait that has lasted so long.
fn pause(since: Duration) -> Duration {
    (since / PART).clamp(INTERVAL, LONGEST)
}

/// What a probe saw.
#[derive(Debug)]
pub enum Seen<T> {
    /// It is so.
    Done(T),
    /// Not yet; what was seen instead, for the error message.
    NotYet(String),
    /// It never will be.
    Never(anyhow::Error),
}

impl<T> Seen<T> {
    /// `Done` if there is a value.
    pub fn from_option(value: Option<T>, otherwise: impl Into<String>) -> Self {
        value.map_or_else(|| Self::NotYet(otherwise.into()), Self::Done)
    }
}

impl Seen<()> {
    /// `Done` if the condition holds.
    pub fn when(holds: bool, otherwise: impl Into<String>) -> Self {
        if holds {
            Self::Done(())
        } else {
            Self::NotYet(otherwise.into())
        }
    }
}

/// Polls until `probe` is done.
///
/// An error of the probe counts as "not yet": a daemon that is starting refuses
/// connections. The last one is in the message when the deadline passes.
pub async fn until<T, F, Fut>(what: &str, limit: Duration, mut probe: F) -> Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<Seen<T>>>,
{
    let start = Instant::now();
    let limit = limit * PATIENCE.load(Ordering::Relaxed);
    loop {
        let seen = match probe().await {
            Ok(Seen::Done(value)) => return Ok(value),
            Ok(Seen::NotYet(seen)) => seen,
            Ok(Seen::Never(error)) => return Err(error.context(what.to_owned())),
            Err(error) => format!("{error:#}"),
        };
        if start.elapsed() > limit {
            bail!("{what}: not within {limit:?}; last seen: {seen}");
        }
        tokio::time::sleep(pause(start.elapsed())).await;
    }
}

/// Watches for a while that a condition keeps holding: the one way to test that
/// something does not happen.
pub async fn stays<F, Fut>(what: &str, span: Duration, mut probe: F) -> Result<()>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<Seen<()>>>,
{
    let start = Instant::now();
    while start.elapsed() < span {
        match probe().await? {
            Seen::Done(()) => {}
            Seen::NotYet(seen) => {
                bail!("{what}: held only for {:?}; then: {seen}", start.elapsed())
            }
            Seen::Never(error) => return Err(error.context(what.to_owned())),
        }
        tokio::time::sleep(INTERVAL).await;
    }
    Ok(())
}
