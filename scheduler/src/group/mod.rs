//! Puts the pods of a workload into its pod group, as KAI's pod grouper does.
//!
//! ```text
//! facts ─► tee ─► desk ─► draft ─┬─► tee ─► the cycle
//!                                └─► make the group ─► name it on the pod
//! ```
//!
//! - `need`: which pods, and which of them must not be placed before.
//! - `tee`: takes what concerns groups from the facts on their way, and puts among them what was
//!   decided; [`Tee`]. `member`: the groups of pods that do not say so themselves yet.
//! - `desk`: one pod after the other, many at once, again when it failed; [`run`]. `entry`: what
//!   it knows of one, and whose turn it is; `steps`: what is done for a pod. `lull`: when those
//!   that need not wait for their group have their turn. `missing`: groups that do not exist
//!   although pods are in them. `backoff`: the pause after a failure.
//! - `owners`: reads what owns a pod, up to the top.
//! - `rules`: which rule for which kind, `draft`: what all groups have, then a file for each
//!   family of kinds: `kubeflow`, `ray`, `lws`, `jobset`, `gang`.
//! - `write`: what that means for the objects; `groups`: makes and changes them; `voice`:
//!   says why a pod is in no group.
//!
//! A pod is placed as a member of its group as soon as that is decided. Its group's name is
//! written with its Binding; the group itself is made meanwhile, and placing does not wait for
//! it, but for the first group of its like: a policy may refuse it. What a crash in between leaves undone, the next leader finds: a pod that says it is in a
//! group that is not there.
//!
//! Writes pod groups, and annotation and labels of pods; only while leading. Must never keep
//! one pod waiting for another's owner.

mod backoff;
mod desk;
mod draft;
mod entry;
mod gang;
mod groups;
mod jobset;
mod kubeflow;
mod lull;
mod lws;
mod member;
mod missing;
mod need;
mod object;
mod owners;
mod ray;
mod rules;
mod shared;
mod steps;
mod tee;
mod voice;
mod write;

pub use desk::{Settings, run};
pub(crate) use draft::name_of_pod_alone;
pub use need::must_wait;
pub use shared::Shared;
pub use tee::{Tee, Told};

#[cfg(test)]
mod tests;
