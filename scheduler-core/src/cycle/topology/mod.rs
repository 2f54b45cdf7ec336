//! Which nodes a part of a job may be put on together: domains of a topology, tightest
//! first (KAI, `plugins/topology`).
//!
//! A topology's levels are node labels, widest first; nodes that lack one are outside. A
//! domain will do when it can hold all of the part's pods: counted by a representative
//! pod where they all want the same kinds of resources, else by sums. Candidates are
//! domains from the preferred level up to the required one, or to the top; lower levels
//! first, within a level the one that the pods would fill most.
//! - [`tree`]: the domains, from labels alone; [`room`]: what they have for pods of one kind.

pub(crate) mod domains;
mod room;
pub(crate) mod scores;
mod tree;
