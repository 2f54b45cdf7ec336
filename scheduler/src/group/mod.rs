//! Puts the pods of a workload into its pod group, as KAI's pod grouper does.
//!
//! ```text
//! facts ─► tee ─► desk ─► owners: read ─► rules: draft ─► write: PodGroup, then the pod
//! ```
//!
//! - `need`: which pods, and which of them must not be placed before.
//! - `tee`: takes what concerns groups from the facts on their way; [`Tee`].
//! - `desk`: one pod after the other, many at once, again when it failed; [`run`]. `lull`:
//!   when those that need not wait for their group have their turn.
//! - `owners`: reads what owns a pod, up to the top.
//! - `rules`: which rule for which kind, `draft`: what all groups have, then a file for each
//!   family of kinds: `kubeflow`, `ray`, `lws`, `jobset`, `gang`.
//! - `write`: what that means for the objects; `groups`: makes and changes them; `voice`:
//!   says why a pod is in no group.
//!
//! Writes pod groups, and annotation and labels of pods; only while leading. Must never keep
//! one pod waiting for another's owner.

mod desk;
mod draft;
mod gang;
mod groups;
mod jobset;
mod kubeflow;
mod lull;
mod lws;
mod need;
mod object;
mod owners;
mod ray;
mod rules;
mod tee;
mod voice;
mod write;

pub use desk::{Settings, run};
pub(crate) use draft::name_of_pod_alone;
pub use need::must_wait;
pub use tee::{Tee, Told};

#[cfg(test)]
mod tests;
