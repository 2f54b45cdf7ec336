//! What the agent and the hook say to each other: arguments there, a proof file back.

mod arguments;
mod proof;

pub use arguments::{Arguments, ArgumentsError, COMMAND, Limit};
pub use proof::{Limited, PROOF_VERSION, Proof};
