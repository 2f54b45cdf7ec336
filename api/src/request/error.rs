//! A refused pod gets one sentence that says why. Where KAI has a sentence, ours begins with it,
//! because KAI's users and tools know it; the value and what to write follow.

use super::advice;
use crate::visible::line;

/// Why a pod's wish is refused. The text is what the user reads.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// KAI's sentence.
    #[error(
        "gpu-memory annotation value must be a positive integer greater than 0; it is \"{}\": {}",
        value(.0),
        advice::memory(.0)
    )]
    Memory(String),
    /// KAI's sentence.
    #[error(
        "gpu-fraction annotation value must be a positive number smaller than 1.0; it is \"{}\": {}",
        value(.0),
        advice::fraction(.0)
    )]
    Fraction(String),
    /// KAI's sentence.
    #[error(
        "cannot request both GPU and GPU memory: remove the annotation gpu-fraction or the annotation gpu-memory"
    )]
    Both,
    /// KAI's sentence.
    #[error(
        "cannot have both GPU fraction request and whole GPU resource request/limit: remove the annotation of the share, or nvidia.com/gpu of container {}",
        shown(.0)
    )]
    ShareAndWhole(String),
    /// KAI's sentence.
    #[error(
        "cannot request multiple fractional devices without specifying fraction portion or gpu-memory: add the annotation gpu-memory or gpu-fraction"
    )]
    DevicesAlone,
    /// KAI's sentence.
    #[error(
        "fraction count annotation value must be a positive integer greater than 0; gpu-fraction-num-devices is \"{}\": write digits alone, such as \"2\"",
        value(.0)
    )]
    Devices(String),
    /// KAI's sentence.
    #[error(
        "MPS is only supported with GPU fraction request: remove the annotation mps, or request gpu-fraction"
    )]
    MpsAlone,
    /// KAI's sentence.
    #[error(
        "failed to get fraction container ref: container with name {} not found for fraction request; gpu-fraction-container-name may be {}",
        shown(.name),
        shown(.there)
    )]
    Container {
        /// The name in the annotation.
        name: String,
        /// The names of the pod's containers, separated by commas.
        there: String,
    },
    /// KAI's sentence (per-container form).
    #[error(
        "container {} not found in pod spec, but a fractional annotation referencing it was found",
        shown(.0)
    )]
    PerContainer(String),
    /// KAI's sentence (per-container form).
    #[error(
        "gpu-fraction-container-name annotation value {} does not match container name {}",
        shown(.name),
        shown(.container)
    )]
    OtherContainer {
        /// Of the annotation.
        name: String,
        /// Of the per-container annotations.
        container: String,
    },
    /// KAI's sentence.
    #[error(
        "NvFractions memory request ({request}) does not match gpu-memory annotation value ({memory})"
    )]
    Mismatch {
        /// Of the container.
        request: crate::Mib,
        /// Of the pod.
        memory: crate::Mib,
    },
    /// KAI's sentence.
    #[error(
        "cannot combine nvidia.com/container. limit annotation with gpu-fraction or gpu-memory annotation"
    )]
    LimitOfOtherForm,
    /// Ours: the pod's annotation cannot mean all of them.
    #[error("{0} applies to one container, and several have annotations of their own: remove {0}")]
    SeveralContainers(&'static str),
    /// KAI's sentence.
    #[error(
        "{} annotation value must be a valid Kubernetes memory quantity greater than 0; it is \"{}\": write an amount such as \"2Gi\"",
        shown(.0),
        value(.1)
    )]
    Quantity(String, String),
    /// Ours: KAI takes less than that for 1 MiB.
    #[error(
        "{} annotation value is a Kubernetes memory quantity; \"{}\" is less than 1 MB: write an amount with a unit, such as \"{}\"",
        shown(.0),
        value(.1),
        advice::unit(.1)
    )]
    BelowOneMb(String, String),
    /// KAI's sentence.
    #[error("invalid fraction request for container {}: request is greater than limit", shown(.0))]
    AboveLimit(String),
    /// KAI's sentence.
    #[error(
        "gpu-memory.limit annotation value must be a positive Kubernetes memory quantity with a unit; it is \"{}\": write an amount such as \"4Gi\"",
        value(.0)
    )]
    MemoryLimit(String),
    /// KAI's sentence.
    #[error(
        "gpu-memory.limit annotation value ({limit}) must not be smaller than gpu-memory annotation value ({memory})"
    )]
    MemoryLimitBelow {
        /// The one.
        limit: crate::Mib,
        /// The other.
        memory: crate::Mib,
    },
    /// KAI's sentence.
    #[error("{} annotation can only be used together with the {with} annotation", shown(.limit))]
    LimitAlone {
        /// The annotation that is present.
        limit: String,
        /// The annotation that is missing.
        with: &'static str,
    },
    /// KAI's sentence.
    #[error(
        "{} annotation value must be a positive number smaller than 1.0; it is \"{}\": {}",
        shown(.0),
        value(.1),
        advice::fraction(.1)
    )]
    FractionLimit(String, String),
    /// KAI's sentence.
    #[error("{} annotation value must have at most 5 digits after the decimal point", shown(.0))]
    FractionLimitDigits(String),
    /// KAI's sentence.
    #[error(
        "{} annotation value ({}) must be greater than gpu-fraction annotation value ({})",
        shown(.key),
        value(.limit),
        value(.fraction)
    )]
    FractionLimitBelow {
        /// The annotation.
        key: String,
        /// Its value.
        limit: String,
        /// The value of `gpu-fraction`.
        fraction: String,
    },
    /// KAI's sentence.
    #[error(
        "{} annotation container name {} does not match the gpu-fraction target container",
        shown(.key),
        shown(.container)
    )]
    FractionLimitContainer {
        /// The annotation.
        key: String,
        /// The container that it names.
        container: String,
    },
    /// KAI's sentence.
    #[error("{short} annotation conflicts with {} annotation", shown(.long))]
    Conflict {
        /// The pod's annotation.
        short: &'static str,
        /// The container's.
        long: String,
    },
    /// Ours.
    #[error(
        "{} annotation value must be time-slicing or sm-sharing; it is \"{}\"",
        shown(.0),
        value(.1)
    )]
    ComputeMode(String, String),
    /// KAI's sentence.
    #[error(
        "{} annotation value must be a positive number no greater than 1.0; it is \"{}\": {}",
        shown(.0),
        value(.1),
        advice::compute(.1)
    )]
    ComputeRequest(String, String),
    /// Ours.
    #[error(
        "aliquot.dev/gpu-compute annotation value must be an integer from 1 to 100; it is \"{}\"",
        value(.0)
    )]
    Compute(String),
    /// Ours.
    #[error("aliquot.dev/gpu-compute needs gpu-memory or gpu-fraction")]
    ComputeAlone,
    /// Ours: `nvidia.com/gpu` that is no whole number.
    #[error(
        "nvidia.com/gpu of container {} must be a whole number; it is \"{}\": for a part of a GPU use the annotation gpu-fraction or gpu-memory",
        shown(.0),
        value(.1)
    )]
    Whole(String, String),
    /// Ours: KAI's binder writes it on a pod that it has bound.
    #[error(
        "annotation {} is written by KAI's binder on a bound pod, and by Aliquot in aliquot.dev/grant: remove it from the manifest",
        shown(.0)
    )]
    Binders(String),
    /// Ours: KAI refuses them as invalid, too.
    #[error(
        "annotation {} is unknown for a container: the names are nvidia.com/container.NAME with .gpu-memory.request, .gpu-memory.limit, .gpu-compute.mode or .gpu-compute.request",
        shown(.0)
    )]
    UnknownName(String),
    /// A share for a container that Kubernetes gives no devices.
    #[error("the pod has no container")]
    NoContainer,
}

/// A name has 253 characters at most (RFC 1123 subdomain), an annotation's key 317; what is
/// longer is none, and may be as long as the pod.
const MAX_SHOWN: usize = 320;
/// A number has fewer.
const MAX_VALUE: usize = 64;

/// A tenant's text, as one line of bounded length.
pub(crate) fn shown(text: &str) -> String {
    line(text, MAX_SHOWN)
}

fn value(text: &str) -> String {
    line(text, MAX_VALUE)
}
