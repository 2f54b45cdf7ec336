//! Other schedulers in the cluster, which must be known before anything starts.
//!
//! - `kai`: a KAI Scheduler that takes the pods that we would take.
//! - `crd_schema`: definitions whose objects are not those that we read and write.
//!
//! In: the API server, once. Out: [`PreflightError`], or nothing. Changes nothing.

mod crd_schema;
mod error;
mod kai;

pub use error::PreflightError;
pub use kai::PodSelection;

use kube::Client;
use std::time::Duration;

/// Between two tries against an API server that does not answer.
const RETRY: Duration = Duration::from_secs(1);

/// Checks that no other scheduler has this scheduler name and node pool. Returns what [`shapes`] does.
///
/// # Errors
/// There is none, or the API server refuses to say.
pub async fn clear(client: &Client, territory: &PodSelection) -> Result<bool, PreflightError> {
    alone(client, territory).await?;
    shapes(client).await
}

/// Checks only for a KAI Scheduler of the same name and node pool.
///
/// # Errors
/// As [`clear`].
pub async fn alone(client: &Client, territory: &PodSelection) -> Result<(), PreflightError> {
    until_answered(|| kai::look(client, territory)).await
}

/// Checks only the CRDs. Returns whether pod groups have `status.phase`, `running` and `pending`, which
/// KAI removed in 0.16.
///
/// # Errors
/// As [`clear`].
pub async fn shapes(client: &Client) -> Result<bool, PreflightError> {
    until_answered(|| crd_schema::look(client)).await
}

async fn until_answered<F, T>(look: impl Fn() -> F) -> Result<T, PreflightError>
where
    F: Future<Output = Result<T, PreflightError>>,
{
    loop {
        match look().await {
            Err(error) if passes(&error) => {
                tracing::warn!(%error, "trying again");
                tokio::time::sleep(RETRY).await;
            }
            done => return done,
        }
    }
}

/// Worth another try.
fn passes(error: &PreflightError) -> bool {
    let PreflightError::Api { source, .. } = error else {
        return false;
    };
    match source.as_ref() {
        kube::Error::Api(status) => matches!(status.code, 409 | 429 | 500..),
        kube::Error::HyperError(_) | kube::Error::Service(_) | kube::Error::ReadEvents(_) => true,
        _ => false,
    }
}
