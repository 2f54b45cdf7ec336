//! Why the guard refuses a container.

use cdi::hook::ArgumentsError;

/// Why the container must not start. One line each; the kubelet shows it in the pod's
/// events, and its back-off tries again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HookError {
    /// Our agent did not write this command line.
    #[error(transparent)]
    Arguments(#[from] ArgumentsError),
    /// Nothing to compare with.
    #[error("cannot read {0}")]
    Unreadable(String),
    /// The runtime did not identify the container.
    #[error("the container runtime names no {what} in its annotations")]
    Unnamed {
        /// "pod UID" or "container name".
        what: &'static str,
    },
    /// It identified the container twice, differently.
    #[error("annotations name two {what}s: {first} and {second}")]
    Ambiguous {
        /// "pod UID" or "container name".
        what: &'static str,
        /// One.
        first: String,
        /// The other.
        second: String,
    },
    /// This share is another container's.
    #[error("this GPU share belongs to {what} {expected}, not {seen}")]
    NotTheHolder {
        /// "pod" or "container".
        what: &'static str,
        /// Whose it is.
        expected: String,
        /// The container's identity.
        seen: String,
    },
    /// The agent found that the pod must not have the share.
    #[error("{0}")]
    Refused(String),
    /// It is none of the containers that the share is for.
    #[error(
        "container {container} of pod {pod_uid} is not among those that this GPU share is for{why}"
    )]
    NotListed {
        /// UID of its pod.
        pod_uid: String,
        /// Its name.
        container: String,
        /// Why nothing is listed, where that is so.
        why: String,
    },
    /// The runtime injected the CDI file's previous content.
    #[error("the container was given an older version of its GPU share; the kubelet retries")]
    Stale,
    /// The file does not define the device.
    #[error("the CDI file does not define {0}")]
    NoDevice(String),
    /// Something set a variable of the share after the share.
    #[error("{name} is {seen:?} in the container, its GPU share says {expected:?}")]
    Overridden {
        /// The variable.
        name: String,
        /// By the share.
        expected: String,
        /// In the container; empty when it is not set.
        seen: String,
    },
    /// The node's minimum fence is the driver's own limit.
    #[error("the driver's memory limit is not set: {0}")]
    NoLimit(String),
    /// The proof could not be written.
    #[error("cannot write the proof: {0}")]
    Proof(String),
}
