//! What a node reports to others: messages, status, metrics, and the streams that carry them,
//! against servers of the test's own.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod metrics;
mod publish;
mod report;
mod sample;
mod slice;
mod status;
mod stream;

use std::time::{Duration, Instant};

/// Polls until it is so; twenty seconds are a failure.
async fn until<T>(what: &str, mut so: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(value) = so().await {
            return value;
        }
        assert!(Instant::now() < deadline, "not within 20 s: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
