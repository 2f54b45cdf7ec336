//! A whole Kubernetes cluster in one process, without containers and without root.
//!
//! - [`api_server`]: objects in memory, over HTTP, for the same client that talks to a
//!   real one.
//! - [`kubelet`]: device plugins, `PodResources`, pods and their node, over the real sockets.
//! - [`prometheus`]: serves past use.
//! - [`runtime`]: CDI, hooks and processes, without containers.
//!
//! Linked by the demo and by tests alone.
#![forbid(unsafe_code)]

pub mod api_server;
pub mod kubelet;
pub mod prometheus;
pub mod runtime;
