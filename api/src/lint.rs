//! A manifest → the mistakes in it that nothing refuses, each with its field and its fix. Pure.
//!
//! In: an object as its author wrote it, of any kind that has pods, and what is known of the
//! cluster. Out: [`Finding`]s. Admission returns them as warnings; `aliquot lint` and
//! `aliquot simulate` print them. A manifest with such a mistake is valid for Kubernetes: its pod
//! runs without a GPU, or waits for ever, and no other message says so. What admission refuses is
//! not repeated here: [`crate::request`] has those sentences.
//!
//! - `templates`: the pods that an object makes, wherever its kind has them.
//! - `keys`: names of annotations, labels and resources, and which of them was meant.
//! - `peers`: the words of other products that share GPUs.
//! - `owner`: what is written on a Deployment or Job in place of its pods.
//! - `pod`: what a pod says.

mod finding;
mod keys;
mod owner;
mod peers;
mod pod;
mod templates;

pub use finding::{Cluster, Finding};
pub use templates::{Template, templates};

use serde_json::Value;

/// The most findings of one object, so that a hostile object cannot fill a screen or a log.
const MOST: usize = 32;

/// Returns the mistakes of an object, in the order of its fields: first its own metadata, then its
/// pods'. An object without a pod has none.
pub fn of(object: &Value, cluster: &Cluster) -> Vec<Finding> {
    let templates = templates(object);
    let mut findings = owner::of(object, &templates, cluster);
    let told = !findings.is_empty();
    for template in &templates {
        findings.extend(pod::of(template, cluster, told));
    }
    findings.truncate(MOST);
    findings
}

/// Returns the mistakes of a pod whose scheduler is this one, as its webhook sees it.
pub fn of_pod(pod: &Value, cluster: &Cluster) -> Vec<Finding> {
    let path = String::new();
    let mut findings = pod::of(&Template { path, pod }, cluster, false);
    findings.truncate(MOST);
    findings
}

#[cfg(test)]
mod tests;
