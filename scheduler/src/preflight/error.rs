//! The errors for which a scheduler is not started.

/// The scheduler is not started for this reason.
#[derive(Debug, thiserror::Error)]
pub enum PreflightError {
    /// Another scheduler serves the same pods.
    #[error(
        "the KAI Scheduler runs ({pod}) for the same pods: schedulerName {scheduler}, {pool}. \
         Scale it to zero, give one of the two another scheduler name and node pool, or only observe (--observe)"
    )]
    Kai {
        /// The other scheduler's pod, as `namespace/name`.
        pod: String,
        /// The `schedulerName` of both.
        scheduler: String,
        /// The node pool of both.
        pool: String,
    },
    /// A custom resource definition has fields of other types than the scheduler reads.
    #[error("definition {definition} has another shape: {why}")]
    Shape {
        /// The name of the definition.
        definition: String,
        /// The first difference.
        why: String,
    },
    /// The API server refuses a request.
    #[error("cannot {what}: {source}")]
    Api {
        /// The request in words, such as "list pods".
        what: &'static str,
        /// The answer of the API server.
        #[source]
        source: Box<kube::Error>,
    },
}
