//! The Container Device Interface: names, specs, and our own files in its directory.
//!
//! In the order of the data's way:
//!
//! - [`name`]: the grammar `vendor/class=device`: parse, check, print.
//! - [`spec`]: the specification's structs, and the runtime's rules for merging edits.
//! - [`version`]: the lowest `cdiVersion` that a spec's fields allow.
//! - [`check`]: what a runtime would refuse, found before it does.
//! - [`mod@digest`]: one number for the content of a spec, carried by the spec's own hook.
//! - [`dir`]: our files in the directory: atomic, never another vendor's.
//! - [`hook`]: the file that our hook leaves in a container's start.
//! - [`foreign`] (feature `foreign`): NVIDIA's generated specs, to find one GPU's edits.
//!
//! Knows neither NVML nor the kubelet, and decides nothing.
#![forbid(unsafe_code)]
#![allow(
    clippy::missing_panics_doc,
    reason = "every expect says why it cannot happen"
)]

pub mod check;
pub mod digest;
pub mod dir;
#[cfg(feature = "foreign")]
pub mod foreign;
pub mod hook;
pub mod name;
pub mod spec;
pub mod version;

pub use check::CheckError;
pub use digest::{Digest, digest, seal};
pub use dir::{DirError, OwnDir, Written};
pub use name::{Kind, NameError, QualifiedName};
pub use spec::{ContainerEdits, Device, DeviceNode, Hook, IntelRdt, Mount, NetDevice, Spec};
