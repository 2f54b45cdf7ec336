//! Assigns pods to pod groups, as KAI's pod grouper does.
//!
//! ```text
//! facts ─► relay ─► grouper ─► draft ─┬─► relay ─► the cycle
//!                                └─► create the group ─► annotate the pod
//! ```
//!
//! - `need`: which pods need a group, and which of them must not be placed before they have one.
//! - `relay`: reads the facts on their way to the cycle, passes those about groups to the grouper,
//!   and adds the grouper's decisions to the facts; [`FactRelay`].
//! - `member`: the groups of pods whose own annotations do not name them yet. `shared`: what the
//!   binder needs of all this.
//! - `grouper`: works on many pods at once and retries what failed; [`run`]. `entry`: the state of one
//!   pod. `steps`: the requests that a pod needs. `quiet_period`: when pods that need not wait for their
//!   group get their turn. `missing`: groups that do not exist although pods are in them.
//!   `backoff`: the pause after a failure.
//! - `owners`: reads the owners of a pod, up to the top.
//! - `rules`: which rule applies to which kind of owner. `rule`: what all rules are given and answer. `draft`: what all groups have in common.
//!   `kubeflow`, `ray`, `lws`, `jobset`, `gang`: the rules of a family of kinds each. `native`: pods
//!   in a `PodGroup` of Kubernetes. `types`: defaults of types of workloads. `known`: what the watch says of groups.
//! - `write`: the group as an object, and what has to change in it. `groups`: creates and updates
//!   groups. `failures`: reports why a pod has no group.
//!
//! A pod is placed as a member of its group as soon as its group is decided. Its Binding carries
//! the group's name, and the group is created in the meantime. Only the first group of its kind
//! (namespace, queue, class, kind of owner) is created before its pods are placed, because an
//! admission policy may reject it. If the process ends in between, the next leader finds pods whose
//! group does not exist, and creates it.
//!
//! Writes pod groups, and annotations and labels of pods; only while this replica leads. Must never
//! make one pod wait for another pod's owner.

mod backoff;
mod draft;
mod entry;
mod failures;
mod gang;
mod grouper;
mod groups;
mod jobset;
mod known;
mod kubeflow;
mod lws;
mod member;
mod missing;
mod native;
mod need;
mod object;
mod owners;
mod quiet_period;
mod ray;
mod relay;
mod rule;
mod rules;
mod shared;
mod steps;
mod types;
mod write;

pub(crate) use draft::name_of_pod_alone;
pub use grouper::{Settings, run};
pub(crate) use groups::Stamps;
pub(crate) use known::KnownGroups;
pub use need::must_wait;
pub use relay::{FactRelay, GrouperChannels};
pub use shared::Shared;
pub use types::TypesAt;

#[cfg(test)]
mod tests;
