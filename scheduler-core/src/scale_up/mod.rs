//! New nodes for pods that no node has room for: which pods those are, and how many nodes of
//! which group they need.
//!
//! In: the state after a decision. Out: a [`Shortage`], a small cluster of its own with those
//! pods and the nodes that have GPUs left; from it and the [`NodeTemplate`]s a plan. The plan is
//! what this core decides there once empty nodes are added: no rule of placement is written
//! down twice.
//!
//! The caller takes a [`Shortage`] between two decisions ([`crate::Core::shortage`]; its cost is
//! bounded by `most` and by the number of pods that wait) and plans elsewhere, at leisure.

mod groups;
mod plan;
mod shortage;

pub use groups::{Groups, NodeTemplate, Shortage};
pub(crate) use plan::{DECISIONS, trial};
pub use plan::{NewNode, Plan, Unknown, plan};
pub(crate) use shortage::{Scope, shortage};
