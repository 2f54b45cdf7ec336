//! The driver's vocabulary: UUIDs, compute modes, release branches, and the profiles and instances
//! of MIG.
//!
//! These are plain values. They import nothing of the agent, and everything that reads, counts or
//! shares cards imports them.

mod compute_mode;
mod driver_branch;
mod mig;
mod uuid;

pub use compute_mode::ComputeMode;
pub use driver_branch::DriverBranch;
pub use mig::{MigLayout, MigStrategy, Profile, Slice};
pub use uuid::GpuUuid;
