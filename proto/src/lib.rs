//! Every contract that crosses a process boundary.
//!
//! - [`deviceplugin`], [`podresources`], [`dra`], [`dra_health`], [`pluginregistration`]: the kubelet's own
//!   services, from its protos.
//! - [`telemetry`]: agent to scheduler.
//! - [`mps`]: agent to the MPS supervisor on the same node.
//! - [`names`]: every string that two processes must agree on.
//! - [`codec`]: how the messages of [`telemetry`] are buffered.
//!
//! No logic.
#![forbid(unsafe_code)]

pub mod codec;

/// The kubelet's device-plugin API, v1beta1.
pub mod deviceplugin {
    #![allow(
        clippy::all,
        clippy::pedantic,
        missing_debug_implementations,
        unreachable_pub
    )]
    tonic::include_proto!("v1beta1");
}

/// The kubelet's `PodResources` API, v1.
pub mod podresources {
    #![allow(
        clippy::all,
        clippy::pedantic,
        missing_debug_implementations,
        unreachable_pub
    )]
    tonic::include_proto!("v1");
}

/// The kubelet's API for drivers of claimed devices, v1.
pub mod dra {
    #![allow(
        clippy::all,
        clippy::pedantic,
        missing_debug_implementations,
        unreachable_pub
    )]
    tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
}

/// The kubelet's API for the health of claimed devices, v1alpha1.
pub mod dra_health {
    #![allow(
        clippy::all,
        clippy::pedantic,
        missing_debug_implementations,
        unreachable_pub
    )]
    tonic::include_proto!("v1alpha1");
}

/// How the kubelet's plugin watcher gets to know a plugin, v1.
pub mod pluginregistration {
    #![allow(
        clippy::all,
        clippy::pedantic,
        missing_debug_implementations,
        unreachable_pub
    )]
    tonic::include_proto!("pluginregistration");
}

/// An agent's messages to the schedulers.
pub mod telemetry {
    #![allow(
        clippy::all,
        clippy::pedantic,
        missing_debug_implementations,
        unreachable_pub
    )]
    tonic::include_proto!("aliquot.telemetry.v1");
}

/// The MPS supervisor of a node.
pub mod mps {
    #![allow(
        clippy::all,
        clippy::pedantic,
        missing_debug_implementations,
        unreachable_pub
    )]
    tonic::include_proto!("aliquot.mps.v1");
}

pub mod names;
