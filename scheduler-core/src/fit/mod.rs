//! Feasibility: every rule of a node and of its cards, with a typed reason for each refusal.
//!
//! Input: the state, a request signature, a node. Output: an [`Assignment`], or why there is none.
//! Changes nothing; decisions and explanations use the same functions.
//! - [`check`]: all of the rules for one node, in their order.
//! - [`mod@rules`]: rules of the node, and its MIG strategy; [`resources`]: its countable resources.
//! - [`crate::devices`]: devices for the pod's claims.
//! - [`pods`]: rules between pods, and host ports.
//! - [`card`]: one card, whole or shared.
//! - [`numa`]: would the kubelet align the pod to NUMA zones.
//! - [`assignment`]: which cards of the node.
//! - [`each_card`]: which cards of a node that fits have no room themselves.
//! - [`free`]: what of a node's GPUs is free, in sum; `rooms` keeps it for all nodes.
//! - `verdicts`: what the nodes say to the requests of pods that wait.
//! - [`back`]: whether a victim fits on the cards that it is leaving.
//! - [`after_evictions`]: could the pod fit at all, whichever pods are evicted.
//!
//! Each answer covers two moments: an assignment may be free `now`, or only once terminating pods
//! have ended, less existing promises.

mod after_evictions;
pub(crate) mod assignment;
mod back;
pub(crate) mod card;
mod check;
mod chosen;
pub(crate) mod each_card;
pub(crate) mod free;
mod numa;
pub(crate) mod pods;
mod resources;
mod rooms;
mod rules;
mod seating;
mod verdicts;

pub(crate) use after_evictions::could_fit;
pub(crate) use back::fits_back;
pub(crate) use check::{node, why};
pub(crate) use chosen::choose_whole;
pub(crate) use rules::rules;
pub(crate) use seating::Assignment;
