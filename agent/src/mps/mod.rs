//! MPS.
pub mod control;
pub mod machine;
pub mod place;
pub mod process;
