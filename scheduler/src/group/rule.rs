//! What the rule of every kind of owner is given, may look up, and answers instead of a group.

use super::draft::Classes;
use super::object::{Object, Reference};

/// Annotation on a Job or a `JobSet`: the number of its pods that must fit at once.
pub(super) const BATCH_MIN_MEMBER: &str = proto::names::kai::BATCH_MIN_MEMBER;

/// Why a pod has no group yet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RuleError {
    /// The object lacks what the rule needs. A person or its operator has to correct it.
    #[error("{owner}: {what}")]
    Says {
        /// The owner that lacks it.
        owner: Reference,
        /// The error.
        what: String,
    },
}

impl RuleError {
    pub(super) fn of(object: &Object, what: impl Into<String>) -> Self {
        Self::Says {
            owner: object.reference(),
            what: what.into(),
        }
    }
}

/// The pod and its owners that a rule is given.
#[derive(Clone, Copy, Debug)]
pub(super) struct RuleContext<'a> {
    pub(super) pod: &'a Object,
    /// The owners from the nearest to the top; empty for a pod without an owner.
    pub(super) chain: &'a [Object],
    pub(super) extra: Option<&'a LookupResult>,
    pub(super) classes: &'a Classes,
    /// Whether the pods of a Deployment share one group.
    pub(super) deployment_gangs: bool,
}

/// An object that a rule needs besides the owners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Lookup {
    /// Another object of the pod's namespace.
    Object {
        api_version: &'static str,
        kind: &'static str,
        name: String,
    },
    /// The `PodGroup` of Kubernetes of that name, in whatever version it is served.
    Native { name: String },
    /// Whether a pod with these labels exists and is not being deleted.
    Pod { labels: String },
    /// Whether the object with that UID has a group by the rule that KAI used before.
    Former { owner: String },
}

/// The objects found.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum LookupResult {
    Object(Box<Object>),
    Pod(bool),
    Former(bool),
}

/// The annotation's number, at least 1.
pub(super) fn min_member(owner: &Object, key: &str) -> Result<Option<i64>, RuleError> {
    let text = owner.annotation(key);
    text.map(|text| count(owner, key, text)).transpose()
}

/// The number that an annotation says, at least 1.
pub(super) fn count(owner: &Object, key: &str, text: &str) -> Result<i64, RuleError> {
    match text.parse::<i32>() {
        Ok(min) if min >= 1 => Ok(i64::from(min)),
        _ => Err(RuleError::of(
            owner,
            format!("annotation {key} is {text:?}, which is no whole number from 1 on"),
        )),
    }
}
