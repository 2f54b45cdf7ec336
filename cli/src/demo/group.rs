//! A group of parts of the demo's cluster, which start and end together.

use anyhow::anyhow;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The time between the request to stop and the end.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A group of parts that start and end together.
#[derive(Debug, Default)]
pub(super) struct Group {
    pub(super) tasks: JoinSet<anyhow::Result<()>>,
    pub(super) stop: CancellationToken,
}

impl Group {
    pub(super) async fn broken(&mut self) -> anyhow::Error {
        match self.tasks.join_next().await {
            None => std::future::pending().await,
            Some(Ok(Ok(()))) => anyhow!("a part of the cluster ended"),
            Some(Ok(Err(error))) => error,
            Some(Err(error)) => error.into(),
        }
    }

    pub(super) async fn end(mut self) {
        self.stop.cancel();
        let tasks = &mut self.tasks;
        let all = async { while tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(LAST_WORDS, all).await.is_err() {
            tracing::warn!(left = self.tasks.len(), "some parts did not end in time");
        }
        self.tasks.shutdown().await;
    }
}
