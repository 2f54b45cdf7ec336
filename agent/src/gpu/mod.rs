//! What the driver says of a card in its own words: its UUID, its compute mode, the branch of the
//! driver, the profiles and instances of MIG.
//!
//! Plain values, below everything that reads, counts or shares cards.

mod compute_mode;
mod driver_branch;
mod mig;
mod uuid;

pub use compute_mode::ComputeMode;
pub use driver_branch::DriverBranch;
pub use mig::{MigLayout, MigStrategy, Profile, Slice};
pub use uuid::GpuUuid;
