//! What users, the scheduler and the agents write into Kubernetes objects.
//!
//! - [`request`]: a pod's annotations and limits → its request, or one clear sentence.
//! - [`grant`]: what the scheduler decided for a pod, signed, as one annotation.
//! - [`guard`]: what the admission policies refuse, asked of pods that are older than they.
//! - [`gpu_node`]: our `GpuNode`: spec by the admin, status by the agent.
//! - [`gpu_quota`]: what a queue gets of single GPU products.
//! - [`kai`]: KAI's `Queue`, `PodGroup`, `Topology`, `SchedulingShard` and `Config`, as their
//!   CRDs define them.
//! - [`lint`]: the mistakes of a manifest that nothing refuses, each with its field and its fix.
//! - [`node_topology`]: the policy of a kubelet's topology manager, as a `NodeResourceTopology` says
//!   it.
//! - [`owner`]: the controller of an object.
//! - [`quantity`]: amounts as Kubernetes writes them, exactly.
//! - [`share_config`]: a claim's other requests, besides cards and memory.
//! - [`units`]: MiB and nano-GPU, and the enums that cross crates.
//! - [`visible`]: untrusted text as a terminal shows it.
//!
//! Never talks to anything: parsing, printing, signing, checking.
#![forbid(unsafe_code)]

pub mod gpu_node;
pub mod gpu_quota;
pub mod grant;
pub mod guard;
pub mod isolation;
pub mod kai;
pub mod lint;
pub mod node_topology;
pub mod owner;
pub mod quantity;
pub mod request;
pub mod share_config;
pub mod units;
pub mod visible;

pub use gpu_node::{GpuNode, GpuNodeSpec, GpuNodeStatus};
pub use grant::{Grant, GrantError, Signer, Verifier};
pub use kai::{Config, PodGroup, Queue, SchedulingShard, Topology};
pub use request::{PodRequest, RequestError};
pub use share_config::ShareConfig;
pub use units::{Mib, Mode, NanoGpu};
