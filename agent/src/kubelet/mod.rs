//! The kubelet: what it is offered, and the conversations with it.

pub mod offer;
