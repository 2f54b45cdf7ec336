//! Why there are no keys.

use super::certificate::CertificateError;

/// Why there are no keys.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The API server refuses.
    #[error("cannot {what}: {source}")]
    Api {
        /// "read Secret x/y", say.
        what: String,
        /// Its words.
        #[source]
        source: Box<kube::Error>,
    },
    /// Another client has written the object, and its content is unusable.
    #[error("{object} cannot be used: {why}")]
    Content {
        /// "Secret x/y".
        object: String,
        /// The error, and the fix if there is one.
        why: String,
    },
    /// The object was deleted, and this account may not create it.
    #[error("there is no {0}: apply deploy/scheduler.yaml, which has an empty one")]
    Missing(String),
    /// A name that no certificate can carry, or no randomness.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// No randomness.
    #[error(transparent)]
    Key(#[from] api::grant::KeyError),
}

impl TrustError {
    /// Another writer came in between.
    pub(super) fn conflicts(&self) -> bool {
        matches!(self, Self::Api { source, .. }
            if matches!(source.as_ref(), kube::Error::Api(status) if status.code == 409))
    }

    /// Worth another try: the server is unavailable or too busy, or another writer was faster.
    pub(super) fn passes(&self) -> bool {
        let Self::Api { source, .. } = self else {
            return false;
        };
        match source.as_ref() {
            kube::Error::Api(status) => matches!(status.code, 409 | 429 | 500..),
            kube::Error::HyperError(_) | kube::Error::Service(_) | kube::Error::ReadEvents(_) => {
                true
            }
            _ => false,
        }
    }
}
