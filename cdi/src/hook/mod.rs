//! What the agent and the hook say to each other: arguments and a list of holders there, a
//! proof file back.

mod arguments;
mod holders;
mod proof;

pub use arguments::{Arguments, ArgumentsError, COMMAND, Limit, LimitedCard, ShareOwner};
pub use holders::{HOLDERS_VERSION, Holder, Holders, Refused};
pub use proof::{Backend, Limited, PROOF_VERSION, Proof, proof_name};
