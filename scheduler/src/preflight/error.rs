//! Why a scheduler is not started.

/// Why nothing is started.
#[derive(Debug, thiserror::Error)]
pub enum PreflightError {
    /// Two schedulers for one pod.
    #[error(
        "the KAI Scheduler runs ({pod}) for the same pods: schedulerName {scheduler}, {pool}. \
         Scale it to zero, give one of the two another scheduler name and node pool, or only observe (--observe)"
    )]
    Kai {
        /// `namespace/name`.
        pod: String,
        /// Whose pods.
        scheduler: String,
        /// In which node pool.
        pool: String,
    },
    /// A definition that we cannot work with.
    #[error("definition {definition} has another shape: {why}")]
    Shape {
        /// Its name.
        definition: String,
        /// The error.
        why: String,
    },
    /// The API server refuses to say.
    #[error("cannot {what}: {source}")]
    Api {
        /// "list pods", say.
        what: &'static str,
        /// Its words.
        #[source]
        source: Box<kube::Error>,
    },
}
