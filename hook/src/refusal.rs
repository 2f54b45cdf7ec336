//! The refusals of the guard.

use cdi::hook::ArgumentsError;

/// The container must not start for this reason. It is one line; the kubelet shows it in the pod's
/// events, and its back-off tries again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HookError {
    /// Our agent did not write this command line.
    #[error(transparent)]
    Arguments(#[from] ArgumentsError),
    /// A file that the guard compares with cannot be read.
    #[error("cannot read {0}")]
    Unreadable(String),
    /// The runtime did not identify the container.
    #[error("the container runtime names no {what} in its annotations")]
    Unnamed {
        /// The part of the identity: "pod UID" or "container name".
        what: &'static str,
    },
    /// The runtime identified the container twice, differently.
    #[error("annotations name two {what}s: {first} and {second}")]
    Ambiguous {
        /// The part of the identity: "pod UID" or "container name".
        what: &'static str,
        /// The first identity.
        first: String,
        /// The second identity.
        second: String,
    },
    /// This share is another container's.
    #[error("this GPU share belongs to {what} {expected}, not {seen}")]
    NotTheHolder {
        /// The kind of the holder: "pod" or "container".
        what: &'static str,
        /// The identity of the holder.
        expected: String,
        /// The identity of the container.
        seen: String,
    },
    /// The agent found that the pod must not have the share.
    #[error("{0}")]
    Refused(String),
    /// The container is none of those that the share is for.
    #[error(
        "container {container} of pod {pod_uid} is not among those that this GPU share is for{why}"
    )]
    NotListed {
        /// The UID of the container's pod.
        pod_uid: String,
        /// The name of the container.
        container: String,
        /// The reason why no container is listed. It is empty if some are.
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
        /// The name of the variable.
        name: String,
        /// The value that the share has.
        expected: String,
        /// The value in the container. It is empty if the variable is not set.
        seen: String,
    },
    /// The node's minimum fence is the driver's own limit.
    #[error("the driver's memory limit is not set: {0}")]
    NoLimit(String),
    /// The proof could not be written.
    #[error("cannot write the proof: {0}")]
    Proof(String),
}
