//! The errors for which there are no keys.

use super::certificate::CertificateError;

/// There are no keys for this reason.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The API server refuses a request.
    #[error("cannot {what}: {source}")]
    Api {
        /// The request in words, such as "read Secret x/y".
        what: String,
        /// The answer of the API server.
        #[source]
        source: Box<kube::Error>,
    },
    /// Another client has written the object, and its content is unusable.
    #[error("{object} cannot be used: {why}")]
    Content {
        /// The kind and name of the object, such as "Secret x/y".
        object: String,
        /// The error, and the fix if there is one.
        why: String,
    },
    /// The object was deleted, and this account may not create it.
    #[error("there is no {0}: apply deploy/scheduler.yaml, which has an empty one")]
    Missing(String),
    /// A certificate cannot be made: no certificate can carry the name, or there are no random numbers.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The operating system gives no random numbers.
    #[error(transparent)]
    Key(#[from] api::grant::KeyError),
}

impl TrustError {
    /// Returns true if another writer came in between.
    pub(super) fn conflicts(&self) -> bool {
        matches!(self, Self::Api { source, .. }
            if matches!(source.as_ref(), kube::Error::Api(status) if status.code == 409))
    }

    /// Returns true if another try may succeed: the server is unavailable or too busy, or another writer
    /// was faster.
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
